"""Trainings and bandwidths of earlier runs, from the folders of this controller's reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import earlier

from tests.unit.plugin_utils.report.report_cases import TORCH, TRAINING

FINISHED = "2026-11-20T10:00:00Z"
OF_A_RUN = {**TRAINING, "loss": {"first": 2.41, "last": 1.32, "history": [2.41, 1.32]}}
REUSED = {**TRAINING, "status": "reused", "finished": FINISHED, "checks": []}


def put(folder: Path, **files: Any) -> Path:
    """Write the folder of a host in that of its run."""
    (folder / "run/h").mkdir(parents=True)
    (folder / "run/report.json").write_text(json.dumps({"about": {"finished": FINISHED}}))
    for name, content in files.items():
        (folder / f"run/h/{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    (folder / "link").symlink_to("run/h")
    return folder / "link"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"smoke_train": OF_A_RUN}, {"tensorflow": {"finished": FINISHED, **OF_A_RUN}}),
        ({"smoke_train": REUSED, "earlier": {"tensorflow": TORCH}}, {"tensorflow": REUSED}),
        ({"earlier": {"pytorch": TORCH}}, {"pytorch": TORCH}),
        ({"smoke_train": {"framework": "tensorflow", "status": "deferred"}}, {}),
        ({"smoke_train": {**OF_A_RUN, "loss": "of another release"}}, {}),
        ({"smoke_train": "not JSON", "earlier": "[]"}, {}),
    ],
    ids=["trained", "reused", "of a run before that", "deferred", "of another release", "broken"],
)
def test_trainings_of_the_last_verification(tmp_path: Path, files: dict[str, Any], expected: dict[str, Any]) -> None:
    assert earlier.trainings(put(tmp_path, **files)) == expected
    assert earlier.trainings(tmp_path / "never") == {}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, OF_A_RUN),
        ({"framework": "tensorflow", "status": "deferred"}, OF_A_RUN),
        (REUSED, {**REUSED, "loss": OF_A_RUN["loss"]}),
        ({**REUSED, "seconds": 12.6}, None),
        ({**TRAINING, "seconds": 12.6}, None),
    ],
    ids=["not trained", "deferred", "reused", "another one is reused", "trained"],
)
def test_what_a_run_keeps_of_an_earlier_training(own: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    assert earlier.completed(own, OF_A_RUN) == expected


RATE = {"kind": "peer", "gpus": [0, 1], "gb_per_second": 410.2}
DEFERRED = {"checks": [{"id": "cuda.bandwidth", "status": "deferred"}], "bandwidths": []}


@pytest.mark.parametrize(
    ("own", "before", "expected"),
    [
        (DEFERRED, {"bandwidths": [RATE]}, [{**RATE, "at": FINISHED}]),
        (DEFERRED, {"bandwidths": [{**RATE, "at": "2026-11-02T08:00:00Z"}]}, [{**RATE, "at": "2026-11-02T08:00:00Z"}]),
        (DEFERRED, {}, []),
        ({"checks": [{"id": "cuda.bandwidth", "status": "skip"}], "bandwidths": []}, {"bandwidths": [RATE]}, []),
        (
            {**DEFERRED, "bandwidths": [{**RATE, "gb_per_second": 9.8}]},
            {"bandwidths": [RATE]},
            [{**RATE, "gb_per_second": 9.8}],
        ),
    ],
    ids=["deferred", "deferred twice", "never measured", "skipped", "measured"],
)
def test_what_a_run_keeps_of_earlier_bandwidths(
    tmp_path: Path, own: dict[str, Any], before: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    assert earlier.with_bandwidths(own, put(tmp_path, verify=before))["bandwidths"] == expected


def test_bandwidths_of_a_run_without_an_end_are_left_out(tmp_path: Path) -> None:
    folder = put(tmp_path, verify={"bandwidths": [RATE]})
    (tmp_path / "run/report.json").unlink()
    assert earlier.with_bandwidths(DEFERRED, folder)["bandwidths"] == []
