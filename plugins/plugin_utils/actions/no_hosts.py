"""Explain why an inventory gives a playbook of this collection no host: Ansible would skip its plays and exit 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

GROUP = "gpu_hosts"
SHOWN = 10  # names of a long list


def refusal(groups: Mapping[str, Sequence[str]], sources: Sequence[str], limit: str | None) -> str:
    """Return what was found instead of hosts, and what to type.

    groups: the hosts of each group of the inventory; sources: its files; limit: the argument of --limit.
    """
    if groups.get(GROUP):
        return f"--limit {limit} leaves no host of the group {GROUP}; name some of its hosts: {_some(groups[GROUP])}"
    if not groups.get("all"):
        found = [source for source in sources if Path(source).exists()]
        if found:
            without = f"the inventory {', '.join(found)} has no host"
        else:
            without = f"found no inventory: {', '.join(sources)} does not exist"
        return (
            f"{without}; give one with -i, such as -i hosts.yml, with the hosts in the group {GROUP}: "
            f"{GROUP}: {{hosts: {{gpu01: {{}}}}}}, or for this machine "
            f"{GROUP}: {{hosts: {{localhost: {{ansible_connection: local}}}}}}"
        )
    others = sorted(set(groups) - {"all", "ungrouped", GROUP})
    if others:
        instead = (
            f"the groups of the inventory are {_some(others)}: make one of them its child, such as "
            f"{GROUP}: {{children: {{{others[0]}: {{}}}}}}"
        )
    else:
        instead = f"the inventory has no other group, and the hosts {_some(groups['all'])}: list them in that one"
    return f"no host is in the group {GROUP}; {instead}, or give another inventory with -i"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
