"""Playbooks that find no host end with an error that says what was found and what to type, under ansible-playbook."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import no_hosts
from syrupy.assertion import SnapshotAssertion

from tests.unit.ansible_runs import Done, run_playbook

PROJECT = Path(__file__).resolve().parents[4]
HOSTS = "gpu_hosts: {hosts: {gpu01: {ansible_connection: local}}}\nweb: {hosts: {web01: {ansible_connection: local}}}\n"


def run(folder: Path, playbook: str | Path, *words: str, **settings: str) -> Done:
    """Run a playbook in an empty directory, in which no ansible.cfg and no inventory is."""
    own = {"COLUMNS": "2000", "ANSIBLE_INVENTORY": str(folder / "none")}
    return run_playbook(folder, playbook, *words, **{**own, **settings})


def refusal(ran: Done) -> str:
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("ERROR: "))
    return line


@pytest.mark.parametrize("playbook", ["plan", "monitor"])
def test_no_inventory_is_an_error(tmp_path: Path, playbook: str, snapshot: SnapshotAssertion) -> None:
    ran = run(tmp_path, PROJECT / f"playbooks/{playbook}.yml")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert refusal(ran).replace(str(tmp_path), "") == snapshot
    assert "TASK" not in ran.stdout


def test_a_collection_playbook_and_an_enabled_callback_do_not_change_that(tmp_path: Path) -> None:
    (tmp_path / "ansible_collections/gpuhost").mkdir(parents=True)
    (tmp_path / "ansible_collections/gpuhost/stack").symlink_to(PROJECT)
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "ANSIBLE_CALLBACKS_ENABLED": "gpuhost.stack.evidence"}
    ran = run(tmp_path, "gpuhost.stack.gpu_host", **settings)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert ran.stderr.count("ERROR: found no inventory") == 1


def test_a_limit_that_leaves_no_host_is_an_error(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    ran = run(tmp_path, PROJECT / "playbooks/teardown.yml", "-i", "hosts.yml", "--limit", "web01")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert refusal(ran) == snapshot


def test_a_playbook_of_the_user_may_be_limited_to_other_hosts(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "site.yml").write_text(
        f"- {{hosts: web, gather_facts: false}}\n- import_playbook: {PROJECT}/playbooks/plan.yml\n"
    )
    ran = run(tmp_path, "site.yml", "-i", "hosts.yml", "--limit", "web01")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ERROR" not in ran.stderr
    ran = run(tmp_path, "site.yml", "-i", "web01,")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert refusal(ran) == snapshot


def test_a_play_of_the_user_without_hosts_is_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "site.yml").write_text(
        f"- {{hosts: database, gather_facts: false}}\n- import_playbook: {PROJECT}/playbooks/plan.yml\n"
    )
    ran = run(tmp_path, "site.yml", "-i", "hosts.yml", "-e", "gpu_stack_cude=1")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "gpu_stack_cude: " in ran.stdout


@pytest.mark.parametrize("option", ["--syntax-check", "--list-hosts"])
def test_what_only_reads_playbooks_needs_no_inventory(tmp_path: Path, option: str) -> None:
    ran = run(tmp_path, PROJECT / "playbooks/rollback.yml", option)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_an_inventory_without_hosts_and_a_long_group(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text("all: {}\n")
    empty = no_hosts.refusal({"all": [], "ungrouped": []}, [str(file)], None)
    names = [f"gpu{number:02}" for number in range(12)]
    found = no_hosts.refusal({"all": names, "gpu_hosts": names}, [str(file)], "web")
    assert [text.replace(str(tmp_path), "") for text in (empty, found)] == snapshot
