"""The diff: what a plan changes on a host, component by component and package by package."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import ProbedPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    COMPONENTS,
    FRAMEWORKS,
    Component,
    CudaComponent,
    FrameworkComponent,
    PackagedComponent,
    PytorchComponent,
    all_packages,
    full_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, removals
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.removals import Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import installed_driver

SCHEMA = 1
INSTALL, UPGRADE, DOWNGRADE, KEEP, REMOVE = "install", "upgrade", "downgrade", "keep", "remove"
UNDECIDED = "undecided"  # a component that a plan with problems does not have


@dataclasses.dataclass(frozen=True)
class PackageChange:
    """One package; planned is None where it is removed, or where the archive decides the version."""

    name: str
    installed: str | None
    planned: str | None
    action: str


@dataclasses.dataclass(frozen=True)
class ComponentChange:
    """One component: full versions, the action (install, upgrade, downgrade, keep or remove), its packages."""

    component: str
    installed: str | None
    planned: str | None
    action: str = KEEP
    note: str = ""
    packages: tuple[PackageChange, ...] = ()


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """What a plan changes: each component, the leftovers that are removed first, and removals by component.

    others: what changes for other users of the machine, a sentence each.
    """

    components: tuple[ComponentChange, ...]
    leftovers: Cleanup
    removals: Mapping[str, Removal]
    others: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the plan changes anything on the host."""
        return bool(self.leftovers.does) or any(row.action not in (KEEP, UNDECIDED) for row in self.components)

    def of(self, component: str) -> ComponentChange:
        """Return the change of one component."""
        return next(row for row in self.components if row.component == component)

    def to_json(self) -> dict[str, Any]:
        """Return the diff as plain data: the fact gpu_stack_diff."""
        return {
            "schema": SCHEMA,
            "changes": self.changes,
            "components": to_json(self.components),
            "leftovers": to_json(self.leftovers),
            "others": list(self.others),
            "replaces": {name: list(removal.replaces) for name, removal in self.removals.items()},
            "may_remove": {name: list(removal.may_remove) for name, removal in self.removals.items()},
        }


def plan_diff(plan: Plan, probe: Probe) -> PlanDiff:
    """Compare a plan with the probe of its host."""
    catalog = load_catalog()
    removed = _removals(plan, probe, catalog)
    rows = tuple(_component(name, plan, probe, removed[name], catalog) for name in COMPONENTS)
    if plan.kept_driver:
        how = "of others" if plan.kept_driver.of_others else "with prebuilt kernel modules"
        kept = f"{plan.kept_driver.package} {how}"
        rows = tuple(dataclasses.replace(row, note=kept) if row.component == "driver" else row for row in rows)
    others = _effects_on_other_users(plan, probe, {row.component: row for row in rows}) if plan.ok else ()
    return PlanDiff(rows, leftovers.cleanup(plan, probe), removed, others)


def _removals(plan: Plan, probe: Probe, catalog: Catalog) -> dict[str, Removal]:
    native = {name: package for name, package in probe.present_packages.items() if ":" not in name}
    driver, cuda, cudnn = plan.components.driver, plan.components.cuda, plan.components.cudnn
    found = dict.fromkeys(COMPONENTS, Removal())
    if driver:
        found["driver"] = removals.of_driver(
            driver, native, _packaged_driver(probe, native, catalog), probe.package_sizes, catalog
        )
    if cuda:
        found["cuda"] = removals.of_toolkits(plan.request.keep_cuda, cuda, probe, native, catalog)
    if cudnn:
        found["cudnn"] = removals.of_cudnn(cudnn, cuda, native, catalog)
    return found


def _packaged_driver(probe: Probe, native: Mapping[str, ProbedPackage], catalog: Catalog) -> str | None:
    """Return the version of the driver whose packages are there; what is left of one is replaced like one."""
    driver = installed_driver.on_probe(catalog, probe)
    if driver is None or driver.packaged is None:
        driver = installed_driver.named(catalog, {name: package.version for name, package in native.items()})
    return driver.version if driver else None


def _component(name: str, plan: Plan, probe: Probe, removal: Removal, catalog: Catalog) -> ComponentChange:
    planned = plan.components.get(name)
    installed = installed_version(name, planned, probe, catalog)
    if planned is None:
        is_undecided = not plan.ok and getattr(plan.request, name) != "none"
        note = "the plan has problems" if is_undecided else "not managed, stays" if installed else ""
        return ComponentChange(name, installed, None, UNDECIDED if is_undecided else KEEP, note)
    row = ComponentChange(name, installed, full_version(planned))
    if isinstance(planned, FrameworkComponent):
        return _environment(row, planned, probe.environment(name))
    packages = _packages(planned, probe, removal)
    note = _cuda_note(planned, probe, removal) if isinstance(planned, CudaComponent) else removal.why
    return dataclasses.replace(row, action=_action(row, packages), note=note, packages=packages)


def _cuda_note(planned: CudaComponent, probe: Probe, removal: Removal) -> str:
    removed = removal.why.removeprefix("CUDA ").split(", CUDA ") if removal.why else []
    kept = [f"CUDA {version}" for version in _toolkits(probe) if version not in (planned.version, *removed)]
    notes = [f"removes {removal.why}"] if removed else []
    return "; ".join([*notes, f"keeps {', '.join(kept)}"] if kept else notes)


# What is installed ----------------------------------------------------------------------------------------------


def installed_version(name: str, planned: Component | None, probe: Probe, catalog: Catalog) -> str | None:
    """Return the version of a component that is on the host, whether it is the planned one or not; None without one."""
    if name in FRAMEWORKS:
        environment = probe.environment(name)
        return environment.version if environment else None
    if name == "cuda":
        return _installed_cuda(planned if isinstance(planned, CudaComponent) else None, probe, catalog)
    if name == "driver":
        driver = installed_driver.on_probe(catalog, probe)
        return driver.version if driver else None
    leading = catalog.packages.leading[name]  # the package whose version is the component's
    found = [package.version for other, package in probe.present_packages.items() if re.fullmatch(leading, other)]
    newest = debian_version.newest_first(found)
    return versions.upstream(newest[0]) if newest else None


def _installed_cuda(planned: CudaComponent | None, probe: Probe, catalog: Catalog) -> str | None:
    """Return the version of the planned toolkit if it is installed, by its package, else the newest of the others."""
    present = probe.present_packages
    for package in planned.packages if planned else ():
        if package.name in present:
            return versions.upstream(present[package.name].version)
    toolkits = _toolkits(probe)
    if planned and planned.version in toolkits:
        return planned.version
    releases = {**{version: version for version in toolkits}, **_packaged_toolkits(probe, catalog)}
    return releases[max(releases, key=versions.key)] if releases else None


def _packaged_toolkits(probe: Probe, catalog: Catalog) -> dict[str, str]:
    """Return the whole release of each toolkit that NVIDIA's packages installed, by X.Y."""
    toolkit = re.escape(catalog.cuda.apt.toolkit).replace(r"\{major\}", r"(\d+)").replace(r"\{minor\}", r"(\d+)")
    found = {name: re.fullmatch(toolkit, name) for name in probe.present_packages}
    return {
        ".".join(match.groups()): versions.upstream(probe.present_packages[name].version)
        for name, match in found.items()
        if match
    }


def _toolkits(probe: Probe) -> list[str]:
    distro = [probe.cuda.distro] if probe.cuda.distro else []
    return sorted(dict.fromkeys([*probe.cuda.installed, *distro]), key=versions.key)


# What the plan does ---------------------------------------------------------------------------------------------


def _packages(planned: PackagedComponent, probe: Probe, removal: Removal) -> tuple[PackageChange, ...]:
    present = probe.present_packages
    changes = []
    for wanted in all_packages(planned):
        found = present.get(wanted.name)
        installed = found.version if found else None
        changes.append(PackageChange(wanted.name, installed, wanted.version, _package_action(found, wanted.version)))
    changes += [PackageChange(name, present[name].version, None, REMOVE) for name in removal.packages]
    return tuple(changes)


def _package_action(package: ProbedPackage | None, wanted: str | None) -> str:
    """Return the action; a package that dpkg left half installed is installed again, whatever its version."""
    if package is None:
        return INSTALL
    direction = _direction(package.version, wanted) if wanted else None
    return direction or (KEEP if package.status == "installed" else INSTALL)


def _action(row: ComponentChange, packages: tuple[PackageChange, ...]) -> str:
    """Derive the action of a component from those of its packages."""
    actions = {package.action for package in packages}
    action = next((a for a in (DOWNGRADE, UPGRADE, INSTALL, REMOVE) if a in actions), KEEP)
    if action == INSTALL and row.component != "cuda" and row.installed and row.planned:
        # Only the branch is known of the distribution's driver: 580.126.09 is neither older nor newer than 580.
        same_branch = versions.has_prefix(row.installed, row.planned)
        return (None if same_branch else _direction(row.installed, row.planned)) or INSTALL
    return action


def _direction(installed: str, wanted: str) -> str | None:
    """Return upgrade or downgrade by Debian's order of versions; None if both are the same."""
    old, new = debian_version.key(installed), debian_version.key(wanted)
    return None if old == new else UPGRADE if old < new else DOWNGRADE


def _environment(row: ComponentChange, planned: FrameworkComponent, found: Environment | None) -> ComponentChange:
    if found is None:
        return dataclasses.replace(row, action=INSTALL)
    release, _unused, build = found.version.partition("+")  # such as 2.14.1+cu126
    direction = _direction(release, planned.version)
    if direction is None and found.python != planned.python:
        return dataclasses.replace(row, action=INSTALL, note=f"rebuilt for Python {planned.python}")
    if direction is None and isinstance(planned, PytorchComponent):
        wanted = f"cu{planned.cuda.replace('.', '')}" if planned.index else ""
        if build != wanted:
            return dataclasses.replace(row, action=INSTALL, note=f"rebuilt for CUDA {planned.cuda}")
    return dataclasses.replace(row, action=direction or KEEP)


# For other users of the machine ---------------------------------------------------------------------------------


def _effects_on_other_users(plan: Plan, probe: Probe, rows: Mapping[str, ComponentChange]) -> tuple[str, ...]:
    """Return what a plan changes for programs and users that have nothing to do with it, a sentence each."""
    sentences = []
    driver, cuda = rows["driver"], plan.components.cuda
    if driver.action != KEEP and driver.installed and driver.planned and driver.installed != driver.planned:
        after = _after(driver)
        sentences.append(f"the driver changes from {driver.installed} to {after}: all programs must leave the GPUs")
    default = probe.cuda.default
    if cuda and cuda.source == "nvidia" and default and default != cuda.version:
        sentences.append(f"/usr/local/cuda, and with it nvcc, changes from CUDA {default} to {cuda.version}")
    elif cuda and cuda.source == "nvidia" and not default and probe.cuda.distro:
        distro = probe.cuda.distro
        sentences.append(
            f"nvcc changes from the distribution's CUDA {distro} to CUDA {cuda.version} in /usr/local/cuda"
        )
    gone = [package.name for package in rows["cudnn"].packages if package.action == REMOVE]
    if gone:
        sentences.append(f"programs that use the removed {', '.join(gone)} no longer find cuDNN for that CUDA")
    for package in rows["nccl"].packages:
        old, new = (versions.cuda_suffix(version or "") for version in (package.installed, package.planned))
        if old and new and versions.major(old) != versions.major(new):
            sentences.append(f"{package.name} changes from the build for CUDA {old} to that for CUDA {new}")
    return tuple(sentences)


# In a terminal --------------------------------------------------------------------------------------------------


def table_cells(diff: PlanDiff) -> dict[str, tuple[str, str, str]]:
    """Return the cells BEFORE, AFTER and ACTION of each component that is installed or planned."""
    return {
        row.component: (row.installed or "-", _after(row), row.action + (f" ({row.note})" if row.note else ""))
        for row in diff.components
        if row.installed or row.planned
    }


def _after(row: ComponentChange) -> str:
    """Return the planned version; of the distribution's driver only the branch is known."""
    if row.planned is None:
        return row.installed or "-"
    return f"{row.planned}.*" if row.component == "driver" and "." not in row.planned else row.planned


def diff_lines(diff: PlanDiff, drift: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return what the table of components does not say: what is removed, what changes for others, and what is damaged.

    drift: the reasons to apply each part, as drift.drift() returns them; left out where a version changes.
    """
    lines = [f"First: {sentence}" for sentence in diff.leftovers.does]
    for row in diff.components:
        removed = [package.name for package in row.packages if package.action == REMOVE]
        if removed and row.component == "cuda":  # a toolkit is dozens of packages
            lines.append(f"Removed: {len(removed)} packages of {diff.removals['cuda'].why}")
        elif removed:
            lines.append(f"Removed: {', '.join(removed)}")
    lines += [f"For other users of this host: {sentence}" for sentence in diff.others]
    if diff.changes:
        return lines
    if not drift:
        return [*lines, "The host matches the plan."]
    reasons = (f"  {part}: {'; '.join(texts)}" for part, texts in drift.items())
    return [*lines, "The installed versions are those of the plan. Parts to apply, and why:", *reasons]
