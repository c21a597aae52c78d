"""The command line of smoke_train.py: defaults, what the worker is told, and everything that cannot be."""

import json

import pytest
import train_usage

CLUSTER = ["--cluster-workers", "a:1,b:2", "--cluster-index", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--num-gpus", "0"], id="no GPU asked"),
        pytest.param(["--num-gpus", "two"], id="no number"),
        pytest.param(["--gpus", "0;1"], id="no list"),
        pytest.param(["--gpus", "0,"], id="a number missing"),
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
        train_usage.parse_arguments(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error:" in captured.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--gpus", "0,2", "--num-gpus", "3"], ["--gpus 0,2 names 2 GPUs, --num-gpus says 3"], id="counts"),
        pytest.param(["--gpus", "0,0"], ["--gpus 0,0 names a GPU twice"], id="twice"),
        pytest.param(["--memory-limit", "1", "--memory-growth"], ["exclude each other"], id="memory"),
        pytest.param(["--memory-growth", "--virtual-gpus", "2"], ["fixed share"], id="growth of a share"),
        pytest.param(["--framework", "tensorflow", "--strategy", "dp"], ["PyTorch's"], id="PyTorch's option"),
        pytest.param(["--framework", "pytorch", "--loop", "fit"], ["TensorFlow's"], id="TensorFlow's option"),
        pytest.param(["--cluster-index", "0"], ["needs --cluster-workers"], id="index alone"),
        pytest.param(["--cluster-workers", "a:1,b:1"], ["needs --cluster-index"], id="workers alone"),
        pytest.param(["--cluster-workers", "a:1", "--cluster-index", "0"], ["names 1 worker"], id="one worker"),
        pytest.param(["--cluster-workers", "a:1,a:1", "--cluster-index", "0"], ["a worker twice"], id="same worker"),
        pytest.param(["--cluster-workers", "a:1,b:1", "--cluster-index", "2"], ["none of the 2 workers"], id="index"),
        pytest.param([*CLUSTER, "--loop", "fit"], ["--loop fit does not go"], id="fit in a cluster"),
        pytest.param([*CLUSTER, "--scaling", "on"], ["--scaling on does not go"], id="scaling in a cluster"),
        pytest.param(
            ["--gpus", "1,1", "--num-gpus", "3", "--memory-growth", "--memory-limit", "9", "--cluster-index", "0"],
            ["twice", "--num-gpus says 3", "exclude each other", "needs --cluster-workers"],
            id="all at once",
        ),
    ],
)
def test_combinations_that_cannot_be_are_all_told(
    arguments: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train_usage.parse_arguments(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert [text for text in told if text not in error] == []


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--gpus", "0,2", "--num-gpus", "2"], id="counts that agree"),
        pytest.param(["--memory-growth", "--virtual-gpus", "0"], id="growth of real GPUs"),
        pytest.param(["--memory-limit", "512", "--virtual-gpus", "4", "--num-gpus", "2"], id="shares of two GPUs"),
        pytest.param(["--cluster-workers", "10.0.0.1:5,[fe80::1]:5", "--cluster-index", "1"], id="a cluster"),
    ],
)
def test_combinations_that_can_be(arguments: list[str]) -> None:
    assert train_usage.parse_arguments(arguments) is not None


def test_the_worker_is_told_every_option_in_json_types() -> None:
    options = train_usage.parse_arguments(
        ["--gpus", "0,2", "--job-dir", "/tmp/job", *CLUSTER, "--framework", "pytorch"]
    )
    told = json.loads(json.dumps(options.for_worker()))
    assert set(told) == set(vars(train_usage.make_parser().parse_args([])))
    assert told["gpus"] == [0, 2]
    assert (told["job_dir"], told["cluster_workers"], told["cluster_index"]) == ("/tmp/job", ["a:1", "b:2"], 1)
    assert (told["framework"], told["num_gpus"], told["memory_growth"]) == ("pytorch", None, False)


@pytest.mark.parametrize(
    ("there", "framework"),
    [
        pytest.param({"tensorflow", "torch"}, "tensorflow", id="both"),
        pytest.param({"torch"}, "pytorch", id="PyTorch alone"),
        pytest.param(set(), "tensorflow", id="none"),
    ],
)
def test_framework_is_the_one_that_this_python_has(
    there: set[str], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_usage.importlib.util, "find_spec", lambda name: name if name in there else None)
    assert train_usage.parse_arguments([]).framework == framework
