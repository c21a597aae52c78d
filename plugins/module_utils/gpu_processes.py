"""Processes that use the GPUs: what nvidia-smi lists, and who has /dev/nvidia* open. Runs on the target."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import files, package_manager
from ansible_collections.gpuhost.stack.plugins.module_utils.command import Run

FIELDS = ("pid", "process_name", "used_memory")
TIMEOUT = 30
_DEVICE = re.compile(r"^/dev/(nvidia(?:\d+|ctl|-uvm|-modeset|-caps/.*))$")


def argv(path: str) -> list[str]:
    return [path, "--query-compute-apps=" + ",".join(FIELDS), "--format=csv,noheader,nounits"]


def parse(output: str) -> dict[int, str]:
    """{process id: name}; a process has a row for each GPU that it uses."""
    found = {}
    for line in output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if values[0].isdigit():
            found[int(values[0])] = ",".join(values[1:-1]).strip()
    return found


def read(root: str, smi: dict[str, Any] | None, run: Run) -> list[dict[str, Any]]:
    """By process id: what it is and how it was found. Without a working driver there is no user."""
    if not smi or smi["exit_code"] != 0:
        return []
    answer = run(argv(smi["path"]), TIMEOUT)
    if answer.exit_code != 0:
        raise ValueError("%s ended %d: %s" % (" ".join(argv(smi["path"])), answer.exit_code, answer.text()[:200]))
    computing = parse(answer.stdout.decode("utf-8", "replace"))
    holding = holders(root)
    return [
        {
            "pid": pid,
            "name": package_manager.command_line(root, pid) or computing.get(pid, ""),
            "program": _program(root, pid) or computing.get(pid, "").rsplit("/", 1)[-1],
            "computes": pid in computing,
            "devices": holding.get(pid, []),
        }
        for pid in sorted(set(computing) | set(holding))
    ]


def holders(root: str) -> dict[int, list[str]]:
    """Processes with a device of NVIDIA's open. Only looked for where there is one: it reads every process's links."""
    if not any(name.startswith("nvidia") for name in files.names(root, "/dev")):
        return {}
    found = {}
    for pid in files.names(root, "/proc"):
        devices = _devices(root, pid) if pid.isdigit() else set()
        if devices:
            found[int(pid)] = sorted(devices)
    return found


def _devices(root: str, pid: str) -> set[str]:
    folder = files.under(root, "/proc/%s/fd" % pid)
    devices = set()
    try:
        for entry in os.listdir(folder):
            match = _DEVICE.match(os.readlink(os.path.join(folder, entry)))
            if match:
                devices.add(match.group(1))
    except OSError:  # it ended meanwhile, or belongs to another user
        return devices
    return devices


def _program(root: str, pid: int) -> str | None:
    return (files.read_text(root, "/proc/%d/comm" % pid) or "").strip() or None
