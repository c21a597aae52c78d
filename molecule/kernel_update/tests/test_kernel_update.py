"""A newer kernel on the machine that converge installed: DKMS cannot build for it at first, and a rerun repairs that.

The tests run in order. apt installs the kernel as an administrator or Unattended-Upgrades would, without gpuhost.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.lab import vm_image

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
DRIVER = "580.126.16"
MAKEFILE = f"/usr/src/nvidia-{DRIVER}/Makefile"
FAULT = "no rule for this kernel (a fault of the test)"
GUARD = "/usr/local/lib/gpuhost/kernel-guard"
MODULES = "modules of kernel "
MODULE_BUILT = "driver.module_built"


@pytest.fixture(scope="module")
def newer() -> Path:
    """Return the directory of the newer kernel's packages."""
    return vm_image.ensure("debian-12").newer_kernel


@pytest.fixture(scope="module")
def release(newer) -> str:
    return (newer / "release").read_text().strip()


def root(host, command: str) -> str:
    with host.sudo():
        return host.run_expect([0], command).stdout.strip()


def report(reports: Path, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((reports / f"newest/kernel-update-hopper/{part}.json").read_text())
    return found


def reboot(host) -> None:
    before = root(host, "cat /proc/sys/kernel/random/boot_id")
    command = ["ansible", f"--inventory={SCENARIO / 'hosts.yml'}", "gpu_hosts", "-m", "ansible.builtin.reboot"]
    subprocess.run([*command, "-a", "reboot_timeout=1200"], cwd=PROJECT, check=True)
    assert root(host, "cat /proc/sys/kernel/random/boot_id") != before


def kernel(host) -> str:
    return host.run_expect([0], "uname -r").stdout.strip()


def assert_gpu_works(host) -> None:
    assert f"  {DRIVER}" in root(host, "cat /proc/driver/nvidia/version")
    answer = host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    assert (answer.rc, answer.stdout.strip()) == (0, DRIVER)


def guard_state(host) -> dict[str, str]:
    """Return the guard's variables in GRUB's environment."""
    lines = root(host, "grub-editenv list").splitlines()
    return dict(line.split("=", 1) for line in lines if line.startswith("gpuhost_"))


def guard_journal(host) -> str:
    """Return what the guard has said since the machine booted."""
    return root(host, "journalctl -b -t gpuhost-kernel-guard --no-pager")


def edit_version_magic(host, release: str, old: str, new: str) -> None:
    """Replace a word of the module's version magic; the kernel refuses a module whose magic is not its own.

    An `install` command in modprobe.d would not keep the module from loading: modprobe ignores it for a module with
    soft dependencies, such as NVIDIA's. Nor would another release in the magic: the kernel does not compare it where
    symbols have versions.
    """
    path = f"/lib/modules/{release}/updates/dkms/nvidia.ko"
    root(host, f"sed -i s/{old}/{new}/ {path}")
    assert new in root(host, f"modinfo -F vermagic {path}").split()


def first_entry(host) -> str:
    """Return the kernel of GRUB's first menu entry, which is its default unless something else was chosen."""
    return root(host, "sed -n 's|.*linux.*/vmlinuz-\\([^ ]*\\) .*|\\1|p' /boot/grub/grub.cfg").split()[0]


@pytest.fixture(scope="module")
def first_kernel(host, release) -> str:
    """Return the kernel with which the machine begins."""
    running = kernel(host)
    assert running != release
    assert first_entry(host) == running
    return running


def test_machine_begins_with_the_older_kernel_and_a_working_gpu(host, first_kernel):
    assert_gpu_works(host)


def test_kernel_arrives_and_dkms_fails_for_it(host, first_kernel, release, newer):
    ssh = ["ssh", "-F", str(PROJECT / ".lab" / SCENARIO.name / "ssh_config"), "kernel-update-hopper"]
    with subprocess.Popen(["tar", "-C", str(newer.parent), "-c", newer.name], stdout=subprocess.PIPE) as archive:
        subprocess.run([*ssh, "tar -C /tmp -x"], stdin=archive.stdout, check=True)
    # A driver that does not compile for a newer kernel. Its headers come last, so that the kernel itself is complete.
    root(host, f"sh -c \"echo '\\$(if \\$(filter {release},\\$(KERNELRELEASE)),\\$(error {FAULT}))' >> {MAKEFILE}\"")
    image = f"/tmp/{newer.name}/linux-image-{release}_*.deb"
    root(host, f"sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -y {image}'")
    with host.sudo():
        headers = host.run(f"sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -y /tmp/{newer.name}/*.deb'")
    print(headers.stdout, headers.stderr)
    log = root(host, f"cat /var/lib/dkms/nvidia/{DRIVER}/build/make.log")
    assert FAULT in log
    assert not root(host, f"find /lib/modules/{release} -name 'nvidia.ko*'")
    assert first_entry(host) == release


def test_verify_reports_drift_and_a_warning(host, first_kernel, release, playbook, reports):
    playbook("verify")
    assert MODULES + release in str(report(reports, "drift"))
    built = [check for check in report(reports, "verify")["checks"] if check["id"] == MODULE_BUILT]
    assert [check["status"] for check in built] == ["warn"]
    assert release in built[0]["found"]


def test_gpu_still_works_after_a_reboot(host, first_kernel):
    reboot(host)
    assert kernel(host) == first_kernel
    assert_gpu_works(host)
    assert f"kernel {first_kernel} stays the default" in guard_journal(host)


def test_rerun_builds_the_module_once_that_is_possible(host, release, playbook, reports):
    root(host, f"sed -i '/{FAULT.split(' (')[0]}/d' {MAKEFILE}")
    playbook("gpu_host")
    assert MODULES + release in str(report(reports, "drift"))
    assert root(host, f"find /lib/modules/{release} -name 'nvidia.ko*'")
    assert root(host, "dpkg --audit") == ""
    playbook("verify")
    assert report(reports, "drift") == {}


def test_grub_counts_the_boots_of_a_kernel_that_does_not_load_its_module(host, first_kernel, release):
    assert guard_state(host)["gpuhost_tries"] == "3"
    edit_version_magic(host, release, "mod_unload", "xxx_unload")
    reboot(host)
    assert kernel(host) == release
    assert not host.file("/sys/module/nvidia").exists
    assert guard_state(host)["gpuhost_tries"] == "2"
    assert "after 2 more boots GRUB boots the kernel before it" in guard_journal(host)


def test_the_old_kernel_returns_when_no_boot_is_left(host, first_kernel, release):
    root(host, "grub-editenv - set gpuhost_tries=0")  # in place of two more boots, which take minutes here
    edit_version_magic(host, release, "xxx_unload", "mod_unload")
    reboot(host)
    assert kernel(host) == first_kernel
    assert_gpu_works(host)
    assert f"kernel {release} was booted 3 times and did not load NVIDIA's module" in guard_journal(host)


def test_kernel_becomes_the_default_once_its_module_loads(host, first_kernel, release):
    root(host, f"{GUARD} --off")
    assert f"kernel {release} has 3 boots" in root(host, GUARD)
    reboot(host)
    assert kernel(host) == release
    assert_gpu_works(host)
    assert f"kernel {release} loads NVIDIA's module: it is the default now" in guard_journal(host)
    assert guard_state(host) == {}
