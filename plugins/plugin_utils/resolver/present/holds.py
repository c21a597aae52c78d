"""Plan around the packages that the host's administrator holds: at `auto` they stay, a version may contradict them.

Runs on the controller; pure functions. Holds that gpuhost has set are not among them. What a plan would change of other
packages on hold is found by the preflight, which knows all of its packages.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets, installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver.drivers import gpu_driver_problems
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.libraries import LibraryCandidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaCandidate

CODE = "package-held"
PROBLEMS = {
    "package-held": "packages are on hold that gpuhost did not hold: the request contradicts it, or nothing else fits",
}
_WHOSE = f"held by this host's administrator ({words.SHOW_HOLDS})"


@dataclasses.dataclass(frozen=True)
class HeldDriver:
    """The installed driver of which packages are on hold; names: of these."""

    version: str
    kernel_modules: str
    names: tuple[str, ...]


def problem(names: Iterable[str], why: str, instead: str = "") -> Problem:
    """Return the problem of packages on hold; why: what they prevent; instead: what else can be done."""
    listed = sorted(names)
    remedy = f"sudo {words.unhold(listed)}, if they may change" + (f"; or {instead}" if instead else "")
    return Problem(CODE, f"{', '.join(listed)} {'are' if len(listed) > 1 else 'is'} {_WHOSE}: {why}", remedy)


def because(names: Iterable[str]) -> str:
    """Return the reason for a version that packages on hold decide."""
    return f"{', '.join(sorted(names))} {_WHOSE}"


def of_components(catalog: Catalog, host: Host) -> dict[str, dict[str, str]]:
    """Return the held and installed packages with their versions, by the component that they decide."""
    held = {name: version for name, version in _held(host).items() if version}
    found = {
        "driver": _of_driver(catalog, host, held),
        "cuda": {name: v for name, v in held.items() if _series(catalog, name) or name == catalog.packages.distro_cuda},
        "cudnn": {name: v for name, v in held.items() if _cudnn_major(catalog, name) is not None},
        "nccl": {name: v for name, v in held.items() if name in catalog.nccl.apt.packages},
    }
    return {component: packages for component, packages in found.items() if packages}


def names(catalog: Catalog, host: Host) -> list[str]:
    """Return the packages on hold that decide a component."""
    return sorted(name for packages in of_components(catalog, host).values() for name in packages)


def _held(host: Host) -> dict[str, str]:
    return {package.name: package.version or "" for package in host.foreign_holds if ":" not in package.name}


# The driver -------------------------------------------------------------------------------------------------------


def _of_driver(catalog: Catalog, host: Host, held: Mapping[str, str]) -> dict[str, str]:
    """Return what is held of the installed driver: in its version, or with its branch in its name."""
    found_driver = installed_driver.on_host(catalog, host)
    if found_driver is None:
        return {}
    version = found_driver.version
    return {
        name: found
        for name, found in held.items()
        if _is_nvidias(catalog, name)
        and (versions.upstream(found) == version or _branch(catalog, name) == version.split(".")[0])
    }


def _is_nvidias(catalog: Catalog, name: str) -> bool:
    """Return whether a package is of NVIDIA's driver or made for it, as NSCQ, IMEX and Fabric Manager are."""
    globs = (*catalog.driver.name_patterns, *catalog.packages.fabric_manager)
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _branch(catalog: Catalog, name: str) -> str | None:
    matches = (re.fullmatch(expression, name) for expression in catalog.packages.driver_branch)
    return next((match.group(1).partition("-")[0] for match in matches if match), None)


def driver(context: ResolveContext, findings: Findings) -> HeldDriver | None:
    """Return the driver that stays because packages of it are on hold, if any; add why it contradicts the request."""
    held = of_components(context.catalog, context.host).get("driver")
    if not held:
        return None
    installed = driver_sets.packaged(context)
    if installed is None:
        return None
    version = installed.version
    found = HeldDriver(version, installed.kernel_modules, tuple(sorted(held)))
    request = context.request
    differs = {
        "driver": request.driver != "auto" and not versions.has_prefix(version, request.driver),
        **{
            name: getattr(request, name) not in ("auto", getattr(installed, name.removeprefix("driver_")))
            for name in ("driver_source", "driver_kernel_modules", "driver_module_source", "driver_profile")
        },
    }
    asked = [f"gpu_stack_{name}={getattr(request, name)}" for name, is_other in differs.items() if is_other]
    if asked:
        text = " and ".join(asked)
        findings.problems.append(
            problem(held, f"{text} would change driver {version}", f"remove {text}, so that this driver stays")
        )
    return found


def check_driver(context: ResolveContext, held: HeldDriver, findings: Findings) -> None:
    """Add the problem of a driver on hold that does not support a GPU of the host."""
    branch = next((b for b in context.catalog.driver.branches if versions.has_prefix(held.version, b.branch)), None)
    if branch is None:
        return
    found = gpu_driver_problems(context, branch, held.version, held.kernel_modules)
    findings.problems += [problem(held.names, each.message) for each in found]


# CUDA, cuDNN and NCCL ---------------------------------------------------------------------------------------------


def _series(catalog: Catalog, name: str) -> str | None:
    """Return the CUDA release whose toolkit a package belongs to."""
    for toolkit in catalog.cuda.toolkits:
        major, minor = toolkit.version.split(".")[:2]
        if re.fullmatch(catalog.cuda.apt.series.format(major=major, minor=minor), name):
            return toolkit.version
    return None


def _cudnn_major(catalog: Catalog, name: str) -> int | None:
    """Return the CUDA major in the name of a cuDNN package, 0 where its name has none; None for another package."""
    for apt in catalog.cudnn.apt:
        for template in (apt.runtime, *apt.development):
            match = re.fullmatch(re.escape(template).replace(r"\{cuda_major\}", r"(\d+)"), name)
            if match:
                return int(match.group(1)) if match.groups() else 0
    return None


def toolkits(context: ResolveContext, candidates: Sequence[CudaCandidate], findings: Findings) -> list[CudaCandidate]:
    """Return the toolkits that leave the packages on hold as they are; add a problem where none does.

    At `auto` those are toolkits that are on hold themselves, or of the CUDA major that cuDNN or NCCL on hold is for.
    """
    catalog, held = context.catalog, of_components(context.catalog, context.host)
    fitting = [c for c in candidates if _agrees(context, c.component.packages)]
    deciding = [name for c in candidates for name in _disagreeing(context, c.component.packages)]
    if context.request.cuda == "auto" and "cuda" in held:
        deciding = list(held["cuda"])
        series = {_series(catalog, name) for name in deciding}
        fitting = [c for c in fitting if (c.version if c.source == "nvidia" else None) in series]
    elif context.request.cuda == "auto":
        wanted = {name: _cudnn_major(catalog, name) or _built_for(v) for name, v in held.get("cudnn", {}).items()}
        wanted |= {name: _built_for(version) for name, version in held.get("nccl", {}).items()}
        majors = {name: major for name, major in wanted.items() if major and _is_asked(context, name)}
        if majors:
            deciding += majors
            fitting = [c for c in fitting if versions.major(c.version) in majors.values()]
    if candidates and not fitting:
        found = ", ".join(dict.fromkeys(f"CUDA {c.release}" for c in candidates[:4]))
        findings.problems.append(
            problem(dict.fromkeys(deciding), f"of the toolkits that this host can have ({found}, ...) none keeps them")
        )
    return fitting


def _is_asked(context: ResolveContext, name: str) -> bool:
    return (context.request.nccl if name in context.catalog.nccl.apt.packages else context.request.cudnn) != "none"


def _built_for(version: str) -> int:
    """Return the CUDA major in the suffix of a package's version, 0 where it has none."""
    suffix = versions.cuda_suffix(version)
    return versions.major(suffix) if suffix else 0


def libraries(
    context: ResolveContext, name: str, candidates: Sequence[LibraryCandidate], cuda: str
) -> tuple[list[LibraryCandidate], list[str]]:
    """Return the builds of cuDNN or NCCL that leave the packages on hold as they are, and the names of these.

    cuda: the planned toolkit. At `auto` they are the builds whose packages are on hold.
    """
    held = of_components(context.catalog, context.host).get(name, {})
    fitting = [c for c in candidates if _agrees(context, c.component.packages)]
    if name == "cudnn":  # the libraries of one cuDNN for several CUDA majors have the same paths
        others = [n for n in held if _cudnn_major(context.catalog, n) not in (0, versions.major(cuda))]
        fitting = [] if others else fitting
    if getattr(context.request, name) == "auto" and held:
        fitting = [c for c in fitting if set(held) & {package.name for package in c.component.packages}]
    deciding = held or dict.fromkeys(n for c in candidates for n in _disagreeing(context, c.component.packages))
    return fitting, list(deciding)


def _agrees(context: ResolveContext, packages: Iterable[Package]) -> bool:
    return not _disagreeing(context, packages)


def _disagreeing(context: ResolveContext, packages: Iterable[Package]) -> list[str]:
    """Return the names of packages that are on hold in another version, or that must not be installed."""
    held = _held(context.host)
    return [
        package.name
        for package in packages
        if package.name in held and (not held[package.name] or package.version not in (None, held[package.name]))
    ]
