"""The distribution from os-release(5). Runs on the target."""

from __future__ import annotations

import shlex

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

PATHS = ("/etc/os-release", "/usr/lib/os-release")


def parse(text: str) -> dict[str, str]:
    """Variables of an os-release file, unquoted as a shell would."""
    variables = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            variables[name] = " ".join(shlex.split(value))
    return variables


def distribution(variables: dict[str, str]) -> dict[str, str]:
    """The probe's `distribution`; a rolling release has no version, and then its id is the bare name."""
    name = variables.get("ID", "linux")
    version = variables.get("VERSION_ID", "")
    return {
        "id": "%s-%s" % (name, version) if version else name,
        "name": name,
        "version": version,
        "codename": variables.get("VERSION_CODENAME", variables.get("UBUNTU_CODENAME", "")),
        "pretty_name": variables.get("PRETTY_NAME", name),
    }


def read(root: str) -> dict[str, str]:
    for path in PATHS:
        text = files.read_text(root, path)
        if text is not None:
            return distribution(parse(text))
    raise ValueError("no os-release file: looked for %s" % " and ".join(PATHS))
