"""The steps of a package transaction, in order, and what follows when apt, dpkg or the repository fails.

The scenarios undo, upgrade and distro_packages verify that apt and dpkg execute them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils import package_cases
from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.lock_holder import held
from tests.unit.module_utils.other_transaction import OtherTransaction
from tests.unit.module_utils.package_cases import CaseHost
from tests.unit.module_utils.real_dpkg import RealDpkg, needs_dpkg
from tests.unit.module_utils.simulated_packages import parse

EMPTY = transaction.PackageRequest([], [], [], [], [], [], [])
SPECS = ("packages", "helpers", "pins", "versions")
CASES = package_cases.load(Path(__file__).with_name("transaction_cases.yml"))


def recorded(text: str) -> dict[str, Any] | None:
    """Return the entry of the journal: `new`, or `VERSION [hold] [auto]`."""
    version, *marks = text.split()
    return None if text == "new" else {"version": version, "held": "hold" in marks, "auto": "auto" in marks}


class Case:
    """A row with its host. `found`: all that a row can say about the result."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **row: Any) -> None:
        self.row = {"before": {"a": "1"}, "offers": ["a=2"], "ask": {}, **row}
        self.directory = directory
        monkeypatch.setattr(apt_commands, "PREFERENCES", str(directory / "preferences.d"))
        self.host = CaseHost(directory, self.row)
        monkeypatch.setattr(transaction.os, "sync", lambda: self.host.ran.append("sync"))
        self.journal = {name: recorded(text) for name, text in self.row.get("recorded", {}).items()}
        ours = [n for n, text in self.row["before"].items() if "hold" in text.split() and "theirs" not in text.split()]
        self.journal.update((name, recorded("0")) for name in ours)
        store.record_packages(str(directory), self.journal)

    def transaction(self, wait: int = 1, check: bool = False) -> transaction.Transaction:
        asked = {"packages": ["a=2"], **self.row["ask"]}
        request = EMPTY._replace(**{key: parse(*v) if key in SPECS else v for key, v in asked.items()})
        undo = "undo" not in self.row
        progress = str(self.directory / transaction_lock.PROGRESS)
        kept = str(self.directory / "packages") if undo else ""
        apt = apt_commands.Apt(self.host, wait, kept, str(self.host.root), progress)
        return transaction.Transaction(request, apt, str(self.directory), undo, check)

    def found(self, check: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {"error": ""}
        try:
            result = self.transaction(check=check).run()
            found |= {"changes": result.changes, "left_out": list(result.left_out), "diff": result.diff()}
            found |= {"remaining": result.before.remaining, "not_kept": result.not_kept}
        except transaction.TransactionError as error:
            found |= {"error": str(error).replace(str(self.directory), ""), **error.details}
            found["code"] = error.details.get("problem", {}).get("code")
            found["rc"] = str(error.details.get("rc"))
        journal = store.journal(str(self.directory))
        return {
            **found,
            "commands": self.host.ran,
            "runs": self.host.changing(),
            "keeps": self.host.keeps,
            "simulates": [command for command in self.host.ran if command.startswith("apt-get --simulate")],
            "bound": self.host.bound,
            "preferences_at_install": self.host.preferences_at_install,
            "after": package_cases.shown(self.host.packages),
            "automatic_after": sorted(self.host.automatic),
            "journal": {name: entry for name, entry in journal.items() if name not in self.journal},
        }


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Case]:
    return lambda **row: Case(tmp_path, monkeypatch, **row)


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_transaction(row: dict[str, Any], case: Callable[..., Case], tmp_path: Path) -> None:
    this = case(**row)
    expected = package_cases.expected(this.row)
    before = package_cases.shown(this.host.packages)
    if "journal" in row:
        expected["journal"] = {name: recorded(text) for name, text in row["journal"].items()}
    checked = found = this.found(check=True)
    downloaded = [command for command in found["runs"] if command.startswith("apt-get download ")]  # of pins
    assert (found["runs"], found["after"]) == (downloaded, before), "check mode changes nothing"
    assert store.journal(str(tmp_path)) == this.journal
    assert not (tmp_path / transaction_lock.LOCK).exists()
    if "check" not in row:
        this.host.forget()
        found = this.found()
    assert {key: found[key] for key in expected} == expected
    if found["error"].startswith("Nothing was changed: "):
        assert (
            checked["error"] == found["error"] == "Nothing was changed: {message}\n{remedy}".format(**found["problem"])
        )
        listed = [line[2:] for line in found["error"].splitlines() if line.startswith("  ")]
        assert found.get("unplanned", listed) == listed
        assert found["journal"] == {}
    if "check" in row:
        return
    assert not list(filter(Path.exists, this.host.bound_by)), "the folder of preferences is removed"
    record = store.read(str(tmp_path), store.TRANSACTION) or {}
    if found["error"]:
        assert str(record["failed"]).replace(str(tmp_path), "") == found["error"]
        return
    assert (record.get("changes", 0), record.get("failed")) == (len(found["changes"]), None)
    if "not_simulated" in row:
        assert checked["changes"] == []
    else:
        assert {key: checked[key] for key in ("changes", "diff", "remaining")}.items() <= found.items()
    if "reinstall" not in this.row["ask"]:
        this.host.forget()
        again = this.found()
        assert (again["runs"], again["changes"], again["remaining"], again["diff"]) == ([], [], [], "")
        assert again["left_out"] == found["left_out"]


def shown_progress(directory: Path) -> Path:
    """Return a second name of the file of progress, which is removed at the end."""
    (directory / transaction_lock.PROGRESS).touch()
    os.link(directory / transaction_lock.PROGRESS, directory / "shown")
    return directory / "shown"


def test_nothing_is_begun_while_another_process_holds_a_lock(case: Callable[..., Case], tmp_path: Path) -> None:
    """As when unattended-upgrade starts between the plan and the transaction. The apt of this host waits for 1 s."""
    this, shown = case(), shown_progress(tmp_path)
    with held(this.host.root / "var/lib/dpkg/lock-frontend") as holder:
        assert f"process {holder.pid} (" in this.found()["error"]
        assert shown.read_text().startswith("step:waiting")
        assert f"process {holder.pid} (" in shown.read_text()
        this.transaction(check=True).run()
    assert this.host.changing() == []
    assert store.journal(str(tmp_path)) == {}
    assert this.found()["after"] == {"a": "2 hold"}


def lock_is_free(directory: Path) -> bool:
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(directory / transaction_lock.LOCK)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_transaction_holds_the_lock(
    case: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this, free = case(), []
    monkeypatch.setattr(transaction.os, "sync", lambda: free.append(lock_is_free(tmp_path)))
    assert this.found()["error"] == ""
    assert free == [False]
    assert lock_is_free(tmp_path)


def test_the_packages_are_read_when_another_transaction_has_ended(case: Callable[..., Case], tmp_path: Path) -> None:
    """What another run has installed meanwhile is not installed again."""
    this, other = case(), OtherTransaction(str(tmp_path))

    def end_of_the_other() -> None:
        this.host.set({"a": ("2", "installed", "hold")})
        other.end()

    threading.Timer(0.5, end_of_the_other).start()
    assert this.transaction(wait=30).run().changes == []
    assert this.host.changing() == []


def test_a_transaction_that_does_not_end_is_named(case: Callable[..., Case], tmp_path: Path) -> None:
    this, other = case(), OtherTransaction(str(tmp_path))
    found = this.found()
    assert f" process {other.process.pid} " in found["error"]
    assert found["runs"] == []
    other.end()


def test_an_undo_is_in_the_progress(case: Callable[..., Case], tmp_path: Path) -> None:
    this, shown = case(installs=["dpkg failed"]), shown_progress(tmp_path)
    assert this.found()["error"]
    assert "step:undoing the failed installation\n" in shown.read_text()


def test_a_failure_has_the_logs_of_modules_that_did_not_build(
    case: Callable[..., Case], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    this = case(installs=["dpkg failed"])
    put(this.host.root, "var/lib/dpkg/info/a.list", "/.\n/usr/src/nvidia-2/dkms.conf\n")
    log = put(this.host.root, "var/lib/dkms/nvidia/2/build/make.log", "error: cause\n")
    os.utime(log, (2**32, 2**32))  # as if written while apt ran, which older ones were not
    found = this.found()
    assert found["error"] == snapshot
    assert (found["rc"], found["make_logs"]) == ("100", {str(log): "error: cause\n"})


@needs_dpkg
def test_dpkg_installs_missing_settings_again_and_keeps_edited_ones(tmp_path: Path) -> None:
    """What the options of a repair mean is dpkg's decision."""
    dpkg = RealDpkg(tmp_path / "root")
    deb = dpkg.build("pin", {"/etc/pin": "1", "/etc/edited": "1"}, conffiles=["/etc/pin", "/etc/edited"])
    dpkg.install(deb)
    (dpkg.root / "etc/pin").unlink()
    (dpkg.root / "etc/edited").write_text("2")
    dpkg.install(deb, *apt_commands.DPKG[1:])
    assert not (dpkg.root / "etc/pin").exists(), "without the option, dpkg respects that it was deleted"
    dpkg.install(deb, *apt_commands.DPKG[1:], "--force-confmiss")
    assert (dpkg.root / "etc/pin").read_text() == "1"
    assert (dpkg.root / "etc/edited").read_text() == "2"
