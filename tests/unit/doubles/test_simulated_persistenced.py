"""The simulated nvidia-persistenced starts where it has devices, and ends as public logs of the genuine one show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.doubles import simulated_driver

DAEMON = simulated_driver.NVIDIA_SMI.parent / "nvidia-persistenced"
PID_FILE = "run/nvidia-persistenced/nvidia-persistenced.pid"
STATE, LOADED = "etc/gpuhost-simulated/nvidia-smi.json", "proc/driver/nvidia/version"
LOADABLE = "usr/share/gpuhost-simulated/kernel-modules-are-loadable"
# journalctl of a host with Ubuntu, 2014-03-21, without the user's number.
WITHOUT_DEVICES = (
    "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) exist, and that user "
    "N has read and write permissions for those files.\n"
)


def start(root: Path, files: dict[str, str]) -> tuple[int, str]:
    """Start it as Ubuntu's unit does, and return its exit status and errors; end what goes on in the background."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "bin").mkdir()
    (root / "bin/modprobe").write_text('#!/bin/sh\necho "$@" > "$GPUHOST_SIMULATED_ROOT/modprobe"\nexit 1\n')
    (root / "bin/modprobe").chmod(0o755)
    environment = {**os.environ, "GPUHOST_SIMULATED_ROOT": str(root), "PATH": f"{root}/bin:{os.environ['PATH']}"}
    with (root / "errors").open("w") as errors:
        argv = ["sh", str(DAEMON), "--user", "nvidia-persistenced", "--persistence-mode"]
        code = subprocess.run(argv, env=environment, stdout=errors, stderr=errors, timeout=30, check=False).returncode
    return code, (root / "errors").read_text()


@pytest.mark.parametrize(
    ("files", "tries"),
    [
        pytest.param({LOADABLE: ""}, True, id="the module cannot be loaded"),
        pytest.param({STATE: '{"state": "not_loaded"}'}, False, id="the module is said not to be loaded"),
        pytest.param({STATE: '{"state": "no_devices"}'}, False, id="no device is usable"),
    ],
)
def test_it_ends_with_1_without_devices(files: dict[str, str], tries: bool, tmp_path: Path) -> None:
    code, errors = start(tmp_path, files)
    assert code == 1
    assert re.sub(r"user \d+ has", "user N has", errors) == WITHOUT_DEVICES
    assert (tmp_path / "modprobe").exists() == tries
    assert not (tmp_path / PID_FILE).exists()


@pytest.mark.parametrize("files", [{}, {LOADABLE: "", LOADED: "NVRM version: x"}, {STATE: '{"delay": 0}'}])
def test_it_keeps_running_with_devices(files: dict[str, str], tmp_path: Path) -> None:
    code, _output = start(tmp_path, files)
    assert code == 0
    deadline = time.monotonic() + 30
    while not (pid := (tmp_path / PID_FILE).read_text() if (tmp_path / PID_FILE).exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(int(pid), signal.SIGKILL)
