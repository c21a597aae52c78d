"""Which hosts of a fleet are changed, in which order and batches, by what is registered for each."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import fleet

READY: dict[str, Any] = {"is_planned": True, "is_ready": True, "drift": {}, "is_pending": False}
DRIFT = {"packages": ["gpu_stack_converge is always"]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, "unchanged"),
        ({"drift": DRIFT}, "drift"),
        ({"is_pending": True}, "pending"),
        ({"drift": DRIFT, "is_pending": True}, "drift"),
        ({"is_planned": False}, "refused"),
        ({"is_ready": False}, "refused"),
        ({"is_planned": False, "is_pending": True}, "refused"),
        ({"is_ready": False, "drift": DRIFT, "is_pending": True}, "refused"),
    ],
)
def test_what_a_run_has_to_do_with_a_host(found: dict[str, Any], expected: str) -> None:
    assert fleet.state(**{**READY, **found}) == expected


UNREACHABLE = {"unreachable": True, "msg": "Failed to connect"}
NOT_PROBED = {"failed": True, "msg": "No space left on device"}


def hosts(registered: str, results: list[Any], **variables: Any) -> list[dict[str, Any]]:
    """Return the variables of hosts a, b and so on; a result that is None was not registered."""
    found = [{registered: result} if result is not None else {} for result in results]
    return [{"inventory_hostname": name, **each, **variables} for name, each in zip("abcdefg", found, strict=False)]


def planned(*results: Any, **variables: Any) -> fleet.Fleet:
    """Return the fleet by each host's state, or by what else was registered for it."""
    found = [{"state": result, "decided": {}} if isinstance(result, str) else result for result in results]
    return fleet.hosts_to_change(hosts("__gpu_stack_planned", found, **variables))


@pytest.mark.parametrize(
    ("results", "order", "ready", "to_change"),
    [
        (["unchanged", "drift", "unchanged"], "bac", "abc", "b"),
        (["pending", "unchanged", "drift"], "cab", "abc", "ca"),
        (["refused", "drift", "pending"], "bca", "bc", "bc"),
        ([None, "drift"], "ba", "b", "b"),
        ([UNREACHABLE, NOT_PROBED, "pending"], "cab", "c", "c"),
        (["refused", None], "ab", "", ""),
        ([], "", "", ""),
    ],
    ids=["drift", "pending", "refused", "not of this run", "not reached", "none", "no hosts"],
)
def test_hosts_with_drift_come_first_and_those_with_problems_last(
    results: list[Any], order: str, ready: str, to_change: str
) -> None:
    found = planned(*results)
    assert [*map("".join, (found.order, found.ready, found.to_change))] == [order, ready, to_change]


@pytest.mark.parametrize(
    ("results", "serial"),
    [
        (["drift"] * 2, "100%"),
        (["drift"] * 3, [1, "34%"]),
        (["drift", "unchanged", "unchanged"], "100%"),
        (["drift", "pending", "unchanged"], [1, "34%"]),
        (["drift", "drift", "refused"], "100%"),
        (["drift", "drift", None, UNREACHABLE], "100%"),
    ],
)
def test_from_three_hosts_on_a_change_goes_to_one_host_first(results: list[Any], serial: Any) -> None:
    assert planned(*results).serial == serial


def test_batches_that_the_user_asks_for() -> None:
    """The first host that asks counts, as a play has one value for all."""
    assert planned("drift", "drift", "drift", gpu_stack_serial=2).serial == 2
    assert planned("drift", "drift", "drift", gpu_stack_serial="").serial == [1, "34%"]
    asking = [*hosts("__gpu_stack_planned", [None]), *hosts("", [None] * 2, gpu_stack_serial="50%")]
    assert fleet.hosts_to_change(asking).serial == "50%"


IDLE, BUSY = {"failed": False, "changed": False}, {"failed": True, "msg": "Programs use the GPUs: 77 (python)"}


@pytest.mark.parametrize(
    ("results", "to_change", "serial"),
    [
        ([IDLE, BUSY, IDLE], "ac", "100%"),
        ([IDLE, IDLE, IDLE], "abc", [1, "34%"]),
        ([None, BUSY], "", "100%"),
    ],
)
def test_a_rollback_or_teardown_changes_idle_hosts(results: list[Any], to_change: str, serial: Any) -> None:
    found = fleet.hosts_to_restore(hosts("__gpu_stack_idle", results))
    assert ("".join(found.to_change), found.serial) == (to_change, serial)
    assert found.ready == found.to_change
