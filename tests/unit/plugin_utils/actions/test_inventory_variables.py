"""Role variables that an inventory sets, below and above group_vars/all of a playbook, by Ansible's own precedence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.inventory_variables import outranked

from tests.unit.ansible_runs import INTERPRETER, run_playbook

PROJECT = Path(__file__).resolve().parents[4]


def inventory(folder: Path, group_vars: dict[str, Any], **hosts: Any) -> Path:
    (folder / "group_vars").mkdir(parents=True)
    for group, values in group_vars.items():
        (folder / "group_vars" / f"{group}.yml").write_text(yaml.safe_dump(values))
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    return folder / "hosts.yml"


def test_what_is_set_below_the_playbook(tmp_path: Path) -> None:
    path = inventory(
        tmp_path,
        {"all": {"a": "file", "c": "{{ template }}", "other": 1}, "gpu_hosts": {"d": "above"}},
        all={"vars": {"a": "all", "b": "all"}},
        gpu_hosts={"hosts": {"one": {"e": "above"}}, "vars": {"b": "group"}},
    )
    loader = DataLoader()
    manager = VariableManager(loader, InventoryManager(loader, sources=[str(path)]))
    found = outranked(manager, loader, "one", dict.fromkeys("abcde"))
    assert found == {"a": "file", "b": "group", "c": "{{ template }}"}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the task that sets them, in a play with the playbooks' group_vars, after plan.yml."""
    folder = tmp_path_factory.mktemp("site")
    tasks = yaml.safe_load((PROJECT / "playbooks/tasks/change.yml").read_text())
    (setting,) = (task for task in tasks if task["name"] == "Set the role variables that the inventory sets")
    show = {
        "ansible.builtin.debug": {
            "msg": "{{ [cudnn_packages, nvidia_driver_kernel_headers, nccl_packages, cuda_toolkit_host_compilers] }}"
        }
    }
    play = {"hosts": "gpu_hosts", "gather_facts": False, "tasks": [setting, show]}
    (folder / "site.yml").write_text(yaml.safe_dump([{"import_playbook": str(PROJECT / "playbooks/plan.yml")}, play]))
    (folder / "group_vars").symlink_to(PROJECT / "playbooks/group_vars")
    (folder / "collections").symlink_to(PROJECT / "collections")
    path = inventory(
        folder / "inventory",
        {"all": {"nvidia_driver_kernel_headers": ["of-all"]}, "gpu_hosts": {"nccl_packages": ["of-gpu-hosts"]}},
        all={"vars": {"cuda_toolkit_host_compilers": ["of-{{ inventory_hostname }}"]}},
        gpu_hosts={"hosts": {"one": None}, "vars": {"cudnn_packages": ["of-the-file"], "gpu_stack_expect_gpus": 0}},
    )
    words = ("site.yml", "-i", path, "-c", "local", *INTERPRETER)
    answer = run_playbook(folder, *words, GPUHOST_REPORTS=str(folder / "reports"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.parametrize("value", ["of-the-file", "of-all", "of-gpu-hosts", "of-one"])
def test_role_variables_of_the_inventory_win_wherever_it_sets_them(values: str, value: str) -> None:
    assert value in values


def test_what_the_plan_gives_is_that_of_the_last_plan_and_may_be_read_by_the_inventory(tmp_path: Path) -> None:
    """A component leaves the plan and comes back in another version, and a play names its own."""
    tasks = yaml.safe_load((PROJECT / "playbooks/tasks/change.yml").read_text())
    (setting,) = (task for task in tasks if task["name"] == "Set the role variables that the inventory sets")
    show = {"ansible.builtin.debug": {"msg": "nccl {{ nccl_version }} {{ nccl_packages }} {{ cudnn_packages }}"}}
    plan = {"import_playbook": str(PROJECT / "playbooks/plan.yml")}
    play = {"hosts": "gpu_hosts", "gather_facts": False}
    site = [
        *(plan, {**play, "tasks": [setting]}),
        *({**plan, "vars": {"gpu_stack_nccl": "none"}}, {**play, "tasks": [setting]}),
        *({**plan, "vars": {"gpu_stack_nccl": "2.27"}}, {**play, "tasks": [setting, show]}),
        {**play, "vars": {"nccl_version": "2.1", "nccl_packages": ["of-the-play"]}, "tasks": [show]},
    ]
    (tmp_path / "site.yml").write_text(yaml.safe_dump(site))
    (tmp_path / "group_vars").symlink_to(PROJECT / "playbooks/group_vars")
    (tmp_path / "collections").symlink_to(PROJECT / "collections")
    reading = {"cudnn_packages": ["libcudnn9-cuda-13={{ cudnn_version }}-9"], "gpu_stack_expect_gpus": 0}
    path = inventory(tmp_path / "inventory", {}, gpu_hosts={"hosts": {"one": None}, "vars": reading})
    words = ("site.yml", "-i", path, "-c", "local", *INTERPRETER)
    answer = run_playbook(tmp_path, *words, GPUHOST_REPORTS=str(tmp_path / "reports"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    shown = re.findall(r"nccl (\S+) (\[.*?\]) (\[.*?\])", answer.stdout)
    assert [version for version, *_packages in shown] == ["2.27.7", "2.1"]
    assert "libnccl2=2.27.7-1" in shown[0][1]
    assert "of-the-play" in shown[1][1]
    assert re.search(r"libcudnn9-cuda-13=9\.[\d.]+-9", shown[0][2])
