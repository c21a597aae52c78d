"""What the checks of the preflight take, and what they return."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components, DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import Directories, ExtraPackages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate

SCHEMA = 1
LONGER = "-e gpu_stack_wait=SECONDS"  # has a run wait longer for what ends by itself


@dataclasses.dataclass(frozen=True)
class Options:
    """What the inventory decides and no probe can show.

    own_kernel: whether the host loads modules into a kernel of its own (a container borrows one). kernel_headers,
    kernel_compilers: the packages that will be installed for them; None: those of the plan. signing: the certificate of
    the user's own key for kernel modules. extra: packages of the user's own, by framework. timeout_factor: multiplies
    time limits. directories: where the roles write. persistence: whether nvidia-persistenced is to be enabled.
    refused: why the host refuses the package transaction, if it was simulated. other_run: the run that changes the host
    now, for people.
    """

    own_kernel: bool = True
    kernel_headers: tuple[str, ...] | None = None
    kernel_compilers: tuple[str, ...] | None = None
    signing: SigningCertificate | None = None
    extra: Mapping[str, ExtraPackages] = dataclasses.field(default_factory=dict)
    timeout_factor: float = 1.0
    directories: Directories = dataclasses.field(default_factory=Directories)
    persistence: bool = True
    refused: Problem | None = None
    other_run: str = ""


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The problems and warnings of a host."""

    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing on the host prevents the plan."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain data: the fact gpu_stack_preflight."""
        return {"schema": SCHEMA, "ok": self.ok, **to_json(self)}


@dataclasses.dataclass(frozen=True)
class Context:
    """What the checks of a host are made from."""

    plan: Plan
    probe: Probe
    diff: PlanDiff
    options: Options

    @property
    def components(self) -> Components:
        """The planned components."""
        return self.plan.components

    @property
    def words(self) -> Words:
        """How messages name the host's package manager."""
        return load_catalog().words(self.plan.distribution)

    def is_changed(self, name: str) -> bool:
        """Whether the plan changes a planned component."""
        return self.components.get(name) is not None and self.diff.of(name).action != KEEP

    @property
    def packages(self) -> list[str]:
        """The names of all packages that the plan installs, those to build modules with included."""
        planned = [package.name for part in self.components.packaged() for package in part.all_packages]
        others = (part.planned(self.components) for part in PARTS if part.record is not DriverComponent)
        compilers = [name for component in others if component for name in component.build_packages]
        return [*planned, *self.kernel_headers, *self.kernel_compilers, *compilers]

    @property
    def kernel_headers(self) -> tuple[str, ...]:
        """The packages with headers that will be installed."""
        driver = DriverComponent.of(self.components)
        planned = driver.kernel_headers if driver else ()
        return planned if self.options.kernel_headers is None else self.options.kernel_headers

    @property
    def kernel_compilers(self) -> tuple[str, ...]:
        """The packages with compilers and tools for modules that will be installed."""
        driver = DriverComponent.of(self.components)
        planned = (*driver.kernel_compilers, *driver.kernel_tools) if driver else ()
        return planned if self.options.kernel_compilers is None else self.options.kernel_compilers

    @property
    def builds_modules(self) -> bool:
        """Whether DKMS has to build modules for this host, because no prebuilt ones are planned."""
        driver = DriverComponent.of(self.components)
        if driver is None or not self.options.own_kernel:
            return False
        if driver.module_source != "dkms":
            return False
        return self.is_changed("driver") or self.probe.driver.loaded is None
