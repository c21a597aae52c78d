"""The filters for decisions of the playbooks, called as the playbooks call them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.filter.planning import FilterModule
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.verification.test_run_results import BEGUN, NOW, PASSED, PROBE, VERIFY, results

FILTERS = FilterModule().filters()
PLAN = BEGUN["plan"]


def test_a_failure_without_a_result_of_the_checks_is_rolled_back() -> None:
    reason = FILTERS["reason_against_rollback"]
    assert reason(results(baseline={"changed": True})) is None
    assert reason(results(baseline={"changed": True}, verified={"failed": True}, last_training={})) is None
    assert reason(results(baseline={"changed": True}, rollback=False)) == "gpu_stack_rollback is false."
    assert reason(results()) == reason(results(baseline={"changed": True}, check_mode=True)) == ""
    waits = results(baseline={"changed": True}, reboot_pending=True)
    assert reason(waits) == "the new driver waits for a reboot."


def test_each_result_reaches_the_decision_about_a_rollback() -> None:
    """A training without an answer is rolled back if it had one before, by the record on the host."""
    check = {"id": "gpu-activity", "status": "unknown"}
    failed = {"framework": "tensorflow", "status": "unknown", "checks": [check]}
    record = {"finished": NOW, "stack": "", "hardware": {}, "status": "pass", "checks": {"gpu-activity": "pass"}}
    answered = {**PROBE, "verified": {"trainings": {"tensorflow": record}}}
    run: dict[str, Any] = {"baseline": {"changed": True}, "last_training": failed}
    assert FILTERS["reason_against_rollback"](results(**run, probe=answered)) is None
    assert "nothing is known of it from before" in FILTERS["reason_against_rollback"](results(**run))
    assert FILTERS["failed_training"](results(**run)) == "tensorflow"
    assert FILTERS["failed_training"](results(**run, training_scope="cluster")) == ""
    assert FILTERS["failed_training"](results(last_training={**failed, "status": "pass"})) == ""
    hardware = {"id": "gpu.ecc", "status": "fail", "cause": "hardware", "found": "1", "expected": "0", "remedy": "x"}
    verify = {"status": "fail", "checks": [hardware]}
    found = FILTERS["reason_against_rollback"](results(baseline={"changed": True}, verified={"verify": verify}))
    assert found == "the hardware is at fault, which no other version repairs (gpu.ecc)."


def test_failure_message_has_the_tasks_name() -> None:
    assert FILTERS["failure_message"]({"msg": "No space left"}, "Install") == "Install: No space left"


def test_requested_framework_may_be_empty() -> None:
    assert FILTERS["training_refusal"](PLAN, "") == ""
    found = FILTERS["trainings"](results(requested_framework=""))
    assert found["tensorflow"]["action"] == "train"


def test_values_of_variables_that_cannot_be_used_are_named() -> None:
    with pytest.raises(AnsibleFilterError, match=r"gpuhost\.stack\.trainings: smoke_train_max_age is 'soon'"):
        FILTERS["trainings"](results(training_max_age="soon"))


def test_evidence_of_a_run_serves_the_next_one() -> None:
    decided = FILTERS["trainings"](results(baseline={"changed": True}))
    run = {"verified": {"verify": VERIFY}, "baseline": {"changed": True}, "trained": [PASSED]}
    first = FILTERS["verification"](results(**run, trainings=decided))
    probe = {**PROBE, "verified": first["evidence"]}
    decided = FILTERS["trainings"](results(probe=probe))
    assert decided["tensorflow"]["action"] == "reused"
    second = FILTERS["verification"](results(probe=probe, trainings=decided, verified={"verify": VERIFY}))
    assert (second["state"], second["evidence"], second["message"]) == ("verified", None, "")


def test_programs_on_the_gpus_and_hidden_gpus_defer_or_skip_a_training() -> None:
    busy = {"verify": {**VERIFY, "gpu_jobs": "77 (python)"}}
    assert FILTERS["trainings"](results(verified=busy))["tensorflow"]["action"] == "deferred"
    hidden = {"id": "cuda.devices", "status": "skip", "reason": "MIG", "setting": "MIG is on"}
    verify = {"status": "pass", "checks": [hidden]}
    assert FILTERS["trainings"](results(verified={"verify": verify}))["tensorflow"]["action"] == "skip"


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        ({}, "verified", ""),
        ({"verified": None}, "not verified", "the checks were left out"),
        ({"trainings": None}, "not verified", "the training with TensorFlow was left out"),
        ({"trained": None}, "not verified", "the training with TensorFlow did not pass"),
        ({"left_out": ["nccl"]}, "not verified", "nccl was left out"),
        (
            {"trainings": {"tensorflow": {"action": "deferred", "expired": "it is too old"}}, "baseline": None},
            "pending",
            "the training with TensorFlow waits for idle GPUs",
        ),
    ],
)
def test_each_result_reaches_the_verdict(found: dict[str, Any], state: str, reason: str) -> None:
    run = {"verified": {"verify": VERIFY}, "trainings": {"tensorflow": {"action": "train"}}, "trained": [PASSED]}
    verdict = FILTERS["verification"](results(**{**run, "baseline": {"changed": True}, **found}))
    assert (verdict["state"], reason in "; ".join(verdict["reasons"])) == (state, True)


def test_the_record_has_the_gpus_after_the_change() -> None:
    run = {"verified": {"verify": VERIFY}, "trainings": {"tensorflow": {"action": "train"}}, "trained": [PASSED]}
    again = {"probe": {**PROBE, "gpus": []}}
    evidence = FILTERS["verification"](results(**run, baseline={"changed": True}, probed_again=again))["evidence"]
    assert evidence["trainings"]["tensorflow"]["hardware"]["gpus"] == []
    assert evidence["at"] == NOW


def test_a_damaged_host_is_not_verified_whatever_its_checks_say(snapshot: SnapshotAssertion) -> None:
    text = "LD_LIBRARY_PATH in /etc/environment was missing, is LD_LIBRARY_PATH=/x"
    applied = {
        "env_paths": {"damage": {"LD_LIBRARY_PATH in /etc/environment": text}, "accepted": {"file /a": "is new"}}
    }
    damage = FILTERS["damage"]({**PROBE, "applied": applied})
    assert (list(damage["left"]), damage["accepted"]) == (
        ["LD_LIBRARY_PATH in /etc/environment"],
        {"file /a": "is new"},
    )
    assert damage["text"] == snapshot
    assert FILTERS["damage"](PROBE)["text"] == ""
    run: dict[str, Any] = {"verified": {"verify": VERIFY}, "trained": [PASSED]}
    run["trainings"] = {"tensorflow": {"action": "train"}}
    for found, state in ((FILTERS["damage"](PROBE), "verified"), (damage, "not verified")):
        verdict = FILTERS["verification"](results(**run, damage=found))
        assert verdict["state"] == state
    assert verdict["message"] == snapshot


def test_a_probe_that_cannot_be_read_is_an_error_of_the_template() -> None:
    with pytest.raises(AnsibleFilterError, match=r"gpuhost\.stack\.verification: probe\.gpus"):
        FILTERS["verification"](results(probe={"gpus": 3}))


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("training_refusal", [{}], "gpu_stack_plan.distribution: missing; gpu_stack_plan.request: missing; "),
        (
            "trainings",
            [results(plan={**PLAN, "components": 5})],
            "gpu_stack_plan.components: expected an object, found 5; run",
        ),
        (
            "reason_against_rollback",
            [results(verified={"verify": {"checks": [{"id": "a"}]}})],
            "verify.checks[0].status: missing",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_of_the_template(name: str, arguments: list[Any], wrong: str) -> None:
    with pytest.raises(AnsibleFilterError, match=re.escape(f"gpuhost.stack.{name}: {wrong}")):
        FILTERS[name](*arguments)
