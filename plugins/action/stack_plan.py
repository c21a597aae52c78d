# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Probe a host and decide in one task: the plan, the diff, the preflight's findings and the drift.

The module of the same name has the documentation. All of it is one task, because one Ansible task alone takes about as
long as this computation. The plan is printed here, too: a task for that would fork another process for each host.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.utils.color import ANSIBLE_COLOR
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import become, controller_run, interpreter
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.checked_variables import VariablesAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.early_connection import EarlyConnectionAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.role_values import RoleValues
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import SecretEnvironmentAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.waiting import Waiting
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import paths, temporary_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal, result_for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    disk_space,
    lock_files,
    signing_key,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables as variables_
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.decision import Decision, decide
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.fingerprints import (
    SIGNING_CERTIFICATE,
    SIGNING_KEY,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks, package_sources, packages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.plan_screen import Style
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import durations, live, terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers

PROBE = "gpuhost.stack.gpu_probe"
TRANSACTION = "gpuhost.stack.package_transaction"
UNSETTLED = (packages.TRANSACTION_REFUSED.code, package_sources.REPOSITORY_UNREADABLE.code)
REPOSITORY_URL = "nvidia_repo_url"
ARGUMENTS = {
    "request": {"type": "dict", "required": True},
    "variables": {"type": "list", "elements": "str", "required": True},
    "internal_variables": {"type": "list", "elements": "str", "required": True},
    "repositories": {"type": "dict", "required": True},
    "own_kernel": {"type": "bool", "default": True},
    "managed": {"type": "dict", "required": True},
    "accept_damage": {"type": "list", "elements": "str", "default": []},
    "accept_no_return": {"type": "list", "elements": "str", "default": []},
    "rollback": {"type": "bool", "default": True},
    "left_out": {"type": "list", "elements": "str", "default": []},
    "state_directory": {"type": "str", "default": "/var/lib/gpuhost"},
    "converge": {"type": "str", "default": "drift"},
    "locks": {"type": "str", "default": ""},
    "extra": {"type": "dict", "default": {}},
    "versions": {"type": "str", "default": ""},
    "as_it_is": {"type": "bool", "default": False},
    "timeout_factor": {"type": "float", "default": 1},
    "wait": {"type": "int", "default": 0},
    "waivers": {"type": "raw", "default": []},
}

STEP_TAGS = ("preflight", "verify", "smoke_train", "record", "report")
SPECIAL_TAGS = ("all", "always", "never", "tagged", "untagged")


# Ansible imports this file before it forks a process for each host, so catalog and code are read once for all of them.
# Errors are ignored here: each host reads them again and reports them.
with contextlib.suppress(CatalogError, ImportError):
    load_catalog()
# Catalog and modules stay until the end: no garbage collection, here or in a host's process, needs to visit them.
gc.freeze()


def unknown_tags(tags: Iterable[str], known: Iterable[str], playbooks: Iterable[str]) -> list[str]:
    """Return the tags that nothing has, with which a run would do nothing, or what it was to skip.

    playbooks: as they were called. Those of a user may have tags of their own, so that any tag is accepted.
    """
    if not paths.are_own(playbooks):
        return []
    return sorted(set(tags) - {*known, *SPECIAL_TAGS})


def _reports() -> Path:
    """Return the directory of this controller's reports, as the callback evidence exports this run's."""
    run = os.environ.get("GPUHOST_RUN")
    return Path(run).parent if run else Path("reports")


def _indexes(urls: dict[str, Any]) -> dict[str, str]:
    """Return the package index of each framework by the role variables with their URLs."""
    return {name.split("_")[0]: str(url) for name, url in urls.items()}


class ActionModule(SecretEnvironmentAction, EarlyConnectionAction, VariablesAction):
    """The action `gpuhost.stack.stack_plan`."""

    _supports_check_mode = True

    def _signing_certificate(self, roles: RoleValues) -> SigningCertificate | None:
        """Return the certificate of the user's own key for kernel modules, if any; fail with what is wrong with it."""
        names = (SIGNING_KEY, SIGNING_CERTIFICATE)
        values = roles.of({}, names)
        paths = {name: str(values.get(name) or "") for name in names}
        if not any(paths.values()):
            return None
        mistakes = []
        contents: dict[str, bytes] = {}
        for name, path in paths.items():
            option = name.replace("nvidia_driver_", PREFIX)
            try:
                contents[name] = Path(self._loader.get_real_file(path) if path else "").read_bytes()
            except (AnsibleError, OSError) as error:
                why = str(error).partition("\n")[0].rstrip(".")  # what follows is about modules of Ansible
                found = f"{path}, which cannot be read on the controller: {why}" if path else "not set"
                mistakes.append(f"{option} is {found}; expected the path of a file (the key and its certificate, both)")
        if not mistakes:
            try:
                return signing_key.read(
                    contents[SIGNING_KEY], contents[SIGNING_CERTIFICATE], paths[SIGNING_CERTIFICATE]
                )
            except signing_key.SigningKeyError as error:
                mistakes = [f"{PREFIX}module_signing_key: {error}"]
        self.refuse(mistakes)
        return None

    def _as_user(self, command: str) -> str:
        """Run a command on the host as the connecting user, and return its output."""
        return str(self._low_level_execute_command(command, sudoable=False)["stdout"])

    def _execute(self, command: str) -> tuple[int, str]:
        """Run a command on the host as the tasks' user, and return its exit status and output."""
        done = self._low_level_execute_command(command)
        return done["rc"], f"{done['stdout']}\n{done.get('stderr', '')}"

    def _refused(self, decision: Decision, probed: dict[str, Any], variables: dict[str, Any]) -> Problem | None:
        """Return why the host would refuse the plan's package transaction, by apt's lists as they are; None if not.

        A second round trip, only where packages change: the first one, the probe, cannot know which. What apt has no
        lists of yet is simulated by the transaction itself.
        """
        if not decision.plan.ok or drift.PACKAGES not in decision.facts["gpu_stack_drift"] or probed["uid"] != 0:
            return None
        refused = [problem for problem in decision.preflight.problems if problem.code in checks.REFUSED_AT_ONCE]
        if refused:
            return None
        arguments = {**decision.facts["gpu_stack_transaction"]["options"], "simulate": True}
        done = self._execute_module(module_name=TRANSACTION, module_args=arguments, task_vars=variables)
        if not done.get("failed"):
            return None
        words = load_catalog().words(decision.plan.distribution)
        found = Problem(**done["problem"]) if "problem" in done else packages.refused(str(done["msg"]), words)
        # Conflicting sources of others are removed before the transaction, and their packages with them.
        return None if decision.diff.leftovers.does and found.code in UNSETTLED else found

    def _refuse_unknown_tags(self, parts: Iterable[str]) -> None:
        called, known = context.CLIARGS, [*STEP_TAGS, *parts]
        if unknown := unknown_tags([*called["tags"], *called["skip_tags"]], known, called["args"]):
            raise AnsibleActionFail(
                f"{', '.join(unknown)}: no such tag. Known are {', '.join(known)}. Nothing was changed."
            )

    def _probed(
        self,
        args: dict[str, Any],
        variables: dict[str, Any],
        directories: Iterable[object],
        decide_by: Callable[..., Decision],
    ) -> tuple[dict[str, Any], Callable[..., Decision], Decision | None]:
        """Probe the host until nothing transient prevents a change, or the wait is over.

        directories: those of role variables, whose space the preflight asks for.
        Return the module's result, what decides by its probe, and the decision; None where the module failed.
        """
        if no_sudo := become.sudo_refusal(self._connection.become, self._connection._shell, self._as_user):
            raise AnsibleActionFail(no_sudo)
        options = {
            **probe_options(load_catalog()),
            "repositories": args["repositories"],
            "kernel_header_offers": args["own_kernel"],
            "contents": drift.compares_contents(args["converge"]),
            "accept_damage": args["accept_damage"],
            "state_directory": args["state_directory"],
            "timeout_factor": args["timeout_factor"],
            "directories": sorted({str(path) for path in directories if str(path).startswith("/")}),
            "managed": {name: ManagedPart.from_json(entry).watch for name, entry in args["managed"].items()},
        }
        waiting = Waiting(variables["inventory_hostname"], args["wait"])
        self.open_connection()
        while True:
            probed = self._execute_module(module_name=PROBE, module_args=options, task_vars=variables)
            if "probe" not in probed:
                path = self._discovered_interpreter or variables.get("ansible_python_interpreter")
                if unfit := interpreter.refusal(str(path or ""), str(probed.get("msg", "")), self._execute):
                    raise AnsibleActionFail(for_terminal(unfit))
                if full := temporary_files.refusal(self._execute, self._compute_environment_string()):
                    raise AnsibleActionFail(full)
                return probed, decide_by, None
            other_run = for_terminal(controller_run.other(probed["probe"]["run"], os.getppid()))
            decided = functools.partial(decide_by, probed["probe"], other_run=other_run)
            decision = decided()
            problems = decision.preflight.problems
            if not waiting.goes_on([found.message for found in problems if found.code in checks.TRANSIENT]):
                return probed, decided, decision

    def _with_locks(
        self, decision: Decision, decided: Callable[..., Decision], args: dict[str, Any], roles: RoleValues
    ) -> tuple[Decision, Callable[..., Decision], list[str], list[str]]:
        """Make the locks that are missing, and those with packages of the user's own, by the package index.

        Return the decision with them, what decides again, what was written, and why others were not. Fail where the
        user's own cannot be added.
        """
        urls_of = tuple(f"{part.role}_index_url" for part in FRAMEWORKS)
        written: list[str] = []
        failed: list[str] = []
        if args["locks"] and not decision.plan.ok:
            indexes = _indexes(roles.of(decision.facts, urls_of))
            written, failed = lock_files.make_missing(decision.plan, Path(args["locks"]), indexes)
            decision = decided() if written else decision
        if decision.plan.ok and any(args["extra"].values()):
            indexes = _indexes(roles.of(decision.facts, urls_of))
            extended, mistakes = lock_files.extend_planned(decision.plan, Path(args["locks"]), args["extra"], indexes)
            self.refuse(mistakes)
            decided = functools.partial(decided, extra_locks=extended)
            decision = decided()
        return decision, decided, written, failed

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Probe the host, print the plan and return what is decided; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        later = self.check_variables(variables)
        _unused, args = self.validate_argument_spec(ARGUMENTS)
        roles = RoleValues(self._templar, variables)
        signing = self._signing_certificate(roles)
        self._refuse_unknown_tags(args["managed"])
        if (url := variables.get(REPOSITORY_URL)) and REPOSITORY_URL not in later:
            # The one that the role will add.
            args["repositories"] = dict.fromkeys(args["repositories"], self._templar.template(url))
        expired = waivers.read(args["waivers"], date.today()).warnings
        commands = Commands(context.CLIARGS)
        try:
            decide_by = functools.partial(decide, args=args, roles=roles, signing=signing)
            moved = [name for name in (*disk_space.CACHES.values(), disk_space.DATA) if name not in later]
            directories = roles.of({}, tuple(moved)).values()
            probed, decided, decision = self._probed(args, variables, directories, decide_by)
            result.update(result_for_terminal(probed))
            result["warnings"] = [*result.get("warnings", ()), *expired]
            if decision is None:
                return result
            decision, decided, written, failed = self._with_locks(decision, decided, args, roles)
            if refused := self._refused(decision, probed["probe"], variables):
                decision = decided(refused=refused)
        except (CatalogError, ValueError) as error:
            raise AnsibleActionFail(for_terminal(f"cannot plan: {commands.fill(str(error))}")) from error
        result["warnings"] += [*decision.damage.unknown(args["accept_damage"]), *failed]
        gathered = variables.get("ansible_facts") or {}
        if stale := [name for name in decision.facts if name in gathered and variables.get(name) == gathered[name]]:
            raise AnsibleActionFail(
                f"the fact cache has {', '.join(stale)} of an earlier release of this collection, which take "
                "precedence over the plan of this run: run once with --flush-cache. Nothing was changed."
            )
        if decision.plan.ok:
            versions = variables_.set_by_user(variables, ()).keys() & set(variables_.PLANNED)
            chosen = roles.of(decision.facts, tuple(versions)) if versions else {}
            self.refuse(variables_.other_than_planned(chosen, decision.plan.components))
        if decision.plan.ok and later:
            self.refuse(self.wrong_values(roles.of(decision.facts, tuple(later))))
        host = variables["inventory_hostname"]
        colour = terminal.prints_plans() and bool(ANSIBLE_COLOR)  # others print it through code that escapes colours
        style = Style(terminal.width(), colour, Display().verbosity > 0, "-v", commands.fill)
        # Another playbook would apply the plan, which nothing prevents.
        is_next = commands.playbook == "plan" and decision.plan.ok and not decision.preflight.problems
        then = commands.of("gpu_host", limit=host) if is_next else ""
        minutes = durations.typical_minutes(_reports(), decision.diff.changes) if is_next else None
        if terminal.prints_plans():
            if written:
                terminal.show("\n".join(written))
            result[live.PLAN] = {"text": decision.text("", style, "", minutes), "next": is_next}
        else:
            terminal.show("\n".join([*written, decision.text(host, style, then, minutes)]))
        return {**result, "decided": commands.fill(decision.facts), "state": decision.state, "changed": False}
