"""The diff: what a plan changes on a host, component by component and package by package."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import Part
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import (
    KEEP,
    UNDECIDED,
    ComponentChange,
    Removal,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class PlanDiff:
    """What a plan changes: each component, the leftovers that are removed first, and removals by component.

    others: what changes for other users of the machine, a sentence each. adopted_source: the file of others that
    defines the repository, and stays; empty if the run adds a source of its own.
    """

    components: tuple[ComponentChange, ...]
    leftovers: Cleanup
    removals: Mapping[str, Removal]
    others: tuple[str, ...] = ()
    adopted_source: str = ""

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
            "adopted_source": self.adopted_source,
            "replaces": {name: list(removal.replaces) for name, removal in self.removals.items()},
            "may_remove": {name: list(removal.may_remove) for name, removal in self.removals.items()},
        }


def plan_diff(plan: Plan, probe: Probe) -> PlanDiff:
    """Compare a plan with the probe of its host."""
    catalog = load_catalog()
    is_adopted = adoption.is_asked(plan.request)
    removed = {part.name: Removal() if is_adopted else part.removal(plan, probe, catalog) for part in PARTS}
    rows = tuple(_component(part, plan, probe, removed[part.name], catalog) for part in PARTS)
    others = [text for part, row in zip(PARTS, rows, strict=True) for text in part.effects(row, plan, probe)]
    shown = tuple(others) if plan.ok else ()
    return PlanDiff(rows, leftovers.cleanup(plan, probe), removed, shown, leftovers.adopted(plan, probe))


def _component(part: Part[Any], plan: Plan, probe: Probe, removal: Removal, catalog: Catalog) -> ComponentChange:
    planned = part.planned(plan.components)
    installed = part.installed(planned, probe, catalog)
    if planned is None:
        is_undecided = not plan.ok and plan.request[part.name] != "none"
        note = "the plan has problems" if is_undecided else "not managed, stays" if installed else ""
        row = ComponentChange(part.name, installed, None, UNDECIDED if is_undecided else KEEP, note)
        return part.unplanned(row, plan)
    return part.change(ComponentChange(part.name, installed, planned.full_version), plan, probe, removal)
