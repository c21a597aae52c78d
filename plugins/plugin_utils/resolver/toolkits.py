"""List the CUDA toolkits that a request allows, each with the problems that it has on the host.

Runs on the controller; pure functions. platform.py chooses among these candidates.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import DistroCuda, Toolkit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import CudaComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
    sources,
    span,
)

PROBLEMS = {
    "gpu-dropped-by-cuda": "CUDA does not compile for a GPU of the host, or PyTorch has no code for it",
    "host-toolchain-mismatch": "the CUDA compiler does not work with the host's gcc or C library",
}


@dataclasses.dataclass(frozen=True)
class CudaCandidate:
    """A CUDA toolkit that can be installed. min_driver: the driver it was released with, where known.

    depends_on_driver: the branch whose libcuda the packages of a distribution depend on.
    """

    version: str
    release: str
    source: str
    min_driver: str | None
    component: CudaComponent
    problems: tuple[Problem, ...] = ()
    depends_on_driver: str | None = None


def cuda_candidates(context: ResolveContext) -> list[CudaCandidate]:
    """Return the toolkits that the request allows: those of the preferred source first, of each source newest first."""
    key = _reduced(context)
    candidates: list[CudaCandidate] = []
    for source in sources(context.request.cuda_source):
        found = _nvidia_toolkits(key) if source == "nvidia" else _distro_toolkits(key)
        candidates += sorted(found, key=lambda candidate: versions.key(candidate.release), reverse=True)
    if context.request.cuda == "auto":
        return candidates
    return [c for c in candidates if versions.has_prefix(c.release, context.request.cuda)]


def _reduced(context: ResolveContext) -> ResolveContext:
    return context.reduced(host=("offers", "gcc", "glibc", "repository_url"))


def known_toolkits(context: ResolveContext) -> list[str]:
    """Return every toolkit release that the catalog, the repository or the archive knows."""
    found = [r.version for t in context.catalog.cuda.toolkits for r in t.releases]
    return (
        found
        + [c.release for c in _nvidia_toolkits(_reduced(context))]
        + [d.release for d in context.distro.distro_cuda]
    )


@cached
def _nvidia_toolkits(context: ResolveContext) -> list[CudaCandidate]:
    unfit = {t.version: tuple(_gpu_toolkit_problems(context, t)) for t in context.catalog.cuda.toolkits}
    return [
        dataclasses.replace(c, problems=(*unfit[c.version], *c.problems))
        for c in _published_toolkits(context.with_gpus(()))
    ]


@cached
def _published_toolkits(context: ResolveContext) -> list[CudaCandidate]:
    """Return the toolkits of NVIDIA's repository, without what GPUs have to do with."""
    candidates = []
    for toolkit in context.catalog.cuda.toolkits:
        package = _toolkit_package(context, toolkit)
        found = {r.version for r in toolkit.releases} | {versions.upstream(v) for v in offered(context, package)}
        candidates += [
            _nvidia_toolkit(context, toolkit, package, release)
            for release in found
            if versions.has_prefix(release, toolkit.version)
        ]
    return candidates


def _toolkit_package(context: ResolveContext, toolkit: Toolkit) -> str:
    number = toolkit.version.split(".")
    return context.catalog.cuda.apt.toolkit.format(major=number[0], minor=number[1])


def _nvidia_toolkit(context: ResolveContext, toolkit: Toolkit, package: str, release: str) -> CudaCandidate:
    apt = context.catalog.cuda.apt
    compilers, problems = _toolchain(context, toolkit)
    found: str | None = f"{release}-{apt.revision}"
    if context.host.offers is not None:
        found = offered_version(context, package, release)
    elif not in_nvidia_repository(context, toolkit.version):
        found = None
    if found is None:
        exist = _offered_toolkits(context)
        problems.append(not_in_repository(context, f"CUDA {release}", [package], exist, "cuda"))
    number = toolkit.version.split(".")
    component = CudaComponent(
        version=toolkit.version,
        release=release,
        source="nvidia",
        home=apt.home.format(major=number[0], minor=number[1]),
        packages=(Package(package, found),) if found else (),
        host_compilers=compilers,
        apt_components=(),
    )
    return CudaCandidate(
        toolkit.version,
        release,
        "nvidia",
        _min_driver(toolkit, release),
        component,
        tuple(problems),
    )


@cached
def _offered_toolkits(context: ResolveContext) -> list[str]:
    """Return the toolkits that NVIDIA's repository offers, according to the catalog where it was not read."""
    known = context.catalog.cuda.toolkits
    if context.host.offers is None:
        return [t.version for t in known if t.releases and in_nvidia_repository(context, t.version)]
    return [versions.upstream(v) for t in known for v in offered(context, _toolkit_package(context, t))]


def in_nvidia_repository(context: ResolveContext, cuda: str) -> bool:
    """Return whether NVIDIA's repository for the distribution release has a CUDA release, according to the catalog."""
    first, last = context.distro.nvidia_repository.first_cuda, context.distro.nvidia_repository.last_cuda
    return versions.key(cuda) >= versions.key(first) and (last is None or versions.at_most(cuda, last))


def _min_driver(toolkit: Toolkit, release: str) -> str | None:
    """Return the driver that a release was published with; if none is recorded, the newest one of its series."""
    recorded = {r.version: r.min_driver for r in toolkit.releases if r.min_driver}
    if release in recorded:
        return recorded[release]
    return max(recorded.values(), key=versions.key, default=None)


@cached
def _distro_toolkits(context: ResolveContext) -> list[CudaCandidate]:
    toolkits = {t.version: t for t in context.catalog.cuda.toolkits}
    return [
        _distro_toolkit(context, toolkits[entry.version], entry)
        for entry in context.distro.distro_cuda
        if entry.version in toolkits
    ]


def _distro_toolkit(context: ResolveContext, toolkit: Toolkit, entry: DistroCuda) -> CudaCandidate:
    # The distribution ships the toolkit with a compiler and a C library that fit, so neither is checked.
    component = CudaComponent(
        version=entry.version,
        release=entry.release,
        source="distro",
        home=entry.home,
        packages=tuple(map(Package, entry.packages)),
        host_compilers=entry.host_compilers,
        apt_components=entry.apt_components,
    )
    return CudaCandidate(
        entry.version,
        entry.release,
        "distro",
        _min_driver(toolkit, entry.release),
        component,
        tuple(_gpu_toolkit_problems(context, toolkit)),
        entry.min_driver,
    )


def _gpu_toolkit_problems(context: ResolveContext, toolkit: Toolkit) -> list[Problem]:
    problems = []
    for gpu in context.gpu_kinds:
        if gpu.compute_capability in toolkit.compute_capabilities:
            continue
        supporting = supporting_toolkits(context, gpu)
        known = toolkit.compute_capabilities
        supported = f"{span('CUDA', supporting)} can" if supporting else "no CUDA of the catalog can"
        problems.append(
            Problem(
                "gpu-dropped-by-cuda",
                f"CUDA {toolkit.version} cannot compile for {gpu_label(gpu)}: it covers compute capability "
                f"{known[0]} to {known[-1]}; {supported}",
                "set gpu_stack_cuda to one of those, or leave it at auto"
                if supporting
                else "remove the GPU, or set gpu_stack_cuda=none",
            )
        )
    return problems


def supporting_toolkits(context: ResolveContext, gpu: Gpu) -> list[str]:
    """Return the CUDA releases of the catalog that compile for a GPU."""
    return [t.version for t in context.catalog.cuda.toolkits if gpu.compute_capability in t.compute_capabilities]


def _toolchain(context: ResolveContext, toolkit: Toolkit) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the packages of a compiler that nvcc can use, with the problems of the host's compiler and C library."""
    problems = []
    glibc = context.host.glibc or context.distro.glibc
    if not _reads(toolkit, glibc):
        newer = [t.version for t in context.catalog.cuda.toolkits if _reads(t, glibc)]
        hint = f"; CUDA {min(newer, key=versions.key)} and newer can" if newer else ""
        problems.append(
            Problem(
                "host-toolchain-mismatch",
                f"the compiler of CUDA {toolkit.version} cannot read the headers of this host's glibc {glibc}: "
                f"it works with glibc {toolkit.max_glibc} and older{hint}",
                "set gpu_stack_cuda to a newer release, or leave it at auto"
                if newer
                else "use an older distribution release",
            )
        )
    default = context.host.gcc or context.distro.gcc.default
    if default <= toolkit.max_gcc:
        return ("gcc", "g++"), problems
    older = [gcc for gcc in context.distro.gcc.available if gcc <= toolkit.max_gcc]
    if older:
        return (f"gcc-{max(older)}", f"g++-{max(older)}"), problems
    problems.append(
        Problem(
            "host-toolchain-mismatch",
            f"the compiler of CUDA {toolkit.version} works with gcc up to {toolkit.max_gcc}; the host has {default} "
            f"and {context.distro.id} offers {', '.join(str(g) for g in context.distro.gcc.available)}",
            "set gpu_stack_cuda to a newer release, or leave it at auto",
        )
    )
    return (), problems


def _reads(toolkit: Toolkit, glibc: str) -> bool:
    """Return whether the compiler of a toolkit can read the headers of a C library."""
    return toolkit.max_glibc is None or versions.at_most(glibc, toolkit.max_glibc)
