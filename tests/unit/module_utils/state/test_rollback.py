"""A host is brought back to its records: files, packages, holds, alternatives, directories."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands, apt_words
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import alternative, effects, file, service
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.nvidia_module import Modules
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, recording, rollback

from tests.unit.module_utils.lock_holder import held
from tests.unit.module_utils.other_transaction import OtherTransaction
from tests.unit.module_utils.simulated_packages import SimulatedPackages
from tests.unit.module_utils.state.applied_host import differences

VERIFIED = {"version": "2.29.7-1", "held": True, "auto": False}
PLAN = {"components": {}}


class Changed:
    """A host after a change that failed: another libnccl2, a new package, another file, another default CUDA."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.settings = tmp_path / "state", tmp_path / "etc" / "settings"
        self.settings.parent.mkdir()
        self.settings.write_text("verified\n")
        files = {str(self.settings): file.capture(str(self.settings))}
        self.settings.write_text("changed\n")
        self.cuda: dict[str, str] | None = {"mode": "auto", "value": "/usr/local/cuda-13.2"}
        monkeypatch.setattr(alternative, "read", lambda _root, _name: self.cuda)
        self.packages = SimulatedPackages(
            tmp_path / "root",
            {"libnccl2": ("2.32.3-1", "installed", "install"), "libcudnn9": ("9.1", "installed", "hold")},
        )
        store.record_packages(str(self.directory), {"libnccl2": None, "libcudnn9": None})
        self.record = {
            "plan": PLAN,
            "packages": {"libnccl2": VERIFIED},
            "files": files,
            "alternatives": {"cuda": {"mode": "manual", "value": "/usr/local/cuda-13.0"}},
        }
        store.write(str(self.directory), store.VERIFIED, self.record)
        store.write(
            str(self.directory), store.APPLIED, {"parts": {"nccl": {"fingerprint": "f", "watch": {}, "resources": {}}}}
        )

    def restore(self, to: str = store.VERIFIED, own: Any = (), check: bool = False) -> rollback.Restored | None:
        apt = self.packages.apt(str(self.directory / "packages"))
        return rollback.Rollback(str(self.directory), apt, self.packages, check).restore(to, list(own))

    def baseline(self, folders: dict[str, bool]) -> None:
        store.write(str(self.directory), store.BASELINE, {"files": {str(self.settings): None}, "folders": folders})


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changed:
    return Changed(tmp_path, monkeypatch)


def test_the_verified_configuration_is_restored(changed):
    result = changed.restore()
    assert changed.settings.read_text() == "verified\n"
    assert changed.packages.packages == {"libnccl2": ("2.29.7-1", "installed", "hold")}
    assert ["update-alternatives", "--set", "cuda", "/usr/local/cuda-13.0"] in changed.packages.commands
    assert ["ldconfig"] in changed.packages.commands
    assert result.plan == PLAN
    assert result.warnings == []
    assert result.changes == [
        str(changed.settings),
        "libnccl2 2.32.3-1 -> 2.29.7-1",
        "libcudnn9 9.1 (removed)",
        "libnccl2 (hold)",
        "cuda points to /usr/local/cuda-13.0",
    ]


def test_what_the_scripts_of_packages_change_is_restored_after_them(changed, monkeypatch):
    """The removal of a driver's package disables its service, and removes a link of the restored one."""
    apt = changed.packages.apt(str(changed.directory / "packages"))
    install = type(apt).install

    def with_script(self, operation):
        install(self, operation)
        changed.settings.unlink()

    monkeypatch.setattr(type(apt), "install", with_script)
    result = changed.restore()
    assert changed.settings.read_text() == "verified\n"
    assert result.changes.count(str(changed.settings)) == 1


@pytest.mark.parametrize("recorded", ["enabled", "not enabled", "not recorded"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_service_is_enabled_as_it_was_and_one_that_is_masked_stays_masked(
    changed, tmp_path, monkeypatch, recorded, is_masked
):
    """The packages enable their services when they are installed, and disable them when they are removed."""
    units, name = tmp_path / "system", "nvidia-persistenced.service"
    wants = units / "multi-user.target.wants" / name
    wants.parent.mkdir(parents=True)
    monkeypatch.setattr(service, "WANTS", f"{wants.parent}/")
    places(monkeypatch, tmp_path)
    if is_masked:
        (units / name).symlink_to("/dev/null")
    target = f"/lib/systemd/system/{name}"
    state = {"kind": "link", "target": target} if recorded == "enabled" else None
    if recorded != "not recorded":
        changed.record["services"] = {"nvidia-persistenced": state}
        store.write(str(changed.directory), store.VERIFIED, changed.record)
    install = apt_commands.Apt.install

    def with_script(self, operation):
        install(self, operation)
        wants.symlink_to("/other") if recorded != "enabled" else None

    monkeypatch.setattr(apt_commands.Apt, "install", with_script)
    result = changed.restore()
    expected = {"enabled": target, "not enabled": None, "not recorded": "/other"}[recorded]
    assert (os.readlink(wants) if wants.is_symlink() else None) == expected
    assert (str(wants) in result.changes) is (recorded != "not recorded")
    assert (["systemctl", "daemon-reload"] in changed.packages.commands) is (recorded != "not recorded")
    assert (units / name).is_symlink() is is_masked
    assert str(wants) not in changed.restore().changes


def test_a_restored_change_is_no_longer_pending(changed):
    store.write(str(changed.directory), store.PENDING, {"since": "2026-11-01T00:00:00Z"})
    changed.restore(check=True)
    assert store.read(str(changed.directory), store.PENDING) is not None
    changed.restore()
    assert store.read(str(changed.directory), store.PENDING) is None


@pytest.mark.parametrize(
    ("pending", "kept"),
    [
        ({"before": {"at": "before"}}, "before"),
        ({}, None),  # the change of an earlier release, or the first change of a host
        (None, None),  # rollback.yml restores the previous configuration
    ],
)
def test_the_last_result_is_that_of_the_restored_configuration(changed, pending, kept):
    """What the checks found after a change that was undone is no record of what was there before the next one."""
    store.write(str(changed.directory), store.LAST_RESULT, {"at": "after the change"})
    if pending is not None:
        store.write(str(changed.directory), store.PENDING, pending)
    changed.restore(check=True)
    assert store.read(str(changed.directory), store.LAST_RESULT)["at"] == "after the change"
    changed.restore()
    assert (store.read(str(changed.directory), store.LAST_RESULT) or {}).get("at") == kept
    store.write(str(changed.directory), store.LAST_RESULT, {"at": "verified again"})
    changed.cuda = None
    assert changed.restore().changes == []
    assert store.read(str(changed.directory), store.LAST_RESULT)["at"] == "verified again"


def test_a_host_that_others_set_up_returns_to_what_it_was_and_keeps_our_records(changed, tmp_path):
    """Nothing was verified on it, and the checks were asked before the first change."""
    directory, own = str(changed.directory), tmp_path / "own"
    own.mkdir()
    changed.baseline({})
    changed.packages.packages["libnccl2"] = ("2.32.3-1", "installed", "hold")
    store.remove(directory, store.VERIFIED)
    assert changed.restore(check=True) is None  # a first installation: nothing was there to be asked
    store.write(directory, store.LAST_RESULT, {"gpus": [], "checks": {"cuda.devices": {"status": "pass"}}})
    plan = {"components": {"driver": None}, "kept_driver": {"version": "535.288.01"}}
    store.write(directory, store.OPTIONS, {"plan": plan})
    recording.record_pending(directory)
    result = changed.restore(own=[str(own)])
    assert (result.to, result.plan, result.evidence) == ("found", plan, {})
    assert not changed.settings.exists()
    assert changed.packages.packages == {}
    assert own.exists()
    kept = {path.stem for path in changed.directory.glob("*.json")}
    assert {store.BASELINE, store.JOURNAL} <= kept
    assert kept & {store.APPLIED, store.LISTINGS, store.PENDING, store.RESTORING, store.VERIFIED} == set()


@pytest.mark.parametrize(
    ("name", "before", "returns"),
    [
        ("driver.display_manager", "pass", True),
        ("driver.display_manager", "skip", False),
        ("cuda.devices", "pass", False),  # which nothing can have passed on a bare host
    ],
)
def test_a_bare_host_returns_to_what_it_was_if_its_screen_is_black(changed, name, before, returns):
    directory = str(changed.directory)
    changed.baseline({})
    store.remove(directory, store.VERIFIED)
    store.write(directory, store.LAST_RESULT, {"gpus": [], "checks": {name: {"status": before}}})
    store.write(directory, store.OPTIONS, {"plan": {"components": {}}})
    recording.record_pending(directory)
    store.write(directory, store.LAST_RESULT, {"gpus": [], "checks": {name: {"status": "fail"}}})
    result = changed.restore()
    assert (result is not None and result.to == "found") is returns


def test_a_restored_configuration_has_its_evidence(changed):
    assert changed.restore(check=True).evidence == {}  # recorded by an earlier version
    store.write(str(changed.directory), store.VERIFIED, {**changed.record, "evidence": {"at": "2026-11-01T00:00:00Z"}})
    assert changed.restore().evidence == {"at": "2026-11-01T00:00:00Z"}


def test_an_interrupted_rollback_to_the_previous_configuration_is_continued(changed):
    """The host has the verified configuration; a rollback to the one before it was killed after its last change."""
    changed.restore()
    changed.cuda = changed.record["alternatives"]["cuda"]
    store.remove(str(changed.directory), store.RESTORING)  # verified
    store.write(str(changed.directory), store.PREVIOUS, {**changed.record, "files": {str(changed.settings): None}})
    first = changed.restore(store.PREVIOUS)
    assert first.changes == [str(changed.settings)]
    again = changed.restore()
    assert (again.resumed, again.changes, changed.settings.exists()) == (True, [], False)
    recording.record_pending(str(changed.directory))  # gpu_host.yml begins a change
    assert changed.restore().resumed is False
    assert changed.settings.exists()


def test_a_rollback_with_nothing_to_change_is_not_continued(changed):
    changed.restore()
    changed.cuda = changed.record["alternatives"]["cuda"]
    store.write(str(changed.directory), store.RESTORING, {"to": "verified", "changed": False})  # killed before a change
    assert changed.restore().resumed is False
    assert store.read(str(changed.directory), store.RESTORING) is None


def test_what_a_teardown_removed_while_this_one_waited_is_not_restored(changed):
    """Nor is its directory left behind."""
    changed.baseline({})
    other = OtherTransaction(str(changed.directory))

    def end() -> None:
        shutil.rmtree(changed.directory)
        other.end()

    threading.Timer(0.3, end).start()
    assert changed.restore(store.BASELINE, own=[str(changed.directory)]) is None
    assert not changed.directory.exists()


def test_a_failed_alternative_is_recorded(changed, snapshot):
    changed.packages.failing = {"update-alternatives": "no space left"}
    with pytest.raises(ValueError, match="`update-alternatives") as error:
        changed.restore()
    assert store.read(str(changed.directory), store.TRANSACTION)["failed"] == str(error.value) == snapshot


def test_a_failed_ldconfig_is_a_warning_and_the_next_run_makes_up_for_it(changed):
    changed.packages.failing = {"ldconfig": "no space left"}
    assert changed.restore().warnings == ["`ldconfig` failed with status 100: no space left"]
    assert Effects(changed.packages, str(changed.directory)).waiting == ["ldconfig"]
    changed.packages.failing = {}
    changed.restore()
    assert Effects(changed.packages, str(changed.directory)).waiting == []


def test_files_are_restored_before_packages_and_alternatives_after_them(changed):
    changed.packages.failing = {"--simulate": "E: no"}
    with pytest.raises(apt_commands.AptError):
        changed.restore()
    assert changed.settings.read_text() == "verified\n"
    assert not changed.packages.run("update-alternatives")


def test_a_host_in_its_verified_configuration_is_left_as_it_is(changed):
    changed.restore()
    changed.cuda = changed.record["alternatives"]["cuda"]
    changed.packages.commands.clear()
    assert changed.restore().changes == []
    assert not changed.packages.run("apt-get")


def test_check_mode_reports_the_changes_and_makes_none(changed):
    expected = {"libnccl2 2.32.3-1 -> 2.29.7-1", "libcudnn9 9.1 (removed)", "libnccl2 (hold)"}
    before = dict(changed.packages.packages)
    result = changed.restore(check=True)
    assert expected | {str(changed.settings), "cuda points to /usr/local/cuda-13.0"} == set(result.changes)
    assert changed.settings.read_text() == "changed\n"
    assert changed.packages.packages == before
    assert not changed.packages.run("apt-get")
    assert not changed.packages.run("update-alternatives")
    assert not changed.packages.run("ldconfig")
    assert store.read(str(changed.directory), store.APPLIED)["parts"], "the record of the last run is still valid"


def test_every_part_counts_as_changed_before_anything_is(changed, snapshot):
    changed.packages.failing = {"install": "E: no"}
    with pytest.raises(apt_commands.AptError):
        changed.restore()
    (found,) = differences(str(changed.directory)).values()
    assert found["why"] == snapshot


def test_nothing_is_restored_while_another_process_holds_a_lock(changed):
    with (
        held(changed.packages.root / "var/lib/dpkg/lock") as holder,
        pytest.raises(ValueError, match=rf"^apt is busy: process {holder.pid} \("),
    ):
        changed.restore()
    assert changed.settings.read_text() == "changed\n"
    assert changed.packages.commands == []
    assert store.read(str(changed.directory), store.APPLIED)["parts"]


def test_a_missing_record_changes_nothing(changed):
    assert changed.restore(store.PREVIOUS) is None
    assert changed.packages.commands == []
    assert changed.settings.read_text() == "changed\n"


def test_the_baseline_removes_new_packages_files_and_directories(changed, tmp_path):
    own, made, used = tmp_path / "opt", tmp_path / "made", tmp_path / "used"
    for directory in (own, made, used):
        directory.mkdir()
    (own / "environment").write_text("")
    changed.baseline({str(made): False, str(used): True})
    result = changed.restore(store.BASELINE, [str(own)])
    assert result.plan is None
    assert changed.packages.packages == {}
    assert not changed.settings.exists()
    assert [path.exists() for path in (own, made, used)] == [False, False, True]


@pytest.mark.parametrize("to", [store.VERIFIED, store.PREVIOUS])
def test_directories_stay_with_any_other_record(changed, tmp_path, to):
    own = tmp_path / "opt"
    own.mkdir()
    store.write(str(changed.directory), to, changed.record)
    changed.restore(to, [str(own)])
    assert own.is_dir()


@pytest.mark.parametrize(
    ("wanted", "now"),
    [
        (None, {"mode": "auto", "value": "/usr/local/cuda-13.2"}),
        ({"mode": "auto", "value": "/usr/local/cuda-13.0"}, None),
    ],
    ids=["it was unknown", "it is unknown"],
)
def test_an_alternative_that_was_or_is_unknown_is_left_alone(changed, wanted, now):
    changed.cuda = now
    store.write(str(changed.directory), store.VERIFIED, {**changed.record, "alternatives": {"cuda": wanted}})
    changed.restore()
    assert not changed.packages.run("update-alternatives")


def test_an_alternative_that_packages_select_is_set_back_to_automatic(changed):
    wanted = {"mode": "auto", "value": "/usr/local/cuda-13.0"}
    store.write(str(changed.directory), store.VERIFIED, {**changed.record, "alternatives": {"cuda": wanted}})
    changed.restore()
    assert changed.packages.run("update-alternatives") == [["update-alternatives", "--auto", "cuda"]]


def test_restored_sources_refresh_the_package_lists_and_a_failure_is_a_warning(changed, monkeypatch):
    monkeypatch.setattr(apt_words, "SOURCES", (str(changed.settings.parent),))
    changed.packages.failing = {"update": "E: no network"}
    result = changed.restore()
    assert len(result.warnings) == 1
    assert "no network" in result.warnings[0]
    assert changed.packages.packages == {"libnccl2": ("2.29.7-1", "installed", "hold")}


def test_an_interrupted_dpkg_is_finished_first_and_its_failure_is_a_warning(changed):
    changed.packages.set({**changed.packages.packages, "libcudnn9": ("9.1", "half-configured", "install")})
    changed.packages.failing = {"--configure": "dpkg: error processing package libcudnn9"}
    result = changed.restore()
    assert "error processing package libcudnn9" in result.warnings[0]
    assert "libcudnn9" not in changed.packages.packages


@pytest.mark.parametrize(
    ("path", "refreshed"),
    [
        ("/etc/apt/sources.list.d/nvidia-cuda.sources", True),
        ("/etc/apt/keyrings/nvidia-cuda.gpg", True),
        ("/etc/apt/preferences.d/nvidia", False),
        ("/etc/profile.d/cuda.sh", False),
    ],
)
def test_sources_and_keys_refresh_the_package_lists(changed, monkeypatch, path, refreshed):
    monkeypatch.setattr(file, "restore", lambda _states, effects, _check: effects.begin([path], []) or [path])
    changed.restore()
    assert any("update" in command for command in changed.packages.commands) == refreshed


def test_lists_that_a_killed_rollback_has_not_refreshed_are_refreshed_by_the_next_one(changed, monkeypatch):
    """Its sources are restored by then. What runs in between, such as a role, leaves that to it."""
    monkeypatch.setattr(apt_words, "SOURCES", (str(changed.settings.parent),))
    with monkeypatch.context() as killed:
        killed.setattr(rollback.Rollback, "_refresh_lists", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            changed.restore()
    assert Effects(changed.packages, str(changed.directory)).run() == []
    for _next in range(2):  # the second one has nothing to do
        changed.restore()
    assert sum("update" in words for words in changed.packages.commands) == 1


def places(monkeypatch, top: Path) -> None:
    """Have the directories below `top` be those of systemd and GRUB, which are there."""
    units = f"{top}/system/"
    monkeypatch.setattr(effects, "UNITS", units)
    monkeypatch.setattr(effects, "PLACES", {units: effects.RELOAD, f"{top}/grub.d/": effects.UPDATE_GRUB})
    monkeypatch.setattr(effects, "BOOTED", "/")
    monkeypatch.setattr(effects.shutil, "which", lambda name: name)


def test_grub_and_systemd_read_their_files_again_where_these_changed(changed, tmp_path, monkeypatch, snapshot):
    """Before that, a guard that goes gives its choice back, else GRUB would boot the kernel that it chose."""
    script, unit = tmp_path / "grub.d/07_gpuhost", tmp_path / "system/gpuhost-kernel-guard.service"
    guard = tmp_path / "lib/kernel-guard"
    monkeypatch.setattr(effects, "GUARD", str(guard))
    places(monkeypatch, tmp_path)
    assert changed.restore().warnings == []
    assert ["update-grub"] not in changed.packages.commands
    for path in (script, unit, guard):
        path.parent.mkdir()
        path.write_text("x\n")
    changed.record["files"] |= {str(script): None, str(unit): None, str(guard): None}
    store.write(str(changed.directory), store.VERIFIED, changed.record)
    changed.packages.set({"libnccl2": ("2.32.3-1", "installed", "install")})
    changed.packages.failing = {"update-grub": "grub-probe: error"}
    assert changed.restore().warnings == snapshot
    assert ["systemctl", "daemon-reload"] in changed.packages.commands
    given_back = changed.packages.commands.index([str(guard), "--off"])
    assert given_back < changed.packages.commands.index(["update-grub"])
    assert not guard.exists()


def test_check_mode_writes_no_record_and_removes_no_directory(changed, tmp_path):
    own = tmp_path / "opt"
    own.mkdir()
    changed.baseline({})
    assert str(own) in changed.restore(store.BASELINE, [str(own)], check=True).changes
    assert own.is_dir()
    changed.restore(check=True)
    assert store.read(str(changed.directory), store.RESTORING) is None
    assert store.read(str(changed.directory), store.TRANSACTION) is None


def test_the_result_of_a_rollback_is_recorded_with_its_changes(changed):
    result = changed.restore()
    record = store.read(str(changed.directory), store.TRANSACTION)
    assert (record["what"], record["changes"], record["failed"]) == ("the rollback", len(result.changes), None)


def test_what_is_restored_is_recorded_until_it_is_verified(changed):
    assert changed.restore().resumed is False
    assert store.read(str(changed.directory), store.RESTORING) == {"to": "verified", "changed": True, "schema": 1}
    changed.cuda = changed.record["alternatives"]["cuda"]
    assert changed.restore().resumed is True, "it is continued, although nothing is left to do"
    changed.baseline({})
    store.remove(str(changed.directory), store.RESTORING)
    changed.restore(store.BASELINE)
    assert store.read(str(changed.directory), store.RESTORING) is None, "a teardown removes its record"


def test_a_rollback_that_was_killed_on_its_way_is_continued(changed):
    changed.packages.failing = {"--simulate": "E: no"}
    store.write(str(changed.directory), store.PREVIOUS, {**changed.record, "packages": {"libnccl2": None}})
    with pytest.raises(apt_commands.AptError):
        changed.restore(store.PREVIOUS)
    assert store.read(str(changed.directory), store.RESTORING)["to"] == "previous"
    changed.packages.failing = {}
    changed.restore()
    assert changed.packages.packages == {}, "the previous configuration has no libnccl2"


@pytest.mark.parametrize("to", [store.PREVIOUS, store.BASELINE])
def test_a_rollback_that_was_interrupted_does_not_replace_another_one(changed, to):
    changed.baseline({})
    store.write(str(changed.directory), store.PREVIOUS, changed.record)
    store.write(str(changed.directory), store.RESTORING, {"to": store.VERIFIED, "changed": True})
    result = changed.restore(to)
    assert result.resumed is False
    assert changed.settings.exists() == (to == store.PREVIOUS)


def test_packages_of_the_record_precede_those_of_the_journal(changed):
    """A package that was changed after the record was written is restored to its state before that."""
    store.record_packages(str(changed.directory), {"gcc": {"version": "1", "held": False, "auto": True}})
    changed.packages.set({**changed.packages.packages, "gcc": ("2", "installed", "install")})
    changed.restore()
    assert changed.packages.packages["gcc"] == ("1", "installed", "install")
    assert changed.packages.packages["libnccl2"] == ("2.29.7-1", "installed", "hold")
    assert changed.packages.automatic == {"gcc"}


def frameworks_alone(changed: Changed, path: Path) -> None:
    """Make the verified configuration one of a link, without any package."""
    store.write(str(changed.directory), store.JOURNAL, {"packages": {}})
    record = {"plan": PLAN, "packages": {}, "files": {str(path): {"kind": "link", "target": "one"}}}
    store.write(str(changed.directory), store.VERIFIED, record)


def test_without_packages_neither_apt_nor_the_linkers_cache_is_needed(changed, tmp_path):
    """As for a user who has frameworks alone, while another process installs packages."""
    frameworks_alone(changed, tmp_path / "tensorflow")
    with held(changed.packages.root / "var/lib/dpkg/lock"):
        result = changed.restore()
    assert result.changes == [str(tmp_path / "tensorflow")]
    assert changed.packages.commands == []


def test_a_record_without_files_or_with_changed_settings_refreshes_the_linkers_cache(changed, monkeypatch):
    store.write(str(changed.directory), store.JOURNAL, {"packages": {}})
    store.write(str(changed.directory), store.VERIFIED, {"plan": PLAN, "packages": {}, "files": {}})
    changed.restore()
    assert changed.packages.commands == [["ldconfig"]]
    changed.packages.commands.clear()
    frameworks_alone(changed, changed.settings)
    monkeypatch.setattr(file, "restore", lambda _states, _effects, _check: ["/opt/x", "/etc/ld.so.conf.d/cuda.conf"])
    changed.restore()
    assert changed.packages.commands == [["ldconfig"]]


def test_a_module_of_others_that_does_not_build_is_a_warning_of_the_rollback(changed, snapshot):
    class Warning(apt_commands.Apt):
        def install(self, *words: Any, **options: Any) -> None:
            super().install(*words, **options)
            self.warnings.append("DKMS could not build zfs/2.1.5.")

    apt = Warning(changed.packages, 1, str(changed.directory / "packages"), str(changed.packages.root))
    result = rollback.Rollback(str(changed.directory), apt, changed.packages).restore(store.VERIFIED, [])
    assert result.warnings == snapshot


def test_a_failed_alternative_names_the_command(changed, snapshot):
    changed.packages.failing = {"update-alternatives": "  error: no alternatives\n"}
    command = "update-alternatives --set cuda /usr/local/cuda-13.0"
    with pytest.raises(ValueError, match=rf"^`{command}` ") as error:
        changed.restore()
    assert str(error.value) == snapshot


def test_repositories_that_cannot_be_locked_are_a_warning(changed, monkeypatch):
    monkeypatch.setattr(apt_words, "SOURCES", (str(changed.settings.parent),))
    changed.packages.failing = {"update": "E: Could not get lock /var/lib/apt/lists/lock"}
    (warning,) = changed.restore().warnings
    assert "Could not get lock" in warning


def test_shared_directories_that_gpuhost_did_not_create_stay(changed, tmp_path):
    there, made = tmp_path / "there", tmp_path / "made"
    there.mkdir()
    made.mkdir()
    changed.baseline({str(there): True, str(made): False})
    result = changed.restore(store.BASELINE)
    assert str(made) in result.changes
    assert str(there) not in result.changes
    assert there.is_dir()


def test_a_teardown_leaves_the_pending_change_to_the_removal_of_the_records(changed):
    store.write(str(changed.directory), store.PENDING, {"since": "2026-11-01T00:00:00Z"})
    changed.baseline({})
    changed.restore(store.BASELINE)
    assert store.read(str(changed.directory), store.PENDING) is not None


# The record of what was applied, and damage ----------------------------------------------------------------------


def with_record(changed: Changed, watch: dict[str, Any]) -> None:
    """Let the verified configuration have the record of the complete run that left the host as it is now."""
    directory = str(changed.directory)
    applied.record(directory, {"part": {"fingerprint": "verified", "watch": watch}})
    changed.record["applied"] = applied.snapshot(directory)
    store.write(directory, store.VERIFIED, changed.record)


def test_the_record_of_what_was_applied_is_restored_with_the_rest(changed, tmp_path):
    """So that the next run has nothing to do; and what is still other than recorded is damage."""
    other = tmp_path / "other"
    changed.settings.write_text("verified\n")
    with_record(changed, {"files": [str(changed.settings), str(other)]})
    changed.settings.write_text("changed\n")
    applied.record(str(changed.directory), {"part": {"fingerprint": "changed", "watch": {}}})
    other.write_text("by somebody else\n")
    changed.restore()
    (found,) = differences(str(changed.directory)).values()
    assert (found["fingerprint"], found["why"], list(found["damage"])) == ("verified", "", [f"file {other}"])
    other.unlink()
    assert differences(str(changed.directory))["part"]["changed"] == []


@pytest.mark.parametrize("text", ["verified\n", "changed\n"], ids=["nothing to restore", "restored"])
def test_a_doubt_stays_where_nothing_had_to_be_restored(changed, text):
    """A check failed without known damage: what made it fail is still there if the rollback changed nothing."""
    changed.settings.write_text("verified\n")
    changed.record["alternatives"] = {}
    with_record(changed, {"files": [str(changed.settings)]})
    changed.restore()
    applied.doubt(str(changed.directory))
    changed.settings.write_text(text)
    result = changed.restore()
    (found,) = differences(str(changed.directory)).values()
    assert bool(found["why"]) is not bool(result.changes)
    assert bool(result.changes) is (text == "changed\n")


def test_a_record_of_an_earlier_release_has_every_part_applied_again(changed, snapshot):
    changed.restore()
    (found,) = differences(str(changed.directory)).values()
    assert found["why"] == snapshot


class Environments:
    """Two environments of the same lock; the first was verified, and a failed run has built the second."""

    def __init__(self, changed: Changed, tmp_path: Path) -> None:
        self.changed, self.link = changed, tmp_path / "opt/tensorflow"
        self.old, self.new = (tmp_path / f"opt/environments/tensorflow-2.21.0{suffix}" for suffix in ("", "-2"))
        for environment in (self.old, self.new):
            packages = environment / "lib/python3.11/site-packages"
            (packages / "numpy-2.dist-info").mkdir(parents=True)
            (packages / "numpy.py").write_text("whole\n")
            # `printf 'whole\n' | openssl dgst -sha256 -binary | basenc --base64url | tr -d =`
            digest = "sha256=NmEpHigQe7lAFC00a9s6htpoQVrn_kUTdNQDxgN7n6U"
            (packages / "numpy-2.dist-info/RECORD").write_text(f"numpy.py,{digest},6\nnumpy-2.dist-info/RECORD,,\n")
            (environment / "gpuhost.lock").write_text("numpy==2\n")
        self.link.symlink_to("environments/tensorflow-2.21.0")
        changed.record["files"] = {str(self.link): file.capture(str(self.link))}
        with_record(changed, {"environments": [str(self.link)]})
        self.point_to(self.new)

    def point_to(self, environment: Path) -> None:
        self.link.unlink()
        self.link.symlink_to(f"environments/{environment.name}")

    def module(self, environment: Path, name: str = "numpy") -> Path:
        return environment / f"lib/python3.11/site-packages/{name}.py"


@pytest.fixture
def environments(changed: Changed, tmp_path: Path) -> Environments:
    return Environments(changed, tmp_path)


@pytest.mark.parametrize("damage", ["a corrupt file", "a foreign file"])
def test_a_whole_environment_is_kept_in_place_of_a_damaged_one(environments, damage, tmp_path, snapshot):
    changed = environments.changed
    if damage == "a corrupt file":
        environments.module(environments.old).write_text("wrong\n")
    else:
        environments.module(environments.old, "sitecustomize").write_text("import os\n")
    for check in (True, False):
        result = changed.restore(check=check)
        assert environments.link.resolve() == environments.new
        assert [sentence.replace(str(tmp_path), "") for sentence in result.kept] == snapshot
        assert str(environments.link) not in result.changes
    (found,) = differences(str(changed.directory)).values()
    assert (found["changed"], found["damage"]) == ([], {})
    shutil.rmtree(environments.old)  # as an expired one
    assert changed.restore().kept == ()
    assert environments.link.resolve() == environments.new


def test_an_environment_that_is_kept_on_a_host_as_it_was_found_is_no_record(environments):
    """The baseline stays what a teardown restores, and nothing was verified."""
    changed, directory = environments.changed, str(environments.changed.directory)
    store.write(directory, store.BASELINE, {"files": changed.record["files"]})
    store.write(directory, store.PENDING, {"plan": {"components": {"driver": None}}})
    store.remove(directory, store.VERIFIED)
    environments.module(environments.old).write_text("wrong\n")
    baseline = store.read(directory, store.BASELINE)
    result = changed.restore()
    assert (result.to, len(result.kept)) == ("found", 1)
    assert store.read(directory, store.BASELINE) == baseline
    assert store.read(directory, rollback.FOUND) is None


def test_no_record_gets_the_content_of_a_secret_with_an_environment_that_is_kept(environments, tmp_path):
    changed, secret = environments.changed, tmp_path / "a signing.key"
    assert str(secret) < str(environments.link), "the link need not be the first file"
    secret.write_text("private\n")
    changed.record["files"][str(secret)] = file.without_content(file.capture(str(secret)))
    store.write(str(changed.directory), store.VERIFIED, changed.record)
    environments.module(environments.old).write_text("wrong\n")
    assert changed.restore().kept
    recorded = store.read(str(changed.directory), store.VERIFIED)["files"]
    assert recorded[str(secret)] == changed.record["files"][str(secret)]
    assert recorded[str(environments.link)]["target"].endswith("-2")


@pytest.mark.parametrize("now", ["private\n", "another\n", None])
def test_a_secret_stays_as_it_is_and_one_that_differs_is_named(changed, tmp_path, now):
    secret = tmp_path / "signing.key"
    secret.write_text("private\n")
    changed.record["files"][str(secret)] = file.without_content(file.capture(str(secret)))
    store.write(str(changed.directory), store.VERIFIED, changed.record)
    secret.unlink() if now is None else secret.write_text(now)
    differs = now != "private\n"
    said = [f"{secret} is a secret, of which no content is recorded: it stays as it is"] if differs else []
    assert changed.restore().warnings == said
    assert (secret.read_text() if secret.exists() else None) == now


@pytest.mark.parametrize(
    "reason", ["nothing is damaged", "both are damaged", "it has another lock", "neither has a lock"]
)
def test_an_environment_is_restored_where_the_other_one_is_no_better(environments, reason):
    if reason != "nothing is damaged":
        environments.module(environments.old).write_text("wrong\n")
    if reason == "both are damaged":
        environments.module(environments.new).unlink()
    if reason == "it has another lock":
        (environments.new / "gpuhost.lock").write_text("numpy==3\n")
    if reason == "neither has a lock":  # so that nothing tells what either was built from
        for environment in (environments.old, environments.new):
            (environment / "gpuhost.lock").unlink()
    result = environments.changed.restore()
    assert (environments.link.resolve(), result.kept) == (environments.old, ())
    (found,) = differences(str(environments.changed.directory)).values()
    assert bool(found["damage"]) is (reason != "nothing is damaged")
    assert found["repairs"]["environments"] == ([str(environments.old)] if found["damage"] else [])


def test_modules_that_a_rollback_builds_again_are_no_damage(changed, monkeypatch):
    """DKMS gives them another time."""
    modules = {"6.1": {"nvidia.ko": "6 bytes of 1"}}
    monkeypatch.setattr(Modules, "read", lambda _kind, _host, watch: dict(modules) if watch.get("modules") else {})
    with_record(changed, {"modules": True})
    modules["6.1"] = {"nvidia.ko": "6 bytes of 2"}
    changed.restore()
    assert differences(str(changed.directory))["part"]["changed"] == []
    modules["6.1"] = {"nvidia.ko": "0 bytes of 3"}
    assert differences(str(changed.directory))["part"]["damage"]
