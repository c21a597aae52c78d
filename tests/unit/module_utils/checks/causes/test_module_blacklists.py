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
PRIME = "usr/lib/modprobe.d/blacklist-nvidia.conf"
PRIME_SELECT = "alias nvidia off\nalias nvidia-drm off\nalias nvidia-modeset off\n"  # of nvidia-prime
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


def of_dracut(host: Host) -> None:
    host.write("proc/cmdline", "ro quiet rd.driver.blacklist=nvidia\n")
    host.write("run/modprobe.d/initramfsblacklist.conf", "blacklist nvidia\n")


def of_rocky(host: Host) -> None:
    host.write("etc/os-release", 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n')
    host.write("proc/cmdline", "ro quiet modprobe.blacklist=nvidia\n")


def write(name: str, text: str) -> Apply:
    return lambda host: host.write(name, text)


@pytest.mark.parametrize(
    "apply",
    [
        pytest.param(write(SOFT, "# for the passthrough test\nblacklist nouveau\nblacklist nvidia\n"), id="blacklist"),
        pytest.param(write(HARD, "install nvidia /bin/false\n"), id="install"),
        pytest.param(write("proc/cmdline", "ro quiet modprobe.blacklist=nvidia,nvidia_drm\n"), id="command-line"),
        pytest.param(write("proc/cmdline", "ro quiet module-blacklist=nvidia\n"), id="kernel-with-a-dash"),
        pytest.param(write(PRIME, PRIME_SELECT), id="prime-select"),
        pytest.param(write(SOFT, "alias nvidia off\nblacklist nvidia_drm\n"), id="alias-beside-another-module"),
        pytest.param(write(HARD, "# off\ninstall nvidia \\\n  /bin/false\n"), id="continued"),
        pytest.param(write(HARD, "install nvidia /bin/sh -c 'exit 1'\n"), id="another-command"),
        pytest.param(lambda host: of_dracut(host), id="dracut"),
        pytest.param(lambda host: of_rocky(host), id="enterprise-linux"),
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
        pytest.param(FAULTS["gpu-of-another-driver"].apply, id="nvidiafb"),
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


@pytest.mark.parametrize(
    "line",
    [  # as people have published them; none names NVRM
        "nvidia: disagrees about version of symbol module_layout",
        "nvidia: version magic '6.5.0-28-generic SMP preempt mod_unload modversions' should be '6.8.0-40-generic SMP "
        "preempt mod_unload modversions'",
        "nvidia: Unknown symbol sme_me_mask (err -22)",
        "nvidia_modeset: Unknown symbol nvidia_get_rm_ops (err -2)",
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "nvidia 0000:1a:00.0: enabling device (0000 -> 0003)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "module nvidia: .gnu.linkonce.this_module section size must match the kernel's built struct module size",
        "failed to validate module [nvidia] BTF: -22",
        "Loading of module with unavailable key is rejected",
        "Loading of unsigned module is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
@pytest.mark.parametrize("reader", ["journal", "dmesg"])
def test_a_blacklist_beside_an_attempt_to_load_is_not_the_reason(line: str, reader: str, host: Host) -> None:
    host.write(SOFT, "blacklist nvidia\n")
    log(host, line)
    if reader == "dmesg":
        host.remove(at.JOURNALCTL)
        host.program(at.DMESG, f"cat {host.path(at.KERNEL_LOG)}\n")
        host.write(at.KERNEL_LOG, f"[    0.000000] Linux version 6.1.0-56-amd64\n[   12.402112] {line}\n")
    assert causes_of_failures(host) == {"stack"}


@pytest.mark.parametrize(
    "line",
    [
        "Kernel command line: BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro nvidia-drm.modeset=1",
        "Module nvidia is blacklisted",  # module_blacklist at work
        "nvidia-gpu 0000:1a:00.3: i2c timeout error e0000000",  # i2c_nvidia_gpu
        "input: HDA NVidia HDMI/DP,pcm=3 as /devices/pci0000:00/sound/card1/input9",
        "vboxdrv: loading out-of-tree module taints kernel.",
        'audit: type=1400 apparmor="STATUS" name="nvidia_modprobe" comm="apparmor_parser"',
    ],
)
def test_a_line_that_is_of_another_module_is_no_attempt(line: str, host: Host) -> None:
    host.write(SOFT, "blacklist nvidia\n")
    log(host, line)
    assert causes_of_failures(host) == {"host"}


def causes_of_failures(host: Host) -> set[str]:
    found = host.verify()
    assert found["driver.nvidia_smi"]["status"] == "fail"
    return {check["cause"] for check in found.values() if check["status"] == "fail"}


def masked(host: Host, mask: Apply) -> None:
    host.write("usr/lib/modprobe.d/nv.conf", "blacklist nvidia\n")
    host.path("etc/modprobe.d").mkdir(exist_ok=True, parents=True)
    mask(host)


@pytest.mark.parametrize(
    "apply",
    [
        pytest.param(write(SOFT, "blacklist nvidia_drm\n"), id="drm"),
        pytest.param(write(SOFT, "blacklist nvidia-peermem\nblacklist nvidia_uvm\n"), id="peermem-and-uvm"),
        pytest.param(write(SOFT, "install nvidia_peermem /bin/true\n"), id="install-of-peermem"),
        pytest.param(write(SOFT, "blacklist nvidia-current\n"), id="of-debians-file-name"),
        pytest.param(write(SOFT, "alias nvidia-drm off\n"), id="alias-of-drm"),
        pytest.param(write(SOFT, "install nvidia /bin/true && /sbin/modprobe -i nvidia\n"), id="a-command-that-loads"),
        pytest.param(lambda host: masked(host, write("etc/modprobe.d/nv.conf", "# ours\n")), id="overridden"),
        pytest.param(
            lambda host: masked(host, lambda host: host.path("etc/modprobe.d/nv.conf").symlink_to("/dev/null")),
            id="masked",
        ),
        pytest.param(write("proc/cmdline", "ro rd.driver.blacklist=nvidia\n"), id="initramfs-tools"),
        pytest.param(write("proc/cmdline", "ro module_blacklist=nvidia_drm\n"), id="option-of-drm"),
        pytest.param(write("proc/cmdline", "module_blacklist=nvidia module_blacklist=nouveau\n"), id="not-the-last"),
    ],
)
def test_a_setting_that_lets_the_module_load_is_not_the_reason(apply: Apply, host: Host) -> None:
    apply(host)
    assert causes_of_failures(host) == {"stack"}


def test_another_failure_beside_it_stays_the_stacks(host: Host) -> None:
    host.write(SOFT, "blacklist nvidia\n")
    FAULTS["package-not-held"].apply(host)
    host.path(f"sys/bus/pci/devices/{at.ADDRESSES[1]}").rename(host.path("gone"))
    found = host.verify()
    causes = {id_: check["cause"] for id_, check in found.items() if check["status"] == "fail"}
    assert causes["driver.nvidia_smi"] == "host"
    assert (causes["packages.held"], causes["driver.gpu_count"]) == ("stack", "stack")
