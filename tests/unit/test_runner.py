"""script/test: counts, error lines and the ledger of tiers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import configurations, distributions, runner

JUNIT = """<testsuites><testsuite tests="4" failures="1" errors="0">
<testcase name="a"/><testcase name="b"><failure message="1 == 2"/></testcase><testcase name="c"/>
<testcase name="d"><skipped message="no gpg"/></testcase>
</testsuite></testsuites>"""
# Printed by Molecule and Ansible when a lab could not be removed, shortened.
DESTROY_FAILED = """\
INFO     [refusals > verify] Executed: Successful
TASK [Remove the containers] ***************************************************
fatal: [localhost]: FAILED! =>
    changed: true
    stderr: 'lab: docker rm --force --volumes ... failed'

PLAY RECAP *********************************************************************
ERROR    refusals > destroy: Executed: Failed
"""


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    return tmp_path


def printing(text: str, passed: int, failed: int):
    """Return the work of a step that prints `text` and has these counts."""

    def work(step: runner.Step) -> None:
        succeeded = step.command("sh", "-c", 'printf %s "$TEXT"; exit "$FAILED"', TEXT=text, FAILED=str(failed))
        assert succeeded == (failed == 0)
        step.passed, step.failed = passed, failed

    return work


@pytest.mark.parametrize("report", [JUNIT, None], ids=["with host suite", "without"])
def test_scenario_counts_its_host_suite_and_fails_without_one(monkeypatch, results, report):
    def command(step: runner.Step, *words: str, **variables: str) -> bool:
        if report:
            Path(variables["GPUHOST_HOST_SUITE_REPORT"]).write_text(report)
        return True

    monkeypatch.setattr(runner.Step, "command", command)
    (step,) = runner.run_steps([("undo", runner.molecule)], 1)
    assert (step.passed, step.failed, step.skipped) == ((3, 1, ["d: no gpg"]) if report else (1, 1, []))


def test_missing_program_fails_its_step_only(capfd):
    steps = runner.run_steps([("bad", lambda step: step.command("no-such-program")), ("good", printing("", 1, 0))], 2)
    assert runner.totals(steps) == (1, 1, 0)
    runner.print_summary(steps, 61.5)
    output = capfd.readouterr().out
    assert "failed: bad: ERROR: [Errno 2] No such file or directory: 'no-such-program'" in output
    assert re.search(r"^all +1 min  1\.5 s$", output, re.MULTILINE)
    assert output.endswith("1 passed, 1 failed, 0 skipped\n")


def test_summary_ends_with_skips_and_error_lines_of_failed_steps(capsys):
    work = [
        ("refusals", printing(DESTROY_FAILED, 27, 1)),
        ("lint", printing("".join(f"line {number}\n" for number in range(100)), 0, 1)),
        ("fine", printing("ERROR that a test expects\n", 1, 0)),
    ]
    steps = runner.run_steps(work, 2)
    steps[2].skipped.append("no gpg")
    capsys.readouterr()
    runner.print_summary(steps, 1)
    lines = capsys.readouterr().out.splitlines()[6:]
    assert lines == [
        "skipped: fine: no gpg",
        "failed: refusals: fatal: [localhost]: FAILED! =>",
        "failed: refusals:     changed: true",
        "failed: refusals:     stderr: 'lab: docker rm --force --volumes ... failed'",
        "failed: refusals: ERROR    refusals > destroy: Executed: Failed",
        *(f"failed: lint: line {number}" for number in range(70, 100)),
        "28 passed, 2 failed, 1 skipped",
    ]


@pytest.mark.parametrize("dirty", [False, True], ids=["clean", "uncommitted"])
def test_completed_tier_is_recorded_for_a_clean_commit(monkeypatch, tmp_path, capsys, dirty):
    (tmp_path / "tests").mkdir()
    (tmp_path / "file").write_text("committed\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "test"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    if dirty:
        (tmp_path / "file").write_text("changed\n")
    monkeypatch.setattr(runner, "PROJECT", tmp_path)
    monkeypatch.setattr(runner, "LEDGER", tmp_path / "tests/ledger.jsonl")
    monkeypatch.setattr(runner, "RESULTS", tmp_path / ".git")
    monkeypatch.setattr(runner, "TIERS", {"short": [("one", printing("", 3, 0))]})
    for _ in range(2):  # the ledger itself may differ from the commit
        runner.run_tier("short", 1)
    runner.list_tiers()
    last = capsys.readouterr().out.splitlines()[-1]
    if dirty:
        assert last == "short: never completed"
        return
    assert last.startswith("short: {")
    lines = [json.loads(line) for line in runner.LEDGER.read_text().splitlines()]
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout.strip()
    for line in lines:
        assert (line["commit"], line["passed"], line["failed"], line["skipped"]) == (head, 3, 0, 0)
    assert len(lines) == 2


SKIPPING = """<testsuites><testsuite tests="2" failures="0" errors="0">
<testcase name="a"/><testcase name="b"><skipped message="no pytorch"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("report", "counts"),
    [(SKIPPING, (1, 1, 1)), (SKIPPING.replace("<skipped", "<properties"), (2, 0, 0)), (None, (0, 1, 0))],
    ids=["one skipped", "all run", "no environment"],
)
def test_a_test_that_is_skipped_fails_the_step_of_the_frameworks(monkeypatch, results, report, counts):
    asked = []

    def command(step: runner.Step, *words: str, **variables: str) -> bool:
        asked.append((words, variables))
        if words[0] == "pytest":
            (results / "frameworks.xml").write_text(report)
        return report is not None

    monkeypatch.setattr(runner.Step, "command", command)
    (step,) = runner.run_steps([("frameworks", runner.frameworks)], 1)
    assert runner.totals([step]) == counts
    assert asked[0] == (("script/bootstrap", "frameworks"), {})
    if report:
        words, variables = asked[1]
        assert words[:4] == ("pytest", "tests/unit", "-m", "frameworks")
        assert set(variables) == {"GPUHOST_TENSORFLOW_PYTHON", "GPUHOST_PYTORCH_PYTHON"}


def test_every_test_that_needs_a_framework_is_in_that_step():
    """Without a framework, they and no others name its variable when they are skipped."""
    paths = ["tests/unit/roles/smoke_train", "tests/unit/module_utils/checks"]
    absent = {f"GPUHOST_{name}_PYTHON": "/nowhere/python" for name in ("TENSORFLOW", "PYTORCH")}
    command = [sys.executable, "-m", "pytest", "-n0", "-rs", "-m", "frameworks", *paths]
    answer = subprocess.run(
        command, cwd=runner.PROJECT, env={**os.environ, **absent}, capture_output=True, text=True, check=True
    )
    found = re.search(r"^(\d+) skipped, \d+ deselected", answer.stdout, re.MULTILINE)
    assert found, answer.stdout
    assert int(found[1]) >= 20


# Tiers of cells: `distributions`, `virtual-machine`, `mutation` -------------------------------------------------------


@pytest.fixture
def clock():
    return {"now": 0.0, "seconds": 600}


@pytest.fixture
def cells(monkeypatch, tmp_path, clock):
    """Return the cells that ran; each takes `seconds` of the simulated clock."""
    ran = []

    def molecule(step, scenario=distributions.DEMO, **variables):
        ran.append((variables[configurations.IMAGE_VARIABLE], scenario))
        clock["now"] += clock["seconds"]
        step.passed, step.failed = 3, clock.get("failed", 0)

    monkeypatch.setattr(runner, "lab_image", lambda step, distribution: {"simulated": "ubuntu" in distribution})
    monkeypatch.setattr(runner, "molecule", molecule)
    monkeypatch.setattr(runner, "demo", molecule)
    monkeypatch.setattr(runner, "compare_tasks", lambda step, shape: None)
    monkeypatch.setattr(runner, "clean_commit", lambda: "a1b2")
    monkeypatch.setattr(runner, "LEDGER", tmp_path / "ledger.jsonl")
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock["now"])
    return ran


def recorded() -> list[tuple[str, str, str]]:
    return [(line["commit"], line["distribution"], line["scenario"]) for line in runner.ledger_lines()]


def test_tier_distributions_takes_an_hour_at_most_and_goes_on_until_all_cells_ran(cells, capsys):
    invocations = 0
    while len(cells) < len(distributions.CELLS):
        before = len(cells)
        runner.run_tier("distributions", 1)
        invocations += 1
        assert 0 < len(cells) - before <= runner.TIER_SECONDS // 600
        assert ("is not finished" in capsys.readouterr().out) is (len(cells) < len(distributions.CELLS))
    assert cells == distributions.CELLS
    assert recorded() == [("a1b2", *cell) for cell in distributions.CELLS]
    assert invocations > 1
    (step,) = runner.run_tier("distributions", 1)
    assert (cells, step.failed) == (distributions.CELLS, 0)
    assert step.passed > 0


def test_tier_virtual_machine_goes_on_where_its_last_invocation_ended(cells, clock):
    clock["seconds"] = 2400
    for number in (1, 2, 3):
        runner.run_tier("virtual-machine", 2)
        assert cells == runner.MACHINES[:number]
    assert [(line["tier"], line["passed"], line["seconds"]) for line in runner.ledger_lines()] == [
        ("virtual-machine", 3, 2400)
    ] * 3


def test_another_commit_begins_with_the_cells_that_ran_longest_ago(cells, clock, monkeypatch):
    clock["seconds"] = 2400
    runner.run_tier("virtual-machine", 1)
    monkeypatch.setattr(runner, "clean_commit", lambda: "c3d4")
    for _ in range(3):
        runner.run_tier("virtual-machine", 1)
    monkeypatch.setattr(runner, "clean_commit", lambda: "e5f6")
    runner.run_tier("virtual-machine", 1)
    first, second, third = runner.MACHINES
    assert recorded() == [
        ("a1b2", *first),
        *(("c3d4", *cell) for cell in (second, third, first)),
        ("e5f6", *second),
    ]


def test_failed_cell_is_repeated_after_the_others_and_an_uncommitted_one_is_not_recorded(cells, clock, monkeypatch):
    clock["seconds"] = 2400
    for failed in (1, 0, 0, 0):
        clock["failed"] = failed
        runner.run_tier("virtual-machine", 1)
    assert cells == [*runner.MACHINES, runner.MACHINES[0]]
    monkeypatch.setattr(runner, "clean_commit", lambda: None)
    before = recorded()
    runner.run_tier("virtual-machine", 1)
    assert (len(cells), recorded()) == (5, before)


def test_table_of_distributions_says_what_was_real_simulated_failed_or_never_run():
    ledger = [
        {"tier": "other"},
        {"distribution": "debian-13", "scenario": "undo", "simulated": False, "failed": 1},
        {"distribution": "debian-13", "scenario": "undo", "simulated": False, "failed": 0},
        {"distribution": "ubuntu-22.04", "scenario": "teardown", "simulated": True, "failed": 1},
    ]
    ledger = [{"tier": "distributions", "date": f"2026-11-0{number}", **line} for number, line in enumerate(ledger)]
    rows = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in distributions.table(ledger).splitlines()
    }
    column = distributions.SCENARIOS.index
    assert rows["debian-13"][column("undo")] == "passed 2026-11-02, real"
    assert rows["debian-13"][column("upgrade")] == "–"
    assert rows["ubuntu-22.04"][column("teardown")] == "failed 2026-11-03, simulated"
    assert rows["debian-12"][column("default")] == "never run"


@pytest.mark.parametrize("scenario", [name for name in distributions.SCENARIOS if name != distributions.DEMO])
def test_scenario_of_the_tier_exists_and_its_defaults_are_of_its_distribution(scenario, monkeypatch):
    monkeypatch.delenv(configurations.IMAGE_VARIABLE, raising=False)
    text = (configurations.MOLECULE / scenario / "hosts.yml").read_text()
    defaults = re.findall(r"'LAB_(?:DRIVER|CUDA)'\) \| default\('([\d.]+)'", text)
    assert defaults in ([], list(configurations.of_scenario(scenario)[0]))


RAN = """\
TASK [gpuhost.stack.nvidia_driver : Keep Unattended-Upgrades away] *************
{unattended}: [default-hopper]

TASK [gpuhost.stack.env_paths : Write the paths] *******************************
ok: [default-hopper] => (item=/etc/profile.d/cuda.sh)
"""
APT_ALONE = "gpuhost.stack.nvidia_driver : Keep Unattended-Upgrades away"


@pytest.mark.parametrize("log", ["of this commit", "of an older commit", "none"])
@pytest.mark.parametrize(
    ("rows", "failed", "error"),
    [
        ({APT_ALONE: "dnf has none"}, 0, ""),
        ({}, 1, f"ran on Debian 12 alone, and has no row: {APT_ALONE}"),
        ({APT_ALONE: "dnf has none", "Install": "r"}, 1, "has a row, and ran on both or on none: Install"),
    ],
    ids=["row", "no row", "stale row"],
)
def test_a_task_that_runs_on_debian_alone_has_a_row(results, capsys, monkeypatch, rows, failed, error, log):
    debian = RAN.format(unattended="changed")
    monkeypatch.setattr(distributions, "OF_DEBIAN_ALONE", rows)
    monkeypatch.setattr(runner, "molecule", lambda step, **_: step.print(debian))
    if log != "none":
        (results / "debian-12-default.log").write_text(debian if log == "of this commit" else "")
    if log == "of an older commit":
        os.utime(results / "debian-12-default.log", (1, 1))
    step = runner.Step("el-9-default", runner.compare_tasks)
    step.log.write_text(RAN.format(unattended="skipping"))
    runner.compare_tasks(step, "el-9")
    assert (step.failed, step.passed) == (failed, 1 - failed)
    assert error in capsys.readouterr().out
