"""Driver and CUDA toolkit: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver.py chooses among the options.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import (
    Branch,
    Catalog,
    Distro,
    DistroCuda,
    DistroDriver,
    DriverPackages,
    Toolkit,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import (
    CudaComponent,
    DriverComponent,
    Gpu,
    Host,
    Problem,
    Request,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to the resolver; gpus are those that the catalog knows, once per device."""

    catalog: Catalog
    distro: Distro
    host: Host
    request: Request
    gpus: tuple[Gpu, ...]

    @property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """Each kind of GPU once, in the host's order."""
        return tuple(dict.fromkeys(self.gpus))

    @property
    def repository_name(self) -> str:
        """How messages call NVIDIA's repository."""
        return self.host.repository_url or f"NVIDIA's repository for {self.distro.id}"


@dataclasses.dataclass(frozen=True)
class DriverOption:
    """A driver that could be installed, or the one that is loaded (component None)."""

    version: str
    branch: Branch | None
    source: str
    component: DriverComponent | None
    problems: tuple[Problem, ...] = ()


@dataclasses.dataclass(frozen=True)
class CudaOption:
    """A CUDA toolkit that could be installed. min_driver: the driver it was released with, where known."""

    version: str
    release: str
    source: str
    min_driver: str | None
    component: CudaComponent
    problems: tuple[Problem, ...] = ()


def gpu_label(gpu: Gpu) -> str:
    """A GPU in a message."""
    return f"{gpu.name} (compute capability {gpu.compute_capability})"


def offered(case: Case, package: str) -> tuple[str, ...]:
    """The versions of a package that the host's repository offers, newest first."""
    found = (case.host.offers or {}).get(package, ())
    return tuple(sorted(found, key=versions.key, reverse=True))


def offered_version(case: Case, package: str, release: str, cuda: str | None = None) -> str | None:
    """The newest package version of an upstream release (and CUDA suffix); None where it is not offered."""
    for found in offered(case, package):
        if versions.upstream(found) == release and versions.cuda_suffix(found) == cuda:
            return found
    return None


def not_in_repository(case: Case, what: str, missing: Iterable[str], exist: Iterable[str], request: str) -> Problem:
    """The problem of a version that is known but not offered."""
    known = sorted(set(exist), key=versions.key, reverse=True)
    remedy = (
        f"ask for one that it offers ({request}: {', '.join(known[:5])})"
        if known
        else f"check the repository, or set {request} to none"
    )
    return Problem("not-in-repository", f"{case.repository_name} does not offer {what} ({', '.join(missing)})", remedy)


def sources(asked: str) -> tuple[str, ...]:
    """The archives to look into, the preferred one first."""
    return ("nvidia", "distro") if asked == "auto" else (asked,)


# Driver ---------------------------------------------------------------------------------------------------------


def driver_options(case: Case) -> list[DriverOption]:
    """All drivers that a request allows, from the preferred source first, newest first."""
    options: list[DriverOption] = []
    for source in sources(case.request.driver_source):
        found = _nvidia_drivers(case) if source == "nvidia" else _distro_drivers(case)
        options += sorted(found, key=lambda o: versions.key(o.version), reverse=True)
    if case.request.driver == "auto":
        return options
    wanted = case.request.driver
    return [o for o in options if versions.has_prefix(o.version, wanted) or versions.has_prefix(wanted, o.version)]


def known_drivers(case: Case) -> list[str]:
    """Every driver version the catalog or the repository knows."""
    found = [v.version for b in case.catalog.driver.branches for v in b.versions]
    return found + [o.version for o in _nvidia_drivers(case)] + [d.branch for d in case.distro.distro_drivers]


def _nvidia_drivers(case: Case) -> list[DriverOption]:
    options = []
    for branch in case.catalog.driver.branches:
        rule = _package_rule(case, branch)
        if rule is None:
            continue
        found = {v.version for v in branch.versions if "nvidia" in v.archives}
        for name in (*rule.open, *rule.proprietary):
            found |= {versions.upstream(v) for v in offered(case, name.format(branch=branch.branch))}
        options += [
            _nvidia_driver(case, branch, rule, version)
            for version in sorted(found, key=versions.key)
            if versions.has_prefix(version, branch.branch)
        ]
    return options


def _package_rule(case: Case, branch: Branch) -> DriverPackages | None:
    number = int(branch.branch)
    for rule in case.catalog.driver.packages:
        if (
            rule.family == case.distro.family
            and int(rule.first_branch) <= number
            and (rule.last_branch is None or number <= int(rule.last_branch))
        ):
            return rule
    return None


def _nvidia_driver(case: Case, branch: Branch, rule: DriverPackages, version: str) -> DriverOption:
    flavour, problems = _flavour(case, branch, {"open": bool(rule.open), "proprietary": bool(rule.proprietary)})
    names = [name.format(branch=branch.branch) for name in getattr(rule, flavour)]
    if case.host.offers is None:
        packages = [f"{name}={version}-{rule.revision}" for name in names]
    else:
        found = {name: offered_version(case, name, version) for name in names}
        packages = [f"{name}={v}" for name, v in found.items() if v]
        missing = [name for name, v in found.items() if not v]
        if missing:
            exist = [versions.upstream(v) for name in names for v in offered(case, name)]
            problems.append(not_in_repository(case, f"driver {version}", missing, exist, "driver"))
    component = DriverComponent(
        version=version,
        branch=branch.branch,
        kernel_modules=flavour,
        source="nvidia",
        packages=tuple(packages),
        pinning_packages=_pinning(case, branch),
        kernel_headers=kernel_headers(case),
        apt_components=(),
    )
    return DriverOption(version, branch, "nvidia", component, (*gpu_driver_problems(case, branch), *problems))


def _pinning(case: Case, branch: Branch) -> tuple[str, ...]:
    """The pinning package; without a version where no repository was read, because its own numbering is free."""
    pinning = case.catalog.driver.pinning
    if int(branch.branch) < int(pinning.first_branch):
        return ()
    name = pinning.package.format(branch=branch.branch)
    if case.host.offers is None:
        return (name,)
    found = offered(case, name)
    return (f"{name}={found[0]}",) if found else ()


def _distro_drivers(case: Case) -> list[DriverOption]:
    branches = {b.branch: b for b in case.catalog.driver.branches}
    return [_distro_driver(case, branches[entry.branch], entry) for entry in case.distro.distro_drivers]


def _distro_driver(case: Case, branch: Branch, entry: DistroDriver) -> DriverOption:
    flavour, problems = _flavour(case, branch, {"open": bool(entry.open), "proprietary": bool(entry.proprietary)})
    component = DriverComponent(
        version=entry.branch,
        branch=entry.branch,
        kernel_modules=flavour,
        source="distro",
        packages=getattr(entry, flavour),
        pinning_packages=(),
        kernel_headers=kernel_headers(case),
        apt_components=entry.apt_components,
    )
    return DriverOption(entry.branch, branch, "distro", component, (*gpu_driver_problems(case, branch), *problems))


def kernel_headers(case: Case) -> tuple[str, ...]:
    """The header meta package of the running kernel's flavour."""
    running = case.host.kernel or case.distro.kernel.default
    if re.fullmatch(r"\d+\.\d+", running):  # script/plan gets a series, not a release
        running = f"{running}.0-0-{'amd64' if case.distro.family == 'debian' else 'generic'}"
    for rule in case.distro.kernel.headers:
        if re.search(rule.running, running):
            return (rule.package,)
    return ()


def _flavour(case: Case, branch: Branch, packaged: dict[str, bool]) -> tuple[str, list[Problem]]:
    """The kernel modules for all GPUs of a host: what they accept, in the branch's order of preference."""
    accepted = accepted_modules(case.gpus)
    shipped = [f for f in branch.kernel_modules if packaged[f]]
    for flavour in shipped:
        if flavour in accepted:
            return flavour, []
    fallback = shipped[0] if shipped else branch.kernel_modules[0]
    if not accepted:
        return fallback, [mixed_modules_problem(case)]
    needed = min(accepted)
    return fallback, [
        Problem(
            "gpu-dropped-by-driver" if needed == "proprietary" else "gpu-too-new-for-driver",
            f"branch {branch.branch} is packaged without the {needed} kernel modules that this host's GPUs need",
            "choose another branch or driver source, or leave driver and driver_source at auto",
        )
    ]


def accepted_modules(gpus: Iterable[Gpu]) -> set[str]:
    """The kernel modules that every one of these GPUs accepts."""
    accepted = {"open", "proprietary"}
    for gpu in gpus:
        accepted &= {"open", "proprietary"} if gpu.kernel_modules == "either" else {gpu.kernel_modules}
    return accepted


def mixed_modules_problem(case: Case) -> Problem:
    """GPUs of which some need the open and some the proprietary kernel modules."""
    need = {
        flavour: ", ".join(gpu_label(g) for g in case.gpu_kinds if g.kernel_modules == flavour)
        for flavour in ("open", "proprietary")
    }
    return Problem(
        "mixed-gpus-conflict",
        f"{need['open']} need the open kernel modules, {need['proprietary']} the proprietary ones; "
        "a host loads one flavour",
        "move the older or the newer GPUs to another host",
    )


def branch_supports(branch: Branch, gpu: Gpu) -> bool:
    """Whether a driver branch drives a GPU."""
    if gpu.last_driver_branch and int(branch.branch) > int(gpu.last_driver_branch):
        return False
    return gpu.architecture in branch.architectures and gpu.compute_capability not in branch.without


def gpu_driver_problems(case: Case, branch: Branch) -> list[Problem]:
    """What speaks against a branch because of this host's GPUs."""
    problems = []
    for gpu in case.gpu_kinds:
        if branch_supports(branch, gpu):
            continue
        able = [int(b.branch) for b in case.catalog.driver.branches if branch_supports(b, gpu)]
        remedy = (
            f"{_span('branch', [str(b) for b in sorted(able)])} supports it: ask for it or for auto, on a "
            "distribution release that has it"
            if able
            else "remove the GPU: no driver branch of the catalog supports it"
        )
        too_new = bool(able) and int(branch.branch) < min(able)
        code = "gpu-too-new-for-driver" if too_new else "gpu-dropped-by-driver"
        problems.append(Problem(code, f"driver branch {branch.branch} does not support {gpu_label(gpu)}", remedy))
    return problems


def _span(what: str, ordered: list[str]) -> str:
    return f"{what} {ordered[0]}" + (f" to {ordered[-1]}" if len(ordered) > 1 else "")


# CUDA toolkit ---------------------------------------------------------------------------------------------------


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
    elif versions.key(toolkit.version) < versions.key(case.distro.nvidia_repository.first_cuda):
        found = None
    if found is None:
        exist = [
            versions.upstream(v) for t in case.catalog.cuda.toolkits for v in offered(case, _toolkit_package(case, t))
        ]
        if case.host.offers is None:
            exist = [
                t.version
                for t in case.catalog.cuda.toolkits
                if t.releases and versions.key(t.version) >= versions.key(case.distro.nvidia_repository.first_cuda)
            ]
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


def _min_driver(toolkit: Toolkit, release: str) -> str | None:
    """The driver a release came with; for one that is not recorded, that of the newest recorded one of its series."""
    recorded = {r.version: r.min_driver for r in toolkit.releases if r.min_driver}
    if release in recorded:
        return recorded[release]
    return max(recorded.values(), key=versions.key, default=None)


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
        tuple(_gpu_toolkit_problems(case, toolkit)),
    )


def _gpu_toolkit_problems(case: Case, toolkit: Toolkit) -> list[Problem]:
    problems = []
    for gpu in case.gpu_kinds:
        if gpu.compute_capability in toolkit.compute_capabilities:
            continue
        able = [t.version for t in case.catalog.cuda.toolkits if gpu.compute_capability in t.compute_capabilities]
        able.sort(key=versions.key)
        remedy = (
            f"{_span('CUDA', able)} supports it: ask for it or for auto, on a distribution release that has it"
            if able
            else "remove the GPU, or set cuda to none: no toolkit of the catalog supports it"
        )
        problems.append(
            Problem("gpu-dropped-by-cuda", f"CUDA {toolkit.version} has no code for {gpu_label(gpu)}", remedy)
        )
    return problems


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
        problems.append(
            Problem(
                "host-toolchain-mismatch",
                f"nvcc of CUDA {toolkit.version} cannot compile the headers of glibc {glibc} "
                f"(at most {toolkit.max_glibc})",
                f"use CUDA {min(newer, key=versions.key)} or newer" if newer else "use an older distribution release",
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
            f"nvcc of CUDA {toolkit.version} accepts gcc up to {toolkit.max_gcc}, {case.distro.id} has gcc {default}",
            "use a newer CUDA, or install an older gcc and g++",
        )
    )
    return (), problems
