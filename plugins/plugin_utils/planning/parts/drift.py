"""Drift: compare the plan, role variables and role files with what the last complete run recorded on the host.

A part is a role, or `packages` (one transaction for all roles), or `plan` (its record on the host). A run applies the
parts with drift and no others. The host's record is written by module_utils/state/applied.py, and the probe compares it
with the host. Everything here is pure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart, Repairs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

ALWAYS = "always"
DEEP = "deep"
CONVERGE = ("drift", ALWAYS, DEEP)
NO_RECORD = "no complete run is recorded for it"
COMPONENT = "component"  # in an entry of gpu_stack_managed: a part that follows from the registry
PACKAGES, PLAN = "packages", "plan"  # the parts that are not roles


@dataclasses.dataclass(frozen=True)
class ManagedPart:
    """A part as gpu_stack_managed describes it.

    components: those that need it, `repository` among them; includes: other roles that it runs. watch: what is watched
    on the host for changes, by kind (files, services, ...). revision: of what its tasks do on a host.
    """

    components: tuple[str, ...]
    includes: tuple[str, ...]
    watch: Mapping[str, Any]
    revision: int = 1

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ManagedPart:
        """Read an entry of gpu_stack_managed: `for`, `with` and what is watched."""
        others = ("for", "with", "revision", "secrets", COMPONENT)
        watch = {key: value for key, value in entry.items() if key not in others and value}
        return cls(tuple(entry["for"]), tuple(entry.get("with", ())), watch, entry.get("revision", 1))


Managed = Mapping[str, ManagedPart]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a plan: the fingerprint of what defines it, and what is watched of it on the host."""

    fingerprint: str
    watch: Mapping[str, Any]


# Parts ----------------------------------------------------------------------------------------------------------


def planned(plan: Plan, managed: Managed) -> list[str]:
    """Return the names of the parts of which a component is planned, in their order."""
    present = {part.name for part in PARTS if part.planned(plan.components)}
    if plan.repository:
        present.add("repository")
    return [name for name, part in managed.items() if present.intersection(part.components)]


def parts(plan: Plan, managed: Managed, fingerprints: Mapping[str, str]) -> dict[str, Part]:
    """Return the parts of a plan by name.

    fingerprints: by part (fingerprints.py); that of `plan` is made here, of the plan itself. Raises KeyError for a part
    without a fingerprint.
    """
    names = planned(plan, managed)
    known = dict(fingerprints)
    if PLAN in names:
        known[PLAN] = _plan_fingerprint(plan)
    missing = sorted(set(names) - set(known))
    if missing:
        raise KeyError(f"no fingerprint of {', '.join(missing)}")
    found = {name: Part(known[name], managed[name].watch) for name in names}
    if PACKAGES in found:
        found[PACKAGES] = Part(known[PACKAGES], {**managed[PACKAGES].watch, **_packages(plan)})
    return found


def _plan_fingerprint(plan: Plan) -> str:
    """Return a hash of a plan without what each run says anew, and the packages to build modules with.

    Its reasons name newer releases, its warnings what could not be read now, such as a repository. Those packages
    follow the host's kernels: a kernel that came with its headers is no drift, and `drift` gets those that are not
    installed as an argument.
    """
    found = {part: planned for part in PACKAGED if (planned := part.planned(plan.components))}
    bare: dict[str, Any] = {
        part.name: dataclasses.replace(planned, **dict.fromkeys(planned.follows_host, ()))
        for part, planned in found.items()
    }
    plan = dataclasses.replace(plan, components=plan.components.but(**bare))
    data = {key: value for key, value in plan.to_json().items() if key not in ("reasons", "warnings")}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _packages(plan: Plan) -> dict[str, list[str]]:
    """Return the names of the plan's packages, and of those that are planned in one exact version."""
    planned = [package for part in plan.components.packaged() for package in part.all_packages]
    exact = {package.name for package in planned if package.version}
    return {"packages": sorted({package.name for package in planned}), "exact_packages": sorted(exact)}


# Drift ----------------------------------------------------------------------------------------------------------


def drift(
    desired: Mapping[str, Part],
    applied: Mapping[str, AppliedPart],
    diff: PlanDiff,
    managed: Managed,
    converge: str,
    missing: Mapping[str, Sequence[str]] | None = None,
    others: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[str]]:
    """Return the reasons to apply each part that has some, in the order of the parts.

    desired: the parts of the plan; applied: the probe's; converge: gpu_stack_converge, with `always` every part is
    applied; missing: packages to compile with that are not installed, by component; others: further reasons by part.
    """
    changes = _changes(diff)
    for component, packages in (missing or {}).items():
        changes.setdefault(component, []).extend(f"{package} is not installed" for package in packages)
    reasons = {}
    for name, part in desired.items():
        planned_changes = [text for component in managed[name].components for text in changes.get(component, [])]
        reasons[name] = [*_since_applied(part, applied.get(name)), *planned_changes, *(others or {}).get(name, ())]
        if converge == ALWAYS:
            reasons[name].append("gpu_stack_converge is always")
    return {name: texts for name, texts in reasons.items() if texts}


def compares_contents(converge: str) -> bool:
    """Return whether a probe compares the content of files; raises ValueError if `converge` is none of CONVERGE."""
    if converge not in CONVERGE:
        raise ValueError(f"gpu_stack_converge is {converge!r}, expected one of {', '.join(CONVERGE)}")
    return converge != "drift"


def repairs(applied: Mapping[str, AppliedPart]) -> Repairs:
    """Return what the parts together have to repair."""
    return Repairs.merged(part.repairs for part in applied.values())


@dataclasses.dataclass(frozen=True)
class Damage:
    """What is damaged on a host, a message by name: what a run has to repair, and what is accepted as it is."""

    left: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accepted: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """What a person has to know about the damage that is left; empty without any."""
        if not self.left:
            return ""
        lines = [
            "The host is damaged. It differs from what the last complete run left:",
            *(f"  {text}" for text in self.left.values()),
            f"`{playbook_call.call('gpu_host')}` repairs this. To accept one of them as it is, add its name to "
            f"gpu_stack_accept_damage: {'; '.join(self.left)}",
        ]
        return "\n".join(lines)

    def lines(self, is_shown: bool) -> list[str]:
        """Return what the plan says of damage beside the parts to apply; is_shown: whether it names them and why."""
        left = [] if is_shown else [f"Damaged, and repaired by the run: {text}" for text in self.left.values()]
        return [*left, *(f"Accepted damage: {text}" for text in self.accepted.values())]

    def to_json(self) -> dict[str, Any]:
        """Return the fact gpu_stack_damage."""
        return {"left": dict(self.left), "accepted": dict(self.accepted), "text": self.text}

    @classmethod
    def of(cls, applied: Mapping[str, AppliedPart]) -> Damage:
        """Return the damage of all recorded parts."""
        found = applied.values()
        left = {name: text for part in found for name, text in part.damage.items()}
        return cls(left, {name: text for part in found for name, text in part.accepted.items()})

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return a warning for each accepted name that is no damage of the host."""
        known = f"known are {'; '.join(self.left)}" if self.left else "nothing else is damaged"
        return [
            f"gpu_stack_accept_damage has {name!r}, which is no damage of this host; {known}"
            for name in names
            if name not in self.accepted
        ]


def _since_applied(part: Part, applied: AppliedPart | None) -> list[str]:
    if applied is None:
        return [NO_RECORD]
    if applied.fingerprint is None:
        return [applied.why or NO_RECORD, *applied.changed]
    differs = applied.fingerprint != part.fingerprint
    why = [applied.why, "its variables or files have changed since the last run" if differs else ""]
    return [*filter(None, why), *applied.changed]


def _changes(diff: PlanDiff) -> dict[str, list[str]]:
    """Return the planned changes by component; the removal of leftovers concerns all that they conflict with."""
    changes = {
        row.component: [f"{row.component}: {row.action} {row.planned or ''}".strip()]
        for row in diff.components
        if row.action != KEEP
    }
    for sentence in diff.leftovers.does:
        for component in ("repository", "driver", "cuda"):
            changes.setdefault(component, []).append(sentence)
    return changes
