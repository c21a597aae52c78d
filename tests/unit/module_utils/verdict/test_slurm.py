"""The health check of Slurm with a double of scontrol: whom it drains and resumes, and whom never."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import slurm
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.judgement import Finding, Verdict

from tests.unit.module_utils.simulated_host import use_simulated_nvidia_smi
from tests.unit.module_utils.verdict.verified_host import SECOND, VerifiedHost

Capture = pytest.CaptureFixture[str]
GONE = f"gpuhost: host.gpus: {SECOND} is not on the PCI bus any more: 1 of 2 GPUs"


class SlurmHost(VerifiedHost):
    """A verified host that is a node of Slurm, whose scontrol is the double."""

    def __init__(self, root: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        programs.mkdir()
        shutil.copy(Path(__file__).with_name("scontrol.py"), programs / "scontrol.py")
        (programs / "scontrol").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{programs}/scontrol.py" "$@"\n')
        (programs / "scontrol").chmod(0o755)
        self.node_file = programs / "node.json"
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("NODE", str(self.node_file))
        monkeypatch.setenv("SLURMD_NODENAME", "node7")
        self.node()

    def node(self, state: str = "IDLE", reason: str = "", **more: Any) -> None:
        self.node_file.write_text(json.dumps({"name": "node7", "state": state, "reason": reason, **more}))

    def run(self, argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        return command.run(argv, timeout) if "scontrol" in argv[0] else super().run(argv, timeout, env)

    @property
    def found(self) -> tuple[str, str]:
        node = json.loads(self.node_file.read_text())
        return node["state"], node["reason"]

    @property
    def updates(self) -> list[list[str]]:
        calls = self.node_file.with_suffix(".calls").read_text().splitlines()
        return [words for words in map(json.loads, calls) if words[0] == "update"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> SlurmHost:
    use_simulated_nvidia_smi(monkeypatch)
    found = SlurmHost(tmp_path / "root", tmp_path / "bin", monkeypatch)
    assert found.main("--fresh") == 0
    capsys.readouterr()
    return found


def test_a_failure_drains_once_and_a_repair_resumes(host: SlurmHost, capsys: Capture) -> None:
    assert host.main("--health-check") == 0
    assert host.found == ("IDLE", "")
    host.lose(SECOND)
    assert host.main("--health-check") == 0
    assert host.found == ("IDLE+DRAIN", GONE)
    assert host.main("--health-check") == 0
    assert len(host.updates) == 1
    host.load("590.44.01")  # another failure, another reason
    assert host.main("--health-check") == 0
    assert host.found[1].startswith("gpuhost: host.module: ")
    assert len(host.updates) == 2
    host.load(host.driver)
    host.add_device(SECOND, "2335", "0x030200", "nvidia")
    assert host.main("--health-check") == 0
    assert host.found == ("IDLE", "")
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("node node7 resumed: it was drained with the reason 'gpuhost:")
    )


def test_a_failure_drains_where_the_metrics_cannot_be_written(host: SlurmHost, capsys: Capture) -> None:
    host.lose(SECOND)
    assert host.main("--health-check", "--prometheus", "/proc/gpuhost.prom") == 1
    assert host.found == ("IDLE+DRAIN", GONE)
    assert "gpuhost-verify: /proc/gpuhost.prom was not written: " in capsys.readouterr().err


def lost(host: SlurmHost) -> None:
    host.lose(SECOND)


def unknown(host: SlurmHost) -> None:
    host.answer("journalctl", "", 1)


def nothing(host: SlurmHost) -> None:
    pass


# The host, its state and reason in Slurm, and the state after a health check; None: as before, without any update.
OURS, OTHERS = "gpuhost: host.module: x", "Not a gpuhost: bad fan"
CASES: dict[str, tuple[Callable[[SlurmHost], None], str, str, tuple[str, str] | None]] = {
    "well and idle": (nothing, "IDLE", "", None),
    "well, and drained by others": (nothing, "IDLE+DRAIN", OTHERS, None),
    "well, and down": (nothing, "DOWN*", "Not responding", None),
    "well, and drained by us": (nothing, "MIXED+DRAIN", OURS, ("IDLE", "")),
    "well, and draining by us in an old Slurm": (nothing, "DRAINING*", OURS, ("IDLE", "")),
    "failed and running a job": (lost, "ALLOCATED", "", ("IDLE+DRAIN", GONE)),
    "failed, and drained by others": (lost, "IDLE+DRAIN", OTHERS, None),
    "failed, and down with a reason of others": (lost, "DOWN", "fan", None),
    "failed, and drained by us for that": (lost, "IDLE+DRAIN", GONE, None),
    "failed, and taken back while our reason stayed": (lost, "IDLE", GONE, ("IDLE+DRAIN", GONE)),
    "unknown and idle": (unknown, "IDLE", "", None),
    "unknown, and drained by us": (unknown, "IDLE+DRAIN", OURS, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whom_a_health_check_drains_and_resumes(host: SlurmHost, case: str) -> None:
    change, state, reason, after = CASES[case]
    host.node(state, reason)
    change(host)
    assert host.main("--health-check") == 0
    assert host.found == (after or (state, reason))
    assert len(host.updates) == (after is not None)


def test_the_name_of_the_node_is_what_slurm_conf_calls_this_host(
    host: SlurmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where slurmd has not set it, as at the command line; the double has an alias for every host."""
    monkeypatch.delenv("SLURMD_NODENAME")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu01.example.org")
    host.lose(SECOND)
    assert host.main("--health-check") == 0
    assert host.found == ("IDLE+DRAIN", GONE)


def test_a_slurm_that_does_not_answer_is_said(
    host: SlurmHost, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.node(down=True)
    host.lose(SECOND)
    assert host.main("--health-check") == 1
    error = capsys.readouterr().err
    assert "Unable to contact slurm controller" in error
    assert f"fail host.gpus: {SECOND}" in error
    monkeypatch.setenv("SLURMD_NODENAME", "node8")
    host.node()
    assert host.main("--health-check") == 1
    assert "Node node8 not found" in capsys.readouterr().err


def test_without_scontrol_the_places_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "PLACES", ("/nonexistent",))
    with pytest.raises(slurm.SlurmError, match=r"scontrol is not in PATH \(/none\) nor in /nonexistent"):
        slurm.program({"PATH": "/none"})


def test_what_scontrol_would_read_is_not_in_a_reason() -> None:
    text = "GPU \"0\"\n'x' \\ " + "y" * 500
    reason = slurm.reason(Verdict("fail", (Finding("gpu.x", "fail", text),)))
    assert reason.startswith("gpuhost: gpu.x: GPU 0 x y")
    assert len(reason) <= slurm.REASON_CHARACTERS


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("State=IDLE+DRAIN T=1\n   Reason=bad fan [root@2026-11-27T10:00:00]\n", (True, "bad fan")),
        ("State=IDLE T=1\n   Reason=see [ticket 7] [slurm@2026-11-27T10:00:00]\n", (False, "see [ticket 7]")),
        ("State=DOWN*+DRAIN+INVALID_REG T=1\n\n", (True, "")),
        ("State=MIXED+PLANNED T=1\n   Comment=Reason=none\n", (False, "")),
    ],
)
def test_a_node_is_read(text: str, node: tuple[bool, str]) -> None:
    found = slurm.parse("a", "NodeName=a\n   " + text)
    assert (found.drains, found.reason) == node


def test_an_output_without_a_state_is_an_error() -> None:
    with pytest.raises(slurm.SlurmError, match="printed no State: nothing"):
        slurm.parse("a", "")
