"""Which parts of a host a run has to enter: where the plan, the variables, our own files or the host moved.

Runs on the controller. A part is a role, or `packages` (one transaction for all roles), or `plan` (its record on the
host). The host keeps what the last complete run left of each part (module_utils/state/applied.py); here that is held
against what this run would make. Pure, but for `fingerprint`, which reads the project's own files.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[3]
ALWAYS = "always"
CONVERGE = ("drift", ALWAYS)
PACKAGES, PLAN = "packages", "plan"  # the parts that are no roles
Data = Mapping[str, Any]


@functools.cache
def _content(folder: Path) -> str:
    """Names and contents of a folder's files, as one hash; read once a run."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def fingerprint(variables: Data, roles: Sequence[str], project: Path = PROJECT) -> str:
    """What makes the roles do what they do: their variables, their files, and the modules that they run on the host.

    variables: name to value, plain data. Raises FileNotFoundError for a role that there is not.
    """
    folders = [project / "roles" / role for role in roles]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a role of this project")
    folders += [project / "plugins/modules", project / "plugins/module_utils"]
    return _hash({"variables": variables, "files": [_content(folder) for folder in folders]})


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def planned(plan: Data, managed: Data) -> list[str]:
    """The parts that a plan has: those of which a component is planned. `managed`: {part: {"for": [component]}}."""
    components = {**plan["components"], "repository": plan.get("repository")}
    return [name for name, entry in managed.items() if any(components.get(component) for component in entry["for"])]


def parts(plan: Data, managed: Data, fingerprints: Data) -> dict[str, Any]:
    """What is to be watched of each part that this plan has: {part: {"fingerprint", "watch"}}.

    managed: {part: {"for": [components], "with": [roles it includes], **what is watched}}; fingerprints: by role.
    `packages` have that of all roles with packages, `plan` that of the plan itself.
    """
    found: dict[str, Any] = {}
    for name in planned(plan, managed):
        watch = {key: value for key, value in managed[name].items() if key not in ("for", "with") and value}
        found[name] = {"fingerprint": fingerprints.get(name), "watch": watch}
    if PACKAGES in found:
        roles = [name for name in found if set(managed[name]["for"]) & set(managed[PACKAGES]["for"])]
        found[PACKAGES]["fingerprint"] = _hash({name: fingerprints.get(name) for name in roles})
        found[PACKAGES]["watch"]["packages"] = _packages(plan)
    if PLAN in found:
        found[PLAN]["fingerprint"] = _hash(plan)
    missing = sorted(name for name, part in found.items() if not part["fingerprint"])
    if missing:
        raise KeyError(f"no fingerprint of {', '.join(missing)}")
    return found


def _packages(plan: Data) -> list[str]:
    specs = [
        spec
        for component in plan["components"].values()
        for kind in ("packages", "pinning_packages")
        for spec in (component or {}).get(kind) or []
    ]
    return sorted({str(spec).partition("=")[0] for spec in specs})


def drift(wanted: Data, applied: Data, diff: Data, managed: Data, converge: str = "drift") -> dict[str, list[str]]:
    """{part: why it is entered}, in the order of the parts; empty where the host has what is planned.

    wanted: `parts`; applied: the probe's, {part: {"fingerprint", "changed"}}; diff: `plan_diff`.
    Raises ValueError where `converge` is none of CONVERGE.
    """
    if converge not in CONVERGE:
        raise ValueError(f"gpu_stack_converge is {converge!r}, expected one of {', '.join(CONVERGE)}")
    moved = _moved(diff)
    reasons = {}
    for name, part in wanted.items():
        told = [f"{text}" for component in managed[name]["for"] for text in moved.get(component, [])]
        reasons[name] = [*_since(part, applied.get(name)), *told]
        if converge == ALWAYS:
            reasons[name].append("gpu_stack_converge is always")
    return {name: told for name, told in reasons.items() if told}


def _since(part: Data, applied: Data | None) -> list[str]:
    if applied is None:
        return ["no complete run of it is on record"]
    asked = [] if applied["fingerprint"] == part["fingerprint"] else ["the last run was asked for something else"]
    return [*asked, *applied["changed"]]


def _moved(diff: Data) -> dict[str, list[str]]:
    """What the plan does to the packages, by component; what other installers left concerns them all."""
    moved = {
        row["component"]: [f"{row['component']}: {row['action']} {row['planned'] or ''}".strip()]
        for row in diff["components"]
        if row["action"] != "keep"
    }
    for sentence in diff["leftovers"]["does"]:
        for component in ("repository", "driver", "cuda"):
            moved.setdefault(component, []).append(sentence)
    return moved
