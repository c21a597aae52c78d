"""The values of role variables without Ansible: what the plan gives, and what a user sets in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS

HELPERS = tuple(name for part in PARTS for name in part.build_variables)


class Roles:
    """In place of plugin_utils/actions/role_values.py, which renders what a user sets and what roles list."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values = values or {}

    def of(self, facts: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        known = {**facts.get("gpu_stack_role_inputs", {}), **self.values}
        return {name: value for name, value in known.items() if name.startswith(prefixes)}

    def transaction(self, facts: Mapping[str, Any], parts: Iterable[str]) -> dict[str, list[Any]]:
        known = self.of(facts, tuple(f"{part}_" for part in parts))
        packages = [package for part in parts for package in known.get(f"{part}_packages", ())]
        return {"packages": packages, "helpers": [each for name in HELPERS for each in known.get(name, ())]}
