"""What drives the GPUs, and a host in trouble seen by all of gpu_verify: on the simulated nvidia-smi and a PCI tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.module_utils.simulated_host import DRIVER, H200, SimulatedHost, use_simulated_nvidia_smi

STATUS = """Package: nvidia-fabricmanager
Status: install ok installed
Architecture: amd64
Version: %s

"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    use_simulated_nvidia_smi(monkeypatch)
    made = SimulatedHost(tmp_path, [H200, H200], switches=4)
    made.write("var/lib/dpkg/status", STATUS % (DRIVER + "-1"))
    made.answer("systemctl is-active nvidia-fabricmanager.service", "active\n")
    made.answer("journalctl", "kernel: Linux version 6.1.0-56-amd64\n")
    made.write("lib/modules/6.1.0-56-amd64/updates/dkms/nvidia.ko", "")
    made.write("lib/modules/6.1.0-56-amd64/build/Makefile", "")
    made.answer("/sbin/modinfo -F version", DRIVER + "\n")
    made.answer("/sbin/modinfo -F license", "Dual MIT/GPL\n")
    return made


def failed(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check_id: check["found"] for check_id, check in found.items() if check["status"] == "fail"}


def test_a_healthy_host(host: SimulatedHost) -> None:
    found = host.verify()
    driver = {check_id: check for check_id, check in found.items() if check_id.startswith("driver.")}
    assert {check_id: check["status"] for check_id, check in driver.items()} == dict.fromkeys(driver, "pass")
    assert failed(found) == {}
    assert driver["driver.pci_binding"]["found"] == "nvidia on 2 of 2"
    assert driver["driver.fabric_manager"]["found"] == f"nvidia-fabricmanager {DRIVER}-1; service active; 4 NVSwitches"
    assert driver["driver.nouveau_absent"]["found"] == "not loaded"


def mismatch(host: SimulatedHost) -> None:
    host.state(state="mismatch")


def lost_gpu(host: SimulatedHost) -> None:
    host.state(state="gpu_lost", lost=[1])


def not_loaded(host: SimulatedHost) -> None:
    host.state(state="not_loaded")
    (host.root / "proc/driver/nvidia/version").unlink()
    for address in ("0000:05:00.0", "0000:06:00.0"):
        (host.root / f"sys/bus/pci/devices/{address}/driver").unlink()


def fabric_manager_down(host: SimulatedHost) -> None:
    host.answer("systemctl is-active nvidia-fabricmanager.service", "failed\n", exit_code=3)
    host.state(gpus={"0": {"fabric_state": "In Progress"}, "1": {"fabric_state": "In Progress"}})


def fabric_manager_of_another_version(host: SimulatedHost) -> None:
    host.write("var/lib/dpkg/status", STATUS % "570.211.01-1")


def fabric_manager_missing(host: SimulatedHost) -> None:
    host.write("var/lib/dpkg/status", "")
    host.answer("systemctl is-active nvidia-fabricmanager.service", "inactive\n", exit_code=4)


def nouveau_bound(host: SimulatedHost) -> None:
    host.bind("0000:06:00.0", "nouveau")
    host.write("proc/modules", "nouveau 2732032 4 - Live 0x0000000000000000\n")


def nouveau_only_loaded(host: SimulatedHost) -> None:
    host.write("proc/modules", "nvidia 1 0 - Live 0x0\nnouveau 2732032 0 - Live 0x0000000000000000\n")


def given_to_virtual_machines(host: SimulatedHost) -> None:
    host.bind("0000:06:00.0", "vfio-pci")


def off_the_bus(host: SimulatedHost) -> None:
    host.answer("journalctl", "kernel: NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n")


TROUBLE: dict[Any, dict[str, str]] = {
    mismatch: {
        "driver.nvidia_smi": "exit 18: Failed to initialize NVML: Driver/library version mismatch",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "driver.module_matches_user_space": f"open modules {DRIVER}, libraries unknown",
    },
    lost_gpu: {
        "driver.nvidia_smi": "exit 255: Unable to determine the device handle for GPU1: 0000:06:00.0: Unknown Error",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "driver.module_matches_user_space": f"open modules {DRIVER}, libraries unknown",
    },
    not_loaded: {
        "driver.nvidia_smi": "exit 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "driver.module_matches_user_space": "no NVIDIA module is loaded",
        "driver.pci_binding": "0000:05:00.0: none; 0000:06:00.0: none",
    },
    fabric_manager_down: {
        "driver.fabric_manager": f"nvidia-fabricmanager {DRIVER}-1; service failed; 4 NVSwitches",
        "gpu.fabric": "GPU 0, 1: fabric In Progress, status not told",
    },
    fabric_manager_of_another_version: {
        "driver.fabric_manager": "nvidia-fabricmanager 570.211.01-1; service active; 4 NVSwitches",
    },
    fabric_manager_missing: {"driver.fabric_manager": "not installed; service inactive; 4 NVSwitches"},
    nouveau_bound: {
        "driver.nouveau_absent": "bound to 0000:06:00.0",
        "driver.pci_binding": "0000:06:00.0: nouveau",
    },
    nouveau_only_loaded: {"driver.nouveau_absent": "loaded, bound to no GPU"},
    given_to_virtual_machines: {"driver.pci_binding": "0000:06:00.0: vfio-pci"},
    off_the_bus: {"gpu.xid_errors": "Xid 79 on 0000:05:00 (the GPU has fallen off the bus)"},
}  # fmt: skip


@pytest.mark.parametrize("cause", TROUBLE, ids=lambda cause: str(cause.__name__))
def test_trouble_fails_its_checks_and_no_other(host: SimulatedHost, cause: Any) -> None:
    cause(host)
    found = host.verify()
    wrong = failed(found)
    assert list(wrong) == list(TROUBLE[cause])
    for check_id, text in TROUBLE[cause].items():
        assert wrong[check_id].startswith(text)
        assert found[check_id]["remedy"]
        assert found[check_id]["expected"]


def test_a_lost_gpu_is_named_in_the_remedy(host: SimulatedHost) -> None:
    lost_gpu(host)
    assert "power-cycle" in host.verify()["driver.nvidia_smi"]["remedy"]


def test_without_nvswitches_no_fabric_manager_is_asked_for(tmp_path: Path, host: SimulatedHost) -> None:
    plain = SimulatedHost(tmp_path / "plain", [H200])
    found = plain.verify()["driver.fabric_manager"]
    assert (found["status"], "no NVSwitch" in found["reason"]) == ("skip", True)
    assert [argv for argv in plain.asked if "is-active" in argv] == []


@pytest.mark.parametrize("kernel_module", ["not_managed", "built"])
def test_nouveau_that_is_bound_fails_on_a_borrowed_kernel_too(host: SimulatedHost, kernel_module: str) -> None:
    assert host.verify(kernel_module=kernel_module)["driver.nouveau_absent"]["status"] == "skip"
    nouveau_bound(host)
    assert host.verify(kernel_module=kernel_module)["driver.nouveau_absent"]["status"] == "fail"


def test_a_simulated_driver_is_bound_to_nothing(host: SimulatedHost) -> None:
    not_loaded(host)
    host.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    found = host.verify()
    assert [found[check_id]["status"] for check_id in ("driver.pci_binding", "driver.nouveau_absent")] == [
        "skip",
        "skip",
    ]
    assert all("simulated" in found[check_id]["reason"] for check_id in ("driver.pci_binding", "driver.nouveau_absent"))
