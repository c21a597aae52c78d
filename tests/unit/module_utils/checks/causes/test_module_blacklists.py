"""Blacklists of the driver's modules: when they are why it is not loaded, on a whole host in a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from syrupy.assertion import SnapshotAssertion

from tests.unit.matrix import host as at
from tests.unit.matrix.faults import FAULTS, log
from tests.unit.matrix.host import NVIDIA_SMI, Host

# As Debian's and Ubuntu's users write them (forums; modprobe.d(5), kernel-parameters.txt).
SOFT, HARD = "etc/modprobe.d/no-nvidia.conf", "etc/modprobe.d/zz-disable.conf"
Apply = Callable[[Host], Any]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host on which everything is right but that no module is loaded."""
    host = Host(tmp_path)
    path = host.path(NVIDIA_SMI)
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(path))
    FAULTS["driver-not-loaded"].apply(host)
    host.save()
    return host


def write(name: str, text: str) -> Apply:
    return lambda host: host.write(name, text)


@pytest.mark.parametrize(
    "apply",
    [
        pytest.param(write(SOFT, "# for the passthrough test\nblacklist nouveau\nblacklist nvidia\n"), id="blacklist"),
        pytest.param(write(HARD, "install nvidia /bin/false\n"), id="install"),
        pytest.param(write("proc/cmdline", "ro quiet modprobe.blacklist=nvidia,nvidia_drm\n"), id="command-line"),
    ],
)
def test_what_fails_for_want_of_the_module_is_the_hosts(apply: Apply, host: Host, snapshot: SnapshotAssertion) -> None:
    apply(host)
    found = host.verify()
    failed = {id_: check["cause"] for id_, check in found.items() if check["status"] == "fail"}
    assert failed == dict.fromkeys(
        (
            *("driver.nvidia_smi", "driver.gpu_count", "driver.module_matches_user_space", "driver.pci_binding"),
            *("cuda.devices", "tensorflow.devices", "pytorch.devices"),
        ),
        "host",
    )
    assert {(found[id_]["setting"], found[id_]["remedy"]) for id_ in failed} == snapshot


def unload_nothing(host: Host) -> None:
    """Have the module loaded, and another fault."""
    host.write("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module  {at.DRIVER}  Release\n")


@pytest.mark.parametrize(
    "apply",
    [
        pytest.param(lambda host: host.remove(SOFT), id="no-blacklist"),
        pytest.param(write(SOFT, "# blacklist nvidia\nblacklist nvidiafb\n"), id="of-another-module"),
        pytest.param(write(SOFT, "# Managed by gpuhost (role nvidia_driver)\nblacklist nvidia\n"), id="ours"),
        pytest.param(FAULTS["module-deleted"].apply, id="module-not-built"),
        pytest.param(FAULTS["nouveau-loaded"].apply, id="nouveau"),
        pytest.param(FAULTS["gpu-for-a-virtual-machine"].apply, id="vfio"),
        pytest.param(lambda host: log(host, "NVRM: No NVIDIA GPU found."), id="loading-failed"),
        pytest.param(lambda host: (host.remove(at.JOURNALCTL), host.remove(at.DMESG)), id="no-log"),
        pytest.param(unload_nothing, id="loaded"),
    ],
)
def test_a_blacklist_that_is_not_the_reason_leaves_the_failures_to_the_stack(apply: Apply, host: Host) -> None:
    host.write(SOFT, "blacklist nvidia\n")
    apply(host)
    found = host.verify()
    assert found["driver.nvidia_smi"]["status"] == "fail"
    assert {check["cause"] for check in found.values() if check["status"] == "fail"} == {"stack"}


def test_another_failure_beside_it_stays_the_stacks(host: Host) -> None:
    host.write(SOFT, "blacklist nvidia\n")
    FAULTS["package-not-held"].apply(host)
    host.path(f"sys/bus/pci/devices/{at.ADDRESSES[1]}").rename(host.path("gone"))
    found = host.verify()
    causes = {id_: check["cause"] for id_, check in found.items() if check["status"] == "fail"}
    assert causes["driver.nvidia_smi"] == "host"
    assert (causes["packages.held"], causes["driver.gpu_count"]) == ("stack", "stack")
