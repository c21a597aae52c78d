"""The variables that a user may set, as meta/variables.yml declares them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml

PREFIX = "gpu_stack_"
DECLARATION = PROJECT / "meta" / "variables.yml"


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

    @property
    def option(self) -> str:
        """The name without gpu_stack_, as in a request."""
        return self.name.removeprefix(PREFIX)


@functools.cache
def declared() -> dict[str, Variable]:
    """Return the variables by name, in the order of the file; raises ValueError for a key that no variable has."""
    found = {}
    for name, entry in load_yaml(DECLARATION).items():
        words = entry.get("choices", {})
        choices = words if isinstance(words, Mapping) else dict.fromkeys(words)
        try:
            found[name] = Variable(name, **{**entry, "choices": choices, "read_by": tuple(entry["read_by"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{DECLARATION.name}: {name}: {error}") from error
    return found


def of_request() -> dict[str, Variable]:
    """Return the variables that a plan depends on, by name without the prefix."""
    return {variable.option: variable for variable in declared().values() if variable.request}


def of_runs() -> dict[str, Variable]:
    """Return the gpu_stack_* variables that are not part of the request, by name without the prefix."""
    ours = [variable for variable in declared().values() if variable.name.startswith(PREFIX)]
    return {variable.option: variable for variable in ours if not variable.request}


def is_empty(value: Any) -> bool:
    """Return whether a variable is set to nothing, which means its default."""
    return value is None or value == ""
