"""What is recorded of a host, and when a verified configuration becomes the previous one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import alternative, file
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, recording

from tests.unit.module_utils.simulated_packages import SimulatedPackages

PLAN: dict[str, Any] = {"components": {"nccl": {"version": "2.29.7"}}}


class Recorder:
    """record_verified on a host with libnccl2, one managed file and one link."""

    def __init__(self, tmp_path: Path) -> None:
        self.packages = SimulatedPackages(tmp_path / "root", {"libnccl2": ("2.29.7-1", "installed", "hold")})
        self.directory = tmp_path / "state"
        self.settings = tmp_path / "settings"
        self.settings.write_text("one\n")
        (self.directory / "packages").mkdir(parents=True)
        store.record_packages(str(self.directory), {"libnccl2": None})

    def verified(
        self, plan: dict[str, Any] = PLAN, check: bool = False, evidence: dict[str, Any] | None = None
    ) -> bool:
        apt = self.packages.apt(str(self.directory / "packages"))
        watch = {"files": [str(self.settings)], "alternatives": ["cuda"]}
        return recording.record_verified(str(self.directory), apt, plan, watch, evidence, check)

    def upgrade(self, version: str) -> None:
        self.packages.set({"libnccl2": (version, "installed", "hold")})

    def add_kept(self, *names: str) -> None:
        for name in names:
            (self.directory / "packages" / name).write_text("")

    def kept(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "packages").iterdir())

    def version_in(self, name: str) -> str | None:
        record = store.read(str(self.directory), name)
        return record and record["packages"]["libnccl2"]["version"]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_the_verified_configuration_has_the_plan_packages_files_and_alternatives(recorder):
    assert recorder.verified()
    record = store.read(str(recorder.directory), store.VERIFIED)
    assert record["plan"] == PLAN
    assert record["packages"] == {"libnccl2": {"version": "2.29.7-1", "held": True, "auto": False}}
    assert record["files"][str(recorder.settings)]["kind"] == "file"
    assert record["alternatives"] == {"cuda": None}
    assert store.read(str(recorder.directory), store.PREVIOUS) is None


def test_everything_is_on_disk_before_a_configuration_is_recorded_as_verified(recorder, monkeypatch):
    recorded_at_sync: list[str | None] = []
    monkeypatch.setattr(recording.os, "sync", lambda: recorded_at_sync.append(recorder.version_in(store.VERIFIED)))
    assert recorder.verified()
    assert recorded_at_sync == [None]


def test_an_unchanged_configuration_is_not_recorded_again(recorder):
    recorder.verified()
    assert not recorder.verified()


def test_the_configuration_before_becomes_the_previous_one(recorder):
    recorder.verified()
    recorder.upgrade("2.32.3-1")
    assert recorder.verified()
    assert (recorder.version_in(store.VERIFIED), recorder.version_in(store.PREVIOUS)) == ("2.32.3-1", "2.29.7-1")


def test_another_plan_of_the_same_host_leaves_the_previous_configuration(recorder):
    recorder.verified()
    assert recorder.verified({**PLAN, "reasons": ["another"]})
    assert store.read(str(recorder.directory), store.PREVIOUS) is None
    assert store.read(str(recorder.directory), store.VERIFIED)["plan"]["reasons"] == ["another"]


@pytest.mark.parametrize("earlier", ["without the file", "with its content", "with another file"])
def test_the_first_record_of_a_release_with_other_files_or_digests_is_of_the_same_configuration(recorder, earlier):
    """It must not replace the previous configuration."""
    recorder.verified()
    recorder.upgrade("2.32.3-1")
    recorder.verified()
    apt, settings = recorder.packages.apt(str(recorder.directory / "packages")), str(recorder.settings)
    more = recorder.settings.with_name("more")
    more.write_text("key\n")
    paths = {
        "without the file": [settings, str(more)],
        "with its content": [settings],
        "with another file": [str(more)],
    }
    secret = paths[earlier][-1]
    watch = {"files": paths[earlier], "alternatives": ["cuda"], "secrets": [secret]}
    recording.record_verified(str(recorder.directory), apt, PLAN, watch)
    assert "content" not in store.read(str(recorder.directory), store.VERIFIED)["files"][secret]
    assert recorder.version_in(store.PREVIOUS) == "2.29.7-1"


@pytest.mark.parametrize("path", ["metrics/gpuhost.prom", "gpuhost.prom"])
def test_the_directories_above_a_relative_path_have_an_end(tmp_path, path):
    """What roles do with one, they say: gpuhost.stack.apply refuses it."""
    assert recording.record_baseline(str(tmp_path), {"files": [path]})


def test_of_secrets_the_baseline_alone_has_the_content(recorder):
    recorder.settings.write_text("password\n")
    apt, path = recorder.packages.apt(str(recorder.directory / "packages")), str(recorder.settings)
    watch = {"files": [path], "secrets": [path]}
    recording.record_baseline(str(recorder.directory), watch)
    recording.record_verified(str(recorder.directory), apt, PLAN, watch)
    contents = {name: store.read(str(recorder.directory), name)["files"][path] for name in ("baseline", "verified")}
    assert file.content(contents["baseline"]) == b"password\n"
    assert contents["verified"] == file.without_content(contents["baseline"])
    assert [state for state in recorder.directory.glob("*.json") if "cGFzc3dvcmQ" in state.read_text()] == [
        recorder.directory / "baseline.json"
    ]


def test_newer_evidence_of_the_same_configuration_is_recorded_and_is_no_change(recorder):
    recorder.verified(evidence={"at": "2026-11-01T00:00:00Z"})
    store.write(str(recorder.directory), store.UNDONE, {"worse": ["a.b"]})
    assert not recorder.verified(evidence={"at": "2026-12-01T00:00:00Z"})
    assert store.evidence(str(recorder.directory)) == {"at": "2026-12-01T00:00:00Z"}
    assert store.read(str(recorder.directory), store.PREVIOUS) is None
    assert store.read(str(recorder.directory), store.UNDONE), "the change that was undone would fail again"
    recorder.upgrade("2.32.3-1")
    assert recorder.verified()
    assert store.read(str(recorder.directory), store.UNDONE) is None


def test_the_previous_configuration_keeps_its_evidence(recorder):
    recorder.verified(evidence={"at": "2026-11-01T00:00:00Z"})
    recorder.upgrade("2.32.3-1")
    recorder.verified(evidence={"at": "2026-12-01T00:00:00Z"})
    assert store.read(str(recorder.directory), store.PREVIOUS)["evidence"] == {"at": "2026-11-01T00:00:00Z"}


def test_a_record_of_an_earlier_version_gets_its_evidence(recorder):
    recorder.verified()
    record = store.read(str(recorder.directory), store.VERIFIED)
    del record["evidence"]
    store.write(str(recorder.directory), store.VERIFIED, record)
    assert store.evidence(str(recorder.directory)) == {}
    assert not recorder.verified(evidence={"at": "2026-12-01T00:00:00Z"})
    assert store.evidence(str(recorder.directory)) == {"at": "2026-12-01T00:00:00Z"}


@pytest.mark.parametrize("change", ["file", "alternative", "hold"])
def test_whatever_differs_on_the_host_makes_the_configuration_before_the_previous_one(recorder, monkeypatch, change):
    recorder.verified()
    if change == "file":
        recorder.settings.write_text("two\n")
    elif change == "hold":
        recorder.packages.set({"libnccl2": ("2.29.7-1", "installed", "install")})
    else:
        cuda = {"mode": "auto", "value": "/usr/local/cuda-13.2"}
        monkeypatch.setattr(alternative, "read", lambda _root, _name: cuda)
    assert recorder.verified()
    assert store.read(str(recorder.directory), store.PREVIOUS) is not None
    assert not recorder.verified()


def test_facts_of_another_plan_are_no_difference_of_the_host(recorder, monkeypatch):
    """They are the plan in another form."""
    monkeypatch.setattr(recording, "FACTS", f"{recorder.settings.parent}/")
    recorder.verified()
    recorder.settings.write_text("facts of another plan\n")
    assert recorder.verified(), "the record has the new facts"
    assert store.read(str(recorder.directory), store.PREVIOUS) is None


def test_removed_packages_are_recorded_as_such(recorder):
    recorder.packages.set({})
    recorder.verified()
    record = store.read(str(recorder.directory), store.VERIFIED)
    assert record["packages"] == {"libnccl2": None}
    assert record["evidence"] == {}


def test_automatically_installed_packages_are_recorded_as_such(recorder):
    recorder.packages.automatic = {"libnccl2"}
    recorder.verified()
    assert store.read(str(recorder.directory), store.VERIFIED)["packages"]["libnccl2"]["auto"] is True


def test_what_was_applied_is_kept_with_the_verified_configuration_and_the_one_before(recorder):
    """A run that began a change and did not complete it has left no state to go back to."""
    directory = str(recorder.directory)
    recorder.verified()
    assert store.read(directory, store.VERIFIED)["applied"] is None, "no run was complete"
    parts = {"plan": {"fingerprint": "one", "watch": {"files": [str(recorder.settings)], "trees": [directory]}}}
    applied.record(directory, parts)
    recorder.upgrade("2.31.0-1")
    recorder.verified()
    kept = applied.restored_parts(store.read(directory, store.VERIFIED)["applied"])
    assert kept["plan"]["fingerprint"] == "one"
    assert {name: set(states) for name, states in kept["plan"]["resources"].items()} == {
        "file": {str(recorder.settings)},
        "tree": {directory},
    }
    applied.begin(directory, {"plan": "two"})
    recorder.upgrade("2.32.3-1")
    recorder.verified()
    assert store.read(directory, store.VERIFIED)["applied"] is None
    assert applied.restored_parts(store.read(directory, store.PREVIOUS)["applied"]) == kept


# A pending change -----------------------------------------------------------------------------------------------


def test_a_change_is_pending_from_its_first_run_until_it_is_verified(recorder, monkeypatch):
    directory = str(recorder.directory)
    store.write(directory, store.RESTORING, {"to": store.PREVIOUS, "changed": True})
    recording.record_pending(directory)
    assert store.read(directory, store.RESTORING) is None, "a rollback that was interrupted is given up"
    assert datetime.strptime(store.read(directory, store.PENDING)["since"], store.NOW).year >= 2026
    (recorder.directory / "pending.json").write_text('{"since": "2026-11-01T00:00:00Z"}')
    recording.record_pending(directory)  # the next run continues the change
    assert store.read(directory, store.PENDING)["since"] == "2026-11-01T00:00:00Z"
    recorder.verified(check=True)
    assert store.read(directory, store.PENDING) is not None
    recorder.verified()
    assert store.read(directory, store.PENDING) is None


def test_a_pending_change_keeps_the_last_result_from_before_it(recorder):
    """The checks after the change write another one; a later run of the same change still compares with the first."""
    directory = str(recorder.directory)
    store.write(directory, store.LAST_RESULT, {"at": "before"})
    recording.record_pending(directory)
    store.write(directory, store.LAST_RESULT, {"at": "after"})
    recording.record_pending(directory)
    assert store.read(directory, store.PENDING)["before"]["at"] == "before"
    recorder.verified()
    recording.record_pending(directory)  # the next change
    assert store.read(directory, store.PENDING)["before"]["at"] == "after"


@pytest.mark.parametrize("text", [None, "{"], ids=["missing", "damaged"])
def test_a_change_without_a_last_result_has_nothing_to_compare_with(recorder, text):
    if text:
        (recorder.directory / "last_result.json").write_text(text)
    recording.record_pending(str(recorder.directory))
    store.write(str(recorder.directory), store.LAST_RESULT, {"at": "after"})
    recording.record_pending(str(recorder.directory))
    assert "before" not in store.read(str(recorder.directory), store.PENDING)


def test_a_rollback_that_was_verified_is_not_continued(recorder):
    directory = str(recorder.directory)
    store.write(directory, store.RESTORING, {"to": store.PREVIOUS, "changed": True})
    recorder.verified(check=True)
    assert store.read(directory, store.RESTORING) is not None
    recorder.verified()
    assert store.read(directory, store.RESTORING) is None


def test_a_pending_change_that_left_everything_as_it_was_is_verified_without_a_new_record(recorder):
    recorder.verified(evidence={"at": "2026-11-01T00:00:00Z"})
    recording.record_pending(str(recorder.directory))
    assert not recorder.verified(evidence={"at": "2026-11-01T00:00:00Z"})
    assert store.read(str(recorder.directory), store.PENDING) is None


def test_package_files_of_older_configurations_are_removed(recorder):
    recorder.verified()
    recorder.upgrade("1:2.32.3-1")
    recorder.add_kept(
        "libnccl2_2.28_amd64.deb", "libnccl2_2.29.7-1_amd64.deb", "libnccl2_1%3a2.32.3-1_amd64.deb", "lock"
    )
    recorder.verified()
    assert recorder.kept() == ["libnccl2_1%3a2.32.3-1_amd64.deb", "libnccl2_2.29.7-1_amd64.deb", "lock"]


def test_another_plan_of_the_same_host_keeps_the_package_files_of_the_previous_configuration(recorder):
    recorder.verified()
    recorder.upgrade("2.32.3-1")
    recorder.verified()
    recorder.add_kept("libnccl2_2.29.7-1_amd64.deb", "libnccl2_2.32.3-1_amd64.deb")
    recorder.verified({**PLAN, "reasons": ["another"]})
    assert recorder.kept() == ["libnccl2_2.29.7-1_amd64.deb", "libnccl2_2.32.3-1_amd64.deb"]


def test_check_mode_records_nothing(recorder):
    recorder.verified()
    recorder.upgrade("2.32.3-1")
    recorder.add_kept("libnccl2_2.28_amd64.deb")
    assert recorder.verified(check=True)
    assert recorder.version_in(store.VERIFIED) == "2.29.7-1"
    assert recorder.kept() == ["libnccl2_2.28_amd64.deb"]


# The baseline ---------------------------------------------------------------------------------------------------


def test_the_baseline_keeps_the_first_state_and_takes_what_is_new(tmp_path):
    state, first, second, missing = str(tmp_path / "state"), tmp_path / "first", tmp_path / "second", tmp_path / "none"
    first.write_text("as found\n")
    assert recording.record_baseline(state, {"files": [str(first), str(missing / "below" / "file")]})
    before = store.read(state, store.BASELINE)
    folders = {path: before["folders"][str(path)] for path in (tmp_path, Path("/"), missing, missing / "below")}
    assert list(folders.values()) == [True, True, False, False]
    first.write_text("changed\n")
    missing.mkdir()
    assert not recording.record_baseline(state, {"files": [str(first)]})
    assert recording.record_baseline(state, {"files": [str(first), str(missing / "other"), str(second)]})
    after = store.read(state, store.BASELINE)
    assert after["files"] == {**before["files"], str(missing / "other"): None, str(second): None}
    assert after["folders"] == before["folders"]


def test_the_baseline_has_the_alternatives_that_were_there_first(tmp_path, monkeypatch):
    state, found = str(tmp_path / "state"), {"cuda": {"mode": "auto", "value": "/usr/local/cuda-13.0"}}
    monkeypatch.setattr(alternative, "read", lambda _root, name: found.get(name))
    assert recording.record_baseline(state, {"alternatives": ["cuda", "none"]})
    before = store.read(state, store.BASELINE)["alternatives"]
    assert before == {"cuda": {"mode": "auto", "value": "/usr/local/cuda-13.0"}, "none": None}
    found["cuda"] = {"mode": "manual", "value": "/usr/local/cuda-13.2"}
    assert not recording.record_baseline(state, {"alternatives": ["cuda", "none"]})
    assert store.read(state, store.BASELINE)["alternatives"] == before


def test_the_baseline_of_an_earlier_release_gets_no_alternatives_of_now(tmp_path):
    state, file = str(tmp_path / "state"), str(tmp_path / "file")
    store.write(state, store.BASELINE, {"files": {}, "folders": {}})
    assert not recording.record_baseline(state, {"alternatives": ["cuda"]})
    assert recording.record_baseline(state, {"files": [file], "alternatives": ["cuda"], "services": ["s"]})
    assert set(store.read(state, store.BASELINE)) == {"files", "folders", "schema"}


def test_check_mode_records_no_baseline(tmp_path):
    assert recording.record_baseline(str(tmp_path), {"files": [str(tmp_path / "file")]}, check=True)
    assert list(tmp_path.iterdir()) == []


# What a complete run left ---------------------------------------------------------------------------------------


def test_every_package_of_the_journal_is_watched_with_the_packages(tmp_path):
    store.record_packages(str(tmp_path), {"libnccl2": None})
    parts = {
        "packages": {"fingerprint": "p", "watch": {"packages": ["gcc"]}},
        "plan": {"fingerprint": "q", "watch": {}},
    }
    assert recording.record_applied(str(tmp_path), parts)
    recorded = store.read(str(tmp_path), store.APPLIED)["parts"]
    assert recorded["packages"]["watch"]["packages"] == ["gcc", "libnccl2"]
    assert recorded["plan"]["watch"] == {}
    assert parts["packages"]["watch"] == {"packages": ["gcc"]}


def test_damage_that_a_run_was_to_repair_is_not_recorded(tmp_path):
    parts = {"plan": {"fingerprint": "q", "watch": {}}}
    with pytest.raises(ValueError, match=r"content of no-such-package: .*\.list is missing"):
        recording.record_applied(str(tmp_path), parts, repaired=["no-such-package"])
    assert recording.record_applied(str(tmp_path), parts)
    assert not recording.record_applied(str(tmp_path), parts), "nothing has changed since"


def test_check_mode_records_nothing_of_a_run(tmp_path):
    assert not recording.record_applied(str(tmp_path), {"plan": {"fingerprint": "q", "watch": {}}}, check=True)
    assert list(tmp_path.iterdir()) == []


def test_the_request_of_the_verified_configuration_is_remembered(recorder):
    assert store.requested(str(recorder.directory)) is None
    recorder.verified({**PLAN, "request": {"cuda": "13.2"}})
    assert store.requested(str(recorder.directory)) == {"cuda": "13.2"}
    recorder.verified({key: value for key, value in PLAN.items() if key != "request"})
    assert store.requested(str(recorder.directory)) == {}
