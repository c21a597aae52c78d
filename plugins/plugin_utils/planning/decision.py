"""Decide about one host: the plan, what differs from it on the host, what prevents it, and the parts to apply.

Everything that a run of the playbooks knows about a host before it changes anything is decided here, by the probe, the
catalog and the values of role variables. Runs on the controller.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.saved_versions import Saved
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    disk_space,
    fleet,
    lock_files,
    plan_diff,
    role_inputs,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import ExtraPackages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift, fingerprints
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.fingerprints import (
    KERNEL_PACKAGES,
    RoleValues,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options, Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.outlook import Outlook, outlook
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.plan_screen import (
    HostView,
    Style,
    plan_screen,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate

PERSISTENCE, PURGED = "nvidia_driver_persistence", "nvidia_repo_purged_packages"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided for a host; state: what a run has to do with it (fleet.py)."""

    plan: Plan
    diff: PlanDiff
    preflight: Preflight
    facts: dict[str, Any]
    damage: drift.Damage
    state: str
    outlook: Outlook

    def text(self, host: str, style: Style | None = None, then: str = "", minutes: int | None = None) -> str:
        """Return the plan beside what is installed, and what prevents it, for a terminal.

        then: the next command; minutes: how long such runs took on this controller.
        """
        view = HostView(
            self.diff,
            self.outlook,
            [f"{part}: {'; '.join(texts)}" for part, texts in self.facts["gpu_stack_drift"].items()],
            self.damage.lines(is_shown=self.plan.ok and not self.diff.changes),
            self.preflight.warnings,
            self.preflight.problems,
            minutes,
        )
        return plan_screen(self.plan, view, host, style, then) + "\n"


def decide(
    probed: dict[str, Any],
    args: dict[str, Any],
    roles: RoleValues,
    extra_locks: Mapping[str, lock_files.Extended] | None = None,
    signing: SigningCertificate | None = None,
    refused: Problem | None = None,
    other_run: str = "",
) -> Decision:
    """Decide by a probe's JSON and the task's arguments.

    roles: the values of role variables, and what roles install, with the facts of this decision. extra_locks: the lock
    files of frameworks with packages of the user's own, by framework. signing: the certificate of the user's own key
    for kernel modules. refused: why the host would refuse the package transaction. other_run: the run that changes the
    host now, for people.
    Raises CatalogError and ValueError (PlanInputError and RecordError among them).
    """
    probe = Probe.from_json(probed)
    # What is planned is printed, cached and recorded; the roles get passwords from the request itself.
    folder = args.get("locks")
    catalog = with_locks(load_catalog(), Path(folder)) if folder else load_catalog()
    saved = Saved.read(Path(args["versions"])) if args.get("versions") else None
    request = urls.without_credentials(args["request"])
    driver = probe.driver.installed
    is_checked = bool(args.get("as_it_is") and not probe.is_managed and driver and driver.version)
    request = {**request, "adopt": True} if is_checked else request
    plan = plan_for_probe(probe, request, catalog, saved, is_recorded=not is_checked)
    diff = plan_diff.plan_diff(plan, probe)
    as_found = plan if is_checked else _as_found(probe, catalog)
    facts: dict[str, Any] = {
        "gpu_stack_probe": probed,
        "gpu_stack_plan": plan.to_json(),
        "gpu_stack_plan_before": as_found.to_json() if as_found and as_found.ok else None,
        "gpu_stack_diff": diff.to_json(),
    }
    extended = extra_locks or {}
    own_locks = {name: str(each.path) for name, each in extended.items()}
    facts["gpu_stack_lock_files"] = {**_locks_of(plan, folder or ""), **own_locks}
    repairs = drift.repairs(probe.applied)
    inputs = role_inputs.of_plan(plan, diff, repairs, facts["gpu_stack_lock_files"], catalog)
    facts["gpu_stack_role_inputs"] = inputs.all
    has_driver = DriverComponent.of(plan.components) is not None
    values = roles.of(facts, KERNEL_PACKAGES) if has_driver else dict.fromkeys(KERNEL_PACKAGES, ())
    headers, compilers = (tuple(values[name]) for name in KERNEL_PACKAGES)
    extra = {name: ExtraPackages(each.digest, each.sizes) for name, each in extended.items()}
    factor = args.get("timeout_factor", 1.0)
    named = disk_space.variables(plan.components)
    written = roles.of(facts, named) if named else {}
    persistence = roles.of(facts, (PERSISTENCE,)).get(PERSISTENCE, True) if has_driver else True
    options = Options(
        args["own_kernel"],
        headers,
        compilers,
        signing,
        extra,
        factor,
        disk_space.Directories.of_variables(written, plan.components),
        persistence=boolean(persistence, strict=False),
        refused=refused,
        other_run=other_run,
    )
    is_adopted = adoption.is_asked(plan.request)
    findings = (checks.without_change if is_adopted else checks.preflight)(plan, probe, diff, options)
    facts |= {"gpu_stack_preflight": findings.to_json(), "gpu_stack_parts": {}, "gpu_stack_drift": {}}
    # The roles take a line as an object, the probe has a list.
    facts["gpu_stack_repairs"] = {**to_json(repairs), "lines": [line._asdict() for line in repairs.lines]}
    facts["gpu_stack_transaction"] = {"apt_components": [], "options": {"packages": []}}
    damage = drift.Damage.of(probe.applied)
    if plan.ok and not is_adopted:
        managed = {name: ManagedPart.from_json(entry) for name, entry in args["managed"].items()}
        known = fingerprints.of_parts(plan, managed, inputs, facts, roles, signing)
        parts = drift.parts(plan, managed, known)
        # What is no longer planned is not repaired, and no longer recorded when the plan was applied.
        damage = drift.Damage.of({name: part for name, part in probe.applied.items() if name in parts})
        facts["gpu_stack_parts"] = to_json(parts)
        facts["gpu_stack_transaction"] = transaction(plan, repairs, args, facts, roles)
        missing = _missing_to_compile(plan, probe, facts, roles)
        others = {drift.PACKAGES: saved_versions.differing(plan, probe)}
        facts["gpu_stack_drift"] = drift.drift(parts, probe.applied, diff, managed, args["converge"], missing, others)
    facts["gpu_stack_damage"] = damage.to_json()
    state = fleet.state(
        is_planned=plan.ok,
        is_ready=findings.ok,
        drift=facts["gpu_stack_drift"],
        is_pending=probe.pending is not None and not is_adopted,
    )
    expected = outlook(plan, diff, probe, args["own_kernel"], extra)
    return Decision(plan, diff, findings, facts, damage, state, expected)


def _as_found(probe: Probe, catalog: Catalog) -> Plan | None:
    """Return the plan of what others have installed on a host that we never changed; None without a driver.

    It is what the checks before the first change are asked for.
    """
    driver = probe.driver.installed
    if probe.is_managed or driver is None or not driver.version:
        return None
    return plan_for_probe(probe, {"adopt": True}, catalog, None, is_recorded=False)


def transaction(
    plan: Plan, repairs: Repairs, args: Mapping[str, Any], facts: dict[str, Any], roles: RoleValues
) -> dict[str, Any]:
    """Return the one package transaction of all roles, with the components of the archive that have its packages.

    What roles list in their vars/main.yml they install themselves where they are used alone.
    """
    installing = [name for name in facts["gpu_stack_parts"] if name not in args.get("left_out", ())]
    options = roles.transaction(facts, installing)
    purged = roles.of(facts, (PURGED,)).get(PURGED, ())
    replaced = [re.escape(name) for name in purged]
    enabled = roles.of(facts, tuple(f"{name}_apt_components" for name in installing)) if installing else {}
    of_run = {
        "replaces": [*options.get("replaces", ()), *replaced],
        "reinstall": list(repairs.packages),
        "versions": facts["gpu_stack_plan"].get("versions", []),
        "accept_no_return": args.get("accept_no_return", []),
        "undo": args.get("rollback", True),
        "state_directory": args.get("state_directory", store.DIRECTORY),
    }
    components = sorted({each for names in enabled.values() for each in names})
    return {"apt_components": components, "options": options | of_run}


def _locks_of(plan: Plan, folder: str) -> dict[str, str]:
    """Return the lock file of each planned framework: that of the folder with the user's own, or the name of ours."""
    frameworks = [(part.name, part.planned(plan.components)) for part in FRAMEWORKS]
    planned = {name: component.lock for name, component in frameworks if component}
    own = {name: lock_texts.find(lock, Path(folder)) for name, lock in planned.items() if folder}
    return planned | {name: str(path) for name, path in own.items() if path}


def _missing_to_compile(plan: Plan, probe: Probe, facts: dict[str, Any], roles: RoleValues) -> dict[str, list[str]]:
    """Return the packages to compile with that a role installs and this host does not have, by component."""
    found = {}
    for part in PARTS:
        planned = part.planned(plan.components)
        if planned is not None and part.build_variables:
            values = roles.of(facts, part.build_variables).values()
            wanted = {package for packages in values for package in packages}
            found[part.name] = [name for name in part.missing_to_compile(planned, probe) if name in wanted]
    return found
