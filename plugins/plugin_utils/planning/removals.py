"""What has to go when a plan is carried out: another driver's packages, older toolkits, cuDNN for another CUDA.

Runs on the controller; pure functions. Each gives names of packages that are on the host, and regular expressions for
the transaction: `replaces` (must go) and `may_remove` (apt may remove them to make room).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_name_pattern
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog

Data = Mapping[str, Any]

_DRIVER_VERSION = re.compile(r"^\d{3}\.\d+")


@dataclasses.dataclass(frozen=True)
class Removal:
    """What goes for one component. why: in words, for people; packages: those that are known to go."""

    why: str = ""
    packages: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    may_remove: tuple[str, ...] = ()


# The driver -----------------------------------------------------------------------------------------------------


def of_driver(planned: Data, present: Data, installed: str | None, offered: Data, catalog: Catalog) -> Removal:
    """The driver there is, where it is another branch, another source's or has other kernel modules: all of it.

    present: the host's packages by name; installed: the driver's version; offered: sizes of the repository's packages.
    """
    pattern = driver_name_pattern(catalog)
    names = {spec.partition("=")[0] for spec in planned["packages"]}
    pins = {spec.partition("=")[0] for spec in planned.get("pinning_packages") or []}
    others = [name for name in present if re.fullmatch(pattern, name) and name not in names | pins]
    why = _exchange(planned, names, others, present, installed, catalog)
    pinning = catalog.driver.pinning.package.partition("{")[0]
    going = [
        n
        for n in others
        if n.startswith(pinning) or _is_other(n, planned, names, catalog) or _is_nvidias(n, planned, catalog)
    ]
    if why:
        brought = _brought(planned, offered)
        going += [name for name in others if name not in going and brought and _is_left(name, present, brought)]
    # Pins go before all others, in a transaction of their own.
    replaced = [re.escape(name) for name in sorted(going) if not name.startswith(pinning)]
    told = f"the whole driver is replaced: {why}" if why else ""
    return Removal(told, tuple(sorted(going)), tuple(replaced), (pattern,) if why else ())


def _exchange(
    planned: Data, names: set[str], others: list[str], present: Data, installed: str | None, catalog: Catalog
) -> str:
    """What makes the planned driver another set of packages than the one there is; empty where it is the same."""
    if installed is None:
        return ""
    found = []
    branch = installed.split(".")[0]
    if branch != planned["branch"]:
        found.append(f"branch {branch} -> {planned['branch']}")
    modules = [name for name in others if _builds_modules(name, catalog)]
    flavours = {_flavour(name) for name in modules} - {planned["kernel_modules"]}
    if modules and flavours and not any(_builds_modules(name, catalog) for name in names & set(present)):
        found.append(f"{' and '.join(sorted(flavours))} -> {planned['kernel_modules']} kernel modules")
    if not found and not names <= set(present):
        found.append(f"packages of {'the distribution' if planned['source'] == 'distro' else 'NVIDIA'}")
    return ", ".join(found)


def _flavour(name: str) -> str:
    return "open" if "open" in name.split("-") else "proprietary"


def _is_other(name: str, planned: Data, names: set[str], catalog: Catalog) -> bool:
    """Whether its name alone tells that a package cannot stay beside the planned ones."""
    if _builds_modules(name, catalog):
        explicit = any(_builds_modules(other, catalog) for other in names)
        return explicit or _flavour(name) != planned["kernel_modules"]
    series = _series(name, catalog)
    if series is None:
        return False
    wanted = {found for found in (_series(other, catalog) for other in names) if found}
    return series.partition("-")[0] != planned["branch"] or (bool(wanted) and series not in wanted)


def _builds_modules(name: str, catalog: Catalog) -> bool:
    return bool(re.fullmatch(catalog.packages.kernel_modules, name))


def _series(name: str, catalog: Catalog) -> str | None:
    matches = (re.fullmatch(pattern, name) for pattern in catalog.packages.driver_branch)
    return next((match.group(1) for match in matches if match), None)


def _is_nvidias(name: str, planned: Data, catalog: Catalog) -> bool:
    """Whether the distribution's driver is planned, and this is what NVIDIA calls its own."""
    if planned["source"] != "distro":
        return False
    known = {spec for rule in catalog.driver.packages for spec in (*rule.open, *rule.proprietary)}
    # libcuda1 and such have the same name everywhere; apt moves those that the distribution's driver needs.
    return any(re.fullmatch(re.escape(spec).replace(r"\{branch\}", r"\d{3}"), name) for spec in known)


def _brought(planned: Data, offered: Data) -> set[str]:
    """The packages that come with the planned ones, where the repository's index tells; empty where it does not."""
    found: set[str] = set()
    for spec in planned["packages"]:
        name, _, version = spec.partition("=")
        size = (offered.get(name) or {}).get(version)
        if not size:
            return set()
        found |= {name, *size[2]}
    return found


def _is_left(name: str, present: Data, brought: set[str]) -> bool:
    """A package of the old driver that nothing of the new one is or needs; what has a version of its own may stay."""
    return name not in brought and bool(_DRIVER_VERSION.match(versions.upstream(present[name]["version"])))


# CUDA -----------------------------------------------------------------------------------------------------------


def of_toolkits(keep: str, planned: Data, probe: Data, present: Data, catalog: Catalog) -> Removal:
    """The toolkits beyond those that shall stay: packages of NVIDIA's alone, and never the planned one."""
    if keep == "all":
        return Removal()
    own = [planned["version"]] if planned["source"] == "nvidia" else []
    others = [version for version in _packaged(probe, present, catalog) if version not in own]
    going = others[max(int(keep) - len(own), 0) :]
    packages = [name for version in going for name in _of_series(version, present, catalog)]
    return Removal(
        ", ".join(f"CUDA {version}" for version in going),
        tuple(sorted(packages)),
        tuple(_series_pattern(version, catalog) for version in going),
        (catalog.cuda.apt.metapackages,) if going else (),
    )


def _packaged(probe: Data, present: Data, catalog: Catalog) -> list[str]:
    """The toolkits on the host that dpkg installed in /usr/local, newest first."""
    cuda, runfile = probe.get("cuda") or {}, probe.get("runfile") or {}
    by_hand = {toolkit["version"] for toolkit in runfile.get("toolkits") or []}
    toolkit = re.escape(catalog.cuda.apt.toolkit).replace(r"\{major\}", r"(\d+)").replace(r"\{minor\}", r"(\d+)")
    named = [match.groups() for match in (re.fullmatch(toolkit, name) for name in present) if match]
    found = {*(cuda.get("installed") or []), *(".".join(number) for number in named)} - by_hand
    packaged = [version for version in found if _of_series(version, present, catalog)]
    return sorted(packaged, key=versions.key, reverse=True)


def _of_series(version: str, present: Data, catalog: Catalog) -> list[str]:
    pattern = _series_pattern(version, catalog)
    return [name for name in present if re.fullmatch(pattern, name)]


def _series_pattern(version: str, catalog: Catalog) -> str:
    major, minor = version.split(".")[:2]
    return catalog.cuda.apt.series.format(major=major, minor=minor)


# cuDNN ----------------------------------------------------------------------------------------------------------


def of_cudnn(planned: Data, cuda: Data | None, present: Data, catalog: Catalog) -> Removal:
    """cuDNN for another CUDA major, whose libraries lie where the planned ones go."""
    number = versions.major(planned["version"])
    apt = next((entry for entry in catalog.cudnn.apt if entry.cudnn_major == number), None)
    if apt is None or apt.other_builds is None or cuda is None:
        return Removal()
    pattern = apt.other_builds.format(cuda_major=versions.major(cuda["version"]))
    going = tuple(sorted(name for name in present if re.fullmatch(pattern, name)))
    return Removal("takes the place of the build for another CUDA" if going else "", going, (pattern,) if going else ())
