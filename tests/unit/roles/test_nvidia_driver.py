"""The driver role's parts that need no host: which initramfs is rebuilt, and who is never rebooted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = PROJECT / "roles/nvidia_driver/files/rebuild_initramfs.sh"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOUVEAU = "usr/lib/modules/6.1.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n"
KEPT_AWAY = "etc/modprobe.d/gpuhost-nouveau.conf\n"
# The real ones: lsinitramfs lists what is packed; update-initramfs packs what lies in /etc/modprobe.d, too.
PROGRAMS = {
    "lsinitramfs": 'echo "read $1" >> "$LOG"; [ -s "$1" ] || exit 1; cat "$1"',
    "update-initramfs": 'echo "$*" >> "$LOG"; echo etc/modprobe.d/gpuhost-nouveau.conf >> "$BOOT/initrd.img-$3"',
}


class Boot:
    """A /boot whose images are their own listings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.stamp = folder / "boot", folder / "log", folder / "state/stamp"
        self.folder.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        for name, body in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.programs / name).chmod(0o755)

    def image(self, kernel: str, listing: str) -> None:
        (self.folder / f"initrd.img-{kernel}").write_text(listing)

    def run(self) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "LOG": str(self.log), "BOOT": str(self.folder)}
        command = ["bash", "-s", str(self.folder), str(self.stamp)]
        return subprocess.run(command, input=SCRIPT.read_text(), env=environment, capture_output=True, text=True)

    def said(self) -> list[str]:
        """What was rebuilt; an error ends the test."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        return [Path(line.split()[1]).name for line in done.stdout.splitlines() if line.startswith("rebuilt")]

    @property
    def called(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    return Boot(tmp_path)


def test_only_an_initramfs_that_would_load_nouveau_is_rebuilt(boot):
    boot.image("6.1", "bin/sh\n" + NOUVEAU)
    boot.image("6.2", "bin/sh\n")
    boot.image("6.3", NOUVEAU + KEPT_AWAY)
    assert boot.said() == ["initrd.img-6.1"]
    assert "-u -k 6.1" in boot.called


def test_what_was_found_good_is_not_read_again_until_it_changes(boot):
    boot.image("6.1", NOUVEAU)
    boot.image("6.2", "bin/sh\n")
    assert boot.said() == ["initrd.img-6.1"]
    assert boot.said() == []
    assert boot.called == []
    boot.image("6.2", NOUVEAU)
    assert boot.said() == ["initrd.img-6.2"]


def test_a_run_that_was_killed_before_it_came_to_the_end_is_made_up_for(boot):
    boot.image("6.1", NOUVEAU)
    (boot.programs / "update-initramfs").rename(boot.programs / "away")
    assert boot.run().returncode != 0
    assert not boot.stamp.exists()
    (boot.programs / "away").rename(boot.programs / "update-initramfs")
    assert boot.said() == ["initrd.img-6.1"]


def test_an_initramfs_that_cannot_be_read_is_an_error(boot):
    boot.image("6.1", "")
    assert boot.run().returncode != 0


def test_a_host_without_an_initramfs_needs_none(boot):
    assert boot.said() == []


# Hosts that may not be rebooted: what Ansible knows of each, and what is said of it.
KEPT = {
    "local": ({"ansible_connection": "local", "nvidia_driver_reboot": "if_needed"}, "it is the control node"),
    "itself": ({"ansible_connection": "ssh", "nvidia_driver_reboot": "if_needed"}, "it is the control node"),
    "never": ({"ansible_connection": "ssh", "nvidia_driver_reboot": "never"}, "nvidia_driver_reboot is never"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run says of all of them; in check mode, so that a broken condition would not restart this machine."""
    folder = tmp_path_factory.mktemp("reboot")
    hosts = {}
    for name, (known, _) in KEPT.items():
        # Over SSH to itself: nothing but the boot id tells.
        boot_id = BOOT_ID.read_text().strip() if name == "itself" else "of another machine"
        hosts[name] = {
            **known,
            "__nvidia_driver_module": {"reboot_needed": True, "reasons": ["nouveau is loaded"], "boot_id": boot_id},
        }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(PROJECT / "roles/nvidia_driver/vars/main.yml")],
        "vars": {
            "nvidia_driver_version": "595.71.05",
            "nvidia_driver_kernel_modules": "open",
            "nvidia_driver_reboot_timeout": 1,
        },
        "tasks": [{"include_tasks": str(PROJECT / "roles/nvidia_driver/tasks/reboot.yml")}],
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--check", "-i", "hosts.json", "play.yml"]
    # Away from the project's settings: no report is to be written of this.
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("host", KEPT)
def test_a_host_that_may_not_be_rebooted_is_told_what_is_left(said: str, host: str) -> None:
    needs = "needs a reboot before the module of driver 595.71.05 can be loaded (nouveau is loaded)"
    told = f"{host} {needs}, and this run may not reboot it ({KEPT[host][1]}). Reboot it, then run the same command"
    assert told in said
    assert "Reboot into the new driver" not in said
