"""How many hosts the play that changes them takes at a time, by default and with gpu_stack_serial."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_runs import INTERPRETER, Done, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
HOSTS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("group", "words", "batches"),
    [
        ({}, [], [["a", "b", "c"]]),  # nothing to change
        ({"gpu_stack_serial": 2}, [], [["a", "b"], ["c"]]),
        ({"gpu_stack_serial": [1, 2]}, [], [["a"], ["b", "c"]]),
        ({"gpu_stack_serial": "34%"}, [], [["a"], ["b"], ["c"]]),
        ({"gpu_stack_serial": 1}, ["-e", "gpu_stack_serial=2"], [["a", "b"], ["c"]]),
    ],
)
def test_hosts_are_taken_in_batches(
    tmp_path: Path, group: dict[str, Any], words: list[str], batches: list[list[str]]
) -> None:
    assert batches_of(tmp_path, dict.fromkeys(HOSTS, SAME), group, *words) == batches


CHANGED, SAME, PENDING, REFUSED = "drift", "unchanged", "pending", "refused"


@pytest.mark.parametrize(
    ("hosts", "words", "batches"),
    [
        ([CHANGED] * 7, [], ["a", "bc", "de", "fg"]),
        ([SAME, SAME, CHANGED, SAME, PENDING, SAME, SAME], [], ["c", "ea", "bd", "fg"]),
        ([REFUSED, CHANGED, CHANGED, CHANGED], [], ["b", "c", "d", "a"]),
        ([CHANGED] * 7, ["--limit", "a,b"], ["ab"]),
        ([CHANGED] * 3, ["-e", "gpu_stack_serial=100%"], ["abc"]),
    ],
    ids=["seven hosts", "two hosts to change", "a refused host is not the first", "limit", "a value of one's own"],
)
def test_a_change_goes_to_one_host_first(
    tmp_path: Path, hosts: list[str], words: list[str], batches: list[str]
) -> None:
    named = dict(zip("abcdefg", hosts, strict=False))
    assert batches_of(tmp_path, named, {}, *words) == [list(batch) for batch in batches]


def planning(hosts: dict[str, str], **facts: Any) -> dict[str, Any]:
    """Return a play that registers a plan of each host with this state, and fails for a state that no plan has."""
    decided = {"gpu_stack_plan": {"ok": True}, "gpu_stack_damage": {"text": ""}, **facts}
    registered = {"__gpu_stack_planned": {"state": "{{ states[inventory_hostname] }}", "decided": decided}}
    known = {"that": "states[inventory_hostname] in ['drift', 'pending', 'unchanged', 'refused']"}
    tasks = [{"ansible.builtin.assert": known}, {"ansible.builtin.set_fact": registered}]
    return {"hosts": "gpu_hosts", "gather_facts": False, "vars": {"states": hosts}, "tasks": tasks}


def batches_of(tmp_path: Path, hosts: dict[str, str], group: dict[str, Any], *words: str) -> list[list[str]]:
    """Return the batches of the play, as in gpu_host.yml and provision.yml, where plays that plan come before it.

    hosts: the state of each.
    """
    (play,) = yaml.safe_load((PROJECT / "playbooks/_provision.yml").read_text())
    shown = {"gather_facts": False, **{key: play[key] for key in ("hosts", "serial", "vars", "vars_files")}}
    shown["tasks"] = [{"ansible.builtin.debug": {"var": "ansible_play_batch"}, "run_once": True}]
    (tmp_path / "play.yml").write_text(json.dumps([planning(hosts), shown]))
    shutil.copytree(PROJECT / "playbooks/vars", tmp_path / "vars")
    return show_batches(tmp_path, {"gpu_hosts": {"hosts": {name: {} for name in hosts}, "vars": group}}, *words)


def show_batches(tmp_path: Path, inventory: dict[str, Any], *words: str, check: bool = True) -> list[list[str]]:
    """Run play.yml and return the batches that it shows; check: no host of it fails."""
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    done = run_playbook(tmp_path, "-i", "hosts.yml", "play.yml", "-c", "local", *INTERPRETER, *words)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return [json.loads(part.split("]")[0] + "]") for part in done.stdout.split('"ansible_play_batch": ')[1:]]


@pytest.mark.parametrize(
    ("count", "group", "words", "batches"),
    [
        (7, {}, [], ["a", "bc", "de", "fg"]),
        (7, {}, ["--limit", "a,b"], ["ab"]),
        (7, {}, ["-e", "busy=a"], ["b", "cd", "ef", "g"]),
        (3, {"gpu_stack_serial": 2}, [], ["ab", "c"]),
        (3, {}, ["-e", "gpu_stack_serial=100%"], ["abc"]),
    ],
    ids=["seven hosts", "limit", "a busy host is not the first", "inventory", "-e"],
)
def test_a_driver_is_taken_from_one_host_first(
    tmp_path: Path, count: int, group: dict[str, Any], words: list[str], batches: list[str]
) -> None:
    """Restoring or removing a driver stops what runs on the GPUs: not on all hosts of a fleet at once."""
    names = ("_refuse_gpu_jobs", "rollback")
    found = [play for name in names for play in yaml.safe_load((PROJECT / f"playbooks/{name}.yml").read_text())]
    plays = [play for play in found if "hosts" in play]  # without what they import, such as the check of the variables
    for play in plays:
        play.pop("module_defaults", None)
        play["gather_facts"] = False
    shown = {"ansible.builtin.debug": {"var": "ansible_play_batch"}, "run_once": True, "when": "is_alone"}
    plays[-1]["tasks"] = [shown]
    (tmp_path / "tasks").mkdir()
    (guarded,) = yaml.safe_load((PROJECT / "playbooks/tasks/refuse_gpu_jobs.yml").read_text())
    _probe, refuse = guarded["block"]
    refuse["ansible.builtin.assert"] = {"that": ["is_alone", "inventory_hostname != busy | default('')"]}
    (tmp_path / "tasks/refuse_gpu_jobs.yml").write_text(json.dumps([refuse]))
    # Other runs, which there are none of, are kept out before the GPUs are asked.
    (tmp_path / "tasks/keep_others_out.yml").write_text('[{"ansible.builtin.set_fact": {"is_alone": true}}]')
    shutil.copytree(PROJECT / "playbooks/vars", tmp_path / "vars")
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    inventory = {"gpu_hosts": {"hosts": {name: {} for name in "abcdefg"[:count]}, "vars": group}}
    assert show_batches(tmp_path, inventory, *words, check="busy=a" not in words) == [list(batch) for batch in batches]


def test_a_teardown_takes_the_batches_of_a_rollback() -> None:
    """By the same keywords, after the same play that finds busy hosts."""
    of_tasks = {"name", "tasks", "gather_facts", "gather_subset", "environment", "module_defaults"}

    def batches(playbook: str) -> tuple[str, dict[str, Any]]:
        first, *others = yaml.safe_load((PROJECT / f"playbooks/{playbook}.yml").read_text())
        (play,) = (each for each in others if "hosts" in each)
        keywords = {name: value for name, value in play.items() if name not in of_tasks}
        return first["ansible.builtin.import_playbook"], {**keywords, "vars_files": keywords["vars_files"][:2]}

    assert batches("teardown") == batches("rollback")
    refuse_gpu_jobs, keywords = batches("rollback")
    assert refuse_gpu_jobs == "_refuse_gpu_jobs.yml"
    assert set(keywords) == {"hosts", "serial", "vars_files"}


def run_plays(tmp_path: Path, plays: list[dict[str, Any]], hosts: Iterable[str], *words: str) -> Done:
    """Run plays with what they read of a plan."""
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    (tmp_path / "group_vars/all").mkdir(parents=True)
    shutil.copy(PROJECT / "playbooks/group_vars/all/facts.yml", tmp_path / "group_vars/all")
    (tmp_path / "hosts.yml").write_text(json.dumps({"gpu_hosts": {"hosts": {name: {} for name in hosts}}}))
    return run_playbook(tmp_path, "-i", "hosts.yml", "play.yml", "-c", "local", *INTERPRETER, *words)


@pytest.mark.parametrize(
    ("hosts", "words", "together"),
    [
        ("ab", [], False),
        ("abc", ["-e", "gpu_stack_serial=100%"], False),
        ("ab", ["-e", "nvidia_driver_reboot_throttle=0"], True),
        ("abc", ["-e", '{"gpu_stack_serial": [2, 1]}'], True),
    ],
    ids=["two hosts", "one batch that was asked for", "without a throttle", "two of three hosts in a batch"],
)
def test_the_hosts_of_a_play_never_reboot_all_at_once(
    tmp_path: Path, hosts: str, words: list[str], together: bool
) -> None:
    """Each stand-in for a reboot waits for another one to begin, as long as that is expected."""
    tasks = yaml.safe_load((PROJECT / "roles/nvidia_driver/tasks/reboot.yml").read_text())
    (reboot,) = [task for task in tasks if "ansible.builtin.reboot" in task]
    del reboot["ansible.builtin.reboot"]
    log = tmp_path / "log"
    other = f"for i in $(seq 300); do [ $(grep -c begin {log}) -ge 2 ] && break; sleep 0.1; done"
    reboot["ansible.builtin.shell"] = f"echo begin >> {log}; {other if together else 'sleep 1'}; echo end >> {log}"
    play = {"hosts": "gpu_hosts", "gather_facts": False, "tasks": [reboot]}
    defaults = yaml.safe_load((PROJECT / "roles/nvidia_driver/defaults/main.yml").read_text())
    play["vars"] = {"nvidia_driver_reboot_throttle": defaults["nvidia_driver_reboot_throttle"]}
    play |= {"serial": "{{ gpu_stack_serial | default('100%') }}"}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    shutil.copytree(PROJECT / "playbooks/vars", tmp_path / "vars")
    show_batches(tmp_path, {"gpu_hosts": {"hosts": {name: {} for name in hosts}}}, *words)
    events = log.read_text().split()
    assert len(events) == 2 * len(hosts)
    assert ("begin begin" in " ".join(events)) == together
