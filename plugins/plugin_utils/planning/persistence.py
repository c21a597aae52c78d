"""Have the unit of nvidia-persistenced keep persistence mode on, where its package ships it so that it does not.

Ubuntu's unit runs the daemon with `--no-persistence-mode`, has no [Install] section, and stops where nothing wants it
(canonical/nvidia-graphics-drivers, debian/templates, branches 535 to 595); NVIDIA's and Debian's do none of these.
Runs on the controller; pure functions.
"""

from __future__ import annotations

import re

_OFF, _ON = "--no-persistence-mode", "--persistence-mode"
_TRUE = ("1", "yes", "true", "on")  # systemd.syntax(7)


def override(unit: str) -> str:
    """Return a drop-in for the text of a unit; empty if it needs none."""
    values = _settings(unit)
    commands = values.get("Service.ExecStart", [])
    is_off = any(_OFF in command.split() for command in commands)
    stops = values.get("Unit.StopWhenUnneeded", ["no"])[-1].lower() in _TRUE
    sections = []
    if stops:
        sections.append("[Unit]\nStopWhenUnneeded=no\n")
    if is_off:
        # An empty value drops the commands of the unit.
        lines = "".join(f"ExecStart={' '.join(_word(word) for word in command.split())}\n" for command in commands)
        sections.append(f"[Service]\nExecStart=\n{lines}")
    if not any(name.startswith("Install.") for name in values):
        sections.append("[Install]\nWantedBy=multi-user.target\n")
    return "\n".join(["# Managed by gpuhost (role nvidia_driver): persistence mode stays on.\n", *sections]) * bool(
        sections
    )


def _word(word: str) -> str:
    return _ON if word == _OFF else word


def _settings(unit: str) -> dict[str, list[str]]:
    """Return the values of a unit by SECTION.KEY, in their order."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in re.sub(r"\\\n", " ", unit).splitlines():
        text = line.strip()
        if header := re.fullmatch(r"\[(.+)\]", text):
            section = header.group(1)
        elif not text.startswith(("#", ";")) and "=" in text:
            key, _equals, value = text.partition("=")
            found.setdefault(f"{section}.{key.strip()}", []).append(value.strip())
    return found
