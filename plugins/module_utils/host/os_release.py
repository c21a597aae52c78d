# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the distribution from os-release(5). Runs on the managed host."""

from __future__ import annotations

import re
import shlex

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Distribution

_ENTERPRISE_LINUX = re.compile(r"platform:el(\d+)")
PATHS = ("/etc/os-release", "/usr/lib/os-release")


def parse(text: str) -> dict[str, str]:
    """Return the variables of an os-release file, unquoted as by a shell."""
    variables = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            variables[name] = " ".join(shlex.split(value))
    return variables


def distribution(variables: dict[str, str]) -> Distribution:
    """Return the probe's `distribution`; a rolling release has no version, and its id is the bare name.

    A release of Enterprise Linux is its major one, which PLATFORM_ID has (`platform:el9`): the minor ones are updates
    of it.
    """
    name = variables.get("ID", "linux")
    version = variables.get("VERSION_ID", "")
    platform = _ENTERPRISE_LINUX.fullmatch(variables.get("PLATFORM_ID", ""))
    release = platform.group(1) if platform else version
    return Distribution(
        id="%s-%s" % (name, release) if release else name,
        name=name,
        version=version,
        codename=variables.get("VERSION_CODENAME", variables.get("UBUNTU_CODENAME", "")),
        pretty_name=variables.get("PRETTY_NAME", name),
    )


def variables(root: str) -> dict[str, str] | None:
    """Return the variables of a host's os-release file, None without one."""
    texts = (files.read_text(root, path) for path in PATHS)
    return next((parse(text) for text in texts if text is not None), None)


def read(root: str) -> Distribution:
    """Return the distribution of a host. Raise ValueError where there is no os-release file."""
    found = variables(root)
    if found is None:
        raise ValueError("no os-release file: expected %s" % " or ".join(PATHS))
    return distribution(found)
