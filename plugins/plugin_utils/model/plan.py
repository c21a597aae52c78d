"""The plan: what to install on a host and why, or why nothing can be installed; as JSON and as a table."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    COMPONENTS,
    LABELS,
    Component,
    Components,
    CudaComponent,
    DriverComponent,
    LibraryComponent,
    PytorchComponent,
    TensorflowComponent,
    full_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import PlanWarning, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.tables import text_table

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was tried and gives a plan.

    request: (name, value) pairs to request; host: what to change on the host, (`distribution`, `python`, `gpus` or
    `locks`, values) pairs: another release, a further interpreter, the PCI ids to keep, the locks to make.
    """

    text: str
    request: tuple[tuple[str, str], ...] = ()
    host: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class KeptDriver:
    """An installed driver that the plan leaves as it is; package: its metapackage."""

    version: str
    branch: str
    kernel_modules: str
    package: str


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that the catalog knows; kernel_modules: `open`, `proprietary` or `either`."""

    pci_id: str
    name: str
    compute_capability: str
    architecture: str
    kernel_modules: str
    last_driver_branch: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to install on a host, or the problems that prevent it.

    repository: url, key_url, key_fingerprint and slug of NVIDIA's repository; None where the plan does not use it.
    kept_driver: the distribution's driver that stays, so that NVIDIA's must not replace it.
    """

    distribution: str
    request: Request
    gpus: tuple[Gpu, ...]
    components: Components
    repository: Mapping[str, str] | None
    reasons: tuple[Reason, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]
    remedies: tuple[Remedy, ...] = ()
    kept_driver: KeptDriver | None = None

    @property
    def ok(self) -> bool:
        """Whether the plan can be applied."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data: the fact gpu_stack_plan, keys in a fixed order."""
        gpu_fields = ("pci_id", "name", "compute_capability", "architecture")
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "distribution": self.distribution,
            "request": records.to_json(self.request),
            "gpus": [{name: getattr(gpu, name) for name in gpu_fields} for gpu in self.gpus],
            "components": records.to_json(self.components),
            "kept_driver": records.to_json(self.kept_driver),
            "repository": dict(self.repository) if self.repository else None,
            "reasons": records.to_json(self.reasons),
            "problems": records.to_json(self.problems),
            "warnings": records.to_json(self.warnings),
            "remedies": [
                {"text": r.text, "request": dict(r.request), "host": {name: list(v) for name, v in r.host}}
                for r in self.remedies
            ],
        }


# The table ------------------------------------------------------------------------------------------------------

_COLOURS = {"problem": "31", "warning": "33", "heading": "1", "remedy": "32"}


def plan_table(
    plan: Plan,
    colour: bool = False,
    changes: Mapping[str, Sequence[str]] | None = None,
    lines: Iterable[str] = (),
    refused: Sequence[Problem] = (),
) -> str:
    """Return a plan for a terminal: a line for each component, then warnings, problems and remedies.

    changes: the cells BEFORE, AFTER and ACTION of each component on a host; lines: what follows the table; refused: the
    problems of the host. A plan with problems has no table, and one that the host refuses has no actions.
    """

    def paint(text: str, name: str) -> str:
        return f"\033[{_COLOURS[name]}m{text}\033[0m" if colour else text

    shown = [paint(f"{plan.distribution}: {_gpu_summary(plan.gpus)}", "heading")]
    if plan.ok:
        shown += text_table(_rows(plan, changes, with_actions=not refused))
        shown += () if refused else lines
    for warning in plan.warnings:
        shown.append(paint(f"warning  {warning.code}: {warning.message}", "warning"))
    for problem in (*plan.problems, *refused):
        shown.append(paint(f"problem  {problem.code}: {problem.message}", "problem"))
        if not plan.remedies or problem in refused:
            shown.append(f"         remedy: {problem.remedy}")
    for remedy in plan.remedies:
        shown.append("         remedy: " + paint(remedy.text, "remedy"))
    if not plan.ok:
        shown.append(f"No plan: {len(plan.problems) + len(refused)} problem(s). Nothing was changed.")
    elif refused:
        shown.append(f"Refused: {len(refused)} problem(s) on this host. Nothing is changed until they are solved.")
    return "\n".join(shown)


def _rows(plan: Plan, changes: Mapping[str, Sequence[str]] | None, with_actions: bool) -> list[tuple[str, ...]]:
    because = {reason.component: reason.because for reason in plan.reasons}
    versions = ("VERSION",) if changes is None else ("BEFORE", "AFTER", "ACTION")[: 2 + with_actions]
    rows: list[tuple[str, ...]] = [("COMPONENT", *versions, "FROM", "WHY")]
    for name in COMPONENTS:
        component = plan.components.get(name)
        cells: Sequence[str] = (full_version(component) if component else "-",)
        if changes is not None:
            cells = changes.get(name, ("-", "-", "-"))[: len(versions)]
        rows.append((LABELS[name], *cells, _origin(component), because.get(name, "")))
    return rows


def _gpu_summary(gpus: tuple[Gpu, ...]) -> str:
    counts = Counter(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
    return ", ".join(f"{count} x {label}" for label, count in counts.items()) or "no GPU"


def _origin(component: Component | None) -> str:
    match component:
        case None:
            return "-"
        case DriverComponent():
            built = "prebuilt " if component.module_source == "prebuilt" else ""
            return f"{component.source}, {built}{component.kernel_modules} modules"
        case CudaComponent():
            return component.source
        case LibraryComponent():
            return "nvidia"
        case TensorflowComponent():
            return f"Python {component.python}, CUDA of the {component.cuda_libraries}"
        case PytorchComponent():
            return f"Python {component.python}, CUDA {component.cuda}"
