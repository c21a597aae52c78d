"""The variables that a user may set: those of meta/variables.yml, and one for each component of the registry."""

from __future__ import annotations

import functools

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model import user_variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX, Variable
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import as_in_tables


@functools.cache
def declared() -> dict[str, Variable]:
    """Return the variables by name, in the order of meta/variables.yml."""
    modules = {choice.name: choice.candidates.__module__ for choice in as_in_tables(CHOICES)}
    files = {name: module.partition(".stack.")[2].replace(".", "/") for name, module in modules.items()}
    return user_variables.read({name: f"{file}.py" for name, file in files.items()})


def of_request() -> dict[str, Variable]:
    """Return the variables that a plan depends on, by name without the prefix."""
    return {variable.option: variable for variable in declared().values() if variable.request}


def of_runs() -> dict[str, Variable]:
    """Return the gpu_stack_* variables that are not part of the request, by name without the prefix."""
    ours = [variable for variable in declared().values() if variable.name.startswith(PREFIX)]
    return {variable.option: variable for variable in ours if not variable.request}
