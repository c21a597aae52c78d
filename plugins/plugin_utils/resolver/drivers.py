"""Drivers: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver_platform.py chooses among the options.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch, DistroDriver, DriverPackages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import DriverComponent
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
class DriverOption:
    """A driver that could be installed, or the one that is loaded (component None)."""

    version: str
    branch: Branch | None
    source: str
    component: DriverComponent | None
    problems: tuple[Problem, ...] = ()


def driver_options(case: Case) -> list[DriverOption]:
    """All drivers that a request allows, from the preferred source first, newest first."""
    case = _by_kernel_modules(case)
    options: list[DriverOption] = []
    for source in sources(case.request.driver_source):
        found = _nvidia_drivers(case) if source == "nvidia" else _distro_drivers(case)
        options += sorted(found, key=lambda o: versions.key(o.version), reverse=True)
    if case.request.driver == "auto":
        return options
    wanted = case.request.driver
    return [o for o in options if versions.has_prefix(o.version, wanted) or versions.has_prefix(wanted, o.version)]


def _by_kernel_modules(case: Case) -> Case:
    """The same question with a memo of its own for the kernel modules that are asked for: they decide the packages."""
    memo = case.memo.setdefault(f"kernel modules {case.request.driver_kernel_modules}", {})
    return dataclasses.replace(case, memo=memo)


def known_drivers(case: Case) -> list[str]:
    """Every driver version the catalog or the repository knows."""
    case = _by_kernel_modules(case)
    found = [v.version for b in case.catalog.driver.branches for v in b.versions]
    return found + [o.version for o in _nvidia_drivers(case)] + [d.branch for d in case.distro.distro_drivers]


@remembered
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
    packaged = {"open": bool(rule.open), "proprietary": bool(rule.proprietary)}
    flavour, problems = _flavour(case, branch, packaged, case.repository_name)
    names = [name.format(branch=branch.branch) for name in getattr(rule, flavour)]
    if case.host.offers is None:
        packages = [f"{name}={version}-{rule.revision}" for name in names]
        if not in_nvidia_repository(case, branch.branch):
            packages = []
            exist = [b.branch for b in case.catalog.driver.branches if in_nvidia_repository(case, b.branch)]
            problems.append(not_in_repository(case, f"driver branch {branch.branch}", (), exist, "driver"))
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


def in_nvidia_repository(case: Case, branch: str) -> bool:
    """Whether NVIDIA's repository for the distribution release holds a branch, as far as the catalog knows."""
    limits = case.distro.nvidia_branches
    if limits is None:
        return True
    return (limits.first is None or int(branch) >= int(limits.first)) and (
        limits.last is None or int(branch) <= int(limits.last)
    )


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


@remembered
def _distro_drivers(case: Case) -> list[DriverOption]:
    branches = {b.branch: b for b in case.catalog.driver.branches}
    return [_distro_driver(case, branches[entry.branch], entry) for entry in case.distro.distro_drivers]


def _distro_driver(case: Case, branch: Branch, entry: DistroDriver) -> DriverOption:
    packaged = {"open": bool(entry.open), "proprietary": bool(entry.proprietary)}
    flavour, problems = _flavour(case, branch, packaged, f"{case.distro.id}'s own archive")
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


def _flavour(case: Case, branch: Branch, packaged: dict[str, bool], archive: str) -> tuple[str, list[Problem]]:
    """The kernel modules for all GPUs of a host: those asked for, else what they accept in the branch's order."""
    accepted, asked = accepted_modules(case.gpus), case.request.driver_kernel_modules
    shipped = [f for f in branch.kernel_modules if packaged[f]]
    allowed = [f for f in shipped if asked in ("auto", f)]
    for flavour in allowed:
        if flavour in accepted:
            return flavour, []
    fallback = (allowed or shipped or branch.kernel_modules)[0]
    if not accepted:
        return fallback, [mixed_modules_problem(case)]
    if asked not in ("auto", *accepted):
        return fallback, [_unfit_modules(case, asked)]
    if asked != "auto":
        return fallback, [_missing_modules(case, branch, shipped, archive)]
    needed = min(accepted)
    picky = ", ".join(gpu_label(g) for g in case.gpu_kinds if g.kernel_modules == needed)
    return fallback, [
        Problem(
            _gpu_code(needed),
            f"driver branch {branch.branch} comes without the {needed} kernel modules here; {picky} accepts no others",
            "choose another branch or driver source, or leave driver and driver_source at auto",
        )
    ]


def _gpu_code(needed: str) -> str:
    """Proprietary modules alone drive the GPUs that are too old for the open ones; open ones alone the newest."""
    return "gpu-dropped-by-driver" if needed == "proprietary" else "gpu-too-new-for-driver"


def _unfit_modules(case: Case, asked: str) -> Problem:
    """Kernel modules were asked for that a GPU of the host does not accept."""
    needed = "proprietary" if asked == "open" else "open"
    picky = ", ".join(gpu_label(g) for g in case.gpu_kinds if g.kernel_modules == needed)
    why = "they need a Turing GPU or a newer one" if asked == "open" else "from Blackwell on only the open ones work"
    return Problem(
        _gpu_code(needed),
        f"the {asked} kernel modules do not drive {picky}: {why}",
        "leave driver_kernel_modules at auto",
    )


def _missing_modules(case: Case, branch: Branch, shipped: list[str], archive: str) -> Problem:
    """Kernel modules were asked for that a branch does not have, or an archive does not offer."""
    asked = case.request.driver_kernel_modules
    remedy = "leave driver_kernel_modules at auto, or ask for another branch"
    if asked not in branch.kernel_modules:
        has = " and ".join(branch.kernel_modules)
        message = f"driver branch {branch.branch} has no {asked} kernel modules; it comes with the {has} ones"
        return Problem("unknown-version", message, remedy)
    has = " and ".join(shipped) or "none"
    message = f"{archive} does not offer driver branch {branch.branch} with the {asked} kernel modules; it offers {has}"
    return Problem("not-in-repository", message, remedy)


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
        f"{need['open']} works with the open kernel modules alone, {need['proprietary']} with the proprietary ones "
        "alone; a host loads one flavour",
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
        able = able_branches(case, gpu)
        too_new = bool(able) and int(branch.branch) < min(int(b) for b in able)
        why = "came before this GPU" if too_new else f"no longer supports {gpu.architecture} GPUs"
        supported = f"{span('branches', able)} support it" if able else "no branch of the catalog supports it"
        problems.append(
            Problem(
                "gpu-too-new-for-driver" if too_new else "gpu-dropped-by-driver",
                f"driver branch {branch.branch} does not support {gpu_label(gpu)}: it {why}; {supported}",
                "ask for one of those branches, or leave driver at auto" if able else "remove the GPU",
            )
        )
    return problems


def able_branches(case: Case, gpu: Gpu) -> list[str]:
    """The driver branches that support a GPU."""
    return [b.branch for b in case.catalog.driver.branches if branch_supports(b, gpu)]
