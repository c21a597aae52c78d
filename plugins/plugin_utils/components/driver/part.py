"""The driver on a host: what is installed, what a plan replaces, and what that means for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch, Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, ComponentChange, Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.removal import of_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe


class Driver(PackagedPart[DriverComponent]):
    """NVIDIA's driver, from its repository or the distribution's archive."""

    record = DriverComponent
    role = "nvidia_driver"
    role_fields = ("kernel_modules", "profile")
    build_variables = ("nvidia_driver_kernel_headers", "nvidia_driver_kernel_compilers")
    in_kernel = True
    has_steps = True

    def installed(self, planned: DriverComponent | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the version of the driver whose libraries programs load, whatever package has it."""
        driver = installed_driver.on_probe(catalog, probe)
        return driver.version if driver else None

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages of another driver."""
        planned = self.planned(plan.components)
        if planned is None:
            return Removal()
        present, installed = native(probe), _packaged(probe, catalog)
        version, owners = (installed.version, installed.owners) if installed else (None, ())
        return of_driver(planned, present, version, owners, probe.package_sizes, catalog)

    def unplanned(self, row: ComponentChange, plan: Plan) -> ComponentChange:
        """Return the row of a driver that stays, with the package that has it."""
        if plan.kept_driver is None:
            return row
        driver = plan.kept_driver
        how = "of others" if driver.of_others else "with prebuilt kernel modules"
        note = f"{driver.package} {how}" if driver.package else f"by {driver.origin}"
        return dataclasses.replace(row, note=note)

    def role_inputs(self, planned: DriverComponent) -> Mapping[str, Any]:
        """Return the packages to build modules with: what has the headers or modules of a kernel, and the compilers."""
        return {
            "kernel_headers": [*planned.kernel_headers, *planned.module_metas],
            "kernel_compilers": [*planned.kernel_compilers, *planned.kernel_tools],
        }

    def missing_to_compile(self, planned: DriverComponent, probe: Probe) -> tuple[str, ...]:
        """Return the headers, compilers and tools that are not installed."""
        return tuple(name for name in planned.build_packages if name not in probe.kernel.installed_packages)

    def details(self, planned: DriverComponent) -> str:
        """Return the kernel modules and where they are from, the profile, and the archive, unless that is NVIDIA's."""
        built = "prebuilt" if planned.module_source == "prebuilt" else "by DKMS"
        archive = "" if planned.source == "nvidia" else ", from the distribution"
        return f"{planned.kernel_modules} modules {built}, {planned.profile}{archive}"

    def entries(self, catalog: Catalog) -> Mapping[str, Branch]:
        """Return the branches by number."""
        return {branch.branch: branch for branch in catalog.driver.branches}

    def loaded(self, probe: Probe) -> str:
        """Return the version and the flavour of the loaded module."""
        module = probe.driver.loaded
        return f"{module.version} ({module.kernel_modules})" if module else "no module"

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return that the GPUs are taken from all programs, where the version changes."""
        if change.action != KEEP and change.installed and change.planned and change.installed != change.planned:
            yield (f"the driver changes from {change.installed} to {change.after}: all programs must leave the GPUs")


def _packaged(probe: Probe, catalog: Catalog) -> installed_driver.Installed | None:
    """Return the driver whose packages are there; what is left of one is replaced like one."""
    driver = installed_driver.on_probe(catalog, probe)
    if driver is None or driver.packaged is None:
        driver = installed_driver.named(catalog, {name: package.version for name, package in native(probe).items()})
    return driver
