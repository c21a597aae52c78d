"""Find the variables that an inventory sets where the group_vars/all of a playbook takes precedence over it.

Ansible lets group_vars/all beside a playbook win over the `vars` of an inventory file and over group_vars/all beside
the inventory. connection.yml is there, and the arguments of ssh that a user sets must win, wherever they are set.
"""

from __future__ import annotations

from typing import Any

from ansible.inventory.helpers import sort_groups
from ansible.vars.plugins import get_vars_from_inventory_sources


def outranked(variable_manager: Any, loader: Any, host: str) -> dict[str, Any]:
    """Return what the inventory sets for a host below the playbook's group_vars/all.

    variable_manager, loader: Ansible's own. The values are templates.
    """
    inventory = variable_manager._inventory
    found = inventory.get_host(host)
    values: dict[str, Any] = {}
    for group in sort_groups(found.get_groups()) if found else ():
        values |= group.vars
    sources = inventory._sources
    return {**values, **get_vars_from_inventory_sources(loader, sources, [inventory.groups["all"]], "task")}
