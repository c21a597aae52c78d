# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What messages say of dnf and rpm, and what people type. Runs on both sides; no I/O."""

from __future__ import annotations

from typing import Iterable, Tuple

NAME = "dnf"
DATABASE = "rpm's database"
INTERRUPTED = "dnf was interrupted"
# rpm has no state between two versions: what is there twice, or whose scripts may not have run, is installed again.
CONFIGURE = "dnf remove --duplicates"
CHECK = "dnf check --dependencies"
REFRESH = "dnf makecache --refresh"
SHOW_HOLDS = "dnf versionlock list"
REMOVE_UNNEEDED = "dnf autoremove"
REMOVE_DOWNLOADS = "dnf clean packages"
VERSIONLOCK = "python3-dnf-plugin-versionlock"  # without it, dnf holds nothing
HISTORY = "/var/log/dnf.log"
# A file below these directories changes what dnf may install.
SOURCES: Tuple[str, ...] = ("/etc/yum.repos.d/", "/etc/pki/rpm-gpg/")
FINISH = (
    "run sudo dnf remove --duplicates, and sudo dnf reinstall NAME for a package that is half-configured; "
    "then run this again"
)
REPAIR = "run sudo dnf check --dependencies, and install or remove what it names; then run this again"

# What has the image of a kernel, of each flavour. kernel-core-VERSION where several are there, see rpm_database.
KERNELS: Tuple[str, ...] = ("kernel-core*", "kernel-*-core*")
KERNEL_OPTIONS = "sudo grubby --update-kernel=ALL --remove-args=OPTION, or --args=OPTION"
START_ONCE = "grub2-reboot"
START = "grubby --set-default /boot/vmlinuz-{kernel}"
INITRAMFS = "dracut --force --regenerate-all"
LIST_INITRAMFS = "lsinitrd"


def headers(release: str) -> str:
    """Return the package with the headers of a kernel release, such as kernel-64k-devel-... of ...aarch64+64k."""
    build, _plus, flavour = release.partition("+")
    return "kernel-%sdevel-%s" % (flavour + "-" if flavour else "", build)


def headers_of_meta(meta: str) -> str:
    """Return the metapackage of headers, which depends on a kernel and its headers in one version."""
    return "%s-devel-matched" % meta


def compiler(gcc: int) -> str:
    """Return the package of the compiler: AppStream has one gcc, and each kernel was built with it."""
    return "gcc"


def release(names: Iterable[str]) -> str:
    """Return what to do about packages that somebody else holds."""
    held = list(names)
    return (
        "%s: locked by versionlock, or excluded in /etc/dnf/dnf.conf, which gpuhost did not do. To let it change them, "
        "remove the exclude, or run sudo %s." % (", ".join(held), unhold(held))
    )


def unhold(names: Iterable[str]) -> str:
    """Return the command that releases holds."""
    return "dnf versionlock delete %s" % " ".join(names)


def hold(names: Iterable[str]) -> str:
    """Return the command that holds packages."""
    return "dnf versionlock add %s" % " ".join(names)


def install(names: Iterable[str]) -> str:
    """Return the command that installs packages."""
    return "dnf install %s" % " ".join(names)


def remove(names: Iterable[str]) -> str:
    """Return the command that removes packages."""
    return "dnf remove %s" % " ".join(names)


def owner(paths: Iterable[str]) -> str:
    """Return the command that names the packages of files."""
    return "rpm -qf %s" % " ".join(paths)
