"""Decide with which frameworks a run trains, and compose the record of a training that verified a host."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import DEFERRED, PASS, REUSED, SKIP
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, VerifiedTraining

TRAIN, LEFT_OUT = "train", "left out"  # the other actions are the outcomes REUSED, DEFERRED and SKIP
MAX_AGE = float(declared()["smoke_train_max_age"].default)  # days
AUTO, ALWAYS = "auto", "always"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
SCHEMA = 2  # of smoke_train.json


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What the user asked for, and when.

    framework: the only one to train with, or empty; always: train, whatever evidence there is; max_age: in days.
    """

    now: datetime
    framework: str = ""
    always: bool = False
    max_age: float = MAX_AGE

    @classmethod
    def from_values(cls, now: str, framework: str, mode: Any, max_age: Any) -> TrainingOptions:
        """Read the values of variables; raises ValueError for one that cannot be used."""
        if mode not in (AUTO, ALWAYS):
            raise ValueError(f"gpu_stack_smoke_train is {mode!r}, expected {AUTO} or {ALWAYS}")
        try:
            days = float(max_age)
        except (TypeError, ValueError):
            days = -1.0
        if not 0 <= days <= timedelta.max.days:
            raise ValueError(f"smoke_train_max_age is {max_age!r}, expected a number of days")
        return cls(_time(now), framework, mode == ALWAYS, days)


@dataclasses.dataclass(frozen=True)
class Training:
    """What happens with one framework: `train`, `reused`, `deferred`, `skip` or `left out`, and why.

    result: for `reused`, `deferred` and `skip` the evidence of this run, smoke_train.json. expired: for `deferred`, why
    the last training of an unchanged host proves nothing any more; empty if it does. gpus: for `train`, nvidia-smi's
    indexes of the GPUs to train on; empty for all.
    """

    action: str
    reason: str
    result: Mapping[str, Any] | None = None
    expired: str = ""
    gpus: tuple[int, ...] = ()


# What evidence belongs to -----------------------------------------------------------------------------------------


def stack_fingerprint(plan: Plan, project: Path = PROJECT) -> str:
    """Return a hash of a plan's components and of the content of their lock files.

    It leaves out what frameworks compile with, which follows the host, and the absence of components that earlier
    releases do not know: a new one is no reason for every host to train again.
    """
    locks, components = {}, to_json(plan.components)
    for each in PARTS:
        if each.planned(plan.components) is None and not each.record.recorded_as_absent:
            components.pop(each.name, None)
    for part in FRAMEWORKS:
        component = part.planned(plan.components)
        if component is None:
            continue
        path = lock_texts.find(component.lock, project / "roles" / part.role / "files")
        if path:  # a user's own lock has its release and Python in its name
            locks[part.name] = hashlib.sha256(lock_texts.read(path, component.python).encode()).hexdigest()
        for field in component.follows_host:
            del components[part.name][field]
    text = json.dumps({"components": components, "locks": locks}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hardware(host: Probe) -> dict[str, Any]:
    """Return what identifies the GPUs of a host, in the order of their addresses, and the loaded driver."""
    listed = {gpu.pci_address: gpu for gpu in host.driver.smi.gpus}
    identities = []
    for gpu in sorted(host.gpus, key=lambda gpu: gpu.pci_address):
        uuid = listed[gpu.pci_address].uuid if gpu.pci_address in listed else None
        identities.append(" ".join([gpu.pci_address, gpu.pci_id, *([uuid] if uuid else [])]))
    versions = {gpu.driver_version for gpu in listed.values() if gpu.driver_version}
    loaded = host.driver.loaded.version if host.driver.loaded else ", ".join(sorted(versions))
    return {"gpus": identities, "driver": loaded}


# The decision -----------------------------------------------------------------------------------------------------


def training_frameworks(plan: Plan, requested: str | None = None) -> list[str]:
    """Return the planned frameworks, or the requested one alone (smoke_train_framework, if it is set)."""
    return [requested] if requested else [part.name for part in FRAMEWORKS if part.planned(plan.components)]


def training_refusal(plan: Plan, requested: str | None = None) -> str:
    """Return why the requested framework cannot be used; empty if it is planned or none is requested."""
    planned = training_frameworks(plan)
    if not requested or requested in planned:
        return ""
    return (
        f"smoke_train_framework={requested}, but the plan of this host has {' and '.join(planned) or 'no framework'}: "
        f"set gpu_stack_{requested}=auto and run `{playbook_call.call('gpu_host')}`, or do not set "
        "smoke_train_framework"
    )


def trainings(
    plan: Plan,
    host: Probe,
    request: TrainingOptions,
    *,
    changed: bool,
    jobs: str = "",
    verify: VerifyEvidence | None = None,
) -> dict[str, Training]:
    """Return what happens with each planned framework.

    changed: whether this run changed the host; jobs: the programs that use its GPUs, as text, beside which nothing is
    trained; verify: the checks of this run. What hides GPUs from their programs hides them from a training, too.
    """
    checks = verify.checks if verify else ()
    hidden = next((check.setting for check in checks if check.id == "cuda.devices" and check.status == SKIP), None)
    stack, devices = stack_fingerprint(plan), hardware(host.without_others(plan.request["ignore_gpus"]))
    # A change, or a first verification, stays pending until the GPUs are idle.
    waits = changed or host.pending is not None or host.verified is None or host.verified.stack != stack
    found = {}
    for framework in training_frameworks(plan):
        is_left_out = request.framework not in ("", framework)
        record = host.verified.trainings.get(framework) if host.verified else None
        reason = _reason_to_train(record, host, request, stack, devices, changed)
        if record and not reason and (is_left_out or not request.always):
            found[framework] = _reused(framework, record, request)
        elif is_left_out:
            found[framework] = Training(LEFT_OUT, f"smoke_train_framework is {request.framework}")
        elif jobs:
            expired = "" if waits else _outdated(record, request, stack, devices)
            found[framework] = _deferred(framework, jobs, expired)
        elif hidden:
            found[framework] = _skipped(framework, hidden)
        else:
            found[framework] = Training(
                TRAIN, reason or "it was requested", gpus=_chosen(plan, host, framework, verify)
            )
    return found


def _chosen(plan: Plan, host: Probe, framework: str, verify: VerifyEvidence | None) -> tuple[int, ...]:
    """Return the indexes of the GPUs to train on where gpu_stack_ignore_gpus names some that the driver has as well."""
    if (ignored := plan.request["ignore_gpus"]) == "none":
        return ()
    unused = {gpu.pci_id for gpu in plan.gpus if gpu.left_out_by == framework}
    ours = {gpu.pci_address for gpu in host.without_others(ignored).gpus if gpu.pci_id not in unused}
    listed = {g.pci_address: g.index for g in (verify.gpus if verify else ()) or host.driver.smi.gpus}
    return tuple(index for address, index in listed.items() if address in ours and index is not None)


def _reason_to_train(
    record: VerifiedTraining | None,
    host: Probe,
    request: TrainingOptions,
    stack: str,
    devices: Mapping[str, Any],
    changed: bool,
) -> str:
    """Return why the recorded training cannot be reused; empty if it can."""
    if changed or host.pending:
        return "the host was changed since it was last verified"
    if record is None or record.status != PASS:
        return "no training that passed is recorded"
    return _outdated(record, request, stack, devices)


def _outdated(record: VerifiedTraining | None, request: TrainingOptions, stack: str, devices: Mapping[str, Any]) -> str:
    """Return why a recorded training says nothing of the host as it is; empty if it does."""
    if record is None:
        return "no training is recorded"
    if record.stack != stack:
        return f"the stack has changed since {record.finished}"
    if record.hardware != devices:
        return f"the GPUs or the driver have changed since {record.finished}"
    try:
        age = request.now - _time(record.finished)
    except ValueError:
        return f"the date of the last training is {record.finished!r}"
    if not timedelta(0) <= age <= timedelta(days=request.max_age):
        return f"the last training, of {record.finished}, is not of the last {request.max_age:g} days"
    return ""


def _reused(framework: str, record: VerifiedTraining, request: TrainingOptions) -> Training:
    reason = (
        f"trained on {record.finished} with the same components, locks, GPUs and driver; it is repeated after "
        f"{request.max_age:g} days"
    )
    check = Check("training", REUSED, found=f"{record.status}, {record.finished}", reason=reason).to_dict()
    identity = {"schema": SCHEMA, "framework": framework, "status": REUSED, "finished": record.finished}
    return Training(REUSED, reason, {**record.result, **identity, "checks": [check]})


def _deferred(framework: str, jobs: str, expired: str) -> Training:
    reason = f"programs use the GPUs: {jobs}" + (f"; {expired}" if expired else "")
    check = Check("training", DEFERRED, reason=reason).to_dict()
    evidence = {"schema": SCHEMA, "framework": framework, "status": DEFERRED, "expired": expired, "checks": [check]}
    return Training(DEFERRED, reason, evidence, expired)


def _skipped(framework: str, reason: str) -> Training:
    check = Check("training", SKIP, reason=reason).to_dict()
    return Training(SKIP, reason, {"schema": SCHEMA, "framework": framework, "status": SKIP, "checks": [check]})


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)


# The record -------------------------------------------------------------------------------------------------------


def training_records(
    plan: Plan, host: Probe, decided: Mapping[str, str], results: Sequence[TrainingResult], now: str
) -> dict[str, VerifiedTraining]:
    """Return the record of each training that verifies a host: those of this run, and those that it reused.

    decided: the action by framework; results: of the trainings of this run.
    """
    earlier = host.verified.trainings if host.verified else {}
    records = {name: earlier[name] for name, action in decided.items() if action == REUSED}
    for result in results:
        records[result.framework] = VerifiedTraining(
            finished=now,
            stack=stack_fingerprint(plan),
            hardware=hardware(host.without_others(plan.request["ignore_gpus"])),
            status=result.status,
            result=result.key_figures,
            checks={check.id: check.status for check in result.checks},
        )
    return records
