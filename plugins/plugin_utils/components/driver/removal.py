"""Which packages of the present driver cannot stay beside the planned one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import (
    driver_name_pattern,
    driver_series,
    is_empty_meta,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import Packages, Removal

_DRIVER_VERSION = re.compile(r"^\d{3}\.\d+")


def of_driver(
    planned: DriverComponent,
    present: Packages,
    installed: str | None,
    owners: tuple[str, ...],
    sizes: Mapping[str, Mapping[str, PackageSize]],
    catalog: Catalog,
) -> Removal:
    """Return the packages of the present driver that cannot stay beside the planned one.

    Another branch, another source or other kernel modules replace the whole driver. present: the host's packages;
    installed: the present driver's version; owners: the packages with its libcuda and modules, which may have any name;
    sizes: of the repository's packages.
    """
    pattern = driver_name_pattern(catalog)
    names = {*(package.name for package in planned.packages), *planned.module_metas}
    pins = {package.name for package in planned.pinning_packages}
    named = {name for name in present if re.fullmatch(pattern, name)}
    others = [name for name in present if name in named.union(owners) and name not in names | pins]
    why = _replacement(planned, names, others, present, installed, catalog)
    pinning = catalog.driver.pinning.package.partition("{")[0]
    removed = [
        n
        for n in others
        if n.startswith(pinning) or _conflicts(n, planned, names, catalog) or _is_nvidias(n, planned, catalog)
    ]
    removed += [n for n in others if n not in removed and _would_be_downgraded(n, present[n].version, planned, catalog)]
    removed += [n for n in others if why and n not in named]  # they have the same files
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
    waiting = {
        n for n in names if _DRIVER_VERSION.match(versions.upstream(present[n].version)) or driver_series(catalog, n)
    }
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
    is_signed = bool(re.fullmatch(catalog.packages.signed_modules, name))
    if planned.module_source == "dkms" and is_signed:
        return True
    if planned.module_source != "dkms":
        if _builds_modules(name, catalog):  # DKMS's modules are loaded before prebuilt ones
            return True
        is_prebuilt = is_signed or fnmatch.fnmatchcase(name, catalog.packages.prebuilt_modules)
        if is_prebuilt and _flavour(name) != planned.kernel_modules:
            return True  # depmod would select one of them, whichever it is
    if _builds_modules(name, catalog):
        is_planned = any(_builds_modules(other, catalog) for other in names)
        return is_planned or _flavour(name) != planned.kernel_modules
    series = driver_series(catalog, name)
    if series is None:
        return False
    wanted = {found for found in (driver_series(catalog, other) for other in names) if found}
    return series.partition("-")[0] != planned.branch or (bool(wanted) and series not in wanted)


def _would_be_downgraded(name: str, version: str, planned: DriverComponent, catalog: Catalog) -> bool:
    """Return whether a package is an empty metapackage that the planned pin binds to an older version.

    That one has dependencies, and `apt-get -y dist-upgrade` refuses to downgrade. apt itself solves those of others.
    """
    is_newer = versions.key(versions.upstream(version)) > versions.key(planned.version)
    return bool(planned.pinning_packages) and is_newer and is_empty_meta(catalog, name, version)


def _builds_modules(name: str, catalog: Catalog) -> bool:
    return bool(re.fullmatch(catalog.packages.kernel_modules, name))


def _is_nvidias(name: str, planned: DriverComponent, catalog: Catalog) -> bool:
    """Return whether the distribution's driver is planned and only NVIDIA's repository has such a package."""
    if planned.source != "distro":
        return False
    # libcuda1 and such have the same name in both archives; apt replaces those that the distribution's driver needs.
    # Where only the modules are the distribution's, the others are NVIDIA's own packages.
    own = [rule for distro in catalog.distros.values() for rule in distro.distro_drivers if not rule.signed]
    shared = {spec for rule in own for spec in rule.names()}
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
