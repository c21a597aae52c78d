"""Files are replaced whole, with their directory synced; links are resolved within a root."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4] / "collections")}


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


def test_nobody_else_can_read_a_file_before_it_has_its_mode(tmp_path, monkeypatch):
    """As a key, or a password of apt, whatever the umask is."""
    modes = []

    def fchmod(descriptor, mode):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        os.chmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    umask = os.umask(0)
    try:
        files.write(str(tmp_path / "key"), b"secret", 0o600)
    finally:
        os.umask(umask)
    assert [mode & 0o077 for mode in modes] == [0]
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_link_replaces_a_file(tmp_path):
    path = tmp_path / "link"
    path.write_text("old")
    files.link(str(path), "target")
    assert os.readlink(path) == "target"


@pytest.mark.parametrize("pid", ["", f".{os.getpid()}", ".4194305"], ids=["earlier releases", "this one", "ended"])
def test_what_an_interrupted_write_left_is_replaced(tmp_path, pid):
    (tmp_path / f"file{pid}{files.NEW}").symlink_to(tmp_path / "elsewhere")
    files.write(str(tmp_path / "file"), b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


WRITES = """
import sys
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
for number in range(300):
    files.write(sys.argv[1], b"%d\\n" % number)
"""


def test_processes_that_write_the_same_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "damage.json"
    processes = [subprocess.Popen([sys.executable, "-c", WRITES, path], env=ENVIRONMENT) for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    assert path.read_text() == "299\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["damage.json"]


# In a mount namespace of its own, with a file system of 64 KiB; the test needs a kernel that lets a user make one.
FULL = """
mount -t tmpfs -o size=64k,nr_inodes=%s none "$1" && dd if=/dev/zero of="$1/filler" bs=4k count=%s status=none
exec %s -c 'import sys
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
store.write(sys.argv[1], "baseline", {"files": {"/etc/x": "y" * 9000}})' "$1"
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
NO_NAMESPACE = subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0


@pytest.mark.skipif(NO_NAMESPACE, reason="this machine allows no user namespace")
@pytest.mark.parametrize(("inodes", "blocks"), [(0, 15), (2, 1)], ids=["no space", "no inode"])
def test_a_full_file_system_is_named_with_the_file_and_what_to_do(tmp_path, inodes, blocks, snapshot):
    script = FULL % (inodes, blocks, sys.executable)
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1].partition("NoSpaceError: ")[2]
    assert f"{tmp_path}/baseline.json" in message
    assert message.replace(str(tmp_path), "/FOLDER") == snapshot


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
