# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Probe a host and decide in one task: the plan, the diff, the preflight's findings and the drift.

The module of the same name has the documentation. All of it is one task, because one Ansible task alone takes about as
long as this computation. The plan is printed here, too: a task for that would fork another process for each host.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.module_utils.host import urls
from ansible_collections.gpuhost.stack.plugins.plugin_utils import become
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError, load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan, plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import drift, plan_diff, preflight, waivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_probe

PROBE = "gpuhost.stack.gpu_probe"
PREFIX = "gpu_stack_"
KERNEL_HEADERS = "nvidia_driver_kernel_headers"  # a host that borrows its kernel sets this role variable to nothing
ARGUMENTS = {
    "request": {"type": "dict", "required": True},
    "variables": {"type": "list", "elements": "str", "required": True},
    "internal_variables": {"type": "list", "elements": "str", "required": True},
    "repositories": {"type": "dict", "required": True},
    "own_kernel": {"type": "bool", "default": True},
    "managed": {"type": "dict", "required": True},
    "transitions": {"type": "list", "elements": "str", "default": []},
    "converge": {"type": "str", "default": "drift"},
    "waivers": {"type": "raw", "default": []},
    "environment": {"type": "raw", "default": {}},
    "unknown": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
}

STEP_TAGS = ("preflight", "verify", "smoke_train", "record", "report")
SPECIAL_TAGS = ("all", "always", "never", "tagged", "untagged")

RoleVariables = Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]]

# Ansible imports this file before it forks a process for each host, so the catalog is read once for all of them. Errors
# are ignored here: each host reads the catalog again and reports them.
with contextlib.suppress(CatalogError, ImportError):
    load_catalog()


def unknown_variables(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the gpu_stack_* variables that nothing reads: misspellings, reported before the host is probed."""
    return sorted({name for name in names if name.startswith(PREFIX)} - set(known))


def unknown_tags(tags: Iterable[str], known: Iterable[str], playbooks: Iterable[str]) -> list[str]:
    """Return the tags that nothing has, with which a run would do nothing, or what it was to skip.

    playbooks: as they were called. Those of a user may have tags of their own, so that any tag is accepted.
    """
    own = drift.PROJECT / "playbooks"
    if not all(name.startswith("gpuhost.stack.") or Path(name).resolve().parent == own for name in playbooks):
        return []
    return sorted(set(tags) - {*known, *SPECIAL_TAGS})


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided for a host."""

    plan: Plan
    diff: PlanDiff
    preflight: Preflight
    facts: dict[str, Any]

    def text(self, host: str) -> str:
        """Return the plan, the diff and the preflight's warnings for a terminal."""
        warnings = [f"warning  {warning.code}: {warning.message}" for warning in self.preflight.warnings]
        return "\n".join([f"{host}, {plan_table(self.plan)}", "", plan_diff.diff_table(self.diff), *warnings, ""])


def decide(probed: dict[str, Any], args: dict[str, Any], role_variables: RoleVariables) -> Decision:
    """Decide by a probe's JSON and the task's arguments.

    role_variables(facts, prefixes): the values of the role variables with these prefixes, templated with these facts.
    Raises CatalogError and ValueError (PlanInputError and RecordError among them).
    """
    probe = Probe.from_json(probed)
    # What is planned is printed, cached and recorded; the roles get passwords from the request itself.
    plan = plan_for_probe(probe, urls.without_credentials(args["request"]))
    diff = plan_diff.plan_diff(plan, probe)
    facts = {"gpu_stack_probe": probed, "gpu_stack_plan": plan.to_json(), "gpu_stack_diff": diff.to_json()}
    headers = tuple(role_variables(facts, (KERNEL_HEADERS,))[KERNEL_HEADERS]) if plan.components.driver else ()
    options = preflight.Options(own_kernel=args["own_kernel"], kernel_headers=headers)
    findings = preflight.preflight(plan, probe, diff, options)
    facts |= {"gpu_stack_preflight": findings.to_json(), "gpu_stack_parts": {}, "gpu_stack_drift": {}}
    facts["gpu_stack_repairs"] = to_json(drift.repairs(probe.applied))
    if plan.ok:
        managed = {name: ManagedPart.from_json(entry) for name, entry in args["managed"].items()}
        parts = drift.parts(plan, managed, _fingerprints(plan, managed, args["transitions"], facts, role_variables))
        facts["gpu_stack_parts"] = to_json(parts)
        facts["gpu_stack_drift"] = drift.drift(parts, probe.applied, diff, managed, args["converge"])
    return Decision(plan, diff, findings, facts)


def _fingerprints(
    plan: Plan, managed: drift.Managed, transitions: list[str], facts: dict[str, Any], role_variables: RoleVariables
) -> dict[str, str]:
    """Return the fingerprint of each role that the plan needs, without variables that affect the transition only."""
    fingerprints = {}
    for role in drift.planned(plan, managed):
        if role not in (drift.PACKAGES, drift.PLAN):
            variables = role_variables(facts, (f"{role}_",))
            desired = {name: value for name, value in variables.items() if name not in transitions}
            fingerprints[role] = drift.fingerprint(desired, [role, *managed[role].includes])
    return fingerprints


class ActionModule(ActionBase):
    """The action `gpuhost.stack.stack_plan`."""

    _supports_check_mode = True

    def _refuse_undefined(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        """Fail on a value with a misspelt variable in it, which the default of request.yml would replace silently."""
        for name in names:
            if name in variables:
                try:
                    self._templar.template(variables[name])
                except AnsibleError as error:
                    raise AnsibleActionFail(
                        f"{name}: {error}. Correct the inventory or the -e option; nothing was changed."
                    ) from error

    def _as_user(self, command: str) -> str:
        """Run a command on the host as the connecting user, and return its output."""
        return str(self._low_level_execute_command(command, sudoable=False)["stdout"])

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Probe the host, print the plan and return the facts; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, args = self.validate_argument_spec(ARGUMENTS)
        unknown = unknown_variables(variables, [*args["variables"], *args["internal_variables"]])
        if unknown:
            raise AnsibleActionFail(
                f"{', '.join(unknown)}: no such variable. Known are {', '.join(args['variables'])}. "
                "Correct the inventory or the -e option; nothing was changed."
            )
        called = context.CLIARGS
        known_tags = [*STEP_TAGS, *args["managed"]]
        unknown = unknown_tags([*called["tags"], *called["skip_tags"]], known_tags, called["args"])
        if unknown:
            raise AnsibleActionFail(
                f"{', '.join(unknown)}: no such tag. Known are {', '.join(known_tags)}. Nothing was changed."
            )
        self._refuse_undefined(variables, args["variables"])
        if not isinstance(args["environment"], Mapping):  # Ansible warns of it, and goes on without
            raise AnsibleActionFail(
                f"gpu_stack_environment is {args['environment']!r}, expected a dictionary such as "
                "{http_proxy: 'http://proxy.example.org:3128'}. Correct the inventory or the -e option; nothing was "
                "changed."
            )
        try:
            accepted = waivers.read(args["waivers"], date.today())
        except waivers.WaiverError as error:
            raise AnsibleActionFail(f"{error}. Correct the inventory or the -e option; nothing was changed.") from error
        result["warnings"] = list(accepted.warnings)
        try:
            names = probe_options(load_catalog())
            contents = drift.compares_contents(args["converge"])
        except (CatalogError, ValueError) as error:
            raise AnsibleActionFail(f"cannot plan: {error}") from error
        options = {
            **names,
            "repositories": args["repositories"],
            "kernel_header_offers": args["own_kernel"],
            "contents": contents,
            "managed": {name: ManagedPart.from_json(entry).watch for name, entry in args["managed"].items()},
        }
        if refused := become.sudo_refusal(self._connection.become, self._connection._shell, self._as_user):
            raise AnsibleActionFail(refused)
        probed = self._execute_module(module_name=PROBE, module_args=options, task_vars=variables)
        result.update(probed)
        if "probe" not in probed:
            return result

        def role_variables(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
            templar = self._templar.copy_with_new_env(available_variables={**variables, **facts})
            names = sorted(name for name in variables if name.startswith(prefixes))
            return {name: templar.template(variables[name]) for name in names}

        try:
            decision = decide(probed["probe"], args, role_variables)
        except (CatalogError, ValueError) as error:
            raise AnsibleActionFail(f"cannot plan: {error}") from error
        text = decision.text(variables["inventory_hostname"])
        Display().display(text, stderr=terminal.belongs_on_stderr(constants.DEFAULT_STDOUT_CALLBACK))
        return {**result, "ansible_facts": decision.facts, "changed": False}
