"""A change that fails comes back to the last proved set. In order: each test leaves the host as the next one needs it.

The host has driver 580 and CUDA 13.0, proved by converge.
"""

import json
from pathlib import Path

import pytest

NEW = ("-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.2")
SHADOW = "/etc/profile.d/zz-old-cuda.sh"

# testinfra puts tests without a host behind the others; here the order counts.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def failure(reports: Path) -> str:
    """Why the last run failed, as its report tells."""
    report = json.loads((reports / "latest/report.json").read_text())
    (entry,) = report["hosts"]
    assert entry["status"] == "fail"
    return " ".join(entry["reasons"])


@pytest.fixture
def no_environment(tmp_path):
    """Options for an environment from a lock with a hash that no file has: uv gives up after half a minute."""
    lock = tmp_path / "tensorflow-2.21.0.txt"
    lock.write_text(f"tensorflow==2.21.0 --hash=sha256:{'0' * 64}\n")
    return "-e", "gpu_stack_tensorflow=2.21.0", "-e", f"tensorflow_env_lock={lock}"


def apart_from_environments(found):
    """uv, and what it had made until then, stay for the next run; nothing leads to them."""
    return [line for line in found if "/opt/gpuhost/" not in line]


def test_packages_that_do_not_install_leave_the_old_ones_and_their_holds(
    playbook, state, differences, root, no_environment
):
    """A file system that is full where the new toolkit goes: dpkg fails in the middle of the transaction.

    The environment that was being made meanwhile is not left at work.
    """
    before = state()
    root.run_expect([0], "mkdir /usr/local/cuda-13.2")
    root.run_expect([0], "mount -t tmpfs -o size=8m tmpfs /usr/local/cuda-13.2")
    done = playbook("gpu_host", *NEW, *no_environment, expect=2)
    assert "No space left on device" in done.stdout
    assert "It was undone: all" in done.stdout
    assert root.run("pgrep --full '[R]un by the host.s own Python'").stdout == ""
    root.run_expect([0], "umount /usr/local/cuda-13.2")
    root.run_expect([0], "rmdir /usr/local/cuda-13.2")
    assert apart_from_environments(differences(before, state())) == []


def test_an_environment_that_cannot_be_made_takes_the_packages_back_that_came_meanwhile(
    playbook, reports, state, differences, root, no_environment
):
    before = state()
    playbook("gpu_host", *NEW, *no_environment, expect=2)
    assert "Install the framework and its CUDA libraries, checked by hash: status" in failure(reports)
    assert "Hash mismatch for `tensorflow==2.21.0`" in failure(reports)
    restored = json.loads((reports / "latest/undo-hopper/restored.json").read_text())
    assert any("nvidia-driver-cuda 595" in line for line in restored["changes"])
    assert apart_from_environments(differences(before, state())) == []
    root.run_expect([1], "test -e /opt/gpuhost/tensorflow")


def test_a_set_that_does_not_prove_itself_goes_and_the_last_one_comes_back_proved(
    playbook, reports, state, differences, root
):
    """A login shell that still prefers the old toolkit: the checks of the new one fail, those of the old one pass."""
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


def test_a_failed_check_without_a_change_undoes_nothing(playbook, state, differences, root):
    root.run_expect([0], "mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.away")
    before = state()
    done = playbook("verify", expect=2)
    assert "rolled back" not in done.stdout
    assert differences(before, state()) == []
    root.run_expect([0], "mv /usr/bin/nvidia-smi.away /usr/bin/nvidia-smi")


def test_without_rollback_the_new_set_stays(playbook, root):
    root.run_expect([0], "sh -c %s", f"echo 'PATH=/usr/local/cuda-13.0/bin:$PATH' > {SHADOW}")
    done = playbook("gpu_host", *NEW, "-e", "gpu_stack_rollback=false", expect=2)
    assert "Nothing was rolled back: gpu_stack_rollback is false" in done.stdout
    assert "/usr/local/cuda-13.2" in root.run_expect([0], "update-alternatives --query cuda").stdout
    root.run_expect([0], f"rm {SHADOW}")


def test_the_same_command_finishes_once_the_cause_is_gone_and_then_changes_nothing(playbook):
    playbook("gpu_host", *NEW)
    again = playbook("gpu_host", *NEW)
    assert "changed=0 " in again.stdout


def test_rollback_goes_back_without_the_network_and_forward_again(playbook, state, differences, root):
    new = state()
    root.run_expect([0], "sh -c 'echo 127.0.0.1 repository.lab >> /etc/hosts'")
    playbook("rollback")
    assert "driver_version" not in root.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv").stderr
    assert "580." in root.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout
    assert "release 13.0," in root.run_expect([0], "nvcc --version").stdout
    root.run_expect([0], "sh -c \"sed '/repository.lab/d' /etc/hosts > /tmp/hosts && cat /tmp/hosts > /etc/hosts\"")
    playbook("rollback")
    assert differences(new, state()) == []


def test_packages_are_kept_for_two_sets_and_no_more(playbook, root):
    playbook("gpu_host", "-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.2")
    playbook("gpu_host")
    kept = root.run_expect([0], "ls /var/lib/gpuhost/packages").stdout
    assert "nvidia-driver-cuda_580" in kept
    assert "nvidia-driver-cuda_595" not in kept
