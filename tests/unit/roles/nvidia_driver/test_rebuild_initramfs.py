"""Which initramfs images are rebuilt without nouveau."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = PROJECT / "roles/nvidia_driver/files/rebuild_initramfs.sh"
NOUVEAU = "usr/lib/modules/6.1.0/kernel/drivers/gpu/drm/nouveau/nouveau.ko\n"
BLACKLIST = "etc/modprobe.d/gpuhost-nouveau.conf\n"
# As the real ones: lsinitramfs lists the contents, and update-initramfs adds the files in /etc/modprobe.d.
PROGRAMS = {
    "lsinitramfs": 'echo "read $1" >> "$LOG"; [ -s "$1" ] || exit 1; cat "$1"',
    "update-initramfs": 'echo "$*" >> "$LOG"; echo etc/modprobe.d/gpuhost-nouveau.conf >> "$BOOT/initrd.img-$3"',
}
# As those of dracut 059 and 106: lsinitrd lists like ls -l, and dracut leaves out what omit_drivers names.
DRACUT = {
    "lsinitrd": 'echo "read $1" >> "$LOG"; [ -s "$1" ] || exit 1; sed "s/^/-rw-r--r-- 1 0 0 9 Jan 1 00:00 /" "$1"',
    "dracut": 'echo "dracut $*" >> "$LOG"; grep -v nouveau.ko "$3" > "$3.new"; mv "$3.new" "$3"',
}


class Boot:
    """A /boot whose images are their own listings."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.stamp = folder / "boot", folder / "log", folder / "state/stamp"
        self.folder.mkdir()
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.install(PROGRAMS)

    def install(self, programs: dict[str, str]) -> None:
        """Install these programs; none of the machine's own is found."""
        for name in ("bash", "cat", "dirname", "grep", "mkdir", "mv", "sed", "sh", "stat"):
            (self.programs / name).unlink(missing_ok=True)
            (self.programs / name).symlink_to(str(shutil.which(name)))
        for name, body in programs.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.programs / name).chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.programs / name).unlink()

    def image(self, kernel: str, listing: str, name: str = "initrd.img-{}") -> Path:
        """Install a kernel and its image, both in one step."""
        (self.folder / f"vmlinuz-{kernel}").write_text("")
        image = self.folder / name.format(kernel)
        image.write_text(listing)
        return image

    def run(self) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        environment = {"PATH": str(self.programs), "LOG": str(self.log), "BOOT": str(self.folder)}
        command = ["bash", "-s", str(self.folder), str(self.stamp)]
        return subprocess.run(command, input=SCRIPT.read_text(), env=environment, capture_output=True, text=True)

    def rebuilt(self) -> list[str]:
        """Return the images that a run rebuilds."""
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
    boot.image("6.3", NOUVEAU + BLACKLIST)
    assert boot.rebuilt() == ["initrd.img-6.1"]
    assert "-u -k 6.1" in boot.called


@pytest.mark.parametrize("name", ["nova_core", "nova-core"])
def test_nouveaus_successor_is_looked_for_as_well(boot, name):
    """nova_core of Linux 6.15, in drivers/gpu/nova-core."""
    boot.image("6.15", f"usr/lib/modules/6.15.0/kernel/drivers/gpu/nova-core/{name}.ko\n")
    assert boot.rebuilt() == ["initrd.img-6.15"]


def test_image_without_nouveau_is_not_read_again_until_it_changes(boot):
    boot.image("6.1", NOUVEAU)
    boot.image("6.2", "bin/sh\n")
    assert boot.rebuilt() == ["initrd.img-6.1"]
    assert boot.rebuilt() == []
    assert boot.called == []
    boot.image("6.2", NOUVEAU)
    assert boot.rebuilt() == ["initrd.img-6.2"]


def test_next_run_rebuilds_what_an_interrupted_one_did_not(boot):
    boot.image("6.1", NOUVEAU)
    boot.install({"update-initramfs": "exit 1"})
    assert boot.run().returncode != 0
    assert not boot.stamp.exists()
    boot.install(PROGRAMS)
    assert boot.rebuilt() == ["initrd.img-6.1"]


def test_an_initramfs_that_cannot_be_read_is_rebuilt_once(boot):
    """A power failure leaves an empty one; lsinitramfs ends with status 1 for it."""
    boot.image("6.1", "")
    assert boot.rebuilt() == ["initrd.img-6.1"]
    assert boot.called == [f"read {boot.folder}/initrd.img-6.1", "-u -k 6.1", f"read {boot.folder}/initrd.img-6.1"]
    assert boot.rebuilt() == []


def test_an_initramfs_that_a_rebuild_does_not_repair_is_an_error(boot):
    boot.image("6.1", "")
    boot.install({"update-initramfs": 'echo "$*" >> "$LOG"'})
    assert boot.run().returncode != 0
    assert boot.called.count("-u -k 6.1") == 1
    assert not boot.stamp.exists()


@pytest.mark.parametrize("suffix", [".old-dkms", ".bak", ".dpkg-bak", ".new"])
def test_a_copy_of_an_initramfs_is_of_no_kernel(boot, suffix):
    """DKMS 2.8 of Ubuntu 22.04 and update-initramfs leave them: mkinitramfs would make one without any module."""
    boot.image("6.1", NOUVEAU + BLACKLIST)
    (boot.folder / f"initrd.img-6.1{suffix}").write_text(NOUVEAU)
    assert boot.rebuilt() == []
    assert boot.called == [f"read {boot.folder}/initrd.img-6.1"]


def test_host_without_an_initramfs_needs_none(boot):
    assert boot.rebuilt() == []


# dracut ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dracut(boot: Boot) -> Boot:
    boot.remove(*PROGRAMS)
    boot.install(DRACUT)
    return boot


@pytest.mark.parametrize("name", ["initrd.img-6.1", "initramfs-6.1.img"])
def test_dracut_rebuilds_in_place_of_initramfs_tools(dracut, name):
    image = dracut.image("6.1", "bin/sh\n" + NOUVEAU, name.replace("6.1", "{}"))
    dracut.image("6.2", "bin/sh\n")
    assert dracut.rebuilt() == [name]
    assert f"dracut --quiet --force {image} 6.1" in dracut.called
    assert dracut.rebuilt() == []
    assert dracut.called == []


def test_the_core_of_dracut_beside_initramfs_tools_rebuilds_nothing(boot):
    boot.install(DRACUT)
    boot.image("6.1", NOUVEAU)
    assert boot.rebuilt() == ["initrd.img-6.1"]
    assert boot.called == [f"read {boot.folder}/initrd.img-6.1", "-u -k 6.1"]


def test_the_listing_of_initramfs_tools_beside_dracut_is_not_used(dracut):
    dracut.install({"lsinitramfs": "exit 1"})
    dracut.image("6.1", NOUVEAU)
    assert dracut.rebuilt() == ["initrd.img-6.1"]


def test_host_with_neither_tool_is_told_so(boot):
    boot.remove(*PROGRAMS)
    boot.image("6.1", NOUVEAU)
    done = boot.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "neither update-initramfs nor dracut" in done.stdout
    assert not boot.stamp.exists()
