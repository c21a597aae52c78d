"""The choice of NCCL: the builds that a request allows, each with its problems on the host, and what they fit.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, NcclBuild
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
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
    "nccl-cuda-mismatch": "NCCL is built for another CUDA, or has no code for a GPU of the host",
}


@dataclasses.dataclass(frozen=True)
class NcclComponent(LibraryComponent):
    """The NCCL to install."""

    name: ClassVar[str] = "nccl"
    label: ClassVar[str] = "NCCL"


def _candidates(context: ResolveContext, facts: Facts) -> Sequence[Candidate]:
    absent = libraries.without_builds(context, NcclComponent, {}, facts)
    if absent:
        return [absent]
    return _ordered(libraries.reduced(context, "nccl").with_gpus(()), facts.get("cuda.version"))


@cached
def _ordered(context: ResolveContext, cuda: str | None) -> tuple[Candidate, ...]:
    """Return the builds: those for this toolkit or an older one first, newest first."""

    def rank(build: Candidate) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
        version, built_for = versions.key(build.facts["nccl.version"]), versions.key(build.facts["nccl.cuda"])
        if cuda is None or built_for <= versions.key(cuda):
            return True, version, built_for
        # A build for a newer minor: the nearest one first.
        return False, tuple(-n for n in built_for), version

    return tuple(sorted(_builds(context), key=rank, reverse=True))


def known(context: ResolveContext) -> list[str]:
    """Return every NCCL version of the catalog."""
    return [b.version for b in context.catalog.nccl.builds]


@cached
def _builds(context: ResolveContext) -> tuple[Candidate, ...]:
    """Return the builds that the request allows, without what toolkit and GPUs have to do with."""
    runtime = context.catalog.nccl.apt.packages[0]
    builds = {(versions.upstream(v), versions.cuda_suffix(v) or "") for v in offered(context, runtime)}
    builds |= {(b.version, b.cuda) for b in context.catalog.nccl.builds if libraries.in_repository(context, b.slugs)}
    return tuple(
        _build(context, version, suffix)
        for version, suffix in builds
        if suffix and (context.request["nccl"] == "auto" or versions.has_prefix(version, context.request["nccl"]))
    )


def _build(context: ResolveContext, version: str, suffix: str) -> Candidate:
    apt, problems = context.catalog.nccl.apt, []
    found: dict[str, str | None] = {}
    for name in apt.packages:
        found[name] = (
            apt.version.format(version=version, cuda=suffix)
            if context.host.offers is None
            else offered_version(context, name, version, suffix)
        )
    missing = [name for name, v in found.items() if not v]
    majors = context.distro.nvidia_repository.nccl_cuda_majors
    if missing or (context.host.offers is None and majors is not None and versions.major(suffix) not in majors):
        exist = libraries.offered_whole(context, apt.packages)
        problems = [
            not_in_repository(context, f"NCCL {version} for CUDA {suffix}", missing or apt.packages, exist, "nccl")
        ]
    packages = [Package(name, v) for name, v in found.items() if v]
    return libraries.build(NcclComponent, version, suffix, packages, problems)


# What it fits ---------------------------------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> tuple[Rule, ...]:
    """Return that it is for the toolkit, and that it has code for the GPUs."""
    support = context.catalog.nccl.support

    def is_for(facts: Facts) -> bool:
        return versions.major(facts["nccl.cuda"]) == versions.major(facts["cuda.version"])

    def mismatch(facts: Facts) -> list[Problem]:
        return [
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {facts['nccl.version']} is built for CUDA {facts['nccl.cuda']}, the toolkit here is CUDA "
                f"{facts['cuda.version']}",
                "leave gpu_stack_nccl at auto, or set gpu_stack_cuda to a release of that major",
            )
        ]

    def has_code(facts: Facts) -> bool:
        version, major = facts["nccl.version"], versions.major(facts["nccl.cuda"])
        return all(covers(support, version, major, gpu) for gpu in context.gpu_kinds)

    def no_code(facts: Facts) -> list[Problem]:
        version, suffix = facts["nccl.version"], facts["nccl.cuda"]
        return [
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {version} for CUDA {suffix} has no code for {gpu_label(gpu)}: it covers "
                f"{supported(support, version, versions.major(suffix))}",
                "leave gpu_stack_nccl at auto: it selects the newest build with code for it",
            )
            for gpu in context.gpu_kinds
            if not covers(support, version, versions.major(suffix), gpu)
        ]

    built = ("nccl.version", "nccl.cuda")
    return (Rule("cuda", (*built, "cuda.version"), is_for, mismatch), Rule("gpu", built, has_code, no_code))


# Packages on hold -----------------------------------------------------------------------------------------------------


def _held(catalog: Catalog, _host: Host, held: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in held.items() if name in catalog.nccl.apt.packages}


def majors_on_hold(context: ResolveContext, there: Mapping[str, str]) -> dict[str, int]:
    """Return the CUDA majors that packages on hold are for, by their names, where NCCL is managed."""
    held = _held(context.catalog, context.host, there) if context.request["nccl"] != "none" else {}
    found = {name: libraries.built_for(version) for name, version in held.items()}
    return {name: major for name, major in found.items() if major}


def _around_holds(context: ResolveContext, found: Sequence[Evaluated], facts: Facts) -> BesideHolds:
    held = _held(context.catalog, context.host, holds.installed(context.host))
    return libraries.around_holds(context, NcclComponent, held, found, facts)


def _lacks(context: ResolveContext) -> str:
    is_asked = context.request["nccl"] not in ("auto", "none")  # at auto it is left out
    return "NCCL" if is_asked and not context.catalog.nccl.builds else ""


CHOICE = Choice(
    record=NcclComponent,
    after=("driver", "cuda"),
    candidates=_candidates,
    known=known,
    published=lambda catalog: [build.version for build in catalog.nccl.builds],
    series=3,
    rules=_rules,
    optional=True,
    serves=libraries.serves_toolkit,
    explain=libraries.explain(NcclComponent),
    lacks=_lacks,
    holds=Holds(held=_held, around=_around_holds),
    limits=Limits(pins=libraries.pins, constraints=libraries.constraints, limits_no_other=True),
    keeping=Keeping(stays_out=libraries.stays_out),
)


# On a host -----------------------------------------------------------------------------------------------------------


class Nccl(PackagedPart[NcclComponent]):
    """NCCL from NVIDIA's repository, built for the toolkit's CUDA."""

    record = NcclComponent
    role = "nccl"
    in_summary = False

    def entries(self, catalog: Catalog) -> Mapping[str, NcclBuild]:
        """Return the builds by version and CUDA release."""
        return {f"{build.version}+cuda{build.cuda}": build for build in catalog.nccl.builds}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return what changes, and which packages are of another CUDA major afterwards: their names do not tell."""
        yield from super().effects(change, plan, probe)
        for package in change.packages:
            old, new = (versions.cuda_suffix(version or "") for version in (package.installed, package.planned))
            if old and new and versions.major(old) != versions.major(new):
                yield f"{package.name} changes from the build for CUDA {old} to that for CUDA {new}"
