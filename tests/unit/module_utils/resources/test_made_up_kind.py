"""A kind that the project does not have: its module, and a line of KINDS, which are all that it needs.

It goes through what a host's own kinds go through: damage beside theirs, a run that repairs it or is killed, a rollback
that is killed between the change and what follows, a teardown.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import (
    Host,
    Kind,
    Restoration,
    States,
    Watch,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import LDCONFIG, Effects
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, recording, rollback

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.simulated_packages import SimulatedPackages
from tests.unit.module_utils.state.applied_host import CHANGES, WATCH, Systemd, build, differences

KEY, PLACE = "/opt/lab/lib", "etc/ld.so.conf"
OTHERS = "include /etc/ld.so.conf.d/*.conf\n"  # the whole file of Debian's package libc-bin
NAME = f"linker directory {KEY}"


class LinkerDirectory(Kind):
    """A directory in which the dynamic linker searches: a line of a file that has others' lines, too (ldconfig(8))."""

    name, title = "linker_directory", "linker directory"
    watches = ("linker_directories",)
    record = "linker_directories"
    path = f"/{PLACE}"

    def read(self, host: Host, watch: Watch) -> States:
        lines = (files.read_text(host.root, self.path) or "").splitlines()
        return {key: "listed" if key in lines else None for key in watch.get("linker_directories") or ()}

    def write(self, work: Restoration, wanted: States) -> list[str]:
        changed = list(self.differing(wanted, self.read(work.host, {"linker_directories": list(wanted)})))
        if changed and not work.check:
            work.effects.add_effects([LDCONFIG])
            lines = (files.read_text(work.host.root, self.path) or "").splitlines()
            lines = [line for line in lines if line not in changed] + [key for key in changed if wanted[key]]
            files.write(files.under(work.host.root, self.path), "".join(f"{line}\n" for line in lines).encode())
        return [self.name_of(key) for key in changed]


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> LinkerDirectory:
    made_up = LinkerDirectory()
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, made_up))
    return made_up


class Runs:
    """Runs on a host that watches one thing of each kind."""

    def __init__(self, root: Path) -> None:
        self.root, self.systemd, self.directory = build(root), Systemd(), str(root / "var/lib/gpuhost")
        put(self.root, PLACE, f"{OTHERS}{KEY}\n")
        self.end()

    def begin(self) -> None:
        applied.begin(self.directory, {"all": "f"}, str(self.root), self.systemd)

    def end(self, **options: Any) -> None:
        parts = {"all": {"fingerprint": "f", "watch": {**WATCH, "linker_directories": [KEY]}}}
        applied.record(self.directory, parts, str(self.root), self.systemd, **options)

    def found(self, **options: Any) -> dict[str, Any]:
        return dict(differences("/var/lib/gpuhost", str(self.root), self.systemd, **options)["all"])


@pytest.fixture
def runs(tmp_path: Path, kind: LinkerDirectory) -> Runs:
    return Runs(tmp_path)


@pytest.mark.parametrize("beside", [None, *CHANGES])
def test_its_damage_is_found_beside_each_other_one(beside: str | None, runs: Runs) -> None:
    put(runs.root, PLACE, OTHERS)
    if beside:
        CHANGES[beside][0](runs.root)
    found = runs.found()
    assert found["damage"][NAME] == f"{NAME} was listed, is missing"
    assert len(found["changed"]) == (2 if beside else 1)


def test_a_run_leaves_none_and_no_run_is_blamed_for_its_own_change(runs: Runs) -> None:
    put(runs.root, PLACE, OTHERS)
    runs.begin()
    with pytest.raises(ValueError, match=f"not repaired:\n  {NAME} was listed, is missing"):
        runs.end()
    runs.end(accepted=[NAME])
    assert runs.found()["damage"] == {NAME: f"{NAME} was listed, is missing"}
    assert runs.found(accepted=[NAME])["accepted"] == {NAME: f"{NAME} was listed, is missing"}
    put(runs.root, PLACE, f"{OTHERS}{KEY}\n")
    runs.begin()
    put(runs.root, PLACE, OTHERS)  # by the run, which is killed
    assert (runs.found()["changed"], runs.found()["damage"]) == ([], {})
    runs.end()
    assert runs.found()["changed"] == []


class Killed(BaseException):
    """The end of a process in the middle of what it does."""


class Changes:
    """A host that was set up and verified, then changed: a package, a file and a linker directory."""

    def __init__(self, tmp_path: Path, kind: LinkerDirectory) -> None:
        self.directory, self.file, self.conf = str(tmp_path / "state"), tmp_path / "file", tmp_path / PLACE
        kind.path = str(self.conf)  # the root of a rollback is /
        put(tmp_path, PLACE, OTHERS)
        self.packages = SimulatedPackages(tmp_path / "root", {})
        watch = {"files": [str(self.file)], "linker_directories": [KEY]}
        recording.record_baseline(self.directory, watch)
        store.record_packages(self.directory, {"libnccl2": None})
        self.packages.set({"libnccl2": ("2.29.7-1", "installed", "hold")})
        self.file.write_text("verified\n")
        self.conf.write_text(f"{OTHERS}{KEY}\n")
        recording.record_applied(self.directory, {"part": {"fingerprint": "f", "watch": watch}})
        recording.record_verified(self.directory, self.packages.apt(), {"components": {}}, watch)
        self.verified = self.state()
        self.kill_before: str | None = None

    def state(self) -> tuple[Any, ...]:
        return (
            dict(self.packages.packages),
            self.file.read_text() if self.file.exists() else None,
            self.conf.read_text(),
        )

    def change(self, *what: str) -> None:
        if "package" in what:
            self.packages.set({"libnccl2": ("2.32.3-1", "installed", "hold")})
        if "file" in what:
            self.file.write_text("changed\n")
        if "linker directory" in what:
            self.conf.write_text(OTHERS)

    def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if self.kill_before and self.kill_before in command:
            raise Killed
        return self.packages(command, **options)

    def restore(self, to: str = store.VERIFIED, check: bool = False) -> list[str]:
        self.packages.commands.clear()
        result = rollback.Rollback(self.directory, self.packages.apt(), self, check).restore(to, [])
        assert result is not None
        assert result.warnings == []
        return result.changes


@pytest.fixture
def changes(tmp_path: Path, kind: LinkerDirectory) -> Changes:
    return Changes(tmp_path, kind)


PARTS = ("package", "file", "linker directory")


@pytest.mark.parametrize("what", [each for size in (1, 2, 3) for each in itertools.combinations(PARTS, size)])
def test_a_rollback_restores_it_beside_others_and_the_next_run_finds_no_damage(
    what: tuple[str, ...], changes: Changes
) -> None:
    changes.change(*what)
    before = changes.state()
    reported = changes.restore(check=True)
    assert changes.state() == before
    restored = changes.restore()
    assert [change for change in restored if change != "libnccl2 (hold)"] == reported  # it is held until it is replaced
    assert (NAME in reported) is ("linker directory" in what)
    assert changes.state() == changes.verified
    assert differences(changes.directory)["part"]["changed"] == []
    assert changes.restore() == []


def test_a_run_repairs_it_by_writing_what_was_applied(changes: Changes, kind: LinkerDirectory) -> None:
    part = store.read(changes.directory, store.APPLIED)["parts"]["part"]
    changes.change("linker directory")
    assert list(differences(changes.directory)["part"]["damage"]) == [NAME]
    applied.begin(changes.directory, {"part": "f"})
    work = Restoration(recording.HOST, changes, Effects(changes, changes.directory), check=False)
    assert kind.write(work, part["resources"][kind.name]) == [NAME]
    assert work.effects.run() == []
    recording.record_applied(changes.directory, {"part": part})
    assert (changes.state(), differences(changes.directory)["part"]["changed"]) == (changes.verified, [])


def test_a_rollback_that_is_killed_before_what_follows_is_made_up_for(changes: Changes) -> None:
    changes.change("linker directory")
    changes.kill_before = "ldconfig"
    with pytest.raises(Killed):
        changes.restore()
    assert changes.state() == changes.verified  # so that nothing differs any more
    changes.kill_before = None
    assert changes.restore() == []
    assert changes.packages.run("ldconfig") == [["ldconfig"]]
    assert Effects(changes, changes.directory).waiting == []
    changes.restore()
    assert changes.packages.run("ldconfig") == []


@pytest.mark.parametrize("changed", [(), PARTS], ids=["verified", "changed"])
def test_a_teardown_removes_it_and_leaves_what_is_others(changed: tuple[str, ...], changes: Changes) -> None:
    changes.change(*changed)
    changes.conf.write_text(f"{changes.conf.read_text()}/srv/lib\n")
    changes.restore(store.BASELINE)
    assert changes.state() == ({}, None, f"{OTHERS}/srv/lib\n")


def test_a_baseline_of_a_release_without_it_leaves_it_as_it_is(changes: Changes) -> None:
    baseline = store.read(changes.directory, store.BASELINE) or {}
    del baseline[LinkerDirectory.record]
    store.write(changes.directory, store.BASELINE, baseline)
    assert not recording.record_baseline(changes.directory, {"linker_directories": [KEY]})
    changes.restore(store.BASELINE)
    assert changes.state() == ({}, None, f"{OTHERS}{KEY}\n")
