"""Plans from the parts of their JSON that matter to a test."""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import KINDS, LibraryComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan

# What else than nothing is taken where a test does not say it.
_USUAL = {
    "cuda": {"home": "/usr/local/cuda-13.2"},
    "tensorflow": {"cuda_libraries": "wheel"},
    "pytorch": {"cuda": "13.2"},
}


def whole(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a record with nothing, as a text or a list, in each field that it needs and lacks."""
    needed = [field for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    empty = {field.name: "" if field.type == "str" else [] for field in needed}
    return {**empty, **{name: value for name, value in data.items() if value is not None}}


def component(name: str, data: dict[str, Any] | None) -> Any:
    """Return the JSON of a component; None for one that is left out."""
    return None if data is None else whole(KINDS.get(name, LibraryComponent), {**_USUAL.get(name, {}), **data})


def plan_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a plan that can be read."""
    components = {name: component(name, entry) for name, entry in (data.get("components") or {}).items()}
    gpus = [whole(Gpu, gpu) for gpu in data.get("gpus") or ()]
    warnings = [whole(PlanWarning, warning) for warning in data.get("warnings") or ()]
    return {**data, "components": components, "gpus": gpus, "warnings": warnings}


def plan(data: dict[str, Any]) -> Plan:
    """Return a plan as the checks of a host have it."""
    return records.from_json(Plan, plan_json(data), "plan").with_kept_driver()
