# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What messages say of apt and dpkg, and what people type. Runs on both sides; no I/O."""

from __future__ import annotations

from typing import Iterable, Tuple

NAME = "apt"
DATABASE = "dpkg's status"
INTERRUPTED = "dpkg was interrupted"
CONFIGURE = "dpkg --configure -a"
CHECK = "apt-get check"
REFRESH = "apt-get update"
SHOW_HOLDS = "apt-mark showhold"
REMOVE_UNNEEDED = "apt-get autoremove --purge"
REMOVE_DOWNLOADS = "apt-get clean"
HISTORY = "/var/log/apt/history.log"
# A file below these directories changes what apt may install.
SOURCES: Tuple[str, ...] = ("/etc/apt/sources.list.d/", "/etc/apt/keyrings/")
FINISH = (
    "run sudo dpkg --configure -a; sudo apt-get --fix-broken install, which shows what it would install and remove, "
    "and asks, where that names a dependency; and sudo apt-get install --reinstall NAME for a package that is "
    "half-installed; then run this again"
)
REPAIR = (
    "run sudo apt-get --fix-broken install, which shows what it would install and remove, and asks; then run this again"
)

KERNELS: Tuple[str, ...] = ("linux-image-*",)
KERNEL_OPTIONS = "GRUB_CMDLINE_LINUX and GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, sudo update-grub"
START_ONCE = "grub-reboot"
START = ""
INITRAMFS = "update-initramfs -u"
LIST_INITRAMFS = "lsinitramfs /boot/initrd.img-$(uname -r)"


def headers(release: str) -> str:
    """Return the package with the headers of a kernel release."""
    return "linux-headers-" + release


def headers_of_meta(meta: str) -> str:
    """Return the metapackage of headers beside that of kernels, such as linux-headers-generic."""
    return meta.replace("linux-image-", "linux-headers-", 1)


def compiler(gcc: int) -> str:
    """Return the package of a compiler: an archive has several majors of gcc."""
    return "gcc-%d" % gcc


def release(names: Iterable[str]) -> str:
    """Return what to do about packages that somebody else holds."""
    held = list(names)
    return "%s: on hold, which gpuhost did not set. To let it change them, run sudo %s." % (
        ", ".join(held),
        unhold(held),
    )


def unhold(names: Iterable[str]) -> str:
    """Return the command that releases holds."""
    return "apt-mark unhold %s" % " ".join(names)


def hold(names: Iterable[str]) -> str:
    """Return the command that holds packages."""
    return "apt-mark hold %s" % " ".join(names)


def install(names: Iterable[str]) -> str:
    """Return the command that installs packages."""
    return "apt-get install %s" % " ".join(names)


def remove(names: Iterable[str]) -> str:
    """Return the command that removes packages."""
    return "apt-get remove %s" % " ".join(names)


def owner(paths: Iterable[str]) -> str:
    """Return the command that names the packages of files."""
    return "dpkg -S %s" % " ".join(paths)
