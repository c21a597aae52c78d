# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Probes a host and decides, in one step: the plan, what it does to the host, what stands in its way, what is entered.

Controller side; see the module's documentation. One step, since each task of a playbook costs as much as all of this.
So the plan is shown from here, too, and not by a task, which would fork a process for each host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError, load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import drift, plan_diff, preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import PlanInputError
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
}

# Ansible imports this file before it forks a process for each host: what is read here is there in all of them.
# A catalog with mistakes is read again for each host, which tells of them.
with contextlib.suppress(CatalogError):
    load_catalog()


def strangers(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The gpu_stack_* variables that nothing reads: misspellings, told before anything is looked at."""
    return sorted({name for name in names if name.startswith(PREFIX)} - set(known))


def locks() -> list[str]:
    """The names of all lock files that the roles of the framework environments have."""
    return sorted(path.name for path in (drift.PROJECT / "roles").glob("*_env/files/*.txt"))


def decide(probe: dict[str, Any], args: dict[str, Any], role_variables: Callable[..., Any]) -> dict[str, Any]:
    """The facts that the plays go by, from a probe.

    role_variables(facts, names or prefixes): the values of the role variables that these facts lead to.
    Raises PlanInputError, CatalogError, ValueError.
    """
    plan = plan_for_probe(probe, args["request"]).to_json()
    diff = plan_diff.plan_diff(plan, probe)
    facts: dict[str, Any] = {"gpu_stack_probe": probe, "gpu_stack_plan": plan, "gpu_stack_diff": diff}
    driver = (plan["components"] or {}).get("driver")
    headers = tuple(role_variables(facts, (KERNEL_HEADERS,))[KERNEL_HEADERS]) if driver else ()
    options = preflight.Options(own_kernel=args["own_kernel"], kernel_headers=headers, locks=tuple(locks()))
    facts["gpu_stack_preflight"] = preflight.preflight(plan, probe, options)
    facts["gpu_stack_parts"], facts["gpu_stack_drift"] = {}, {}
    if plan["ok"]:
        fingerprints = {}
        for part in drift.planned(plan, args["managed"]):
            if part not in (drift.PACKAGES, drift.PLAN):
                values = role_variables(facts, (f"{part}_",))
                aims = {name: value for name, value in values.items() if name not in args["transitions"]}
                fingerprints[part] = drift.fingerprint(aims, [part, *args["managed"][part].get("with", [])])
        parts = drift.parts(plan, args["managed"], fingerprints)
        facts["gpu_stack_parts"] = parts
        facts["gpu_stack_drift"] = drift.drift(parts, probe["applied"], diff, args["managed"], args["converge"])
    return facts


def shown(host: str, facts: dict[str, Any]) -> str:
    """The plan, what it does to the host, and what to keep in mind, for a terminal."""
    warnings = [f"{warning['code']}: {warning['message']}" for warning in facts["gpu_stack_preflight"]["warnings"]]
    tables = [f"{host}, {plan_table(facts['gpu_stack_plan'])}", "", plan_diff.diff_table(facts["gpu_stack_diff"])]
    return "\n".join([*tables, *warnings, ""])


class ActionModule(ActionBase):
    """The action."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ansible's entry point."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _, args = self.validate_argument_spec(ARGUMENTS)
        unknown = strangers(variables, [*args["variables"], *args["internal_variables"]])
        if unknown:
            raise AnsibleActionFail(
                f"{', '.join(unknown)}: no such variable. Known are {', '.join(args['variables'])}. "
                "Correct the inventory or the -e option; nothing was changed."
            )
        try:
            names = probe_options(load_catalog())
        except CatalogError as error:
            raise AnsibleActionFail(f"the plan could not be made: {error}") from error
        options = {**names, "repositories": args["repositories"], "kernel_header_offers": args["own_kernel"]}
        probed = self._execute_module(module_name=PROBE, module_args=options, task_vars=variables)
        result.update(probed)
        if "probe" not in probed:
            return result

        def role_variables(facts: dict[str, Any], beginnings: tuple[str, ...]) -> dict[str, Any]:
            templar = self._templar.copy_with_new_env(available_variables={**variables, **facts})
            names = sorted(name for name in variables if name.startswith(beginnings))
            return {name: templar.template(variables[name]) for name in names}

        try:
            facts = decide(probed["probe"], args, role_variables)
        except (PlanInputError, CatalogError, ValueError) as error:
            raise AnsibleActionFail(f"the plan could not be made: {error}") from error
        Display().display(shown(variables["inventory_hostname"], facts))
        return {**result, "ansible_facts": facts, "changed": False}
