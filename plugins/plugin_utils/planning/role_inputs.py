"""What the plan gives to the variables of roles, as templates.

playbooks/group_vars/all/role_inputs.yml has them for the roles whose variables are their own. A component that consists
of packages and has no line there gets the same as every other one, as far as its role has such variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED

_FILE = PROJECT / "playbooks" / "group_vars" / "all" / "role_inputs.yml"
_TRANSACTION = {  # options of apt_transaction
    "packages": "{{{{ gpu_stack_plan.components.{name}.packages | default([]) }}}}",
    "replaces": "{{{{ gpu_stack_diff.replaces.{name} }}}}",
    "may_remove": "{{{{ gpu_stack_diff.may_remove.{name} }}}}",
}
_OF_COMPONENT = {
    "version": "{{{{ gpu_stack_plan.components.{name}.version }}}}",
    **_TRANSACTION,
    "reinstall": "{{{{ __gpu_stack_left_to_reinstall }}}}",
}
_TRANSITIONS = ("replaces", "may_remove", "reinstall")  # which affect the transition only
ROLES = "__gpu_stack_component_roles"  # of transaction.yml


@functools.cache
def roles() -> dict[str, dict[str, Any]]:
    """Return the options of each role's argument specification, by the names of role and variable."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((PROJECT / "roles").glob("*/meta/argument_specs.yml")):
        for entry in load_yaml(path)["argument_specs"].values():
            found.setdefault(path.parents[1].name, {}).update(entry.get("options", {}))
    return found


@functools.cache
def of_file() -> dict[str, Any]:
    """Return the values of role_inputs.yml, as they are in it."""
    return dict(load_yaml(_FILE))


@functools.cache
def of_components() -> dict[str, Any]:
    """Return the values for the components that have no line there, and what their roles install (`ROLES`)."""
    inputs: dict[str, Any] = {f"{role}_{key}": _OF_COMPONENT[key].format(name=name) for name, role, key in _variables()}
    of_roles: dict[str, dict[str, str]] = {}
    for _name, role, key in _variables():
        if key in _TRANSACTION:
            of_roles.setdefault(role, {})[key] = f"{{{{ {role}_{key} }}}}"
    return {**inputs, ROLES: of_roles}


def names(of_roles: Iterable[str]) -> set[str]:
    """Return the variables of some of these roles that have a value, and `ROLES`."""
    return {ROLES, *(f"{role}_{key}" for _name, role, key in _variables() if role in set(of_roles))}


def inputs() -> dict[str, Any]:
    """Return the values of all role variables that the plan decides."""
    return {**of_components(), **of_file()}


def transitions() -> list[str]:
    """Return the variables of these components of which a change is no drift."""
    return [f"{role}_{key}" for _name, role, key in _variables() if key in _TRANSITIONS]


def packages() -> list[str]:
    """Return the variables of these components with their packages."""
    return [f"{role}_{key}" for _name, role, key in _variables() if key == "packages"]


def _variables() -> Iterator[tuple[str, str, str]]:
    """Yield component, role, and the name of the variable without the role's."""
    for part in PACKAGED:
        if f"{part.role}_packages" not in of_file():
            options = roles().get(part.role, {})
            yield from ((part.name, part.role, key) for key in _OF_COMPONENT if f"{part.role}_{key}" in options)
