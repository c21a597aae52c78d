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
    lacking = {choice.name: text for choice in as_in_tables(choices) if (text := choice.lacks(context))}
    named = list(lacking.values())
    if host.architecture not in supported(catalog, host.distribution):
        named.insert(0, f"NVIDIA repository for {host.distribution}")
        findings.problem(
            CODE,
            f"{host.distribution} on {host.architecture} is not supported: {_none_of(named, host.architecture)}; "
            f"supported are {where_supported(catalog)}",
            "use one of those",
        )
    elif named:
        left_out = " and ".join(f"gpu_stack_{name}=none" for name in lacking)
        findings.problem(
            CODE, f"{host.distribution}: {_none_of(named, host.architecture)}", f"leave that out with {left_out}"
        )
    return bool(named)


def _none_of(named: list[str], architecture: str) -> str:
    """Return that the catalog has nothing of some kinds for an architecture."""
    listed = " and ".join(text for text in (", ".join(named[:-1]), named[-1]) if text)
    return f"the catalog has no {listed} for {architecture}"


_NOT_ENFORCING = "where SELinux is not enforcing: "


def where_supported(catalog: Catalog) -> str:
    """Return the distribution releases and the architectures that they serve, for a message."""
    served: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for name in sorted(catalog.distros, key=lambda name: (bool(catalog.distros[name].planned_only), name)):
        served.setdefault((bool(catalog.distros[name].planned_only), supported(catalog, name)), []).append(name)
    return "; ".join(
        f"{_NOT_ENFORCING if is_planned_only else ''}{', '.join(names)} on {' and '.join(on)}"
        for (is_planned_only, on), names in served.items()
        if on
    )
