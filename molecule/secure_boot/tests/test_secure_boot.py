"""A kernel under Secure Boot, before and after the operator's key is enrolled in the firmware's variables.

The tests run in order on a machine that has no driver, with runs as a user would start them (each has the fixture
`host`: pytest would move those without it behind the others). The verdicts are the kernel's, and the states of the
firmware are read with mokutil; only the GPU and the modules' functions are simulated.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.doubles.lab.containers import Lab

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
HOSTS = SCENARIO / "hosts.yml"
DRIVER = "580.126.16"
POWER_OFF_SECONDS = 600
# What a run could change. Their complete state (shared/state.sh) takes minutes to read on an emulated processor.
MANAGED, MARKER = "/boot /etc /opt /usr /var/lib/apt /var/lib/dkms /var/lib/dpkg", "/run/gpuhost-test"


def install(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run converge.yml with the driver's role and these variables."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), f"--inventory={HOSTS}"]
    command += [str(SCENARIO / "converge.yml"), f"--extra-vars={json.dumps(variables)}"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_DISPLAY_FAILED_STDERR"] = "false"
    start = time.monotonic()
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    print(f"{' '.join(command)}: {time.monotonic() - start:.0f} s\n{done.stdout}{done.stderr}")
    return done


def root(host, command: str) -> str:
    with host.sudo():
        return host.run_expect([0], command).stdout.strip()


def module(host) -> str:
    """Return the path of the module that DKMS installed for the running kernel."""
    return host.run_expect([0], "/sbin/modinfo -F filename nvidia").stdout.strip()


def serial_number(certificate: Path) -> str:
    """Return what `modinfo -F sig_key` prints for modules of this key, without its colons."""
    command = ["openssl", "x509", "-noout", "-serial", "-in", str(certificate)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> dict[str, str]:
    """Make the operator's key and certificate, with the command of docs/secure-boot.md."""
    folder = tmp_path_factory.mktemp("operator")
    files = {"key": folder / "module_signing.key", "certificate": folder / "module_signing.pem"}
    command = "openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500".split()
    command += ["-subj", "/CN=Example lab module signing"]
    command += ["-keyout", str(files["key"]), "-out", str(files["certificate"])]
    subprocess.run(command, check=True, capture_output=True)
    return {name: str(path) for name, path in files.items()}


def refused(report: Path) -> dict[str, str]:
    """Return {code: message} of the problems for which a run refused the host."""
    parts = [
        json.loads((report / "newest/secure-boot-hopper" / f"{part}.json").read_text())
        for part in ("plan", "preflight")
    ]
    return {problem["code"]: problem["message"] for part in parts for problem in part["problems"]}


def test_machine_enforces_secure_boot(host):
    assert "SecureBoot enabled" in root(host, "mokutil --sb-state")
    assert "[integrity]" in root(host, "cat /sys/kernel/security/lockdown")
    assert "Example lab" not in root(host, "mokutil --list-enrolled")


def changed(host) -> list[str]:
    """Return what was written, created or deleted (in a directory) below the managed ones since MARKER was made."""
    found = root(host, f"find {MANAGED} -xdev -cnewer {MARKER} ! -path '*/__pycache__*'").splitlines()
    return sorted(found)


def test_preflight_refuses_before_anything_is_changed(host, playbook, reports):
    root(host, f"touch {MARKER}")
    root(host, "touch /etc/gpuhost-test")
    assert changed(host) == ["/etc", "/etc/gpuhost-test"]
    root(host, "rm /etc/gpuhost-test")
    root(host, f"touch {MARKER}")
    playbook("gpu_host", expect=2)
    found = refused(reports)
    assert list(found) == ["secure-boot"]
    assert "the firmware trusts no key that DKMS signs modules with" in found["secure-boot"]
    assert changed(host) == []
    assert not host.file("/var/lib/gpuhost").exists


def test_preflight_refuses_a_key_that_is_not_enrolled(host, playbook, reports, key):
    paths = {f"gpu_stack_module_signing_{name}": path for name, path in key.items()}
    playbook("gpu_host", "-e", json.dumps(paths), expect=2)
    found = refused(reports)
    assert list(found) == ["secure-boot"]
    assert (
        f"{key['certificate']}, the certificate of gpu_stack_module_signing_key, is not enrolled"
        in found["secure-boot"]
    )
    assert changed(host) == []
    assert not host.file("/var/lib/gpuhost").exists


def test_kernel_rejects_the_module_that_dkms_signed_with_a_key_of_its_own(host):
    done = install()
    assert done.returncode != 0
    assert "Key was rejected by service" in " ".join(done.stdout.split())
    assert "DKMS module signing key" in root(host, f"/sbin/modinfo -F signer {module(host)}")
    assert "Loading of module with unavailable key is rejected" in root(host, "dmesg")
    assert not host.file("/sys/module/nvidia").exists


def test_kernel_rejects_an_unsigned_module(host):
    root(host, f"cp {module(host)} /tmp/unsigned.ko")
    root(host, "strip --strip-debug /tmp/unsigned.ko")
    assert root(host, "/sbin/modinfo -F sig_key /tmp/unsigned.ko") == ""
    with host.sudo():
        refusal = host.run_expect([1], "/sbin/insmod /tmp/unsigned.ko").stderr
    assert "Key was rejected by service" in refusal
    assert "Loading of unsigned module is rejected" in root(host, "dmesg")
    assert not host.file("/sys/module/nvidia").exists


def test_module_loads_when_signed_with_the_enrolled_key(host, key):
    machine = Lab(SCENARIO.name, PROJECT).machine("secure-boot-hopper")
    with host.sudo():
        host.run("systemctl poweroff")
    deadline = time.monotonic() + POWER_OFF_SECONDS
    while machine.process is not None:
        assert time.monotonic() < deadline, f"the machine is still on after {POWER_OFF_SECONDS} s"
        time.sleep(1)
    machine.enrol(Path(key["certificate"]))
    subprocess.run([sys.executable, "script/lab", "up", str(HOSTS)], cwd=PROJECT, check=True)
    assert "SecureBoot enabled" in root(host, "mokutil --sb-state")
    assert "Example lab module signing" in root(host, "mokutil --list-enrolled")

    done = install(**{f"nvidia_driver_module_signing_{name}": path for name, path in key.items()})
    assert done.returncode == 0, done.stdout + done.stderr
    signed_by = root(host, f"/sbin/modinfo -F sig_key {module(host)}")
    assert "".join(signed_by.replace(":", "").split()) == serial_number(Path(key["certificate"]))
    assert f"  {DRIVER}" in root(host, "cat /proc/driver/nvidia/version")
    answer = host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    assert (answer.rc, answer.stdout.strip()) == (0, DRIVER)


def test_second_run_changes_nothing(host, key):
    done = install(**{f"nvidia_driver_module_signing_{name}": path for name, path in key.items()})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0 " in done.stdout


def test_main_playbook_accepts_the_host_with_the_enrolled_key(host, playbook, reports, key):
    asked = {f"gpu_stack_module_signing_{name}": path for name, path in key.items()}
    asked["gpu_stack_driver"] = DRIVER
    playbook("gpu_host", "-e", json.dumps(asked))
    checks = json.loads((reports / "newest/secure-boot-hopper/verify.json").read_text())["checks"]
    (built,) = [check for check in checks if check["id"] == "driver.module_built"]
    assert built["status"] == "pass", built
    assert "Example lab module signing" in root(host, f"/sbin/modinfo -F signer {module(host)}")
    assert host.file("/sys/module/nvidia").exists
