"""Changes of the driver on a running machine: reloaded where that is possible, rebooted once where not, or refused.

Each test goes on from where the one before it ended, with runs of converge.yml like a user's; the first finds the host
as converge left it. The kernel modules are simulated; kernel, use counts, DKMS, systemd and reboots are real.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
OLD, NEW = "580.126.16", "595.71.05"
CLIENT = "gpuhost-test-client"


def ask_for(version: str, *more: str) -> subprocess.CompletedProcess[str]:
    """The command that a user types, with one version and perhaps other variables; the repository is there already."""
    command = ["ansible-playbook", f"--inventory={SCENARIO / 'hosts.yml'}", str(SCENARIO / "converge.yml")]
    command += [f"--extra-vars=driver={version}", *(f"--extra-vars={pair}" for pair in more)]
    command.append("--skip-tags=nvidia_repo")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_DISPLAY_FAILED_STDERR"] = "false"
    start = time.monotonic()
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    print(f"{' '.join(command[3:])}: {time.monotonic() - start:.0f} s\n{done.stdout}{done.stderr}")
    return done


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """What a run that had to fail said, in one line however it was wrapped."""
    assert done.returncode != 0, done.stdout
    return " ".join(done.stdout.split())


def boots(host) -> list[str]:
    """The ids of all boots since the scenario began, oldest first."""
    with host.sudo():
        lines = host.run_expect([0], "journalctl --list-boots --no-pager").stdout.splitlines()
    found = [line.split()[1] for line in lines if line.split()[0].lstrip("-").isdigit()]
    current = host.run_expect([0], "cat /proc/sys/kernel/random/boot_id").stdout.strip().replace("-", "")
    return found if current in found else [*found, current]


def loaded(host) -> str:
    """The version that the kernel says, twice over, and that nvidia-smi works with."""
    version = host.run_expect([0], "cat /sys/module/nvidia/version").stdout.strip()
    assert f"  {version}" in host.run_expect([0], "cat /proc/driver/nvidia/version").stdout
    return version


def assert_driver(host, version: str) -> None:
    assert loaded(host) == version
    answer = host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    assert (answer.rc, answer.stdout.strip()) == (0, version)
    assert host.service("nvidia-persistenced").is_running
    assert "SIMULATED" in host.run_expect([0], "/sbin/modinfo -F description nvidia").stdout


@contextmanager
def program(host, device: str) -> Iterator[None]:
    """A program that has a device open until it is stopped; a reboot ends it, too."""
    with host.sudo():
        host.run_expect([0], f"systemd-run --unit={CLIENT} --quiet sh -c 'exec sleep infinity < /dev/{device}'")
        host.run_expect([0], f"systemctl is-active {CLIENT}")
    try:
        yield
    finally:
        with host.sudo():
            host.run_expect([0, 5], f"systemctl stop {CLIENT}")


@pytest.fixture
def before(host) -> list[str]:
    return boots(host)


def test_a_first_driver_is_built_and_loaded_without_a_reboot(host, before):
    assert len(before) == 1
    assert_driver(host, OLD)
    with host.sudo():
        status = host.run_expect([0], "dkms status").stdout
    assert f"nvidia/{OLD}" in status
    assert status.strip().endswith(": installed")


def test_where_no_program_uses_the_gpus_another_version_and_flavour_is_loaded_without_a_reboot(host, before):
    with host.sudo():
        host.run_expect([0], "systemctl restart nvidia-persistenced")  # so that it has the device open
        uses = host.run_expect([0], "cat /sys/module/nvidia/refcnt").stdout
    assert int(uses) == 2, "expected nvidia_uvm and the daemon"
    assert_done(ask_for(NEW, "flavour=proprietary"))
    assert_driver(host, NEW)
    assert "Open" not in host.run_expect([0], "cat /proc/driver/nvidia/version").stdout
    assert boots(host) == before


def test_under_a_program_that_computes_nothing_is_loaded_nor_rebooted(host, before):
    with program(host, "nvidia-uvm"):
        said = refusal(ask_for(OLD))
        assert "programs compute on the GPUs" in said
        assert "sleep infinity" in said
    assert loaded(host) == NEW
    assert boots(host) == before


def test_never_says_what_is_left_to_do_and_the_same_command_goes_on_after_a_reboot(host, before):
    with program(host, "nvidia0"):
        said = refusal(ask_for(OLD, "nvidia_driver_reboot=never"))
        assert f"needs a reboot before the module of driver {OLD} can be loaded" in said
        assert "programs have the GPUs open" in said
        assert "nvidia_driver_reboot is never" in said
        assert "run the same command again" in said
        assert loaded(host) == NEW
        assert boots(host) == before
        by_hand = ["ansible", f"--inventory={SCENARIO / 'hosts.yml'}", "gpu_hosts", "-m", "ansible.builtin.reboot"]
        subprocess.run(by_hand, cwd=PROJECT, check=True)
    assert_done(ask_for(OLD, "nvidia_driver_reboot=never"))
    assert_driver(host, OLD)
    assert boots(host)[:-1] == before


def test_one_reboot_where_a_program_keeps_the_module(host, before):
    with program(host, "nvidia0"):
        assert_done(ask_for(NEW))
        assert_driver(host, NEW)
    assert boots(host)[:-1] == before, "expected exactly one more boot"


def test_a_second_run_neither_changes_nor_reboots(host, before):
    done = ask_for(NEW)
    assert_done(done)
    assert "changed=0 " in done.stdout
    assert boots(host) == before
