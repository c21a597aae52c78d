"""What other installers left on a host that stands in the way of packages, and how a run can put it away.

Runs on the controller; pure functions. gpu_stack_leftovers decides: `refuse` makes problems of what blocks the plan,
with `remove` the run puts it away before anything else. Files are set aside and not deleted; what NVIDIA's uninstallers
take away is gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import RepositoryFile

Data = Mapping[str, Any]

FOLDER = "/var/lib/gpuhost/set_aside"  # the default of roles/nvidia_repo
REMEDY = ", or let the run do it with -e gpu_stack_leftovers=remove"


@dataclasses.dataclass(frozen=True)
class Leftover:
    """One thing that is left over.

    blocks: whether the plan cannot be carried out while it is there. does: what a run does about it, empty where it
    leaves it alone; uninstaller: the program of that, by component; set_aside: the file that is moved.
    """

    code: str
    message: str
    remedy: str
    blocks: bool = True
    does: str = ""
    component: str = ""
    uninstaller: str = ""
    set_aside: str = ""
    purge: str = ""


@dataclasses.dataclass(frozen=True)
class Own:
    """What this project itself puts on a host, which is not left over."""

    repository_key: str = "/etc/apt/keyrings/nvidia-cuda.asc"
    repository_file: str = "/etc/apt/sources.list.d/nvidia-cuda.sources"


def find(plan: Data, probe: Data, own: Own | None = None, known: RepositoryFile | None = None) -> list[Leftover]:
    """Everything that is left over, in the order in which it is told."""
    facts = known or load_catalog().repository
    return [
        *_driver(plan, probe),
        *_toolkits(plan, probe),
        *_sources(plan, probe, own or Own(), facts),
        *_keys(probe, facts),
    ]


def removed(plan: Data) -> bool:
    """Whether the user lets the run put away what is left over."""
    return (plan.get("request") or {}).get("leftovers") == "remove"


def work(plan: Data, probe: Data) -> dict[str, Any]:
    """What a run puts away, for people and for the roles; nothing where it may not."""
    found = [leftover for leftover in find(plan, probe) if leftover.does] if removed(plan) else []
    return {
        "does": list(dict.fromkeys(leftover.does for leftover in found)),
        "set_aside": sorted({leftover.set_aside for leftover in found if leftover.set_aside}),
        "purge": sorted({leftover.purge for leftover in found if leftover.purge}),
        "driver_uninstallers": [left.uninstaller for left in found if left.uninstaller and left.component == "driver"],
        "cuda_uninstallers": [left.uninstaller for left in found if left.uninstaller and left.component == "cuda"],
    }


# .run installers ------------------------------------------------------------------------------------------------


def _driver(plan: Data, probe: Data) -> Iterator[Leftover]:
    found = (probe.get("runfile") or {}).get("driver")
    if not found or not (plan.get("components") or {}).get("driver"):
        return
    version = f" {found['version']}" if found["version"] else ""
    message = (
        f"driver{version} was installed by NVIDIA's .run installer ({', '.join(found['traces'])}); packages would "
        "overwrite half of it"
    )
    program = found["uninstaller"]
    command = f"sudo {program} --silent" if program else "sudo ./<installer>.run --uninstall"
    remedy = (
        f"remove it with {command}{REMEDY if program else ''}, or leave the driver as it is with gpu_stack_driver=none"
    )
    does = f"driver{version} of the .run installer is uninstalled by {program}; no undo brings it back"
    yield Leftover(
        "runfile-install",
        message,
        remedy,
        does=does if program else "",
        component="driver",
        uninstaller=program or "",
    )


def _toolkits(plan: Data, probe: Data) -> Iterator[Leftover]:
    cuda = (plan.get("components") or {}).get("cuda")
    for toolkit in (probe.get("runfile") or {}).get("toolkits") or []:
        version, program = toolkit["version"], toolkit["uninstaller"]
        message = f"CUDA {version} was installed by NVIDIA's .run installer ({program})"
        if not cuda or cuda["version"] != version or cuda["source"] != "nvidia":
            yield Leftover("runfile-install", f"{message}; it stays beside the planned one", "", blocks=False)
            continue
        yield Leftover(
            "runfile-install",
            f"{message}, where the planned packages go",
            f"remove it with sudo {program} --silent{REMEDY}, or ask for another version",
            does=f"CUDA {version} of the .run installer is uninstalled by {program}; no undo brings it back",
            component="cuda",
            uninstaller=program,
        )


# Package sources ------------------------------------------------------------------------------------------------


def _sources(plan: Data, probe: Data, own: Own, facts: RepositoryFile) -> Iterator[Leftover]:
    """apt refuses to read anything while one repository has two different Signed-By values."""
    found = probe.get("repository_files") or {}
    planned = ((plan.get("repository") or {}).get("url") or "").rstrip("/")
    for entry in found.get("entries") or []:
        if entry["file"] == own.repository_file:
            continue
        where = f"{entry['file']} leads to {entry['uri']}"
        same = bool(planned) and entry["uri"].rstrip("/") == planned
        if same and entry["signed_by"] != own.repository_key:
            message = (
                f"{where}, signed by {entry['signed_by'] or 'any trusted key'}; expected is {own.repository_key}, and "
                "apt refuses a repository with two different Signed-By values"
            )
            yield _source(entry, probe, facts, message, blocks=True)
        elif not same:
            message = f"{where}: its packages may get in the way; remove it if nothing needs it"
            yield _source(entry, probe, facts, message, blocks=False)


def _source(entry: Data, probe: Data, facts: RepositoryFile, message: str, blocks: bool) -> Leftover:
    path = entry["file"]
    if path in ((probe.get("repository_files") or {}).get("mixed") or []):
        remedy = f"remove that entry from {path}, which other repositories stand in, too"
        return Leftover("stale-repository", message, remedy, blocks)
    remedy = f"remove {path} (sudo apt-get purge {facts.keyring_package} where that package brought it){REMEDY}"
    if not blocks and not any(part in entry["uri"] for part in facts.rivals):
        return Leftover("stale-repository", message, remedy, blocks)
    package = _keyring_package(entry, probe, facts)
    does = f"{path} is moved to {FOLDER}" + (f", and {package}, which brought it, is purged" if package else "")
    return Leftover("stale-repository", message, remedy, blocks, does, set_aside=path, purge=package)


def _keyring_package(entry: Data, probe: Data, facts: RepositoryFile) -> str:
    """The package that brings NVIDIA's repository with a keyring of its own; empty where it did not bring this."""
    package = (probe.get("packages") or {}).get(facts.keyring_package) or {}
    there = package.get("status") not in (None, "config-files", "not-installed")
    return facts.keyring_package if there and entry["signed_by"] == facts.keyring else ""


def _keys(probe: Data, facts: RepositoryFile) -> Iterator[Leftover]:
    found = probe.get("repository_files") or {}
    for path, keys in (found.get("keys") or {}).items():
        if any(key.endswith(facts.old_key) for key in keys):
            message = f"{path} holds NVIDIA's old key {facts.old_key}, which signs nothing now: remove it"
            alone = path not in (found.get("mixed") or [])
            does = f"{path} (NVIDIA's old key {facts.old_key}) is moved to {FOLDER}" if alone else ""
            yield Leftover("stale-repository", message, "", False, does, set_aside=path if alone else "")
