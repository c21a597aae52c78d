"""No file reads a fact as a variable: ansible-core 2.20 warns of that without our ansible.cfg, and 2.24 has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
FOLDERS = ("playbooks", "roles", "molecule", "inventories")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (PROJECT / folder).rglob("*")
    if path.suffix in {".yml", ".yaml", ".j2"} and "collections" not in path.relative_to(PROJECT).parts
)
# Variables that Ansible itself has, that a connection has, or that a loop or a failed task sets. Every other is a fact.
NO_FACTS = {
    "ansible_async_dir", "ansible_become", "ansible_check_mode", "ansible_collections", "ansible_connection",
    "ansible_facts", "ansible_failed_result", "ansible_failed_task", "ansible_interpreter_python_fallback",
    "ansible_inventory_sources", "ansible_job_id", "ansible_play_batch", "ansible_play_hosts",
    "ansible_play_hosts_all", "ansible_playbook", "ansible_playbook_python", "ansible_python_interpreter",
    "ansible_run_tags", "ansible_skip_tags",
    "ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_user",
}  # fmt: skip
# What modules of this collection return is registered, so that no fact has the name of a variable.
OURS = re.compile(r"ansible_facts(?:\[['\"]|\.)_*(?:gpu_stack|smoke_train|gpu_benchmark)")


def mistakes(text: str) -> list[str]:
    names = set(re.findall(r"(?<![\w.])ansible_[a-z0-9_]+", text)) - NO_FACTS
    cacheable = [line.strip() for line in text.splitlines() if re.match(r"\s*cacheable:", line)]
    return [*sorted(names), *OURS.findall(text), *cacheable]


def test_files_are_found() -> None:
    assert {"facts.yml", "preferences.j2", "_plan.yml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_a_file_reads_facts_as_ansible_facts_only(path: Path) -> None:
    assert mistakes(path.read_text()) == [], "read ansible_facts['NAME'], or register what a module returns"


@pytest.mark.parametrize(
    "text",
    [
        "when: ansible_os_family == 'Debian'",
        "msg: {{ hostvars[host]['ansible_default_ipv4'] }}",
        "plan: {{ ansible_facts['gpu_stack_plan'] }}",
        "plan: {{ ansible_facts.gpu_stack_plan }}",
        "    cacheable: true",
    ],
)
def test_an_injected_fact_is_found(text: str) -> None:
    assert mistakes(text)


@pytest.mark.parametrize("path", sorted((PROJECT / "plugins/modules").glob("*.py")), ids=lambda path: path.stem)
def test_no_module_returns_facts(path: Path) -> None:
    """A fact that a module returns is injected as a variable."""
    documented = path.read_text().partition('RETURN = r"""')[2].partition('"""')[0]
    assert "ansible_facts" not in (yaml.safe_load(documented) or {})
    action = PROJECT / "plugins/action" / path.name
    sources = path.read_text() + (action.read_text() if action.exists() else "")
    assert re.findall(r"""["']ansible_facts["']\s*:|ansible_facts\s*=""", sources) == []
