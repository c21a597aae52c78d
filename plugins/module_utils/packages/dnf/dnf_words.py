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
HISTORY = "/var/log/dnf.log"
# A file below these directories changes what dnf may install.
SOURCES: Tuple[str, ...] = ("/etc/yum.repos.d/", "/etc/pki/rpm-gpg/")
FINISH = (
    "run sudo dnf remove --duplicates, and sudo dnf reinstall NAME for a package that is half-configured; "
    "then run this again"
)
REPAIR = "run sudo dnf check --dependencies, and install or remove what it names; then run this again"


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
