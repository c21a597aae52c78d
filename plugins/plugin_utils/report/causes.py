"""What a failed check follows from: a table of what is damaged, or in another version, and of the checks that it fails.

Nothing is concluded beyond the table. A failure that no row has is one of its own, and so is one of the hardware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HARDWARE, Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, UNKNOWN
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, UNDECIDED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import ComponentDiff, HostEvidence

PENDING = "the pending change"
# The CUDA program of the checks, and everything that computes on GPUs.
_PROGRAM = (
    *("cuda.compile_link_run", "cuda.devices", "cuda.device_query", "cuda.memory_copies", "cuda.peer_access"),
    *("cuda.cudnn_handle", "cuda.nccl_all_reduce", "cuda.bandwidth", "cuda.unprivileged"),
)
_ON_GPUS = (*_PROGRAM, "*.devices", "*.matmul", "*.convolution", "pytorch.triton")
_FABRIC = ("driver.fabric_manager", "driver.nvlsm", "gpu.fabric", *_ON_GPUS)
_SERVICE = "(service|link that enables) "
_PACKAGES = "(package|files of|content of) "


class Row(NamedTuple):
    """The checks that a damage fails, as globs.

    of: the component whose package or role it is, or the role of no component; what: how its name begins, by its kind.
    Both are regular expressions.
    """

    of: str
    what: str
    checks: tuple[str, ...]


TABLE = (
    Row(".*", "package ", ("packages.*",)),
    Row("driver", _SERVICE + "nvidia-persistenced", ("gpu.persistence",)),
    Row("driver", _SERVICE + "nvidia-fabricmanager", _FABRIC),
    # Without Xids and links: what a GPU or board may have of itself is named even where the driver is damaged.
    Row("driver", f"(?!{_SERVICE})", ("driver.*", "gpu.answers", "gpu.fabric", "gpu.persistence", "idle.*", *_ON_GPUS)),
    Row("fabric", "", _FABRIC),
    Row("cuda", _PACKAGES, ("cuda.*", "env.*")),
    Row("cuda", "(link of the )?alternative ", ("env.*",)),
    Row("cudnn|nccl", "", _PROGRAM),
    Row("env_paths", "file ", ("env.*",)),
    Row("env_paths", "LD_LIBRARY_PATH in |cache of the dynamic linker", (*_ON_GPUS, "tensorflow.*", "pytorch.*")),
    Row("tensorflow", "", ("tensorflow.*", "smoke_train.*")),
    Row("pytorch", "", ("pytorch.*", "smoke_train_pytorch.*")),
)
# Messages of Ansible, and what to type.
_MESSAGES = (
    (
        r"no vault secrets (were )?found",
        "a value in the inventory is encrypted, and this run has no password for it, or another one",
        "add --ask-vault-pass, or --vault-password-file FILE",
    ),
)


def explain(message: str) -> tuple[str, str]:
    """Return what a known message of a task means, "" where that says it itself, and the remedy, "" for another one."""
    for pattern, meaning, remedy in _MESSAGES:
        if re.search(pattern, message):
            return meaning, remedy
    download = repository.failed_download(message)
    return "", download[1].remedy if download else ""


def pending_components(evidence: HostEvidence) -> list[ComponentDiff]:
    """Return what a change that an earlier run began has left in another version than the plan's."""
    if not (evidence.probe and evidence.probe.pending and evidence.diff):
        return []
    return [row for row in evidence.diff.components if row.action not in (KEEP, UNDECIDED)]


def symptom_of(part: str, check: Check, evidence: HostEvidence) -> tuple[str, ...]:
    """Return the names of the damage that a check follows from, or PENDING; part: the evidence that it is from.

    A run that changes the host has repaired it before it asks the checks.
    """
    if check.status not in (FAIL, UNKNOWN) or check.cause == HARDWARE or evidence.changed:
        return ()
    name = check.id if part == "verify" else f"{part}.{check.id}"
    found = tuple(damage for of, damage in _damage(evidence) if _follows(name, of, damage))
    if found:
        return found
    changed = (row.component for row in pending_components(evidence))
    return (PENDING,) if any(_follows(name, component, "package ") for component in changed) else ()


def _follows(check: str, of: str, damage: str) -> bool:
    rows = (row for row in TABLE if re.fullmatch(row.of, of) and re.match(row.what, damage))
    return any(fnmatchcase(check, glob) for row in rows for glob in row.checks)


def _damage(evidence: HostEvidence) -> Iterator[tuple[str, str]]:
    """Yield the component or role of each damage that is left, and its name."""
    probe, components = evidence.newest_probe, {part.role: part.name for part in PARTS}
    for part, applied in (probe.applied if probe else {}).items():
        for name in applied.damage:
            is_package = part == drift.PACKAGES
            yield (_component(name, evidence.plan) if is_package else components.get(part, part)), name


def _component(damage: str, plan: Plan | None) -> str:
    """Return the component of a package: the one that is planned with it, or that has such packages beside those."""
    package = damage.rpartition(" ")[2].partition("=")[0]
    planned = {name: part.planned(plan.components) for name, part in BY_NAME.items()} if plan else {}
    for name, component in planned.items():
        if package in [each.name for each in getattr(component, "all_packages", ())]:
            return name
    parts = {"driver": load_catalog().packages.driver_parts, "cuda": load_catalog().packages.cuda_parts}
    return next((name for name, known in parts.items() if any(re.fullmatch(each, package) for each in known)), "")
