"""The stdout callback under the real ansible-playbook: what it leaves out, and what it prints as Ansible does."""

import json
import os
import pty
import re
import select
import shutil
import struct
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

import pyte
import pytest

from tests.unit.ansible_runs import (
    COLLECTIONS,
    INTERPRETER,
    PROJECT,
    THIS_MACHINE,
    Done,
    empty_apt,
    run_play,
    run_playbook,
)

QUIET = {"ANSIBLE_STDOUT_CALLBACK": "gpuhost.stack.progress", "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
ANSIBLE = {**QUIET, "ANSIBLE_STDOUT_CALLBACK": "default"}
# A playbook of the user's own, beside tasks of this collection: each kind of output that Ansible has.
SITE = """
- name: Prepare the site
  hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: "a message of the site"}
    - name: Write a file
      ansible.builtin.copy: {content: "new\\n", dest: "{{ playbook_dir }}/motd"}
      notify: Reload
    - name: Look at items
      ansible.builtin.set_fact: {seen: "{{ item }}"}
      when: item == "a"
      loop: [a, b]
    - ansible.builtin.command: "true"
      when: false
    - name: Fail and go on
      ansible.builtin.fail: {msg: ignored}
      ignore_errors: true
    - block:
        - ansible.builtin.fail: {msg: rescued}
      rescue:
        - ansible.builtin.debug: {msg: "after the rescue"}
    - ansible.builtin.set_stats: {data: {site: 1}}
  handlers:
    - name: Reload
      ansible.builtin.set_fact: {reloaded: true}
      changed_when: true
- name: Break the site
  hosts: all
  gather_facts: false
  tasks:
    - name: Ask the licence server
      ansible.builtin.fail: {msg: "the licence server does not answer"}
"""
# Of this collection: harmless on any machine. The role's arguments are checked by Ansible.
OWN_ROLE = {"ansible.builtin.include_role": {"name": "gpuhost.stack.env_paths", "tasks_from": "main"}}


def printed(done: Done) -> str:
    """Return stdout without what differs between two runs."""
    times = r"\d+\.\d+-\d+-\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+|0:00:\d\d\.\d+"
    return re.sub(times, "N", done.stdout)


@pytest.mark.parametrize("words", [("--check",), ("-v", "--diff"), ("--list-tasks",)], ids=" ".join)
def test_a_site_playbook_is_printed_as_ansible_prints_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours = run_play(tmp_path / "ours", SITE, *words, ANSIBLE_SHOW_CUSTOM_STATS="true", **QUIET)
    theirs = run_play(tmp_path / "theirs", SITE, *words, ANSIBLE_SHOW_CUSTOM_STATS="true", **ANSIBLE)
    assert theirs.stdout.count("\n") > 5, theirs.stderr
    assert printed(ours).replace("/ours/", "/theirs/") == printed(theirs)
    assert ours.returncode == theirs.returncode


def test_each_step_is_asked_for_as_ansible_does(tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text(SITE)
    runs = [
        run_playbook(tmp_path, "play.yml", *THIS_MACHINE, "--step", answers="y\nn\nc\n", **which)
        for which in (QUIET, ANSIBLE)
    ]
    assert "Perform task" in runs[1].stdout
    # The first run writes the file.
    assert printed(runs[0]).replace("changed", "ok") == printed(runs[1]).replace("changed", "ok")


PLANNED = ("-i", "hosts.json", *INTERPRETER)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Runs of playbooks on names of this machine, which has no GPU: three of them, fewer where each is probed."""
    folder = tmp_path_factory.mktemp("plan")
    apt = empty_apt(folder / "apt")
    few = {"gpu_stack_tensorflow": "none", "gpu_stack_pytorch": "none"}
    hosts = {name: {"ansible_connection": "local", "gpu_stack_expect_gpus": 0, **few} for name in "abc"}
    (folder / "hosts.json").write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    runs: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
        "quiet": (QUIET, ("--limit", "a,b")),
        "verbose": (QUIET, ("-v", "--limit", "a")),
        "ansible": (ANSIBLE, ("-v", "--limit", "a,b")),
        "typo": (QUIET, ("-e", "gpu_stack_rebot=never")),
    }

    def run(playbook: str, *words: str, **which: str) -> Done:
        return run_playbook(folder, PROJECT / f"playbooks/{playbook}.yml", *PLANNED, *words, **apt, **which)

    found = {name: run("preflight", *words, **which) for name, (which, words) in runs.items()}
    refused = run("provision", "-e", "gpu_stack_cuda=1.0", **QUIET)
    return {**found, "refused": refused}


def headings(done: Done) -> list[str]:
    return re.findall(r"^(?:PLAY|TASK) .*", done.stdout, re.MULTILINE)


def test_own_tasks_are_left_out_and_with_v_none_is(plan: dict[str, Done]) -> None:
    assert len(headings(plan["ansible"])) > 4
    assert headings(plan["verbose"]) == headings(plan["ansible"])
    assert [line for line in headings(plan["quiet"]) if "Refuse this host" not in line] == []
    assert plan["quiet"].stdout.count("a, b  ") == 1  # the plan is not left out, and printed once
    assert all(f"\n{host}  " in f"\n{plan['ansible'].stdout}" for host in "ab")


def test_a_failure_of_several_hosts_is_printed_once_with_their_names(plan: dict[str, Done]) -> None:
    before_the_summary = plan["typo"].stdout.split("hosts=3 : ")[0]
    assert before_the_summary.count("no such variable; did you mean gpu_stack_reboot?") == 1
    (line,) = [line for line in before_the_summary.splitlines() if "for the same reason as" in line]
    named = re.findall(r"\[([abc](?:, [abc])?)\]", line)
    assert sorted(", ".join(named).split(", ")) == ["a", "b", "c"]


def test_a_host_that_fails_in_its_batch_and_at_the_end_is_printed_once(plan: dict[str, Done]) -> None:
    """provision.yml on hosts without a plan; the report has the task that failed first."""
    before_the_summary, summary = plan["refused"].stdout.split("hosts=3 : ")
    assert plan["refused"].returncode == 2
    (first,) = re.findall(r"fatal: \[(\w)\]: FAILED!", before_the_summary)
    assert first in "abc", "that of which Ansible has the result first"
    assert before_the_summary.count("This host has problems") == 1
    (folder,) = re.findall(r"^Report: (.*)/report.md", summary, re.MULTILINE)
    failures = [json.loads(path.read_text())["task"] for path in Path(folder).glob("*/failure.json")]
    assert failures == ["Refuse hosts with problems"] * 3


def test_the_cause_the_host_and_the_remedy_are_in_the_last_lines_of_a_run_on_ten_hosts(tmp_path: Path) -> None:
    problem = {"code": "no-gpu", "message": "the host has no NVIDIA GPU", "remedy": "insert one"}
    plans = [{"ok": not problems, "components": {}, "problems": problems} for problems in ([], [problem])]
    tasks = [
        {"ansible.builtin.set_fact": {"gpu_stack_plan": plans[0]}},
        {"ansible.builtin.set_fact": {"gpu_stack_plan": plans[1]}, "when": "inventory_hostname == 'gpu03'"},
        {"ansible.builtin.fail": {"msg": "refused"}, "when": "not gpu_stack_plan.ok"},
    ]
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    hosts = "".join(f"gpu{number:02}," for number in range(1, 11))
    settings = {**QUIET, "ANSIBLE_CALLBACKS_ENABLED": "gpuhost.stack.evidence"}
    done = run_play(tmp_path, play, "-i", hosts, "--limit", "gpu*", **settings)
    end = done.stdout.splitlines()[-15:]
    assert "gpu03: no-gpu: the host has no NVIDIA GPU" in end, done.stdout + done.stderr
    assert "gpu03: remedy for no-gpu: insert one" in end


def test_programs_still_find_the_sums_of_changes(plan: dict[str, Done]) -> None:
    """Molecule's check for idempotence is this search, in molecule/command/idempotence.py."""
    (line,) = [line for line in plan["quiet"].stdout.splitlines() if " : ok=" in line]
    sums = dict.fromkeys(("ok", "changed", "failed", "skipped"), 0)
    recap = plan["ansible"].stdout.split("PLAY RECAP")[1]
    for name in sums:
        sums[name] = sum(int(number) for number in re.findall(rf"{name}=(\d+)", recap))
        assert f" {name}={sums[name]} " in line
    assert sums["failed"] == 2


def test_tasks_of_roles_in_a_site_playbook_are_left_out_and_its_own_are_not(tmp_path: Path) -> None:
    tasks = [OWN_ROLE, {"name": "Greet", "ansible.builtin.debug": {"msg": "hello"}}]
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    done = run_play(tmp_path, play, "--check", "-e", "env_paths_cuda=/nowhere", **QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.strip(" *") for line in headings(done)] == [
        "PLAY [all]",
        "TASK [ansible.builtin.include_role : gpuhost.stack.env_paths]",
        "TASK [Greet]",
        "PLAY RECAP",
    ]


def on_a_terminal(folder: Path, seen: Callable[[str], None], *words: str, **settings: str) -> str:
    """Run ansible-playbook on a terminal, pass `seen` its screen each 0.2 s, return all that it shows at the end."""
    columns, rows = 100, 30
    process, descriptor = pty.fork()
    if not process:
        os.chdir(folder)
        environment = {**os.environ, **COLLECTIONS, **QUIET, "TERM": "xterm", "NO_COLOR": "1", **settings}
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        os.execve(program, [program, *words], environment)
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen = pyte.HistoryScreen(columns, rows, history=1000)
    stream, at = pyte.ByteStream(screen), time.monotonic()
    while True:
        ready, _unused, _unused = select.select([descriptor], [], [], 0.2)
        try:
            data = os.read(descriptor, 65536) if ready else None
        except OSError:  # as Linux reports the end
            break
        if data == b"":
            break
        if data:
            stream.feed(data)
        if time.monotonic() - at >= 0.2:
            at = time.monotonic()
            seen("\n".join(screen.display))
    os.waitpid(process, 0)
    above = ["".join(line[column].data for column in range(columns)).rstrip() for line in screen.history.top]
    return "\n".join([*above, *(line.rstrip() for line in screen.display)])


SLOW = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Reach the host
      ansible.builtin.command: "true"
    - name: Build the module
      ansible.builtin.shell: for _ in $(seq 600); do test -e shown && break; sleep 0.1; done
      args:
        chdir: FOLDER
"""


def test_a_terminal_has_a_line_for_each_host_until_the_run_ends(tmp_path: Path) -> None:
    stack = tmp_path / "collections/ansible_collections/gpuhost/stack"
    for name in ("plugins", "catalog", "meta"):
        shutil.copytree(PROJECT / name, stack / name, ignore=shutil.ignore_patterns("__pycache__"))
    (stack / "playbooks").mkdir()
    (stack / "playbooks/_slow_build.yml").write_text(SLOW.replace("FOLDER", str(tmp_path)))
    words = (str(stack / "playbooks/_slow_build.yml"), "-i", "gpu01,gpu02,", "-c", "local", *INTERPRETER)
    line = re.compile(r"^gpu0[12]  slow build +0:\d\d  Build the module *$", re.MULTILINE)
    shown = tmp_path / "shown"

    def seen(screen: str) -> None:
        if len(line.findall(screen)) == 2:
            shown.touch()

    end = on_a_terminal(tmp_path, seen, *words, ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"))
    assert shown.exists(), end
    assert end.split() == "hosts=2 : ok=4 changed=4 unreachable=0 failed=0 skipped=0 rescued=0 ignored=0".split()


@pytest.mark.parametrize("callback", ["default", "minimal"])
def test_a_callback_that_the_user_chooses_wins(tmp_path: Path, callback: str) -> None:
    (tmp_path / "ansible.cfg").write_text((PROJECT / "ansible.cfg").read_text())
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": "hello"}}]}
    done = run_play(tmp_path, play, ANSIBLE_STDOUT_CALLBACK=callback)
    assert ("TASK [" in done.stdout) == (callback == "default")
    assert "hello" in done.stdout
