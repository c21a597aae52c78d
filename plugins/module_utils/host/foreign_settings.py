# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find settings of others: a global LD_LIBRARY_PATH, blacklists of NVIDIA's modules, devices for virtual machines.

Runs on the managed host.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from typing import Iterator, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host import login_scripts
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import FOR_GUESTS, GuestSetting

ENVIRONMENT = "/etc/environment"  # read by pam_env, all others by shells
PROFILES = ("/etc/profile", "/etc/bash.bashrc")
ROOT_PROFILES = ("/root/.profile", "/root/.bash_profile", "/root/.bash_login", "/root/.bashrc")
PROFILE_DIRECTORY = "/etc/profile.d"
# In the order of modprobe.d(5): of files with one name, modprobe reads that of the first directory.
MODPROBE_DIRECTORIES = (
    *("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d"),
    "/lib/modprobe.d",  # where it is no link to that of /usr
)
COMMAND_LINE = "/proc/cmdline"
OURS = "Managed by gpuhost"  # in each file that a role of this collection writes
LIBRARY_PATH = "LD_LIBRARY_PATH"
_LIBRARY_PATH = re.compile(r"^\s*(?:export\s+)?%s\s*=" % LIBRARY_PATH)
DRIVER = "nvidia"  # the module that the others need; none of them keeps it from loading
MODULES = tuple(
    name + part for name in (DRIVER, "nvidia_current") for part in ("", "_uvm", "_modeset", "_drm", "_peermem")
)
# What dracut's initramfs makes of rd.driver.blacklist, so that it counts after the initramfs as well; that of earlier
# releases of dracut ends with it, and no other initramfs reads the option.
_OF_DRACUT = "/run/modprobe.d/initramfsblacklist.conf"
_ON_COMMAND_LINE = ("modprobe.blacklist", "module_blacklist", "rd.driver.blacklist")
# As kmod's getline_wrapped reads a file: a backslash joins two lines, a comment as well; another one is dropped.
_LOGICAL_LINE = re.compile(r"(?:[^\\\n]|\\.?)+", re.DOTALL)
_BACKSLASH = re.compile(r"\\(?:\n|(.?))", re.DOTALL)
_SHELL_COMMENT = re.compile(r"(?:^|\s)#.*")
# Modules with their arguments, one a line (initramfs.conf(5), modules(5)), as guides to passthrough have them.
_WITH_ARGUMENTS = ("/etc/initramfs-tools/modules", "/etc/modules")
_GIVES = re.compile(r"(?:%s)(?:\.|\s(?:.*\s)?)ids=" % "|".join(FOR_GUESTS).replace("-", "[-_]"))
OVERRIDES = "/etc/driverctl.d"  # of driverctl(8): a driver in a file that is named pci-ADDRESS
_LOADS = re.compile(r"(?<![\w.-])(?:modprobe|insmod)(?![\w.-])")


class Blacklist(NamedTuple):
    """A setting that keeps modules of NVIDIA's from loading: an option of the kernel, or a line of a file.

    text: as it is in the file, where a backslash may continue it on the next line; line: the number of the first
    """

    path: str
    line: int
    text: str
    modules: frozenset[str]


def library_path(root: str) -> dict[str, list[str]]:
    """Return the lines that set LD_LIBRARY_PATH for everybody or for root, by file.

    /etc/profile reads the files of its directory whose names end in .sh.
    """
    names = [name for name in files.names(root, PROFILE_DIRECTORY) if name.endswith(".sh")]
    found = _matching(root, [ENVIRONMENT], _LIBRARY_PATH)
    for path in [*PROFILES, *("%s/%s" % (PROFILE_DIRECTORY, name) for name in names), *ROOT_PROFILES]:
        lines = [
            line
            for line in login_scripts.logical_lines(_read(root, path) or "")
            if login_scripts.sets(line, LIBRARY_PATH)
        ]
        if lines:
            found[path] = lines
    return found


def can_be_disabled(path: str, line: str) -> bool:
    """Return whether a line that sets LD_LIBRARY_PATH does nothing else, so that nothing else is lost without it."""
    return path == ENVIRONMENT or login_scripts.only_sets(line, LIBRARY_PATH)


def blacklists(root: str) -> dict[str, list[str]]:
    """Return the lines of modprobe.d and the options of the kernel that keep NVIDIA's modules from loading, by file."""
    found: dict[str, list[str]] = {}
    for setting in module_settings(root):
        found.setdefault(setting.path, []).append(setting.text)
    return found


def of_driver(root: str) -> dict[str, tuple[str, ...]]:
    """Return what keeps the driver's own module from loading, by file, without files that gpuhost writes."""
    found: dict[str, tuple[str, ...]] = {}
    for path, line, text, modules in module_settings(root):
        if DRIVER not in modules or OURS in (_read(root, path) or ""):
            continue
        place = "the kernel's command line (%s)" % path if path == COMMAND_LINE else path
        place += ", line %d" % line if line else ""
        found[path] = (*found.get(path, ()), "`%s` in %s" % (" ".join(joined(text).split()), place))
    return found


def module_settings(root: str) -> list[Blacklist]:
    """Return what keeps NVIDIA's modules from loading: no line or file that has no effect beside another."""
    found: list[Blacklist] = []
    decided: frozenset[str] = frozenset()
    for path in _modprobe_files(root):
        for number, text in _logical_lines(_read(root, path) or ""):
            words = re.split(r"[ \t]+", joined(text).strip(" \t"), maxsplit=2)
            keyword, name, rest = [*words, "", ""][:3]
            modules = _named(keyword, name.replace("-", "_"), rest)
            if keyword == "install":  # of several commands for a module, modprobe runs the first (libkmod-module.c)
                modules, decided = modules - decided, decided | modules
                modules = frozenset() if _loads(root, rest) else modules
            if modules:
                found.append(Blacklist(path, number, text, modules))
    return found + _options(root)


def driver_options(root: str, option: str) -> list[str]:
    """Return the lines of modprobe.d that give NVIDIA's module an option (a pattern), each with its file and number."""
    wanted = re.compile(r"\s*options\s+(?:nvidia)\S*\s.*NVreg_(?:%s)" % option)
    return [
        "`%s` in %s, line %d" % (" ".join(joined(text).split()), path, number)
        for path in _modprobe_files(root)
        for number, text in _logical_lines(_read(root, path) or "")
        if wanted.match(joined(text))
    ]


def guest_settings(root: str) -> tuple[GuestSetting, ...]:
    """Return what gives devices to the kernel drivers that keep them for virtual machines, when the host boots."""
    found = []
    for path in [*_modprobe_files(root), *_WITH_ARGUMENTS]:
        for number, text in _logical_lines(_read(root, path) or ""):
            line = " ".join(joined(text).split())
            if _GIVES.search(line) and not line.startswith("#"):
                found.append(GuestSetting(path, line, number))
    words = (files.read_text(root, COMMAND_LINE) or "").replace('"', "").split()
    found += [GuestSetting(COMMAND_LINE, word) for word in words if _GIVES.match(word)]
    for path in ("%s/%s" % (OVERRIDES, name) for name in files.names(root, OVERRIDES)):
        driver = (_read(root, path) or "").strip()
        found += [GuestSetting(path, driver)] if driver in FOR_GUESTS else []
    return tuple(found)


def joined(text: str) -> str:
    """Return a line of modprobe.d as modprobe reads it, without the backslashes that continue it."""
    return _BACKSLASH.sub(lambda match: match.group(1) or "", text)


def _modprobe_files(root: str) -> list[str]:
    """Return the files that modprobe reads, in its order: by their names, whatever their directories."""
    found: dict[str, str] = {}
    for directory in MODPROBE_DIRECTORIES:
        for name in files.names(root, directory):
            path = "%s/%s" % (directory, name)
            if name.endswith((".conf", ".alias")) and name[0] != "." and not os.path.isdir(files.under(root, path)):
                found.setdefault(name, path)
    return [found[name] for name in sorted(found) if found[name] != _OF_DRACUT]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    for match in _LOGICAL_LINE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group()


def _named(keyword: str, name: str, rest: str) -> frozenset[str]:
    """Return the modules that a line concerns. An alias `off` is of no module: modprobe finds none of that name."""
    if keyword == "blacklist":
        return frozenset(module for module in MODULES if module == name)
    if (keyword == "install" and rest) or (keyword == "alias" and rest.split()[:1] == ["off"]):
        return frozenset(module for module in MODULES if fnmatchcase(module, name))
    return frozenset()


def _loads(root: str, command: str) -> bool:
    """Return whether an install command, or a script that it names, runs modprobe or insmod.

    Debian's own packages have `install nvidia modprobe -i nvidia-current`, which loads the module.
    """
    named = (_read(root, word) or "" for word in command.split() if word.startswith("/"))
    scripts = [text for text in named if text.startswith("#!")]
    return any(_LOADS.search(_SHELL_COMMENT.sub("", text)) for text in [command, *scripts])


def _options(root: str) -> list[Blacklist]:
    """Return the options on the kernel's command line: in a name, `-` and `_` are the same to the kernel.

    It takes the last module_blacklist alone.
    """
    words = (files.read_text(root, COMMAND_LINE) or "").replace('"', "").split()
    options = [(word.partition("=")[0].replace("-", "_"), word) for word in words]
    last = dict(options).get("module_blacklist")
    found = []
    for name, word in options:
        modules = frozenset(word.partition("=")[2].split(",")) & frozenset(MODULES)
        if name not in _ON_COMMAND_LINE or not modules or (name == "module_blacklist" and word != last):
            continue
        if name != "rd.driver.blacklist" or _read(root, _OF_DRACUT) is not None:
            found.append(Blacklist(COMMAND_LINE, 0, word, modules))
    return found


def _matching(root: str, paths: list[str], pattern: re.Pattern[str]) -> dict[str, list[str]]:
    found = {}
    for path in paths:
        lines = [line for line in (_read(root, path) or "").splitlines() if pattern.match(line)]
        if lines:
            found[path] = lines
    return found


def _read(root: str, path: str) -> str | None:
    try:
        return files.read_text(root, path)
    except IsADirectoryError:
        return None
