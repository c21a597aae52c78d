"""Complete gpu_stack_managed with what follows from the registry. Runs on the controller; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import COMPONENT, PACKAGES, PLAN


def with_components(
    managed: Mapping[str, Mapping[str, Any]], role_files: Mapping[str, Mapping[str, Sequence[str]]]
) -> dict[str, dict[str, Any]]:
    """Return the parts with those of components that are not listed, and what `packages` and `plan` are for.

    managed: as in playbooks/group_vars/all/managed.yml; role_files: `files` and `secrets` of each role, as
    the lookup of that name has them. A component that is not listed is a part of its role's name,
    with what its module says that it manages; tasks/install_components.yml runs these roles in a loop.
    """
    found = {name: dict(entry) for name, entry in managed.items() if name != PLAN}
    for part in PACKAGED:
        found.setdefault(part.role, {"for": [part.name], COMPONENT: True, **part.managed})
    found[PACKAGES] |= {"for": [part.name for part in PACKAGED]}
    found[PLAN] = {**managed[PLAN], "for": [part.name for part in PARTS]}
    for role in found.keys() & role_files.keys():
        for kind, paths in role_files[role].items():
            found[role][kind] = [*found[role].get(kind, ()), *paths]
    return found
