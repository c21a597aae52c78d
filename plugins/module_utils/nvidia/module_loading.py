# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what keeps the kernel from loading a module: kernel.modules_disabled, and enforced signatures.

Runs on the managed host. Secure Boot enforces signatures, too; secure_boot.py reads it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

MODULES_DISABLED = "/proc/sys/kernel/modules_disabled"  # 1: until the next boot (sysctl/kernel.rst of the kernel)
COMMAND_LINE = "/proc/cmdline"
# sysctl.d(5): of files with one name the first directory's counts; /etc/sysctl.conf comes last (sysctl(8), --system).
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
SYSCTL_FILE = "/etc/sysctl.conf"
# Y if a kernel option, the kernel's configuration, IMA or somebody since the boot enforces signatures; missing where
# the kernel checks none (kernel/module/signing.c), and where sysfs is.
SIGNATURES = "/sys/module/module/parameters/sig_enforce"
LOCKDOWN = "/sys/kernel/security/lockdown"  # such as "none [integrity] confidentiality" (kernel_lockdown(7))
CONFIGURATION = "/boot/config-%s"
_SETTING = re.compile(r"^\s*-?\s*kernel[./]modules_disabled\s*=\s*(\S*)", re.MULTILINE)
_OPTION = re.compile(r"(?:^|\s)(sysctl[./]kernel[./]modules_disabled=(?!0(?:\s|$))\S+)")
_ENFORCING = re.compile(r"(?:^|\s)(module\.sig_enforce(?:=[1yYtT]\w*|=[oO][nN])?)(?=\s|$)")  # kstrtobool
_LOCKING = re.compile(r"(?:^|\s)(lockdown=(?:integrity|confidentiality))(?=\s|$)")
_LOCKED = re.compile(r"\[(integrity|confidentiality)\]")
_ENFORCED = re.compile(r"^CONFIG_MODULE_SIG_FORCE=y$", re.MULTILINE)
_CHECKED = re.compile(r"^CONFIG_MODULE_SIG=y$", re.MULTILINE)
_BORN_LOCKED = re.compile(r"^CONFIG_LOCK_DOWN_KERNEL_FORCE_(?:INTEGRITY|CONFIDENTIALITY)=y$", re.MULTILINE)


def disabled(root: str) -> dict[str, Any] | None:
    """Return what has the kernel load no module any more (`by`: files and kernel options); None if it loads them.

    `by` is empty where a program sets it, as a service may do after the boot.
    """
    if (files.read_text(root, MODULES_DISABLED) or "0").strip() == "0":
        return None
    option = _OPTION.search(files.read_text(root, COMMAND_LINE) or "")
    return {"by": [*_sysctl_files(root), *([option.group(1)] if option else [])]}


def _sysctl_files(root: str) -> list[str]:
    """Return the files that disable modules at each boot: all of them, unless a later one says otherwise."""
    settings: dict[str, str] = {}
    for directory in SYSCTL_DIRECTORIES:
        for name in files.names(root, directory):
            if name.endswith(".conf"):
                settings.setdefault(name, "%s/%s" % (directory, name))
    found, last = [], "0"
    for path in [*(settings[name] for name in sorted(settings)), SYSCTL_FILE]:
        target = files.resolve(root, path)
        if target is None or target in found or not os.path.isfile(files.under(root, target)):
            continue
        values = _SETTING.findall(files.read_text(root, target) or "")
        if values:
            last = values[-1]
            found += [target] if last != "0" else []
    return found if last != "0" else []


def signatures_enforced(root: str, running: str, others: Iterable[str] = ()) -> dict[str, list[str]] | None:
    """Return what has the kernel load nothing but modules with a trusted signature (`by`), None if nothing does.

    By kernel options, by "OPTION in FILE" of a kernel's configuration, or else by the file that says so. others: the
    kernels that may be booted next, of which the configuration alone counts.
    """
    options = files.read_text(root, COMMAND_LINE) or ""
    state, locked = files.read_text(root, SIGNATURES), files.read_text(root, LOCKDOWN) or ""
    by: list[str] = []
    if state is None:
        configuration = files.read_text(root, CONFIGURATION % running)
        if configuration is None or _CHECKED.search(configuration):
            by += _causes(root, options, running, _ENFORCING, _ENFORCED)
    elif state.strip() == "Y":
        by += _causes(root, options, running, _ENFORCING, _ENFORCED) or [SIGNATURES]
    if _LOCKED.search(locked):
        by += _causes(root, options, running, _LOCKING, _BORN_LOCKED) or [LOCKDOWN]
    for release in others:
        if release != running:
            by += _configured(root, release, _ENFORCED) + _configured(root, release, _BORN_LOCKED)
    return {"by": by} if by else None


def _causes(root: str, options: str, running: str, option: re.Pattern[str], setting: re.Pattern[str]) -> list[str]:
    return option.findall(options) + _configured(root, running, setting)


def _configured(root: str, release: str, setting: re.Pattern[str]) -> list[str]:
    path = CONFIGURATION % release
    return ["%s in %s" % (found, path) for found in setting.findall(files.read_text(root, path) or "")]
