"""The filters for decisions of the playbooks, called as the playbooks call them."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.filter.planning import FilterModule

FILTERS = FilterModule().filters()


def test_a_failure_without_a_result_of_the_checks_is_rolled_back() -> None:
    conditions = {"changed": True, "check_mode": False, "reboot_pending": False, "enabled": True}
    assert FILTERS["reason_against_rollback"](None, **conditions) is None
    assert (
        FILTERS["reason_against_rollback"](None, **{**conditions, "enabled": False}) == "gpu_stack_rollback is false."
    )


def test_failure_message_has_the_tasks_name() -> None:
    assert FILTERS["failure_message"]({"msg": "No space left"}, "Install") == "Install: No space left"


def test_requested_framework_may_be_empty() -> None:
    plan = {"components": {"tensorflow": {"version": "2.21.0"}, "pytorch": None}}
    assert FILTERS["training_frameworks"](plan, "") == ["tensorflow"]
    assert FILTERS["training_refusal"](plan, "") == ""


def test_packages_of_planned_roles_are_merged() -> None:
    assert FILTERS["package_transaction"]({"nccl": {"packages": ["a"]}}, ["nccl"], []) == {"packages": ["a"]}
