# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters for decisions of the playbooks, made in plugin_utils/planning and verification. Runs on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import package_transaction, rollback
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import training, verification


def trainings(
    plan: Any, probe: Any, *, changed: bool, jobs: str, now: str, framework: str = "", mode: str = "auto",
    max_age: Any = training.MAX_AGE,
) -> dict[str, Any]:  # fmt: skip
    """Return what happens with each framework; takes gpu_stack_plan and gpu_stack_probe."""
    try:
        request = training.Request.from_values(now, framework, mode, max_age)
        decided = training.trainings(plan, _host(probe), request, changed=changed, jobs=jobs)
    except ValueError as error:
        raise AnsibleFilterError(f"gpuhost.stack.trainings: {error}") from error
    return {name: records.to_json(entry) for name, entry in decided.items()}


def verified(
    plan: Any, probe: Any, *, verify: Any, trainings: Any, results: Any, left_out: Any, changed: bool, now: str
) -> dict[str, Any]:
    """Return what a run verified; takes gpu_stack_plan, a probe and the results of this run."""
    actions = {name: entry["action"] for name, entry in trainings.items()}
    expired = {name: entry["expired"] for name, entry in trainings.items() if entry.get("expired")}
    run = verification.Run(verify, actions, results, left_out, changed, expired)
    try:
        found = verification.verification(plan, _host(probe), run, now)
    except ValueError as error:
        raise AnsibleFilterError(f"gpuhost.stack.verification: {error}") from error
    return dict(records.to_json(found))


def _host(probe: Any) -> training.HostFacts:
    return records.from_json(training.HostFacts, probe, "probe")


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "failure_message": rollback.failure_message,
            "package_transaction": package_transaction.package_transaction,
            "reason_against_rollback": rollback.reason_against_rollback,
            "training_refusal": training.training_refusal,
            "trainings": trainings,
            "verification": verified,
        }
