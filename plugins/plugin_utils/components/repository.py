"""Whether a plan needs NVIDIA's repository, and where it is.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    Components,
    DriverComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import staying
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext


def of_plan(context: ResolveContext, components: Components) -> dict[str, str] | None:
    """Return NVIDIA's repository where the plan needs it: the request's, else the one that was read, else NVIDIA's own.

    A plan needs it to install from, or to block its driver packages: where the host already reads it and the driver is
    the distribution's.
    """
    packaged = {part.name: getattr(part, "source", "nvidia") for part in components.packaged()}
    kept = staying.kept(context)
    is_distros = packaged.get(DriverComponent.name) == "distro" or (kept is not None and kept.source == "distro")
    to_block = context.host.repository_configured and is_distros
    if "nvidia" not in packaged.values() and not to_block:
        return None
    request = context.request
    base = None if request["repository_url"] == "auto" else request["repository_url"]
    facts = repository_facts(context.catalog, context.distro.id, context.host.architecture, base)
    if base is None and context.host.repository_url:
        # The plan is for the repository that was read, which may be a mirror.
        key_file = facts["key_url"].rsplit("/", 1)[-1]
        facts["url"] = context.host.repository_url.rstrip("/") + "/"
        facts["key_url"] = facts["url"] + key_file
    if request["repository_key_url"] != "auto":
        facts["key_url"] = request["repository_key_url"]
    if request["repository_key_fingerprint"] != "auto":
        facts["key_fingerprint"] = request["repository_key_fingerprint"]
    return facts
