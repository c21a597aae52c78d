"""A change that fails is rolled back to the last verified configuration.

The tests run in order: each one leaves the host as the next one needs it. converge has installed and verified driver
580 and CUDA 13.0.
"""

import json
import re
from pathlib import Path

import pytest

NEW = ("-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.2")
SHADOW = "/etc/profile.d/zz-old-cuda.sh"
# The build in the background has its program's text on its command line; the brackets keep pgrep from finding itself.
TITLE = Path("roles/framework_env/files/build.py").read_text().splitlines()[0].strip('"')
BUILD = f"[{TITLE[0]}]" + re.sub(r"\W", ".", TITLE[1:40])

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def failure(reports: Path) -> str:
    """Return why the last run failed, from its report."""
    report = json.loads((reports / "latest/report.json").read_text())
    (entry,) = report["hosts"]
    assert entry["status"] == "failed"
    return " ".join(entry["reasons"])


@pytest.fixture
def no_environment(tmp_path):
    """Return options for an environment whose lock has a wrong hash: uv gives up after half a minute."""
    lock = tmp_path / "tensorflow-2.21.0.txt"
    lock.write_text(f"tensorflow==2.21.0 --hash=sha256:{'0' * 64}\n")
    return "-e", "gpu_stack_tensorflow=2.21.0", "-e", f"tensorflow_env_lock={lock}"


def without_environments(found):
    """Return differences without uv and unfinished environments, which stay for the next run."""
    return [line for line in found if "/opt/gpuhost" not in line]


def test_failed_package_transaction_restores_packages_and_holds(playbook, state, differences, root, no_environment):
    """dpkg fails in the middle of the transaction because the new toolkit's file system is full.

    The environment that is being built meanwhile does not outlive the run.
    """
    before = state()
    root.run_expect([0], "mkdir /usr/local/cuda-13.2")
    root.run_expect([0], "mount -t tmpfs -o size=8m tmpfs /usr/local/cuda-13.2")
    done = playbook("gpu_host", *NEW, *no_environment, expect=2)
    assert "No space left on device" in done.stdout
    assert "It was undone: all" in done.stdout
    assert root.run(f"pgrep --full '{BUILD}'").stdout == ""
    root.run_expect([0], "umount /usr/local/cuda-13.2")
    root.run_expect([0], "rmdir /usr/local/cuda-13.2")
    assert without_environments(differences(before, state())) == []


def test_failed_environment_rolls_back_the_packages_installed_meanwhile(
    playbook, reports, state, differences, root, no_environment
):
    before = state()
    playbook("gpu_host", *NEW, *no_environment, expect=2)
    assert "Install the framework and its CUDA libraries, checked by hash: status" in failure(reports)
    assert "Hash mismatch for `tensorflow==2.21.0`" in failure(reports)
    restored = json.loads((reports / "latest/undo-hopper/restored.json").read_text())
    assert any("nvidia-driver-cuda 595" in line for line in restored["changes"])
    assert without_environments(differences(before, state())) == []
    root.run_expect([1], "test -e /opt/gpuhost/tensorflow")


def test_configuration_that_fails_its_checks_is_rolled_back_and_the_restored_one_verified(
    playbook, reports, state, differences, root
):
    """A login shell still prefers the old toolkit, so that the new one fails its checks and the old one passes."""
    root.run_expect([0], "sh -c %s", f"echo 'PATH=/usr/local/cuda-13.0/bin:$PATH' > {SHADOW}")
    before = state()
    done = playbook("gpu_host", *NEW, expect=2)
    assert differences(before, state()) == []
    assert "env.login_shell" in failure(reports)
    assert "It was rolled back" in done.stdout
    restored = json.loads((reports / "latest/undo-hopper/restored.json").read_text())
    assert any("nvidia-driver-cuda 595" in line for line in restored["changes"])
    proof = json.loads((reports / "latest/undo-hopper/verify_after_undo.json").read_text())
    assert proof["status"] == "pass"
    report = (reports / "latest/report.md").read_text()
    assert "env.login_shell" in report
    assert "rolled back: " in report
    root.run_expect([0], f"rm {SHADOW}")


def test_failed_check_without_a_change_rolls_back_nothing(playbook, state, differences, root):
    root.run_expect([0], "mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.away")
    before = state()
    done = playbook("verify", expect=2)
    assert "rolled back" not in done.stdout
    assert differences(before, state()) == []
    root.run_expect([0], "mv /usr/bin/nvidia-smi.away /usr/bin/nvidia-smi")


def test_without_rollback_the_new_configuration_stays(playbook, root):
    root.run_expect([0], "sh -c %s", f"echo 'PATH=/usr/local/cuda-13.0/bin:$PATH' > {SHADOW}")
    done = playbook("gpu_host", *NEW, "-e", "gpu_stack_rollback=false", expect=2)
    assert "Nothing was rolled back: gpu_stack_rollback is false" in done.stdout
    assert "/usr/local/cuda-13.2" in root.run_expect([0], "update-alternatives --query cuda").stdout
    root.run_expect([0], f"rm {SHADOW}")


def test_same_command_succeeds_once_the_cause_is_gone_and_is_then_idempotent(playbook):
    playbook("gpu_host", *NEW)
    again = playbook("gpu_host", *NEW)
    assert "changed=0 " in again.stdout


def test_rollback_works_without_a_network_and_in_both_directions(playbook, state, differences, root):
    new = state()
    root.run_expect([0], "sh -c 'echo 127.0.0.1 repository.lab >> /etc/hosts'")
    playbook("rollback")
    drivers = root.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.split()
    assert {version.split(".")[0] for version in drivers} == {"580"}
    assert "release 13.0," in root.run_expect([0], "nvcc --version").stdout
    root.run_expect([0], "sh -c \"sed '/repository.lab/d' /etc/hosts > /tmp/hosts && cat /tmp/hosts > /etc/hosts\"")
    playbook("rollback")
    assert differences(new, state()) == []


def test_packages_are_kept_for_two_configurations_only(playbook, root):
    playbook("gpu_host", "-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.2")
    playbook("gpu_host")
    kept = root.run_expect([0], "ls /var/lib/gpuhost/packages").stdout
    assert "nvidia-driver-cuda_580" in kept
    assert "nvidia-driver-cuda_595" not in kept
