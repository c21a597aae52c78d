"""The verdict on a host, with its reasons and what to do about them, from the evidence of a run.

From the best to the worst:

verified: every check and every training of what is planned passed, or was answered by evidence that still holds, or
    had no answer with gpu_stack_unknown=warn, which marks the host, or was deferred on a host that was verified before
    and not changed since
not changed: nothing was changed, and not everything was verified: a plan, check mode, a host spared because of another
torn down: the teardown restored the baseline
pending: changed by this run or an earlier one, and not verified since
unknown: a check, or one of a training, had no answer
unreachable, failed: what Ansible calls so; a refused host has failed, with its problems as reasons
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import STACK, Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    DEFERRED,
    FAIL,
    REUSED,
    TABLE,
    UNKNOWN,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import registry
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import Damage
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import causes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import (
    RESTORED,
    Failure,
    HostEvidence,
    Restored,
    TrainingEvidence,
)

VERDICTS = ("verified", "torn down", "not changed", "pending", "unknown", "unreachable", "failed")
VERIFIED, TORN_DOWN, NOT_CHANGED, PENDING, UNANSWERED, UNREACHABLE, FAILED = VERDICTS
_CHECKED = {"verify": "verify", **{part.training_file: part.training for part in registry.FRAMEWORKS}}
_DAMAGED, _WAITS = "damaged: ", "pending: "  # how reasons begin, and what to do about them
_REMEDIES = {
    _DAMAGED: f"remedy for the damage: `{playbook_call.call('gpu_host')}` repairs it; gpu_stack_accept_damage accepts "
    "what is meant",
    _WAITS: f"remedy for the pending change: `{playbook_call.call('gpu_host')}`, with the request of that change, "
    f"completes and verifies it; `{playbook_call.call('rollback')}` restores the last verified configuration",
}


@dataclasses.dataclass(frozen=True)
class RunMode:
    """How the playbook ran: in check mode; interrupted: it was stopped before its end, by Ctrl-C or by an error."""

    check_mode: bool = False
    interrupted: bool = False


A_RUN = RunMode()


def checked_parts(evidence: HostEvidence) -> Iterable[tuple[str, VerifyEvidence | TrainingEvidence]]:
    """Return the parts with checks that exist, by name."""
    trainings = {part.training_file: evidence.trainings.get(part.name) for part in registry.FRAMEWORKS}
    parts = {"verify": evidence.verify, **trainings}
    return [(name, part) for name, part in parts.items() if part is not None]


def verdict(evidence: HostEvidence, mode: RunMode) -> tuple[str, list[str]]:
    """Return the verdict and all reasons, causes first, then the worst."""
    failure, left = evidence.failure, _damage_left(evidence)
    message = [_said(failure)] if failure else []
    rolled_back, missing = _rollback(evidence), _missing(evidence)
    if failure and failure.unreachable:
        return UNREACHABLE, message + rolled_back + missing
    if evidence.spared_for is not None:
        return NOT_CHANGED, [f"nothing was changed on this host, because of {', '.join(evidence.spared_for)}"]
    if evidence.torn_down is not None and not failure:
        return _teardown(evidence, mode)
    if failure and left and failure.message.strip() == Damage(left).text:
        message = []  # which is said below, a line each
    refused = [f"{problem.code}: {problem.message}" for problem in evidence.problems]
    failed = [reason for name, part in checked_parts(evidence) if (reason := _failure(name, part, evidence))]
    unknown = _with_outcome(evidence, UNKNOWN) + _expired(evidence)
    symptoms, is_refused = symptom_lines(evidence), bool(refused)
    if not (refused or failed or symptoms or unknown):
        refused = message
    # Of which the message of a failed task may name some already.
    damaged = [f"{_DAMAGED}{text}" for text in left.values() if not any(text in reason for reason in refused)]
    pending = _pending(evidence)
    wrong = refused + failed + symptoms
    if wrong or evidence.verify or evidence.changed:
        found = damaged + (pending if symptoms or failed else []) + symptoms
        # A refused run did nothing else; of one that has checked the host, what is wrong there comes first.
        wrong = (found + refused if is_refused and evidence.verify else refused + found) + failed
    if wrong or (rolled_back and not unknown):
        return FAILED, wrong + unknown + rolled_back + (missing if evidence.verify or not is_refused else [])
    if unknown:
        return UNANSWERED, unknown + rolled_back + missing
    if evidence.recorded:
        return VERIFIED, _marks(evidence)
    deferred, before = _with_outcome(evidence, DEFERRED), evidence.probe
    open_ends = deferred + damaged + missing
    if evidence.running and mode.interrupted:
        open_ends.insert(0, f"interrupted in the task {evidence.running}")
    elif mode.interrupted:
        open_ends.append("the run did not reach its end")
    elif mode.check_mode:
        open_ends.append("check mode records nothing")
    if evidence.changed or (before and before.pending):
        return PENDING, [*pending, *open_ends] or ["the change was not recorded as verified"]
    last = [f"last verified {before.verified.at}"] if before and before.verified and before.verified.at else []
    if not open_ends or (open_ends == deferred and last):  # unchanged, and what was deferred was verified then
        return VERIFIED, [*deferred, *(last if deferred else []), *_marks(evidence)]
    return NOT_CHANGED, open_ends + last


def _damage_left(evidence: HostEvidence) -> Mapping[str, str]:
    probe = evidence.newest_probe
    if probe is None or evidence.torn_down or evidence.is_repaired:
        return {}
    return Damage.of(probe.applied).left


def _said(failure: Failure) -> str:
    """Return what a task failed with, or what that means."""
    meaning, _remedy = causes.explain(failure.message)
    return f"{failure.task}: {meaning or failure.message}".strip()


def remedies(evidence: HostEvidence, status: str, reasons: list[str]) -> dict[str, str]:
    """Return what to do about reasons; where a host is refused, that is in its problems."""
    if (evidence.problems and not evidence.verify) or status in (VERIFIED, TORN_DOWN):
        return {}
    found, failure = {}, evidence.failure
    if failure and _said(failure) in reasons and (remedy := causes.explain(failure.message)[1]):
        found[_said(failure)] = f"remedy: {remedy}"
    for begin, remedy in _REMEDIES.items():
        if said := [reason for reason in reasons if reason.startswith(begin)]:
            found[said[-1]] = remedy
    return found


def _pending(evidence: HostEvidence) -> list[str]:
    """Return that an earlier run began a change, and in which versions that differs from the plan."""
    pending = evidence.probe.pending if evidence.probe else None
    if pending is None or evidence.changed or evidence.recorded:
        return []
    rows = causes.pending_components(evidence)
    labels = {part.name: part.label for part in registry.PARTS}
    differs = [
        f"; {labels[row.component]} is {row.installed or 'not installed'}, planned {row.planned}" for row in rows
    ]
    since = f" began {pending.since} and" if pending.since else ""
    return [f"{_WAITS}a change{since} was not verified{''.join(differs)}"]


def symptom_lines(evidence: HostEvidence) -> list[str]:
    """Return a line for the damage, and one for a pending change, with the checks that fail because of it."""
    of_damage: list[Check] = []
    of_change: list[Check] = []
    for name, part in checked_parts(evidence):
        for check in part.checks:
            if of := causes.symptom_of(name, check, evidence):
                (of_change if of == (causes.PENDING,) else of_damage).append(check)
    lines = []
    for what, checks in (("the damage", of_damage), (causes.PENDING, of_change)):
        failed = [check.id for check in checks if check.status == FAIL]
        if failed:
            rest = f", and {len(checks) - len(failed)} without an answer" if len(checks) > len(failed) else ""
            lines.append(f"symptoms of {what}: {', '.join(failed)}{rest}")
    return lines


def _teardown(evidence: HostEvidence, mode: RunMode) -> tuple[str, list[str]]:
    restored = evidence.restored or Restored()
    if not evidence.torn_down:
        return NOT_CHANGED, ["there is no record of this host: nothing to restore"]
    number = len(restored.changes)
    what = counted(number, *RESTORED)
    if mode.check_mode:
        return NOT_CHANGED, [f"a teardown would restore {what}", *restored.warnings]
    said = [f"as before the first run: {what}" if number else "nothing had to change"]
    loaded = evidence.probe and evidence.probe.driver.loaded
    said += ["the loaded NVIDIA module stays until the next reboot"] if loaded else []
    return TORN_DOWN, [*said, *restored.warnings]


def _failure(name: str, part: VerifyEvidence | TrainingEvidence, evidence: HostEvidence) -> str:
    """Return which checks failed, but for symptoms."""
    failed = [check for check in part.checks if check.status == FAIL]
    own = [_blamed(check) for check in failed if not causes.symptom_of(name, check, evidence)]
    if own:
        return f"{_CHECKED[name]} failed: {', '.join(own)}"
    if failed or (part.status in TABLE and part.status != FAIL):
        return ""
    return f"{_CHECKED[name]} ended {f'with status {part.status}' if part.status else 'without a status'}"


def _blamed(check: Check) -> str:
    """Return the id of a check, with the cause of its failure where that is not the stack."""
    return check.id if check.cause in (None, STACK) else f"{check.id} ({check.cause})"


def _expired(evidence: HostEvidence) -> list[str]:
    """Return a line for each deferred training whose last result proves nothing any more."""
    return [
        f"{_CHECKED[name]} is {DEFERRED}, and {part.expired}"
        for name, part in checked_parts(evidence)
        if isinstance(part, TrainingEvidence) and part.expired
    ]


def _with_outcome(evidence: HostEvidence, outcome: str) -> list[str]:
    """Return a line for each part that ended with this outcome, with its checks."""
    lines = []
    for name, part in checked_parts(evidence):
        if part.status == outcome and not (outcome == UNKNOWN and _is_accepted(part)):
            checks = [check.id for check in part.checks if check.status == outcome]
            lines.append(f"{_CHECKED[name]} is {outcome}" + (f": {', '.join(checks)}" if checks else ""))
    return lines


def _is_accepted(part: VerifyEvidence | TrainingEvidence) -> bool:
    """Return whether what has no answer does not keep a host from being verified; the checks then have passed."""
    return isinstance(part, TrainingEvidence) and part.unknown_accepted


def _marks(evidence: HostEvidence) -> list[str]:
    """Return what somebody should know about a verified host: checks that did not simply pass or not apply.

    A reused training is said with its date where the trainings are.
    """
    marked = [
        f"{check.id} ({check.status})"
        for _name, part in checked_parts(evidence)
        for check in part.checks
        if TABLE[check.status].marked and not (check.status == REUSED and isinstance(part, TrainingEvidence))
    ]
    return [f"see {', '.join(marked)}"] if marked else []


def _rollback(evidence: HostEvidence) -> list[str]:
    """Return the result of a rollback, whose checks are not mixed with those that failed before."""
    verify = evidence.verify_after_undo
    if verify is None:
        return []
    changes = len(evidence.restored.changes) if evidence.restored else 0
    return [
        f"rolled back: {changes} changes restored the configuration from before; of its checks, "
        f"{verify.counts['pass']} passed and {verify.counts['fail']} failed"
    ]


def _missing(evidence: HostEvidence) -> list[str]:
    """Return the parts that were expected and are not there, unless they follow from a failure before all of them."""
    if evidence.failure and evidence.plan is None and evidence.verify is None:
        return []
    missing = []
    if evidence.newest_probe is None:
        missing.append("the host was not probed")
    if evidence.plan is None:
        missing.append("no plan was made")
    if evidence.verify is None:
        missing.append("the checks were not run")
    for part in registry.FRAMEWORKS:
        training = evidence.trainings.get(part.name)
        if _is_needed(part.name, evidence) and not (training and training.was_run):
            missing.append(f"{part.training} was not run")
    return missing


def _is_needed(framework: str, evidence: HostEvidence) -> bool:
    """Return whether a training is expected: of each planned framework; without a plan, of the first, the default."""
    plan = evidence.plan
    if plan and plan.components.get(framework):
        return True
    return framework == registry.FRAMEWORKS[0].name and not (plan and plan.ok)
