"""What the plan gives to the variables of roles, as templates.

playbooks/group_vars/all/role_inputs.yml has those of most roles. Package-only components, which have no line there, get
the same inputs each: script/docs writes them into components.yml beside it, a line for each variable that the role has.
They are variables of the playbooks and no facts, since a fact would outlive its plan and win over a play's variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED

_FOLDER = PROJECT / "playbooks" / "group_vars" / "all"
_FILE, COMPONENTS = _FOLDER / "role_inputs.yml", _FOLDER / "components.yml"
HEAD = """\
# Written by script/docs from the registry of components: what the plan gives to the roles of package-only components.
# As in role_inputs.yml, variables of an inventory win over these."""
_OF_COMPONENT = {
    "version": "{{{{ gpu_stack_plan.components.{name}.version }}}}",
    "packages": "{{{{ gpu_stack_plan.components.{name}.packages | default([]) }}}}",
    "helpers": "{{{{ gpu_stack_plan.components.{name}.helpers | default([]) }}}}",
    "replaces": "{{{{ gpu_stack_diff.replaces.{name} }}}}",
    "may_remove": "{{{{ gpu_stack_diff.may_remove.{name} }}}}",
    "reinstall": "{{{{ __gpu_stack_reinstall }}}}",
}
_OF_FIELD = "{{{{ gpu_stack_plan.components.{name}.{key} }}}}"
_REQUIRED = ("version", "packages")
_TRANSITIONS = ("replaces", "may_remove", "reinstall")  # which affect the transition only


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
    """Return the values of components.yml, as they are in it."""
    return dict(load_yaml(COMPONENTS))


def inputs() -> dict[str, Any]:
    """Return the values of all role variables that the plan decides."""
    return {**of_components(), **of_file()}


def text() -> str:
    """Return the text of components.yml; raises ValueError for a role that lacks a variable that it needs."""
    lines = [f'{role}_{key}: "{template.format(name=name, key=key)}"' for name, role, key, template in _variables()]
    return "\n".join([HEAD, *lines]) + "\n"


def transitions() -> list[str]:
    """Return the variables of these components of which a change is no drift."""
    return [f"{role}_{key}" for _name, role, key, _template in _variables() if key in _TRANSITIONS]


def _variables() -> Iterator[tuple[str, str, str, str]]:
    """Yield component, role, the name of the variable without the role's, and its template."""
    for part in PACKAGED:
        if f"{part.role}_packages" in of_file():
            continue
        options = roles().get(part.role, {})
        fields = dict.fromkeys(part.role_fields, _OF_FIELD)
        if lacking := [f"{part.role}_{key}" for key in _REQUIRED if f"{part.role}_{key}" not in options]:
            raise ValueError(f"roles/{part.role}/meta/argument_specs.yml: expected {' and '.join(lacking)}")
        for key, template in {**_OF_COMPONENT, **fields}.items():
            if f"{part.role}_{key}" in options:
                yield part.name, part.role, key, template
