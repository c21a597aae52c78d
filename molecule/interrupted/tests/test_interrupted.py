"""Whatever cuts a change off, the same command finishes it, and the host is as if nothing had happened.

The changes go to and fro between two sets. INTERRUPT=all tries every boundary between tasks; without it, a sample.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.lab.containers import Lab

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
HOST = "interrupted-hopper"
LAB = Lab("interrupted", PROJECT)
SETS = {
    "new": ("-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.2"),
    "old": ("-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.0"),
}
SAMPLE = 5
MOMENTS = 2
WAIT_SECONDS = 120
IMPATIENT = "/etc/apt/apt.conf.d/99impatient"

State = dict[str, list[str]]


class Change:
    """The change that is next, and how the host looks after each one when nothing cuts it off."""

    def __init__(self, inventory: str, look: Callable[[], State], differences: Callable[..., list[str]]) -> None:
        self.inventory, self.look, self.differences = inventory, look, differences
        self.at = "old"
        self.expected: dict[str, State] = {}

    @property
    def target(self) -> str:
        return "new" if self.at == "old" else "old"

    def start(self, to: str = "", **environment: str) -> subprocess.Popen[str]:
        """The main job, to the other set or the one named."""
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/gpu_host.yml"]
        command += ["-i", self.inventory, *SETS[to or self.target]]
        settings = {"ANSIBLE_CALLBACK_PLUGINS": str(SCENARIO / "callback_plugins"), "ANSIBLE_FORCE_COLOR": "false"}
        settings["ANSIBLE_CALLBACKS_ENABLED"] = "interrupt"
        return subprocess.Popen(
            command, cwd=PROJECT, env={**os.environ, **settings, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(self, to: str = "") -> None:
        """The same command, to its end; the host must look as after a change that nothing cut off."""
        run = self.start(to)
        output, _ = run.communicate()
        assert run.returncode == 0, output[-5000:]
        self.at = to or self.target
        found = self.look()
        assert self.differences(self.expected[self.at], found) == []


@pytest.fixture(scope="module")
def look(pytestconfig, sections) -> Callable[[], State]:
    """A module-wide look at the one host of the scenario."""
    from testinfra import get_host

    inventory = pytestconfig.getoption("ansible_inventory")

    def now() -> State:
        host = get_host(f"ansible://{HOST}?ansible_inventory={inventory}")
        with host.sudo():
            found = sections(
                host.run_expect([0], "sh -c %s", (PROJECT / "molecule/shared/state.sh").read_text()).stdout
            )
        found.pop("repository lists")
        return found

    return now


@pytest.fixture(scope="module")
def change(pytestconfig, look, differences) -> Change:
    return Change(str(pytestconfig.getoption("ansible_inventory")), look, differences)


@pytest.fixture(scope="module")
def tasks(change, tmp_path_factory) -> list[str]:
    """The names of the tasks of a change that nothing cuts off; before it the other toolkit came, which stays."""
    listing = tmp_path_factory.mktemp("tasks") / "names"
    for _ in SETS:
        run = change.start(INTERRUPT_LIST=str(listing))
        output, _ = run.communicate()
        assert run.returncode == 0, output[-5000:]
        change.at = change.target
        change.expected[change.at] = change.look()
    return listing.read_text().splitlines()


def boundaries(tasks: list[str]) -> list[int]:
    """Numbers of tasks (from 1) before which a run is killed: those after the plan, all or a sample."""
    first = tasks.index("Record the baseline") + 1
    numbers = list(range(first + 1, len(tasks) + 1))
    if os.environ.get("INTERRUPT") == "all":
        return numbers
    return random.Random(len(tasks)).sample(numbers, SAMPLE)


def wait_for_apt() -> None:
    """Until what the killed run had started on the host has ended; it goes on without its controller."""
    deadline = time.monotonic() + WAIT_SECONDS
    while in_host("pgrep -x 'apt-get|dpkg|python3' >/dev/null && echo busy || true").strip():
        assert time.monotonic() < deadline, "apt does not end"
        time.sleep(0.5)


def in_host(script: str) -> str:
    command = ["docker", "exec", LAB.container(HOST), "sh", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wait_for_dpkg(run: subprocess.Popen[str], step: str = "") -> None:
    """Until dpkg does anything, or the step named; its log grows with each one."""
    count = f"grep -c '{step}' /var/log/dpkg.log || true"
    before = in_host(count)
    deadline = time.monotonic() + WAIT_SECONDS
    while in_host(count) == before:
        assert run.poll() is None, run.communicate()[0][-5000:]
        assert time.monotonic() < deadline, "dpkg does not start"
        time.sleep(0.1)


def test_a_run_killed_between_two_tasks_is_finished_by_the_next(change, tasks):
    numbers = boundaries(tasks)
    converged = []
    for number in numbers:
        run = change.start(INTERRUPT_BEFORE=str(number))
        output, _ = run.communicate()
        # A change in the other direction may have fewer tasks: then it simply ended.
        assert run.returncode in (-9, 0), output[-5000:]
        wait_for_apt()
        change.finish()
        converged.append(number)
    print(f"{len(converged)} of {len(numbers)} runs that were killed between tasks converged ({len(tasks)} tasks)")


def test_a_run_killed_before_the_linker_reads_its_settings_leaves_that_to_the_next(change, tasks):
    """In a run that brings the file back and nothing else: no package's trigger reads the settings in its stead."""
    in_host("rm /etc/ld.so.conf.d/gpuhost-cuda.conf; ldconfig")
    run = change.start(to=change.at, INTERRUPT_BEFORE="Refresh the dynamic linker's cache if a setting is newer")
    output, _ = run.communicate()
    assert run.returncode == -9, output[-5000:]
    assert "gpuhost-cuda.conf" in in_host("find /etc/ld.so.conf.d -newer /etc/ld.so.cache")
    change.finish(to=change.at)
    assert in_host("find /etc/ld.so.conf.d -newer /etc/ld.so.cache") == ""


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_host_that_loses_power_in_the_middle_of_dpkg_is_finished_by_the_next_run(change, tasks, moment):
    run = change.start()
    wait_for_dpkg(run)
    time.sleep(random.Random(moment).uniform(0, 2))
    subprocess.run(["docker", "kill", LAB.container(HOST)], check=True, capture_output=True)
    output, _ = run.communicate()
    assert run.returncode != 0, output[-5000:]
    subprocess.run([sys.executable, "script/lab", "up", change.inventory], cwd=PROJECT, check=True, capture_output=True)
    change.finish()


# Half-installed for longest is the largest package; the one that needs it in its new version is unpacked already.
@pytest.mark.parametrize("step", ["", "status half-installed libnccl2"])
def test_apt_that_is_killed_is_undone_and_the_next_run_finishes(change, tasks, step):
    run = change.start()
    wait_for_dpkg(run, step)
    in_host("pkill -KILL -x apt-get; pkill -KILL -x dpkg; true")
    output, _ = run.communicate()
    assert run.returncode == 2, output[-5000:]
    assert "It was undone: all" in output, output[-5000:]
    assert change.differences(change.expected[change.at], change.look()) == []
    change.finish()


def test_a_network_that_is_gone_leaves_the_host_as_it_is(change, tasks):
    """Nothing is kept for this change, and the repository does not answer: not one package moves."""
    in_host("rm -rf /var/lib/gpuhost/packages")
    # By default apt asks three more times for each of some thirty files, and waits in between.
    in_host(f"echo 'Acquire::Retries \"0\";' > {IMPATIENT}")
    before = change.look()
    in_host("echo 127.0.0.1 repository.lab >> /etc/hosts")
    run = change.start()
    output, _ = run.communicate()
    assert run.returncode == 2, output[-5000:]
    in_host("sed '/127.0.0.1 repository.lab/d' /etc/hosts > /tmp/hosts; cat /tmp/hosts > /etc/hosts")
    assert change.differences(before, change.look()) == []
    in_host(f"rm {IMPATIENT}")
    change.finish()
