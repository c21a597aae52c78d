"""What the core asks of every component: its names, what a host has of it, and what a plan changes.

A component is a module beside this one with a subclass of PackagedPart or EnvironmentPart, and a line in registry.py.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    Component,
    Components,
    FrameworkComponent,
    OfComponent,
    PackagedComponent,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import ProbedPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    ComponentFile,
    FrameworkRelease,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import (
    INSTALL,
    KEEP,
    ComponentChange,
    Packages,
    Removal,
    direction,
    package_changes,
    strongest,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Candidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

Planned = TypeVar("Planned", bound=Component)
PlannedPackages = TypeVar("PlannedPackages", bound=PackagedComponent)
PlannedEnvironment = TypeVar("PlannedEnvironment", bound=FrameworkComponent)


class Part(OfComponent, abc.ABC, Generic[Planned]):
    """A component on a host.

    record: the type of what is planned, which has the name and the label; role: what installs it. catalog_file: the
    type of its file in the catalog, where no other component reads that. role_fields: fields of the record that are
    variables of the role, too, so that users must not set those to another value. build_variables: the role's variables
    with packages to compile with. findings: those of `check`. in_kernel: whether it is loaded as a kernel module.
    in_summary: whether the summary of a run has a column for it. is_common: whether most hosts need it; a report leaves
    out what a host neither has nor needs of the others.
    """

    role: ClassVar[str]
    catalog_file: ClassVar[type[ComponentFile] | None] = None
    role_fields: ClassVar[tuple[str, ...]] = ()
    build_variables: ClassVar[tuple[str, ...]] = ()
    findings: ClassVar[tuple[FindingSpec, ...]] = ()
    in_kernel: ClassVar[bool] = False
    in_summary: ClassVar[bool] = True
    is_common: ClassVar[bool] = True

    def planned(self, components: Components) -> Planned | None:
        """Return the component of a plan; None where it is left out."""
        return cast("Planned | None", components.get(self.name))

    @abc.abstractmethod
    def installed(self, planned: Planned | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the version that is on the host, whether it is the planned one or not; None without one."""

    def all_installed(self, probe: Probe, catalog: Catalog) -> list[str]:
        """Return the versions that are on the host, the one in use first."""
        version = self.installed(None, probe, catalog)
        return [version] if version else []

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return what a plan removes for the component."""
        return Removal()

    @abc.abstractmethod
    def adopted(self, planned: Planned, probe: Probe) -> Planned | None:
        """Return what is installed of a component that is planned in its version; None where a part is missing."""

    @abc.abstractmethod
    def change(self, row: ComponentChange, plan: Plan, probe: Probe, removal: Removal) -> ComponentChange:
        """Return the change of a planned component. row: the change without action, note and packages."""

    def unplanned(self, row: ComponentChange, plan: Plan) -> ComponentChange:
        """Return the row of a component that is not planned, with what else there is to say."""
        return row

    def note(self, plan: Plan, probe: Probe, removal: Removal) -> str:
        """Return what to say beside the action."""
        return removal.why

    def removed(self, change: ComponentChange, removal: Removal) -> str:
        """Return how a table names the packages that are removed."""
        return ", ".join(change.removed)

    @abc.abstractmethod
    def details(self, planned: Planned) -> str:
        """Return what a plan says of a component beside its version; empty where there is nothing else to say."""

    @abc.abstractmethod
    def entries(self, catalog: Catalog) -> Mapping[str, Any]:
        """Return the entries of the catalog by version."""

    def loaded(self, probe: Probe) -> str:
        """Return the version of the loaded kernel module; empty for a component without one."""
        return ""

    def role_inputs(self, planned: Planned) -> Mapping[str, Any]:
        """Return values of the role's variables, by their names without the role's, that no field of the record is."""
        return {}

    def missing_to_compile(self, planned: Planned, probe: Probe) -> tuple[str, ...]:
        """Return the packages that it compiles with and that this host lacks."""
        return ()

    def unadoptable(self, installed: str | None, driver: KeptDriver, host: Host, catalog: Catalog) -> Problem | None:
        """Return why what a host has of the component, or that it has none, cannot be adopted with its driver."""
        return None

    def check(self, planned: Planned, plan: Plan, probe: Probe, findings: Findings) -> None:
        """Check the host for what the component alone needs."""

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return what changes for programs and users that have nothing to do with the plan, a sentence each."""
        return ()


class PackagedPart(Part[PlannedPackages]):
    """A component that consists of packages.

    side_by_side: several versions of it can be on a host. has_steps: whether its role has steps of its own in the order
    of playbooks/tasks/install.yml; the other roles run one after the other.
    """

    side_by_side: ClassVar[bool] = False
    has_steps: ClassVar[bool] = False

    def details(self, planned: PlannedPackages) -> str:
        """Return nothing: the packages are those of NVIDIA's repository."""
        return ""

    def directory(self, planned: PlannedPackages) -> str:
        """Return the directory that most of the component is in."""
        return "/usr"

    def leading(self, catalog: Catalog) -> str:
        """Return the regular expression of the package whose version is the component's."""
        if self.catalog_file:
            return self.catalog_file.of(catalog).names.leading
        return catalog.packages.leading[self.name]

    def installed(self, planned: PlannedPackages | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the newest version among the installed packages that carry the component's."""
        leading = self.leading(catalog)
        found = [package.version for name, package in probe.present_packages.items() if re.fullmatch(leading, name)]
        newest = debian_version.newest_first(found)
        return versions.upstream(newest[0]) if newest else None

    def adopted(self, planned: PlannedPackages, probe: Probe) -> PlannedPackages | None:
        """Return the component if all of its packages are installed, with their versions, and for the planned CUDA."""
        present = probe.present_packages
        if not all(_is_whole(package, present.get(package.name)) for package in planned.packages):
            return None
        packages = tuple(Package(package.name, present[package.name].version) for package in planned.packages)
        return cast("PlannedPackages", dataclasses.replace(cast(Any, planned), packages=packages))

    def change(self, row: ComponentChange, plan: Plan, probe: Probe, removal: Removal) -> ComponentChange:
        """Return the change that follows from the component's packages."""
        planned = self.planned(plan.components)
        wanted = planned.all_packages if planned else ()
        packages = package_changes(wanted, probe.present_packages, removal.packages)
        note = self.note(plan, probe, removal)
        return dataclasses.replace(row, action=self._action(row, strongest(packages)), note=note, packages=packages)

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return that a version changes which somebody else has installed, and programs of others may use."""
        changed = [p for p in change.packages if p.installed and p.planned and p.installed != p.planned]
        of_others = [package.name for package in changed if package.name not in probe.changed_packages]
        if of_others and not self.side_by_side:
            yield (
                f"{self.label} changes from {change.installed} to {change.planned}, also for programs of others: "
                f"somebody else installed {', '.join(of_others)}; gpu_stack_{self.name}=none leaves it as it is"
            )

    def _action(self, row: ComponentChange, action: str) -> str:
        """Return the action of the component: packages with other names may be another version of it."""
        if action != INSTALL or self.side_by_side or not row.installed or not row.planned:
            return action
        # Only the branch is known of the distribution's driver: 580.126.09 is neither older nor newer than 580.
        same_branch = versions.has_prefix(row.installed, row.planned)
        return (None if same_branch else direction(row.installed, row.planned)) or INSTALL


class EnvironmentPart(Part[PlannedEnvironment]):
    """A framework in a Python environment.

    training: what reports call its training; training_file: its evidence; path: the link to the environment in use.
    """

    training: ClassVar[str]
    training_file: ClassVar[str]
    path: ClassVar[str]

    def installed(self, planned: PlannedEnvironment | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the framework's version in the environment in use."""
        environment = probe.environment(self.name)
        return environment.version if environment else None

    def adopted(self, planned: PlannedEnvironment, probe: Probe) -> PlannedEnvironment | None:
        """Return the component if the environment is that of its lock."""
        found = probe.environment(self.name)
        is_whole = found is not None and found.python == planned.python and not self.other_build(planned, found)
        return planned if is_whole else None

    def change(self, row: ComponentChange, plan: Plan, probe: Probe, removal: Removal) -> ComponentChange:
        """Return the change of the environment, which is rebuilt as a whole."""
        planned, found = self.planned(plan.components), probe.environment(self.name)
        if planned is None or found is None:
            return dataclasses.replace(row, action=INSTALL)
        turn = direction(found.version.partition("+")[0], planned.version)  # such as 2.14.1+cu126
        if turn is not None:
            return dataclasses.replace(row, action=turn)
        if found.python != planned.python:
            return dataclasses.replace(row, action=INSTALL, note=f"rebuilt for Python {planned.python}")
        note = self.other_build(planned, found)
        return dataclasses.replace(row, action=INSTALL if note else KEEP, note=note)

    @abc.abstractmethod
    def releases(self, catalog: Catalog) -> Iterable[FrameworkRelease]:
        """Return the framework's releases."""

    @abc.abstractmethod
    def lockable(self, context: ResolveContext) -> Iterable[Candidate]:
        """Return the wheels that plans may need a lock for, of the Python package index, whatever the request is."""

    def entries(self, catalog: Catalog) -> Mapping[str, FrameworkRelease]:
        """Return the releases by version."""
        return {release.version: release for release in self.releases(catalog)}

    def other_build(self, planned: PlannedEnvironment, found: Environment) -> str:
        """Return why an environment of the planned version and Python is rebuilt; empty if it is not."""
        return ""


def _is_whole(planned: Package, there: ProbedPackage | None) -> bool:
    """Return whether a package is installed, and no build for another CUDA major."""
    if there is None or there.status != "installed":
        return False
    builds = [versions.cuda_suffix(version) for version in (planned.version or "", there.version)]
    return None in builds or len({versions.major(build) for build in builds if build}) == 1


def native(probe: Probe) -> Packages:
    """Return the present packages of the host's own architecture."""
    return {name: package for name, package in probe.present_packages.items() if ":" not in name}
