"""gpu_verify reports each fault, and passes again once it is repaired.

The state file of the simulated nvidia-smi simulates the driver's faults; the shadowed library is real.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

STATE = "/etc/gpuhost-simulated/nvidia-smi.json"
SHADOW = "/etc/profile.d/zz-shadow.sh"
# Without the frameworks, for checks of the driver only: importing both takes longer than everything else.
DRIVER_ONLY = ("-e", "gpu_stack_tensorflow=none", "-e", "gpu_stack_pytorch=none")
GPU_FAULTS = {
    "devices": {
        "0": {"set": {"ecc_errors/volatile/dram_uncorrectable": "5"}, "nvlink": {"down": [3]}},
        "1": {
            "set": {
                "pci/pci_gpu_link_info/link_widths/current_link_width": "8x",
                "persistence_mode": "Disabled",
            },
            "throttle": ["idle", "thermal"],
        },
    }
}

Checks = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def verify(playbook, reports) -> Callable[..., Checks]:
    """Return a function: verify(expect=2) runs verify.yml, which must exit with 2, and returns its checks by id."""

    def run(*options: str, expect: int) -> Checks:
        playbook("verify", "--limit", "proof-1", *options, expect=expect)
        found = json.loads((reports / "newest/proof-1/verify.json").read_text())
        return {check["id"]: check for check in found["checks"]}

    return run


@pytest.fixture(scope="module")
def simulated(as_root) -> Callable[[dict[str, Any]], AbstractContextManager[None]]:
    """Return a context manager: simulated({...}) sets the state of the simulated driver until the block ends."""

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
    """Return a context manager: shadowed() puts the system's cuDNN into a global LD_LIBRARY_PATH."""

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
def faulty(verify, simulated, shadowed) -> Checks:
    """Return the checks of a host with faults of single GPUs and a shadowed library; neither hides the other."""
    with simulated(GPU_FAULTS), shadowed():
        return verify(expect=2)


@pytest.fixture(scope="module")
def repaired(faulty, verify) -> Checks:
    """Return the checks of the same host after the repair."""
    return verify(expect=0)


def failing(checks: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, check in checks.items() if check["status"] == "fail"}


def test_faults_of_single_gpus_are_reported_together(faulty):
    assert failing(faulty) - {"tensorflow.libraries"} == {
        "gpu.ecc_errors", "gpu.nvlink", "gpu.pcie_width", "gpu.slowdown",
    }  # fmt: skip
    assert faulty["gpu.persistence"]["status"] == "warn"
    assert "GPU 0" in faulty["gpu.ecc_errors"]["found"]
    assert "GPU 1" in faulty["gpu.pcie_width"]["found"]
    assert all(faulty[name]["remedy"] for name in failing(faulty))


def test_shadowed_cudnn_fails_and_is_named(faulty):
    assert "tensorflow.libraries" in failing(faulty)
    assert "/opt/shadow/libcudnn.so.9" in faulty["tensorflow.libraries"]["found"]
    assert "LD_LIBRARY_PATH" in faulty["tensorflow.libraries"]["remedy"]


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"devices": {"1": {"failure": {"mode": "fallen_off_bus"}}}}, (), {"driver.nvidia_smi", "driver.gpu_count"}),
        ({"state": "mismatch"}, DRIVER_ONLY, {"driver.nvidia_smi", "driver.gpu_count"}),
        ({"state": "not_loaded"}, DRIVER_ONLY, {"driver.nvidia_smi", "driver.gpu_count"}),
    ],
    ids=["lost GPU", "module and libraries differ", "driver not loaded"],
)
def test_driver_fault_fails(verify, simulated, state, options, expected):
    with simulated(state):
        checks = verify(*options, expect=2)
    assert expected <= failing(checks)
    assert not [name for name in checks if name.startswith("gpu.") and checks[name]["status"] == "pass"]


def test_repaired_host_passes_and_skips_have_reasons(repaired):
    assert failing(repaired) == set()
    assert len(repaired) > 40
    assert all(check["reason"] for check in repaired.values() if check["status"] == "skip")
