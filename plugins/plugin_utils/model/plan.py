"""The plan: what to install on a host and why, or why nothing can be installed; as JSON and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import Component, Components
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import PlanWarning, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import PlanInputError, Request

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was tried and gives a plan.

    request: the values to request, by name; host: what to change on the host, by kind: `distribution` (another
    release), `kernel` (to boot), `python` (a further interpreter), `gpus` (the PCI ids to keep; of a described
    host, one for each GPU), `locks` (to make).
    """

    text: str
    request: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    host: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)


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
        return self.name if capability in self.name.split() else f"{self.name} ({before}{capability})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to install on a host, or the problems that prevent it; the fields are in the order of the JSON.

    kept_driver: the distribution's driver that stays, so that NVIDIA's must not replace it.
    repository: url, key_url, key_fingerprint and slug of NVIDIA's repository; None where the plan does not use it.
    versions: those of packages that others of the plan depend on, where a file of a fleet's versions has them.
    """

    distribution: str
    request: Request
    gpus: tuple[Gpu, ...]
    components: Components = dataclasses.field(default_factory=Components)
    kept_driver: KeptDriver | None = None
    repository: Mapping[str, str] | None = None
    reasons: tuple[Reason, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]
    remedies: tuple[Remedy, ...] = ()
    versions: tuple[Package, ...] = ()

    @classmethod
    def from_json(cls, data: Any, kinds: Mapping[str, type[Component]]) -> Plan:
        """Read the fact gpu_stack_plan; kinds: the records of the components by name.

        Raises PlanInputError with the path of a wrong field and what was expected.
        """
        try:
            bare = {**data, "components": None} if isinstance(data, Mapping) else data
            plan = records.from_json(cls, bare, "gpu_stack_plan")
            return dataclasses.replace(plan, components=_components(data.get("components"), kinds))
        except records.RecordError as error:
            raise PlanInputError(f"{error}; run playbooks/gpu_host.yml, which makes a plan of this release") from error

    @property
    def ok(self) -> bool:
        """Whether the plan can be applied."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data: the fact gpu_stack_plan, keys in a fixed order."""
        gpu_fields = ("pci_id", "name", "compute_capability", "architecture")
        gpus = [
            {name: getattr(gpu, name) for name in (*gpu_fields, *(["left_out_by"] if gpu.left_out_by else []))}
            for gpu in self.gpus
        ]
        return {"schema": SCHEMA, "ok": self.ok, **to_json(self), "gpus": gpus}


def _components(data: Any, kinds: Mapping[str, type[Component]]) -> Components:
    """Read the components of a plan; raises records.RecordError."""
    path = "gpu_stack_plan.components"
    if not isinstance(data, Mapping):
        raise records.RecordError("missing" if data is None else f"expected an object, found {data!r:.80}", path)
    planned = {name: data.get(name) for name in kinds}
    return Components(
        {
            name: None if entry is None else records.from_json(kinds[name], entry, f"{path}.{name}")
            for name, entry in planned.items()
        }
    )
