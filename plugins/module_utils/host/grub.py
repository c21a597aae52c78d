# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read from GRUB's configuration which kernel it boots next. Runs on the managed host.

The probe imports this file, and the role nvidia_driver installs it beside its kernel guard, which runs it alone, also
while apt replaces Python: it imports nothing that python3-minimal does not have.

grub.cfg is read line by line, as grub-mkconfig writes it with the scripts of Debian, Ubuntu and gpuhost (07_gpuhost):
assignments, conditions on variables and on files beside it, menu entries, and custom.cfg; so is that of Enterprise
Linux, whose entries are files (Boot Loader Specification). What GRUB alone knows, such as what a disk or the firmware
offers, leaves unknown what depends on it. A line that may choose another entry in another way is not followed.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple, Optional, Tuple

DIRECTORIES = ("/boot/grub", "/boot/grub2")  # the second is Enterprise Linux's
ENTRIES = "/boot/loader/entries"  # of the menu, where grub.cfg has the command blscfg
# Not a kernel, but a copy of one, which nothing updates (51-dracut-rescue.install of dracut).
RESCUE = "0-rescue-"
# Of boot loaders whose choice is not read: systemd-boot's, those of Syslinux and U-Boot, GRUB Legacy's.
OTHER_LOADERS = (
    *("%s/loader/loader.conf" % directory for directory in ("/boot", "/boot/efi", "/efi")),
    *("/boot/%s" % name for name in ("extlinux/extlinux.conf", "extlinux.conf", "syslinux/syslinux.cfg")),
    "/boot/grub/menu.lst",
)
SUBMENU, SEVERAL, OTHER = ">", "?", "<"  # in place of a kernel
_WORD = r"""(?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|\$\{\w+\}|[^\s'"\\;{}])+"""
_CONDITION = re.compile(r"(if|elif)\s+(.*?)\s*;\s*then")
_ENTRY = re.compile(r"(menuentry|submenu)\s+(%s)(.*)\{" % _WORD)
_IDENTIFIER = re.compile(r"(?:\$menuentry_id_option|\$\{menuentry_id_option\}|--id)[\s=]\s*(%s)" % _WORD)
_FUNCTION = re.compile(r"function\s+(\w+)\s*\{|(\w+)\s*\(\)\s*\{")
_ASSIGNMENT = re.compile(r"(?:set\s+)?([A-Za-z_]\w*)=(%s)?" % _WORD)
_LOADED = re.compile(r"load_env(?: -f \$\{?(?:prefix|config_directory)\}?/grubenv)?")
_CUSTOM = re.compile(r"(?:source|\.)\s+\$(?:prefix|\{prefix\}|\{?config_directory\}?)/([\w.-]+)")
_KERNEL = re.compile(r"linux(?:efi|16)?\s+[\"']?([^\s\"']+)")
_TEST = re.compile(
    r"(?:(-[nz])\s+)?(%s)?|(%s)\s*(=|==|!=)\s*(%s)?|-[efs]\s+\$\{?(?:prefix|config_directory)\}?/([\w.-]+)"
    % (_WORD, _WORD, _WORD)
)
# What may choose another entry, add entries or leave the menu, unless it is one of the above: the variable that
# decides, commands, and what goes on in other lines.
_DECIDES = re.compile(r"(?<![\w$\{.-])default(?![\w.-])")
_COMMAND = re.compile(
    r"(?:^|;\s*|(?:then|else|do)\s+)(?:menuentry|submenu|source|\.|load_env|eval|configfile|normal|normal_exit|boot|reboot|"
    r"halt|return|exit|for|while|until|case|blscfg|(?:legacy|syslinux|extract_entries)_\w+)(?:[\s;]|$)"
)
_UNFINISHED = re.compile(r"(?:if|elif|then|function|\$\S*)(?:\s|$)|[{}]|.*[{\\]$")
_ONLY_READ = ("save_env ", "export ", "echo ")
_PART = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|((?:[^'"\\]|\\.)+)""", re.DOTALL)  # of a word
_EXPANDED = re.compile(r"\\(.)|\$(?:(\w+|[?@*#])|\{([^}\n]*)\})", re.DOTALL)
_VARIABLE = re.compile(r"^([A-Za-z_]\w*)=((?:[^\\\n]|\\.)*)$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+")
_ONCE = ("next_entry", "initrdfail", "gpuhost_entry")  # in the environment, in place of the configuration's default
# The variables that decide, none of which GRUB sets by itself; those of others' values are unknown.
_INITIAL = {
    **dict.fromkeys(("default", "next_entry", "prev_entry", "saved_entry", "prev_saved_entry", "boot_once"), ""),
    **dict.fromkeys(("initrdfail", "env_block", "gpuhost_entry", "gpuhost_tries", "boot_counter", "boot_success"), ""),
}

Names = Tuple[str, Optional[str], Optional[str]]


class Entry(NamedTuple):
    """An entry of the menu: the names of its submenus and its own, and the kernel that it boots.

    names: index, identifier and title on each level; the index is "?", and the others None, where they are unknown.
    kernel: OTHER for another system, "" where none is loaded, SUBMENU for a submenu, SEVERAL where a condition selects
    one of several.
    is_conditional: whether the entry is in the menu depends on a condition.
    """

    names: tuple[Names, ...]
    kernel: str
    is_conditional: bool


def _lines(text: str) -> list[str]:
    """Return the lines that are not empty or comments, the last one first."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in reversed(lines) if line and not line.startswith("#")]


def _all(*values: bool | None) -> bool | None:
    """Return whether all hold, or None where that depends on unknown ones."""
    return False if False in values else None if None in values else True


class Menu:
    """The menu that a configuration builds: its entries, submenus before theirs, and the one that it boots by default.

    environment: the variables in GRUB's environment block. default: None where it is unknown. has_files: whether
    entries are files. Raises ValueError with a line that is not followed.
    """

    def __init__(self, root: str, directory: str, text: str, environment: dict[str, str]) -> None:
        self.entries: list[Entry] = []
        self.has_files = False
        self._root, self._directory, self._environment = root, directory, environment
        self._variables = dict(_INITIAL)  # those whose value is known
        self._files: set[str] = set()  # beside grub.cfg, that it runs
        self._functions: set[str] = set()  # those that add entries or choose one
        self._read(_lines(text), (), True)
        default = self._variables.get("default")
        self.default = "0" if default == "" else default

    def _read(self, pending: list[str], above: tuple[Names, ...], is_shown: bool | None) -> None:
        """Read the lines of a menu, or of a submenu up to its end; is_shown: None where GRUB alone knows."""
        # Of each condition around the line: whether this branch is run, and whether a later one can be.
        branches: list[tuple[bool | None, bool | None]] = []
        count, is_certain = 0, True
        while pending:
            line = pending.pop()
            condition, entry = _CONDITION.fullmatch(line), _ENTRY.fullmatch(line)
            if condition or line in ("else", "fi"):
                if not branches and (not condition or condition.group(1) == "elif"):
                    raise ValueError("`%s` is out of place" % line)
                left = True if condition and condition.group(1) == "if" else branches.pop()[1]
                holds = self._holds(condition.group(2)) if condition else True
                if line != "fi":
                    branches.append((_all(left, holds), _all(left, None if holds is None else not holds)))
                continue
            runs = _all(is_shown, *(branch for branch, _left in branches))
            if line == "}" and above:
                return
            function = _FUNCTION.fullmatch(line)
            if function:
                if any(map(_decides, _block(pending))):
                    self._functions.add(function.group(1) or function.group(2))
            elif entry:
                is_certain = is_certain and runs is not None
                index = str(count) if is_certain else "?"
                names = (*above, (index, self._identifier(entry.group(3)), self._value(entry.group(2))))
                count += runs is not False
                self._add(entry, names, pending, runs)
            elif line == "blscfg" and not above and runs is not False:
                self.has_files = True
                is_certain = is_certain and runs is not None
                for identifier, title, kernel in _entry_files(self._root):
                    names = ((str(count) if is_certain else "?", identifier, title),)
                    self.entries.append(Entry(names, kernel, runs is None))
                    count += 1
            elif above and line.split()[0] in self._functions:
                is_certain = False
            elif runs is not False:
                pending += self._run(line, runs, bool(above))
        if branches or above:
            raise ValueError("a block has no end")

    def _add(self, entry: re.Match[str], names: tuple[Names, ...], pending: list[str], runs: bool | None) -> None:
        """Add an entry, and those of a submenu, unless a condition leaves it out."""
        count = len(self.entries)
        if entry.group(1) == "submenu":
            self.entries.append(Entry(names, SUBMENU, runs is None))
            self._read(pending, names, runs)
        else:
            # Those of another partition have kernels of the same names.
            is_other = "osprober-" in entry.group(3)
            kernel = _kernel(_block(pending))
            self.entries.append(Entry(names, OTHER if is_other else kernel, runs is None))
        if runs is False:
            del self.entries[count:]

    def _run(self, line: str, runs: bool | None, is_below: bool) -> list[str]:
        """Run a line; return the lines that come in its place.

        runs: None where GRUB alone knows; is_below: whether it is run when a submenu is opened.
        """
        assigned, custom = _ASSIGNMENT.fullmatch(line), _CUSTOM.fullmatch(line)
        if is_below:
            assigned = custom = None
        if assigned:
            self._set(assigned.group(1), self._value(assigned.group(2) or "") if runs else None)
        elif _LOADED.fullmatch(line):
            for variable, value in self._environment.items():
                self._set(variable, value if runs else None)
        elif custom and runs and custom.group(1) not in self._files:
            self._files.add(custom.group(1))
            return _lines(_read(self._root, self._beside(custom.group(1))) or "")
        elif (
            _decides(line)
            or line.split()[0] in self._functions
            or (_UNFINISHED.match(line) and not line.endswith("; fi"))
        ):
            raise ValueError("it has the line `%s`" % line)
        return []

    def _identifier(self, options: str) -> str | None:
        found = _IDENTIFIER.search(options)
        return self._value(found.group(1)) if found else ""

    def _value(self, word: str) -> str | None:
        """Return a word without its quotes and with the values of its variables, or None where one is unknown."""

        def expanded(found: re.Match[str]) -> str:
            escaped, name, braced = found.groups()
            return escaped or self._variables[name or braced]

        try:
            parts = _PART.findall(word)
            return "".join(single or _EXPANDED.sub(expanded, double or bare) for single, double, bare in parts)
        except KeyError:
            return None

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self._variables.pop(name, None)
        else:
            self._variables[name] = value

    def _beside(self, name: str) -> str:
        return "%s/%s" % (self._directory, name)

    def _holds(self, condition: str) -> bool | None:
        """Return whether a condition holds, or None where only GRUB knows."""
        inner = re.fullmatch(r"\[\s+(.*?)\s*\]", condition)
        return _all(*(self._test(each) for each in inner.group(1).split(" -a "))) if inner else None

    def _test(self, text: str) -> bool | None:
        found = _TEST.fullmatch(text.strip())
        if not found:
            return None
        kind, word, one, sign, other, file = found.groups()
        if file:
            return _read(self._root, self._beside(file)) not in (None, "")
        values = [self._value(each or "") for each in ((one, other) if sign else (word,))]
        if None in values:
            return None
        return (values[0] == values[1]) == (sign != "!=") if sign else (values[0] != "") == (kind != "-z")

    def booted(self, entry: str, kernels: list[str]) -> tuple[str | None, str, str]:
        """Return the kernel that an entry boots, or None with the reason and the title of another system."""
        if self.has_files:  # Red Hat's GRUB compares with identifiers and titles first, and takes whole numbers alone
            named = next((each for each in self.entries if entry in each.names[-1][1:]), None)
            if named is None and not entry.isdigit():
                return None, "GRUB's menu has no entry %s" % entry, ""
            entry = named.names[-1][0] if named else entry
        found = next((each for each in self.entries if _is_named(each, entry)), None)
        if found is None:
            return None, "GRUB's menu has no entry %s" % entry, ""
        if not _is_named(found, entry, certainly=True):
            return None, "which entry of GRUB's menu is %s depends on a condition of GRUB" % entry, ""
        if found.kernel == OTHER:
            title = "" if found.is_conditional else found.names[-1][2] or entry
            return None, "entry %s of GRUB's menu starts another system" % entry, title
        reason = ""
        if found.kernel == SUBMENU:
            reason = "is a submenu, which waits for a choice"
        elif found.kernel == SEVERAL:
            reason = "boots what a condition of GRUB selects"
        elif found.kernel not in kernels:
            reason = "boots no kernel in /boot"
        elif found.is_conditional:
            reason = "depends on a condition of GRUB"
        return (None, "entry %s of GRUB's menu %s" % (entry, reason), "") if reason else (found.kernel, "", "")

    def entry_of(self, kernel: str) -> str:
        """Return the identifiers of the entry of a kernel that no condition can take away, or "" without one."""
        for entry in self.entries:
            is_own = self.has_files or (entry.names[-1][1] or "").startswith("gnulinux-%s-advanced-" % kernel)
            if is_own and entry.kernel == kernel and not entry.is_conditional and all(name[1] for name in entry.names):
                return ">".join(name[1] or "" for name in entry.names)
        return ""


def _block(pending: list[str]) -> list[str]:
    """Take the lines of a block from the end of `pending`; return them without its brace."""
    lines: list[str] = []
    depth = 1
    while pending:
        line = pending.pop()
        depth += line.endswith("{") - (line == "}")
        if not depth:
            return lines
        lines.append(line)
    raise ValueError("a block has no end")


def _decides(line: str) -> bool:
    """Return whether a line may choose another entry, add one or leave the menu."""
    return bool(_COMMAND.search(line) or (_DECIDES.search(line) and not line.startswith(_ONLY_READ)))


def _kernel(lines: list[str]) -> str:
    """Return the kernel that the lines of an entry load, SEVERAL for more than one, else OTHER or ""."""
    loaded = {found.group(1).rpartition("vmlinuz-")[2] for found in map(_KERNEL.match, lines) if found}
    chained = [line for line in lines if line.startswith(("chainloader", "ntldr"))]
    if loaded or not chained:
        return loaded.pop() if len(loaded) == 1 else SEVERAL if loaded else ""
    return (
        "" if re.search("linu[xz]", chained[-1], re.IGNORECASE) else OTHER
    )  # a kernel of this system, as an EFI program


def _entry_files(root: str) -> list[tuple[str, str, str]]:
    """Return (identifier, title, kernel) of the entries that are files, in the order of the menu.

    That is by the names of the files, as versions, the newest first (bls_cmp in blscfg.c of Red Hat's GRUB).
    """
    try:
        names = os.listdir(os.path.join(root, ENTRIES.lstrip("/")))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    found = []
    for identifier in sorted((name[:-5] for name in names if name.endswith(".conf")), key=_version_key, reverse=True):
        lines = (line.split(None, 1) for line in _lines(_read(root, "%s/%s.conf" % (ENTRIES, identifier)) or ""))
        keys = {words[0]: words[1] for words in lines if len(words) == 2}
        if "linux" in keys:
            kernel = keys["linux"].rpartition("vmlinuz-")[2]
            found.append((identifier, keys.get("title", keys["linux"]), kernel))
    return found


def _version_key(identifier: str) -> list[list[tuple[int, int, str]]]:
    """Return a key that orders NAME-VERSION-RELEASE: digits are newer than letters, "~" is older than nothing."""

    def key(part: str) -> tuple[int, int, str]:
        return (3, int(part), "") if part.isdigit() else (0 if part == "~" else 2, 0, part)

    parts = (re.findall(r"[0-9]+|[A-Za-z]+|~", each) for each in identifier.rsplit("-", 2))
    return [[*map(key, each), (1, 0, "")] for each in parts]


def _is_named(entry: Entry, name: str, certainly: bool = False) -> bool:
    """Return whether `name` is that of an entry, or may be, where GRUB alone knows its index.

    What begins with a digit is an index for GRUB, even if an entry has that title.
    """
    parts = [part.replace(">>", ">") for part in re.split("(?<!>)>(?!>)", name)]
    return len(parts) == len(entry.names) and all(
        names[0] == str(int(number.group())) or (names[0] == "?" and not certainly)
        if number
        else part and part in names[1:]
        for part, names, number in zip(parts, entry.names, map(_NUMBER.match, parts))  # noqa: B905
    )


def _read(root: str, path: str) -> str | None:
    """Return the content of a file below `root`, or None where there is none."""
    try:
        with open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Answer(NamedTuple):
    """What GRUB boots, each a kernel or None: next, by its first entry, and by the default of its configuration.

    reason: why the next one is not known. default: the entry that the configuration chooses, "" where that is unknown.
    entries: kernels, each with the identifiers of its entry, or "" without one. system: the title of the next entry
    where that starts another system. has_files: whether the entries are files.
    """

    next: str | None = None
    reason: str = ""
    first: str | None = None
    selected: str | None = None
    default: str = ""
    entries: tuple[tuple[str, str], ...] = ()
    system: str = ""
    has_files: bool = False


def environment(root: str) -> str:
    """Return GRUB's environment block, "" without one."""
    return next((text for text in (_read(root, path + "/grubenv") for path in DIRECTORIES) if text is not None), "")


def ask(root: str, kernels: list[str]) -> Answer:
    """Return what GRUB's configuration says. kernels: those in /boot, oldest first.

    Without a file of any boot loader the newest kernel is booted, as the installation of a kernel arranges it; a
    container without a kernel boots None, for no reason.
    """
    try:
        texts = ((path, _read(root, path + "/grub.cfg")) for path in DIRECTORIES)
        directory, text = next((found for found in texts if found[1] is not None), ("", None))
        if text is None or not kernels:
            newest = kernels[-1] if kernels else None
            other = next((path for path in OTHER_LOADERS if kernels and _read(root, path) is not None), "")
            reason = "%s is of another boot loader, whose choice is not read" % other if other else ""
            return Answer(None if reason else newest, reason, newest, newest, "0")
        kept = {name: re.sub(r"(?s)\\(.)", r"\1", value) for name, value in _VARIABLE.findall(environment(root))}
        menu = Menu(root, directory, text, kept)
        usual = Menu(root, directory, text, {name: value for name, value in kept.items() if name not in _ONCE})
    except PermissionError as error:
        return Answer(reason="GRUB's configuration cannot be read: %s" % error)
    except ValueError as error:
        return Answer(reason="%s/grub.cfg is not followed: %s" % (directory, error))
    kernel, reason, system = None, "which entry of GRUB's menu is its default depends on a condition of GRUB", ""
    if menu.default:
        kernel, reason, system = menu.booted(menu.default, kernels)
    return Answer(
        next=kernel,
        reason=reason,
        first=usual.booted("0", kernels)[0],
        selected=usual.booted(usual.default, kernels)[0] if usual.default else None,
        default=usual.default or "",
        entries=tuple((kernel, usual.entry_of(kernel)) for kernel in kernels),
        system=system,
        has_files=menu.has_files,
    )


def main(root: str, kernels: list[str]) -> None:
    """Print NAME=VALUE lines for the kernel guard; those of entries are named by their kernel."""
    answer = ask(root or "/", kernels)
    following = "unknown: %s" % answer.reason if answer.reason else answer.next or ""
    lines = ["next=" + following, "default=" + answer.default]
    lines += ["first=%s" % (answer.first or ""), "selected=%s" % (answer.selected or "")]
    lines += ["files=yes"] if answer.has_files else []
    lines += ["entry of %s=%s" % (kernel, entry) for kernel, entry in answer.entries]
    sys.stdout.buffer.write(("\n".join(lines) + "\n").encode("utf-8", "replace"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
