"""The report: what was requested, resolved, installed, loaded and measured on each host of a run, side by side.

`build_report` makes the content of report.json from the evidence, and rendering.py prints it. Missing evidence is "not
run" in the report and never looks like a success.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, count
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Component, PackagedComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Machine, Pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import CheckedGpu, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    FAIL,
    PASS,
    SKIP,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import registry
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import Part
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, UNDECIDED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import Bandwidth
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import Damage
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import causes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.about import About
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import (
    ComponentDiff,
    DiffEvidence,
    HostEvidence,
    TrainingEvidence,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import (
    A_RUN,
    FAILED,
    NOT_CHANGED,
    VERDICTS,
    VERIFIED,
    RunMode,
    checked_parts,
    remedies,
    verdict,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.known_bad import SECURITY_FLOOR

SCHEMA = 2
EVIDENCE = ("probe", "plan", "preflight", "probe_after", "verify", *registry.TRAINING_FILES.values())
STAGES = ("requested", "resolved", "installed", "loaded", "measured")
NOT_RUN, NOT_RECORDED, LEFT_OUT, NO_PLAN, NOTHING = "not run", "not recorded", "left out", "no plan", "-"
_TRAINING_FIELDS = (
    *("status", "finished", "framework", "strategy", "replicas", "steps", "images_per_second", "seconds", "all_reduce"),
    *("agreement", "monitor", "counters", "cluster", "virtual", "replica_kind", "proves", "proves_not"),
)
Command = Callable[[str, Sequence[str]], str]
_VARIANTS = {"wheel": "CUDA from wheels", "system": "CUDA of the system"}


@dataclasses.dataclass(frozen=True)
class GpuKind:
    """GPUs of one kind; only the PCI id is known without a plan."""

    name: str
    compute_capability: str
    pci_id: str
    count: int


@dataclasses.dataclass(frozen=True)
class Card:
    """One GPU as nvidia-smi lists it; what it did not tell is empty. pcie, nvlink: the links in words."""

    index: str
    name: str
    uuid: str
    pci_address: str
    memory: str
    serial: str = ""
    vbios: str = ""
    pcie: str = ""
    nvlink: str = ""


@dataclasses.dataclass(frozen=True)
class ComponentRow:
    """A component at each stage, as text; left_out: why it is not in the plan, although nobody has excluded it."""

    component: str
    requested: str
    resolved: str
    installed: str
    loaded: str
    measured: str
    left_out: str = ""

    @property
    def as_planned(self) -> bool:
        """Whether the measured version is the planned one, of which software may tell the first parts alone."""
        planned, measured = (re.split(r"[ ,+]", text)[0] for text in (self.resolved, self.measured))
        return measured[:1].isdigit() and f"{planned}.".startswith(f"{measured}.")


@dataclasses.dataclass(frozen=True)
class PartCheck:
    """A check and the evidence that it is from; symptom_of: what a failure follows from, see causes.py."""

    part: str
    check: Check
    symptom_of: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the check as the evidence has it, with its part."""
        symptom = {"symptom_of": list(self.symptom_of)} if self.symptom_of else {}
        return {"part": self.part, **self.check.to_dict(), **symptom}


CHECKED = ("passed", "failed", "skipped", "other")


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The number of checks by outcome, and the checks; other: neither passed nor failed nor skipped.

    on_simulated_values: how many of those that passed judged values of a simulated driver
    """

    counts: Mapping[str, int]
    on_simulated_values: int = 0
    passed: tuple[PartCheck, ...] = ()
    failed: tuple[PartCheck, ...] = ()
    skipped: tuple[PartCheck, ...] = ()
    other: tuple[PartCheck, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        lists = {name: [check.to_json() for check in getattr(self, name)] for name in CHECKED}
        return {"counts": dict(self.counts), "on_simulated_values": self.on_simulated_values, **lists}


@dataclasses.dataclass(frozen=True)
class DamageReport:
    """The damage of a host, a message by name: what this run repaired, what is left, and what is accepted as it is."""

    repaired: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accepted: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def rows(self) -> list[tuple[str, str]]:
        """Return the state of each, and how it was found."""
        states = {"found and repaired": self.repaired, "left": self.left, "accepted": self.accepted}
        return [(state, text) for state, found in states.items() for text in found.values()]


# Whether the changes of a plan were made: not begun, begun and not completed, undone by a rollback, completed.
PLANNED, BEGUN, UNDONE, MADE = "planned", "begun", "undone", "made"


@dataclasses.dataclass(frozen=True)
class ChangeReport:
    """What the plan changes on a host, without what it keeps; state: PLANNED, BEGUN, UNDONE or MADE.

    removed: leftovers of others that are removed first, in words; others: what changes for other users of the host;
    restored: what a rollback or a teardown put back.
    """

    state: str = PLANNED
    components: tuple[ComponentDiff, ...] = ()
    removed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class HostReport:
    """One host; status: its verdict, with the reasons for it; evidence: `present` or `not run` by name.

    remedies: what to do, by the reason; those of problems and of single checks are theirs.
    running: the task that was interrupted, which may continue on the host; drift: why each part was to be applied;
    stages: the seconds of each; earlier: trainings of earlier runs, where this one has none of its own
    """

    host: str
    status: str
    reasons: tuple[str, ...]
    remedies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changed: bool = False
    running: str | None = None
    distribution: str = NOT_RUN
    kernel: str = NOT_RUN
    machine: Machine | None = None
    stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    evidence: Mapping[str, str] = dataclasses.field(default_factory=dict)
    simulated: tuple[str, ...] = ()
    gpus: tuple[GpuKind, ...] = ()
    cards: tuple[Card, ...] = ()
    components: tuple[ComponentRow, ...] = ()
    checks: CheckReport = CheckReport({})
    trainings: tuple[TrainingEvidence, ...] = ()
    earlier: tuple[TrainingEvidence, ...] = ()
    drift: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    damage: DamageReport = DamageReport()
    changes: ChangeReport = ChangeReport()
    bandwidths: tuple[Bandwidth, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def verdict(self) -> str:
        """The status as people read it."""
        return _verdict_text(self)

    @property
    def gpu_text(self) -> str:
        """The GPUs by kind, `none`, or NOT_RUN for a host that was not probed."""
        is_probed = any(self.evidence.get(part, NOT_RUN) != NOT_RUN for part in ("probe", "probe_after"))
        return ", ".join(f"{gpu.count} x {gpu.name}" for gpu in self.gpus) or ("none" if is_probed else NOT_RUN)

    def to_json(self) -> dict[str, Any]:
        """Return the host's part of report.json."""
        trainings = {name: list(map(_training_json, getattr(self, name))) for name in ("trainings", "earlier")}
        return {**to_json(self), "checks": self.checks.to_json(), **trainings}


@dataclasses.dataclass(frozen=True)
class Report:
    """A run; status: the worst verdict of its hosts; notes: what limits the meaning of the whole report."""

    run: str
    status: str
    notes: tuple[str, ...]
    counts: Mapping[str, int]
    simulated: tuple[str, ...]
    hosts: tuple[HostReport, ...]
    about: About | None = None

    @property
    def verdict(self) -> str:
        """The status as people read it."""
        return _verdict_text(self)

    @property
    def on_simulated_values(self) -> int:
        """How many checks passed on values of a simulated driver."""
        return sum(host.checks.on_simulated_values for host in self.hosts)

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json."""
        simulated = {"on_simulated_values": self.on_simulated_values}
        return {
            "schema": SCHEMA,
            **to_json(self),
            **simulated,
            "hosts": [host.to_json() for host in self.hosts],
        }


def _verdict_text(of: HostReport | Report) -> str:
    """Return a verdict in which nobody takes a simulation for a host that is verified."""
    return f"{VERIFIED} (simulated)" if of.status == VERIFIED and of.simulated else of.status


def build_report(
    run: str,
    evidence: Mapping[str, Mapping[str, Any]],
    mode: RunMode = A_RUN,
    about: About | None = None,
    command: Command = playbook_call.in_a_clone,
) -> Report:
    """Return the report of a run from the evidence of each host as JSON, of which any part may be missing.

    about: when, how and by whom it was run. command: returns that of a playbook.
    """
    hosts = tuple(host_report(name, evidence[name], mode, command) for name in sorted(evidence))
    status = max((host.status for host in hosts), key=VERDICTS.index, default=NOT_CHANGED)
    counts = count(outcome for host in hosts for outcome in Counter(host.checks.counts).elements())
    simulated = tuple(f"{host.host}: {line}" for host in hosts for line in host.simulated)
    return Report(run, status, _notes(hosts, mode), counts, simulated, hosts, about)


def _notes(hosts: tuple[HostReport, ...], mode: RunMode) -> tuple[str, ...]:
    notes = []
    if mode.check_mode:
        notes.append("Check mode: nothing was changed or recorded")
    elif not any(host.changed or _was_examined(host) for host in hosts):
        notes.append("Nothing was changed or verified in this run")
    behind = [host.host for host in hosts if any(warning.code == SECURITY_FLOOR for warning in host.warnings)]
    if behind:
        notes.append(
            f"{len(behind)} of {len(hosts)} hosts have a driver with known vulnerabilities: {', '.join(behind)}; "
            "gpu_stack_driver=latest, or a newer version, replaces it"
        )
    if mode.interrupted:
        notes.append("This run was interrupted before its end")
        running = [f"{host.host} ({host.running})" for host in hosts if host.running]
        if running:
            notes.append(
                "What was running continues on the hosts, such as apt, a build or the training: "
                f"{', '.join(running)}. Wait for it, then run the same command again: it continues from there"
            )
    return tuple(notes)


def _was_examined(host: HostReport) -> bool:
    return bool(host.trainings) or host.evidence.get("verify", NOT_RUN) != NOT_RUN


def host_report(
    name: str, data: Mapping[str, Any], mode: RunMode = A_RUN, command: Command = playbook_call.in_a_clone
) -> HostReport:
    """Return the report of a host; one whose evidence cannot be read has failed."""
    try:
        evidence = HostEvidence.from_json(data)
    except records.RecordError as error:
        return HostReport(name, FAILED, (f"the evidence cannot be read: {error}",))
    probe = evidence.newest_probe
    status, reasons = verdict(evidence, mode)
    return HostReport(
        host=name,
        status=status,
        reasons=tuple(reasons),
        remedies=playbook_call.fill(remedies(evidence, status, reasons), command),
        changed=evidence.changed,
        running=evidence.running if mode.interrupted else None,
        distribution=(probe.distribution.pretty_name if probe and probe.distribution else "") or NOT_RUN,
        kernel=(probe.kernel.running if probe else None) or NOT_RUN,
        machine=probe.machine if probe else None,
        stages=evidence.stages,
        evidence={name: "present" if _has(evidence, name) else NOT_RUN for name in EVIDENCE},
        simulated=_simulated(evidence),
        gpus=_gpus(evidence),
        cards=_cards(evidence),
        components=tuple(row for part in registry.PARTS for row in _rows(part, evidence)),
        checks=_checks(evidence),
        trainings=tuple(training for training in evidence.trainings.values() if training.was_run),
        earlier=tuple(evidence.earlier.values()),
        drift=evidence.drift or {},
        damage=_damage(evidence),
        changes=_changes(evidence),
        bandwidths=evidence.verify.bandwidths if evidence.verify else (),
        problems=evidence.problems,
        warnings=evidence.warnings,
    )


def _has(evidence: HostEvidence, name: str) -> bool:
    """Return whether there is a part of the evidence, by the name of its file."""
    trainings = {part.training_file: evidence.trainings.get(part.name) for part in registry.FRAMEWORKS}
    return (trainings[name] if name in trainings else getattr(evidence, name)) is not None


def _damage(evidence: HostEvidence) -> DamageReport:
    """Return what the plan found, and what the probe after the change still finds."""
    probe = evidence.newest_probe
    if probe is None or evidence.torn_down:
        return DamageReport()
    now = Damage.of(probe.applied)
    if evidence.is_repaired:
        return DamageReport(now.left, {}, now.accepted)
    before = Damage.of(evidence.probe.applied).left if evidence.probe else {}
    known = now.left.keys() | now.accepted.keys()
    return DamageReport({name: text for name, text in before.items() if name not in known}, now.left, now.accepted)


# Parts of a host's report ---------------------------------------------------------------------------------------


def _simulated(evidence: HostEvidence) -> tuple[str, ...]:
    """Return every simulated part that any evidence names, once."""
    lines = list(evidence.newest_probe.simulated) if evidence.newest_probe else []
    for _unused, part in checked_parts(evidence):
        lines += part.simulated
    for training in evidence.trainings.values():
        if training.data.kind == "simulated":
            lines.append(f"training data ({training.data.description or 'no description'})")
        if training.virtual:
            lines.append(f"{training.replicas} {training.replica_kind}")
    return tuple(dict.fromkeys(lines))


def _gpus(evidence: HostEvidence) -> tuple[GpuKind, ...]:
    """Return the GPUs of the plan, or without one those of the probe."""
    plan, probe = evidence.plan, evidence.newest_probe
    kinds = [(gpu.name, gpu.compute_capability, gpu.pci_id) for gpu in plan.gpus] if plan else []
    if not kinds and probe:
        kinds = [(gpu.pci_id, "unknown", gpu.pci_id) for gpu in probe.gpus]
    return tuple(GpuKind(*kind, number) for kind, number in Counter(kinds).items())


def _cards(evidence: HostEvidence) -> tuple[Card, ...]:
    """Return what nvidia-smi listed for the probe after a change, or before, and what the checks found of it."""
    probe = evidence.newest_probe
    cards = {str(gpu.pci_address): _probed(gpu, probe.pcie) for gpu in probe.driver.smi.gpus} if probe else {}
    for gpu in evidence.verify.gpus if evidence.verify else ():
        cards[gpu.pci_address] = _checked_card(gpu, cards.get(gpu.pci_address))
    return tuple(cards.values())


def _probed(gpu: SmiGpu, pcie: Pcie) -> Card:
    known = pcie.gpus.get(gpu.pci_address or "")
    return Card(
        "" if gpu.index is None else str(gpu.index),
        gpu.name or "",
        gpu.uuid or "",
        gpu.pci_address or "",
        f"{gpu.memory_mib} MiB" if gpu.memory_mib else "",
        pcie=_width(known.link.width, known.link.max_width) if known else "",
    )


def _checked_card(gpu: CheckedGpu, probed: Card | None) -> Card:
    width = _width(gpu.pcie_width, gpu.pcie_max_width)
    generation = f"up to gen {gpu.pcie_max_generation}" if gpu.pcie_max_generation else ""
    return Card(
        str(gpu.index),
        gpu.name,
        gpu.uuid,
        gpu.pci_address,
        gpu.memory or "",
        gpu.serial or "",
        gpu.vbios or "",
        ", ".join(text for text in (width, generation) if text) or (probed.pcie if probed else ""),
        _nvlink(gpu),
    )


def _width(lanes: int | None, most: int | None) -> str:
    return (f"x{lanes}" + (f" of x{most}" if most else "")) if lanes else ""


def _nvlink(gpu: CheckedGpu) -> str:
    if gpu.nvlinks_up is None:
        return ""
    if gpu.nvlinks == 0:
        return "none"
    speed = f", {gpu.nvlink_gb_per_second:.3g} GB/s each" if gpu.nvlink_gb_per_second else ""
    return f"{gpu.nvlinks_up} of {gpu.nvlinks}{speed}" if gpu.nvlinks else "all down"


def _changes(evidence: HostEvidence) -> ChangeReport:
    diff = evidence.diff or DiffEvidence()
    if not evidence.changed:
        state = PLANNED
    elif evidence.verify_after_undo:
        state = UNDONE
    else:
        state = BEGUN if evidence.failure or evidence.running else MADE
    changed = [
        dataclasses.replace(row, packages=tuple(package for package in row.packages if package.action != KEEP))
        for row in diff.components
        if row.action not in (KEEP, UNDECIDED)
    ]
    restored = tuple(map(str, evidence.restored.changes)) if evidence.restored else ()
    return ChangeReport(state, tuple(changed), diff.leftovers.does, diff.others, restored)


def _checks(evidence: HostEvidence) -> CheckReport:
    found = _all_checks(evidence)
    return CheckReport(
        count(entry.check.status for entry in found),
        sum(entry.check.status == PASS and bool(entry.check.simulated) for entry in found),
        tuple(entry for entry in found if entry.check.status == PASS),
        tuple(entry for entry in found if entry.check.status == FAIL),
        tuple(entry for entry in found if entry.check.status == SKIP),
        tuple(entry for entry in found if entry.check.status not in (PASS, FAIL, SKIP)),
    )


def _all_checks(evidence: HostEvidence) -> list[PartCheck]:
    return [
        PartCheck(name, check, causes.symptom_of(name, check, evidence))
        for name, part in checked_parts(evidence)
        for check in part.checks
    ]


def _training_json(training: TrainingEvidence) -> dict[str, Any]:
    return {
        **{name: to_json(getattr(training, name)) for name in _TRAINING_FIELDS},
        "simulated": bool(training.simulated),
        "data": training.data.kind,
        "model": training.model.name,
        "loss_first": training.loss.first,
        "loss_last": training.loss.last,
    }


# Components -----------------------------------------------------------------------------------------------------


def _rows(part: Part[Any], evidence: HostEvidence) -> Iterator[ComponentRow]:
    """Yield the row of a component, unless the host neither has nor needs it."""
    row = _component(part, evidence)
    is_left_out = row.resolved in (NOT_RUN, LEFT_OUT, NO_PLAN) and row.requested in ("auto", NOT_RECORDED)
    if part.is_common or row.left_out or row.installed not in (NOTHING, NOT_RUN) or not is_left_out:
        yield row


def _component(part: Part[Any], evidence: HostEvidence) -> ComponentRow:
    name, plan = part.name, evidence.plan
    planned = plan.components.get(name) if plan else None
    resolved = _resolved(name, evidence)
    is_left_out = resolved in (LEFT_OUT, NO_PLAN)
    return ComponentRow(
        component=name,
        requested=plan.request.get(name, NOT_RECORDED) if plan else NOT_RECORDED,
        resolved=resolved,
        installed=_installed(part, planned, evidence),
        loaded=NOTHING if is_left_out and not part.in_kernel else _loaded(part, evidence),
        measured=NOTHING if is_left_out else _measured(name, evidence),
        left_out=_why_left_out(name, plan) if plan and resolved == LEFT_OUT else "",
    )


def _why_left_out(name: str, plan: Plan) -> str:
    if plan.request.get(name) in ("none", "fallback"):
        return ""
    return next((reason.because for reason in plan.reasons if reason.component == name), "")


def _resolved(name: str, evidence: HostEvidence) -> str:
    if evidence.plan is None:
        return NOT_RUN
    planned = evidence.plan.components.get(name)
    if planned is None:
        return LEFT_OUT if evidence.plan.ok else NO_PLAN
    variant = _VARIANTS.get(planned.variant, planned.variant)
    return f"{planned.full_version} ({variant})" if variant else planned.full_version


def _installed(part: Part[Any], planned: Component | None, evidence: HostEvidence) -> str:
    """Return the version in the newest probe, marked if this run was to change it and the host was not probed since."""
    probe = evidence.newest_probe
    if probe is None or evidence.torn_down:
        return NOT_RUN
    kept = {row.component for row in evidence.diff.components if row.action == KEEP} if evidence.diff else set()
    is_old = evidence.changed and evidence.probe_after is None and part.name not in kept
    suffix = " (before the change)" if is_old else ""
    version = part.installed(None, probe, load_catalog())  # by whatever package
    if part in registry.FRAMEWORKS:
        return f"{version}{suffix}" if version else NOTHING
    if probe.packages is None:
        return "could not be read"
    names = [package.name for package in planned.packages] if isinstance(planned, PackagedComponent) else []
    found = [probe.packages[name] for name in names if name in probe.packages]
    installed = [package for package in found if package.status == "installed"]
    if names and len(installed) == len(names):
        return ", ".join(dict.fromkeys(package.version for package in installed)) + suffix
    if installed:
        return f"{version or 'unknown'} ({len(installed)} of {len(names)} planned packages){suffix}"
    return f"{version}{suffix}" if version else NOTHING


def _loaded(part: Part[Any], evidence: HostEvidence) -> str:
    """Return the loaded kernel module, or the version of the file that a program of the checks has loaded."""
    if not part.in_kernel:
        return _reported(part.name, evidence, "loaded", NOT_RECORDED)
    return part.loaded(evidence.newest_probe) if evidence.newest_probe else NOT_RUN


def _measured(name: str, evidence: HostEvidence) -> str:
    training = evidence.trainings.get(name)
    return f"{training.version}, trained" if training and training.version else _reported(name, evidence)


def _reported(name: str, evidence: HostEvidence, kind: str = "versions", absent: str = NOTHING) -> str:
    """Return the version that the running software returns (versions), or that of the file it has loaded (loaded)."""
    if evidence.verify is None:
        return NOT_RUN
    versions: dict[str, str] = {
        key: version for check in evidence.verify.checks for key, version in (getattr(check, kind) or {}).items()
    }
    return versions.get(name, absent)
