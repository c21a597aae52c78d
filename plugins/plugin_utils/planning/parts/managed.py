"""The parts of a stack, in the order in which they are installed. Runs on the controller; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart, PackagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import COMPONENT, PACKAGES, PLAN
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.variables import SHARED_ROLE

# The roles that are no component's, with the components that need them.
BEFORE, AFTER = {"nvidia_repo": ["repository"]}, {"env_paths": ["cuda"], "host_verify": ["driver", "cuda"]}
COMPONENTS_SOURCE = "/etc/apt/sources.list.d/gpuhost-components.sources"  # of the module apt_components
FACTS = "/etc/ansible/facts.d/gpu_stack.fact"  # of tasks/record_applied.yml


def parts(listed: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each part as gpu_stack_managed has it.

    `for` has the components that need it, `with` the roles that it includes, `component` is that its role has no steps
    of its own in tasks/install.yml; the rest is what it has on a host, by kind. listed: that of the roles, as they list
    it in their vars/main.yml, rendered.
    """
    of_roles = {**BEFORE, **{part.role: [part.name] for part in PARTS}, **AFTER}
    found: dict[str, dict[str, Any]] = {
        PACKAGES: {"for": [part.name for part in PACKAGED], "files": [COMPONENTS_SOURCE]},
        **{role: {"for": components} for role, components in of_roles.items()},
        PLAN: {"for": [part.name for part in PARTS], "files": [FACTS]},
    }
    for part in PARTS:
        if isinstance(part, EnvironmentPart):
            found[part.role]["with"] = [SHARED_ROLE]
        elif isinstance(part, PackagedPart) and not part.has_steps:
            found[part.role][COMPONENT] = True
    for role in found.keys() & listed.keys():
        found[role] |= listed[role]
    return found
