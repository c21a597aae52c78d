"""train_options.py: defaults, the options in the worker's request, and refused combinations."""

import json
from pathlib import Path

import pytest
import train_options
import yaml

ROLE = Path(__file__).resolve().parents[4] / "roles/smoke_train"
CLUSTER = ["--cluster-workers", "a:1,b:2", "--cluster-index", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--num-gpus", "0"], id="zero GPUs"),
        pytest.param(["--num-gpus", "two"], id="not a number"),
        pytest.param(["--gpus", "0;1"], id="not a list"),
        pytest.param(["--gpus", "0,"], id="incomplete list"),
        pytest.param(["--gpus", "-1"], id="negative GPU"),
        pytest.param(["--virtual-gpus", "-1"], id="negative"),
        pytest.param(["--data", "imaginary"], id="unknown data"),
        pytest.param(["--train-steps", "3"], id="too few steps to see a loss fall"),
        pytest.param(["--time-limit", "nan"], id="NaN"),
        pytest.param(["--time-limit", "inf"], id="no limit"),
        pytest.param(["--no-such-option"], id="unknown option"),
        pytest.param(["--cluster-workers", "a:1,b", "--cluster-index", "0"], id="no port"),
        pytest.param(["--cluster-workers", "a:1,fe80::1:2", "--cluster-index", "0"], id="IPv6 without brackets"),
        pytest.param(["--cluster-workers", "a:1,b:70000", "--cluster-index", "0"], id="no such port"),
    ],
)
def test_bad_usage_exits_2_with_nothing_on_stdout(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        train_options.parse_arguments(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(
            ["--gpus", "0,2", "--num-gpus", "3"], ["--gpus 0,2 names 2 GPUs, but --num-gpus is 3"], id="counts"
        ),
        pytest.param(["--gpus", "0,0"], ["--gpus 0,0 names a GPU twice"], id="twice"),
        pytest.param(["--memory-limit", "1", "--memory-growth"], ["mutually exclusive"], id="memory"),
        pytest.param(["--memory-growth", "--virtual-gpus", "2"], ["fixed memory"], id="growth of virtual GPUs"),
        pytest.param(
            ["--training", "fit", "--framework", "pytorch"], ["--training fit is for tensorflow"], id="fit of PyTorch"
        ),
        pytest.param(
            ["--training", "data_parallel", "--framework", "tensorflow"],
            ["--training data_parallel is for pytorch"],
            id="DataParallel of TensorFlow",
        ),
        pytest.param(
            ["--training", "fit", "--framework", "tensorflow", *CLUSTER], ["for a single host"], id="fit in a cluster"
        ),
        pytest.param(["--cluster-index", "0"], ["needs --cluster-workers"], id="index alone"),
        pytest.param(["--cluster-workers", "a:1,b:1"], ["needs --cluster-index"], id="workers alone"),
        pytest.param(["--cluster-workers", "a:1", "--cluster-index", "0"], ["names 1 worker"], id="one worker"),
        pytest.param(["--cluster-workers", "a:1,a:1", "--cluster-index", "0"], ["a worker twice"], id="same worker"),
        pytest.param(
            ["--cluster-workers", "a:1,b:1", "--cluster-index", "2"], ["not one of the 2 workers"], id="index"
        ),
        pytest.param(
            ["--gpus", "1,1", "--num-gpus", "3", "--memory-growth", "--memory-limit", "9", "--cluster-index", "0"],
            ["twice", "--num-gpus is 3", "mutually exclusive", "needs --cluster-workers"],
            id="all at once",
        ),
    ],
)
def test_contradicting_options_are_all_reported(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train_options.parse_arguments(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert [text for text in expected if text not in error] == []


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--gpus", "0,2", "--num-gpus", "2"], id="counts that agree"),
        pytest.param(["--memory-growth", "--virtual-gpus", "0"], id="growth of real GPUs"),
        pytest.param(["--memory-limit", "512", "--virtual-gpus", "4", "--num-gpus", "2"], id="shares of two GPUs"),
        pytest.param(["--cluster-workers", "10.0.0.1:5,[fe80::1]:5", "--cluster-index", "1"], id="a cluster"),
    ],
)
def test_valid_combinations(arguments: list[str]) -> None:
    assert train_options.parse_arguments(arguments) is not None


@pytest.mark.parametrize(
    ("visible", "arguments", "expected"),
    [
        pytest.param(None, [], None, id="all"),
        pytest.param(None, ["--num-gpus", "2"], "0,1", id="the first"),
        pytest.param(None, ["--gpus", "0,2"], "0,2", id="named"),
        pytest.param("3,5,7", ["--gpus", "0,2"], "3,7", id="named among those visible"),
        pytest.param("GPU-a,GPU-b", ["--num-gpus", "1"], "GPU-a", id="by UUID"),
        pytest.param("3", ["--gpus", "0,1"], "3,-1", id="more than are visible"),
        pytest.param("3", [], "3", id="all visible"),
    ],
)
def test_other_gpus_are_hidden_from_the_worker(visible: str | None, arguments: list[str], expected: str | None) -> None:
    assert train_options.requested_gpus(train_options.parse_arguments(arguments), visible) == expected


def test_request_has_every_option_as_json_types() -> None:
    options = train_options.parse_arguments(
        ["--gpus", "0,2", "--job-dir", "/tmp/job", *CLUSTER, "--framework", "pytorch"]
    )
    expected = json.loads(json.dumps(train_options.for_worker(options)))
    assert set(expected) == set(vars(train_options.make_parser().parse_args([])))
    assert expected["gpus"] == [0, 2]
    assert (expected["job_dir"], expected["cluster_workers"], expected["cluster_index"]) == (
        "/tmp/job",
        ["a:1", "b:2"],
        1,
    )
    assert (expected["framework"], expected["num_gpus"], expected["memory_growth"]) == ("pytorch", None, False)


@pytest.mark.parametrize(
    ("installed", "framework"),
    [
        pytest.param({"tensorflow", "torch"}, "tensorflow", id="both"),
        pytest.param({"torch"}, "pytorch", id="PyTorch alone"),
        pytest.param(set(), "tensorflow", id="none"),
    ],
)
def test_default_framework_is_the_installed_one(
    installed: set[str], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_options.importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert train_options.parse_arguments([]).framework == framework


def test_default_interval_samples_the_training_of_a_fast_gpu() -> None:
    """An H100 (PyTorch 2.11, driver 580.159.04) trained on 13,139 images a second: 60 steps of 128 were over in 0.58 s.

    With a sample each second none saw it. The role has the same default.
    """
    interval = train_options.parse_arguments(["--framework", "pytorch"]).monitor_interval
    assert 0 < interval < 60 * 128 / 13139
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert defaults["smoke_train_monitor_interval"] == interval
