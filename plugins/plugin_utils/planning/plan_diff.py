"""The drift: what a plan would do to a host, component by component. Runs on the controller; pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.packages import debian_version
from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, removals
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LABELS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.removals import Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.tables import text_table

SCHEMA = 1
INSTALL, UPGRADE, DOWNGRADE, KEEP, REMOVE = "install", "upgrade", "downgrade", "keep", "remove"
Data = Mapping[str, Any]


def plan_diff(plan: Data, probe: Data, catalog: Catalog | None = None) -> dict[str, Any]:
    """What a plan does to a host, from plain data.

    components: a row each; leftovers: what is put away first; replaces, may_remove: regular expressions of packages
    that must go and may go, by component.
    """
    catalog = catalog or load_catalog()
    gone = _removals(plan, probe, catalog)
    rows = [_component(name, (plan["components"] or {}).get(name), probe, gone[name], catalog) for name in LABELS]
    put_away = leftovers.work(plan, probe)
    return {
        "schema": SCHEMA,
        "changes": bool(put_away["does"]) or any(row["action"] != KEEP for row in rows),
        "components": rows,
        "leftovers": put_away,
        "replaces": {name: list(removal.replaces) for name, removal in gone.items()},
        "may_remove": {name: list(removal.may_remove) for name, removal in gone.items()},
    }


def _removals(plan: Data, probe: Data, catalog: Catalog) -> dict[str, Removal]:
    """What has to go for each component."""
    parts, present = plan["components"] or {}, _present(probe)
    native = {name: package for name, package in present.items() if ":" not in name}
    offered = (probe.get("repository") or {}).get("sizes") or {}
    keep = (plan.get("request") or {}).get("keep_cuda", "all")
    driver, cuda, cudnn = (parts.get(name) for name in ("driver", "cuda", "cudnn"))
    found = dict.fromkeys(LABELS, Removal())
    if driver:
        found["driver"] = removals.of_driver(
            driver, native, _installed("driver", driver, probe, catalog), offered, catalog
        )
    if cuda:
        found["cuda"] = removals.of_toolkits(keep, cuda, probe, native, catalog)
    if cudnn:
        found["cudnn"] = removals.of_cudnn(cudnn, cuda, native, catalog)
    return found


def by_component(diff: Data) -> dict[str, Data]:
    """The rows by the component's name."""
    return {row["component"]: row for row in diff["components"]}


def _component(name: str, planned: Data | None, probe: Data, gone: Removal, catalog: Catalog) -> dict[str, Any]:
    installed = _installed(name, planned, probe, catalog)
    row: dict[str, Any] = {
        "component": name,
        "installed": installed,
        "planned": None,
        "action": KEEP,
        "note": "",
        "packages": [],
    }
    if planned is None:
        return {**row, "note": "not asked for, left as it is" if installed else ""}
    version = str(planned.get("release") or planned["version"])
    row["planned"] = version
    if name in ("tensorflow", "pytorch"):
        return {**row, **_environment(planned, probe.get(name) or {})}
    present = _present(probe)
    packages = _packages(planned, probe)
    packages += [_change(package, present[package]["version"], None, REMOVE) for package in gone.packages]
    actions = {package["action"] for package in packages}
    row["packages"] = packages
    row["action"] = next(
        (a for a in (DOWNGRADE, UPGRADE, INSTALL) if a in actions), REMOVE if REMOVE in actions else KEEP
    )
    if row["action"] == INSTALL and name != "cuda" and installed:
        row["action"] = _direction(installed, version) or INSTALL
    row["note"] = _cuda_note(planned, probe, gone) if name == "cuda" else gone.why
    return row


def _cuda_note(planned: Data, probe: Data, gone: Removal) -> str:
    going = gone.why.removeprefix("CUDA ").split(", CUDA ") if gone.why else []
    beside = [version for version in _toolkits(probe) if version not in (planned["version"], *going)]
    notes = [f"removes {gone.why}"] if going else []
    return "; ".join([*notes, f"{', '.join(beside)} stays beside it"] if beside else notes)


# What is installed ----------------------------------------------------------------------------------------------


def _installed(name: str, planned: Data | None, probe: Data, catalog: Catalog) -> str | None:
    if name in ("tensorflow", "pytorch"):
        return (probe.get(name) or {}).get("version")
    if name == "cuda":
        return _installed_cuda(planned, probe)
    found = [p["version"] for n, p in _present(probe).items() if re.fullmatch(catalog.packages.leading[name], n)]
    newest = debian_version.newest_first(found)
    return versions.upstream(newest[0]) if newest else None


def _installed_cuda(planned: Data | None, probe: Data) -> str | None:
    """The planned toolkit where it is there, as its package calls it; else the newest of the others."""
    present = _present(probe)
    for spec in (planned or {}).get("packages") or []:
        package = present.get(spec.partition("=")[0])
        if package:
            return versions.upstream(package["version"])
    toolkits = _toolkits(probe)
    if planned and planned["version"] in toolkits:
        return str(planned["version"])
    return toolkits[-1] if toolkits else None


def _toolkits(probe: Data) -> list[str]:
    cuda = probe.get("cuda") or {}
    found = [*(cuda.get("installed") or []), *([cuda["distro"]] if cuda.get("distro") else [])]
    return sorted(dict.fromkeys(found), key=versions.key)


def _present(probe: Data) -> dict[str, Data]:
    """Packages whose files are on the host, in whatever state."""
    packages = probe.get("packages") or {}
    return {n: p for n, p in packages.items() if p["version"] and p["status"] not in ("config-files", "not-installed")}


# What the plan does ---------------------------------------------------------------------------------------------


def _packages(planned: Data, probe: Data) -> list[dict[str, Any]]:
    specs = [*(planned.get("pinning_packages") or []), *(planned.get("packages") or [])]
    present = _present(probe)
    changes = []
    for spec in specs:
        name, _, wanted = spec.partition("=")
        package = present.get(name)
        changes.append(_change(name, package["version"] if package else None, wanted or None, _act(package, wanted)))
    return changes


def _change(name: str, installed: str | None, planned: str | None, action: str) -> dict[str, Any]:
    return {"name": name, "installed": installed, "planned": planned, "action": action}


def _act(package: Data | None, wanted: str) -> str:
    """A package that dpkg left half done is installed again, whatever its version."""
    if package is None:
        return INSTALL
    move = _direction(package["version"], wanted) if wanted else None
    return move or (KEEP if package["status"] == "installed" else INSTALL)


def _direction(installed: str, wanted: str) -> str | None:
    """By Debian's order of versions; None where both are the same."""
    old, new = debian_version.key(installed), debian_version.key(wanted)
    return None if old == new else UPGRADE if old < new else DOWNGRADE


def _environment(planned: Data, found: Data) -> dict[str, str]:
    if not found:
        return {"action": INSTALL}
    move = _direction(str(found["version"]), str(planned["version"]))
    if move is None and found.get("python") != planned.get("python"):
        return {"action": INSTALL, "note": f"made again for Python {planned['python']}"}
    return {"action": move or KEEP}


# Printing -------------------------------------------------------------------------------------------------------


def diff_table(diff: Data) -> str:
    """The drift for a terminal: one component a line, its packages where they are removed."""
    rows = [["COMPONENT", "INSTALLED", "PLANNED", "ACTION"]]
    for row in diff["components"]:
        if row["installed"] or row["planned"]:
            note = f" ({row['note']})" if row["note"] else ""
            # A toolkit is dozens of packages; its note names it.
            gone = [p["name"] for p in row["packages"] if p["action"] == REMOVE and row["component"] != "cuda"]
            removed = _listed(gone)
            action = row["action"] + note + (f"; removes {removed}" if removed else "")
            rows.append([LABELS[row["component"]], row["installed"] or "-", row["planned"] or "-", action])
    lines = text_table(rows)
    lines += [f"First: {sentence}" for sentence in diff["leftovers"]["does"]]
    return "\n".join([*lines, "" if diff["changes"] else "The host has what is planned."]).rstrip()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
