"""Changes of the driver on a running machine: the module is reloaded if possible, else the host is rebooted once.

The tests run in order on the host that converge installed, with runs of converge.yml as a user would start them. The
kernel modules are simulated; kernel, use counts, DKMS, systemd and reboots are real.
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


def install(version: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run converge.yml with a version and other variables, without the repository, which is installed already."""
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
    """Return the output of a run that must fail, as one line."""
    assert done.returncode != 0, done.stdout
    return " ".join(done.stdout.split())


def boots(host) -> list[str]:
    """Return the IDs of all boots since the scenario began, oldest first."""
    with host.sudo():
        lines = host.run_expect([0], "journalctl --list-boots --no-pager").stdout.splitlines()
    found = [line.split()[1] for line in lines if line.split()[0].lstrip("-").isdigit()]
    current = host.run_expect([0], "cat /proc/sys/kernel/random/boot_id").stdout.strip().replace("-", "")
    return found if current in found else [*found, current]


def loaded(host) -> str:
    """Return the version of the loaded module, from both of the kernel's sources."""
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
    """Run a program that has a device open; a reboot ends it, too."""
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


def test_first_driver_is_built_and_loaded_without_a_reboot(host, before):
    assert len(before) == 1
    assert_driver(host, OLD)
    with host.sudo():
        status = host.run_expect([0], "dkms status").stdout
    assert f"nvidia/{OLD}" in status
    assert status.strip().endswith(": installed")


def test_unused_gpus_get_another_version_and_flavour_without_a_reboot(host, before):
    with host.sudo():
        host.run_expect([0], "systemctl restart nvidia-persistenced")  # so that it has the device open
        uses = host.run_expect([0], "cat /sys/module/nvidia/refcnt").stdout
    assert int(uses) == 2, "expected nvidia_uvm and the daemon"
    assert_done(install(NEW, "flavour=proprietary"))
    assert_driver(host, NEW)
    assert "Open" not in host.run_expect([0], "cat /proc/driver/nvidia/version").stdout
    assert boots(host) == before


def test_computing_program_prevents_reload_and_reboot(host, before):
    with program(host, "nvidia-uvm"):
        output = refusal(install(OLD))
        assert "programs compute on the GPUs" in output
        assert "sleep infinity" in output
    assert loaded(host) == NEW
    assert boots(host) == before


def test_reboot_never_names_the_reason_and_the_same_command_continues_after_a_reboot(host, before):
    with program(host, "nvidia0"):
        output = refusal(install(OLD, "nvidia_driver_reboot=never"))
        assert f"needs a reboot before the module of driver {OLD} can be loaded" in output
        assert "programs have the GPUs open" in output
        assert "nvidia_driver_reboot is never" in output
        assert "run the same command again" in output
        assert loaded(host) == NEW
        assert boots(host) == before
        by_hand = ["ansible", f"--inventory={SCENARIO / 'hosts.yml'}", "gpu_hosts", "-m", "ansible.builtin.reboot"]
        subprocess.run(by_hand, cwd=PROJECT, check=True)
    assert_done(install(OLD, "nvidia_driver_reboot=never"))
    assert_driver(host, OLD)
    assert boots(host)[:-1] == before


def test_one_reboot_if_a_program_keeps_the_module_in_use(host, before):
    with program(host, "nvidia0"):
        assert_done(install(NEW))
        assert_driver(host, NEW)
    assert boots(host)[:-1] == before, "expected exactly one more boot"


def test_second_run_neither_changes_nor_reboots(host, before):
    done = install(NEW)
    assert_done(done)
    assert "changed=0 " in done.stdout
    assert boots(host) == before
