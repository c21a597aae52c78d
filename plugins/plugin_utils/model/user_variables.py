"""The variables that a user may set, as meta/variables.yml declares them; see components/inputs/declared.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml

PREFIX = "gpu_stack_"
DECLARATION = PROJECT / "meta" / "variables.yml"
COMPONENT = "gpu_stack_{component}"  # the entry for every component without one of its own


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of the inventory; the head of meta/variables.yml explains the fields. Meanings are in Markdown."""

    name: str
    type: str
    meaning: str
    default: Any
    read_by: tuple[str, ...]
    choices: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    expected: str = ""
    minimum: int = 0
    maximum: float = 0
    request: bool = False
    warns_if_empty: bool = True
    secret: bool = False

    @property
    def option(self) -> str:
        """The name without gpu_stack_, as in a request."""
        return self.name.removeprefix(PREFIX)


def read(components: Mapping[str, str]) -> dict[str, Variable]:
    """Return the declared variables by name, in the order of the file.

    components: names, with the module to read; each has a variable, that of COMPONENT where it has no entry of its own.
    Raises ValueError for a key that no variable has.
    """
    entries = load_yaml(DECLARATION)
    found = {}
    for name, entry in entries.items():
        if name != COMPONENT:
            found[name] = _variable(name, entry)
            continue
        for component, module in components.items():
            own = name.format(component=component)
            if own not in entries:
                found[own] = _variable(own, {**entry, "read_by": [module]})
    return found


def _variable(name: str, entry: Mapping[str, Any]) -> Variable:
    words = entry.get("choices", {})
    choices = words if isinstance(words, Mapping) else dict.fromkeys(words)
    try:
        return Variable(name, **{**entry, "choices": choices, "read_by": tuple(entry["read_by"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{DECLARATION.name}: {name}: {error}") from error


def is_empty(value: Any) -> bool:
    """Return whether a variable is set to nothing, which means its default."""
    return value is None or value == ""
