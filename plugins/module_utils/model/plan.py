# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The plan: what to install on a host and why, or why nothing can be installed. Used on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components, DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request

SCHEMA = 1
LEFT_ALONE = "gpu-left-alone"  # the code of the warning that names a GPU which is not this stack's


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was tried and gives a plan.

    request: the values to request, by name; host: what to change on the host, by kind: `distribution` (another
    release), `kernel` (to boot), `python` (a further interpreter), `gpus` (the PCI ids to keep; of a described
    host, one for each GPU), `locks` (to make).
    """

    text: str
    request: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    host: Mapping[str, Tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class KeptDriver:
    """An installed driver that the plan leaves as it is.

    package: its metapackage, empty without one; source: `nvidia`, `distro`, or `runfile` for NVIDIA's .run installer;
    prebuilt: the distribution built its modules. of_others: it works, and others installed it.
    """

    version: str
    branch: str
    kernel_modules: str
    package: str
    source: str = "distro"
    prebuilt: bool = True
    of_others: bool = False

    @property
    def origin(self) -> str:
        """What it was installed with, for messages."""
        return self.package or "NVIDIA's .run installer"

    @property
    def as_component(self) -> DriverComponent:
        """The driver as the checks of a host take it; it has no packages, since none is managed."""
        flavour, source = self.kernel_modules, "prebuilt" if self.prebuilt else "dkms"
        return DriverComponent(self.version, self.branch, flavour, self.source, (), (), (), module_source=source)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that the catalog knows.

    For the resolver alone, and not in the JSON of a plan: kernel_modules (`open`, `proprietary` or `either`) and
    last_driver_branch. left_out_by: the framework that does not use the GPU; only then is it in the JSON.
    """

    pci_id: str
    name: str
    compute_capability: str
    architecture: str
    kernel_modules: str = ""
    last_driver_branch: str = ""
    left_out_by: str = ""

    def label(self, before: str = "") -> str:
        """Return the name with the compute capability in parentheses, unless it is the name.

        before: what precedes the number there.
        """
        capability = self.compute_capability
        return self.name if capability in self.name.split() else "%s (%s%s)" % (self.name, before, capability)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to install on a host, or the problems that prevent it; the fields are in the order of the JSON.

    kept_driver: the distribution's driver that stays, so that NVIDIA's must not replace it.
    repository: url, key_url, key_fingerprint and slug of NVIDIA's repository; None where the plan does not use it.
    versions: those of packages that others of the plan depend on, where a file of a fleet's versions has them.
    """

    distribution: str = ""
    request: Request = dataclasses.field(default_factory=Request)
    gpus: Tuple[Gpu, ...] = ()
    components: Components = dataclasses.field(default_factory=Components)
    kept_driver: Optional[KeptDriver] = None
    repository: Optional[Mapping[str, str]] = None
    reasons: Tuple[Reason, ...] = ()
    problems: Tuple[Problem, ...] = ()
    warnings: Tuple[PlanWarning, ...] = ()
    remedies: Tuple[Remedy, ...] = ()
    versions: Tuple[Package, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan can be applied."""
        return not self.problems

    @property
    def is_adopted(self) -> bool:
        """Whether it is of what others installed, of which gpuhost manages nothing."""
        return self.request.get("adopt") == "true"

    def with_kept_driver(self) -> Plan:
        """Return the plan with a driver that stays among the components, for the checks of a host."""
        if self.kept_driver is None:
            return self
        return dataclasses.replace(self, components=self.components.but(driver=self.kept_driver.as_component))

    def expected(self, gpus: int, found: int, alone: int) -> int:
        """Return how many GPUs are to be there: at least one, less those that were given away since the plan.

        gpus: how many were planned; found: how many are on the bus, and alone: how many of these are left alone. A plan
        names those that were left alone then; one of an earlier release has them if the bus has more than it counts.
        """
        before = max(sum(warning.code == LEFT_ALONE for warning in self.warnings), found - gpus)
        return max(min(gpus, 1), gpus - max(0, alone - before))

    def to_json(self) -> Dict[str, Any]:
        """Return the plan as plain data: the fact gpu_stack_plan, keys in a fixed order."""
        gpu_fields = ("pci_id", "name", "compute_capability", "architecture")
        gpus = [
            {name: getattr(gpu, name) for name in (*gpu_fields, *(["left_out_by"] if gpu.left_out_by else []))}
            for gpu in self.gpus
        ]
        return {"schema": SCHEMA, "ok": self.ok, **to_json(self), "gpus": gpus}
