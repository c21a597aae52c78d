# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what keeps the kernel from loading a module: kernel.modules_disabled, and enforced signatures.

Runs on the managed host. Secure Boot enforces signatures, too; secure_boot.py reads it.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Iterable, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import ModulesDisabled, SignaturesEnforced

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
_KEY = "kernel/modules_disabled"
_OPTION = re.compile(r"(?:^|\s)(sysctl[./]kernel[./]modules_disabled=(?!0(?:\s|$))\S+)")
# kstrtobool; the kernel takes a hyphen in a name for an underscore, and quotes around an option (kernel/params.c).
_ENFORCING = re.compile(r"(?:^|[\s\"])(module\.sig[-_]enforce(?:=[1yYtT]\w*|=[oO][nN])?)(?=[\s\"]|$)")
_LOCKING = re.compile(r"(?:^|\s)(lockdown=(?:integrity|confidentiality))(?=\s|$)")
_LOCKED = re.compile(r"\[(integrity|confidentiality)\]")
_ENFORCED = re.compile(r"^CONFIG_MODULE_SIG_FORCE=y$", re.MULTILINE)
_CHECKED = re.compile(r"^CONFIG_MODULE_SIG=y$", re.MULTILINE)
_BORN_LOCKED = re.compile(r"^CONFIG_LOCK_DOWN_KERNEL_FORCE_(?:INTEGRITY|CONFIDENTIALITY)=y$", re.MULTILINE)


def disabled(root: str) -> ModulesDisabled | None:
    """Return what has the kernel load no module any more; None if it loads them.

    That is files, "GLOB in FILE" where a key there only matches it, and kernel options; nothing where a program
    sets it, as a service may do after the boot.
    """
    if (files.read_text(root, MODULES_DISABLED) or "0").strip() == "0":
        return None
    option = _OPTION.search(files.read_text(root, COMMAND_LINE) or "")
    return ModulesDisabled((*sysctl_files(root, _KEY), *([option.group(1)] if option else [])))


def sysctl_files(root: str, wanted: str, off: tuple[str, ...] = ("0",)) -> list[str]:
    """Return the files that turn a setting on at each boot: all of them, unless a later one says otherwise.

    wanted: the key, with slashes; off: its values that do not
    """
    settings: dict[str, str] = {}
    for directory in SYSCTL_DIRECTORIES:
        for name in files.names(root, directory):
            if name.endswith(".conf"):
                settings.setdefault(name, "%s/%s" % (directory, name))
    exact: list[tuple[str, str]] = []
    globs: list[tuple[str, str]] = []
    for path in [*(settings[name] for name in sorted(settings)), SYSCTL_FILE]:
        target = files.resolve(root, path)
        if target is None or not os.path.isfile(files.under(root, target)):
            continue
        values = dict(_values(files.read_text(root, target) or ""))  # the last one of each key
        exact += [(target, value) for key, value in values.items() if _normal(key) == wanted]
        globs += [("%s in %s" % (key, target), value) for key, value in values.items() if _is_glob(key, wanted)]
    said = exact or globs  # what is said of the key itself, were it to leave it out, goes before each glob
    by = [source for source, value in said if value not in off]
    return list(dict.fromkeys(by)) if said and said[-1][1] not in off else []


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a file of sysctl.d and their values; of one that is left out (-KEY), 0."""
    for line in map(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if line[:1] not in ("", "#", ";") and (equals or line[0] == "-"):
            yield key.lstrip("-").strip(), " ".join(value.split()[:1]) if equals else "0"


def _normal(key: str) -> str:
    """Return a key with slashes: where its first separator is a dot, dots and slashes are exchanged (sysctl.d(5))."""
    first = re.search(r"[./]", key)
    return key.translate(str.maketrans("./", "/.")) if first and first.group() == "." else key


def _is_glob(key: str, wanted: str) -> bool:
    """Return whether a key only matches the setting, as glob(3) does: a wildcard is no slash."""
    parts, names = _normal(key).split("/"), wanted.split("/")
    return parts != names and len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts))


def signatures_enforced(root: str, running: str, others: Iterable[str] = ()) -> SignaturesEnforced | None:
    """Return what has the kernel load nothing but modules with a trusted signature, None if nothing does.

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
    return SignaturesEnforced(tuple(by)) if by else None


def _causes(root: str, options: str, running: str, option: re.Pattern[str], setting: re.Pattern[str]) -> list[str]:
    return option.findall(options) + _configured(root, running, setting)


def _configured(root: str, release: str, setting: re.Pattern[str]) -> list[str]:
    path = CONFIGURATION % release
    return ["%s in %s" % (found, path) for found in setting.findall(files.read_text(root, path) or "")]
