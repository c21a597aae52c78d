# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read from GRUB's configuration which kernel it boots next. Runs on the managed host.

The probe imports this file, and the role nvidia_driver installs it beside its kernel guard, which runs it alone, also
while apt replaces Python: it imports nothing that python3-minimal does not have.

A configuration is a script. Which of its conditions are true is known to GRUB alone, so what depends on one is unknown.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Iterator, NamedTuple, Union

CONFIGURATION, ENVIRONMENT = "/boot/grub/grub.cfg", "/boot/grub/grubenv"
CUSTOM = "/boot/grub/custom.cfg"
SUBMENU, SEVERAL = ">", "?"  # in place of a kernel
# As in GRUB's lexer: braces and separators end a word unless they are quoted, and # in a word begins no comment.
_TOKEN = re.compile(
    r"""(?P<nothing>[ \t\r]+|\\\n|\#[^\n]*)
    |(?P<mark>[\n;{}&|<>])
    |(?P<word>(?:[^{}|&$;<>\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\$\{[^}\n]*\}|\$)+)""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|\$(\w+)""", re.DOTALL)
_BETWEEN = {"\n", ";", "!"}
_RESERVED = {"then", "elif", "else", "fi", "do", "done", "esac", "}", "&", "|", "<", ">"}  # GRUB has no pipes
_VARIABLE = re.compile(r"^([A-Za-z_]\w*)=((?:[^\\\n]|\\.)*)$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+")
_OPTIONS = ("--class", "--users", "--hotkey", "--source", "--id")  # of a menu entry, with a value
_OWN_DEFAULTS = ("${next_entry}", "${gpuhost_entry}")


class Command(NamedTuple):
    """A command: its words without quotes, and the statements between its braces."""

    words: tuple[str, ...]
    block: list[Statement] | None


class Choice(NamedTuple):
    """What a condition decides: one of the branches is run, perhaps an empty one."""

    branches: list[list[Statement]]


Statement = Union[Command, Choice]


class Entry(NamedTuple):
    """An entry of the menu: the names of its submenus and its own, and the kernel that it boots.

    names: index, identifier and title on each level; the index is "?" where it depends on a condition of GRUB.
    kernel: "" for another system, SUBMENU for a submenu, SEVERAL where a condition selects one of several.
    is_conditional: whether the entry is in the menu depends on a condition.
    """

    names: tuple[tuple[str, str, str], ...]
    kernel: str
    is_conditional: bool


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yield words and marks as they are written, each with its line; raise ValueError for a quote without end."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError("line %d: a quote has no end" % line)
        if not found.group("nothing"):
            yield found.group(), line
        line += found.group().count("\n")
        at = found.end()


def _value(word: str) -> str:
    """Return a word without its quotes; a variable is written as in ${name}."""

    def part(found: re.Match[str]) -> str:
        single, double, escaped, variable = found.groups()
        if double is not None:
            return re.sub(r'\\(["\\$])', r"\1", re.sub(r"(?<!\\)\$(\w+)", r"${\1}", double))
        return single if single is not None else "${%s}" % variable if variable else "".join(escaped.split("\n"))

    return _PART.sub(part, word)


class _Script:
    """A script of GRUB as statements. Raises ValueError, with the line, for what GRUB's parser refuses."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self.statements = self._until()

    def _until(self, *ends: str) -> list[Statement]:
        """Return the statements up to one of the words `ends`, or up to the end of the script."""
        found: list[Statement] = []
        while self._at < len(self._tokens):
            word, line = self._tokens[self._at]
            if word in ends:
                if not found:
                    raise ValueError("line %d: no command before %s" % (line, word))
                return found
            if word in _RESERVED or (ends and word == "function"):  # which GRUB has at the top level alone
                raise ValueError("line %d: unexpected %s" % (line, word))
            if word in _BETWEEN:
                self._at += 1
            elif word == "if":
                found += self._if()
            elif word in ("while", "until", "for", "select"):
                self._at += 1
                found += [*self._block("do"), Choice([self._block("done"), []])]
            elif word == "case":
                found.append(Choice([self._block("esac"), []]))
            else:
                found.append(self._command())
        if ends:
            raise ValueError("%s is missing at the end" % " or ".join(ends))
        return found

    def _block(self, end: str) -> list[Statement]:
        found = self._until(end)
        self._at += 1
        return found

    def _if(self) -> list[Statement]:
        """Return the condition, which is always run, and the choice between its branches."""
        self._at += 1
        condition = self._block("then")
        branch = self._until("elif", "else", "fi")
        word, _line = self._tokens[self._at]
        if word == "elif":
            return [*condition, Choice([branch, self._if()])]
        self._at += 1
        other = self._block("fi") if word == "else" else []
        return [*condition, Choice([branch, other])]

    def _command(self) -> Command:
        words, block = [], None
        while self._at < len(self._tokens) and block is None:
            word, _line = self._tokens[self._at]
            if word in _BETWEEN or word in "}&|<>":
                break
            self._at += 1
            if word == "{":
                block = self._block("}")
            else:
                words.append(_value(word))
        return Command(tuple(words), block)


class _Level:
    """A menu that is being read."""

    def __init__(self) -> None:
        self.count, self.is_certain = 0, True

    def index(self, is_conditional: bool) -> str:
        self.is_certain = self.is_certain and not is_conditional
        self.count += 1
        return str(self.count - 1) if self.is_certain else "?"


class Menu:
    """The menu that a configuration builds: its entries, submenus before theirs, and what it may set as the default."""

    def __init__(self, text: str) -> None:
        self.entries: list[Entry] = []
        self.defaults: set[str] = set()
        self._functions: dict[str, list[Statement]] = {}
        self._read(_Script(text).statements, _Level(), (), False)

    def _read(
        self,
        statements: list[Statement],
        level: _Level,
        above: tuple[tuple[str, str, str], ...],
        is_conditional: bool,
        calls: tuple[str, ...] = (),
    ) -> None:
        for statement in statements:
            if isinstance(statement, Choice):
                for branch in statement.branches:
                    self._read(branch, level, above, True, calls)
                continue
            words, block = statement
            name = words[0] if words else ""
            assigned = words[1] if name == "set" and len(words) > 1 else name
            default = re.match("default=(.*)", assigned, re.DOTALL)
            if default:
                self.defaults.add(default.group(1))
            elif name in ("menuentry", "submenu") and block is not None:
                title, identifier = _title(words[1:])
                names = (*above, (level.index(is_conditional), identifier, title))
                kernel = SUBMENU if name == "submenu" else self._kernel(block, identifier)
                self.entries.append(Entry(names, kernel, is_conditional))
                if name == "submenu":
                    self._read(block, _Level(), names, is_conditional)
            elif name == "function" and block is not None:  # read where it is called
                self._functions[words[-1]] = block
            elif name in ("source", ".") and not words[-1].endswith("/custom.cfg"):
                level.is_certain = False  # the entries of another file
            elif name in self._functions and name not in calls:
                self._read(self._functions[name], level, above, is_conditional, (*calls, name))

    def _kernel(self, block: list[Statement], identifier: str) -> str:
        if identifier.startswith("osprober-"):  # of another partition, whose kernels have the same names
            return ""
        kernels = self._kernels(block, {""})
        return kernels.pop() if len(kernels) == 1 else SEVERAL

    def _kernels(self, statements: list[Statement], before: set[str], calls: tuple[str, ...] = ()) -> set[str]:
        """Return what these statements may leave to be booted: GRUB boots what it loaded last."""
        for statement in statements:
            if isinstance(statement, Choice):
                before = set().union(*(self._kernels(branch, before, calls) for branch in statement.branches))
            elif statement.words and re.fullmatch("linux(efi|16)?", statement.words[0]):
                before = {"".join(statement.words[1:2]).rpartition("vmlinuz-")[2]}
            elif statement.words and statement.words[0] in self._functions and statement.words[0] not in calls:
                name = statement.words[0]
                before = self._kernels(self._functions[name], before, (*calls, name))
        return before

    def booted(self, entry: str, kernels: list[str]) -> tuple[str | None, str]:
        """Return the kernel that an entry boots and "", or None and the reason why that is not known."""
        parts = [part.replace(">>", ">") for part in re.split("(?<!>)>(?!>)", entry)]
        found = next((each for each in self.entries if _is_named(each, parts)), None)
        if found is None and any(_is_named(each, parts, "?") for each in self.entries):
            return None, "which entry of GRUB's menu is %s depends on a condition of GRUB" % entry
        if found is None:
            return None, "GRUB's menu has no entry %s" % entry
        if found.kernel == SUBMENU:
            return None, "entry %s of GRUB's menu is a submenu, which waits for a choice" % entry
        if found.kernel == SEVERAL:
            return None, "entry %s of GRUB's menu boots what a condition of GRUB selects" % entry
        if found.kernel not in kernels:
            return None, "entry %s of GRUB's menu boots no kernel in /boot" % entry
        if found.is_conditional:
            return None, "entry %s of GRUB's menu depends on a condition of GRUB" % entry
        return found.kernel, ""

    def entry_of(self, kernel: str) -> str:
        """Return the identifiers of the entry of a kernel that no condition can take away, or "" without one."""
        for entry in self.entries:
            is_own = entry.names[-1][1].startswith("gnulinux-%s-advanced-" % kernel)
            if is_own and entry.kernel == kernel and not entry.is_conditional and all(name[1] for name in entry.names):
                return ">".join(name[1] for name in entry.names)
        return ""


def _title(words: tuple[str, ...]) -> tuple[str, str]:
    """Return the title of a menu entry and its identifier."""
    titles, identifier, option = [], "", ""
    for word in words:
        name, is_set, value = ("--id" if word == "${menuentry_id_option}" else word).partition("=")
        if option:
            identifier = word if option == "--id" else identifier
            option = ""
        elif name in _OPTIONS:
            identifier = value if name == "--id" and is_set else identifier
            option = "" if is_set else name
        elif not word.startswith("--"):
            titles.append(word)
    return (titles or [""])[0], identifier


def _is_named(entry: Entry, parts: list[str], any_index: str = "") -> bool:
    """Return whether `parts` names an entry, or perhaps one whose index is `any_index`.

    What begins with a digit is an index for GRUB, even if an entry has that title.
    """
    return len(parts) == len(entry.names) and all(
        names[0] in (str(int(number.group())), any_index) if number else part and part in names[1:]
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

    reason: why the next one is not known. default: the entry that the configuration chooses ("" where it sets more than
    one). entries: kernels, each with the identifiers of its entry, or "" without one.
    """

    next: str | None = None
    reason: str = ""
    first: str | None = None
    selected: str | None = None
    default: str = ""
    entries: tuple[tuple[str, str], ...] = ()


def ask(root: str, kernels: list[str]) -> Answer:
    """Return what GRUB's configuration says. kernels: those in /boot, oldest first.

    Without a grub.cfg the newest kernel is booted, as the installation of a kernel arranges it for other boot loaders;
    a container without a kernel boots None, for no reason.
    """
    try:
        text, environment, custom = (_read(root, path) for path in (CONFIGURATION, ENVIRONMENT, CUSTOM))
    except PermissionError as error:
        return Answer(reason="GRUB's configuration cannot be read: %s" % error)
    if text is None or not kernels:
        newest = kernels[-1] if kernels else None
        return Answer(newest, "", newest, newest, "0")
    kept = {name: re.sub(r"(?s)\\(.)", r"\1", value) for name, value in _VARIABLE.findall(environment or "")}
    try:
        menu = Menu(text)
    except ValueError as error:
        return Answer(reason="%s is not a script of GRUB: %s" % (CONFIGURATION, error))
    defaults = sorted(menu.defaults.difference(_OWN_DEFAULTS) or {""})
    default = "" if len(defaults) > 1 else (defaults[0].replace("${saved_entry}", kept.get("saved_entry", "")) or "0")
    answer = Answer(
        first=menu.booted("0", kernels)[0],
        selected=menu.booted(default, kernels)[0],
        default=default,
        entries=tuple((kernel, menu.entry_of(kernel)) for kernel in kernels),
    )
    if custom is not None and "custom.cfg" in text:
        return answer._replace(reason="%s may choose another entry of GRUB's menu" % CUSTOM)
    entry = kept.get("next_entry") or _guarded(text, kept) or default
    if not entry:
        return answer._replace(reason="grub.cfg sets GRUB's default to more than one entry")
    kernel, reason = menu.booted(entry, kernels)
    return answer._replace(next=kernel, reason=reason)


def _guarded(text: str, kept: dict[str, str]) -> str:
    """Return the entry that the kernel guard has GRUB boot in place of its default (07_gpuhost), or ""."""
    is_asked = "gpuhost_entry" in text and not kept.get("prev_saved_entry")
    return kept.get("gpuhost_entry", "") if is_asked and kept.get("gpuhost_tries") not in ("1", "2", "3") else ""


def main(root: str, kernels: list[str]) -> None:
    """Print NAME=VALUE lines for the kernel guard; those of entries are named by their kernel."""
    answer = ask(root or "/", kernels)
    following = "unknown: %s" % answer.reason if answer.reason else answer.next or ""
    lines = ["next=" + following, "default=" + answer.default]
    lines += ["first=%s" % (answer.first or ""), "selected=%s" % (answer.selected or "")]
    lines += ["entry of %s=%s" % (kernel, entry) for kernel, entry in answer.entries]
    sys.stdout.buffer.write(("\n".join(lines) + "\n").encode("utf-8", "replace"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
