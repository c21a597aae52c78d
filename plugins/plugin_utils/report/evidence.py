"""The evidence of one host as typed records: the parts of a run's JSON files that the report reads.

Any part may be missing: a run that was refused has no `verify`, for example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import SKIP
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import TRAINING_FILES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.measurements import MonitorSummary


@dataclasses.dataclass(frozen=True)
class PreflightEvidence:
    """preflight.json."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()


@dataclasses.dataclass(frozen=True)
class PackageDiff:
    """One package of diff.json; installed, planned: None where there is none, or where the archive decides."""

    name: str
    action: str
    installed: str | None = None
    planned: str | None = None


@dataclasses.dataclass(frozen=True)
class ComponentDiff:
    """One component of diff.json, with its packages."""

    component: str
    action: str
    installed: str | None = None
    planned: str | None = None
    packages: tuple[PackageDiff, ...] = ()


@dataclasses.dataclass(frozen=True)
class Leftovers:
    """What the run removes before it installs anything; does: in words."""

    does: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class DiffEvidence:
    """diff.json; others: what changes for other users of the host."""

    components: tuple[ComponentDiff, ...] = ()
    leftovers: Leftovers = Leftovers()
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The data of a training; kind: `real` or `simulated`."""

    kind: str | None = None
    description: str | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """The model that was trained."""

    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss at the beginning and at the end; history: of each step, None where it was not finite."""

    first: float | None = None
    last: float | None = None
    history: tuple[float | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """The implementation of the all-reduce, why others were not used, and what NCCL logged."""

    implementation: str
    fallbacks: tuple[str, ...] = ()
    nccl: Any = None


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The comparison of the losses of one and of all replicas."""

    replicas: tuple[int, ...]
    largest_relative_difference: float | None = None
    tolerance: float | None = None
    losses: Any = None


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a training, as HOST:PORT, and the index of this one."""

    workers: tuple[str, ...]
    index: int


@dataclasses.dataclass(frozen=True)
class CountedGpu:
    """What a GPU counted during a training: errors, corrections and traffic, as text."""

    gpu: int
    grown: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TrainingEvidence:
    """The evidence of a framework's training, such as smoke_train.json; finished: when a reused training ended, UTC.

    unknown_accepted: the host is verified although checks of the training had no answer (gpu_stack_unknown).
    expired: of a deferred training, why the last one proves nothing any more.
    """

    framework: str
    status: str | None = None
    unknown_accepted: bool = False
    expired: str = ""
    finished: str | None = None
    checks: tuple[Check, ...] = ()
    version: str | None = None
    strategy: str | None = None
    replicas: int | None = None
    virtual: bool = False
    virtual_kind: str | None = None
    simulated: tuple[str, ...] = ()
    data: TrainingData = TrainingData()
    model: Model = Model()
    steps: int | None = None
    loss: Loss = Loss()
    images_per_second: float | None = None
    seconds: float | None = None
    all_reduce: AllReduce | None = None
    agreement: Agreement | None = None
    monitor: MonitorSummary | None = None
    counters: tuple[CountedGpu, ...] = ()
    cluster: Cluster | None = None
    proves: str = ""
    proves_not: str = ""

    @property
    def was_run(self) -> bool:
        """Whether anything was trained; in check mode the role reports `skip`."""
        return self.status != SKIP

    @property
    def replica_kind(self) -> str:
        """What the replicas ran on, so that nobody takes a simulation for hardware."""
        if not self.virtual:
            return "replicas"
        if self.virtual_kind == "gpu":
            return "virtual GPUs (replicas that share a physical GPU)"
        return "replicas on virtual CPU devices instead of GPUs"


RESTORED = ("package, file or setting", "packages, files and settings")


@dataclasses.dataclass(frozen=True)
class Restored:
    """restored.json: what a rollback or teardown changed on the host; warnings: what it has left, and why."""

    changes: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Failure:
    """failure.json: the task that failed and its message; unreachable: the host did not answer."""

    task: str
    message: str
    unreachable: bool = False


@dataclasses.dataclass(frozen=True)
class HostEvidence:
    """All evidence of one host, by the names of the files; trainings: by framework.

    What the callback knows without a file: changed: this run began to change the host; applied: it then recorded what
    it applied, which no host does with damage; recorded: it recorded the
    configuration as verified, by which rollback.yml ends without a training; torn_down: whether the teardown found a
    baseline, None where it did not get there; running: the task that had no
    result yet; spared_for: the refused hosts, or those whose change failed, because of which this
    one was left unchanged; stages: how many seconds each stage of the run took.

    earlier: by framework, the training of an earlier run where this one has none of its own.
    """

    changed: bool = False
    applied: bool = False
    torn_down: bool | None = None
    recorded: bool = False
    running: str | None = None
    spared_for: tuple[str, ...] | None = None
    stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    earlier: Mapping[str, TrainingEvidence] = dataclasses.field(default_factory=dict)
    probe: Probe | None = None
    plan: Plan | None = None
    diff: DiffEvidence | None = None
    preflight: PreflightEvidence | None = None
    drift: Mapping[str, tuple[str, ...]] | None = None
    probe_after: Probe | None = None
    verify: VerifyEvidence | None = None
    trainings: Mapping[str, TrainingEvidence] = dataclasses.field(default_factory=dict)
    failure: Failure | None = None
    restored: Restored | None = None
    verify_after_undo: VerifyEvidence | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostEvidence:
        """Read the evidence by name; raises records.RecordError with the path of a wrong field."""
        trainings = {name: data[file] for name, file in TRAINING_FILES.items() if data.get(file) is not None}
        probes = {name: Probe.of_this_release(data.get(name)) for name in ("probe", "probe_after")}
        return records.from_json(cls, {**data, **probes, "trainings": trainings}, "evidence")

    @property
    def newest_probe(self) -> Probe | None:
        """The probe after the change, or else the one before it."""
        return self.probe_after or self.probe

    @property
    def is_repaired(self) -> bool:
        """Whether the newest probe is from before what this run has repaired."""
        return self.applied and self.probe_after is None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the plan, then those of the host."""
        return tuple(problem for part in (self.plan, self.preflight) if part for problem in part.problems)

    @property
    def warnings(self) -> tuple[PlanWarning, ...]:
        """The warnings of the plan, then those of the host."""
        return tuple(warning for part in (self.plan, self.preflight) if part for warning in part.warnings)
