"""The choice of cuDNN: the builds that a request allows, each with its problems on the host, and what they fit.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, CudnnApt, CudnnVersion
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange, Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import CudaComponent, LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    NONE,
    BesideHolds,
    Candidate,
    Choice,
    Evaluated,
    Facts,
    Holds,
    Keeping,
    Limits,
    Rule,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

PROBLEMS = {
    "cudnn-cuda-mismatch": "cuDNN is built for another CUDA",
    "gpu-dropped-by-cudnn": "cuDNN has no code for a GPU of the host",
}
ABSENT = {"cudnn.version": NONE}


@dataclasses.dataclass(frozen=True)
class CudnnComponent(LibraryComponent):
    """The cuDNN to install."""

    name: ClassVar[str] = "cudnn"
    label: ClassVar[str] = "cuDNN"


def _candidates(context: ResolveContext, facts: Facts) -> Sequence[Candidate]:
    absent = libraries.without_builds(context, CudnnComponent, ABSENT, facts)
    if absent:
        return [absent]
    reduced = libraries.reduced(context, "cudnn").with_gpus(())
    builds = [build for major in libraries.majors(context, facts) for build in _builds(reduced, major)]
    # The newest CUDA major may have no cuDNN yet, or an old one alone.
    return sorted(builds, key=_newest, reverse=True)


def known(context: ResolveContext) -> list[str]:
    """Return every cuDNN version of the catalog."""
    return [v.version for v in context.catalog.cudnn.versions]


@cached
def _builds(context: ResolveContext, cuda_major: int) -> tuple[Candidate, ...]:
    """Return the builds that the request allows for a CUDA major, newest first, without what GPUs have to do with."""
    wanted = context.request["cudnn"]
    found = {
        build.facts["cudnn.version"] + build.facts["cudnn.cuda"]: build
        for apt in context.catalog.cudnn.apt
        for build in _packages(context, apt, cuda_major)
        if wanted == "auto" or versions.has_prefix(build.facts["cudnn.version"], wanted)
    }
    return tuple(sorted(found.values(), key=_newest, reverse=True))


def _newest(build: Candidate) -> tuple[versions.Key, versions.Key]:
    return versions.key(build.facts["cudnn.version"]), versions.key(build.facts["cudnn.cuda"])


def _packages(context: ResolveContext, apt: CudnnApt, cuda_major: int) -> list[Candidate]:
    """Return the builds with one way of naming packages."""
    runtime = apt.runtime.format(cuda_major=cuda_major)
    builds: set[tuple[str, str | None]] = {
        (versions.upstream(v), versions.cuda_suffix(v)) for v in offered(context, runtime)
    }
    if apt.cudnn_major < 9:
        builds |= {
            (b.version, c)
            for b in context.catalog.cudnn.apt_builds
            for c in b.cuda
            if versions.major(b.version) == apt.cudnn_major and libraries.in_repository(context, b.slugs)
        }
    else:
        builds |= {
            (v.version, None)
            for v in context.catalog.cudnn.versions
            if versions.major(v.version) == apt.cudnn_major
            and (cuda_major in v.cuda_majors or context.request["cudnn"] != "auto")
        }
    return [_build(context, apt, cuda_major, version, suffix) for version, suffix in builds]


def _build(context: ResolveContext, apt: CudnnApt, cuda_major: int, version: str, suffix: str | None) -> Candidate:
    runtime = apt.runtime.format(cuda_major=cuda_major)
    development = [name.format(cuda_major=cuda_major) for name in apt.development]
    names, problems = [runtime, *development], []
    if context.host.offers is None:
        packages = [Package(name, apt.version.format(version=version, cuda=suffix)) for name in names]
    else:
        # Older repositories have no package for the headers alone; they are in the -dev package then.
        names = [n for n in names if "headers" not in n or offered(context, n)]
        found = {name: offered_version(context, name, version, suffix) for name in names}
        packages = [Package(name, v) for name, v in found.items() if v]
        missing = [name for name, v in found.items() if not v]
        if missing:
            exist = libraries.offered_whole(context, names)
            problems = [not_in_repository(context, f"cuDNN {version}", missing, exist, "cudnn")]
    return libraries.build(CudnnComponent, version, suffix or str(cuda_major), packages, problems)


# What it fits ---------------------------------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> tuple[Rule, ...]:
    """Return that it is for the toolkit, that it has code for the GPUs, and that no framework fails beside it."""
    support = context.catalog.cudnn.support

    def is_for(facts: Facts) -> bool:
        published, cuda = _published(context, facts["cudnn.version"]), facts["cuda.version"]
        is_built = published is None or versions.major(cuda) in published.cuda_majors
        return is_built and libraries.serves(facts["cudnn.cuda"], cuda)

    def mismatch(facts: Facts) -> list[Problem]:
        version, published = facts["cudnn.version"], _published(context, facts["cudnn.version"])
        made_for = " and ".join(f"{m}.x" for m in published.cuda_majors) if published else facts["cudnn.cuda"]
        return [
            Problem(
                "cudnn-cuda-mismatch",
                f"cuDNN {version} is built for CUDA {made_for}, the toolkit here is CUDA {facts['cuda.version']}",
                "leave gpu_stack_cudnn at auto, or set gpu_stack_cuda to a release of that major",
            )
        ]

    def has_code(facts: Facts) -> bool:
        version, major = facts["cudnn.version"], versions.major(facts["cudnn.cuda"])
        return all(covers(support, version, major, gpu) for gpu in context.gpu_kinds)

    def no_code(facts: Facts) -> list[Problem]:
        version, major = facts["cudnn.version"], versions.major(facts["cudnn.cuda"])
        return [
            Problem(
                "gpu-dropped-by-cudnn",
                f"cuDNN {version} for CUDA {major} has no code for {gpu_label(gpu)}: it covers "
                f"{supported(support, version, major)}",
                "leave gpu_stack_cudnn at auto: it selects the newest build with code for it",
            )
            for gpu in context.gpu_kinds
            if not covers(support, version, major, gpu)
        ]

    built = ("cudnn.version", "cudnn.cuda")
    return (
        Rule("cuda", (*built, "cuda.version"), is_for, mismatch),
        Rule("gpu", built, has_code, no_code),
        known_bad.beside_wheels(context, "pytorch"),
    )


def _published(context: ResolveContext, version: str) -> CudnnVersion | None:
    return next((known for known in context.catalog.cudnn.versions if known.version == version), None)


# Packages on hold -----------------------------------------------------------------------------------------------------


def major_of(catalog: Catalog, name: str) -> int | None:
    """Return the CUDA major in the name of a cuDNN package, 0 where its name has none; None for another package."""
    for apt in catalog.cudnn.apt:
        for template in (apt.runtime, *apt.development):
            match = re.fullmatch(re.escape(template).replace(r"\{cuda_major\}", r"(\d+)"), name)
            if match:
                return int(match.group(1)) if match.groups() else 0
    return None


def _held(catalog: Catalog, _host: Host, held: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in held.items() if major_of(catalog, name) is not None}


def majors_on_hold(context: ResolveContext, there: Mapping[str, str]) -> dict[str, int]:
    """Return the CUDA majors that packages on hold are for, by their names, where cuDNN is managed."""
    held = _held(context.catalog, context.host, there) if context.request["cudnn"] != "none" else {}
    found = {name: major_of(context.catalog, name) or libraries.built_for(v) for name, v in held.items()}
    return {name: major for name, major in found.items() if major}


def _around_holds(context: ResolveContext, found: Sequence[Evaluated], facts: Facts) -> BesideHolds:
    held = _held(context.catalog, context.host, holds.installed(context.host))
    # The libraries of one cuDNN for several CUDA majors have the same paths.
    others = [name for name in held if major_of(context.catalog, name) not in (0, *libraries.majors(context, facts))]
    return libraries.around_holds(context, CudnnComponent, held, found, facts, is_excluded=bool(others))


def _lacks(context: ResolveContext) -> str:
    is_asked = context.request["cudnn"] not in ("auto", "none")  # at auto it is left out
    return "cuDNN" if is_asked and not context.catalog.cudnn.versions else ""


CHOICE = Choice(
    record=CudnnComponent,
    after=("driver", "cuda", "pytorch"),
    candidates=_candidates,
    known=known,
    published=lambda catalog: [known.version for known in catalog.cudnn.versions],
    rules=_rules,
    optional=True,
    serves=libraries.serves_toolkit,
    absent=ABSENT,
    explain=libraries.explain(CudnnComponent),
    lacks=_lacks,
    holds=Holds(held=_held, around=_around_holds),
    limits=Limits(pins=libraries.pins, constraints=libraries.constraints),
    keeping=Keeping(stays_out=libraries.stays_out),
)


# On a host -----------------------------------------------------------------------------------------------------------


class Cudnn(PackagedPart[CudnnComponent]):
    """cuDNN from NVIDIA's repository, for the CUDA major of the toolkit."""

    record = CudnnComponent
    role = "cudnn"
    in_summary = False

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages of cuDNN for another CUDA major: its libraries have the paths of the planned ones."""
        planned, cuda = self.planned(plan.components), CudaComponent.of(plan.components)
        if planned is None or cuda is None:
            return Removal()
        number = versions.major(planned.version)
        apt = next((entry for entry in catalog.cudnn.apt if entry.cudnn_major == number), None)
        if apt is None or apt.other_builds is None:
            return Removal()
        pattern = apt.other_builds.format(cuda_major=versions.major(cuda.version))
        removed = tuple(sorted(name for name in native(probe) if re.fullmatch(pattern, name)))
        return Removal("replaces the build for another CUDA major", removed, (pattern,)) if removed else Removal()

    def entries(self, catalog: Catalog) -> Mapping[str, CudnnVersion]:
        """Return the versions."""
        return {version.version: version for version in catalog.cudnn.versions}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return which libraries change and are gone."""
        yield from super().effects(change, plan, probe)
        if change.removed:
            yield f"programs that use the removed {', '.join(change.removed)} no longer find cuDNN for that CUDA"
