"""Loading the planned kernel module: the decision as a table, and the commands that carry it out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess, KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import driver_load
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.driver_load import Decision, NotPossible, Situation
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put

RUNNING, NEXT = "6.1.0-50-amd64", "6.1.0-56-amd64"
OPEN_595 = KernelModule("595.71.05", "open")
OPEN_580 = KernelModule("580.126.16", "open")
PROPRIETARY_595 = KernelModule("595.71.05", "proprietary")


def user(program: str, *devices: str, computes: bool = False) -> GpuProcess:
    return GpuProcess(7, f"/usr/bin/{program} -x", program, computes, devices)


JOB = user("python3", "nvidia-uvm", "nvidia0")
JOB_BY_SMI = user("python3", computes=True)
DISPLAY = user("Xorg", "nvidia0", "nvidia-modeset")
DAEMON = user("nvidia-persiste", "nvidia0")
MONITOR = user("nv-hostengine", "nvidiactl", "nvidia-uvm")


def situation(**facts: Any) -> Situation:
    """Return a host on which the planned module is built, nothing is loaded and nothing uses the GPUs, with changes."""
    usual = {"loaded": None, "nouveau": False, "running": RUNNING, "next_boot": RUNNING, "built": {RUNNING: [OPEN_595]}}
    return Situation(**{**usual, **facts})


@pytest.mark.parametrize(
    ("version", "facts", "expected"),
    [
        ("595.71.05", {"loaded": OPEN_595}, "keep"),
        ("595", {"loaded": OPEN_595}, "keep"),
        ("595.71.05", {"loaded": OPEN_595, "users": [JOB]}, "keep"),
        ("595.71.05", {"loaded": OPEN_595, "built": {}}, "keep"),
        ("595.71.05", {}, "load"),
        ("595.71.05", {"built": {RUNNING: [OPEN_580, OPEN_595]}}, "load"),
        ("595.71.05", {"loaded": OPEN_580}, "reload"),
        ("595.71.05", {"loaded": PROPRIETARY_595}, "reload"),
        ("595.71.05", {"loaded": OPEN_580, "users": [DAEMON, MONITOR]}, "reload"),
        ("595.71.05", {"loaded": OPEN_580, "users": [DAEMON, DISPLAY]}, "reboot"),
        ("595.71.05", {"users": [DISPLAY]}, "load"),
        ("595.71.05", {"nouveau": True}, "reboot"),
        ("595.71.05", {"loaded": OPEN_595, "nouveau": True}, "reboot"),
        ("595.71.05", {"next_boot": NEXT, "built": {RUNNING: [], NEXT: [OPEN_595]}}, "reboot"),
        ("595.71.05", {"next_boot": NEXT, "built": {RUNNING: [OPEN_595], NEXT: []}}, "load"),
    ],
)
def test_least_disruptive_action(version: str, facts: dict[str, Any], expected: str) -> None:
    decision = driver_load.decide(version, "open", situation(**facts))
    assert decision.action == expected
    assert bool(decision.reasons) == (expected == "reboot")


def test_what_is_refused_is_explained(snapshot: SnapshotAssertion) -> None:
    facts = {"next_boot": NEXT, "built": {NEXT: [], RUNNING: [OPEN_580, PROPRIETARY_595]}}
    found = f"{RUNNING}: open 580.126.16, proprietary 595.71.05; {NEXT}: none"
    with pytest.raises(NotPossible, match=re.escape(found)) as not_built:
        driver_load.decide("595.71.05", "open", situation(**facts))
    with pytest.raises(NotPossible) as under_jobs:
        driver_load.refuse_under_jobs("595.71.05", [JOB])
    assert [str(not_built.value), str(under_jobs.value)] == snapshot
    driver_load.refuse_under_jobs("595.71.05", [DISPLAY, MONITOR])


def test_reboot_has_every_reason(snapshot: SnapshotAssertion) -> None:
    assert driver_load.decide("595", "open", situation(nouveau=True)).reasons == ["nouveau is loaded"]
    facts = {
        "loaded": OPEN_580,
        "users": [DISPLAY],
        "next_boot": NEXT,
        "built": {RUNNING: [OPEN_580], NEXT: [OPEN_595]},
    }
    reasons = driver_load.decide("595", "open", situation(**facts)).reasons
    assert [NEXT in reasons[0], "7 (/usr/bin/Xorg -x)" in reasons[1]] == [True, True]
    assert reasons == snapshot


@pytest.mark.parametrize("job", [JOB, JOB_BY_SMI], ids=["by its devices", "by nvidia-smi"])
@pytest.mark.parametrize(
    "facts", [{"loaded": OPEN_580}, {"loaded": OPEN_580, "nouveau": True}], ids=["reload", "reboot"]
)
def test_running_job_is_refused(job: dict[str, Any], facts: dict[str, Any]) -> None:
    with pytest.raises(NotPossible, match=r": 7 \(/usr/bin/python3 -x\)"):
        driver_load.decide("595.71.05", "open", situation(users=[DAEMON, job], **facts))


@pytest.mark.parametrize(
    "facts",
    [
        {"built": {RUNNING: []}},
        {"built": {RUNNING: [OPEN_580]}},
        {"built": {RUNNING: [PROPRIETARY_595]}},
        {"built": {RUNNING: [], NEXT: [OPEN_580]}, "next_boot": NEXT},
        {"built": {RUNNING: []}, "next_boot": None},
        {"built": {RUNNING: []}, "nouveau": True},
    ],
)
def test_module_that_no_kernel_has_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(NotPossible, match=r"no open .* 595\.71\.05 is built"):
        driver_load.decide("595.71.05", "open", situation(**facts))


# Apply ----------------------------------------------------------------------------------------------------------


class Host:
    """A stub of systemctl, rmmod and modprobe; /proc/modules is a file below `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.commands = root, list[str]()
        self.units = {"nvidia-persistenced.service": "active", "nvidia-fabricmanager.service": "failed"}
        self.failing: dict[str, str] = {}
        self.releases: Callable[[], None] = lambda: None
        self.slept, self.free_after = 0.0, float("inf")
        (root / "proc").mkdir()

    def modules(self, *lines: str) -> None:
        (self.root / "proc/modules").write_text("".join(f"{line} Live 0x0 (OE)\n" for line in lines))

    def run(self, argv: list[str], *_: Any) -> command.Answer:
        line = " ".join(argv).replace("/sbin/", "")
        if argv[:2] == ["systemctl", "list-units"]:
            (states,) = [word.partition("=")[2].split(",") for word in argv if word.startswith("--state=")]
            found = {unit: state for unit, state in self.units.items() if unit in argv and state in states}
            rows = "".join(f"{unit} loaded {state} running Some words\n" for unit, state in found.items())
            return command.Answer(0, b"\nnonsense\n" + rows.encode(), b"")
        self.commands.append(line)
        if argv[:2] == ["systemctl", "stop"]:
            self.releases()
        if line in self.failing:
            return command.Answer(1, b"", self.failing[line].encode())
        return command.Answer(0, b"", b"")

    def apply(self, action: str) -> driver_load.Outcome:
        return driver_load.apply(Decision(action, ["why"]), str(self.root), self.run, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        if self.slept >= self.free_after:
            self.modules(*FREE)


@pytest.fixture
def machine(tmp_path: Path) -> Host:
    return Host(tmp_path)


STOP = "systemctl stop nvidia-persistenced.service"
START = "systemctl start nvidia-persistenced.service nvidia-fabricmanager.service"
BUSY = ["nvidia_uvm 9 0 -", "nvidia 9 2 nvidia_uvm,", "ext4 9 1 -"]
FREE = ["nvidia_uvm 9 0 -", "nvidia 9 1 nvidia_uvm,", "ext4 9 1 -"]


def test_reload_replaces_the_module_and_restarts_services(machine: Host) -> None:
    machine.modules(*BUSY)
    machine.releases = lambda: machine.modules(*FREE)
    outcome = machine.apply("reload")
    assert (outcome.action, outcome.services) == ("reload", ["nvidia-persistenced.service"])
    assert machine.commands == [
        STOP,
        "rmmod nvidia_uvm",
        "rmmod nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        START,
    ]


def test_module_in_use_needs_a_reboot_and_services_are_restarted(machine: Host, snapshot: SnapshotAssertion) -> None:
    machine.modules(*BUSY)
    outcome = machine.apply("reload")
    assert outcome.action == "reboot"
    assert outcome.reasons == snapshot
    assert machine.commands == [STOP, START]


def test_module_that_cannot_be_unloaded_needs_a_reboot(machine: Host, snapshot: SnapshotAssertion) -> None:
    machine.modules(*FREE)
    machine.failing["rmmod nvidia"] = "rmmod: ERROR: Module nvidia is in use"
    outcome = machine.apply("reload")
    assert outcome.action == "reboot"
    assert outcome.reasons == snapshot
    assert machine.commands[-1] == START


def test_module_that_cannot_be_loaded_fails_and_services_are_restarted(
    machine: Host, snapshot: SnapshotAssertion
) -> None:
    machine.modules(*FREE)
    machine.failing["modprobe nvidia"] = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    with pytest.raises(NotPossible) as error:
        machine.apply("reload")
    assert str(error.value) == snapshot
    assert machine.commands[-1] == START


def test_third_party_module_that_cannot_be_loaded_is_a_warning(machine: Host, snapshot: SnapshotAssertion) -> None:
    machine.modules("gdrdrv 9 0 -", "nvidia_fs 9 0 -", "nvidia 9 2 gdrdrv,nvidia_fs,")
    machine.failing |= {f"modprobe {name}": "Invalid argument" for name in ("gdrdrv", "nvidia_fs")}
    outcome = machine.apply("reload")
    assert outcome.action == "reload"
    assert outcome.warnings == snapshot


def test_service_that_does_not_start_is_a_warning(machine: Host) -> None:
    machine.modules(*FREE)
    machine.failing[START] = "Job for nvidia-fabricmanager.service failed"
    assert machine.apply("reload").warnings == [f"{START}: Job for nvidia-fabricmanager.service failed"]


def test_service_that_does_not_stop_prevents_unloading(machine: Host) -> None:
    machine.modules(*BUSY)
    machine.failing[STOP] = "timed out"
    with pytest.raises(NotPossible, match="timed out"):
        machine.apply("reload")
    assert machine.commands == [STOP, START]


def test_load_restarts_no_service(machine: Host) -> None:
    assert machine.apply("load") == driver_load.Outcome("load", [])
    assert machine.commands == ["modprobe nvidia"]


@pytest.mark.parametrize("action", ["keep", "reboot"])
def test_nothing_is_done_to_keep_the_module_or_before_a_reboot(machine: Host, action: str) -> None:
    assert machine.apply(action) == driver_load.Outcome(action, ["why"])
    assert machine.commands == []


@pytest.mark.parametrize(("free_after", "action"), [(0.25, "reload"), (5.0, "reload"), (5.25, "reboot")])
def test_devices_may_be_closed_within_five_seconds(machine: Host, free_after: float, action: str) -> None:
    machine.modules(*BUSY)
    machine.free_after = free_after
    assert machine.apply("reload").action == action
    assert machine.slept == min(free_after, 5.0)


@pytest.mark.parametrize(
    "unit",
    [
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-imex.service",
        "nvidia-dcgm.service",
        "dcgm.service",
        "dcgm-exporter.service",
    ],
)
@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        ("active", ["stop", "start"]),
        ("activating", ["stop", "start"]),
        ("reloading", ["stop", "start"]),
        ("failed", ["start"]),
        ("inactive", []),
    ],
)
def test_services_that_run_are_stopped_and_those_that_failed_started(
    machine: Host, unit: str, state: str, verbs: list[str]
) -> None:
    machine.modules(*FREE)
    machine.units = {unit: state, "ssh.service": "active"}
    outcome = machine.apply("reload")
    commands = [line for line in machine.commands if line.startswith("systemctl")]
    assert commands == [f"systemctl {verb} {unit}" for verb in verbs]
    assert outcome == driver_load.Outcome("reload", [], [unit] if "stop" in verbs else [])


def test_module_of_the_driver_that_cannot_be_loaded_again_fails(machine: Host) -> None:
    machine.modules(*FREE)
    machine.failing["modprobe nvidia_uvm"] = "Invalid argument"
    with pytest.raises(NotPossible, match="modprobe nvidia_uvm: Invalid argument"):
        machine.apply("reload")


def test_a_kernel_that_unloads_no_modules_is_named_at_once(machine: Host, snapshot: SnapshotAssertion) -> None:
    machine.modules("nvidia_uvm 9 - -", "nvidia 9 - -")
    assert machine.apply("reload").reasons == snapshot
    assert machine.slept == 0


def test_modules_in_use_are_named_with_what_uses_them(machine: Host, snapshot: SnapshotAssertion) -> None:
    machine.modules("nvidia_uvm 9 2 -", "nvidia 9 4 nvidia_uvm,")
    (reason,) = machine.apply("reload").reasons
    assert "nvidia_uvm (used 2 times), nvidia (used 3 times)" in reason
    assert reason == snapshot


# Read -----------------------------------------------------------------------------------------------------------


def test_facts_of_a_host_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("nouveau 2732032 4 - Live 0x0000000000000000\n")
    monkeypatch.setattr(driver_load.nvidia_smi, "find", lambda: None)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(f"{RUNNING}\n")
    facts = driver_load.read(str(tmp_path), lambda *_: command.Answer(127, b"", b""))
    assert (facts.loaded, facts.nouveau, facts.running, facts.users) == (None, True, RUNNING, ())
    assert facts.built[RUNNING] == []
    assumed = driver_load.read(str(tmp_path), lambda *_: command.Answer(127, b"", b""), assume_built=OPEN_595)
    assert assumed.built[RUNNING] == [OPEN_595]


def test_facts_of_a_host_with_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running kernel and the one that starts next have modules; nvidia-smi lists a program."""
    put(tmp_path, "/proc/sys/kernel/osrelease", f"{RUNNING}\n")
    put(
        tmp_path, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.16\n"
    )
    for kernel in (RUNNING, NEXT):
        put(tmp_path, f"/boot/vmlinuz-{kernel}")
        put(tmp_path, f"/lib/modules/{kernel}/updates/dkms/nvidia.ko")
    monkeypatch.setattr(driver_load.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    row = b"0, NVIDIA A100, GPU-1, 580.126.16, 40960, 8.0, 00000000:05:00.0\n"

    def run(argv: list[str], *_: Any) -> command.Answer:
        if argv[0] == "/usr/bin/nvidia-smi":
            return command.Answer(0, b"42, python3, 512\n" if "--query-compute-apps" in argv[1] else row, b"")
        version = "595.71.05" if NEXT in argv[-1] else "580.126.16"
        return command.Answer(0, {"version": version, "license": "Dual MIT/GPL"}[argv[2]].encode(), b"")

    facts = driver_load.read(str(tmp_path), run)
    assert (facts.loaded, facts.nouveau, facts.next_boot) == (OPEN_580, False, NEXT)
    assert facts.built == {RUNNING: [OPEN_580], NEXT: [OPEN_595]}
    assert [(user.pid, user.computes) for user in facts.users] == [(42, True)]
    assumed = driver_load.read(str(tmp_path), run, assume_built=PROPRIETARY_595)
    assert assumed.built == {RUNNING: [PROPRIETARY_595], NEXT: [OPEN_595]}
