"""Whatever interrupts a change, the same command completes it, with the same result as an uninterrupted run.

The changes alternate between two configurations. INTERRUPT=all (tier interruptions) tries every boundary between tasks,
and more moments within dpkg; by default a sample.
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import configurations, distributions
from tests.doubles.lab.containers import Lab

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
HOST = "interrupted-hopper"
LAB = Lab("interrupted", PROJECT)
OLD, NEW = configurations.of_scenario("interrupted")
CONFIGURATIONS = {"new": NEW.options, "old": OLD.options}
ALL = os.environ.get("INTERRUPT") == "all"
MOMENTS = 5 if ALL else 1
# libnccl2 is the largest package, so it is half installed for longest, after the package that needs it was unpacked.
# Where both configurations have the same one, it is whichever package comes first. rpm has no such state.
HALF_INSTALLED, LARGEST = "status half-installed", "libnccl2"
STEPS = [f"{HALF_INSTALLED} {LARGEST}", *([""] if ALL else [])]
WAIT_SECONDS = 600  # on a computer that does other work, too

State = dict[str, list[str]]


class Change:
    """The next change, and the state of the host after each uninterrupted one."""

    def __init__(self, inventory: str, read_state: Callable[[], State], differences: Callable[..., list[str]]) -> None:
        self.inventory, self.read_state, self.differences = inventory, read_state, differences
        self.at = "old"
        self.expected: dict[str, State] = {}

    @property
    def target(self) -> str:
        return "new" if self.at == "old" else "old"

    def start(
        self, *options: str, to: str = "", playbook: str = "gpu_host", **environment: str
    ) -> subprocess.Popen[str]:
        """Start a playbook for the other configuration or the one named."""
        command = [str(Path(sys.executable).with_name("ansible-playbook")), f"playbooks/{playbook}.yml"]
        command += ["-i", self.inventory, *CONFIGURATIONS[to or self.target], *options]
        settings = {"ANSIBLE_CALLBACK_PLUGINS": str(SCENARIO / "callback_plugins"), "ANSIBLE_FORCE_COLOR": "false"}
        settings["ANSIBLE_CALLBACKS_ENABLED"] = "interrupt"
        return subprocess.Popen(
            command, cwd=PROJECT, env={**os.environ, **settings, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(self, to: str = "") -> None:
        """Run the same command to its end; the host must be as after an uninterrupted change."""
        self.complete(self.start(to=to), to)

    def complete(self, run: subprocess.Popen[str], to: str = "", says: str = "") -> None:
        """Wait for the end of a run, which prints `says`; the host must be as after an uninterrupted change."""
        output, _ = run.communicate()
        assert run.returncode == 0, output[-5000:]
        assert says in output, output[-5000:]
        self.at = to or self.target
        found = self.read_state()
        assert self.differences(self.expected[self.at], found) == []
        # The run that completed it also verified it, whether anything was left to change or not.
        assert in_host("ls /var/lib/gpuhost/pending.json 2>/dev/null || true") == ""
        verified = json.loads(in_host("cat /var/lib/gpuhost/verified.json"))
        assert verified["plan"] == json.loads(in_host("cat /etc/ansible/facts.d/gpu_stack.fact"))


@pytest.fixture(scope="module")
def read_state(pytestconfig, sections) -> Callable[[], State]:
    """Return a function that reads the state of the scenario's only host."""
    from testinfra import get_host

    inventory = pytestconfig.getoption("ansible_inventory")

    def now() -> State:
        host = get_host(f"ansible://{HOST}?ansible_inventory={inventory}")
        with host.sudo():
            if distributions.MANAGER == "dnf":
                # The shape's packages start no service, which a boot does.
                host.run_expect([0], "systemctl start nvidia-persistenced")
            found = sections(
                host.run_expect([0], "sh -c %s", (PROJECT / "molecule/shared/state.sh").read_text()).stdout
            )
        found.pop("repository lists")
        return found

    return now


@pytest.fixture(scope="module")
def change(pytestconfig, read_state, differences) -> Change:
    return Change(str(pytestconfig.getoption("ansible_inventory")), read_state, differences)


@pytest.fixture(scope="module")
def tasks(change, tmp_path_factory) -> list[str]:
    """Return the names of the tasks of an uninterrupted change; both toolkits are installed then."""
    listing = tmp_path_factory.mktemp("tasks") / "names"
    for _ in CONFIGURATIONS:
        run = change.start(INTERRUPT_LIST=str(listing))
        output, _ = run.communicate()
        assert run.returncode == 0, output[-5000:]
        change.at = change.target
        change.expected[change.at] = change.read_state()
    return listing.read_text().splitlines()


def boundaries(tasks: list[str]) -> list[int]:
    """Return the numbers of tasks (from 1) before which a run is killed: all after the plan, or one of them."""
    first = tasks.index("Record the baseline") + 1
    numbers = list(range(first + 1, len(tasks) + 1))
    return numbers if ALL else [random.Random(len(tasks)).choice(numbers)]


def wait_for_the_host() -> None:
    """Wait until what the killed run started on the host has ended; it continues without its controller."""
    deadline = time.monotonic() + WAIT_SECONDS
    while in_host("pgrep -x 'apt-get|dpkg|python3|platform-python' >/dev/null && echo busy || true").strip():
        assert time.monotonic() < deadline, "the modules do not end"
        time.sleep(0.5)


def in_host(script: str) -> str:
    command = ["docker", "exec", LAB.container(HOST), "sh", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wait_for_packages(run: subprocess.Popen[str], progress: str, then: str = ":") -> None:
    """Wait until a command prints something else than before, and run another one on the host at that moment."""
    before = in_host(progress).strip()
    watch = (
        f'for _ in $(seq 40); do [ "$({progress})" = {before} ] || {{ {then}; echo there; break; }}; sleep 0.05; done'
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while not in_host(watch):
        assert run.poll() is None, run.communicate()[0][-5000:]
        assert time.monotonic() < deadline, "no package is changed"


def test_run_killed_between_two_tasks_is_completed_by_the_next(change, tasks):
    numbers = boundaries(tasks)
    converged = []
    for number in numbers:
        run = change.start(INTERRUPT_BEFORE=str(number))
        output, _ = run.communicate()
        # A change in the other direction may have fewer tasks and end before it is killed.
        assert run.returncode in (-9, 0), output[-5000:]
        wait_for_the_host()
        change.finish()
        converged.append(number)
    print(f"{len(converged)} of {len(numbers)} runs that were killed between tasks converged ({len(tasks)} tasks)")


def test_run_killed_before_ldconfig_leaves_that_to_the_next(change, tasks):
    """The run restores only the linker's configuration, so that no package's trigger runs ldconfig.

    Its module and its controller die once the file is written: a script in the place of ldconfig waits for that.
    """
    program, started = "/usr/local/sbin/ldconfig", "/run/ldconfig-started"
    in_host("rm /etc/ld.so.conf.d/gpuhost-cuda.conf; ldconfig")
    script = f"#!/bin/sh\\necho $PPID $$ > {started}; exec sleep 600\\n"
    in_host(f"printf '{script}' > {program}; chmod +x {program}")
    run = change.start(to=change.at)
    deadline = time.monotonic() + WAIT_SECONDS
    while not in_host(f"cat {started} 2>/dev/null || true").strip():
        assert run.poll() is None, run.communicate()[0][-5000:]
        assert time.monotonic() < deadline, "ldconfig is not started"
        time.sleep(0.2)
    run.kill()
    run.communicate()
    in_host(f"kill -KILL $(cat {started}); rm {program} {started}")
    assert json.loads(in_host("cat /var/lib/gpuhost/effects.json"))["waiting"] == ["ldconfig"]
    assert "gpuhost-cuda.conf" in in_host("find /etc/ld.so.conf.d -newer /etc/ld.so.cache")
    change.finish(to=change.at)
    assert in_host("find /etc/ld.so.conf.d -newer /etc/ld.so.cache; ls /var/lib/gpuhost/effects.json || true") == ""


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_power_loss_in_the_middle_of_a_transaction_is_repaired_by_the_next_run(change, tasks, packages, moment):
    run = change.start()
    wait_for_packages(run, packages.progress)
    time.sleep(random.Random(moment).uniform(0, 2))
    subprocess.run(["docker", "kill", LAB.container(HOST)], check=True, capture_output=True)
    output, _ = run.communicate()
    assert run.returncode != 0, output[-5000:]
    subprocess.run([sys.executable, "script/lab", "up", change.inventory], cwd=PROJECT, check=True, capture_output=True)
    change.finish()


@pytest.mark.parametrize("step", STEPS)
def test_killed_transaction_is_undone_and_the_next_run_succeeds(change, tasks, packages, step):
    changed = change.differences(change.expected["old"], change.expected["new"])
    if LARGEST in step and not any(LARGEST in line for line in changed):
        step = HALF_INSTALLED
    run = change.start()
    wait_for_packages(run, packages.reached(step), then=packages.kill)
    output, _ = run.communicate()
    assert run.returncode == 2, output[-5000:]
    assert "It was undone: all" in output, output[-5000:]
    assert change.differences(change.expected[change.at], change.read_state()) == []
    change.finish()


@pytest.mark.parametrize("playbook", ["gpu_host", "rollback"])
def test_second_run_at_the_same_time_waits_and_then_does_its_work_or_changes_nothing(change, tasks, packages, playbook):
    """The second one asks for what the first replaces."""
    before = change.at
    run = change.start()
    wait_for_packages(run, packages.progress)
    waiting = change.start("-e", f"gpu_stack_wait={WAIT_SECONDS}", to=before, playbook=playbook)
    impatient = change.start("-e", "gpu_stack_wait=1", to=before, playbook=playbook)
    output, _ = impatient.communicate()
    assert run.poll() is None, "the first run ended before the others asked for the host"
    assert impatient.returncode == 2, output[-5000:]
    assert re.search(rf"another run is changing this host: gpu_host.yml of \S+\s+\(process {run.pid}\)", output)
    output, _ = run.communicate()
    assert run.returncode == 0, output[-5000:]
    change.complete(waiting, to=before, says="another run is changing this host: gpu_host.yml of")


def test_missing_network_leaves_the_host_unchanged(change, tasks, packages):
    """No package files are kept for this change, and the repository does not answer."""
    in_host("rm -rf /var/lib/gpuhost/packages")
    in_host(packages.no_retries)
    before = change.read_state()
    in_host("echo 127.0.0.1 repository.lab >> /etc/hosts")
    run = change.start()
    output, _ = run.communicate()
    assert run.returncode == 2, output[-5000:]
    in_host("sed '/127.0.0.1 repository.lab/d' /etc/hosts > /tmp/hosts; cat /tmp/hosts > /etc/hosts")
    assert change.differences(before, change.read_state()) == []
    in_host(packages.retries)
    change.finish()
