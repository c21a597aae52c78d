# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find the processes that use the GPUs: those that nvidia-smi lists, and those that have /dev/nvidia* open."""

from __future__ import annotations

import os
import re
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import (
    CONTAINER,
    SEAT,
    GpuProcess,
    NvidiaSmi,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi

FIELDS = ("pid", "process_name", "used_memory")
# NVIDIA's services and GPU monitors: their packages restart them, and no work is lost.
SERVICES = (
    "nvidia-persiste",  # the kernel truncates a program's name to 15 characters
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-imex",
    "dcgm-exporter",
)
# Monitors that others run, most in containers: nothing of theirs is lost, and nobody waits for them to end. The device
# plugin and the feature discovery of Kubernetes, agents, and tools that people leave open.
MONITORS = ("nvidia-device-p", "gpu-feature-dis", "telegraf", "netdata", "nvtop", "nvitop", "nvidia-smi")
# Display servers and what draws a desktop: nvidia-smi lists them as C+G, as it does Isaac Sim, which is a job.
DISPLAYS = (
    *("Xorg", "X", "Xwayland", "gnome-shell", "mutter", "kwin_wayland", "kwin_x11", "plasmashell", "ksmserver"),
    *("cinnamon", "xfwm4", "weston", "sway", "Hyprland", "sddm-greeter", "lightdm-gtk-gre", "gdm-x-session"),
)
# What systemd calls the processes of a graphical session that are no application (systemd's DESKTOP_ENVIRONMENTS), and
# the unit of a display manager. An application, and what a terminal in it runs, is in app.slice.
_OF_A_SEAT = re.compile(r"/session\.slice/|/(?:gdm3?|sddm|lightdm|display-manager)\.service(?:/|$)", re.MULTILINE)
_OF_A_CONTAINER = re.compile(r"/(?:kubepods|docker[-/]|libpod|lxc[./]|crio|cri-containerd)")
# A row begins with the process id and ends with the memory in MiB, or with what is printed in its place.
_ROW_BEGINS, _ROW_ENDS = re.compile(r"\d+,"), re.compile(r", *(?:\d+|\[[^\],]*\])$")
_DEVICE = re.compile(r"^/dev/(nvidia(?:\d+|ctl|-uvm|-modeset|-caps/.*))$")


def argv(path: str) -> list[str]:
    """Return the command that lists the compute processes."""
    return [path, "--query-compute-apps=" + ",".join(FIELDS), "--format=csv,noheader,nounits"]


def parse(output: str, notices: Iterable[str] = ()) -> dict[int, str]:
    """Return {process id: name}; nvidia-smi prints a row for each GPU that a process uses, nothing without any.

    A name may have a line break: what follows belongs to its row, unless it could be a row itself. notices: lines that
    nvidia-smi prints beside its rows of GPUs, too. Raise ValueError for any other line that is no such row: it may
    stand for a process.
    """
    found = {}
    for line in _rows(nvidia_smi.lines(output, notices)):
        values = [value.strip() for value in line.split(",")]
        if len(values) < len(FIELDS) or not (values[0].isascii() and values[0].isdigit()):
            raise ValueError("nvidia-smi printed %r in place of a process" % line[:200])
        found[int(values[0])] = ",".join(values[1:-1]).strip()
    return found


def _rows(lines: Iterable[str]) -> list[str]:
    """Return the rows, those whole that a line break in a name has cut: their first part has no memory at its end."""
    rows: list[str] = []
    for line in lines:
        if rows and _ROW_BEGINS.match(rows[-1]) and not (_ROW_ENDS.search(rows[-1]) or _ROW_BEGINS.match(line)):
            rows[-1] += "\n" + line
        else:
            rows.append(line)
    return rows


def read(root: str, smi: NvidiaSmi | None, run: Run) -> tuple[GpuProcess, ...]:
    """Return the processes that use the GPUs, in order of their ids.

    `smi` is the result of nvidia_smi.read. If it failed, open devices alone identify the processes: after an upgrade
    nvidia-smi fails (18) while programs continue to use the loaded module. Raise ValueError if the query fails although
    nvidia-smi works, or prints something else.
    """
    computing = _computing(smi, run) if smi and nvidia_smi.answers(smi) else {}
    holding = holders(root)
    return tuple(
        GpuProcess(
            pid=pid,
            name=processes.command_line(root, pid) or computing.get(pid, ""),
            program=_program(root, pid) or computing.get(pid, "").rsplit("/", 1)[-1],
            computes=pid in computing,
            devices=tuple(holding.get(pid, ())),
            where=_where(root, pid),
        )
        for pid in sorted(set(computing) | set(holding))
    )


def _computing(smi: NvidiaSmi, run: Run) -> dict[int, str]:
    answer = nvidia_smi.ask(run, argv(smi.path))
    if answer.exit_code not in nvidia_smi.ANSWERS:
        raise ValueError("%s exited with %d: %s" % (" ".join(argv(smi.path)), answer.exit_code, answer.text()[:200]))
    return parse(answer.output, smi.notices)


def is_job(user: GpuProcess) -> bool:
    """Return whether a process computes: CUDA programs have nvidia-uvm open, monitors do not.

    What belongs to a seat draws its desktop, with CUDA or without.
    """
    return user.where != SEAT and (user.computes or "nvidia-uvm" in user.devices)


def jobs(users: Iterable[GpuProcess]) -> list[GpuProcess]:
    """Return the processes that would lose work if the driver changed, without services, monitors and displays."""
    return [user for user in users if user.program not in (*SERVICES, *MONITORS) and is_job(user)]


def staying(users: Iterable[GpuProcess]) -> list[GpuProcess]:
    """Return the processes that nobody ends for a new driver: all but NVIDIA's services on the host itself."""
    return [user for user in users if user.program not in SERVICES or user.where == CONTAINER]


def listed(users: Iterable[GpuProcess]) -> str:
    """Return the first five processes as text: process id and name, and whether it is in a container."""
    every, inside = list(users), {CONTAINER: ", in a container"}
    names = ("%s (%s%s)" % (user.pid, user.name or "unknown", inside.get(user.where, "")) for user in every[:5])
    shown = ", ".join(names)
    return shown + (" and %d more" % (len(every) - 5) if len(every) > 5 else "")


def holders(root: str) -> dict[int, list[str]]:
    """Return the open NVIDIA devices by process id. Without such a device no process is inspected."""
    if not any(name.startswith("nvidia") for name in files.names(root, "/dev")):
        return {}
    found = {}
    for pid in files.names(root, "/proc"):
        devices = _devices(root, pid) if pid.isdigit() else set()
        if devices:
            found[int(pid)] = sorted(devices)
    return found


def _devices(root: str, pid: str) -> set[str]:
    directory = files.under(root, "/proc/%s/fd" % pid)
    devices = set()
    try:
        for entry in os.listdir(directory):
            match = _DEVICE.match(os.readlink(os.path.join(directory, entry)))
            if match:
                devices.add(match.group(1))
    except OSError:  # the process ended, or belongs to another user
        return devices
    return devices


def _where(root: str, pid: int) -> str:
    """Return where a process runs, by its name and its control group."""
    if _program(root, pid) in DISPLAYS:
        return SEAT
    groups = files.read_text(root, "/proc/%d/cgroup" % pid) or ""
    return SEAT if _OF_A_SEAT.search(groups) else CONTAINER if _OF_A_CONTAINER.search(groups) else ""


def _program(root: str, pid: int) -> str | None:
    return (files.read_text(root, "/proc/%d/comm" % pid) or "").strip() or None
