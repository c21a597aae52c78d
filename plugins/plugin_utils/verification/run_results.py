"""Read what a run has found out about a host so far, as playbooks/group_vars/all/results.yml names it.

A task that has not run has left None; what that means is said here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, Verified
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.training import (
    ALWAYS,
    TrainingOptions,
)

CLUSTER = "cluster"


def gpu_jobs(probe: Any) -> str:
    """Return the programs that would lose work if the driver changed, as text; empty where there is none.

    probe: as JSON. Raises records.RecordError.
    """
    return gpu_processes.listed(gpu_processes.jobs(Probe.from_json(probe).gpu_processes))


class RunResults:
    """The results of a run's tasks for one host, read when they are asked for: a failed run has few of them."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = results

    @property
    def plan(self) -> Plan:
        """The plan of this run."""
        return plan_from_json(self._results["plan"])

    @property
    def probe(self) -> Probe:
        """The probe before this run changed anything."""
        return Probe.from_json(self._results["probe"])

    @property
    def newest_probe(self) -> Probe:
        """The probe after this run's changes, if there were any."""
        again = self._results["probed_again"] or {}
        return Probe.from_json(again["probe"]) if "probe" in again else self.probe

    @property
    def verified_before(self) -> Verified | None:
        """What verified the host before this run."""
        verified = self._results["probe"].get("verified")
        return records.from_json(Verified, verified, "verified") if verified else None

    @property
    def has_begun_to_change(self) -> bool:
        """Whether this run may have changed the host: it records the baseline just before, or stops there."""
        recorded = self._results["baseline"]
        return recorded is not None and not recorded.get("failed")

    @property
    def verify(self) -> VerifyEvidence | None:
        """The results of the checks; None if they have not run, or gave none."""
        found = self._verify
        return records.from_json(VerifyEvidence, found, "verify") if found is not None else None

    @property
    def _verify(self) -> Mapping[str, Any] | None:
        verify: Mapping[str, Any] | None = (self._results["verified"] or {}).get("verify")
        return verify

    @property
    def jobs(self) -> str:
        """The programs that use the GPUs: when the checks ran, or else when the host was probed."""
        found = (self._verify or {}).get("gpu_jobs")
        return gpu_jobs(self._results["probe"]) if found is None else str(found)

    @property
    def training_options(self) -> TrainingOptions:
        """What the user asked of the training; raises ValueError for a value that cannot be used.

        smoke_train.yml trains whatever evidence there is, and so does a cluster, of which all hosts train or none of
        them would find the others.
        """
        given = self._results
        always = given["by_itself"] or given["training_scope"] == CLUSTER
        mode, max_age = ALWAYS if always else given["training_mode"], given["training_max_age"]
        return TrainingOptions.from_values(given["now"], given["requested_framework"] or "", mode, max_age)

    @property
    def trainings(self) -> Mapping[str, Mapping[str, Any]]:
        """What was decided about the training with each framework; empty if it was left out."""
        return self._results["trainings"] or {}

    @property
    def trained(self) -> list[TrainingResult]:
        """The results of the trainings of this run."""
        return [TrainingResult.from_json(result) for result in self._results["trained"] or []]

    @property
    def last_training(self) -> TrainingResult | None:
        """The result of the last training of this run, also of one that failed."""
        result = self._results["last_training"]
        return TrainingResult.from_json(result) if result else None

    @property
    def failed_training(self) -> str:
        """The framework whose training failed on this host alone, empty where none did."""
        last = self.last_training
        return "" if last is None or last.verifies or self._results["training_scope"] == CLUSTER else last.framework

    @property
    def left_out(self) -> Sequence[str]:
        """The parts that were not installed."""
        return tuple(self._results["left_out"])

    @property
    def damaged(self) -> Sequence[str]:
        """The names of what is damaged on the host: all that was, until everything was applied."""
        return () if self._results["applied"] is not None else tuple(self._results["damage"]["left"])

    @property
    def now(self) -> str:
        """The time in UTC."""
        return str(self._results["now"])

    @property
    def check_mode(self) -> bool:
        """Whether nothing is changed."""
        return bool(self._results["check_mode"])

    @property
    def reboot_pending(self) -> bool:
        """Whether the new driver waits for a reboot."""
        return bool(self._results["reboot_pending"])

    @property
    def may_roll_back(self) -> bool:
        """Whether the user wants rollbacks."""
        return bool(boolean(self._results["rollback"], strict=False))
