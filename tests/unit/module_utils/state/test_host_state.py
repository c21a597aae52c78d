"""What a host was, kept as files and brought back: on real files in a folder of the test's own."""

import json
import os
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import host_state

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "apt_transaction"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "settings").write_text("old\n")
    (tmp_path / "settings").chmod(0o640)
    (tmp_path / "current").symlink_to("environments/one")
    return tmp_path


def paths(tree: Path) -> list[str]:
    return [str(tree / name) for name in ("settings", "current", "absent")]


def test_files_links_and_what_was_not_there_come_back(tree):
    before = host_state.capture(paths(tree))
    (tree / "settings").write_text("new\n")
    (tree / "settings").chmod(0o600)
    (tree / "current").unlink()
    (tree / "current").symlink_to("environments/two")
    (tree / "absent").write_text("came with the change\n")
    assert sorted(host_state.put_back(before)) == sorted(paths(tree))
    assert (tree / "settings").read_text() == "old\n"
    assert (tree / "settings").stat().st_mode & 0o777 == 0o640
    assert os.readlink(tree / "current") == "environments/one"
    assert not (tree / "absent").exists()
    assert host_state.put_back(before) == []


def test_a_link_that_became_a_file_and_a_deleted_file_come_back(tree):
    before = host_state.capture(paths(tree))
    (tree / "current").unlink()
    (tree / "current").write_text("no link\n")
    (tree / "settings").unlink()
    host_state.put_back(before)
    assert os.readlink(tree / "current") == "environments/one"
    assert (tree / "settings").read_text() == "old\n"


def test_check_mode_tells_and_leaves(tree):
    before = host_state.capture(paths(tree))
    (tree / "settings").write_text("new\n")
    assert host_state.put_back(before, check=True) == [str(tree / "settings")]
    assert (tree / "settings").read_text() == "new\n"


def test_the_first_touch_of_a_package_is_the_one_that_is_kept(tmp_path):
    host_state.touch(str(tmp_path), {"libnccl2": None, "gcc": {"version": "1", "held": False, "auto": True}})
    host_state.touch(str(tmp_path), {"libnccl2": {"version": "2", "held": True, "auto": False}, "curl": None})
    packages = (host_state.read(str(tmp_path), "journal") or {})["packages"]
    assert packages == {"libnccl2": None, "gcc": {"version": "1", "held": False, "auto": True}, "curl": None}


def test_a_record_that_was_cut_off_leaves_the_one_before(tmp_path, monkeypatch):
    host_state.write(str(tmp_path), "good", {"plan": "old"})

    def cut_off(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dump", cut_off)
    with pytest.raises(KeyboardInterrupt):
        host_state.write(str(tmp_path), "good", {"plan": "new"})
    monkeypatch.undo()
    assert (host_state.read(str(tmp_path), "good") or {})["plan"] == "old"


def test_a_record_that_is_not_there_is_none_and_one_that_is_broken_an_error(tmp_path):
    assert host_state.read(str(tmp_path), "good") is None
    (tmp_path / "good.json").write_text("{")
    with pytest.raises(ValueError, match="is not the JSON"):
        host_state.read(str(tmp_path), "good")


def test_own_folders_go_whole_and_shared_ones_when_they_are_empty(tmp_path):
    own, shared, used = tmp_path / "own", tmp_path / "shared", tmp_path / "used"
    (own / "deep").mkdir(parents=True)
    (own / "deep" / "file").write_text("")
    (shared / "below").mkdir(parents=True)
    used.mkdir()
    (used / "somebody's").write_text("")
    folders = [str(shared), str(shared / "below"), str(used)]
    assert host_state.remove_folders([str(own)], folders) == [str(own), str(shared / "below"), str(shared)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used"]


def test_alternatives_are_read_as_update_alternatives_tells_them():
    text = (FIXTURES / "update-alternatives-query.txt").read_text()
    assert host_state.parse_alternative(text) == {"mode": "auto", "value": "/usr/bin/less"}
