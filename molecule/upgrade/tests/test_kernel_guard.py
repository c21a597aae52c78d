"""A kernel arrives on a host with a published boot menu of Ubuntu: apt, dpkg, systemd and GRUB's environment are real.

Nothing boots here. The menu is tests/fixtures/grub/ubuntu-5.11.cfg, with the running kernel in place of its older one.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import distributions

pytestmark = pytest.mark.skipif(
    distributions.MANAGER == "dnf", reason="its packages are Debian's; BLS entries are in tests/unit"
)

SCENARIO = Path(__file__).resolve().parents[1]
PROJECT = SCENARIO.parents[1]
MENU = PROJECT / "tests/fixtures/grub/ubuntu-5.11.cfg"
OLD, NEW = "5.11.0-41-generic", "5.11.0-43-generic"
GUARD = "/usr/local/lib/gpuhost/kernel-guard"
UUID = "11111111-2222-3333-4444-555555555555"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 --yes --no-install-recommends"
FOLDER = "/srv/gpuhost-kernel"
# As packages of kernels do: linux-image-unsigned-*.postinst of Ubuntu, linux-image-*.postinst of Debian.
PACKAGE = f"""
set -eu
mkdir -p {FOLDER}/image/DEBIAN {FOLDER}/image/boot
echo image > {FOLDER}/image/boot/vmlinuz-{NEW}
printf '%s\\n' 'Package: linux-image-{NEW}' 'Version: 1' 'Architecture: all' 'Description: empty kernel of a test' \\
  'Maintainer: gpuhost <gpuhost@example.invalid>' > {FOLDER}/image/DEBIAN/control
printf '%s\\n' '#!/bin/sh' 'set -e' \\
  'run-parts --report --exit-on-error --arg={NEW} --arg=/boot/vmlinuz-{NEW} /etc/kernel/postinst.d' \\
  > {FOLDER}/image/DEBIAN/postinst
chmod 755 {FOLDER}/image/DEBIAN/postinst
dpkg-deb --build {FOLDER}/image {FOLDER}/linux-image-{NEW}_1_all.deb
"""
# What `modinfo -F version` reads of a module.
MODULE = """
set -eu
mkdir -p /lib/modules/{0}/updates/dkms
echo 'const char version[] __attribute__((section(".modinfo"))) = "version=580.95.05";' |
  gcc -x c -c -o /lib/modules/{0}/updates/dkms/nvidia.ko -
"""

Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def sh(as_root) -> Shell:
    """Return a function that runs a script as root and returns its output."""
    return lambda script: str(as_root.run_expect([0], "sh -c %s", script).stdout)


@pytest.fixture(scope="module")
def running(sh: Shell) -> str:
    return sh("uname -r").strip()


def role_tasks(guard: bool) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(SCENARIO / "kernel_guard.yml")]
    command += ["-i", str(SCENARIO / "hosts.yml"), "-e", f"nvidia_driver_kernel_guard={guard}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def guarded(sh: Shell, running: str) -> Iterator[None]:
    """Install the guard on the host with its menu, both kernels in it, but only the running one in /boot."""
    sh(f"{APT} update && {APT} install grub-common && mkdir -p /boot/grub && grub-editenv /boot/grub/grubenv create")
    counting = subprocess.run(["sh", PROJECT / "roles/nvidia_driver/files/07_gpuhost"], capture_output=True, text=True)
    begin = "### BEGIN /etc/grub.d/10_linux ###"
    menu = MENU.read_text().replace(OLD, running).replace(begin, counting.stdout + begin)
    sh(f"echo {shlex.quote(menu)} > /boot/grub/grub.cfg && grub-script-check /boot/grub/grub.cfg")
    sh(f"touch /boot/vmlinuz-{running}; {MODULE.format(running)}")
    role_tasks(True)
    sh(PACKAGE)
    yield
    role_tasks(False)
    sh(
        f"{APT} purge linux-image-{NEW} grub-common && "
        f"rm -r /boot/grub /boot/vmlinuz-{running} /lib/modules/{running} {FOLDER}"
    )


def state(sh: Shell) -> dict[str, str]:
    return dict(line.split("=", 1) for line in sh("grub-editenv /boot/grub/grubenv list").splitlines())


def held_back(running: str) -> dict[str, str]:
    entry = f"gnulinux-advanced-{UUID}>gnulinux-{running}-advanced-{UUID}"
    return {"gpuhost_kernel": NEW, "gpuhost_tries": "no-module", "gpuhost_entry": entry}


def test_without_python_a_new_kernel_changes_nothing_and_the_next_run_of_apt_decides(sh: Shell, running: str) -> None:
    """dpkg runs the guard while /usr/bin/python3 is away, as in the middle of its replacement."""
    python = "/usr/bin/python3"
    said = sh(f"mv {python} {python}.away && dpkg -i {FOLDER}/*.deb 2>&1; mv {python}.away {python}")
    assert "GRUB's menu cannot be read: python3 does not run /usr/local/lib/gpuhost/grub.py" in said
    assert "GRUB's menu cannot be read" in sh("journalctl -b -t gpuhost-kernel-guard --no-pager")
    assert state(sh) == {}
    assert sh(f"{GUARD} --next").strip() == NEW
    said = sh(f"{APT} install --reinstall grub-common")
    assert f"kernel {running} stays the default until it has one" in said
    assert state(sh) == held_back(running)
    assert sh(f"{GUARD} --next").strip() == running


def test_while_apt_replaces_python_a_new_kernel_without_the_module_does_not_become_the_default(
    sh: Shell, running: str
) -> None:
    sh(f"{GUARD} --off && {APT} purge linux-image-{NEW}")
    assert state(sh) == {}
    version = sh("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    python = f"python3-minimal python{version}-minimal libpython{version}-minimal"
    said = sh(f"{APT} install --reinstall {python} {FOLDER}/*.deb")
    assert f"Unpacking libpython{version}-minimal" in said
    assert f"kernel {NEW} has no module of NVIDIA's driver 580.95.05" in said
    assert state(sh) == held_back(running)
    assert sh(f"{GUARD} --next").strip() == running


def test_the_new_kernel_gets_its_boots_when_it_has_the_module(sh: Shell, running: str) -> None:
    sh(MODULE.format(NEW))
    try:
        assert f"kernel {NEW} has 3 boots to load NVIDIA's module" in sh(f"{APT} install --reinstall grub-common")
        assert state(sh) == {**held_back(running), "gpuhost_tries": "3"}
        assert sh(f"{GUARD} --next").strip() == NEW
    finally:
        sh(f"rm -r /lib/modules/{NEW}")
