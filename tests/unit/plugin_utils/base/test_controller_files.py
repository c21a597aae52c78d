"""Files of ours on the controller."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import controller_files


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as for a user id without an entry in passwd

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OSError, match="home directory"):
        controller_files.cache()


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    (path := tmp_path / "locks/a.txt").parent.mkdir()
    path.write_text("old")
    with path.open() as reader:
        controller_files.replace(path, "new")
        assert reader.read() == "old", "the file that was open is another one"
    assert path.read_text() == "new"
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644
