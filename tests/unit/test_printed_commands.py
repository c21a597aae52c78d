"""Each command that messages and documents print is run by its program's own parser, where it was printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import command_line
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command.plan_options import parser
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands

from tests.documents import PROJECT, printed

TABLE = yaml.safe_load(Path(printed.__file__).with_name("printed.yml").read_text())
WORDS, COMMANDS = set(TABLE["words"]), TABLE["commands"]
CALL = re.compile(r"\[\[(\w+)(?: (.*))?\]\]")
# What makes a program read its arguments and do nothing, before or after them. A shell reads each line; of a program
# that is not here, or not on this machine, it alone does.
LAST = {
    **dict.fromkeys(("journalctl", "systemctl", "ldconfig", "df", "du", "ls"), "--version"),
    **dict.fromkeys(("grep", "cat", "tee", "sed", "curl"), "--version"),
    **dict.fromkeys(("apt-get", "apt-mark", "apt-cache", "dnf", "install", "rm"), "--help"),
    "fuser": "-V",
}
FIRST = {"sysctl": "--dry-run", "mount": "--fake", "ps": "", "lspci": "", "env": "", "dpkg": "--dry-run"}
REFUSED = re.compile("unrecognized|invalid|unknown|not understood|no such command|usage:", re.IGNORECASE)


def key_of(sentence: str) -> str:
    """Return the known command, or the words, with which a sentence begins; the longest; empty without any."""
    known = [text for text in (*COMMANDS, *WORDS) if re.match(re.escape(text) + r"(?!\w)", sentence)]
    return max(known, key=len, default="")


def test_each_command_that_a_message_prints_is_known() -> None:
    """A new one needs a line in printed.yml, and one that no message prints any more has none."""
    spans, sentences = printed.spans(), list(printed.in_sentences())
    unknown = {text: name for text, name in spans.items() if not CALL.fullmatch(text)}.keys() - COMMANDS.keys() - WORDS
    assert {text: spans[text] for text in unknown} == {}
    assert {text: name for text, name in sentences if not key_of(text)} == {}
    used = spans.keys() | {key_of(text) for text, _ in sentences}
    assert (COMMANDS.keys() | WORDS) - used == set()
    assert len(COMMANDS) > 150
    assert [text for text, example in COMMANDS.items() if not example and re.search("{.*}|%", text)] == []


def wrong_arguments(words: list[str]) -> str:
    """Return what a program says against its arguments; empty if it takes them, or is not on this machine."""
    program = words[0]
    if program == "script/plan":
        parser().parse_args(words[1:])
    elif program == "gpuhost-verify":
        command_line.parse(words[1:])
    elif program.startswith("script/"):
        return ended([str(PROJECT / program), *words[1:], "--help"])
    elif shutil.which(program) and program in LAST:
        return ended([*words, LAST[program]])
    elif shutil.which(program) and program in FIRST:
        return ended([word for word in (program, FIRST[program], *words[1:]) if word])
    return ""


def ended(command: list[str]) -> str:
    """Return what a command printed that ended with a usage error."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    says = done.stdout + done.stderr
    is_refused = done.returncode and REFUSED.search(says)  # what it does not find is no mistake of the command
    return f"{shlex.join(command)}: {done.returncode}: {says[:300]}" if is_refused else ""


def test_each_command_of_another_program_is_one_that_its_program_takes() -> None:
    """Capitals, such as NAME, are for the reader, and are words for the program, too."""
    lines = [example or command for command, example in COMMANDS.items()]
    shell = subprocess.run(["bash", "-n"], input="\n".join(lines), capture_output=True, text=True)
    assert shell.stderr == ""
    wrong = []
    for line in lines:
        for part in re.split(r" (?:&&|\||and) ", line):
            words = shlex.split(part)
            wrong.append(wrong_arguments(words[1:] if words[0] == "sudo" else words))
    assert [text for text in wrong if text] == []


# Playbooks -----------------------------------------------------------------------------------------------------------


def calls() -> list[tuple[str, list[str]]]:
    """Return the playbooks that messages name, with their variables."""
    found = {(text[1], text[2] or "") for span in printed.spans() if (text := CALL.fullmatch(span))}
    modules = "\n".join(path.read_text() for path in (PROJECT / "plugins").rglob("*.py"))
    found |= {(name, "") for name in re.findall(r'(?:call|commands\.of)\(\W?["\'](\w+)["\']', modules)}
    found |= {("gpu_host", "gpu_stack_converge=always"), ("gpu_host", "gpu_stack_adopt=false")}
    return [(name, variables.split()) for name, variables in sorted(found)]


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which Ansible finds this project as an installed collection."""
    folder = tmp_path_factory.mktemp("collections")
    (folder / "ansible_collections/gpuhost").mkdir(parents=True)
    (folder / "ansible_collections/gpuhost/stack").symlink_to(PROJECT)
    return folder


def syntax_errors(commands: Iterable[str], folder: Path, collections: Path) -> list[str]:
    """Return what ansible-playbook says against commands, as it reads them in a folder.

    Those with the same options, besides -e, are one call, with each value of -e.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    variables: dict[tuple[str, ...], list[str]] = {}
    for command in commands:
        program, playbook, *words = shlex.split(command)
        assert Path(program).name == "ansible-playbook"
        values = [at + 1 for at, word in enumerate(words) if word == "-e"]
        options = tuple(word for at, word in enumerate(words) if at not in values and at + 1 not in values)
        groups.setdefault(options, []).append(playbook)
        variables.setdefault(options, []).extend(f"-e{words[at]}" for at in values)
    path = f"{PROJECT}/.venv/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ANSIBLE_COLLECTIONS_PATH": str(collections)}
    wrong = []
    for options, playbooks in groups.items():
        called = ["ansible-playbook", *dict.fromkeys(playbooks), *options, *variables[options], "--syntax-check"]
        done = subprocess.run(
            called, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode or done.stdout.count("playbook: ") != len(set(playbooks)):
            wrong.append(f"{shlex.join(called)}: {done.stdout}{done.stderr}")
    return wrong


@pytest.mark.parametrize("started", ["clone", "collection", "own"])
def test_each_playbook_that_a_message_names_can_be_run_where_it_was_printed(
    started: str, collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the options of the run; the passwords that -K and -k ask for are not needed to read a command."""
    (tmp_path / "hosts.yml").write_text("gpu_hosts: {hosts: {gpu01: {ansible_connection: local}, gpu 02: {}}}\n")
    (tmp_path / "password").write_text("secret\n")
    run = {
        "inventory": [str(tmp_path / "hosts.yml")],
        "subset": "gpu01,gpu 02",
        "vault_password_files": [str(tmp_path / "password")],
        "become_ask_pass": True,
        "tags": ["verify"],
        "extra_vars": ["gpu_stack_cuda=13.2 token=hunter2", '{"gpu_stack_ignore_gpus": ["0000:02:00.0"]}'],
    }
    playbook = {"clone": "playbooks/verify.yml", "collection": "gpuhost.stack.verify", "own": "site.yml"}[started]
    folder = PROJECT if started == "clone" else tmp_path
    monkeypatch.chdir(folder)
    commands = [Commands({**run, "args": [playbook]}).of(*call) for call in calls()]
    assert {"plan", "gpu_host", "rollback", "teardown", "verify"} - {name for name, _ in calls()} == {"plan"}
    assert all("--limit 'gpu01,gpu 02'" in command and "-K" in command for command in commands)
    assert "hunter2" not in "".join(commands)
    assert syntax_errors(commands, folder, collections) == []


def test_each_playbook_command_of_a_document_can_be_run_in_a_clone(collections: Path) -> None:
    """With one inventory for all: those of documents have the reader's hosts."""
    inventory = f"{PROJECT}/inventories/demo"
    of_collection = "ansible-playbook gpuhost.stack."
    commands = dict.fromkeys(command for command, _ in printed.in_documents())
    assert len(commands) > 20
    shown = [playbook_call.in_a_clone("gpu_host", ["gpu_stack_converge=always"])]
    read = [
        re.sub(r"(-i) \S+|(-l|--limit) \S+", lambda found: f"-i {inventory}" if found[1] else "", command)
        for command in [*commands, *shown]
    ]
    assert any(command.startswith(of_collection) for command in read)
    assert syntax_errors(read, PROJECT, collections) == []
