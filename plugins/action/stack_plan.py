# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Probe a host and decide in one task: the plan, the diff, the preflight's findings and the drift.

The module of the same name has the documentation. All of it is one task, because one Ansible task alone takes about as
long as this computation. The plan is printed here, too: a task for that would fork another process for each host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls
from ansible_collections.gpuhost.stack.plugins.plugin_utils.ansible import become, controller_run, interpreter, no_hosts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.ansible.checked_variables import VariablesAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.ansible.waiting import Waiting
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import temporary_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal, result_for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError, load_catalog, with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan, plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    lock_files,
    plan_diff,
    preflight,
    signing_key,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables as variables_
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import ExtraPackages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift, fingerprints
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.fingerprints import (
    KERNEL_PACKAGES,
    SIGNING_CERTIFICATE,
    SIGNING_KEY,
    TRITON_PACKAGES,
    RoleVariables,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers

PROBE = "gpuhost.stack.gpu_probe"
TRANSACTION, TRANSACTION_OPTIONS = "gpuhost.stack.apt_transaction", "__gpu_stack_apt_transaction"
REFUSED = "transaction-refused"
PERSISTENCE = "nvidia_driver_persistence"
REPOSITORY_URL = "nvidia_repo_url"
ARGUMENTS = {
    "request": {"type": "dict", "required": True},
    "variables": {"type": "list", "elements": "str", "required": True},
    "internal_variables": {"type": "list", "elements": "str", "required": True},
    "repositories": {"type": "dict", "required": True},
    "own_kernel": {"type": "bool", "default": True},
    "managed": {"type": "dict", "required": True},
    "accept_damage": {"type": "list", "elements": "str", "default": []},
    "transitions": {"type": "list", "elements": "str", "default": []},
    "state_directory": {"type": "str", "default": "/var/lib/gpuhost"},
    "converge": {"type": "str", "default": "drift"},
    "locks": {"type": "str", "default": ""},
    "extra": {"type": "dict", "default": {}},
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
with contextlib.suppress(OSError, SyntaxError, ValueError):
    fingerprints.preload()
# Catalog and modules stay until the end: no garbage collection, here or in a host's process, needs to visit them.
gc.freeze()


def unknown_tags(tags: Iterable[str], known: Iterable[str], playbooks: Iterable[str]) -> list[str]:
    """Return the tags that nothing has, with which a run would do nothing, or what it was to skip.

    playbooks: as they were called. Those of a user may have tags of their own, so that any tag is accepted.
    """
    if not no_hosts.are_own(playbooks):
        return []
    return sorted(set(tags) - {*known, *SPECIAL_TAGS})


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided for a host."""

    plan: Plan
    diff: PlanDiff
    preflight: Preflight
    facts: dict[str, Any]
    damage: drift.Damage

    def text(self, host: str) -> str:
        """Return the plan beside what is installed, and what prevents it, for a terminal."""
        plan = dataclasses.replace(self.plan, warnings=(*self.plan.warnings, *self.preflight.warnings))
        cells = plan_diff.table_cells(self.diff)
        lines = plan_diff.diff_lines(self.diff, self.facts["gpu_stack_drift"])
        lines += self.damage.lines(is_shown=self.plan.ok and not self.diff.changes)
        return f"{host}, {plan_table(plan, changes=cells, lines=lines, refused=self.preflight.problems)}\n"


def decide(
    probed: dict[str, Any],
    args: dict[str, Any],
    role_variables: RoleVariables,
    extra_locks: Mapping[str, lock_files.Extended] | None = None,
    signing: SigningCertificate | None = None,
    refused: Problem | None = None,
    other_run: str = "",
) -> Decision:
    """Decide by a probe's JSON and the task's arguments.

    role_variables(facts, prefixes): the values of the role variables with these prefixes, templated with these facts.
    extra_locks: the lock files of frameworks with packages of the user's own, by framework.
    signing: the certificate of the user's own key for kernel modules. refused: why the host would refuse the package
    transaction. other_run: the run that changes the host now, for people.
    Raises CatalogError and ValueError (PlanInputError and RecordError among them).
    """
    probe = Probe.from_json(probed)
    # What is planned is printed, cached and recorded; the roles get passwords from the request itself.
    folder = args.get("locks")
    catalog = with_locks(load_catalog(), Path(folder)) if folder else load_catalog()
    plan = plan_for_probe(probe, urls.without_credentials(args["request"]), catalog)
    diff = plan_diff.plan_diff(plan, probe)
    facts = {"gpu_stack_probe": probed, "gpu_stack_plan": plan.to_json(), "gpu_stack_diff": diff.to_json()}
    extended = extra_locks or {}
    own_locks = {name: str(each.path) for name, each in extended.items()}
    facts["gpu_stack_lock_files"] = {**_locks_of(plan, folder or ""), **own_locks}
    values = role_variables(facts, KERNEL_PACKAGES) if plan.components.driver else dict.fromkeys(KERNEL_PACKAGES, ())
    headers, compilers = (tuple(values[name]) for name in KERNEL_PACKAGES)
    extra = {name: ExtraPackages(each.digest, each.sizes) for name, each in extended.items()}
    factor = args.get("timeout_factor", 1.0)
    kept = tuple(f"{name}_env_keep_cache" for name in FRAMEWORKS if plan.components.framework(name))  # of one cache
    keeps_cache = not kept or all(boolean(value, strict=False) for value in role_variables(facts, kept).values())
    persistence = role_variables(facts, (PERSISTENCE,)).get(PERSISTENCE, True) if plan.components.driver else True
    options = preflight.Options(
        args["own_kernel"],
        headers,
        compilers,
        signing,
        extra,
        factor,
        keeps_cache,
        persistence=boolean(persistence, strict=False),
        refused=refused,
        other_run=other_run,
    )
    findings = preflight.preflight(plan, probe, diff, options)
    facts |= {"gpu_stack_preflight": findings.to_json(), "gpu_stack_parts": {}, "gpu_stack_drift": {}}
    facts["gpu_stack_repairs"] = to_json(drift.repairs(probe.applied))
    damage = drift.Damage.of(probe.applied)
    if plan.ok:
        managed = {name: ManagedPart.from_json(entry) for name, entry in args["managed"].items()}
        known = fingerprints.of_parts(plan, managed, args["transitions"], facts, role_variables, signing)
        parts = drift.parts(plan, managed, known)
        # What is no longer planned is not repaired, and no longer recorded when the plan was applied.
        damage = drift.Damage.of({name: part for name, part in probe.applied.items() if name in parts})
        facts["gpu_stack_parts"] = to_json(parts)
        triton = role_variables(facts, (TRITON_PACKAGES,)).get(TRITON_PACKAGES, ()) if plan.components.pytorch else ()
        missing = _missing_build_packages(plan, probe, {"driver": {*headers, *compilers}, "pytorch": set(triton)})
        facts["gpu_stack_drift"] = drift.drift(parts, probe.applied, diff, managed, args["converge"], missing)
    facts["gpu_stack_damage"] = damage.to_json()
    return Decision(plan, diff, findings, facts, damage)


def _locks_of(plan: Plan, folder: str) -> dict[str, str]:
    """Return the lock file of each planned framework: that of the folder with the user's own, or the name of ours."""
    planned = {name: component.lock for name in FRAMEWORKS if (component := plan.components.framework(name))}
    own = {name: Path(folder, lock) for name, lock in planned.items() if folder}
    return planned | {name: str(path) for name, path in own.items() if path.is_file()}


def lock_missing(plan: Plan, folder: Path, indexes: dict[str, str]) -> tuple[list[str], list[str]]:
    """Resolve the locks without which there is no plan; return those that were written, and why others were not.

    indexes: the package index of a framework where it is not PyPI.
    """
    names = [name for remedy in plan.remedies for name in remedy.host.get("locks", ())]
    written, failed = [], []
    for name in dict.fromkeys(names):
        path = folder / f"{name}.txt"
        index = indexes.get(name.split("-", 1)[0])
        try:
            lock_files.make(load_catalog(), name, path, variables={"UV_DEFAULT_INDEX": index} if index else None)
            written.append(f"{name} was locked by the package index: {path}. Keep it with the inventory.")
        except (lock_files.LockError, OSError) as error:
            failed.append(f"{name} could not be locked: {error}")
    return written, failed


def lock_extra(
    plan: Plan, folder: Path, extra: dict[str, str], indexes: dict[str, str]
) -> tuple[dict[str, lock_files.Extended], list[str]]:
    """Return the lock file of each planned framework with packages of the user's own, and why others have none.

    extra: the requirements file by framework; indexes: as for `lock_missing`.
    """
    found, failed = {}, []
    for framework, file in extra.items():
        component = plan.components.framework(framework)
        if not file or component is None:
            continue
        index = indexes.get(framework)
        variables = {"UV_DEFAULT_INDEX": index} if index else None
        try:
            found[framework] = lock_files.extend(load_catalog(), component.lock, folder, Path(file), variables)
        except (lock_files.LockError, OSError) as error:
            failed.append(f"gpu_stack_{framework}_extra ({file}) cannot be added to {component.lock}: {error}")
    return found, failed


def _missing_build_packages(plan: Plan, probe: Probe, wanted: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return those of the plan's packages to compile with that this host wants and does not have, by component."""
    driver, pytorch = plan.components.driver, plan.components.pytorch
    planned = driver.build_packages if driver else ()
    missing = {
        "driver": [name for name in planned if name not in probe.kernel.installed_packages],
        "pytorch": preflight.missing_to_compile(pytorch, probe) if pytorch else (),
    }
    return {component: [name for name in names if name in wanted[component]] for component, names in missing.items()}


class ActionModule(VariablesAction):
    """The action `gpuhost.stack.stack_plan`."""

    _supports_check_mode = True

    def _signing_certificate(self, variables: dict[str, Any]) -> SigningCertificate | None:
        """Return the certificate of the user's own key for kernel modules, if any; fail with what is wrong with it."""
        paths = {
            name: str(self._templar.template(variables.get(name, ""))) for name in (SIGNING_KEY, SIGNING_CERTIFICATE)
        }
        if not any(paths.values()):
            return None
        mistakes = []
        contents: dict[str, bytes] = {}
        for name, path in paths.items():
            option = name.replace("nvidia_driver_", variables_.PREFIX)
            try:
                contents[name] = Path(self._loader.get_real_file(path) if path else "").read_bytes()
            except (AnsibleError, OSError) as error:
                found = f"{path}, which cannot be read on the controller: {error}" if path else "not set"
                mistakes.append(f"{option} is {found}; expected the path of a file (the key and its certificate, both)")
        if not mistakes:
            try:
                return signing_key.read(
                    contents[SIGNING_KEY], contents[SIGNING_CERTIFICATE], paths[SIGNING_CERTIFICATE]
                )
            except signing_key.SigningKeyError as error:
                mistakes = [f"{variables_.PREFIX}module_signing_key: {error}"]
        self.refuse(mistakes)
        return None

    def _as_user(self, command: str) -> str:
        """Run a command on the host as the connecting user, and return its output."""
        return str(self._low_level_execute_command(command, sudoable=False)["stdout"])

    def _execute(self, command: str) -> tuple[int, str]:
        """Run a command on the host as the tasks' user, and return its exit status and output."""
        done = self._low_level_execute_command(command)
        return done["rc"], f"{done['stdout']}\n{done.get('stderr', '')}"

    def _refused(
        self, decision: Decision, probed: dict[str, Any], variables: dict[str, Any], role_variables: RoleVariables
    ) -> Problem | None:
        """Return why the host would refuse the plan's package transaction, by apt's lists as they are; None if not.

        A second round trip, only where packages change: the first one, the probe, cannot know which. What apt has no
        lists of yet is simulated by the transaction itself.
        """
        transient = [problem for problem in decision.preflight.problems if problem.code in preflight.TRANSIENT]
        options = role_variables(decision.facts, (TRANSACTION_OPTIONS,)) if decision.plan.ok else {}
        if not options or drift.PACKAGES not in decision.facts["gpu_stack_drift"] or probed["uid"] != 0 or transient:
            return None
        arguments = {**options[TRANSACTION_OPTIONS], "simulate": True}
        done = self._execute_module(module_name=TRANSACTION, module_args=arguments, task_vars=variables)
        if not done.get("failed"):
            return None
        remedy = "solve what apt reports on the host, then run this again"
        found = Problem(**done["problem"]) if "problem" in done else Problem(REFUSED, str(done["msg"]), remedy)
        # Conflicting sources of others are removed before the transaction, and their packages with them.
        return None if decision.diff.leftovers.does and found.code == REFUSED else found

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Probe the host, print the plan and return what is decided; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        own = self.from_inventory(variables)
        variables |= own
        later = self.check_variables(variables)
        _unused, args = self.validate_argument_spec(ARGUMENTS)
        signing = self._signing_certificate(variables)
        called = context.CLIARGS
        known_tags = [*STEP_TAGS, *args["managed"]]
        unknown = unknown_tags([*called["tags"], *called["skip_tags"]], known_tags, called["args"])
        if unknown:
            raise AnsibleActionFail(
                f"{', '.join(unknown)}: no such tag. Known are {', '.join(known_tags)}. Nothing was changed."
            )
        result["warnings"] = list(waivers.read(args["waivers"], date.today()).warnings)
        try:
            names = probe_options(load_catalog())
            contents = drift.compares_contents(args["converge"])
        except (CatalogError, ValueError) as error:
            raise AnsibleActionFail(f"cannot plan: {error}") from error
        repositories = args["repositories"]
        if (url := variables_.set_by_user(variables, ()).get(REPOSITORY_URL)) and REPOSITORY_URL not in later:
            repositories = dict.fromkeys(repositories, self._templar.template(url))  # the one that the role will add
        options = {
            **names,
            "repositories": repositories,
            "kernel_header_offers": args["own_kernel"],
            "contents": contents,
            "accept_damage": args["accept_damage"],
            "state_directory": args["state_directory"],
            "timeout_factor": args["timeout_factor"],
            "managed": {name: ManagedPart.from_json(entry).watch for name, entry in args["managed"].items()},
        }
        if no_sudo := become.sudo_refusal(self._connection.become, self._connection._shell, self._as_user):
            raise AnsibleActionFail(no_sudo)

        def role_variables(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
            templar = self._templar.copy_with_new_env(available_variables={**variables, **facts})
            names = sorted(name for name in variables if str(name).startswith(prefixes))
            return {name: templar.template(variables[name]) for name in names}

        def indexes(decision: Decision) -> dict[str, str]:
            urls_of = tuple(f"{name}_env_index_url" for name in FRAMEWORKS)
            return {name.split("_")[0]: str(url) for name, url in role_variables(decision.facts, urls_of).items()}

        waiting = Waiting(variables["inventory_hostname"], args["wait"])
        try:
            while True:
                probed = self._execute_module(module_name=PROBE, module_args=options, task_vars=variables)
                if "probe" not in probed:
                    path = self._discovered_interpreter or variables.get("ansible_python_interpreter")
                    if unfit := interpreter.refusal(str(path or ""), str(probed.get("msg", "")), self._execute):
                        raise AnsibleActionFail(for_terminal(unfit))
                    if full := temporary_files.refusal(self._execute, self._compute_environment_string()):
                        raise AnsibleActionFail(full)
                    return {**result, **result_for_terminal(probed)}
                other_run = for_terminal(controller_run.other(probed["probe"]["run"], os.getppid()))
                decided = functools.partial(
                    decide, probed["probe"], args, role_variables, signing=signing, other_run=other_run
                )
                decision = decided()
                problems = decision.preflight.problems
                if not waiting.goes_on([found.message for found in problems if found.code in preflight.TRANSIENT]):
                    break
            result.update(result_for_terminal(probed))
            result["warnings"] += decision.damage.unknown(args["accept_damage"])
            written: list[str] = []
            extra_locks: dict[str, lock_files.Extended] | None = None
            folder = Path(args["locks"])
            if args["locks"] and not decision.plan.ok:
                written, failed = lock_missing(decision.plan, folder, indexes(decision))
                result["warnings"] += failed
                if written:
                    decision = decided()
            if decision.plan.ok and any(args["extra"].values()):
                extra_locks, failed = lock_extra(decision.plan, folder, args["extra"], indexes(decision))
                self.refuse(failed)
                decision = decided(extra_locks=extra_locks)
            if refused := self._refused(decision, probed["probe"], variables, role_variables):
                decision = decided(extra_locks=extra_locks, refused=refused)
        except (CatalogError, ValueError) as error:
            raise AnsibleActionFail(for_terminal(f"cannot plan: {error}")) from error
        gathered = variables.get("ansible_facts") or {}
        if stale := [name for name in decision.facts if name in gathered and variables.get(name) == gathered[name]]:
            raise AnsibleActionFail(
                f"the fact cache has {', '.join(stale)} of an earlier release of this collection, which take "
                "precedence over the plan of this run: run once with --flush-cache. Nothing was changed."
            )
        if decision.plan.ok:
            versions = variables_.set_by_user(variables, ()).keys() & set(variables_.PLANNED)
            chosen = role_variables(decision.facts, tuple(versions)) if versions else {}
            self.refuse(variables_.other_than_planned(chosen, decision.plan.components))
        planned = role_variables(decision.facts, (*own, *later)) if decision.plan.ok and (own or later) else {}
        self.refuse(self.wrong_values({name: value for name, value in planned.items() if name in later}))
        terminal.show("\n".join([*written, decision.text(variables["inventory_hostname"])]))
        overrides = {name: value for name, value in planned.items() if name in own}
        return {**result, "decided": decision.facts, "role_variables": overrides, "changed": False}
