"""Locks and their holders, and packages that dpkg left between two states."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_state, dpkg

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.lock_holder import held

FIXTURES = Path(__file__).parents[4] / "fixtures"


def test_a_lock_and_its_holder_are_found_without_waiting(tmp_path: Path) -> None:
    put(tmp_path, dpkg.STATUS_FILE)
    path = put(tmp_path, "/var/lib/dpkg/lock-frontend")
    assert to_json(apt_state.read(str(tmp_path), {})) == {
        "name": "apt",
        "locks": [],
        "broken": [],
        "interrupted": False,
    }
    with held(path) as holder:
        found = apt_state.read(str(tmp_path), {})
    assert found is not None
    assert [(lock.path, lock.pid) for lock in found.locks] == [("/var/lib/dpkg/lock-frontend", holder.pid)]
    assert str(found.locks[0].command).startswith(sys.executable)


def test_finding_a_lock_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment, in which apt would fail. A process never sees locks of its own, so the calls are asked."""
    calls = []
    for name in ("fcntl", "flock", "lockf"):
        real = getattr(fcntl, name)

        def call(*arguments: Any, name: str = name, real: Any = real) -> Any:
            calls.append((name, arguments[1]))
            return real(*arguments)

        monkeypatch.setattr(fcntl, name, call)
    put(tmp_path, dpkg.STATUS_FILE)
    put(tmp_path, "/var/lib/dpkg/lock")
    apt_state.read(str(tmp_path), {})
    assert calls == [("fcntl", fcntl.F_GETLK)]


def broken(tmp_path: Path, status: bytes) -> list[dict[str, Any]]:
    put(tmp_path, dpkg.STATUS_FILE, status)
    found = apt_state.read(str(tmp_path), {})
    assert found is not None
    return list(to_json(found.broken))


def test_packages_between_two_states_are_broken(tmp_path: Path) -> None:
    half = (FIXTURES / "preflight/dpkg-status-half-configured.txt").read_bytes()
    assert broken(tmp_path, half) == [{"name": "gpuhost-test", "state": "half-configured", "of_others": True}]
    assert broken(tmp_path, (FIXTURES / "probe/dpkg-status-debian-12.txt").read_bytes()) == []


def test_a_package_to_reinstall_is_broken_and_pending_triggers_are_not(tmp_path: Path) -> None:
    status = b"Package: a\nStatus: install reinstreq half-installed\n\n"
    status += b"Package: b\nStatus: install ok triggers-pending\n"
    assert broken(tmp_path, status) == [{"name": "a", "state": "reinstreq half-installed", "of_others": True}]


def test_broken_packages_are_those_of_dpkg_query(tmp_path: Path) -> None:
    lines = (FIXTURES / "probe/dpkg-query-states.txt").read_text().splitlines()
    expected = {line.split("|")[0] for line in lines if line.split()[-1] in ("half-configured", "unpacked")}
    found = broken(tmp_path, (FIXTURES / "probe/dpkg-status-states.txt").read_bytes())
    assert {package["name"] for package in found} == expected


def test_a_journal_is_an_interrupted_dpkg_and_its_scratch_file_is_not(tmp_path: Path) -> None:
    put(tmp_path, dpkg.STATUS_FILE)
    put(tmp_path, "/var/lib/dpkg/updates/tmp.i")
    assert apt_state.read(str(tmp_path), {}).interrupted is False
    put(tmp_path, "/var/lib/dpkg/updates/0003")
    assert apt_state.read(str(tmp_path), {}).interrupted is True


def test_without_dpkg_there_is_no_package_manager(tmp_path: Path) -> None:
    assert apt_state.read(str(tmp_path), {}) is None
