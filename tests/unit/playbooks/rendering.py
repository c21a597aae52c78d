"""Render templates and conditions of the playbooks as Ansible does, without a run: many of them in one process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[3]
PLAYBOOKS = PROJECT / "playbooks"
# Reads lines of rows; prints a line of JSON for each row: whether all conditions hold, and the values of the variables.
PROGRAM = """
import json, sys
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

init_plugin_loader([sys.argv[1]])
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.role_values import RoleValues
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import decision


def trusted(value):
    if isinstance(value, dict):
        return {trusted(name): trusted(each) for name, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


def answer(templar, row):
    try:
        if "transaction" in row:
            facts, repaired = row["transaction"]
            roles, plan = RoleValues(templar, templar.available_variables), plan_from_json(facts["gpu_stack_plan"])
            return decision.transaction(plan, Repairs(packages=tuple(repaired)), {}, facts, roles)
        if not all(templar.evaluate_conditional(trusted(condition)) for condition in row["conditions"]):
            return False
        return {name: templar.template(trust_as_template("{{ %s }}" % name)) for name in row["names"]} or True
    except Exception as error:
        return "error: %s" % error


# Ansible's values are strings with tags: plain ones are written.
for line in sys.stdin:
    for row in json.loads(line):
        print(json.dumps(answer(Templar(DataLoader(), variables=trusted(row["variables"])), row), default=str))
    sys.stdout.flush()
"""
# Of Ansible itself.
MAGIC: dict[str, Any] = {
    "ansible_check_mode": False,
    "ansible_inventory_sources": ["/inventory/hosts.yml"],
    "ansible_play_batch": ["a"],
    "ansible_play_hosts": ["a"],
    "ansible_run_tags": ["all"],
    "ansible_skip_tags": [],
    "inventory_dir": "/inventory",
    "inventory_hostname": "a",
    "playbook_dir": "/playbooks",
}


def group_vars() -> dict[str, Any]:
    """Return the variables of all hosts as the playbooks define them."""
    found: dict[str, Any] = {}
    for path in sorted((PLAYBOOKS / "group_vars/all").glob("*.yml")):
        found |= yaml.safe_load(path.read_text())
    return found


def role_variables(role: str) -> dict[str, Any]:
    """Return the variables of a role that is used in a play."""
    files = [PROJECT / "roles" / role / kind / "main.yml" for kind in ("defaults", "vars")]
    found: dict[str, Any] = {}
    for path in files:
        found |= (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    return found


def managed() -> dict[str, dict[str, Any]]:
    """Return gpu_stack_managed as the playbooks have it."""
    (answer,) = rendered([{"variables": {}, "names": ["gpu_stack_managed"]}])
    return dict(answer["gpu_stack_managed"])


@functools.cache
def renderer() -> subprocess.Popen[str]:
    """Return the process that renders for all tests of this one: its start takes longer than most of their rows."""
    command = [sys.executable, "-c", PROGRAM, str(PROJECT / "collections")]
    settings = {**os.environ, "GPUHOST_RUN": "/reports/run"}  # of a run that can write its results (callback evidence)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PLAYBOOKS, env=settings
    )
    atexit.register(process.kill)
    return process


def rendered(rows: Sequence[dict[str, Any]], base: dict[str, Any] | None = None) -> list[Any]:
    """Return for each row whether its conditions hold or, if it has names, the values of these variables.

    A row has `variables`, which win over group_vars/all, and `conditions` or `names`; or `transaction`, the facts of a
    decision and damaged packages, of which the package transaction is made. What cannot be rendered is a text that
    begins with `error: `. base: in place of group_vars/all, as in other plays.
    """
    base = {**MAGIC, **(group_vars() if base is None else base)}
    data = [{"conditions": [], "names": [], **row, "variables": {**base, **row["variables"]}} for row in rows]
    process = renderer()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(data) + "\n")
    process.stdin.flush()
    return [json.loads(process.stdout.readline()) for _row in data]


def all_tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each task with `FILE: NAME`; a task has the variables of its play and its blocks."""
    for path in sorted([*PLAYBOOKS.glob("*.yml"), *PLAYBOOKS.glob("tasks/*.yml")]):
        for entry in yaml.safe_load(path.read_text()):
            tasks = entry.get("tasks", []) if "hosts" in entry else [entry]
            for task in _each(tasks, entry.get("vars", {}) if "hosts" in entry else {}):
                if "name" in task and "import_playbook" not in str(task.keys()):
                    yield f"{path.relative_to(PLAYBOOKS)}: {task['name']}", task


def _each(tasks: list[dict[str, Any]], variables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for task in tasks:
        values = {**variables, **task.get("vars", {})}
        yield {**task, "vars": values}
        for part in ("block", "rescue", "always"):
            yield from _each(task.get(part, []), values)


def conditions(task: dict[str, Any], keyword: str = "when") -> list[str]:
    """Return a task's conditions; those of an assertion are what it asserts, if its `when` holds."""
    asserted = task.get("ansible.builtin.assert", {}).get("that", []) if keyword == "when" else []
    return [
        each for value in (task.get(keyword, []), asserted) for each in ([value] if isinstance(value, str) else value)
    ]
