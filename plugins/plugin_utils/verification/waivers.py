"""Read gpu_stack_waivers: failures of checks that the operator accepts until a date."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Waiver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling

VARIABLE = "gpu_stack_waivers"
_KEYS = ("check", "gpu", "reason", "until")
_GPU = re.compile(
    r"^(\d{1,3}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|([0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$",
    re.IGNORECASE,
)


class WaiverError(ValueError):
    """The variable has mistakes; the message lists all of them."""


@dataclasses.dataclass(frozen=True)
class Waivers:
    """The waivers that hold today, and a warning for each that has expired."""

    active: tuple[Waiver, ...]
    warnings: tuple[str, ...]

    def arguments(self) -> list[dict[str, Any]]:
        """Return the option `waivers` of the module gpu_verify."""
        return [dataclasses.asdict(waiver) for waiver in self.active]


def read(value: object, today: date) -> Waivers:
    """Return the waivers of the variable; raises WaiverError with every mistake in it."""
    if not isinstance(value, list):
        raise WaiverError(f"{VARIABLE} is {value!r}, expected a list of {{check, gpu, reason, until}}")
    active, warnings, problems = [], [], []
    for number, entry in enumerate(value, start=1):
        where = f"{VARIABLE}, entry {number}"
        mistakes = _mistakes(entry)
        if mistakes:
            problems += [f"{where}: {mistake}" for mistake in mistakes]
            continue
        gpu = entry.get("gpu")
        until = _date(entry["until"])
        waiver = Waiver(entry["check"], entry["reason"].strip(), str(until), None if gpu is None else _gpu(gpu))
        if until is not None and until < today:
            warnings.append(f"{where}: the waiver of {waiver.check} expired on {waiver.until} and waives nothing")
        else:
            active.append(waiver)
    if problems:
        raise WaiverError("; ".join(problems))
    return Waivers(tuple(active), tuple(warnings))


def _mistakes(entry: object) -> list[str]:
    if not isinstance(entry, Mapping):
        return [f"found {entry!r}, expected {{check, gpu, reason, until}}"]
    return [
        *(f"unknown key {key!r}, expected {', '.join(_KEYS)}" for key in entry if key not in _KEYS),
        *_check_mistakes(entry.get("check"), entry.get("gpu")),
        *(["no reason: say why the failure is accepted"] if not _is_text(entry.get("reason")) else []),
        *(
            [f"until is {entry.get('until')!r}, expected the last day as a date such as 2027-06-30"]
            if _date(entry.get("until")) is None
            else []
        ),
    ]


def _check_mistakes(check: object, gpu: object) -> list[str]:
    # Not at the top: most runs have no waiver, and Ansible compiles a collection's modules again in each run.
    from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_checks, verify

    known = [spec.id for group in verify.GROUPS.values() for spec in group.CHECKS]
    mistakes = []
    if gpu is not None and not _GPU.match(_gpu(gpu)):
        mistakes.append(
            f"gpu is {gpu!r}, expected an index, a UUID or a PCI address, as `nvidia-smi -L` and -q show them"
        )
    if check not in known:
        hint = spelling.hint(str(check), known)
        return [f"check is {check!r}, expected an id of docs/checks.md{hint}", *mistakes]
    if gpu is not None and check not in gpu_checks.BY_GPU:
        mistakes.append(f"{check} is not judged GPU by GPU: leave out gpu to waive it for the whole host")
    return mistakes


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _gpu(value: object) -> str:
    return "" if isinstance(value, bool) else str(value).strip()


def _date(value: object) -> date | None:
    """Return a date as YAML or a string has it, None for anything else."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return datetime.strptime(str(value), "%Y-%m-%d").date()
    except ValueError:
        return None
