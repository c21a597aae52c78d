"""What the resolver's parts share: the case they decide, what its repository offers, and words for messages.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Distro
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import Request

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to the resolver; gpus are those that the catalog knows, once per device."""

    catalog: Catalog
    distro: Distro
    host: Host
    request: Request
    gpus: tuple[Gpu, ...]
    memo: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """Each kind of GPU once, in the host's order."""
        return tuple(dict.fromkeys(self.gpus))

    @functools.cached_property
    def concluded(self) -> dict[str, Any]:
        """What follows from the catalog and the kinds of GPU alone: kept as long as the catalog is."""
        found: dict[str, Any] = self.catalog.concluded.setdefault(self.gpu_kinds, {})
        return found

    @property
    def repository_name(self) -> str:
        """How messages call NVIDIA's repository."""
        return self.host.repository_url or f"NVIDIA's repository for {self.distro.id}"

    def with_gpus(self, gpus: tuple[Gpu, ...]) -> Case:
        """The same question for other GPUs."""
        memo = self.memo.setdefault(f"gpus {gpus}", {})
        return dataclasses.replace(self, gpus=gpus, memo=memo)


def remembered(make: Callable[[Case], T]) -> Callable[[Case], T]:
    """For a function of a case that looks at neither request nor Pythons: run once a host, whatever is tried."""
    name = f"{make.__module__}.{make.__qualname__}"

    @functools.wraps(make)
    def get(case: Case) -> T:
        if name not in case.memo:
            case.memo[name] = make(case)
        found: T = case.memo[name]
        return found

    return get


def gpu_label(gpu: Gpu) -> str:
    """A GPU in a message."""
    return f"{gpu.name} (compute capability {gpu.compute_capability})"


def span(what: str, found: Iterable[str]) -> str:
    """`CUDA 8.0 to 12.9` in a message."""
    ordered = sorted(set(found), key=versions.key)
    return f"{what} {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")


@remembered
def _offers(case: Case) -> dict[str, tuple[str, ...]]:
    return {}


def offered(case: Case, package: str) -> tuple[str, ...]:
    """The versions of a package that the host's repository offers, newest first."""
    if case.host.offers is None:
        return ()
    known = _offers(case)
    if package not in known:
        known[package] = tuple(sorted(case.host.offers.get(package, ()), key=versions.key, reverse=True))
    return known[package]


def offered_version(case: Case, package: str, release: str, cuda: str | None = None) -> str | None:
    """The newest package version of an upstream release (and CUDA suffix); None where it is not offered."""
    for found in offered(case, package):
        if versions.upstream(found) == release and versions.cuda_suffix(found) == cuda:
            return found
    return None


def not_in_repository(case: Case, what: str, missing: Sequence[str], exist: Iterable[str], request: str) -> Problem:
    """The problem of a version that is known but not offered; says what is."""
    known = sorted(set(exist), key=versions.key, reverse=True)
    more = ", ..." if len(known) > 8 else ""
    there = f"it offers {', '.join(known[:8])}{more}" if known else "it offers no other either"
    remedy = f"ask for one that it offers, or leave {request} at auto" if known else f"set {request} to none"
    packages = f" ({', '.join(missing)})" if missing else ""
    return Problem("not-in-repository", f"{case.repository_name} does not offer {what}{packages}; {there}", remedy)


def sources(asked: str) -> tuple[str, ...]:
    """The archives to look into, the preferred one first."""
    return ("nvidia", "distro") if asked == "auto" else (asked,)
