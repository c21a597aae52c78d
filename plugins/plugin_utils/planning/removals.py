"""Which packages a plan removes: another driver's, CUDA toolkits beyond the count to keep, cuDNN for another CUDA.

Each function returns the names of installed packages and, for the package transaction, regular expressions of names:
`replaces` (purged) and `may_remove` (apt may remove them to resolve conflicts).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize, ProbedPackage
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_name_pattern
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    CudaComponent,
    DriverComponent,
    LibraryComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

Packages = Mapping[str, ProbedPackage]

_DRIVER_VERSION = re.compile(r"^\d{3}\.\d+")


@dataclasses.dataclass(frozen=True)
class Removal:
    """What is removed for one component; why: a text for messages; packages: the names that are known beforehand."""

    why: str = ""
    packages: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    may_remove: tuple[str, ...] = ()


# The driver -----------------------------------------------------------------------------------------------------


def of_driver(
    planned: DriverComponent,
    present: Packages,
    installed: str | None,
    sizes: Mapping[str, Mapping[str, PackageSize]],
    catalog: Catalog,
) -> Removal:
    """Return the packages of the present driver that cannot stay beside the planned one.

    Another branch, another source or other kernel modules replace the whole driver. present: the host's packages;
    installed: the present driver's version; sizes: of the repository's packages.
    """
    pattern = driver_name_pattern(catalog)
    names = {*(package.name for package in planned.packages), *planned.module_metas}
    pins = {package.name for package in planned.pinning_packages}
    others = [name for name in present if re.fullmatch(pattern, name) and name not in names | pins]
    why = _replacement(planned, names, others, present, installed, catalog)
    pinning = catalog.driver.pinning.package.partition("{")[0]
    removed = [
        n
        for n in others
        if n.startswith(pinning) or _conflicts(n, planned, names, catalog) or _is_nvidias(n, planned, catalog)
    ]
    # On a host with a display what the new set does without stays, unless it conflicts: settings, X and Wayland parts.
    if why and planned.profile != "full":
        included = _included(planned, sizes)
        removed += [n for n in others if n not in removed and included and _is_obsolete(n, present, included)]
    # The role removes pins before all others, in a transaction of their own.
    replaced = [re.escape(name) for name in sorted(removed) if not name.startswith(pinning)]
    note = f"replaces the whole driver: {why}" if why else ""
    stay = [re.escape(n) for n in others if n not in removed and n not in _parts(present, pattern, catalog)]
    allowed = f"(?!(?:{'|'.join(stay)})(?::|$))(?:{pattern})" if stay else pattern
    return Removal(note, tuple(sorted(removed)), tuple(replaced), (allowed,) if why else ())


def _parts(present: Packages, pattern: str, catalog: Catalog) -> set[str]:
    """Return the installed packages of the driver: those with its version or branch, and all that these depend on.

    Others only have a name like theirs, such as what DGX OS adds to configure a machine.
    """
    names = {name for name in present if re.fullmatch(pattern, name)}
    found: set[str] = set()
    waiting = {n for n in names if _DRIVER_VERSION.match(versions.upstream(present[n].version)) or _series(n, catalog)}
    while waiting:
        found |= waiting
        waiting = {needed for name in waiting for needed in present[name].depends if needed in names} - found
    return found


def _replacement(
    planned: DriverComponent,
    names: set[str],
    others: list[str],
    present: Packages,
    installed: str | None,
    catalog: Catalog,
) -> str:
    """Return why the installed driver packages must be replaced as a whole; empty if they are the planned set."""
    if installed is None:
        return ""
    reasons = []
    branch = installed.split(".", 1)[0]
    if branch != planned.branch:
        reasons.append(f"branch {branch} -> {planned.branch}")
    modules = [name for name in others if _builds_modules(name, catalog)]
    flavours = {_flavour(name) for name in modules} - {planned.kernel_modules}
    if modules and flavours and not any(_builds_modules(name, catalog) for name in names & set(present)):
        reasons.append(f"{' and '.join(sorted(flavours))} -> {planned.kernel_modules} kernel modules")
    if not reasons and not names <= set(present):
        reasons.append(f"packages of {'the distribution' if planned.source == 'distro' else 'NVIDIA'}")
    return ", ".join(reasons)


def _flavour(name: str) -> str:
    return "open" if "open" in name.split("-") else "proprietary"


def _conflicts(name: str, planned: DriverComponent, names: set[str], catalog: Catalog) -> bool:
    """Return whether a package's name alone shows that it cannot stay beside the planned ones."""
    if planned.module_source != "dkms":
        if _builds_modules(name, catalog):  # DKMS's modules are loaded before prebuilt ones
            return True
        if fnmatch.fnmatchcase(name, catalog.packages.prebuilt_modules) and _flavour(name) != planned.kernel_modules:
            return True  # depmod would select one of them, whichever it is
    if _builds_modules(name, catalog):
        is_planned = any(_builds_modules(other, catalog) for other in names)
        return is_planned or _flavour(name) != planned.kernel_modules
    series = _series(name, catalog)
    if series is None:
        return False
    wanted = {found for found in (_series(other, catalog) for other in names) if found}
    return series.partition("-")[0] != planned.branch or (bool(wanted) and series not in wanted)


def _builds_modules(name: str, catalog: Catalog) -> bool:
    return bool(re.fullmatch(catalog.packages.kernel_modules, name))


def _series(name: str, catalog: Catalog) -> str | None:
    """Return the branch in a package's name, with Ubuntu's `-server`: the two sets of one branch conflict."""
    matches = (re.fullmatch(pattern, name) for pattern in catalog.packages.driver_branch)
    return next((match.group(1) for match in matches if match), None)


def _is_nvidias(name: str, planned: DriverComponent, catalog: Catalog) -> bool:
    """Return whether the distribution's driver is planned and only NVIDIA's repository has such a package."""
    if planned.source != "distro":
        return False
    # libcuda1 and such have the same name in both archives; apt replaces those that the distribution's driver needs.
    shared = {spec for distro in catalog.distros.values() for rule in distro.distro_drivers for spec in rule.names()}
    known = {spec for rule in catalog.driver.packages for spec in rule.names()} - shared
    return any(re.fullmatch(re.escape(spec).replace(r"\{branch\}", r"\d{3}"), name) for spec in known)


def _included(planned: DriverComponent, sizes: Mapping[str, Mapping[str, PackageSize]]) -> set[str]:
    """Return the planned packages with their dependencies; none if the repository's index was not read."""
    found: set[str] = set()
    for package in planned.packages:
        size = sizes.get(package.name, {}).get(package.version or "")
        if size is None:
            return set()
        found |= {package.name, *size.includes}
    return found


def _is_obsolete(name: str, present: Packages, included: set[str]) -> bool:
    """Return whether the new driver does without a package of the old one; a package versioned apart may stay."""
    return name not in included and bool(_DRIVER_VERSION.match(versions.upstream(present[name].version)))


# CUDA -----------------------------------------------------------------------------------------------------------


def of_toolkits(keep: str, planned: CudaComponent, probe: Probe, present: Packages, catalog: Catalog) -> Removal:
    """Return the packages of the oldest toolkits beyond `keep` (`all` or a count), which includes the planned one.

    Only toolkits of NVIDIA's packages count.
    """
    if keep == "all":
        return Removal()
    own = [planned.version] if planned.source == "nvidia" else []
    others = [version for version in _packaged(probe, present, catalog) if version not in own]
    removed = others[max(int(keep) - len(own), 0) :]
    packages = [name for version in removed for name in _of_series(version, present, catalog)]
    return Removal(
        ", ".join(f"CUDA {version}" for version in removed),
        tuple(sorted(packages)),
        tuple(_series_pattern(version, catalog) for version in removed),
        (catalog.cuda.apt.metapackages,) if removed else (),
    )


def _packaged(probe: Probe, present: Packages, catalog: Catalog) -> list[str]:
    """Return the toolkits that dpkg installed in /usr/local, newest first."""
    from_runfile = {toolkit.version for toolkit in probe.runfile.toolkits}
    toolkit = re.escape(catalog.cuda.apt.toolkit).replace(r"\{major\}", r"(\d+)").replace(r"\{minor\}", r"(\d+)")
    named = [match.groups() for match in (re.fullmatch(toolkit, name) for name in present) if match]
    found = {*probe.cuda.installed, *(".".join(number) for number in named)} - from_runfile
    packaged = [version for version in found if _of_series(version, present, catalog)]
    return sorted(packaged, key=versions.key, reverse=True)


def _of_series(version: str, present: Packages, catalog: Catalog) -> list[str]:
    pattern = _series_pattern(version, catalog)
    return [name for name in present if re.fullmatch(pattern, name)]


def _series_pattern(version: str, catalog: Catalog) -> str:
    major, minor = version.split(".")[:2]
    return catalog.cuda.apt.series.format(major=major, minor=minor)


# cuDNN ----------------------------------------------------------------------------------------------------------


def of_cudnn(planned: LibraryComponent, cuda: CudaComponent | None, present: Packages, catalog: Catalog) -> Removal:
    """Return the packages of cuDNN for another CUDA major: its libraries have the paths of the planned ones."""
    number = versions.major(planned.version)
    apt = next((entry for entry in catalog.cudnn.apt if entry.cudnn_major == number), None)
    if apt is None or apt.other_builds is None or cuda is None:
        return Removal()
    pattern = apt.other_builds.format(cuda_major=versions.major(cuda.version))
    removed = tuple(sorted(name for name in present if re.fullmatch(pattern, name)))
    return Removal("replaces the build for another CUDA major", removed, (pattern,)) if removed else Removal()
