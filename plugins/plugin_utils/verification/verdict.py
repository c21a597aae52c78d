"""Decide whether a run verified a host: every check and every training passed, or was reused for the same host.

With gpu_stack_unknown=warn those without an answer count as passed, but such a training is never reused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import DEFERRED, PASS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, Verified
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.run_results import RunResults
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.training import (
    LEFT_OUT,
    TRAIN,
    stack_fingerprint,
    training_frameworks,
    training_records,
)

VERIFIED = "verified"
KEPT = "kept"  # something was deferred, and nothing was changed since the host was last verified
PENDING = "pending"  # something was deferred, and a change waits for it
EXPIRED = "expired"  # a training was deferred, nothing was changed, and the last one proves nothing any more
NOT_VERIFIED = "not verified"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run did to verify a host.

    verify: the results of the checks, None if they did not run; actions: the action by framework, empty if the training
    was left out; results: of the trainings of this run; left_out: the parts that were not installed; changed: whether
    the run changed the host; expired: by framework, why its last training proves nothing any more. damaged: the names
    of what is damaged on the host and not accepted.
    """

    verify: VerifyEvidence | None
    actions: Mapping[str, str]
    results: Sequence[TrainingResult]
    left_out: Sequence[str]
    changed: bool
    expired: Mapping[str, str] = dataclasses.field(default_factory=dict)
    damaged: Sequence[str] = ()

    @classmethod
    def of(cls, results: RunResults) -> Run:
        """Return what a run did by the results of its tasks."""
        actions = {name: entry["action"] for name, entry in results.trainings.items()}
        expired = {name: entry["expired"] for name, entry in results.trainings.items() if entry.get("expired")}
        return cls(
            results.verify,
            actions,
            results.trained,
            results.left_out,
            results.has_begun_to_change,
            expired,
            results.damaged,
        )


@dataclasses.dataclass(frozen=True)
class Verification:
    """The state of a host, why it is not `verified`, and the evidence to record; None if nothing is to be recorded."""

    state: str
    reasons: tuple[str, ...] = ()
    message: str = ""
    evidence: Verified | None = None


def state(plan: Plan, run: Run, change_pending: bool) -> tuple[str, tuple[str, ...]]:
    """Return the state of a host after a run, and the reasons where it is not `verified`.

    change_pending: whether this run or an earlier one changed the host since it was last verified.
    """
    missing, waiting = _of_checks(run.verify)
    missing += [f"{part} was left out" for part in run.left_out]
    missing += [f"{name} is damaged" for name in run.damaged]
    passed = {result.framework for result in run.results if result.verifies}
    for framework in training_frameworks(plan):
        action, name = run.actions.get(framework, LEFT_OUT), f"the training with {BY_NAME[framework].label}"
        if action == LEFT_OUT:
            missing.append(f"{name} was left out")
        elif action == DEFERRED:
            waiting.append(f"{name} waits for idle GPUs")
        elif action == TRAIN and framework not in passed:
            missing.append(f"{name} did not pass")
    if missing:
        return NOT_VERIFIED, (*missing, *waiting)
    if waiting and change_pending:
        return PENDING, tuple(waiting)
    if expired := [why for why in run.expired.values() if why]:
        return EXPIRED, (*waiting, *dict.fromkeys(expired))
    return (KEPT, tuple(waiting)) if waiting else (VERIFIED, ())


def _of_checks(verify: VerifyEvidence | None) -> tuple[list[str], list[str]]:
    """Return what the checks lack, and for what they wait."""
    if verify is None:
        return ["the checks were left out"], []
    if verify.status == PASS:
        return [], []
    outcomes = [check.id for check in verify.checks if check.status == verify.status]
    text = f"{', '.join(outcomes) or 'the checks'}: {verify.status}"
    return ([], [text]) if verify.status == DEFERRED else ([text], [])


def verdict(plan: Plan, host: Probe, run: Run, now: str) -> Verification:
    """Return what this run verified of a host.

    Nothing is recorded, and nothing said, of a host that was verified before in the same way.
    """
    stack = stack_fingerprint(plan)
    is_new = run.changed or host.pending is not None or host.verified is None or host.verified.stack != stack
    found, reasons = state(plan, run, is_new)
    if found == VERIFIED and run.verify is not None:
        evidence = Verified(
            at=now,
            stack=stack,
            checks={check.id: check.status for check in run.verify.checks},
            trainings=training_records(plan, host, run.actions, run.results, now),
        )
        is_same = host.verified is not None and not is_new and evidence == dataclasses.replace(host.verified, at=now)
        return Verification(VERIFIED, evidence=None if is_same else evidence)
    last = f"last verified on {host.verified.at}" if host.verified and host.verified.at else "not verified before"
    text = "; ".join(reasons)
    if found == NOT_VERIFIED:
        message = (
            f"Nothing was recorded as verified: {text}. Run `{playbook_call.call('gpu_host')}`, with all its tags"
            if is_new or run.damaged
            else ""
        )
    elif found == PENDING:
        message = f"The change stays pending: {text}. Run the same command again when the GPUs are idle"
    elif found == EXPIRED:
        message = f"The last verification no longer holds: {text}. Run the same command again when the GPUs are idle"
    else:
        message = f"Nothing has changed since the host was last verified, but {text}"
    return Verification(found, reasons, f"{message} ({last})." if message else "")
