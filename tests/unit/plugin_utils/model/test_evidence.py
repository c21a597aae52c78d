"""The results of checks and trainings as records."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import RecordError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult

RESULT: dict[str, Any] = {
    "framework": "tensorflow",
    "status": "unknown",
    "checks": [{"id": "gpu-activity", "status": "unknown", "found": "not recorded", "expected": "97%", "remedy": "r"}],
    "cluster": None,
    "model": {"name": "ResNet-8", "parameters": 78042},
    "loss": {"first": 2.4, "last": 1.1, "history": [2.4, 1.1]},
    "monitor": {"gpus": []},
}


def test_a_training_has_the_key_figures_as_they_are_in_its_result() -> None:
    """None that is missing is added: this is recorded on the host, and compared with what is recorded."""
    training = TrainingResult.from_json(RESULT)
    assert training.checks == (Check("gpu-activity", "unknown", "not recorded", "97%", "r"),)
    assert training.key_figures == {
        "cluster": None,
        "model": {"name": "ResNet-8", "parameters": 78042},
        "loss": {"first": 2.4, "last": 1.1},
    }
    assert TrainingResult.from_json({**RESULT, "loss": None}).key_figures["loss"] == {"first": None, "last": None}


@pytest.mark.parametrize(
    ("accepted", "verifies"),
    [({}, False), ({"unknown_accepted": False}, False), ({"unknown_accepted": True}, True)],
)
def test_a_training_without_an_answer_verifies_a_host_if_that_is_accepted(
    accepted: dict[str, bool], verifies: bool
) -> None:
    training = TrainingResult.from_json({**RESULT, **accepted})
    assert training.verifies == verifies
    for status in ("fail", "skip"):
        assert not TrainingResult.from_json({**RESULT, "status": status, **accepted}).verifies
    assert TrainingResult.from_json({**RESULT, "status": "pass", **accepted}).verifies


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(RecordError, match=r"^smoke_train_result\.checks\[0\]\.found: expected a string, found 97$"):
        TrainingResult.from_json({**RESULT, "checks": [{"id": "gpu-activity", "status": "pass", "found": 97}]})
