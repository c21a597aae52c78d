"""The evidence of a host as records."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import RecordError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import HostEvidence

from tests.unit.plugin_utils.report.report_cases import BEFORE, FULL_DISK, PLAN, PROBE, TORCH, TRAINING, evidence


def test_parts_that_are_missing_are_none() -> None:
    assert HostEvidence.from_json({}) == HostEvidence()


def test_the_newest_probe_is_the_one_after_the_change() -> None:
    both = HostEvidence.from_json(evidence())
    assert both.newest_probe == both.probe_after != both.probe
    before = HostEvidence.from_json(evidence(probe=BEFORE, probe_after=None))
    assert before.newest_probe == before.probe


def test_findings_of_the_plan_precede_those_of_the_host() -> None:
    problem = {"code": "no-gpu", "message": "m", "remedy": "r"}
    found = HostEvidence.from_json({"preflight": FULL_DISK, "plan": {**PLAN, "problems": [problem]}})
    assert [item.code for item in found.problems] == ["no-gpu", "disk-full"]


def test_trainings_are_found_by_framework() -> None:
    found = HostEvidence.from_json({"smoke_train": {**TRAINING, "status": "skip"}, "smoke_train_pytorch": TORCH})
    tensorflow, pytorch = found.trainings["tensorflow"], found.trainings["pytorch"]
    assert tensorflow is not None
    assert pytorch is not None
    assert (tensorflow.was_run, pytorch.was_run) == (False, True)


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(RecordError, match=r"^evidence\.probe\.gpus: missing$"):
        HostEvidence.from_json({"probe": {key: value for key, value in PROBE.items() if key != "gpus"}})
