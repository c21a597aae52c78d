"""CUDA toolkits: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver_platform.py chooses among the options.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import DistroCuda, Toolkit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import CudaComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    Case,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
    remembered,
    sources,
    span,
)


@dataclasses.dataclass(frozen=True)
class CudaOption:
    """A CUDA toolkit that could be installed. min_driver: the driver it was released with, where known."""

    version: str
    release: str
    source: str
    min_driver: str | None
    component: CudaComponent
    problems: tuple[Problem, ...] = ()


def cuda_options(case: Case) -> list[CudaOption]:
    """All toolkits that a request allows, from the preferred source first, newest first."""
    options: list[CudaOption] = []
    for source in sources(case.request.cuda_source):
        found = _nvidia_toolkits(case) if source == "nvidia" else _distro_toolkits(case)
        options += sorted(found, key=lambda o: versions.key(o.release), reverse=True)
    if case.request.cuda == "auto":
        return options
    return [o for o in options if versions.has_prefix(o.release, case.request.cuda)]


def known_toolkits(case: Case) -> list[str]:
    """Every toolkit release the catalog or the repository knows."""
    found = [r.version for t in case.catalog.cuda.toolkits for r in t.releases]
    return found + [o.release for o in _nvidia_toolkits(case)] + [d.release for d in case.distro.distro_cuda]


@remembered
def _nvidia_toolkits(case: Case) -> list[CudaOption]:
    options = []
    for toolkit in case.catalog.cuda.toolkits:
        package = _toolkit_package(case, toolkit)
        found = {r.version for r in toolkit.releases} | {versions.upstream(v) for v in offered(case, package)}
        options += [
            _nvidia_toolkit(case, toolkit, package, release)
            for release in found
            if versions.has_prefix(release, toolkit.version)
        ]
    return options


def _toolkit_package(case: Case, toolkit: Toolkit) -> str:
    number = toolkit.version.split(".")
    return case.catalog.cuda.apt.toolkit.format(major=number[0], minor=number[1])


def _nvidia_toolkit(case: Case, toolkit: Toolkit, package: str, release: str) -> CudaOption:
    apt = case.catalog.cuda.apt
    compilers, problems = _toolchain(case, toolkit)
    found: str | None = f"{release}-{apt.revision}"
    if case.host.offers is not None:
        found = offered_version(case, package, release)
    elif not in_nvidia_repository(case, toolkit.version):
        found = None
    if found is None:
        exist = _obtainable(case)
        problems.append(not_in_repository(case, f"CUDA {release}", [package], exist, "cuda"))
    number = toolkit.version.split(".")
    component = CudaComponent(
        version=toolkit.version,
        release=release,
        source="nvidia",
        home=apt.home.format(major=number[0], minor=number[1]),
        packages=(f"{package}={found}",) if found else (),
        host_compilers=compilers,
        apt_components=(),
    )
    return CudaOption(
        toolkit.version,
        release,
        "nvidia",
        _min_driver(toolkit, release),
        component,
        (*_gpu_toolkit_problems(case, toolkit), *problems),
    )


@remembered
def _obtainable(case: Case) -> list[str]:
    """The toolkits that NVIDIA's repository offers, or does as far as the catalog knows."""
    known = case.catalog.cuda.toolkits
    if case.host.offers is None:
        return [t.version for t in known if t.releases and in_nvidia_repository(case, t.version)]
    return [versions.upstream(v) for t in known for v in offered(case, _toolkit_package(case, t))]


def in_nvidia_repository(case: Case, cuda: str) -> bool:
    """Whether NVIDIA's repository for the distribution release holds a CUDA release, as far as the catalog knows."""
    first, last = case.distro.nvidia_repository.first_cuda, case.distro.nvidia_repository.last_cuda
    return versions.key(cuda) >= versions.key(first) and (last is None or versions.at_most(cuda, last))


def _min_driver(toolkit: Toolkit, release: str) -> str | None:
    """The driver a release came with; for one that is not recorded, that of the newest recorded one of its series."""
    recorded = {r.version: r.min_driver for r in toolkit.releases if r.min_driver}
    if release in recorded:
        return recorded[release]
    return max(recorded.values(), key=versions.key, default=None)


@remembered
def _distro_toolkits(case: Case) -> list[CudaOption]:
    toolkits = {t.version: t for t in case.catalog.cuda.toolkits}
    return [
        _distro_toolkit(case, toolkits[entry.version], entry)
        for entry in case.distro.distro_cuda
        if entry.version in toolkits
    ]


def _distro_toolkit(case: Case, toolkit: Toolkit, entry: DistroCuda) -> CudaOption:
    # The distribution ships the toolkit with a compiler and a C library that fit, so neither is checked.
    component = CudaComponent(
        version=entry.version,
        release=entry.release,
        source="distro",
        home=entry.home,
        packages=entry.packages,
        host_compilers=entry.host_compilers,
        apt_components=entry.apt_components,
    )
    return CudaOption(
        entry.version,
        entry.release,
        "distro",
        _min_driver(toolkit, entry.release),
        component,
        _gpu_toolkit_problems(case, toolkit),
    )


def _gpu_toolkit_problems(case: Case, toolkit: Toolkit) -> tuple[Problem, ...]:
    name = f"toolkit {toolkit.version}"
    if name not in case.concluded:
        case.concluded[name] = tuple(_dropped(case, toolkit))
    found: tuple[Problem, ...] = case.concluded[name]
    return found


def _dropped(case: Case, toolkit: Toolkit) -> list[Problem]:
    problems = []
    for gpu in case.gpu_kinds:
        if gpu.compute_capability in toolkit.compute_capabilities:
            continue
        able = able_toolkits(case, gpu)
        known = toolkit.compute_capabilities
        supported = f"{span('CUDA', able)} can" if able else "no CUDA of the catalog can"
        problems.append(
            Problem(
                "gpu-dropped-by-cuda",
                f"CUDA {toolkit.version} cannot make programs for {gpu_label(gpu)}: it covers compute capability "
                f"{known[0]} to {known[-1]}; {supported}",
                "ask for one of those, or leave cuda at auto" if able else "remove the GPU, or set cuda to none",
            )
        )
    return problems


def able_toolkits(case: Case, gpu: Gpu) -> list[str]:
    """The CUDA releases that compile for a GPU."""
    return [t.version for t in case.catalog.cuda.toolkits if gpu.compute_capability in t.compute_capabilities]


def _toolchain(case: Case, toolkit: Toolkit) -> tuple[tuple[str, ...], list[Problem]]:
    """The compilers nvcc can use on this host, and what is wrong with its compiler or C library."""
    problems = []
    glibc = case.host.glibc or case.distro.glibc
    if toolkit.max_glibc and versions.key(versions.series(glibc)) > versions.key(toolkit.max_glibc):
        newer = [
            t.version
            for t in case.catalog.cuda.toolkits
            if not t.max_glibc or versions.key(glibc) <= versions.key(t.max_glibc)
        ]
        able = f"; CUDA {min(newer, key=versions.key)} and newer can" if newer else ""
        problems.append(
            Problem(
                "host-toolchain-mismatch",
                f"the compiler of CUDA {toolkit.version} cannot read the headers of this host's glibc {glibc}: "
                f"it works with glibc {toolkit.max_glibc} and older{able}",
                "ask for a newer CUDA, or leave cuda at auto" if newer else "use an older distribution release",
            )
        )
    default = case.host.gcc or case.distro.gcc.default
    if default <= toolkit.max_gcc:
        return ("gcc", "g++"), problems
    older = [gcc for gcc in case.distro.gcc.available if gcc <= toolkit.max_gcc]
    if older:
        return (f"gcc-{max(older)}", f"g++-{max(older)}"), problems
    problems.append(
        Problem(
            "host-toolchain-mismatch",
            f"the compiler of CUDA {toolkit.version} works with gcc up to {toolkit.max_gcc}; the host has {default} "
            f"and {case.distro.id} offers {', '.join(str(g) for g in case.distro.gcc.available)}",
            "ask for a newer CUDA, or leave cuda at auto",
        )
    )
    return (), problems
