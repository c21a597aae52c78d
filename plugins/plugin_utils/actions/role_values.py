"""The variables of roles, and what roles list with them, as Ansible will see them. Runs on the controller.

Outside of a role its variables do not exist. They are rendered here with its defaults, with what the run gives to it
(planning/role_inputs.py) and with the variables of the host, which win as they do in the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleUndefinedVariable
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_lists
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import is_empty
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs

INPUTS = "gpu_stack_role_inputs"  # of the facts of a decision
OF_PLAYBOOKS = "gpu_stack_state_directory"  # of their group_vars: other plays with our roles have no run
INSTALLED = "__gpu_stack_packages"  # the result of the transaction of all roles, which has installed damaged ones again


class RoleValues:
    """The values of role variables on a host; templar: Ansible's, variables: those of the host, as templates."""

    def __init__(self, templar: Any, variables: Mapping[str, Any]) -> None:
        self.templar, self.variables = templar, variables

    def setting(self, name: str) -> Any:
        """Return a variable of the playbooks; of those that a user may set the declared default where it is unset."""
        known = declared().get(name)
        try:
            value = self.templar.template(self.variables[name]) if name in self.variables else None
        except AnsibleUndefinedVariable:  # a mistake that check_variables names, with all others
            value = None
        return known.default if known and is_empty(value) else value

    def inputs(self, role: str, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the run gives to a role, by the names of its variables; {} in a play that is not ours.

        facts: of a decision, by default of the last one of this run.
        """
        if OF_PLAYBOOKS not in self.variables:
            return {}
        if facts is None and isinstance(self.variables.get(INPUTS), dict):
            facts = self.variables  # of the decision that is being made
        elif facts is None:
            facts = (self.variables.get("__gpu_stack_planned") or {}).get("decided") or {}
        given = dict(facts.get(INPUTS) or {})
        found = role_inputs.of_run(role, self.setting)
        found |= {name: value for name, value in given.items() if name.startswith(f"{role}_")}
        if role == "nvidia_repo" and facts:
            found |= self._repository(facts)
        done = [name for name in found if name.endswith(role_inputs.REINSTALL) and INSTALLED in self.variables]
        return found | {name: [] for name in done}

    def _repository(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return NVIDIA's repository, with a mirror's user name and password in its URL, which no fact has."""
        plan, machine = facts["gpu_stack_plan"], facts["gpu_stack_probe"]["architecture"]
        url = (self.setting("gpu_stack_repositories").get(plan["distribution"]) or {}).get(machine)
        key = self.setting("gpu_stack_request")["repository_key_url"]
        found = {"nvidia_repo_url": url} if url else {}
        found |= {} if key == "auto" else {"nvidia_repo_key_url": key}
        return found | ({"nvidia_repo_repository": plan["repository"]} if plan["repository"] else {})

    def of(self, facts: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        """Return the variables with these prefixes that the user or the run sets, with the facts of a decision."""
        given: dict[str, Any] = {}
        for role in role_inputs.roles():
            if any(f"{role}_".startswith(prefix) or prefix.startswith(f"{role}_") for prefix in prefixes):
                given |= self.inputs(role, facts)
        available = {**given, **self.variables, **facts}
        templar = self.templar.copy_with_new_env(available_variables=available)
        options = {name for role in role_inputs.roles().values() for name in role}
        names = sorted(name for name in {*given, *self.variables} & options if name.startswith(prefixes))
        return {name: templar.template(available[name]) for name in names}

    def transaction(self, facts: Mapping[str, Any], parts: Iterable[str]) -> dict[str, list[Any]]:
        """Return what the roles of these parts install, in their order and each thing once."""
        merged: dict[str, list[Any]] = {"packages": []}
        known = role_lists.roles()
        for name in (name for name in parts if name in known and known[name].transaction):
            options = self._in_role(known[name], self.inputs(name, facts), facts).template(known[name].transaction)
            for option, values in options.items():
                of_all = merged.setdefault(option, [])
                of_all += [value for value in values if value not in of_all]
        return merged

    def _in_role(self, role: role_lists.Role, inputs: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
        available = {**role.defaults, **inputs, **self.variables, **facts, **role.variables}
        return self.templar.copy_with_new_env(available_variables=available)

    def managed(self) -> dict[str, dict[str, Any]]:
        """Return what each role has on a host, by kind: its files, of which `secrets` are some, and all else."""
        listed = role_lists.roles()
        available: dict[str, Any] = {}  # one environment, as these variables have the names of their roles
        for role in listed.values():
            available |= role.defaults
        available |= self.variables
        for role in listed.values():
            available |= role.variables
        templar = self.templar.copy_with_new_env(available_variables=available)
        # Most paths are no templates, and rendering takes longer than all the rest.
        every = [text for role in listed.values() for each in role.files for text in each[:2]]
        texts = {text for text in every if isinstance(text, str) and "{{" in text}
        values = dict(zip(texts, templar.template(list(texts)), strict=True))
        kinds = templar.template({name: role.managed for name, role in listed.items()})
        found: dict[str, dict[str, Any]] = {}
        for name, role in listed.items():
            paths: dict[str, list[str]] = {"files": [], "secrets": []}
            for path, names, is_secret in role.files:
                place = values.get(path, path)
                within = values[names] if isinstance(names, str) else names
                files = [str(place)] if within is None else [f"{place}/{each}" for each in within]
                paths["files"] += files
                paths["secrets"] += files if is_secret else []
            found[name] = {**paths, **kinds[name]}
        return found
