# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read from GRUB's configuration which kernel it boots next. Runs on the managed host.

The kernel guard of the role nvidia_driver runs without Python's modules of gpuhost and says the same with --next;
tests/unit/module_utils/host/test_grub.py asks both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

CONFIGURATION, ENVIRONMENT = "/boot/grub/grub.cfg", "/boot/grub/grubenv"
CUSTOM = "/boot/grub/custom.cfg"
SUBMENU = ">"  # in place of a kernel
_TITLE = re.compile(r"""^(?:menuentry|submenu)[ \t]+(?:'([^']*)'|"([^"]*)")""")
_ID = re.compile(r"""menuentry_id_option ['"]([^'"]*)['"] *\{$""")
_DEFAULT = re.compile(r'^[ \t]*set default="?([^"\n]*)"?[ \t]*$', re.MULTILINE)
_VARIABLE = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.MULTILINE)
_LINUX = re.compile(r"linux(?:efi|16)?[ \t]+(\S+)")


class Entry(NamedTuple):
    """An entry of the menu: the names of its submenus and its own, and the kernel that it boots.

    names: index, identifier and title on each level; the index is "?" where it depends on a condition of GRUB.
    kernel: "" for another system, SUBMENU for a submenu.
    """

    names: tuple[tuple[str, str, str], ...]
    kernel: str


class _Level:
    """A menu that is being read."""

    def __init__(self) -> None:
        self.count, self.conditions, self.is_certain = 0, 0, True

    def index(self) -> str:
        self.is_certain = self.is_certain and not self.conditions
        self.count += 1
        return str(self.count - 1) if self.is_certain else "?"


def menu(text: str) -> list[Entry]:
    """Return the entries of a grub.cfg, as grub-mkconfig writes it, submenus before their entries."""
    entries: list[Entry] = []
    levels, above = [_Level()], []  # type: list[_Level], list[tuple[str, str, str]]
    blocks: list[str] = []  # of the lines that end with a brace: menuentry, submenu, or another
    for line in (line.strip() for line in text.splitlines()):
        word = line.split(None, 1)[0] if line else ""
        if line == "}":
            if blocks and blocks.pop() == "submenu":
                levels.pop()
                above.pop()
        elif line.endswith("{") and word in ("menuentry", "submenu"):
            title, named = _TITLE.search(line), _ID.search(line)
            own = (
                levels[-1].index(),
                named.group(1) if named else "",
                "".join(filter(None, title.groups())) if title else "",
            )
            entries.append(Entry((*above, own), SUBMENU if word == "submenu" else ""))
            if word == "submenu":
                levels.append(_Level())
                above.append(own)
            blocks.append(word)
        elif line.endswith("{"):
            blocks.append("")
        elif blocks and blocks[-1] == "menuentry":
            found = _LINUX.match(line)
            last = entries[-1]
            if found and not last.kernel and not last.names[-1][1].startswith("osprober-"):
                entries[-1] = last._replace(kernel=found.group(1).rpartition("vmlinuz-")[2])
        elif word == "if" and not line.endswith("fi"):
            levels[-1].conditions += 1
        elif word == "fi":
            levels[-1].conditions -= 1
    return entries


def next_boot(root: str, kernels: list[str]) -> tuple[str | None, str]:
    """Return the kernel that GRUB boots next and "", or None and the reason why that is not known.

    kernels: those in /boot, oldest first. Without a grub.cfg it is the newest one, as the installation of a kernel
    arranges it for other boot loaders; a container without a kernel has None, and no reason.
    """
    try:
        text = files.read_text(root, CONFIGURATION)
        kept = dict(_VARIABLE.findall(files.read_text(root, ENVIRONMENT) or ""))
        custom = files.read_text(root, CUSTOM)
    except PermissionError as error:
        return None, "GRUB's configuration cannot be read: %s" % error
    if text is None or not kernels:
        return (kernels[-1] if kernels else None), ""
    if custom is not None and "custom.cfg" in text:
        return None, "%s may choose another entry of GRUB's menu" % CUSTOM
    entry, problem = _entry(text, kept)
    if problem:
        return None, problem
    parts = entry.split(">")
    chosen = next((each for each in menu(text) if _is_named(each, parts)), None)
    if chosen is None:
        return None, "GRUB's menu has no entry %s" % entry
    if chosen.kernel == SUBMENU:
        return None, "entry %s of GRUB's menu is a submenu, which waits for a choice" % entry
    if chosen.kernel not in kernels:
        return None, "entry %s of GRUB's menu boots no kernel in /boot" % entry
    return chosen.kernel, ""


def _is_named(entry: Entry, parts: list[str]) -> bool:
    return len(parts) == len(entry.names) and all(
        part and part != "?" and part in names
        for part, names in zip(parts, entry.names)  # noqa: B905
    )


def _entry(text: str, kept: dict[str, str]) -> tuple[str, str]:
    """Return the entry that the configuration chooses with this environment, or a reason why it is not known."""
    if kept.get("next_entry"):  # for one boot
        return kept["next_entry"], ""
    guarded = "gpuhost_entry" in text and not kept.get("prev_saved_entry")
    if guarded and kept.get("gpuhost_entry") and kept.get("gpuhost_tries") not in ("1", "2", "3"):
        return kept["gpuhost_entry"], ""
    own = ("${next_entry}", "${gpuhost_entry}")
    defaults = sorted({value for value in _DEFAULT.findall(text) if value not in own})
    if len(defaults) > 1:
        return "", "grub.cfg sets GRUB's default to more than one entry"
    entry = defaults[0] if defaults else ""
    return (kept.get("saved_entry", "") if entry == "${saved_entry}" else entry) or "0", ""
