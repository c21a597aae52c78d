"""The disk of the lab's virtual machines: the containers' packages, a kernel, and the tools to build modules for it.

It is built by mmdebstrap from Debian's packages, in a directory named after a digest of its recipe, and laid out as
Debian's installer does on EFI: an EFI system partition with shim and GRUB, both signed, and a root file system. The
kernel is signed as well. It is the one before the newest that the archive offers; the packages of the newest one are
in the same directory, for tests that update the kernel.
"""

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.doubles.lab.images import ADMINISTRATOR, DEBIAN_SUITES, IDENTITY, PACKAGES, image_lock
from tests.doubles.lab.repository import cache

# The tools that DKMS needs, so that a machine needs no archive but the lab's, and the boot loader.
TOOLS = ["dkms", "gcc", "initramfs-tools", "make", "udev", "zstd"]
BOOT = ["grub-efi-amd64", "grub-efi-amd64-signed", "mokutil", "shim-signed"]
# File systems' identifiers, fixed so that the boot loader and /etc/fstab can name them before they exist.
ROOT_UUID, EFI_UUID = "6b2a3f0e-55d1-4a0c-9a3c-8f0a4c1d7e21", "7A3C-19E4"
EFI_MIB, ROOT_MIB, DISK_MIB = 64, 6144, 64 + 6144 + 2
COMMAND_LINE = "console=ttyS0 net.ifnames=0"
# The kernel for virtual machines: the newest one, that before it, and headers. apt decides which they are.
KERNELS = r"""set -eu
export DEBIAN_FRONTEND=noninteractive
newest=$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: linux-image-//p')
previous=$(apt-cache search --names-only '^linux-image-[0-9].*-cloud-amd64$' |
  sed -n 's/^linux-image-\([^ ]*\) .*(signed)$/\1/p' | sort -V | sed "/^$newest$/Q" | tail -n 1)
test -n "$previous" || { echo "apt offers no kernel older than $newest" >&2; exit 1; }
install() { apt-get install -y --no-install-recommends "$@" </dev/null; }
install "linux-image-$previous" "linux-headers-$previous"
apt-get clean
install --download-only "linux-image-$newest" "linux-headers-$newest"
mkdir /newer-kernel
mv /var/cache/apt/archives/*.deb /newer-kernel
echo "$newest" > /newer-kernel/release
"""
# The fixed addresses of QEMU's user network.
NETWORK = """\
printf '[Match]\\nName=eth0\\n[Network]\\nAddress=10.0.2.15/24\\nGateway=10.0.2.2\\n' > /etc/systemd/network/lab.network
systemctl enable systemd-networkd.service >/dev/null 2>&1
echo 'nameserver 10.0.2.3' > /etc/resolv.conf
"""
# No Debian archive: reading its package lists takes minutes on an emulated processor.
ARCHIVES = ": > /etc/apt/sources.list\n"
# GRUB's menu needs the disk that it is for, so the first boot has one entry by hand, and then runs update-grub.
GRUB = f"""\
printf 'UUID={ROOT_UUID} / ext4 defaults 0 1\\nUUID={EFI_UUID} /boot/efi vfat umask=0077,nofail 0 1\\n' > /etc/fstab
sed -i -e 's/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=0/' -e 's/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX="{COMMAND_LINE}"/' \
  -e 's/^GRUB_CMDLINE_LINUX_DEFAULT=.*/GRUB_CMDLINE_LINUX_DEFAULT=""/' /etc/default/grub
echo GRUB_DISABLE_OS_PROBER=true >> /etc/default/grub
mkdir -p /boot/efi /boot/grub
printf 'linux /vmlinuz root=UUID={ROOT_UUID} ro {COMMAND_LINE}\\ninitrd /initrd.img\\nboot\\n' > /boot/grub/grub.cfg
"""
SETUP = ADMINISTRATOR + NETWORK + ARCHIVES + GRUB + IDENTITY
# What grub-install writes beside GRUB on Debian.
EFI_GRUB = f"search.fs_uuid {ROOT_UUID} root\nset prefix=($root)'/boot/grub'\nconfigfile $prefix/grub.cfg\n"
# At the path that firmware tries without a boot entry: shim, which starts the GRUB beside it, whose settings are in
# EFI/debian, a name that its signed program contains.
EFI_FILES = {
    "EFI/BOOT/BOOTX64.EFI": "/usr/lib/shim/shimx64.efi.signed",
    "EFI/BOOT/mmx64.efi": "/usr/lib/shim/mmx64.efi.signed",
    "EFI/BOOT/grubx64.efi": "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
}


@dataclass(frozen=True)
class Disk:
    """The directory of a disk image, its kernel, and the packages of a newer kernel."""

    folder: Path
    distribution: str

    @property
    def image(self) -> Path:
        return self.folder / "disk.raw"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def newer_kernel(self) -> Path:
        """The directory of a newer kernel's packages; its file `release` has the name that `uname -r` would print."""
        return self.folder / "newer-kernel"


def ensure(distribution: str) -> Disk:
    """Return the disk of a distribution, and build it if necessary. Raises SystemExit."""
    if distribution not in DEBIAN_SUITES:
        known = ", ".join(DEBIAN_SUITES)
        raise SystemExit(f"lab: cannot build a virtual machine of '{distribution}'; set lab_image to one of {known}")
    packages = sorted({*PACKAGES, *TOOLS, *BOOT})
    recipe = json.dumps([distribution, packages, KERNELS, SETUP, EFI_FILES, EFI_GRUB, DISK_MIB])
    disk = Disk(cache() / "vm" / f"{distribution}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}", distribution)
    with image_lock():
        if not disk.image.exists():
            _build(disk, packages)
    return disk


def _build(disk: Disk, packages: list[str]) -> None:
    print(f"lab: building the disk of the {disk.distribution} virtual machines (three minutes)", flush=True)
    disk.folder.mkdir(parents=True, exist_ok=True)
    # Temporary names, so that an interrupted build is not mistaken for a disk.
    part, root, efi = (disk.folder / name for name in ("part.raw", "root.ext2", "efi.fat"))
    kernels, setup = disk.folder / "kernels.sh", disk.folder / "setup.sh"
    kernels.write_text(KERNELS)
    setup.write_text(SETUP)
    efi_files = {name: disk.folder / name.rpartition("/")[2] for name in EFI_FILES}
    _run(
        "mmdebstrap", "--quiet", "--variant=minbase", "--format=ext2", f"--include={','.join(packages)}",
        f'--customize-hook=chroot "$1" sh -s < "{kernels}"',
        f"--customize-hook=copy-out /newer-kernel {disk.folder}",
        '--customize-hook=rm -r "$1/newer-kernel"',
        f'--customize-hook=chroot "$1" sh -s < "{setup}"',
        f"--customize-hook=download /vmlinuz {disk.kernel}",
        *(f"--customize-hook=download {EFI_FILES[name]} {path}" for name, path in efi_files.items()),
        DEBIAN_SUITES[disk.distribution], str(root),
    )  # fmt: skip
    _run("truncate", f"--size={ROOT_MIB}M", str(root))
    _run("e2fsck", "-fy", str(root), good=(0, 1))
    _run("resize2fs", str(root))
    # With a journal the machine boots again after it was switched off.
    _run("tune2fs", "-j", "-U", ROOT_UUID, str(root))
    _make_efi_partition(efi, efi_files)
    _run("truncate", f"--size={DISK_MIB}M", str(part))
    layout = f"label: gpt\nstart=1MiB, size={EFI_MIB}MiB, type=U\nstart={1 + EFI_MIB}MiB, size={ROOT_MIB}MiB, type=L\n"
    _run("sfdisk", "--quiet", str(part), stdin=layout)
    for source, start in ((efi, 1), (root, 1 + EFI_MIB)):
        _run("dd", f"if={source}", f"of={part}", "bs=1M", f"seek={start}", "conv=notrunc,sparse")
        source.unlink()
    part.rename(disk.image)


def _make_efi_partition(efi: Path, files: dict[str, Path]) -> None:
    efi.unlink(missing_ok=True)
    _run("truncate", f"--size={EFI_MIB}M", str(efi))
    _run("mkfs.vfat", "-i", EFI_UUID.replace("-", ""), str(efi))
    _run("mmd", "-i", str(efi), "::EFI", "::EFI/BOOT", "::EFI/debian")
    for name, path in files.items():
        _run("mcopy", "-i", str(efi), str(path), f"::{name}")
    _run("mcopy", "-i", str(efi), "-", "::EFI/debian/grub.cfg", stdin=EFI_GRUB)


def _run(*command: str, good: tuple[int, ...] = (0,), stdin: str = "") -> None:
    try:
        result = subprocess.run(command, input=stdin, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SystemExit(
            f"lab: virtual machines need {error.filename}; on Debian or Ubuntu: sudo apt-get install -y "
            "--no-install-recommends mmdebstrap genext2fs e2fsprogs fdisk dosfstools mtools"
        ) from None
    if result.returncode not in good:
        raise SystemExit(f"lab: {command[0]} ended {result.returncode}:\n{(result.stderr or result.stdout)[-2000:]}")
