"""gpu_verify fails where something is wrong, names it, and is well again afterwards.

The driver's troubles are simulated by the state file of the simulated nvidia-smi; the shadowed library is a real one.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

STATE = "/etc/gpuhost-simulated/nvidia-smi.json"
SHADOW = "/etc/profile.d/zz-shadow.sh"
# The frameworks stay out of a plan whose checks are about the driver alone: importing both takes longer than the rest.
DRIVER_ALONE = ("-e", "gpu_stack_tensorflow=none", "-e", "gpu_stack_pytorch=none")
GPU_TROUBLES = {
    "gpus": {
        "0": {"ecc_errors": {"dram_uncorrectable": 5}, "links_down": [3]},
        "1": {"current_link_width": 8, "persistence": False, "slowdown": ["hw_thermal_slowdown"]},
    }
}

Checks = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def verify(playbook, reports) -> Callable[..., Checks]:
    """verify(expect=2): the check results by id, after a run of playbooks/verify.yml that must fail (or pass)."""

    def run(*options: str, expect: int) -> Checks:
        playbook("verify", "--limit", "proof-1", *options, expect=expect)
        found = json.loads((reports / "latest/proof-1/verify.json").read_text())
        return {check["id"]: check for check in found["checks"]}

    return run


@pytest.fixture(scope="module")
def simulated(as_root) -> Callable[[dict[str, Any]], AbstractContextManager[None]]:
    """with simulated({...}): the state of the simulated driver until the block ends."""

    @contextmanager
    def write(state: dict[str, Any]) -> Iterator[None]:
        as_root.run_expect([0], "mkdir -p /etc/gpuhost-simulated")
        as_root.run_expect([0], "sh -c %s", f"cat > {STATE} <<'EOF'\n{json.dumps(state)}\nEOF")
        try:
            yield
        finally:
            as_root.run_expect([0], "rm -rf /etc/gpuhost-simulated")

    return write


@pytest.fixture(scope="module")
def shadowed(as_root) -> Callable[[], AbstractContextManager[None]]:
    """with shadowed(): the system's cuDNN, put in front for everybody as guides tell people to."""

    @contextmanager
    def put() -> Iterator[None]:
        system = as_root.run_expect([0], "ls /usr/lib/x86_64-linux-gnu/libcudnn.so.9").stdout.strip()
        as_root.run_expect([0], "mkdir -p /opt/shadow")
        as_root.run_expect([0], f"cp -L {system} /opt/shadow/libcudnn.so.9")
        as_root.run_expect([0], f"echo 'export LD_LIBRARY_PATH=/opt/shadow' > {SHADOW}")
        try:
            yield
        finally:
            as_root.run_expect([0], f"rm -r /opt/shadow {SHADOW}")

    return put


@pytest.fixture(scope="module")
def ailing(verify, simulated, shadowed) -> Checks:
    """One verification of a host with single GPUs in trouble and a shadowed library; neither hides the other."""
    with simulated(GPU_TROUBLES), shadowed():
        return verify(expect=2)


@pytest.fixture(scope="module")
def well(ailing, verify) -> Checks:
    """The same host when all of that has gone again."""
    return verify(expect=0)


def failing(checks: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, check in checks.items() if check["status"] == "fail"}


def test_what_is_wrong_with_single_gpus_is_told_all_at_once(ailing):
    assert failing(ailing) - {"tensorflow.libraries"} == {
        "gpu.ecc_errors", "gpu.nvlink", "gpu.pcie_width", "gpu.persistence", "gpu.slowdown",
    }  # fmt: skip
    assert "GPU 0" in ailing["gpu.ecc_errors"]["found"]
    assert "GPU 1" in ailing["gpu.pcie_width"]["found"]
    assert all(ailing[name]["remedy"] for name in failing(ailing))


def test_a_shadowed_cudnn_fails_and_is_named(ailing):
    assert "tensorflow.libraries" in failing(ailing)
    assert "/opt/shadow/libcudnn.so.9" in ailing["tensorflow.libraries"]["found"]
    assert "LD_LIBRARY_PATH" in ailing["tensorflow.libraries"]["remedy"]


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"state": "gpu_lost", "lost": [1]}, (), {"driver.nvidia_smi", "driver.gpu_count"}),
        ({"state": "mismatch"}, DRIVER_ALONE, {"driver.nvidia_smi", "driver.gpu_count"}),
        ({"state": "not_loaded"}, DRIVER_ALONE, {"driver.nvidia_smi", "driver.gpu_count"}),
    ],
    ids=["a lost GPU", "another module than libraries", "no driver loaded"],
)
def test_a_driver_in_trouble_fails(verify, simulated, state, options, expected):
    with simulated(state):
        checks = verify(*options, expect=2)
    assert expected <= failing(checks)
    assert not [name for name in checks if name.startswith("gpu.") and checks[name]["status"] == "pass"]


def test_a_well_host_passes_and_says_what_it_did_not_look_at(well):
    """Behind all that was wrong with it: nothing of that is left, or believed any longer."""
    assert failing(well) == set()
    assert len(well) > 40
    assert all(check["reason"] for check in well.values() if check["status"] == "skip")
