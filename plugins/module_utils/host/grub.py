# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read from GRUB's configuration which kernel it boots next. Runs on the managed host.

The probe imports this file, and the role nvidia_driver installs it beside its kernel guard, which runs it alone, also
while apt replaces Python: it imports nothing that python3-minimal does not have.

A configuration is a script. It is followed with what GRUB's environment block and the files beside grub.cfg hold. Other
conditions, such as those on disks, are known to GRUB alone, and so is what other files contain: what depends on them is
unknown.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Iterator, NamedTuple, Optional, Tuple, Union

CONFIGURATION, ENVIRONMENT = "/boot/grub/grub.cfg", "/boot/grub/grubenv"
# Of boot loaders whose choice is not read: systemd-boot's, those of Syslinux and U-Boot, GRUB Legacy's.
OTHER_LOADERS = (
    *("%s/loader/loader.conf" % directory for directory in ("/boot", "/boot/efi", "/efi")),
    *("/boot/%s" % name for name in ("extlinux/extlinux.conf", "extlinux.conf", "syslinux/syslinux.cfg")),
    "/boot/grub/menu.lst",
)
SUBMENU, SEVERAL, OTHER = ">", "?", "<"  # in place of a kernel
# As in GRUB's lexer: braces and separators end a word unless they are quoted, and # in a word begins no comment.
_TOKEN = re.compile(
    r"""(?P<nothing>[ \t\r]+|\\\n|\#[^\n]*)
    |(?P<mark>[\n;{}&|<>])
    |(?P<word>(?:[^{}|&$;<>\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\$\{[^}\n]*\}|\$)+)""",
    re.VERBOSE | re.DOTALL,
)
_NAME = r"\$(?:(\w+|[?@*#])|\{([^}\n]*)\})"
_PART = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|""" + _NAME, re.DOTALL)
_QUOTED_PART = re.compile(r'\\(["\\$])|' + _NAME)
_BETWEEN = {"\n", ";"}
_RESERVED = {"then", "elif", "else", "fi", "do", "done", "esac", "}", "&", "|", "<", ">"}  # GRUB has no pipes
_VARIABLE = re.compile(r"^([A-Za-z_]\w*)=((?:[^\\\n]|\\.)*)$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+")
_OPTIONS = ("--class", "--users", "--hotkey", "--source", "--id")  # of a menu entry, with a value
_ONCE = ("next_entry", "initrdfail", "gpuhost_entry")  # in the environment, in place of the configuration's default
_DIRECTORY = "(gpuhost)"  # stands for the directory of grub.cfg, which GRUB knows as $prefix
# The variables that decide, none of which GRUB sets by itself, and its own ones of those that grub-mkconfig asks for.
_INITIAL = {
    **dict.fromkeys(("default", "next_entry", "prev_entry", "saved_entry", "prev_saved_entry", "boot_once"), ""),
    **dict.fromkeys(("initrdfail", "menuentry_id_option", "gpuhost_entry", "gpuhost_tries"), ""),
    "feature_menuentry_id": "y",  # since GRUB 2.00
    "prefix": _DIRECTORY,
    "config_directory": _DIRECTORY,
}
_ONLY_READ = {"[", "test", "echo", "export", "save_env", "insmod"}  # others may set the variables that they name
_LEAVE = {"configfile", "legacy_configfile", "syslinux_configfile", "extract_entries_configfile", "normal", "return"}
_LEAVE |= {"normal_exit", "exit", "boot", "reboot", "halt"}
_SOURCE = {"source", ".", "legacy_source", "syslinux_source", "extract_entries_source"}


class Command(NamedTuple):
    """A command: its words as they are written, and the statements between its braces."""

    words: tuple[str, ...]
    block: list[Statement] | None


class Choice(NamedTuple):
    """What a condition decides: one of the branches is run, perhaps an empty one.

    test: the command whose success selects the first branch, else the other; None where that is not followed.
    repeats: whether it may be decided again after each branch.
    """

    branches: list[list[Statement]]
    test: Command | None = None
    repeats: bool = False


Statement = Union[Command, Choice]
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


def _value(word: str, variables: dict[str, str] | None = None) -> str | None:
    """Return a word without its quotes and with the values of its variables, or None where one is unknown.

    Without `variables`, their names are left as in ${name}.
    """
    unknown = []

    def value(name: str, is_quoted: bool) -> str:
        if variables is None:
            return "${%s}" % name
        found = variables.get(name)
        if found is None or (not is_quoted and re.search(r"\s", found)):  # which would be several words
            unknown.append(name)
        return found or ""

    def quoted(found: re.Match[str]) -> str:
        escaped, name, braced = found.groups()
        return escaped or value(name or braced, True)

    def part(found: re.Match[str]) -> str:
        single, double, escaped, name, braced = found.groups()
        if single is not None:
            return single
        if double is not None:
            return _QUOTED_PART.sub(quoted, double)
        return "".join(escaped.split("\n")) if escaped else value(name or braced, False)

    said = _PART.sub(part, word)
    return None if unknown else said


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
                condition = self._block("do")
                found += [*condition, Choice([[*self._block("done"), *condition], []], repeats=True)]
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
        test = condition[-1] if isinstance(condition[-1], Command) else None
        branch = self._until("elif", "else", "fi")
        word, _line = self._tokens[self._at]
        if word == "elif":
            return [*condition, Choice([branch, self._if()], test)]
        self._at += 1
        other = self._block("fi") if word == "else" else []
        return [*condition, Choice([branch, other], test)]

    def _command(self) -> Command:
        words: list[str] = []
        block = None
        while self._at < len(self._tokens) and block is None:
            word, _line = self._tokens[self._at]
            is_function = len(words) == 2 and words[0] == "function"  # whose { may be on another line
            if word in "}&|<>" or (word in _BETWEEN and not is_function):
                break
            self._at += 1
            if word == "{":
                block = self._block("}")
            elif word not in _BETWEEN:
                words.append(word)
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
    """The menu that a configuration builds: its entries, submenus before theirs, and the one that it boots by default.

    environment: the variables in GRUB's environment block. default: None where it is unknown. unread: what grub.cfg
    runs and this does not read. left: how grub.cfg leaves its menu; then nothing of it is known.
    """

    def __init__(self, root: str, text: str, environment: dict[str, str]) -> None:
        self.entries: list[Entry] = []
        self.unread = self.left = ""
        self._root, self._environment = root, environment
        self._functions: dict[str, list[Statement]] = {}
        self._variables = dict(_INITIAL)  # those whose value is known
        self._stops: list[dict[str, str]] = []  # the variables where a loop may end
        self._read(_Script(text).statements, _Level(), (), False)
        default = self._variables.get("default")
        self.default = "0" if default == "" else default

    def _read(
        self,
        statements: list[Statement],
        level: _Level,
        above: tuple[Names, ...],
        is_conditional: bool,
        calls: tuple[str, ...] = (),
    ) -> None:
        for statement in statements:
            if isinstance(statement, Choice):
                self._choose(statement, level, above, is_conditional, calls)
            else:
                self._run(statement, level, above, is_conditional, calls)

    def _choose(
        self, choice: Choice, level: _Level, above: tuple[Names, ...], is_conditional: bool, calls: tuple[str, ...]
    ) -> None:
        """Read the branch that is run; where that is unknown, each, and only what they agree on stays known."""
        succeeds = self._succeeds(choice.test)
        if succeeds is not None:
            self._read(choice.branches[0 if succeeds else 1], level, above, is_conditional, calls)
            return
        outer = self._stops
        while True:
            before, count, self._stops = self._variables, len(self.entries), []
            after = []
            for branch in choice.branches:
                self._variables = dict(before)
                self._read(branch, level, above, True, calls)
                after.append(self._variables)
            if not choice.repeats:
                outer += self._stops
            else:
                after += self._stops
            self._variables = dict(set.intersection(*(set(each.items()) for each in after)))
            if not choice.repeats or self._variables == before:
                break
            del self.entries[count:]  # the next round begins with what this one leaves
        self._stops = outer

    def _run(
        self, command: Command, level: _Level, above: tuple[Names, ...], is_conditional: bool, calls: tuple[str, ...]
    ) -> None:
        written, block = command.words[1 if command.words[:1] == ("!",) else 0 :], command.block
        words = self._words(written)
        name = words[0] if words else ""
        if self._assign(written, words):
            pass
        elif name is None:
            self._miss(level, written[0])
        elif name == "unset":
            for variable in words[1:]:
                self._variables[variable or ""] = ""
        elif name == "load_env":
            self._load(level, words[1:])
        elif name in ("menuentry", "submenu") and block is not None:
            title, identifier = _title(words[1:])
            names = (*above, (level.index(is_conditional), identifier, title))
            # Those of another partition have kernels of the same names.
            is_other = any("osprober-" in word for word in written)
            kernel = SUBMENU if name == "submenu" else OTHER if is_other else self._kernel(block)
            self.entries.append(Entry(names, kernel, is_conditional))
            if name == "submenu":  # which is run when it is opened
                before = dict(self._variables), self.unread, self.left
                self._read(block, _Level(), names, is_conditional)
                self._variables, self.unread, self.left = before
        elif name == "function" and block is not None:  # read where it is called
            self._functions[words[-1] or ""] = block
        elif name in _SOURCE:
            self._source(words[-1] if name in ("source", ".") else None, written, level, above, is_conditional, calls)
        elif name == "eval":
            self._miss(level, " ".join(written))
        elif name in _LEAVE:
            self.left = self.left or name
            level.is_certain = False
        elif name in ("break", "continue"):
            self._stops.append(dict(self._variables))
        elif name in self._functions and name not in calls:
            self._read(self._functions[name], level, above, is_conditional, (*calls, name))
        elif name not in _ONLY_READ:
            for variable in re.findall(r"\w+", " ".join(word or "" for word in words)):
                self._variables.pop(variable, None)

    def _words(self, written: tuple[str, ...]) -> list[str | None]:
        """Return the words as GRUB runs them, where an empty variable without quotes is none; None for unknown ones."""
        words = [(word, _value(word, self._variables)) for word in written]
        return [value for word, value in words if value != "" or "'" in word or '"' in word]

    def _assign(self, written: tuple[str, ...], words: list[str | None]) -> bool:
        """Run an assignment; return whether the command is one."""
        at = 1 if written[:1] == ("set",) and len(words) > 1 else 0
        if not words[at:]:
            return False
        name, is_set, _rest = written[at].lstrip("\"'").partition("=")
        value = words[at]
        if value is not None:
            name, is_set, value = value.partition("=")
        if not is_set or not re.fullmatch(r"\w+", name):
            return False
        if value is None:
            self._variables.pop(name, None)
        else:
            self._variables[name] = value
        return True

    def _load(self, level: _Level, words: list[str | None]) -> None:
        """Run load_env, which loads every variable of a file, or those that it names."""
        names, path, is_path = [], "%s/%s" % (_DIRECTORY, os.path.basename(ENVIRONMENT)), False
        for word in words:
            option, is_set, value = (word or "").partition("=")
            if is_path or (option == "--file" and is_set):
                path, is_path = (word or "") if is_path else value, False
            elif option in ("-f", "--file"):
                is_path = True
            elif not option.startswith("-"):
                names.append(word)
        if self._below(path) != ENVIRONMENT or None in names:
            self._miss(level, path)
            return
        self._variables.update({name: value for name, value in self._environment.items() if name in names or not names})

    def _source(
        self,
        path: str | None,
        written: tuple[str, ...],
        level: _Level,
        above: tuple[Names, ...],
        is_conditional: bool,
        calls: tuple[str, ...],
    ) -> None:
        at = self._below(path)
        text = _read(self._root, at) if at and at not in calls else None
        try:
            statements = None if text is None else _Script(text).statements
        except ValueError:  # GRUB has run what is before the error
            statements = None
        if at is None or statements is None:
            self._miss(level, written[-1])
        else:
            self._read(statements, level, above, is_conditional, (*calls, at))

    def _miss(self, level: _Level, what: str) -> None:
        """Know no variable and no number of an entry any more: what is run here is not read."""
        self.unread = self.unread or what
        self._variables.clear()
        level.is_certain = False

    def _below(self, path: str | None) -> str | None:
        """Return where a file beside grub.cfg is on the host; None for others, whose devices GRUB alone knows."""
        directory, slash, name = (path or "").partition("/")
        is_beside = directory == _DIRECTORY and slash and name
        return "%s/%s" % (os.path.dirname(CONFIGURATION), name) if is_beside else None

    def _succeeds(self, command: Command | None) -> bool | None:
        """Return whether a command succeeds, or None where only GRUB knows."""
        words = self._words(command.words) if command else []
        if words[:1] == ["!"]:
            return _not(self._succeeds(command._replace(words=command.words[1:]))) if command else None
        if words in (["true"], ["false"]):
            return words == ["true"]
        if words[:1] == ["["] and words[-1] == "]":
            return self._holds(words[1:-1])
        return self._holds(words[1:]) if words[:1] == ["test"] else None

    def _holds(self, words: list[str | None]) -> bool | None:
        """Return what `test` says, or None where only GRUB knows."""
        for operator, decides in (("-o", True), ("-a", False)):
            if operator in words:
                at = words.index(operator)
                both = (self._holds(words[:at]), self._holds(words[at + 1 :]))
                return decides if decides in both else None if None in both else not decides
        known = [word for word in words if word is not None]
        if words[:1] == ["!"] and len(words) > 1:
            return _not(self._holds(words[1:]))
        if known != words or len(words) > 3 or "(" in words:
            return None
        if len(known) < 2:
            return known != [""]  # GRUB's [ ] succeeds
        if len(known) == 3:
            left, operator, right = known
            return (left == right) == (operator != "!=") if operator in ("=", "==", "!=") else None
        operator, operand = known
        if operator in ("-n", "-z"):
            return (operand != "") == (operator == "-n")
        at_host = self._below(operand)
        if at_host is None or operator not in ("-e", "-f", "-s"):
            return None
        file = os.path.join(self._root, at_host.lstrip("/"))
        return os.path.isfile(file) and (operator != "-s" or os.path.getsize(file) > 0)

    def _kernel(self, block: list[Statement]) -> str:
        kernels = self._kernels(block, {""})
        return kernels.pop() if len(kernels) == 1 else SEVERAL

    def _kernels(self, statements: list[Statement], before: set[str], calls: tuple[str, ...] = ()) -> set[str]:
        """Return what these statements may leave to be booted: GRUB boots what it loaded last."""
        for statement in statements:
            if isinstance(statement, Choice):
                before = set().union(*(self._kernels(branch, before, calls) for branch in statement.branches))
                continue
            name, *words = [_value(word) or "" for word in statement.words] or [""]
            if re.fullmatch("linux(efi|16)?", name):
                before = {"".join(words[:1]).rpartition("vmlinuz-")[2]}
            elif name in ("chainloader", "ntldr"):  # or a kernel of this system, as an EFI program
                before = {"" if re.search("linu[xz]", " ".join(words), re.IGNORECASE) else OTHER}
            elif name in self._functions and name not in calls:
                before = self._kernels(self._functions[name], before, (*calls, name))
        return before

    def booted(self, entry: str, kernels: list[str]) -> tuple[str | None, str]:
        """Return the kernel that an entry boots and "", or None and the reason why that is not known."""
        found = self._find(entry)
        if found is None:
            return None, "GRUB's menu has no entry %s" % entry
        if not _is_named(found, _parts(entry)):
            return None, "which entry of GRUB's menu is %s depends on a condition of GRUB" % entry
        if found.kernel == SUBMENU:
            return None, "entry %s of GRUB's menu is a submenu, which waits for a choice" % entry
        if found.kernel == SEVERAL:
            return None, "entry %s of GRUB's menu boots what a condition of GRUB selects" % entry
        if found.kernel == OTHER:
            return None, "entry %s of GRUB's menu starts another system" % entry
        if found.kernel not in kernels:
            return None, "entry %s of GRUB's menu boots no kernel in /boot" % entry
        if found.is_conditional:
            return None, "entry %s of GRUB's menu depends on a condition of GRUB" % entry
        return found.kernel, ""

    def system(self, entry: str) -> str:
        """Return the title of an entry, by its name, that starts another system; empty where it does not."""
        found = self._find(entry)
        is_other = found is not None and found.kernel == OTHER and _is_named(found, _parts(entry))
        return (found.names[-1][2] or entry) if found and is_other and not found.is_conditional else ""

    def _find(self, entry: str) -> Entry | None:
        return next((each for each in self.entries if _is_named(each, _parts(entry), perhaps=True)), None)

    def entry_of(self, kernel: str) -> str:
        """Return the identifiers of the entry of a kernel that no condition can take away, or "" without one."""
        for entry in self.entries:
            is_own = (entry.names[-1][1] or "").startswith("gnulinux-%s-advanced-" % kernel)
            if is_own and entry.kernel == kernel and not entry.is_conditional and all(name[1] for name in entry.names):
                return ">".join(name[1] or "" for name in entry.names)
        return ""


def _not(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


def _title(words: list[str | None]) -> tuple[str | None, str | None]:
    """Return the title of a menu entry and its identifier, each None where it is unknown."""
    titles: list[str | None] = []
    identifier: str | None = ""
    option = ""
    for word in words:
        name, is_set, value = (word or "").partition("=")
        if option:
            identifier = word if option == "--id" else identifier
            option = ""
        elif word is None:  # perhaps an option, or no word
            titles, identifier = titles or [None], None
        elif name in _OPTIONS:
            identifier = value if name == "--id" and is_set else identifier
            option = "" if is_set else name
        elif not word.startswith("--"):
            titles.append(word)
    return (titles or [""])[0], identifier


def _parts(entry: str) -> list[str]:
    """Return the names on each level of an entry's name."""
    return [part.replace(">>", ">") for part in re.split("(?<!>)>(?!>)", entry)]


def _is_named(entry: Entry, parts: list[str], perhaps: bool = False) -> bool:
    """Return whether `parts` names an entry, or perhaps one of which a name is unknown.

    What begins with a digit is an index for GRUB, even if an entry has that title.
    """
    return len(parts) == len(entry.names) and all(
        (names[0] == str(int(number.group())) or (perhaps and names[0] == "?"))
        if number
        else part and (part in names[1:] or (perhaps and None in names[1:]))
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
    where that starts another system.
    """

    next: str | None = None
    reason: str = ""
    first: str | None = None
    selected: str | None = None
    default: str = ""
    entries: tuple[tuple[str, str], ...] = ()
    system: str = ""


def ask(root: str, kernels: list[str]) -> Answer:
    """Return what GRUB's configuration says. kernels: those in /boot, oldest first.

    Without a file of any boot loader the newest kernel is booted, as the installation of a kernel arranges it; a
    container without a kernel boots None, for no reason.
    """
    try:
        text, block = (_read(root, path) for path in (CONFIGURATION, ENVIRONMENT))
        if text is None or not kernels:
            newest = kernels[-1] if kernels else None
            other = next((path for path in OTHER_LOADERS if kernels and _read(root, path) is not None), "")
            reason = "%s is of another boot loader, whose choice is not read" % other if other else ""
            return Answer(None if reason else newest, reason, newest, newest, "0")
        kept = {name: re.sub(r"(?s)\\(.)", r"\1", value) for name, value in _VARIABLE.findall(block or "")}
        menu = Menu(root, text, kept)
        usual = Menu(root, text, {name: value for name, value in kept.items() if name not in _ONCE})
    except PermissionError as error:
        return Answer(reason="GRUB's configuration cannot be read: %s" % error)
    except ValueError as error:
        return Answer(reason="%s is not a script of GRUB: %s" % (CONFIGURATION, error))
    if menu.left:
        return Answer(reason="grub.cfg leaves its menu: it runs %s" % menu.left)
    answer = Answer(
        first=usual.booted("0", kernels)[0],
        selected=usual.booted(usual.default, kernels)[0] if usual.default else None,
        default=usual.default or "",
        entries=tuple((kernel, usual.entry_of(kernel)) for kernel in kernels),
    )
    if menu.default:
        kernel, reason = menu.booted(menu.default, kernels)
    elif menu.unread:
        kernel, reason = None, "%s, which grub.cfg runs, may choose another entry of GRUB's menu" % menu.unread
    else:
        kernel, reason = None, "which entry of GRUB's menu is its default depends on a condition of GRUB"
    return answer._replace(next=kernel, reason=reason, system=menu.system(menu.default or ""))


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
