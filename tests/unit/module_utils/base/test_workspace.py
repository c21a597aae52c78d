"""Directories for programs that are compiled and run, on real mounts with and without noexec."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import workspace

PROJECT = Path(__file__).resolve().parents[4]
# Mounts a tmpfs with noexec in a mount namespace of its own, compiles nothing, and runs a script where it may.
PROGRAM = """
import subprocess, sys
from ansible_collections.gpuhost.stack.plugins.module_utils.base import workspace
with workspace.directory("test-", sys.argv[1:]) as path:
    script = path + "/program"
    with open(script, "w") as handle:
        handle.write("#!/bin/sh\\necho ran in $0\\n")
    import os
    os.chmod(script, 0o755)
    print(subprocess.run([script], capture_output=True, text=True, check=True).stdout)
"""


def with_noexec(mount: Path, *places: Path) -> subprocess.CompletedProcess[str]:
    mount.mkdir()
    script = f'mount -t tmpfs -o noexec,size=1m tmpfs {mount} && exec "$@"'
    probe = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"no mounts in a namespace of its own here: {probe.stderr.strip()}")
    words = [sys.executable, "-c", PROGRAM, *map(str, places)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
    )


def test_a_place_with_noexec_is_passed_over(tmp_path: Path) -> None:
    hardened, allowed = tmp_path / "hardened", tmp_path / "allowed"
    allowed.mkdir()
    done = with_noexec(hardened, hardened, allowed)
    assert done.returncode == 0, done.stderr
    assert f"ran in {allowed}/test-" in done.stdout


def test_without_any_place_the_error_names_each(tmp_path: Path) -> None:
    hardened, missing = tmp_path / "hardened", tmp_path / "missing"
    done = with_noexec(hardened, hardened, missing)
    assert done.returncode == 1
    assert f"{hardened} is mounted with noexec; [Errno 2] No such file or directory: '{missing}/test-" in done.stderr
    assert not missing.exists()


def test_the_directory_is_removed_and_what_was_there_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with workspace.directory("test-", [str(kept)]) as path:
        Path(path, "program").write_text("x")
        assert Path(path).parent == kept
    assert list(kept.iterdir()) == []


def test_an_error_of_the_user_of_the_directory_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="mine"), workspace.directory("test-", [str(tmp_path)]):
        raise PermissionError("mine")


def test_no_default_place_is_below_tmp() -> None:
    assert not any(place.startswith(("/tmp", "/var/tmp", "/dev/shm")) for place in workspace.PLACES)
