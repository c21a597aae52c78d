"""The evidence that decisions depend on: the results of the checks and of a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import CheckedGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import PASS, UNKNOWN

# What is kept of a training's result: what the report shows, without histories and recordings.
KEY_FIGURES = (
    *("version", "strategy", "replicas", "virtual", "virtual_kind", "simulated", "cluster", "data", "model", "steps"),
    *("images_per_second", "seconds", "proves", "proves_not"),
)


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """A measured bandwidth; gb_per_second: None where it was not measured, minimum: None where none is known.

    kind: a copy of one GPU (host_to_device, device_to_host, device_to_device), `peer`, or `all_reduce`; gpus: CUDA's
    indexes, of `peer` source and destination; source: where the minimum is from; at: the end of the earlier run that
    measured it, where this one has deferred it.
    """

    kind: str
    gpus: tuple[int, ...]
    gb_per_second: float | None = None
    minimum: float | None = None
    source: str = ""
    at: str = ""

    @property
    def below(self) -> bool:
        """Whether it is below its minimum."""
        return self.gb_per_second is not None and self.minimum is not None and self.gb_per_second < self.minimum


@dataclasses.dataclass(frozen=True)
class VerifyEvidence:
    """verify.json and verify_after_undo.json; module_utils/checks/model.py composes them and explains the fields.

    gpus, bandwidths: what the checks measured, empty in evidence of earlier releases.
    """

    status: str = ""
    checks: tuple[Check, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    simulated: tuple[str, ...] = ()
    unknown_counts: bool = True
    worse: tuple[str, ...] = ()
    before: Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpus: tuple[CheckedGpu, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """smoke_train.json of a training that was run.

    unknown_accepted: the host is verified although checks of the training had no answer (gpu_stack_unknown).
    key_figures: KEY_FIGURES and the first and the last loss, for the record.
    """

    framework: str
    status: str
    checks: tuple[Check, ...]
    unknown_accepted: bool = False
    key_figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Any) -> TrainingResult:
        """Read smoke_train.json; raises records.RecordError with the path of a wrong field."""
        result = records.from_json(cls, data, "smoke_train_result")
        figures = {name: data[name] for name in KEY_FIGURES if name in data}
        loss = data.get("loss") or {}
        figures["loss"] = {name: loss.get(name) for name in ("first", "last")}
        return dataclasses.replace(result, key_figures=figures)

    @property
    def verifies(self) -> bool:
        """Whether it verifies a host: it passed, or gpu_stack_unknown accepts what has no answer."""
        return self.status == PASS or (self.status == UNKNOWN and self.unknown_accepted)
