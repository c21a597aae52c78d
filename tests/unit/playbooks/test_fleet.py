"""What a fleet does when hosts of it fail: gpu_host.yml itself, under the real ansible-playbook.

Files of simple tasks are in place of what plans, installs, checks and trains; batches, rollbacks and the lock of a run
are real.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ansible_runs import INTERPRETER, Done, printed, run_playbook
from tests.unit.playbooks.test_serial import CHANGED, PENDING, PROJECT, REFUSED, SAME, planning
from tests.unit.plugin_utils.planning.planning_cases import PROBE, planned

# How a host fails: with a role or a record, or with a check, by its cause.
ROLE, STACK, HARDWARE, HOST = "role", "stack", "hardware", "host"
RECORD = "record"  # of the baseline, before anything is changed
SERIAL = ["-e", '{"gpu_stack_serial": [1, 2]}']
ONE_MAY = ["-e", "gpu_stack_max_failed=1"]
# Of a host that is left as it is, after the plan.
SPARED = [
    "List the failed changes, and see whether this is the first batch",  # in the name of the first one of the batch
    "Set the hosts because of which this one is left unchanged as a fact",
    "Fail the host",
]


def verified(status: str, **check: str) -> dict[str, Any]:
    checks = [{"id": "gpu.ecc_errors", "status": status, "found": "x", "expected": "y", "remedy": "z", **check}]
    return {"status": status, "checks": checks, "counts": {"pass": 1, "fail": int(status == "fail")}}


def log(what: str) -> dict[str, Any]:
    return {"name": f"stand-in {what}", "ansible.builtin.debug": {"msg": what}}


def tasks(failing: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the files in place of real ones; failing: how each of these hosts fails."""
    checks = {host: verified("fail", cause=how) for host, how in failing.items() if how not in (ROLE, RECORD)}
    unrecorded = f"{{{{ inventory_hostname in {_with(failing, RECORD)} }}}}"
    found = "{{ checks[inventory_hostname] | default(passed) }}"
    return {
        "change": [
            {"ansible.builtin.import_tasks": "keep_others_out.yml"},
            {"ansible.builtin.set_fact": {"__gpu_stack_baseline": {"failed": unrecorded}}, "tags": ["always"]},
            {"ansible.builtin.assert": {"that": f"inventory_hostname not in {_with(failing, RECORD)}"}},
            log("change"),
            {**log("driver"), "tags": ["nvidia_driver"]},
            {
                "block": [{"ansible.builtin.assert": {"that": f"inventory_hostname not in {_with(failing, ROLE)}"}}],
                "rescue": [{"ansible.builtin.include_tasks": "roll_back_and_leave.yml"}],
            },
        ],
        "check": [
            {
                "name": "stand-in check",
                "ansible.builtin.set_fact": {"__gpu_stack_verified": {"verify": found}},
                "vars": {"checks": checks, "passed": verified("pass")},
            }
        ],
        "decide_trainings": [
            {"ansible.builtin.set_fact": {"gpu_stack_trainings": {"tensorflow": {"action": "train", "expired": ""}}}}
        ],
        "train_all": [log("train")],
    }


def _with(failing: dict[str, str], how: str) -> list[str]:
    return [host for host, each in failing.items() if each == how]


def run(folder: Path, hosts: dict[str, str], failing: dict[str, str], *words: str, playbook: str = "gpu_host") -> Done:
    """Run a copy of a playbook on this machine, as hosts with a state directory each. hosts: the state of each."""
    playbooks = folder / "playbooks"
    shutil.copytree(PROJECT / "playbooks", playbooks, ignore=shutil.ignore_patterns("collections", "examples"))
    (folder / "roles").symlink_to(PROJECT / "roles")
    for name, content in tasks(failing).items():
        (playbooks / f"tasks/{name}.yml").write_text(json.dumps(content))
    facts = {"gpu_stack_probe": PROBE, "gpu_stack_preflight": {"problems": [], "warnings": []}}
    facts |= {"gpu_stack_plan": planned("tensorflow").to_json(), "gpu_stack_drift": {}}
    facts["gpu_stack_damage"] = {"left": {}, "accepted": {}, "text": ""}
    plans = planning(hosts, **facts)
    plans["tags"] = ["always"]
    record = {"hosts": "gpu_hosts", "gather_facts": False, "tasks": [log("record")]}
    for name, play in (("_plan", plans), ("_record_verified", record)):
        (playbooks / f"{name}.yml").write_text(json.dumps([play]))
    inventory = {"gpu_hosts": {"hosts": {name: {} for name in hosts}, "vars": {"ansible_connection": "local"}}}
    (folder / "hosts.yml").write_text(json.dumps(inventory))
    values = {"gpu_stack_state_directory": f"{folder}/state/{{{{ inventory_hostname }}}}"}
    options = ["-i", "hosts.yml", *INTERPRETER, "-e", json.dumps(values), *words]
    return run_playbook(folder, f"playbooks/{playbook}.yml", *options, GPUHOST_REPORTS=f"{folder}/reports")


def steps(done: Done) -> list[str]:
    """Return what was done with which hosts, in order."""
    found = []
    for part in done.stdout.split("TASK [stand-in ")[1:]:
        hosts = sorted(re.findall(r"(?:ok|changed): \[(\w)\]", part.split("TASK [")[0]))
        found += [f"{part.split(']')[0]} {''.join(hosts)}"] if hosts else []
    return found


def tasks_on(done: Done, host: str) -> list[str]:
    """Return the names of the tasks that ran on a host, after the plan."""
    parts = done.stdout.partition("PLAY [Install the planned stack]")[2].split("TASK [")[1:]
    return [part.split("]")[0] for part in parts if re.search(rf"^(ok|changed|fatal): \[{host}\]", part, re.MULTILINE)]


FIRST = ["change a", "check a", "train a"]
SECOND = ["change bc", "check bc"]


@pytest.mark.parametrize(
    ("hosts", "failing", "words", "order"),
    [
        ("abc", {}, [], [*FIRST, "change b", "check b", "change c", "check c", "train bc", "record abc"]),
        ("ab", {"a": STACK}, [], ["change ab", "check ab", "train b", "record b"]),
        ("abc", {"a": STACK}, [], ["change a", "check a"]),
        ("abc", {"a": RECORD}, [], ["change b", "check b", "change c", "check c", "train bc", "record bc"]),
        ("abcde", {"b": STACK}, SERIAL, [*FIRST, *SECOND, "train c", "record ac"]),
        (
            "abcde",
            {"a": HARDWARE, "b": ROLE},
            [*SERIAL, *ONE_MAY],
            ["change a", "check a", "change bc", "check c", "change de", "check de", "train cde", "record cde"],
        ),
        (
            "abcd",
            {"a": HOST, "b": ROLE, "c": STACK},
            [*SERIAL, *ONE_MAY],
            ["change a", "check a", "change bc", "check c"],
        ),
    ],
    ids=[
        *("all pass", "one batch", "the first one fails", "nothing was changed", "one of a batch fails"),
        *("broken hardware does not count, and one more may fail", "more fail than may"),
    ],
)
def test_a_batch_is_checked_before_the_next_one_is_changed(
    tmp_path: Path, hosts: str, failing: dict[str, str], words: list[str], order: list[str]
) -> None:
    done = run(tmp_path, dict.fromkeys(hosts, CHANGED), failing, *words)
    assert done.returncode == (2 if failing else 0), printed(done)
    assert [step for step in steps(done) if "driver" not in step] == order, done.stdout
    spared = [host for host in hosts if host not in "".join(step for step in order if "change" in step)]
    if spared:
        first, *others = (tasks_on(done, host) for host in spared)
        assert first == SPARED
        assert all(other == SPARED[1:] for other in others)
        culprits = ", ".join(host for host, how in failing.items() if how != HOST)
        assert f"because the change of {culprits} failed. Solve" in printed(done)
    assert [path.name for path in tmp_path.glob("state/*/run.json")] == [], "each host was left"


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["--tags", "nvidia_driver"], ["driver a", "driver b", "driver c"]),
        (
            ["--skip-tags", "verify,nvidia_driver"],
            ["change a", "train a", "change b", "change c", "train bc", "record abc"],
        ),
    ],
    ids=["of a role", "without checks"],
)
def test_tags_select_tasks_within_a_batch(tmp_path: Path, words: list[str], order: list[str]) -> None:
    done = run(tmp_path, dict.fromkeys("abc", CHANGED), {}, *words)
    assert (done.returncode, steps(done)) == (0, order), done.stdout


def test_provisioning_alone_refuses_hosts_with_problems_and_finishes_those_without_drift(tmp_path: Path) -> None:
    """Without the preflight's play before it."""
    states = {"a": REFUSED, "b": SAME, "c": PENDING, "d": CHANGED}
    done = run(tmp_path, states, {}, "-e", "gpu_stack_serial=100%", playbook="provision")
    assert steps(done) == ["change cd", "driver cd"]
    assert done.returncode == 2
    assert re.findall(r"fatal: \[(\w)\]: FAILED!", done.stdout.partition("[Fail the hosts")[2]) == ["a"]
    assert re.search(
        r"This host has problems: `\S*ansible-playbook \S*playbooks/preflight.yml -i hosts.yml ", printed(done)
    )
