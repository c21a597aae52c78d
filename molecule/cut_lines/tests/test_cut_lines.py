"""Changes over simulated lines that drop connections: completed, with one package transaction at a time.

The changes alternate between two driver branches. SEED=N repeats the moments of a run.
"""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import configurations
from tests.doubles.lab.containers import Lab
from tests.doubles.lab.simulated_line import SimulatedLine

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
HOST = "cut-lines-hopper"
LAB = Lab("cut_lines", PROJECT)
OLD, NEW = configurations.of_scenario("cut_lines")
SEED = int(os.environ.get("SEED") or random.randrange(10**6))
IDLE_SECONDS, LOST_SECONDS = 30, 15
# A slow host (simulated): the small packages of the driver alone would be installed within two seconds.
SLOW = 'DPkg::Pre-Invoke {"sleep 20";}; DPkg::Post-Invoke {"sleep 10";};'
WAIT_SECONDS = 300
# Of ssh's control sockets, whose paths must be short; removed at the end.
FOLDERS = tempfile.TemporaryDirectory(prefix="lines-")


def in_host(script: str) -> str:
    command = ["docker", "exec", LAB.container(HOST), "sh", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def branch() -> str:
    """Return the driver branch of the verified configuration."""
    verified = json.loads(in_host("cat /var/lib/gpuhost/verified.json"))
    return str(verified["plan"]["components"]["driver"]["branch"])


class Change:
    """Runs of gpu_host.yml over a line, each to the driver branch that the host has not."""

    def __init__(self, inventory: str) -> None:
        self.inventory, self.at = inventory, {each.driver: each for each in (OLD, NEW)}[branch()]

    @property
    def target(self) -> configurations.Configuration:
        return NEW if self.at == OLD else OLD

    def start(self, line: SimulatedLine | None = None) -> subprocess.Popen[str]:
        options = ["-e", f"gpu_stack_driver={self.target.driver}"]
        return start("playbooks/gpu_host.yml", self.inventory, line, *options)

    def check(self) -> None:
        """Assert that the host is verified with the target, all packages whole and in one transaction at a time."""
        self.at = self.target
        assert branch() == self.at.driver
        assert in_host("ls /var/lib/gpuhost/ | grep -e pending -e transaction.json || true") == ""
        assert in_host("dpkg --audit") == ""
        times = transactions()
        assert len(times) == begun()  # each has ended
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times)), times


def transactions() -> list[tuple[str, str]]:
    """Return when each transaction of apt began and ended, by apt's own log; one that was killed has no end."""
    entries = in_host("cat /var/log/apt/history.log").split("Start-Date: ")[1:]
    ends = [re.search(r"^End-Date: (.+)$", entry, re.MULTILINE) for entry in entries]
    return [(entry.splitlines()[0], end[1]) for entry, end in zip(entries, ends, strict=True) if end]


def begun() -> int:
    return in_host("cat /var/log/apt/history.log").count("Start-Date: ")


def start(playbook: str, inventory: str, line: SimulatedLine | None, *options: str) -> subprocess.Popen[str]:
    """Start ansible-playbook; with a line, all its connections take that one, and none of an earlier run."""
    folder = Path(tempfile.mkdtemp(dir=FOLDERS.name))
    if line:
        text = (LAB.state / "ssh_config").read_text()
        text = re.sub(r"HostName .*", "HostName 127.0.0.1", re.sub(r"Port .*", f"Port {line.port}", text))
        (folder / "ssh_config").write_text(text)
        options += ("-e", f"ansible_ssh_common_args='-F {folder}/ssh_config'")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), playbook, "-i", inventory, *options]
    environment = {**os.environ, "ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder)}
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def inventory(pytestconfig) -> str:
    return str(pytestconfig.getoption("ansible_inventory"))


@pytest.fixture(scope="module")
def change(inventory) -> Change:
    in_host(f"echo '{SLOW}' > /etc/apt/apt.conf.d/99slow")
    found = Change(inventory)
    print(f"SEED={SEED}")
    return found


@pytest.fixture
def line() -> Iterator[Callable[..., SimulatedLine]]:
    """Return a function that makes a line to the host's sshd."""
    address = re.search(r"HostName (\S+)", (LAB.state / "ssh_config").read_text())
    assert address is not None
    lines: list[SimulatedLine] = []

    def make(idle: float | None = None) -> SimulatedLine:
        lines.append(SimulatedLine((address[1], 22), idle))
        return lines[-1]

    yield make
    for each in lines:
        each.close()


def wait_for_transaction(run: subprocess.Popen[str]) -> None:
    """Wait until the host's package transaction is running."""
    deadline = time.monotonic() + WAIT_SECONDS
    while "Status-Fd" not in in_host("pgrep -a -x apt-get || true"):
        assert run.poll() is None, "the run has ended without a transaction"
        assert time.monotonic() < deadline, "no transaction begins"
        time.sleep(0.2)


def test_connection_is_cut_in_the_middle_of_a_transaction_at_a_random_moment(change, line):
    bad = line()
    before, moment = begun(), random.Random(SEED).uniform(0, 25)
    run = change.start(bad)
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.append(run.communicate()[0]))
    reader.start()
    wait_for_transaction(run)
    time.sleep(moment)
    bad.cut(LOST_SECONDS)
    print(f"SEED={SEED}: cut {moment:.1f} s after the transaction had begun")
    reader.join()
    assert run.returncode == 0, output[0][-5000:]
    assert bad.cuts > 0
    assert f"{HOST}: no connection; trying again" in output[0]
    assert f"{HOST}: connected again after" in output[0]
    assert re.search(rf"{HOST}: (changing|downloading) packages, \d+ %", output[0])
    assert begun() == before + 1
    change.check()


def test_run_is_killed_in_the_middle_of_a_transaction_and_the_next_one_waits_for_it(change, line):
    before, moment = begun(), random.Random(SEED + 1).uniform(0, 5)
    run = change.start()
    wait_for_transaction(run)
    time.sleep(moment)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    print(f"SEED={SEED}: killed {moment:.1f} s after the transaction had begun")
    again = change.start(line(IDLE_SECONDS))
    output = again.communicate()[0]
    assert again.returncode == 0, output[-5000:]
    assert "a package transaction of gpuhost is running on this host: process" in output
    assert "transaction-ended" in output
    assert begun() == before + 1
    change.check()


def test_change_over_a_line_that_cuts_silent_connections_loses_none(change, line):
    impatient = line(IDLE_SECONDS)
    run = change.start(impatient)
    output = run.communicate()[0]
    assert run.returncode == 0, output[-5000:]
    assert impatient.cuts == 0
    assert impatient.connections > 0
    change.check()


@pytest.mark.parametrize("keepalives", [True, False])
def test_a_silent_task_needs_keepalives(inventory, line, keepalives):
    impatient = line(IDLE_SECONDS)
    run = start("molecule/cut_lines/silent.yml", inventory, impatient, "-e", f"without_keepalives={not keepalives}")
    output = run.communicate()[0]
    if keepalives:
        assert run.returncode == 0, output[-3000:]
        assert impatient.cuts == 0
    else:
        assert run.returncode == 4, output[-3000:]
        assert "UNREACHABLE" in output
        assert impatient.cuts > 0
