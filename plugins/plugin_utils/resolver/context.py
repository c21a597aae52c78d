"""Shared by the parts of the resolver: the context of a decision, what the repository offers, texts of messages.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Distro
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host

PROBLEMS = {
    "not-in-repository": "it exists, but neither repository nor archive offers it; a warning if a library is left out",
}


# The resolver's only cache, on functions of a reduced context: remedies try dozens of requests for one host, and many
# hosts of a fleet have the same GPUs.
cached = functools.lru_cache(maxsize=1024)


@dataclasses.dataclass(frozen=True)
class ResolveContext:
    """One question to the resolver. gpus: the host's GPUs that are in the catalog, one entry per device."""

    catalog: Catalog
    host: Host
    request: Request
    gpus: tuple[Gpu, ...]

    @property
    def distro(self) -> Distro:
        """The host's distribution release in the catalog."""
        return self.catalog.distros[self.host.distribution]

    @functools.cached_property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """Each kind of GPU once, in the host's order."""
        return tuple(dict.fromkeys(self.gpus))

    @property
    def repository_name(self) -> str:
        """How messages name NVIDIA's repository, as the subject of a sentence about what it offers."""
        name = self.host.repository_url or f"NVIDIA's repository for {self.distro.id}"
        return f"according to the catalog, {name}" if self.host.offers is None else name

    @property
    def archive_name(self) -> str:
        """How messages name the distribution's own archive, which is never read, in the same way."""
        return f"according to the catalog, {self.distro.id}'s own archive"

    def unmanaged(self, component: str) -> str:
        """Return the reason for a component that the request or its scope excludes."""
        outside = self.request["scope"] == "frameworks" and component not in frameworks.LABELS
        return (
            f"not managed (gpu_stack_{'scope=frameworks' if outside else component + '=none'}): what is installed stays"
        )

    def with_gpus(self, gpus: tuple[Gpu, ...]) -> ResolveContext:
        """Return the same question for other GPUs."""
        return dataclasses.replace(self, gpus=gpus)

    def reduced(self, host: Sequence[str] = (), request: Sequence[str] = ()) -> ResolveContext:
        """Return the question with these fields of host and request alone, the architecture, and each kind of GPU once.

        A cached function takes such a context, so that its result serves every question that agrees in these fields.
        It must read no other field: the others have their defaults.
        """
        return ResolveContext(
            self.catalog,
            Host(self.host.distribution, self.host.architecture, **{name: getattr(self.host, name) for name in host}),
            self.request.only(request),
            self.gpu_kinds,
        )


def gpu_label(gpu: Gpu) -> str:
    """Return how messages name a GPU."""
    return gpu.label("compute capability ")


def quote_hint(name: str, wanted: str, known: Iterable[str]) -> str:
    """Return what to type if YAML has dropped the zero of a requested version, to append to a message."""
    meant = versions.before_yaml(wanted, known)
    if meant is None:
        return ""
    return f'; YAML reads {meant} without quotes as {wanted}: if you mean {meant}, write gpu_stack_{name}: "{meant}"'


def span(label: str, found: Iterable[str]) -> str:
    """Return a range of versions for a message, such as `CUDA 8.0 to 12.9`."""
    ordered = sorted(set(found), key=versions.key)
    return f"{label} {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")


def offered(context: ResolveContext, package: str) -> tuple[str, ...]:
    """Return the versions of a package in the host's repository, newest first; none where no repository was read."""
    return tuple(sorted((context.host.offers or {}).get(package, ()), key=versions.key, reverse=True))


def offered_version(context: ResolveContext, package: str, release: str, cuda: str | None = None) -> str | None:
    """Return the newest offered package version of an upstream release, built for a CUDA release where one is given."""
    for found in offered(context, package):
        if versions.upstream(found) == release and versions.cuda_suffix(found) == cuda:
            return found
    return None


def not_in_repository(
    context: ResolveContext, wanted: str, missing: Sequence[str], exist: Iterable[str], component: str
) -> Problem:
    """Return the problem of a version that is known but not offered.

    missing: the packages that are not offered; exist: the versions that are.
    """
    known = sorted(set(exist), key=versions.key, reverse=True)
    more = ", ..." if len(known) > 8 else ""
    offers = f"it offers {', '.join(known[:8])}{more}" if known else "it offers no other either"
    remedy = (
        f"set gpu_stack_{component} to one that it offers, or leave it at auto"
        if known
        else f"set gpu_stack_{component}=none"
    )
    packages = f" ({', '.join(missing)})" if missing else ""
    return Problem(
        "not-in-repository", f"{context.repository_name} does not offer {wanted}{packages}; {offers}", remedy
    )


def sources(asked: str) -> tuple[str, ...]:
    """Return the archives to search for a requested source, the preferred one first."""
    return ("nvidia", "distro") if asked == "auto" else (asked,)
