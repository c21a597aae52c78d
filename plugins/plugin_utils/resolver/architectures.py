"""Refuse a plan for a CPU architecture that the catalog has nothing for: no entry, no plan.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choices, as_in_tables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

CODE = "distro-not-supported"


def check(context: ResolveContext, choices: Choices, findings: Findings) -> bool:
    """Return whether the catalog lacks what the request needs for the host's architecture, with one problem for all.

    context: with the catalog of the host's architecture.
    """
    host, catalog = context.host, context.catalog
    lacking = _lacking(context, choices)
    if host.architecture not in supported(catalog, host.distribution):
        lacking.insert(0, f"NVIDIA repository for {host.distribution}")
    if not lacking:
        return False
    named = " and ".join(text for text in (", ".join(lacking[:-1]), lacking[-1]) if text)
    findings.problem(
        CODE,
        f"{host.distribution} on {host.architecture} is not supported: the catalog has no {named} for "
        f"{host.architecture}; supported are {where_supported(catalog)}",
        "use one of those",
    )
    return True


def where_supported(catalog: Catalog) -> str:
    """Return the distribution releases and the architectures that they serve, for a message."""
    served: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(catalog.distros):
        served.setdefault(supported(catalog, name), []).append(name)
    return "; ".join(f"{', '.join(names)} on {' and '.join(on)}" for on, names in served.items() if on)


def _lacking(context: ResolveContext, choices: Choices) -> list[str]:
    """Return what the request needs and the catalog has no entry of, in the words of messages."""
    found = (choice.lacks(context) for choice in as_in_tables(choices))
    return [name for name in found if name]
