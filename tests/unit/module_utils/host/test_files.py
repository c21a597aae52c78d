"""Files are replaced whole, with their directory synced; links are resolved within a root."""

import os
import stat
import subprocess

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import files


@pytest.mark.parametrize("before", ["nothing", "a file", "a link"])
def test_a_file_is_written_with_its_mode_and_parents(tmp_path, before):
    path = tmp_path / "new" / "directories" / "file"
    if before != "nothing":
        path.parent.mkdir(parents=True)
    if before == "a file":
        path.write_text("old")
    if before == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    files.write(str(path), b"new\n", 0o640, (os.getuid(), os.getgid()))
    assert path.read_bytes() == b"new\n"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_replaces_a_file(tmp_path):
    path = tmp_path / "link"
    path.write_text("old")
    files.link(str(path), "target")
    assert os.readlink(path) == "target"


def test_what_an_interrupted_write_left_is_replaced(tmp_path):
    (tmp_path / f"file{files.NEW}").symlink_to(tmp_path / "elsewhere")
    files.write(str(tmp_path / "file"), b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_file_is_synced_before_the_rename_and_its_directory_after_it(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "file").exists()))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", record)
    files.write(str(tmp_path / "file"), b"new")
    assert synced == [(False, False), (True, True)]


def test_new_directories_are_readable_whatever_the_umask_is(tmp_path):
    umask = os.umask(0o077)
    try:
        files.make_parents(str(tmp_path / "a" / "b" / "file"))
    finally:
        os.umask(umask)
    assert [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b")] == [0o755, 0o755]


def test_links_are_resolved_within_the_root(tmp_path):
    (tmp_path / "usr/local/cuda-13.2").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.2")
    assert files.resolve(str(tmp_path), "/usr/local/cuda") == "/usr/local/cuda-13.2"
    (tmp_path / "usr/local/cuda-13.2").rmdir()
    assert files.resolve(str(tmp_path), "/usr/local/cuda") is None


def test_a_loop_of_links_is_no_file(tmp_path):
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert files.resolve(str(tmp_path), "/a") is None


def test_missing_files_and_directories_are_empty(tmp_path):
    (tmp_path / "file").write_bytes(b"\xff\n")
    assert files.read_text(str(tmp_path), "/file") == "\ufffd\n"
    assert files.read_bytes(str(tmp_path), "/file/below") is None
    assert files.read_text(str(tmp_path), "/none") is None
    assert files.names(str(tmp_path), "/none") == []


def test_a_file_of_a_process_that_has_ended_is_none():
    """The kernel answers "no such process" where a process ends after its file was opened, and for a zombie's."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert os.path.exists(f"/proc/{process.pid}/environ")
        assert files.read_bytes("/", f"/proc/{process.pid}/environ") is None
