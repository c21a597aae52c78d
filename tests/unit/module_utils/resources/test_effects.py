"""What follows a changed file: by its place, once, recorded until it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import effects, file
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects

UNITS = "/etc/systemd/system"
RELOADED = ["systemctl daemon-reload"]


class Host:
    """A host on which systemd runs and GRUB is installed; those in `failing` end with that status."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failing: dict[str, int] = {}

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.ran.append(" ".join(command))
        return self.failing.get(self.ran[-1], 0), "", "broken\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(effects, "BOOTED", "/")
    monkeypatch.setattr(effects.shutil, "which", lambda name: f"/usr/sbin/{name}")
    return Host()


@pytest.mark.parametrize(
    ("paths", "commands"),
    [
        (["/etc/profile.d/cuda.sh", "/usr/local/bin/nvcc"], []),
        (["/etc/ld.so.conf.d/gpuhost-cuda.conf"], ["ldconfig"]),
        ([f"{UNITS}/gpuhost-kernel-guard.service", f"{UNITS}/gpuhost-verify.service"], RELOADED),
        ([f"{UNITS}/multi-user.target.wants/gpuhost-kernel-guard.service"], RELOADED),
        ([f"{UNITS}/timers.target.wants/gpuhost-verify.timer"], RELOADED),
        ([f"{UNITS}/gpuhost-verify.timer"], [*RELOADED, "systemctl try-restart gpuhost-verify.timer"]),
        (
            [f"{UNITS}/nvidia-persistenced.service.d/gpuhost.conf"],
            [*RELOADED, "systemctl try-restart nvidia-persistenced.service"],
        ),
        (["/etc/grub.d/07_gpuhost"], ["update-grub"]),
        (
            ["/etc/grub.d/07_gpuhost", f"{UNITS}/a.timer", "/etc/ld.so.conf.d/a.conf"],
            ["ldconfig", *RELOADED, "systemctl try-restart a.timer", "update-grub"],
        ),
    ],
)
def test_the_place_of_a_file_decides_what_follows(host: Host, paths: list[str], commands: list[str]) -> None:
    found = Effects(host)
    found.begin(paths, [])
    assert found.run() == []
    assert host.ran == commands
    assert found.run() == []
    assert host.ran == commands, "once"


@pytest.mark.parametrize(("is_there", "commands"), [(True, ["restart"]), (False, ["stop", "try-restart"])])
def test_a_timer_that_is_written_starts_and_one_that_is_removed_stops_before(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, commands: list[str]
) -> None:
    """systemd does not start a timer whose unit came back, and goes on with one whose unit is gone."""
    timer = tmp_path / "gpuhost-verify.timer"
    monkeypatch.setattr(effects, "UNITS", f"{tmp_path}/")
    monkeypatch.setattr(effects, "PLACES", {f"{tmp_path}/": effects.RELOAD})
    found = Effects(host)
    if not is_there:
        timer.write_text("old\n")
    assert list(file.apply([file.Wanted(str(timer), b"new\n", mode=0o644, is_absent=not is_there)], found)) == [
        str(timer)
    ]
    assert found.run() == []
    commands.insert(-1, "daemon-reload")
    assert [line.split(" ")[1] for line in host.ran] == commands


@pytest.mark.parametrize("status", [0, 1])
def test_a_guard_that_goes_gives_its_choice_back_before(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """GRUB would boot the kernel that it chose, and nothing would change that again. A failure is said."""
    guard = tmp_path / "kernel-guard"
    monkeypatch.setattr(effects, "GUARD", str(guard))
    host.failing = {f"{guard} --off": status}
    guard.write_text("#!/bin/sh\n")
    states = {str(guard): None}
    assert file.restore(states, Effects(host), check=True) == [str(guard)]
    assert host.ran == []
    found = Effects(host)
    assert file.restore(states, found) == [str(guard)]
    assert (guard.exists(), host.ran) == (False, [f"{guard} --off"])
    assert found.run() == ([f"`{guard} --off` failed with status 1: broken"] if status else [])
    assert file.restore(states, Effects(host)) == []
    assert host.ran == [f"{guard} --off"]


def test_without_a_running_systemd_and_grub_nothing_has_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the root of an image, where systemctl fails: "System has not been booted with systemd as init system"."""
    monkeypatch.setattr(effects, "BOOTED", "/nonexistent")
    monkeypatch.setattr(effects.shutil, "which", lambda name: None)
    host = Host()
    found = Effects(host)
    timer = f"{UNITS}/a.timer"
    found.begin([timer, "/etc/grub.d/07_gpuhost", "/etc/ld.so.conf.d/a.conf"], [timer])
    assert found.run() == []
    assert host.ran == ["ldconfig"]


def test_what_a_dead_run_left_is_made_up_for_by_the_next_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(path: str, state: Any) -> None:
        raise KeyboardInterrupt

    unit, directory = tmp_path / "system" / "a.timer", str(tmp_path)
    monkeypatch.setattr(effects, "UNITS", f"{unit.parent}/")
    monkeypatch.setattr(effects, "PLACES", {f"{unit.parent}/": effects.RELOAD})
    monkeypatch.setattr(file, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        file.apply([file.Wanted(str(unit), b"new", mode=0o644)], Effects(host, directory))
    assert Effects(host, directory).run() == []
    assert host.ran == ["systemctl daemon-reload", "systemctl try-restart a.timer"]
    assert store.read(directory, "effects") is None


def test_what_failed_is_said_and_tried_again_and_the_rest_runs(host: Host, tmp_path: Path) -> None:
    host.failing = {"systemctl daemon-reload": 1}
    found = Effects(host, str(tmp_path))
    found.begin([f"{UNITS}/a.service", "/etc/grub.d/07_gpuhost"], [])
    assert found.run() == ["`systemctl daemon-reload` failed with status 1: broken"]
    assert host.ran == ["systemctl daemon-reload", "update-grub"]
    host.failing, host.ran = {}, []
    assert Effects(host, str(tmp_path)).run() == []
    assert host.ran == RELOADED


@pytest.mark.parametrize(("status", "failures"), [(5, 0), (1, 1)])
def test_a_unit_that_went_with_its_file_needs_no_restart(host: Host, status: int, failures: int) -> None:
    """systemd 252: "Failed to try-restart a.timer: Unit a.timer not found." ends with 5."""
    host.failing = {"systemctl try-restart a.timer": status}
    found = Effects(host)
    found.begin([f"{UNITS}/a.timer"], [])
    assert (len(found.run()), len(found.waiting)) == (failures, failures)


def test_a_role_alone_keeps_no_record(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Effects(host).begin(["/etc/grub.d/07_gpuhost"], [])
    assert list(tmp_path.iterdir()) == []
    assert Effects(host).waiting == []
