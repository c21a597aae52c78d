"""The CUDA toolkit on a host: several can be there side by side, and /usr/local/cuda leads to one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Toolkit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import (
    ComponentChange,
    Packages,
    Removal,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import CudaComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe


class Cuda(PackagedPart[CudaComponent]):
    """The CUDA toolkit, from NVIDIA's repository or the distribution's archive."""

    name = "cuda"
    label = "CUDA toolkit"
    role = "cuda_toolkit"
    role_fields = ("home",)
    side_by_side = True

    def installed(self, planned: CudaComponent | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the version of the planned toolkit if it is there, by its package, else the newest of the others."""
        present = probe.present_packages
        for package in planned.packages if planned else ():
            if package.name in present:
                return versions.upstream(present[package.name].version)
        toolkits = _toolkits(probe)
        if planned and planned.version in toolkits:
            return planned.version
        releases = {**{version: version for version in toolkits}, **_packaged_releases(probe, catalog)}
        return releases[max(releases, key=versions.key)] if releases else None

    def directory(self, planned: CudaComponent) -> str:
        """Return where the archive's packages have the toolkit."""
        return "/usr/local" if planned.source == "nvidia" else "/usr"

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages of the oldest toolkits beyond the number to keep."""
        planned = self.planned(plan.components)
        return _removal(plan.request.keep_cuda, planned, probe, catalog) if planned else Removal()

    def note(self, plan: Plan, probe: Probe, removal: Removal) -> str:
        """Return which toolkits are removed and kept."""
        planned = self.planned(plan.components)
        removed = removal.why.removeprefix("CUDA ").split(", CUDA ") if removal.why else []
        own = planned.version if planned else ""
        kept = [f"CUDA {version}" for version in _toolkits(probe) if version not in (own, *removed)]
        notes = [f"removes {removal.why}"] if removed else []
        return "; ".join([*notes, f"keeps {', '.join(kept)}"] if kept else notes)

    def removed(self, change: ComponentChange, removal: Removal) -> str:
        """Return the number of packages: a toolkit has dozens."""
        return f"{len(change.removed)} packages of {removal.why}"

    def origin(self, planned: CudaComponent) -> str:
        """Return the archive."""
        return planned.source

    def entries(self, catalog: Catalog) -> Mapping[str, Toolkit]:
        """Return the toolkits by series."""
        return {toolkit.version: toolkit for toolkit in catalog.cuda.toolkits}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return where nvcc leads to afterwards, where that changes."""
        planned, default = self.planned(plan.components), probe.cuda.default
        if planned is None or planned.source != "nvidia":
            return
        if default and default != planned.version:
            yield f"/usr/local/cuda, and with it nvcc, changes from CUDA {default} to {planned.version}"
        elif not default and probe.cuda.distro:
            yield (
                f"nvcc changes from the distribution's CUDA {probe.cuda.distro} to CUDA {planned.version} in "
                "/usr/local/cuda"
            )


def _packaged_releases(probe: Probe, catalog: Catalog) -> dict[str, str]:
    """Return the whole release of each toolkit that NVIDIA's packages installed, by X.Y."""
    found = {name: _toolkit_package(catalog).fullmatch(name) for name in probe.present_packages}
    return {
        ".".join(match.groups()): versions.upstream(probe.present_packages[name].version)
        for name, match in found.items()
        if match
    }


def _toolkit_package(catalog: Catalog) -> re.Pattern[str]:
    """Return the name of a toolkit's package, with major and minor as groups."""
    name = re.escape(catalog.cuda.apt.toolkit)
    return re.compile(name.replace(r"\{major\}", r"(\d+)").replace(r"\{minor\}", r"(\d+)"))


def _toolkits(probe: Probe) -> list[str]:
    distro = [probe.cuda.distro] if probe.cuda.distro else []
    return sorted(dict.fromkeys([*probe.cuda.installed, *distro]), key=versions.key)


# Removals -------------------------------------------------------------------------------------------------------


def _removal(keep: str, planned: CudaComponent, probe: Probe, catalog: Catalog) -> Removal:
    """Return the packages of the oldest toolkits beyond `keep` (`all` or a count), which includes the planned one.

    Only toolkits of NVIDIA's packages count.
    """
    if keep == "all":
        return Removal()
    present = native(probe)
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
    named = [match.groups() for match in map(_toolkit_package(catalog).fullmatch, present) if match]
    found = {*probe.cuda.installed, *(".".join(number) for number in named)} - from_runfile
    packaged = [version for version in found if _of_series(version, present, catalog)]
    return sorted(packaged, key=versions.key, reverse=True)


def _of_series(version: str, present: Packages, catalog: Catalog) -> list[str]:
    pattern = _series_pattern(version, catalog)
    return [name for name in present if re.fullmatch(pattern, name)]


def _series_pattern(version: str, catalog: Catalog) -> str:
    major, minor = version.split(".")[:2]
    return catalog.cuda.apt.series.format(major=major, minor=minor)
