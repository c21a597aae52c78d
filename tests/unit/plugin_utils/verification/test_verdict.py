"""When a run verified a host, by the outcomes of its checks and of its training."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, summary
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.training import stack_fingerprint
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.verdict import (
    Run,
    Verification,
    state,
    verdict,
)

from tests.unit.plugin_utils.planning.planning_cases import planned

PLAN = planned("driver", "tensorflow")
NOW = "2026-11-20T00:00:00Z"
PASSED = TrainingResult(
    "tensorflow",
    "pass",
    (Check("replicas", "pass"), Check("gpu-activity", "skip")),
    key_figures={"version": "2.21.0", "loss": {"first": 2.0, "last": 1.0}},
)


def trained(status: str, accepted: bool = False, framework: str = "tensorflow") -> TrainingResult:
    return dataclasses.replace(PASSED, status=status, unknown_accepted=accepted, framework=framework)


def checked(*outcomes: str, unknown: str = "fail") -> VerifyEvidence:
    checks = [Check(f"gpu.{n}", outcome, cause="stack") for n, outcome in enumerate(outcomes)]
    return records.from_json(VerifyEvidence, summary(checks, unknown), "verify")


RUN = Run(checked("pass"), {"tensorflow": "train"}, [PASSED], [], changed=True)


def found(change_pending: bool = True, **changes: Any) -> tuple[str, tuple[str, ...]]:
    return state(PLAN, dataclasses.replace(RUN, **changes), change_pending)


# The table of outcomes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "unknown", "expected"),
    [
        ("pass", "fail", "verified"),
        ("warn", "fail", "verified"),
        ("fail", "fail", "not verified"),
        ("unknown", "fail", "not verified"),
        ("unknown", "warn", "verified"),
        ("deferred", "fail", "pending"),
        ("reused", "fail", "verified"),
        ("skip", "fail", "verified"),
        ("waived", "fail", "verified"),
    ],
)
def test_each_outcome_of_a_check(outcome, unknown, expected):
    assert found(verify=checked("pass", outcome, unknown=unknown))[0] == expected


@pytest.mark.parametrize(
    ("action", "results", "expected"),
    [
        ("train", [PASSED], "verified"),
        ("skip", [], "verified"),
        ("train", [trained("fail")], "not verified"),
        ("train", [trained("fail", accepted=True)], "not verified"),
        ("train", [trained("unknown")], "not verified"),
        ("train", [trained("unknown", accepted=True)], "verified"),
        ("train", [trained("pass", framework="pytorch")], "not verified"),
        ("train", [trained("skip")], "not verified"),  # check mode
        ("train", [], "not verified"),
        ("reused", [], "verified"),
        ("deferred", [], "pending"),
        ("left out", [], "not verified"),
    ],
)
def test_each_outcome_of_a_training(action, results, expected):
    assert found(actions={"tensorflow": action}, results=results)[0] == expected


def test_what_is_deferred_keeps_a_host_verified_unless_it_was_changed(snapshot):
    deferred = {"actions": {"tensorflow": "deferred"}, "results": []}
    assert found(change_pending=False, **deferred)[0] == "kept"
    assert found(change_pending=True, **deferred)[0] == "pending"
    assert found(change_pending=True, **deferred)[1] == snapshot
    assert found(change_pending=False, verify=checked("pass", "deferred")) == ("kept", ("gpu.1: deferred",))


def test_deferred_beside_evidence_that_proves_nothing_any_more_is_expired(snapshot):
    old = {"actions": {"tensorflow": "deferred"}, "results": [], "expired": {"tensorflow": "the GPUs have changed"}}
    assert found(change_pending=False, **old)[0] == "expired"
    assert found(change_pending=False, **old)[1] == snapshot
    assert found(change_pending=True, **old)[0] == "pending"
    assert found(change_pending=False, verify=checked("fail"), **old)[0] == "not verified"
    assert found(change_pending=False, verify=checked("pass", "deferred"), **old)[0] == "expired"


def test_a_failure_outweighs_what_is_deferred():
    assert found(verify=checked("deferred", "fail"))[0] == "not verified"
    assert found(verify=checked("fail"), actions={"tensorflow": "deferred"}, results=[])[0] == "not verified"


def test_what_was_left_out_is_named(snapshot):
    state, reasons = found(verify=None, actions={}, results=[], left_out=["nccl"])
    assert state == "not verified"
    assert reasons == snapshot


def test_a_host_without_a_framework_needs_no_training():
    assert state(planned("driver"), dataclasses.replace(RUN, actions={}, results=[]), True) == ("verified", ())


# What is recorded and said ----------------------------------------------------------------------------------------


def verify(run: Run = RUN, now: str = NOW, **facts: Any) -> Verification:
    host = Probe.from_json(to_json({"gpus": [], **facts}))
    return verdict(PLAN, host, run, now)


def test_a_verified_change_is_recorded_with_its_evidence():
    evidence = verify().evidence
    assert evidence is not None
    assert (evidence.at, evidence.stack, evidence.checks) == (NOW, stack_fingerprint(PLAN), {"gpu.0": "pass"})
    assert evidence.trainings["tensorflow"].finished == NOW
    assert evidence.trainings["tensorflow"].result["loss"] == {"first": 2.0, "last": 1.0}
    assert evidence.trainings["tensorflow"].checks == {"replicas": "pass", "gpu-activity": "skip"}


def test_an_expired_verification_is_said_and_not_recorded(snapshot):
    rerun = dataclasses.replace(
        RUN, actions={"tensorflow": "deferred"}, results=[], changed=False, expired={"tensorflow": "it is too old"}
    )
    result = verify(rerun, "2027-11-21T00:00:00Z", verified=verify().evidence)
    assert result == Verification("expired", result.reasons, result.message)
    assert [*result.reasons, result.message] == snapshot


def test_a_rerun_that_finds_the_same_records_and_says_nothing():
    rerun = dataclasses.replace(RUN, actions={"tensorflow": "reused"}, results=[], changed=False)
    assert verify(rerun, "2026-11-21T00:00:00Z", verified=verify().evidence) == Verification("verified")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"verify": checked("pass", "pass")}, {}),
        ({"verify": checked("warn")}, {}),
        ({"actions": {"tensorflow": "train"}, "results": [PASSED]}, {}),
        ({"changed": True}, {}),
        ({}, {"pending": {"since": NOW}}),  # an interrupted run changed it
    ],
)
def test_other_evidence_is_recorded(changes, facts):
    rerun = Run(checked("pass"), {"tensorflow": "reused"}, [], [], changed=False)
    recorded = verify().evidence
    evidence = verify(
        dataclasses.replace(rerun, **changes), "2026-11-21T00:00:00Z", verified=recorded, **facts
    ).evidence
    assert evidence is not None
    assert evidence.at == "2026-11-21T00:00:00Z"


@pytest.mark.parametrize("recorded", [None, {}], ids=["no record", "a record of an earlier version"])
def test_a_host_without_evidence_is_recorded_although_nothing_changed(recorded):
    assert verify(dataclasses.replace(RUN, changed=False), verified=recorded).evidence is not None


def test_an_unproved_change_is_not_recorded_and_one_line_says_why(snapshot):
    skipped = Run(None, {}, [], [], changed=True)
    result = verify(skipped, verified={"at": "2026-11-01T00:00:00Z"})
    assert (result.state, result.evidence) == ("not verified", None)
    assert [result.message, verify(skipped).message] == snapshot
    assert verify(dataclasses.replace(skipped, changed=False), verified=verify().evidence).message == ""


def test_a_deferred_proof_says_whether_a_change_waits_for_it(snapshot):
    deferred = Run(checked("pass"), {"tensorflow": "deferred"}, [], [], changed=True)
    recorded = verify().evidence
    assert verify(deferred, verified=recorded).message == snapshot
    later = dataclasses.replace(deferred, changed=False)
    assert verify(later, verified=recorded, pending={"since": NOW}).state == "pending"
    kept = verify(later, verified=recorded)
    assert (kept.state, kept.evidence) == ("kept", None)
    assert kept.message == snapshot


def test_another_stack_than_the_verified_one_is_pending():
    deferred = Run(checked("pass"), {"tensorflow": "deferred"}, [], [], changed=False)
    assert verify(deferred, verified={"at": NOW, "stack": "another"}).state == "pending"
