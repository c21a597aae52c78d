"""The filters for decisions of the playbooks, called as the playbooks call them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.filter.planning import FilterModule
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import planned

FILTERS = FilterModule().filters()
PROBE: dict[str, Any] = {"gpus": [{"pci_id": "10de:2335", "pci_address": "0000:05:00.0"}]}
PLAN = planned("tensorflow").to_json()
NOW = "2026-11-20T00:00:00Z"


def test_a_failure_without_a_result_of_the_checks_is_rolled_back() -> None:
    conditions = {"changed": True, "check_mode": False, "reboot_pending": False, "enabled": True}
    assert FILTERS["reason_against_rollback"](None, **conditions) is None
    assert FILTERS["reason_against_rollback"](None, training={}, verified=None, **conditions) is None
    assert (
        FILTERS["reason_against_rollback"](None, **{**conditions, "enabled": False}) == "gpu_stack_rollback is false."
    )


def test_failure_message_has_the_tasks_name() -> None:
    assert FILTERS["failure_message"]({"msg": "No space left"}, "Install") == "Install: No space left"


def test_requested_framework_may_be_empty() -> None:
    assert FILTERS["training_refusal"](PLAN, "") == ""
    found = FILTERS["trainings"](PLAN, PROBE, changed=False, jobs="", now=NOW, framework="")
    assert found["tensorflow"]["action"] == "train"


def test_values_of_variables_that_cannot_be_used_are_named() -> None:
    with pytest.raises(AnsibleFilterError, match=r"gpuhost\.stack\.trainings: smoke_train_max_age is 'soon'"):
        FILTERS["trainings"](PLAN, PROBE, changed=False, jobs="", now=NOW, max_age="soon")


def test_evidence_of_a_run_serves_the_next_one() -> None:
    decided = FILTERS["trainings"](PLAN, PROBE, changed=True, jobs="", now=NOW)
    verify = {"status": "pass", "checks": [{"id": "gpu.xid_errors", "status": "pass"}]}
    run = {"verify": verify, "results": [{"framework": "tensorflow", "status": "pass", "checks": []}], "left_out": []}
    first = FILTERS["verification"](PLAN, PROBE, trainings=decided, changed=True, now=NOW, **run)
    probe = {**PROBE, "verified": first["evidence"]}
    decided = FILTERS["trainings"](PLAN, probe, changed=False, jobs="", now=NOW)
    assert decided["tensorflow"]["action"] == "reused"
    run["results"] = []
    second = FILTERS["verification"](PLAN, probe, trainings=decided, changed=False, now=NOW, **run)
    assert (second["state"], second["evidence"], second["message"]) == ("verified", None, "")


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
    verify = {"status": "pass", "checks": [{"id": "gpu.xid_errors", "status": "pass"}]}
    passed: dict[str, Any] = {"framework": "tensorflow", "status": "pass", "checks": []}
    run: dict[str, Any] = {
        "verify": verify,
        "trainings": {"tensorflow": {"action": "train"}},
        "results": [passed],
        "left_out": [],
    }
    for damaged, state in (([], "verified"), (damage["left"], "not verified")):
        found = FILTERS["verification"](PLAN, PROBE, changed=False, now=NOW, damaged=damaged, **run)
        assert found["state"] == state
    assert found["message"] == snapshot


def test_a_probe_that_cannot_be_read_is_an_error_of_the_template() -> None:
    run = {"verify": None, "trainings": {}, "results": [], "left_out": [], "changed": True, "now": NOW}
    with pytest.raises(AnsibleFilterError, match=r"gpuhost\.stack\.verification: probe\.gpus"):
        FILTERS["verification"](PLAN, {"gpus": 3}, **run)


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("training_refusal", [{}], "gpu_stack_plan.distribution: missing; run playbooks/gpu_host.yml"),
        (
            "trainings",
            [{**PLAN, "components": 5}, PROBE],
            "gpu_stack_plan.components: expected an object, found 5; run",
        ),
        ("reason_against_rollback", [{"checks": [{"id": "a"}]}], "verify.checks[0].status: missing"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_the_template(name: str, arguments: list[Any], wrong: str) -> None:
    options = {"trainings": {"changed": False, "jobs": "", "now": NOW}}.get(name, {})
    with pytest.raises(AnsibleFilterError, match=re.escape(f"gpuhost.stack.{name}: {wrong}")):
        FILTERS[name](*arguments, **options)


def test_packages_of_planned_roles_are_merged() -> None:
    assert FILTERS["package_transaction"]({"nccl": {"packages": ["a"]}}, ["nccl"], []) == {"packages": ["a"]}
