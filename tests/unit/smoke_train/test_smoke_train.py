"""smoke_train.py's judgement and command line; training itself needs TensorFlow and runs on the lab's hosts."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import smoke_train

FALLING = tuple(2.3 - 0.05 * step for step in range(30))
OPTIONS = smoke_train.parse_arguments(["--train-steps", "30"])
GOOD = smoke_train.Training(
    history=FALLING,
    replicas=2,
    batch_size=64,
    all_reduce="CollectiveAllReduce",
    all_reduce_values=(3.0, 3.0),
    disagreement=0.0,
    images_per_second=100.0,
    first_step_seconds=1.0,
    seconds=5.0,
)


def failed(training: smoke_train.Training, asked: int = 2) -> set[str]:
    checks = smoke_train.judge(training, asked, virtual=True, options=OPTIONS)
    assert all(item.found and item.expected for item in checks)
    assert all(item.remedy for item in checks if item.status == "fail")
    return {item.id for item in checks if item.status == "fail"}


def with_loss(step: int, loss: float) -> tuple[float, ...]:
    return (*FALLING[:step], loss, *FALLING[step + 1 :])


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        pytest.param(GOOD, set(), id="good"),
        pytest.param(replace(GOOD, history=(2.3,) * 30), {"loss-falls"}, id="flat"),
        pytest.param(replace(GOOD, history=FALLING[::-1]), {"loss-falls"}, id="rising"),
        pytest.param(replace(GOOD, history=with_loss(12, math.nan)), {"loss-finite"}, id="NaN in the middle"),
        pytest.param(
            replace(GOOD, history=with_loss(29, math.nan)), {"loss-finite", "loss-falls"}, id="NaN at the end"
        ),
        pytest.param(replace(GOOD, history=with_loss(0, math.inf)), {"loss-finite", "loss-falls"}, id="infinite start"),
        pytest.param(replace(GOOD, replicas=1), {"replicas"}, id="a replica missing"),
        pytest.param(replace(GOOD, all_reduce_values=(1.0, 2.0)), {"all-reduce"}, id="nothing summed"),
        pytest.param(replace(GOOD, all_reduce_values=(3.0,)), {"all-reduce"}, id="a sum missing"),
        pytest.param(replace(GOOD, disagreement=0.001), {"replicas-agree"}, id="weights differ"),
        pytest.param(replace(GOOD, disagreement=math.nan), {"replicas-agree"}, id="weights NaN"),
        pytest.param(replace(GOOD, in_time=False, history=FALLING[:20]), {"time-limit"}, id="out of time"),
        pytest.param(
            replace(GOOD, in_time=False, history=()), {"time-limit", "loss-falls", "loss-finite"}, id="no step done"
        ),
    ],
)
def test_verdict(training: smoke_train.Training, expected: set[str]) -> None:
    assert failed(training) == expected


@pytest.mark.parametrize(
    ("margin", "status"), [pytest.param(0.19, "pass", id="within"), pytest.param(0.21, "fail", id="beyond")]
)
def test_loss_margin_decides(margin: float, status: str) -> None:
    history = [2.0] * 10 + [1.6] * 10  # falls by a fifth
    assert smoke_train.check_falls(history, margin).status == status


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--num-gpus", "0"], id="no GPU asked"),
        pytest.param(["--num-gpus", "two"], id="no number"),
        pytest.param(["--virtual-gpus", "-1"], id="negative"),
        pytest.param(["--data", "imaginary"], id="unknown data"),
        pytest.param(["--train-steps", "3"], id="too few steps to see a loss fall"),
        pytest.param(["--time-limit", "nan"], id="NaN"),
        pytest.param(["--no-such-option"], id="unknown option"),
    ],
)
def test_bad_usage_exits_2_with_nothing_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        smoke_train.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "on_pci", "simulated", "count"),
    [
        pytest.param([], 0, False, 2, id="no GPU anywhere"),
        pytest.param([], 4, True, 4, id="simulated GPUs"),
        pytest.param(["--num-gpus", "3"], 4, True, 3, id="fewer asked"),
        pytest.param([], 4, False, 0, id="real GPUs that TensorFlow does not see"),
        pytest.param(["--num-gpus", "4"], 4, False, 0, id="the same, with a number"),
        pytest.param(["--virtual-gpus", "2"], 4, False, 2, id="virtual on request"),
        pytest.param(["--virtual-gpus", "0"], 0, True, 0, id="never virtual"),
    ],
)
def test_when_virtual_replicas_stand_in(arguments: list[str], on_pci: int, simulated: bool, count: int) -> None:
    assert smoke_train.virtual_count(smoke_train.parse_arguments(arguments), on_pci, simulated) == count


def test_pci_gpus_are_nvidias_display_controllers(tmp_path: Path) -> None:
    functions = {
        "0000:05:00.0": ("0x10de", "0x030200"),  # H200
        "0000:06:00.0": ("0x10de", "0x030000"),  # M60
        "0000:06:00.1": ("0x10de", "0x040300"),  # a GPU's audio function
        "0000:07:00.0": ("0x10de", "0x068000"),  # NVSwitch
        "0000:00:02.0": ("0x8086", "0x030000"),  # another vendor's graphics
    }
    for address, (vendor, class_) in functions.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "vendor").write_text(f"{vendor}\n")
        (tmp_path / address / "class").write_text(f"{class_}\n")
    assert smoke_train.pci_gpus(tmp_path) == 2
    assert smoke_train.pci_gpus(tmp_path / "missing") == 0


def test_document_of_a_good_virtual_run() -> None:
    report = smoke_train.Report(OPTIONS, version="2.21.0", data={"kind": "simulated"}, training=GOOD)
    report.devices = smoke_train.Devices(("CPU:0", "CPU:1"), ({"name": "CPU:0"}, {"name": "CPU:1"}), virtual=True)
    report.checks = smoke_train.judge(GOOD, 2, True, OPTIONS)
    result = json.loads(json.dumps(smoke_train.document(report, 5.0), allow_nan=False))
    assert (result["schema"], result["status"], result["virtual"], result["replicas"]) == (1, "pass", True, 2)
    assert result["loss"]["first"] == pytest.approx(2.25)
    assert len(result["loss"]["history"]) == 30
    assert "driver" in result["proves_not"]


def test_document_of_a_run_that_never_trained_counts_what_was_not_looked_at() -> None:
    report = smoke_train.Report(OPTIONS, checks=[smoke_train.missing_gpus(0, OPTIONS, 4)])
    result = json.loads(json.dumps(smoke_train.document(report, 5.0), allow_nan=False))
    assert result["status"] == "fail"
    assert {item["id"]: item["status"] for item in result["checks"]} == {
        "gpus-visible": "fail",
        **dict.fromkeys(
            ("replicas", "all-reduce", "loss-finite", "loss-falls", "replicas-agree", "time-limit"), "skip"
        ),
    }


def test_nan_losses_make_valid_json() -> None:
    report = smoke_train.Report(OPTIONS, training=replace(GOOD, history=with_loss(29, math.nan)))
    result = smoke_train.document(report, 5.0)
    assert json.loads(json.dumps(result, allow_nan=False))["loss"]["history"][-1] is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_every_few_seconds_or_a_bar() -> None:
    now = [0.0]
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        progress = smoke_train.Progress(10, stream, clock=lambda: now[0])
        for step in range(1, 11):
            now[0] += 1.0
            progress.update(step, 1.0)
        progress.end()
    assert [line.split(",")[0] for line in plain.getvalue().splitlines()] == [
        "smoke_train: step 1 of 10",
        "smoke_train: step 6 of 10",
        "smoke_train: step 10 of 10",
    ]
    assert terminal.getvalue().count("\r") == 10
    assert "[##############################] step 10 of 10" in terminal.getvalue()
