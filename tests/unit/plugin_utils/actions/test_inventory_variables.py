"""Variables that an inventory sets below group_vars/all of a playbook, by Ansible's own precedence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.inventory_variables import outranked

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
    found = outranked(manager, loader, "one")
    expected = {"a": "file", "b": "group", "c": "{{ template }}", "other": 1}
    assert {name: found.get(name) for name in (*expected, "d", "e")} == {**expected, "d": None, "e": None}
