"""Processes that use the GPUs: what nvidia-smi lists, and who has /dev/nvidia* open. Runs on the target."""

from __future__ import annotations

import os
import re
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import package_manager

FIELDS = ("pid", "process_name", "used_memory")
TIMEOUT = 30
# They belong to the driver or watch it: packages restart them, no work is lost.
SERVICES = (
    "nvidia-persiste",  # the kernel cuts a program's name after 15 characters
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-imex",
    "dcgm-exporter",
)
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
    """By process id: what it is and how it was found.

    An nvidia-smi that does not work is not asked: after an upgrade it refuses (18) while programs go on with the module
    that is loaded, and they are found by what they have open.
    """
    computing = _computing(smi, run) if smi and smi["exit_code"] == 0 else {}
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


def _computing(smi: dict[str, Any], run: Run) -> dict[int, str]:
    answer = run(argv(smi["path"]), TIMEOUT)
    if answer.exit_code != 0:
        raise ValueError("%s ended %d: %s" % (" ".join(argv(smi["path"])), answer.exit_code, answer.text()[:200]))
    return parse(answer.stdout.decode("utf-8", "replace"))


def is_job(user: Any) -> bool:
    """Whether work would be lost: a CUDA program has nvidia-uvm open; displays and monitors do not."""
    return bool(user["computes"] or "nvidia-uvm" in user["devices"])


def jobs(users: Iterable[Any]) -> list[Any]:
    """Those that a change of the driver would cost work; NVIDIA's own services are not among them."""
    return [user for user in users if user["program"] not in SERVICES and is_job(user)]


def listed(users: Iterable[Any]) -> str:
    """The first five of them."""
    every = list(users)
    shown = ", ".join("%s (%s)" % (user["pid"], user["name"] or "of unknown name") for user in every[:5])
    return shown + (" and %d more" % (len(every) - 5) if len(every) > 5 else "")


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
