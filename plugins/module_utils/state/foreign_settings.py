# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find settings of others that break the stack: a global LD_LIBRARY_PATH, and blacklists of NVIDIA's modules.

Runs on the managed host.
"""

from __future__ import annotations

import re

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.state import login_scripts

ENVIRONMENT = "/etc/environment"  # read by pam_env, all others by shells
PROFILES = ("/etc/profile", "/etc/bash.bashrc")
ROOT_PROFILES = ("/root/.profile", "/root/.bash_profile", "/root/.bash_login", "/root/.bashrc")
PROFILE_DIRECTORY = "/etc/profile.d"
MODPROBE_DIRECTORIES = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d")
COMMAND_LINE = "/proc/cmdline"
OURS = "Managed by gpuhost"  # in each file that a role of this collection writes
LIBRARY_PATH = "LD_LIBRARY_PATH"
_LIBRARY_PATH = re.compile(r"^\s*(?:export\s+)?%s\s*=" % LIBRARY_PATH)
_MODULE = r"nvidia(?:[-_](?:current|uvm|modeset|drm|peermem))*"
# Debian's own packages have `install nvidia modprobe -i nvidia-current`, which loads the module.
_BLACKLIST = re.compile(r"^\s*(?:blacklist\s+%s(?:\s.*)?|install\s+%s\s+\S*\b(?:false|true)\b.*)$" % (_MODULE, _MODULE))
_OPTION = re.compile(r"^(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(.*)$")


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
    paths = [
        "%s/%s" % (directory, name)
        for directory in MODPROBE_DIRECTORIES
        for name in files.names(root, directory)
        if name.endswith(".conf")
    ]
    found = _matching(root, paths, _BLACKLIST)
    options = []
    for word in (files.read_text(root, COMMAND_LINE) or "").split():
        option = _OPTION.match(word)
        if option and any(re.fullmatch(_MODULE, name) for name in option.group(1).split(",")):
            options.append(word)
    return dict(found, **{COMMAND_LINE: options}) if options else found


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
