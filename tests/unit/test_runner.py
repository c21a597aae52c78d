"""What script/test makes of steps that run side by side."""

import argparse
import sys
import threading
from pathlib import Path

import pytest

from tests import runner

GIB = runner.GIB


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    return tmp_path


def two_lines(meet: threading.Barrier, status: int):
    """Work of two lines, between which the other step prints its own; it fails with that exit status."""

    def work(step: runner.Step) -> None:
        for number in (1, 2):
            meet.wait(30)
            code = f"print('{step.name}, line {number}'); raise SystemExit({status})"
            good = runner.run(step, sys.executable, "-c", code)
        step.passed, step.failed = int(good), int(not good)

    return work


def test_steps_run_at_the_same_time_and_print_as_a_whole(capfd, results):
    meet = threading.Barrier(2)  # neither goes on without the other
    steps = runner.in_groups([([("one", two_lines(meet, 3)), ("two", two_lines(meet, 0))], 2)])
    assert [(step.name, step.passed, step.failed) for step in steps] == [("one", 0, 1), ("two", 1, 0)]
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    for name in ("one", "two"):
        at = lines.index(f"=== {name} ===")
        assert lines[at + 1 : at + 3] == [f"{name}, line 1", f"{name}, line 2"]
        assert lines[at + 3].startswith(f"=== {name} {'failed (1)' if name == 'one' else 'passed'}, 0 min")
        assert f"=== {name} has begun ===" in lines[:at]
        assert (results / f"{name}.log").read_text() == f"{name}, line 1\n{name}, line 2\n"


def test_errors_are_part_of_a_steps_output(results):
    steps = [(name, lambda step: runner.run(step, sys.executable, "-c", "import sys; sys.exit('no')")) for name in "ab"]
    list(runner.side_by_side(steps, 2))
    assert (results / "a.log").read_text() == "no\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_breaks_off_fails_its_step_and_the_others_go_on(capfd, jobs):
    def good(step):
        step.passed = 1

    steps = runner.in_groups([([("bad", lambda step: runner.run(step, "no-such-program")), ("good", good)], jobs)])
    assert [(step.passed, step.failed) for step in steps] == [(0, 1), (1, 0)]
    assert "No such file or directory: 'no-such-program'" in capfd.readouterr().out
    assert runner.report(steps, 61.5) == 1
    said = capfd.readouterr().out
    assert "all                   1 min  1.5 s" in said
    assert said.endswith("1 passed, 1 failed, 0 skipped\n")


def test_a_group_begins_when_the_one_before_has_ended_and_jobs_bound_it():
    running, most, order = set(), [], []

    def work(step):
        running.add(step.name)
        order.append(step.name)
        most.append(len(running))
        threading.Event().wait(0.05)
        running.remove(step.name)

    steps = runner.in_groups([([("a", work), ("b", work)], 2), ([(name, work) for name in "cdefg"], 2)])
    assert [step.name for step in steps] == list("abcdefg")
    assert max(most) == 2
    assert set(order[:2]) == {"a", "b"}


@pytest.mark.parametrize(
    ("cores", "memory", "disk", "jobs"),
    [(2, 24, 30, 2), (64, 512, 900, 2), (1, 24, 30, 1), (2, 7, 30, 1), (2, 24, 23, 1), (2, 1, 1, 1)],
)
def test_two_scenarios_at_a_time_where_they_fit(cores, memory, disk, jobs):
    assert runner.fitting_jobs(cores, memory * GIB, disk * GIB, ["undo", "drift", "teardown"]) == jobs


@pytest.mark.parametrize(("disk", "jobs"), [(45, 2), (43, 1)])
def test_one_at_a_time_where_the_largest_two_would_fill_the_disk(disk, jobs):
    assert runner.fitting_jobs(2, 24 * GIB, disk * GIB, ["undo", "proof", "drift"]) == jobs


def arguments(*names: str, fast: bool = False, long: bool = False, jobs: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(names=list(names), fast=fast, long=long, jobs=jobs)


def test_the_longest_scenarios_start_first_and_unknown_ones_before_them(monkeypatch):
    monkeypatch.setattr(runner, "scenarios", lambda: dict.fromkeys(["new", "teardown", "interrupted", "upgrade"], True))
    first, (steps, jobs) = runner.choose(arguments(jobs=3))
    assert [name for name, _ in first[0]] == ["unit", "lint"]
    assert [name for name, _ in steps] == ["new", "interrupted", "upgrade", "teardown"]
    assert jobs == 3


def test_names_alone_and_fast_leave_the_other_group_out():
    (only,) = runner.choose(arguments("teardown", jobs=1))
    assert [name for name, _ in only[0]] == ["teardown"]
    (fast,) = runner.choose(arguments(fast=True))
    assert {name for name, _ in fast[0]} == {"unit", "lint"}
    with pytest.raises(SystemExit, match=r"no scenario named nothing; there are: .*teardown"):
        runner.choose(arguments("nothing"))


def test_every_scenario_has_its_time():
    assert set(runner.MINUTES) == set(runner.scenarios())


def test_each_scenario_has_its_own_reports(monkeypatch):
    asked = {}
    monkeypatch.setattr(runner, "run", lambda step, *command, extra: asked.update({step.name: extra}) or False)
    for name in ("undo", "teardown"):
        runner.scenario(runner.Step(name))
    for variable in ("GPUHOST_REPORTS", "GPUHOST_HOST_SUITE_REPORT"):
        assert asked["undo"][variable] != asked["teardown"][variable]


# What Molecule and Ansible printed where a lab could not be removed, shortened.
DESTROY_FAILED = """\
INFO     [refusals > verify] Executed: Successful
INFO     [refusals > destroy] Executing

TASK [Remove the containers] ***************************************************
fatal: [localhost]: FAILED! =>
    changed: true
    stderr: 'lab: docker rm --force --volumes ... failed'

PLAY RECAP *********************************************************************
localhost                  : ok=0    changed=0    unreachable=0    failed=1    skipped=0    rescued=0    ignored=0
ERROR    refusals > destroy: Executed: Failed
"""


def test_why_a_step_failed_is_said_at_the_end(capsys, results):
    (results / "refusals.log").write_text(DESTROY_FAILED)
    (results / "unit.log").write_text("FAILED tests/unit/test_x.py::test_y - assert 1 == 2\n")
    (results / "fine.log").write_text("ERROR that a test expects\n")
    assert runner.report([runner.Step("refusals", 27, 1), runner.Step("unit", 1, 1), runner.Step("fine", 1)], 1) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")] == [
        "failed: refusals: fatal: [localhost]: FAILED! =>",
        "failed: refusals:     changed: true",
        "failed: refusals:     stderr: 'lab: docker rm --force --volumes ... failed'",
        "failed: refusals: ERROR    refusals > destroy: Executed: Failed",
        "failed: unit: FAILED tests/unit/test_x.py::test_y - assert 1 == 2",
    ]


def test_a_step_that_failed_in_words_nobody_knows_ends_with_its_last_lines(capsys, results):
    (results / "lint.log").write_text("".join(f"line {number}\n" for number in range(100)))
    runner.report([runner.Step("lint", 0, 1)], 1)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")]
    assert said == [f"failed: lint: line {number}" for number in range(70, 100)]


def test_an_earlier_runs_log_does_not_explain_a_failure(capsys, results):
    (results / "lint.log").write_text("an earlier run\n")
    runner.report(runner.in_groups([([("lint", lambda step: runner.run(step, "no-such-program"))], 1)]), 1)
    assert "an earlier run" not in capsys.readouterr().out
