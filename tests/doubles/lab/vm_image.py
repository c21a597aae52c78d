"""The disk of the lab's virtual machines: the containers' packages, a kernel, and the tools to build modules for it.

It is built by mmdebstrap from Debian's packages (with genext2fs and e2fsprogs), in a directory named after a digest of
its recipe. There is no boot loader: QEMU starts the kernel and initramfs in the same directory.
"""

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.doubles.lab.images import ADMINISTRATOR, DEBIAN_SUITES, IDENTITY, PACKAGES, image_lock
from tests.doubles.lab.repository import cache

# The kernel for virtual machines and the tools that DKMS needs, so that a machine needs no archive but the lab's.
KERNEL = ["dkms", "gcc", "initramfs-tools", "linux-headers-cloud-amd64", "linux-image-cloud-amd64", "make", "udev"]
SIZE = "6G"
# The fixed addresses of QEMU's user network.
NETWORK = """\
printf '[Match]\\nName=eth0\\n[Network]\\nAddress=10.0.2.15/24\\nGateway=10.0.2.2\\n' > /etc/systemd/network/lab.network
systemctl enable systemd-networkd.service >/dev/null 2>&1
echo 'nameserver 10.0.2.3' > /etc/resolv.conf
"""
# No Debian archive: reading its package lists takes minutes on an emulated processor.
ARCHIVES = ": > /etc/apt/sources.list\n"
SETUP = ADMINISTRATOR + NETWORK + ARCHIVES + IDENTITY


@dataclass(frozen=True)
class Disk:
    """The directory of a root file system and its kernel."""

    folder: Path
    distribution: str

    @property
    def root(self) -> Path:
        return self.folder / "root.ext4"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initrd.img"


def ensure(distribution: str) -> Disk:
    """Return the disk of a distribution, and build it if necessary. Raises SystemExit."""
    if distribution not in DEBIAN_SUITES:
        known = ", ".join(DEBIAN_SUITES)
        raise SystemExit(f"lab: cannot build a virtual machine of '{distribution}'; set lab_image to one of {known}")
    packages = sorted({*PACKAGES, *KERNEL})
    recipe = json.dumps([distribution, packages, SETUP, SIZE])
    disk = Disk(cache() / "vm" / f"{distribution}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}", distribution)
    with image_lock():
        if not disk.root.exists():
            _build(disk, packages)
    return disk


def _build(disk: Disk, packages: list[str]) -> None:
    print(f"lab: building the disk of the {disk.distribution} virtual machines (two minutes)", flush=True)
    disk.folder.mkdir(parents=True, exist_ok=True)
    # A temporary name, so that an interrupted build is not mistaken for a disk.
    part, setup = disk.folder / "part.ext2", disk.folder / "setup.sh"
    setup.write_text(SETUP)
    _run(
        "mmdebstrap", "--quiet", "--variant=minbase", "--format=ext2", f"--include={','.join(packages)}",
        f'--customize-hook=chroot "$1" sh -s < "{setup}"',
        f"--customize-hook=download /vmlinuz {disk.kernel}",
        f"--customize-hook=download /initrd.img {disk.initramfs}",
        DEBIAN_SUITES[disk.distribution], str(part),
    )  # fmt: skip
    _run("truncate", f"--size={SIZE}", str(part))
    _run("e2fsck", "-fy", str(part), good=(0, 1))
    _run("resize2fs", str(part))
    # With a journal the machine boots again after it was switched off.
    _run("tune2fs", "-j", str(part))
    part.rename(disk.root)


def _run(*command: str, good: tuple[int, ...] = (0,)) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SystemExit(
            f"lab: virtual machines need {error.filename}; on Debian or Ubuntu: "
            "sudo apt-get install -y --no-install-recommends qemu-system-x86 mmdebstrap genext2fs e2fsprogs"
        ) from None
    if result.returncode not in good:
        raise SystemExit(f"lab: {command[0]} ended {result.returncode}:\n{(result.stderr or result.stdout)[-2000:]}")
