"""The command line of script/bench, with simulated cases."""

import json

import pytest

import benchmarks.__main__ as bench
from benchmarks import cases, lab
from benchmarks.measure import Failed
from benchmarks.results import Options, Result


@pytest.fixture
def steps(monkeypatch):
    """Replace the cases and the lab; return the list of their calls, and the results for the cases to return."""
    done: list[str] = []
    found: dict[str, Result] = {}

    def case(name: str):
        def measured(options: Options) -> Result:
            done.append(name)
            if name not in found:
                raise Failed(f"{name} broke")
            return found[name]

        return measured

    monkeypatch.setattr(cases, "CASES", {name: case(name) for name in cases.CASES})
    monkeypatch.setattr(lab, "lab", lambda action: done.append(action))
    monkeypatch.setattr(cases, "once", lambda command, log: done.append(command.name))
    return done, found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "unknown case speed: expected some of plan, adopt, first_install"),
        (["--runs", "0"], "--runs 0: expected 1 or more"),
        (["--hosts", "1,x"], "--hosts 'x'"),
        (["--hosts", "0"], "--hosts '0'"),
        (["--hosts", "²"], "--hosts '²'"),
        (["--peer", "/nowhere.yml"], "--peer /nowhere.yml: no such file"),
        (["--output", __file__], "expected a directory, found a file"),
    ],
)
def test_bad_usage_exits_with_2_before_anything_starts(steps, capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        bench.main(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert steps[0] == []


def test_all_mistakes_are_reported_at_once(capsys):
    with pytest.raises(SystemExit):
        bench.main(["speed", "--runs", "0"])
    errors = capsys.readouterr().err
    assert "speed" in errors
    assert "--runs 0" in errors


@pytest.mark.parametrize(("value", "status"), [(0.7, 0), (1.3, 1)])
def test_exit_status_is_1_if_a_target_is_missed(steps, capsys, value, status):
    done, found = steps
    found["rerun"] = Result({"rerun_over_floor": value})
    assert bench.main(["rerun"]) == status
    assert ("met" if value < 1 else "missed") in capsys.readouterr().out
    assert done == ["up", "provision", "rerun", "down"]


def test_failed_command_exits_with_2_and_removes_the_lab(steps, capsys):
    done, _ = steps
    assert bench.main(["fleet"]) == 2
    output = capsys.readouterr()
    assert "script/bench: fleet broke" in output.err
    assert output.out == ""
    assert done[-1] == "down"


def test_planning_needs_no_lab(steps):
    done, found = steps
    found["plan"] = Result({"plan_seconds": 0.2})
    assert bench.main(["plan"]) == 0
    assert done == ["plan"]


def test_keep_lab_keeps_the_lab(steps):
    done, found = steps
    found["rerun"] = Result()
    assert bench.main(["rerun", "--keep-lab"]) == 0
    assert "down" not in done


def test_first_install_runs_before_cases_that_need_the_stack(steps):
    done, found = steps
    found.update({"rerun": Result(), "first_install": Result()})
    assert bench.main(["rerun", "first_install", "rerun"]) == 0
    assert done == ["first_install", "up", "provision", "rerun", "down"]
    assert cases.in_order([]) == list(cases.CASES)


def test_json_is_the_only_output_and_is_written_to_the_directory(steps, capsys, tmp_path):
    _, found = steps
    found["rerun"] = Result({"rerun_over_floor": 0.75})
    assert bench.main(["rerun", "--json", "--output", str(tmp_path / "out")]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out/bench.json").read_text())
    assert printed["rerun_over_floor"] == written["rerun_over_floor"] == 0.75
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bench.json"]


def test_fleet_writes_its_curves(steps, tmp_path):
    pytest.importorskip("matplotlib", reason="the environment of script/bootstrap has it")
    points = {"hosts": [1, 5], "wall": [2.0, 4.0], "cpu": [1.5, 0.9]}
    steps[1]["fleet"] = Result({}, {"curve": {"rerun": points}})
    assert bench.main(["fleet", "--output", str(tmp_path)]) == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".svg", ".svg"]
