"""Files of ours on the controller."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import controller_files


def test_a_directory_in_the_cache_is_of_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = controller_files.private("memory")
    assert found == tmp_path / "gpuhost/memory"
    assert found.stat().st_mode & 0o777 == 0o700, "what is in it is loaded or run"
    assert controller_files.private("memory") == found


@pytest.mark.parametrize("mode", [None, 0o777, 0o770], ids=["a file", "others may write", "the group may write"])
def test_what_others_may_have_written_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "gpuhost/memory"
    if mode is None:
        folder.parent.touch()
    else:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    assert controller_files.private("memory") is None


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as for a user id without an entry in passwd

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert controller_files.private("memory") is None


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    (path := tmp_path / "locks/a.txt").parent.mkdir()
    path.write_text("old")
    with path.open() as reader:
        controller_files.replace(path, "new")
        assert reader.read() == "old", "the file that was open is another one"
    assert path.read_text() == "new"
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644
