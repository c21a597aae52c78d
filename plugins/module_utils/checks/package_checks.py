"""Checks of the packages' versions and holds. Runs on the target."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, Context, compared, skipped
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dpkg

PACKAGED = ("driver", "cuda", "cudnn", "nccl")


def packages(context: Context, machine: str) -> list[Check]:
    """Every planned package has its planned version and is held."""
    planned: dict[str, str] = {}
    for name in PACKAGED:
        component = context.component(name) or {}
        for item in list(component.get("packages") or []):
            package, _, version = str(item).partition("=")
            planned[package] = version
    if not planned:
        reason = "the plan has no package"
        return [skipped("packages.installed", reason), skipped("packages.held", reason)]
    found = dpkg.read(context.root, list(planned), machine)
    wrong = [_difference(name, planned[name], found.get(name)) for name in sorted(planned)]
    differences = [text for text in wrong if text]
    loose = [name for name in sorted(planned) if not (found.get(name) or {}).get("held")]
    total = "%d packages" % len(planned)
    return [
        compared(
            "packages.installed",
            not differences,
            "; ".join(differences) or "%s as planned" % total,
            "%s, each installed in the planned version" % total,
            "Run the playbook again; /var/log/apt/history.log tells what changed them.",
        ),
        compared(
            "packages.held",
            not loose,
            "not held: " + ", ".join(loose) if loose else "%s held" % total,
            "%s held, so that no upgrade takes one alone" % total,
            "apt-mark hold " + " ".join(loose),
        ),
    ]


def _difference(name: str, version: str, found: dict[str, Any] | None) -> str | None:
    if found is None or found["status"] == "not-installed":
        return "%s is not installed" % name
    if found["status"] != "installed":
        return "%s is %s" % (name, found["status"])
    if version and found["version"] != version:
        return "%s is %s instead of %s" % (name, found["version"], version)
    return None
