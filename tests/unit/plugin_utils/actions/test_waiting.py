"""Waiting for a busy host, with a clock of our own."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import waiting
from syrupy.assertion import SnapshotAssertion

BUSY = "apt is busy: process 812 (unattended-upgrade) holds /var/lib/dpkg/lock"
STARTING = "cloud-init still sets up this host"


def waits(seconds: float, rounds: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """Return what is printed and the number of probes of the host, of which each takes 1 s and finds other reasons."""
    now, shown = [0.0], list[str]()
    monkeypatch.setattr(waiting.time, "sleep", lambda pause: now.__setitem__(0, now[0] + pause))
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    wait = waiting.Waiting("gpu1", seconds, show=shown.append)
    for number, reasons in enumerate(rounds, 1):
        now[0] += 1
        if not wait.goes_on(reasons):
            assert wait.left == max(0.0, seconds - wait.waited)
            return shown, number
    pytest.fail("it did not end")


def test_a_busy_host_is_looked_at_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    shown, looks = waits(600, [[STARTING], [STARTING], [BUSY], []], monkeypatch)
    assert looks == 4
    assert shown == snapshot


def test_a_long_wait_is_printed_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _looks = waits(600, [[BUSY]] * 25 + [[]], monkeypatch)
    assert [line.split(" s ")[0].split()[-1] for line in shown[:-1]] == ["600", "540", "480"]
    assert "waited 150 s" in shown[-1]


def test_the_wait_ends(monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    shown, looks = waits(7, [[BUSY]] * 9, monkeypatch)
    assert looks == 3
    assert shown[-1] == snapshot


@pytest.mark.parametrize(("seconds", "reasons"), [(600, []), (0, [BUSY])])
def test_no_wait_and_nothing_printed(seconds: float, reasons: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits(seconds, [reasons], monkeypatch) == ([], 1)
