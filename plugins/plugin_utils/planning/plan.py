"""The plan: what to install on a host and why, or why nothing can be installed; as JSON and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import COMPONENTS, LABELS, Component
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import PlanWarning, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.tables import text_table

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that was tried and plans: of the request, of the host (distribution, python, gpus), or of both."""

    text: str
    request: tuple[tuple[str, str], ...] = ()
    host: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that the catalog knows."""

    pci_id: str
    name: str
    compute_capability: str
    architecture: str
    kernel_modules: str
    last_driver_branch: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do with a host, or why nothing can be done."""

    distribution: str
    request: Request
    gpus: tuple[Gpu, ...]
    components: Mapping[str, Component | None]
    repository: Mapping[str, str] | None
    reasons: tuple[Reason, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the plan can be carried out."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, keys in a fixed order."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "distribution": self.distribution,
            "request": dataclasses.asdict(self.request),
            "gpus": [
                {name: getattr(gpu, name) for name in ("pci_id", "name", "compute_capability", "architecture")}
                for gpu in self.gpus
            ],
            "components": {name: _plain(self.components.get(name)) for name in COMPONENTS},
            "repository": dict(self.repository) if self.repository else None,
            "reasons": [_plain(reason) for reason in self.reasons],
            "problems": [_plain(problem) for problem in self.problems],
            "warnings": [_plain(warning) for warning in self.warnings],
            "remedies": [
                {"text": r.text, "request": dict(r.request), "host": {name: list(v) for name, v in r.host}}
                for r in self.remedies
            ],
        }


def _plain(value: Any) -> Any:
    if value is None:
        return None
    return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(value).items()}


_COLOURS = {"problem": "31", "warning": "33", "heading": "1", "remedy": "32"}


def plan_table(plan: Mapping[str, Any], colour: bool = False) -> str:
    """A plan's JSON as a table for people."""

    def paint(text: str, name: str) -> str:
        return f"\033[{_COLOURS[name]}m{text}\033[0m" if colour else text

    lines = [paint(f"{plan['distribution']}: {_gpu_summary(plan['gpus'])}", "heading")]
    because = {reason["component"]: reason["because"] for reason in plan["reasons"]}
    rows = [("COMPONENT", "VERSION", "FROM", "WHY")]
    for name in COMPONENTS:
        component = plan["components"][name]
        rows.append((LABELS[name], _choice(component), _origin(name, component), because.get(name, "")))
    lines += text_table(rows)
    for warning in plan["warnings"]:
        lines.append(paint(f"warning  {warning['code']}: {warning['message']}", "warning"))
    for problem in plan["problems"]:
        lines.append(paint(f"problem  {problem['code']}: {problem['message']}", "problem"))
        if not plan.get("remedies"):
            lines.append(f"         remedy: {problem['remedy']}")
    for remedy in plan.get("remedies", []):
        lines.append("         remedy: " + paint(remedy["text"], "remedy"))
    if not plan["ok"]:
        lines.append(f"No plan: {len(plan['problems'])} problem(s). Nothing has been changed.")
    return "\n".join(lines)


def _gpu_summary(gpus: Iterable[Mapping[str, str]]) -> str:
    counts: dict[str, int] = {}
    for gpu in gpus:
        label = f"{gpu['name']} ({gpu['compute_capability']})"
        counts[label] = counts.get(label, 0) + 1
    return ", ".join(f"{count} x {label}" for label, count in counts.items()) or "no GPU"


def _choice(component: Mapping[str, Any] | None) -> str:
    return "-" if component is None else component.get("release") or component["version"]


def _origin(name: str, component: Mapping[str, Any] | None) -> str:
    if component is None:
        return "-"
    if name == "driver":
        return f"{component['source']}, {component['kernel_modules']} modules"
    if name == "tensorflow":
        return f"Python {component['python']}, CUDA of the {component['cuda_libraries']}"
    if name == "pytorch":
        return f"Python {component['python']}, CUDA {component['cuda']}"
    return str(component.get("source", "nvidia"))
