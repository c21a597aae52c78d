"""host_files as Ansible runs it: what it writes, what it leaves alone, what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.modules import host_files


@pytest.fixture(autouse=True)
def hardened_umask() -> Iterator[None]:
    """As on hosts where new files are the administrator's alone."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def module(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(**args: Any) -> dict[str, Any]:
        with patch_module_args(args), pytest.raises(SystemExit):
            host_files.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_files_and_links_are_written_with_the_folders_that_they_need(module: Any, tmp_path: Path) -> None:
    profile, command, link = tmp_path / "etc/profile.d/x.sh", tmp_path / "lib/command", tmp_path / "bin/nvcc"
    files = [
        {"path": str(profile), "content": "export X=1\n"},
        {"path": str(command), "content": "#!/bin/sh\n", "mode": "0755"},
    ]
    result = module(files=files, links={str(link): str(command)})
    assert (result["changed"], result["changed_paths"]) == (True, [str(profile), str(command), str(link)])
    assert (profile.read_text(), mode(profile)) == ("export X=1\n", 0o644)
    assert (command.read_text(), mode(command)) == ("#!/bin/sh\n", 0o755)
    assert os.readlink(link) == str(command)
    assert [mode(tmp_path / name) for name in ("etc", "etc/profile.d", "lib", "bin")] == [0o755] * 4
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name.startswith(".")) == []

    before = profile.stat().st_ino
    assert module(files=files, links={str(link): str(command)})["changed"] is False
    assert profile.stat().st_ino == before


@pytest.mark.parametrize("damage", ["edited", "mode", "deleted", "link", "dangling link"])
def test_what_is_not_as_it_should_be_is_repaired(module: Any, tmp_path: Path, damage: str) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    other.write_text("others\n")
    other.chmod(0o600)
    wanted = {"files": [{"path": str(file), "content": "ours\n"}]}
    module(**wanted)
    if damage == "edited":
        file.write_text("ours\nedited\n")
    elif damage == "mode":
        file.chmod(0o600)
    else:
        file.unlink()
    if "link" in damage:
        file.symlink_to(other if damage == "link" else tmp_path / "nowhere")
    assert module(**wanted)["changed"] is True
    assert (file.read_text(), mode(file), file.is_symlink()) == ("ours\n", 0o644, False)
    assert (other.read_text(), mode(other)) == ("others\n", 0o600)


def test_a_link_takes_the_place_of_a_file_or_of_another_link(module: Any, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("somebody's\n")
    link.symlink_to("elsewhere")
    wanted = {str(file): "target", str(link): "target"}
    assert module(links=wanted)["changed_paths"] == [str(file), str(link)]
    assert [os.readlink(file), os.readlink(link)] == ["target", "target"]
    assert module(links=wanted)["changed"] is False


def test_what_must_go_goes_and_what_is_somebody_elses_stays(module: Any, tmp_path: Path) -> None:
    ours, others, edited, file = (tmp_path / name for name in ("ours", "others", "edited", "file"))
    ours.symlink_to("launcher")
    others.symlink_to("/usr/bin/nvcc")
    edited.write_text("a program\n")
    file.write_text("text\n")
    (tmp_path / "folder").mkdir()
    links = {str(path): "launcher" for path in (ours, others, edited, tmp_path / "never", tmp_path / "folder")}
    result = module(absent=[str(file), str(tmp_path / "gone")], absent_links=links)
    assert sorted(result["changed_paths"]) == [str(file), str(ours)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited", "folder", "others"]
    assert os.readlink(others) == "/usr/bin/nvcc"


def test_check_mode_tells_the_difference_and_writes_nothing(module: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old\n")
    file.chmod(0o644)
    new = str(tmp_path / "folder/new")
    files = [{"path": str(file), "content": "new\n"}, {"path": new, "content": "x\n"}]
    result = module(files=files, _ansible_check_mode=True)
    assert result["changed_paths"] == [str(file), new]
    assert [(entry["before"], entry["after"]) for entry in result["diff"]] == [
        ("file 0644\nold\n", "file 0644\nnew\n"),
        ("", "file 0644\nx\n"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "old\n"


def test_text_that_is_not_utf_8_is_compared_and_replaced(module: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe")
    assert module(files=[{"path": str(file), "content": "ä\n"}])["changed"] is True
    assert file.read_bytes() == "ä\n".encode()


def test_all_that_cannot_be_replaced_is_told_before_anything_is_written(module: Any, tmp_path: Path) -> None:
    folder, plain = tmp_path / "folder", tmp_path / "plain"
    folder.mkdir()
    plain.write_text("no folder\n")
    good = tmp_path / "good"
    result = module(
        files=[
            {"path": str(good), "content": "x"},
            {"path": str(tmp_path / "bad"), "content": "x", "mode": "u=rw"},
            {"path": str(plain / "below"), "content": "x"},
        ],
        links={str(folder): "target", "relative": "target"},
    )
    assert result["failed"] is True
    told = result["msg"].splitlines()
    assert told[0] == "Nothing was written:"
    assert [line.strip() for line in told[1:]] == [
        f"the mode of {tmp_path}/bad is 'u=rw', expected octal digits such as 0644",
        f"{plain} is no folder, so that {plain}/below cannot lie in it: move it away",
        f"{folder} is a folder or a device, expected a file or nothing: move it away",
        "relative is no absolute path",
    ]
    assert not good.exists()
