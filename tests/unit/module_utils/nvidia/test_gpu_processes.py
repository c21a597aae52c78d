"""Processes that use the GPUs, found by nvidia-smi and by open device files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess, NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put


def test_processes_of_nvidia_smi_and_with_open_devices(tmp_path: Path) -> None:
    put(tmp_path, "/dev/nvidiactl")
    put(tmp_path, "/proc/41/comm", "nvidia-persistenced"[:15] + "\n")
    put(tmp_path, "/proc/42/cmdline", "python3\0train.py\0")
    put(tmp_path, "/proc/42/comm", "python3\n")
    for pid, device in {"41": "/dev/nvidia0", "42": "/dev/nvidia-uvm", "43": "/dev/null"}.items():
        directory = tmp_path / "proc" / pid / "fd"
        directory.mkdir(parents=True)
        (directory / "3").symlink_to(device)
    answer = command.Answer(0, b"42, python3, 6144\n42, python3, 512\n77, /opt/a, b/prog, [N/A]\n", b"")
    found = gpu_processes.read(str(tmp_path), NvidiaSmi(path="/usr/bin/nvidia-smi"), lambda *_: answer)
    assert [(p.pid, p.name, p.program, p.computes, p.devices) for p in found] == [
        (41, "nvidia-persiste", "nvidia-persiste", False, ("nvidia0",)),
        (42, "python3 train.py", "python3", True, ("nvidia-uvm",)),
        (77, "/opt/a,b/prog", "prog", True, ()),
    ]


def test_programs_are_asked_for_as_rows(tmp_path: Path) -> None:
    def run(argv: list[str], timeout: float) -> command.Answer:
        query = "--query-compute-apps=pid,process_name,used_memory"
        assert argv == ["/usr/bin/nvidia-smi", query, "--format=csv,noheader,nounits"]
        return command.Answer(0, b"\n", b"")

    assert gpu_processes.read(str(tmp_path), NvidiaSmi(path="/usr/bin/nvidia-smi"), run) == ()


def test_without_a_working_driver_there_are_no_processes(tmp_path: Path) -> None:
    def refuse(*_: object) -> command.Answer:
        raise AssertionError("nvidia-smi must not be called")

    assert gpu_processes.read(str(tmp_path), None, refuse) == ()
    assert gpu_processes.read(str(tmp_path), NvidiaSmi(path="x", exit_code=9), refuse) == ()


def test_job_on_the_old_module_is_found_after_an_upgrade(tmp_path: Path) -> None:
    """nvidia-smi fails with 18, while the program continues to use the loaded module."""
    put(tmp_path, "/dev/nvidia-uvm")
    put(tmp_path, "/proc/42/comm", "python3\n")
    (tmp_path / "proc/42/fd").mkdir()
    (tmp_path / "proc/42/fd/5").symlink_to("/dev/nvidia-uvm")

    def refuse(*_: object) -> command.Answer:
        raise AssertionError("nvidia-smi must not be called")

    (found,) = gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi", exit_code=18), refuse)
    assert (found.pid, found.program, found.computes) == (42, "python3", False)
    assert gpu_processes.is_job(found)


@pytest.mark.parametrize(
    "line",
    ["Unknown Error", "[N/A], python3, 6144", "[Insufficient Permissions], a, 1", "285937865", "1764113657, host"],
)
def test_line_that_is_no_process_is_an_error_and_not_an_idle_gpu(tmp_path: Path, line: str) -> None:
    answer = command.Answer(0, f"42, python3, 512\n{line}\n".encode(), b"")
    with pytest.raises(ValueError, match=re.escape(repr(line))):
        gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), lambda *_: answer)


def test_a_name_with_a_line_break_is_one_process(tmp_path: Path) -> None:
    """`python3 -c` with a program of several lines; what could be a row of its own is one, or an error."""

    def read(printed: str) -> list[tuple[int, str]]:
        smi = NvidiaSmi(path="nvidia-smi")
        found = gpu_processes.read(str(tmp_path), smi, lambda *_: command.Answer(0, printed.encode(), b""))
        return [(process.pid, process.name) for process in found]

    assert read("42, python3 -c import torch\nprint(1, 2)\n, 512\n77, b, [N/A]\n") == [
        (42, "python3 -c import torch\nprint(1,2)"),
        (77, "b"),
    ]
    assert read("42, a\nb, 512\n") == [(42, "a\nb")]
    for printed, begin in {
        "42, a\n77, b, 512\n": "'42, a'",
        "42, a\n": "'42, a'",
        "42, a\nb\n": r"'42, a\\nb'",
        "Unknown Error\n42, a, 512\n": "'Unknown Error'",
    }.items():
        with pytest.raises(ValueError, match=begin):
            read(printed)


def test_names_and_warnings_are_no_lines_of_their_own(tmp_path: Path) -> None:
    """A vertical tab or U+2028 in a name, nvidia-smi's warning, and a line that it prints beside its rows, too."""
    printed = "Authorized users only.\n42, a\vb\u2028c, 512\nWARNING: infoROM is corrupted at gpu 0000:1A:00.0\n"
    smi = NvidiaSmi(path="nvidia-smi", exit_code=14, notices=("Authorized users only.",))
    (found,) = gpu_processes.read(str(tmp_path), smi, lambda *_: command.Answer(14, printed.encode(), b""))
    assert (found.pid, found.name) == (42, "a\vb\u2028c")


def test_failed_query_is_an_error_and_not_an_idle_gpu(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    failed = command.Answer(15, b"GPU is lost\n", b"")
    with pytest.raises(ValueError, match="GPU is lost") as error:
        gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), lambda *_: failed)
    with pytest.raises(ValueError, match="'hello'") as no_process:
        gpu_processes.parse("hello")
    assert [str(error.value), str(no_process.value)] == snapshot


def test_an_answer_after_a_minute_is_slow_and_not_an_error(tmp_path: Path) -> None:
    """Initialising eight GPUs can take longer than the first limit."""

    def slow(_argv: list[str], timeout: float) -> command.Answer:
        if timeout < 60:
            return command.Answer(command.TIMED_OUT, b"", b"did not end")
        return command.Answer(0, b"42, python3, 6144\n", b"")

    (found,) = gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), slow)
    assert (found.pid, found.computes) == (42, True)


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, " and 1 more"), (9, " and 4 more")])
def test_five_processes_are_listed(count: int, more: str) -> None:
    users = [GpuProcess(40 + number, "" if number == 0 else f"job {number}") for number in range(count)]
    first = ["40 (unknown)", "41 (job 1)", "42 (job 2)", "43 (job 3)", "44 (job 4)"]
    assert gpu_processes.listed(users) == ", ".join(first[:count]) + more


@pytest.mark.parametrize(
    ("program", "computes", "devices", "job"),
    [
        ("python3", True, [], True),
        ("python3", False, ["nvidia-uvm", "nvidia0"], True),
        ("Xorg", False, ["nvidia-modeset", "nvidia0"], False),
        *(
            (service, True, ["nvidia-uvm"], False)
            for service in ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvidia-imex", "dcgm-exporter")
        ),
    ],
)
def test_job_computes_and_is_no_service(program: str, computes: bool, devices: list[str], job: bool) -> None:
    user = GpuProcess(42, program, program, computes, tuple(devices))
    assert gpu_processes.jobs([user]) == ([user] if job else [])


OF_USER = "0::/user.slice/user-1000.slice/user@1000.service"
POD = "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-9b5e.scope"
# The kernel's name of a program and its control group, as systemd-oomd, Docker, containerd and Podman name them.
PLACES = {
    "GNOME": ("gnome-shell", f"{OF_USER}/session.slice/org.gnome.Shell@wayland.service", "seat", False),
    "its helper": ("mutter-x11-fram", f"{OF_USER}/session.slice/org.gnome.Shell@wayland.service", "seat", False),
    "X of startx": ("Xorg", "0::/user.slice/user-1000.slice/session-3.scope", "seat", False),
    "the greeter": ("gsd-color", "0::/system.slice/gdm.service", "seat", False),
    "Isaac Sim from a terminal": ("kit", f"{OF_USER}/app.slice/vte-spawn-5f3c.scope", "", True),
    "Isaac Sim from an icon": ("kit", f"{OF_USER}/app.slice/app-gnome-isaac\\x2dsim-7.scope", "", True),
    "training over ssh": ("python3", "0::/user.slice/user-1000.slice/session-7.scope", "", True),
    "training in a pod": ("python3", POD, "container", True),
    "training in Docker": ("python3", "0::/system.slice/docker-e23ce43d.scope", "container", True),
    "in Docker, cgroup v1": ("python3", "12:memory:/docker/e23ce43d\n11:cpu:/docker/e23ce43d", "container", True),
    "in Podman without root": ("python3", f"{OF_USER}/user.slice/libpod-9b5e.scope/container", "container", True),
    "DCGM in a pod": ("nv-hostengine", POD, "container", False),
    "the device plugin": ("nvidia-device-p", POD, "container", False),
    "telegraf": ("telegraf", "0::/system.slice/telegraf.service", "", False),
    "a container's own view": ("python3", "0::/", "", True),
}


@pytest.mark.parametrize("name", PLACES)
def test_displays_and_monitors_are_no_jobs_and_what_computes_beside_them_is_one(tmp_path: Path, name: str) -> None:
    """All of these are compute processes to nvidia-smi, a desktop and Isaac Sim as C+G."""
    program, groups, where, job = PLACES[name]
    put(tmp_path, "/dev/nvidia-uvm")
    put(tmp_path, "/proc/42/comm", f"{program}\n")
    put(tmp_path, "/proc/42/cgroup", f"{groups}\n")
    answer = command.Answer(0, f"42, {program}, 512\n".encode(), b"")
    (found,) = gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), lambda *_: answer)
    assert found.where == where
    assert gpu_processes.jobs([found]) == ([found] if job else [])


@pytest.mark.parametrize(("where", "stays"), [("", False), ("container", True)])
def test_a_service_of_nvidia_in_a_container_is_not_stopped_for_a_new_driver(where: str, stays: bool) -> None:
    user = GpuProcess(42, "nv-hostengine", "nv-hostengine", devices=("nvidiactl",), where=where)
    assert gpu_processes.staying([user]) == ([user] if stays else [])
    assert gpu_processes.listed([user]) == f"42 (nv-hostengine{', in a container' if stays else ''})"


def test_open_devices_are_those_of_the_driver(tmp_path: Path) -> None:
    devices = ["nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/nvidia-cap1"]
    others = ["nvidia-uvm-tools", "nvidia-nvswitch0", "null", "dri/card0"]
    directory = tmp_path / "proc/42/fd"
    directory.mkdir(parents=True)
    for number, name in enumerate([*devices, *others]):
        (directory / str(number)).symlink_to("/dev/" + name)
    put(tmp_path, "/proc/uptime", "1 1\n")
    put(tmp_path, "/proc/43/comm", "ended\n")
    assert gpu_processes.holders(str(tmp_path)) == {}, "the host has no such device"
    put(tmp_path, "/dev/nvidia0")
    assert gpu_processes.holders(str(tmp_path)) == {42: sorted(devices)}


def test_process_in_another_container_is_named_by_nvidia_smi(tmp_path: Path) -> None:
    answer = command.Answer(0, b"90, /opt/bin/train, 512\n7, , 1\n", b"")
    found = gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), lambda *_: answer)
    assert [(user.pid, user.name, user.program) for user in found] == [
        (7, "", ""),
        (90, "/opt/bin/train", "train"),
    ]


def test_long_error_is_cut(tmp_path: Path) -> None:
    failed = command.Answer(15, b"x" * 300, b"")
    with pytest.raises(ValueError, match=r": x{200}$"):
        gpu_processes.read(str(tmp_path), NvidiaSmi(path="nvidia-smi"), lambda *_: failed)
    with pytest.raises(ValueError, match=r" 'x{200}' "):
        gpu_processes.parse("x" * 300)
