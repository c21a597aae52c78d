"""Decide which hosts of a fleet a run changes, in which order, and how many at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

REFUSED = "refused"  # it has no plan, or something on it prevents the plan
DRIFT = "drift"  # it has parts to apply
PENDING = "pending"  # nothing is left to apply, but its last change waits to be verified, and may be rolled back
UNCHANGED = "unchanged"

PLANNED, IDLE = "__gpu_stack_planned", "__gpu_stack_idle"  # what the playbooks register
CHANGE_FAILED, IN_BATCH = "__gpu_stack_change_failed", "__gpu_stack_failed_before"  # facts of hosts in a batch
SERIAL = "gpu_stack_serial"
ALL_AT_ONCE = "100%"
ONE_THEN_THIRDS = (1, "34%")  # a fleet never loses its GPUs at once

Variables = Mapping[str, Any]  # of a host, as `hostvars` has them


def state(*, is_planned: bool, is_ready: bool, drift: Collection[str], is_pending: bool) -> str:
    """Return what a run has to do with a host: REFUSED, DRIFT, PENDING or UNCHANGED.

    is_planned: it has a plan; is_ready: its preflight has no problems; drift: the parts to apply; is_pending: a change
    of an earlier run waits to be verified.
    """
    if not (is_planned and is_ready):
        return REFUSED
    return DRIFT if drift else PENDING if is_pending else UNCHANGED


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The hosts of a run by name.

    order: all of them, those to change first, so that a first batch of one host is one of them. ready: those of this
    run that are not refused. serial: how many hosts at a time, as the keyword of a play takes it. begun: those that
    have been in a batch; failed: those whose change has failed, which may end the run.
    """

    order: tuple[str, ...]
    ready: tuple[str, ...]
    to_change: tuple[str, ...]
    serial: Any
    begun: tuple[str, ...]
    failed: tuple[str, ...]


def hosts_to_change(hosts: Iterable[Variables]) -> Fleet:
    """Return the hosts of a run that plans; hosts: their variables, with what stack_plan returned for each.

    A host that could not be reached or probed, or that this run has not planned for, counts as refused: what stack_plan
    decided is registered, never from a fact cache. Those with drift come before those with a change that is pending.
    """
    found = list(hosts)
    states = {_name(host): (host.get(PLANNED) or {}).get("state", REFUSED) for host in found}
    first = [name for wanted in (DRIFT, PENDING) for name, each in states.items() if each == wanted]
    return _fleet(found, [name for name, each in states.items() if each != REFUSED], first)


def hosts_to_restore(hosts: Iterable[Variables]) -> Fleet:
    """Return the hosts of a rollback or teardown, which changes all on which no program was found to use the GPUs.

    hosts: their variables, with the registered result of the assertion of that.
    """
    found = list(hosts)
    checked = {_name(host): host.get(IDLE) for host in found}
    idle = [name for name, result in checked.items() if result is not None and not result.get("failed")]
    return _fleet(found, idle, idle)


def _fleet(hosts: Sequence[Variables], ready: Sequence[str], to_change: Sequence[str]) -> Fleet:
    wanted = [host[SERIAL] for host in hosts if host.get(SERIAL)]
    serial = list(ONE_THEN_THIRDS) if len(ready) > 2 and len(to_change) > 1 else ALL_AT_ONCE
    order = dict.fromkeys([*to_change, *map(_name, hosts)])
    begun = tuple(_name(host) for host in hosts if IN_BATCH in host)
    failed = tuple(_name(host) for host in hosts if host.get(CHANGE_FAILED))
    return Fleet(tuple(order), tuple(ready), tuple(to_change), (wanted or [serial])[0], begun, failed)


def _name(host: Variables) -> str:
    return str(host["inventory_hostname"])
