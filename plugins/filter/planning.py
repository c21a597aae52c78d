# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters for decisions of the playbooks, made in plugin_utils/planning and verification. Runs on the controller.

What Ansible hands in is read into types here, and what it gets back is plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    fleet,
    persistence,
    rollback,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import training, verdict
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.run_results import RunResults


def reason_against_rollback(results: Any, *, enabled: bool | None = None) -> str | None:
    """Return why nothing is rolled back; takes __gpu_stack_results. enabled: in place of what the user wants."""
    run = RunResults(results)
    return rollback.reason_against_rollback(
        run.verify,
        changed=run.has_begun_to_change,
        check_mode=run.check_mode,
        reboot_pending=run.reboot_pending,
        enabled=run.may_roll_back if enabled is None else enabled,
        training=run.last_training,
        verified=run.verified_before,
        left_out=run.left_out,
    )


def change_failed(results: Any) -> bool:
    """Return whether the change of a failed host is at fault, as other hosts' may be; takes __gpu_stack_results.

    That is what is rolled back where there is something to return to, and a failure that nothing explains where nothing
    is known from before the change.
    """
    run = RunResults(results)
    if not run.has_begun_to_change or run.check_mode or run.reboot_pending:
        return False
    return reason_against_rollback(results, enabled=True) is None or rollback.is_new(run.verify, run.last_training)


def failed_training(results: Any) -> str:
    """Return the framework whose training failed on this host, or nothing; takes __gpu_stack_results."""
    return RunResults(results).failed_training


def training_refusal(plan: Any, requested: str | None = None) -> str:
    """Return why the requested framework cannot be used, or nothing; takes gpu_stack_plan."""
    return training.training_refusal(plan_from_json(plan), requested)


def trainings(results: Any) -> dict[str, Any]:
    """Return what happens with each framework; takes __gpu_stack_results."""
    run = RunResults(results)
    decided = training.trainings(
        run.plan,
        run.probe,
        run.training_options,
        changed=run.has_begun_to_change,
        jobs=for_terminal(run.jobs),
        verify=run.verify,
    )
    return {name: to_json(entry) for name, entry in decided.items()}


def verification(results: Any) -> dict[str, Any]:
    """Return what a run verified of a host; takes __gpu_stack_results."""
    run = RunResults(results)
    return dict(to_json(verdict.verdict(run.plan, run.newest_probe, verdict.Run.of(run), run.now)))


def hosts_to_change(hosts: Any) -> dict[str, Any]:
    """Return which hosts of a run that plans are changed, in which order and batches; takes their variables."""
    return dict(to_json(fleet.hosts_to_change(hosts)))


def hosts_to_restore(hosts: Any) -> dict[str, Any]:
    """Return the same of a rollback or teardown, by the hosts whose GPUs no program uses; takes their variables."""
    return dict(to_json(fleet.hosts_to_restore(hosts)))


def damage(probe: Any) -> dict[str, Any]:
    """Return what is damaged on a host as the fact gpu_stack_damage has it; takes a probe."""
    return drift.Damage.of(Probe.from_json(probe).applied).to_json()


def _filter(name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter `name`, which reports values that cannot be used as an error of the template.

    Text is for people: it has the commands of playbooks, and is shown as Ansible prints it.
    """

    def apply(*values: Any, **options: Any) -> Any:
        try:
            decided = Commands(context.CLIARGS).fill(decide(*values, **options))
            return for_terminal(decided) if isinstance(decided, str) else decided
        except ValueError as error:
            raise AnsibleFilterError(Commands(context.CLIARGS).fill(f"gpuhost.stack.{name}: {error}")) from error

    return apply


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        decisions: dict[str, Callable[..., Any]] = {
            "change_failed": change_failed,
            "damage": damage,
            "failed_training": failed_training,
            "failure_message": rollback.failure_message,
            "hosts_to_change": hosts_to_change,
            "hosts_to_restore": hosts_to_restore,
            "persistence_override": persistence.override,
            "reason_against_rollback": reason_against_rollback,
            "training_refusal": training_refusal,
            "trainings": trainings,
            "verification": verification,
        }
        return {name: _filter(name, decide) for name, decide in decisions.items()}
