"""Run lint, unit tests and Molecule scenarios for script/test, and count their results.

Each step's output is printed line by line with the step's name in front, and kept in .cache/test-results/STEP.log.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "collections")]

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line  # noqa: E402
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import text_table  # noqa: E402

from tests import configurations, distributions, made_up_component  # noqa: E402
from tests.mutation import areas  # noqa: E402

RESULTS = PROJECT / ".cache" / "test-results"
LEDGER = PROJECT / "tests" / "ledger.jsonl"
CORES = len(os.sched_getaffinity(0))
DEMO_LINES = (80, 20)  # of the first run on two hosts, and of one with nothing to do
# The scenarios that take longest, which begin first: none of them shall be the only one at the end.
LONGEST = ("drift", "undo", "interrupted", "upgrade")
TIER_SECONDS = 3600  # of an invocation of a tier that continues where its last one ended
CELL_SECONDS = 900  # of a scenario on a distribution, before one is known
LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("mypy", "molecule"),  # a folder: there is a package of this name
    ("yamllint", "--strict", "."),
    ("ansible-lint", "--offline", "--strict"),
)
# How pytest, Ansible, Molecule and the programs that they run begin a line about an error.
ERROR_LINE = re.compile(r"(fatal: |FAILED |ERROR|CRITICAL|Traceback)")


@dataclass
class Step:
    """One row of the closing table: a name, the work, and the numbers of tests that passed, failed or were skipped."""

    name: str
    work: Callable[[Step], None]
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # names and reasons
    seconds: float = 0.0
    # Of a tier of cells, which goes on where its last invocation ended and records each cell (run_cells):
    finished: bool = True
    is_recorded: bool = False

    @property
    def log(self) -> Path:
        return RESULTS / f"{self.name}.log"

    def print(self, text: str) -> None:
        """Print a line of output with the step's name, and append it to the log."""
        sys.stdout.write(f"{self.name}: {text}\n")
        sys.stdout.flush()
        with self.log.open("a") as stream:
            stream.write(text + "\n")

    def command(self, *words: str, **variables: str) -> bool:
        """Run a program of .venv in the project's directory and return whether it succeeded."""
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(PROJECT / ".venv/bin"), os.environ["PATH"]]),
            "NO_COLOR": "1",
            # Hundreds of processes import ansible-core: without compiled modules each takes seconds longer to start.
            "PYTHONDONTWRITEBYTECODE": "",
            # Inside the checkout, so that two checkouts do not share Molecule's state.
            "MOLECULE_EPHEMERAL_DIRECTORY_BASE": str(PROJECT / ".cache"),
            **variables,
        }
        with subprocess.Popen(
            words, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.print(line.rstrip("\n"))
        return process.returncode == 0

    def count(self, report: Path) -> None:
        """Add the tests of a JUnit report; a missing report, or one without tests, counts as a failure."""
        suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
        if suite is None or int(suite.get("tests", "0")) == 0:
            self.print(f"ERROR: expected a report of at least one test in {report}")
            self.failed += 1
            return
        failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        skips = [
            f"{case.get('name')}: {skip.get('message', 'no reason given')}"
            for case in suite.iter("testcase")
            for skip in case.findall("skipped")
        ]
        self.failed += failed
        self.passed += int(suite.get("tests", "0")) - failed - len(skips)
        self.skipped += skips

    def run(self) -> Step:
        """Do the work; a program that is missing or a truncated report fails only this step."""
        self.log.write_text("")
        start = time.monotonic()
        try:
            self.work(self)
        except (OSError, ElementTree.ParseError) as error:
            self.print(f"ERROR: {error}")
            self.failed += 1
        self.seconds = time.monotonic() - start
        result = f"failed ({self.failed})" if self.failed else "passed"
        print(f"=== {self.name}: {result}, {minutes(self.seconds)} ===", flush=True)
        return self

    def error_lines(self, most: int = 30) -> list[str]:
        """Return the log's lines about errors with what is indented below them, or its last lines if there are none."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line]
        errors: list[str] = []
        belongs = False
        for line in lines:
            belongs = bool(ERROR_LINE.match(line)) or (belongs and line.startswith(" "))
            errors += [line] if belongs else []
        return (errors or lines)[-most:]


def lint(step: Step) -> None:
    """Run every linter; each counts as one test."""
    for words in LINTERS:
        passed = step.command(*words)
        step.passed, step.failed = step.passed + passed, step.failed + (not passed)


def pytest(*words: str, **variables: str) -> Callable[[Step], None]:
    """Return the work of running the tests of directories or files on all cores; `words` may also be options."""

    def work(step: Step) -> None:
        report = RESULTS / f"{step.name}.xml"
        report.unlink(missing_ok=True)
        # One process more than cores, because some tests wait.
        spread = (f"--numprocesses={min(CORES + 1, 8)}", "--dist=worksteal")
        passed = step.command("pytest", *words, *spread, f"--junit-xml={report}", "-ra", **variables)
        step.count(report)
        if not passed and not step.failed:
            step.failed = 1

    return work


def with_frameworks(step: Step) -> dict[str, str]:
    """Install the frameworks; return the variables by which unit tests find them, none if that fails."""
    if not step.command("script/bootstrap", "frameworks"):
        return {}
    pythons = {name: PROJECT / ".cache/frameworks" / name / "bin/python" for name in ("tensorflow", "pytorch")}
    return {f"GPUHOST_{name.upper()}_PYTHON": str(python) for name, python in pythons.items()}


def frameworks(step: Step, tests: Sequence[str] = ("tests/unit", "-m", "frameworks")) -> None:
    """Run the tests that need a framework, with those of the roles' locks; here none of them may be skipped."""
    variables = with_frameworks(step)
    if not variables:
        step.failed = 1
        return
    pytest(*tests, **variables)(step)
    for reason in step.skipped:
        step.print(f"ERROR: skipped, although this step has both frameworks: {reason}")
    step.failed += len(step.skipped)


def molecule(step: Step, scenario: str = "", folder: Path = PROJECT, **variables: str) -> None:
    """Run `molecule test` on a scenario (default: that of the step's name): one test, plus those of its host suite.

    folder: the checkout that it runs in.
    """
    chosen = os.environ.get(configurations.IMAGE_VARIABLE)
    variables = {**(distributions.environment(chosen) if chosen else {}), **variables}
    report = RESULTS / f"{step.name}.xml"
    report.unlink(missing_ok=True)
    # A report directory per scenario: its name is the second at which a run began.
    reports = str(RESULTS / "reports" / step.name)
    command = ("env", "-C", str(folder), "molecule", "test", "--scenario-name", scenario or step.name)
    passed = step.command(*command, GPUHOST_HOST_SUITE_REPORT=str(report), GPUHOST_REPORTS=reports, **variables)
    step.passed, step.failed = int(passed), int(not passed)
    if passed or report.exists():
        step.count(report)


def component(step: Step) -> None:
    """Run the scenario of a made-up component in a copy of the project that has it in place of PyTorch.

    The lab's repository, which all checkouts share, has its package until another lab is started.
    """
    copy = PROJECT / ".cache" / "component" / "clone"
    shutil.rmtree(copy, ignore_errors=True)
    made_up_component.copy_of_the_project(copy)
    made_up_component.add_to(copy)
    made_up_component.without_pytorch(copy)
    made_up_component.add_to_repository(copy)
    (copy / ".venv").symlink_to(PROJECT / ".venv")
    (copy / "molecule/component/.lab").symlink_to("../../.lab")  # hidden files are not copied
    molecule(step, folder=copy)


def locks(step: Step) -> None:
    """Ask the package index for a dry run of each lock and its Python; each counts as one test."""
    found = RESULTS / "locks.json"
    found.unlink(missing_ok=True)
    passed = step.command("python", "-m", "tests.dry_run_locks", f"--json={found}", PYTHONPATH="collections")
    counts = json.loads(found.read_text()) if found.exists() else {"passed": 0, "failed": []}
    step.passed, step.failed = counts["passed"], len(counts["failed"])
    if not passed and not step.failed:
        step.failed = 1


def field_reports(step: Step) -> None:
    """Try the reports of tests/field; each counts as one test, and an open one as skipped."""
    found = RESULTS / "field.json"
    found.unlink(missing_ok=True)
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "collections")])
    passed = step.command("python", "-P", "-m", "tests.field", f"--json={found}", PYTHONPATH=paths)
    counts = json.loads(found.read_text()) if found.exists() else {"right": [], "failed": [], "open": []}
    step.passed, step.failed, step.skipped = len(counts["right"]), len(counts["failed"]), counts["open"]
    if (not passed or not step.passed) and not step.failed:
        step.failed = 1


def documents(step: Step) -> None:
    """Run the documents' commands on the lab; each counts as one test, and those that it cannot run as skipped."""
    found = RESULTS / "documents.json"
    found.unlink(missing_ok=True)
    passed = step.command("python", "-m", "tests.documents", f"--json={found}", PYTHONPATH="collections")
    counts = json.loads(found.read_text()) if found.exists() else {"passed": 0, "failed": [], "skipped": []}
    step.passed, step.failed, step.skipped = counts["passed"], len(counts["failed"]), counts["skipped"]
    if (not passed or not step.passed) and not step.failed:
        step.failed = 1


def catalog(step: Step) -> None:
    """Compare the catalog with its sources: contradicted entries fail; those taken on trust are no tests."""
    found = RESULTS / "catalog.json"
    found.unlink(missing_ok=True)
    recorded = RESULTS / "catalog-evidence.json"  # to be copied to docs/dev/, for the table of its catalog.md
    command = f"script/catalog-check --deep --json --record {recorded} > {found}"
    step.command("sh", "-c", command)
    answer = json.loads(found.read_text() or "{}") if found.exists() else {}
    verdicts = answer.get("verdicts", [])
    step.passed = sum(verdict["verdict"] == "confirmed" for verdict in verdicts)
    for verdict in verdicts:
        if verdict["verdict"] == "contradicted":
            step.print(f"FAILED {verdict['entry']}: {verdict['by']}: {verdict['text']}")
    step.failed = sum(verdict["verdict"] == "contradicted" for verdict in verdicts) or int(not step.passed)
    step.skipped = [f"{source['source']}: not reached: {source['reason']}" for source in answer.get("unreachable", [])]


def demo(step: Step, **variables: str) -> None:
    """Run script/demo twice and remove its lab: three tests. Each run prints at most as many lines as DEMO_LINES."""
    results = []
    for most in DEMO_LINES:
        before = len(step.log.read_text().splitlines())
        results.append(step.command("script/demo", **variables))
        lines = step.log.read_text().splitlines()[before:]
        last = max((number for number, line in enumerate(lines) if line.startswith("lab: ")), default=-1)
        # On a slow machine there are more lines about tasks that take long.
        if len(printed := [line for line in lines[last + 1 :] if not line.startswith("[")]) > most:
            step.print(f"ERROR: the run printed {len(printed)} lines, expected at most {most}")
            results[-1] = False
    results.append(step.command("script/demo", "--destroy", **variables))
    step.passed, step.failed = results.count(True), results.count(False)


def lab_image(step: Step, distribution: str) -> dict[str, Any] | None:
    """Build the lab's image of a distribution if necessary; return what it is, None if it could not be built."""
    found = RESULTS / "image.json"
    found.unlink(missing_ok=True)
    paths = os.pathsep.join([str(PROJECT), str(PROJECT / "collections")])
    command = f"python -m tests.doubles.lab.images {distribution} > {found}"
    built = step.command("sh", "-c", command, PYTHONPATH=paths)
    return dict(json.loads(found.read_text().splitlines()[-1])) if built else None


def run_scenario(step: Step, distribution: str, scenario: str) -> dict[str, Any]:
    """Run a scenario on a distribution; return its counts, and whether the distribution is simulated."""
    image = lab_image(step, distribution)
    cell = {"distribution": distribution, "scenario": scenario, "simulated": bool(image and image["simulated"])}
    if image is None:
        return {**cell, "passed": 0, "failed": 1, "skipped": 0, "seconds": 0}
    work = demo if scenario == distributions.DEMO else functools.partial(molecule, scenario=scenario)
    part = Step(f"{distribution}-{scenario}", functools.partial(work, **distributions.environment(distribution))).run()
    step.skipped += [f"{distribution} {scenario}: {len(part.skipped)} tests"] if part.skipped else []
    if scenario == "default" and distribution in distributions.SHAPES and not part.failed:
        compare_tasks(part, distribution)
    counts = {"passed": part.passed, "failed": part.failed, "skipped": len(part.skipped)}
    return {**cell, **counts, "seconds": round(part.seconds)}


def compare_tasks(step: Step, shape: str) -> None:
    """Compare the tasks that ran on a shape of Enterprise Linux with those of Debian 12: one test.

    Without a log of Debian 12 that is newer than the commit, the scenario runs there first.
    """
    variables = distributions.environment("debian-12")
    debian = Step("debian-12-default", functools.partial(molecule, scenario="default", **variables))
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=PROJECT, check=True, capture_output=True)
    if not debian.log.exists() or debian.log.stat().st_mtime < int(committed.stdout):
        step.failed += debian.run().failed
    ran = [distributions.tasks_that_ran(each.log.read_text(errors="replace")) for each in (debian, step)]
    wrong = distributions.differences(shape, *ran)
    for line in wrong:
        step.print(f"ERROR: {line}")
    step.passed, step.failed = step.passed + (not wrong), step.failed + bool(wrong)


def run_area(step: Step, area: str) -> dict[str, Any] | None:
    """Change the code of an area in 100 places, one at a time; return how many of these mutants the tests noticed.

    Return None if the time was over before all of them were tested: the next invocation goes on.
    """
    found = RESULTS / "mutation.json"
    found.unlink(missing_ok=True)
    seed = [f"--seed={os.environ['SEED']}"] if os.environ.get("SEED") else []
    needed = areas.AREAS[area].frameworks
    variables = with_frameworks(step) if needed else {}
    words = ("python", "-m", "tests.mutation", area, "--mutants=100", f"--json={found}", *seed)
    enough = bool(variables or not needed) and step.command(*words, **variables)
    if not found.exists():
        return {"area": area, "passed": 0, "failed": 1, "skipped": 0, "seconds": 0}
    counts = json.loads(found.read_text())
    if not counts["finished"]:
        return None
    step.skipped += counts["survived"]
    results = {"passed": counts["killed"], "failed": int(not enough), "skipped": len(counts["survived"])}
    return {"area": area, "seed": counts["seed"], **results, "seconds": counts["seconds"]}


def run_cells(
    step: Step, cells: Sequence[tuple[str, ...]], names: tuple[str, ...], run: Callable[..., dict[str, Any] | None]
) -> None:
    """Run the cells of a tier that have not passed on this commit, for at most an hour; record each in the ledger.

    A cell is a part of the tier that has a line of its own in the ledger; `names` are its keys there. `run` takes the
    step and the cell, and returns that line without commit and tier, or None if it needs another invocation.

    The whole tier takes hours, during which new commits arrive. So the lines of earlier commits stay, cells that never
    ran come first, and then those that ran longest ago.
    """
    commit, start = clean_commit(), time.monotonic()
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in ledger_lines():
        if line["tier"] == step.name:
            cell = tuple(line[name] for name in names)
            lines.pop(cell, None)  # the order is that of the last lines
            lines[cell] = line
    order = list(lines)
    passed = {cell for cell, line in lines.items() if line["commit"] == commit and not line["failed"]}
    todo = [cell for cell in cells if cell not in passed]
    todo.sort(key=lambda cell: order.index(cell) if cell in order else -1)
    # The longest cell so far may be the next one's length.
    longest = max((line["seconds"] for line in lines.values()), default=CELL_SECONDS)
    step.is_recorded = True
    for number, cell in enumerate(todo):
        # The first one always runs: a cell that takes more than an hour would never be run otherwise.
        if number and time.monotonic() - start + longest > TIER_SECONDS:
            step.finished = False
            return
        found = run(step, *cell)
        if found is None:
            step.finished = False
            return
        step.passed, step.failed = step.passed + found["passed"], step.failed + found["failed"]
        longest = max(longest, found["seconds"])
        if commit is not None and commit == clean_commit():
            record({"commit": commit, "tier": step.name, **found})
    if not todo:
        step.print("every cell has passed on this commit")
        step.passed = len(passed)


# The scenarios in virtual machines, the shortest first. One at a time: an emulated computer uses all cores.
MACHINES = [("debian-12", scenario) for scenario in ("secure_boot", "kernel_update", "reboot")]


def scenarios_on(cells: Sequence[tuple[str, str]]) -> Callable[[Step], None]:
    """Return the work of running scenarios on distributions."""
    return functools.partial(run_cells, cells=cells, names=("distribution", "scenario"), run=run_scenario)


# Test runs that do not fit into the default run, by name.
TIERS: dict[str, list[tuple[str, Callable[[Step], None]]]] = {
    "virtual-machine": [("virtual-machine", scenarios_on(MACHINES))],
    "proof": [("proof", molecule)],
    "roles": [("roles", molecule)],
    "cluster": [("cluster", molecule)],
    "distro_packages": [("distro_packages", molecule)],
    "first_boot": [("first_boot", molecule)],
    "faults-long": [
        ("faults-long", functools.partial(molecule, scenario="drift", FAULTS="all")),
        ("faults-long-undo", functools.partial(molecule, scenario="undo", FAULTS="all")),
    ],
    "interruptions": [("interruptions", functools.partial(molecule, scenario="interrupted", INTERRUPT="all"))],
    "ansible-core": [("ansible-core", pytest("tests/ansible_core"))],
    "collection": [("collection", pytest("tests/collection"))],
    "browser": [("browser", pytest("tests/browser"))],
    "desktop": [("desktop", molecule)],
    "component": [("component", component)],
    "hgx": [("hgx", molecule)],
    "adopt": [("adopt", molecule)],
    "cut_lines": [("cut_lines", molecule)],
    "docs": [("docs", documents)],
    "fallback": [("fallback", molecule)],
    "locks": [("locks", locks)],
    "shared_host": [("shared_host", molecule)],
    "slurm": [("slurm", molecule)],
    "mutation": [
        (
            "mutation",
            functools.partial(run_cells, cells=[(area,) for area in areas.AREAS], names=("area",), run=run_area),
        )
    ],
    "examples": [("examples", molecule)],
    "catalog": [
        ("catalog", catalog),
        ("new_release", pytest("tests/new_release")),
        ("processors", functools.partial(frameworks, tests=("tests/processors",))),
    ],
    "distributions": [("distributions", scenarios_on(distributions.CELLS))],
    "el_shape": [("el_shape", scenarios_on(distributions.SHAPE_CELLS))],
}


# What --fast runs besides lint and unit tests, and what can be named like a scenario.
FAST: dict[str, Callable[[Step], None]] = {"field": field_reports}


def scenarios() -> list[str]:
    """Return the names of all Molecule scenarios."""
    return sorted(path.parent.name for path in PROJECT.glob("molecule/*/molecule.yml"))


def by_default() -> list[str]:
    """Return the names of the scenarios that are in no tier, LONGEST first."""
    in_tiers = {name for tier in TIERS.values() for name, _ in tier} | {name for _, name in MACHINES}
    names = [name for name in scenarios() if name not in in_tiers]
    return [*LONGEST, *(name for name in names if name not in LONGEST)]


def run_steps(work: Sequence[tuple[str, Callable[[Step], None]]], jobs: int) -> list[Step]:
    """Run the steps, `jobs` of them at a time, and return them in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(Step.run, [Step(name, function) for name, function in work]))


def minutes(seconds: float) -> str:
    """Return a duration as "3 min 12.5 s"."""
    return f"{int(seconds // 60)} min {seconds % 60:4.1f} s"


def print_summary(steps: Sequence[Step], seconds: float) -> None:
    """Print the table of steps, every skip with its reason, every failed step's error lines, and the totals."""
    rows = [["step", "wall time", "passed", "failed", "skipped"]]
    rows += [[s.name, minutes(s.seconds), str(s.passed), str(s.failed), str(len(s.skipped))] for s in steps]
    print("", *text_table([*rows, ["all", minutes(seconds), "", "", ""]], numbers_from=1), sep="\n")
    for step in steps:
        for reason in step.skipped:
            print(f"skipped: {step.name}: {reason}")
    for step in steps:
        for line in step.error_lines() if step.failed else []:
            print(f"failed: {step.name}: {line}")
    passed, failed, skipped = totals(steps)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)


def totals(steps: Sequence[Step]) -> tuple[int, int, int]:
    """Return how many tests passed, failed and were skipped."""
    skipped = sum(len(step.skipped) for step in steps)
    return sum(step.passed for step in steps), sum(step.failed for step in steps), skipped


def clean_commit() -> str | None:
    """Return the checked-out commit, or None if files other than the ledger differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=PROJECT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{LEDGER.relative_to(PROJECT)}")
    return None if changed else git("rev-parse", "HEAD")


def ledger_lines() -> list[dict[str, Any]]:
    """Return the lines of the ledger, the oldest first."""
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


def record(line: dict[str, Any]) -> None:
    """Add a line with today's date to the ledger."""
    with LEDGER.open("a") as stream:
        stream.write(json.dumps({"date": datetime.date.today().isoformat(), **line}) + "\n")


def list_tiers() -> None:
    """Print each tier with its last line of the ledger."""
    last = {line["tier"]: line for line in ledger_lines()}
    for tier in TIERS:
        print(f"{tier}: {json.dumps(last[tier]) if tier in last else 'never completed'}")


def run_tier(tier: str, jobs: int) -> list[Step]:
    """Run a tier and add its line to the ledger if it is finished and the tested commit is known."""
    commit, start = clean_commit(), time.monotonic()
    if commit is None:
        print("script/test: there are uncommitted changes, so this run will not be added to tests/ledger.jsonl")
    steps = run_steps(TIERS[tier], jobs)
    if not all(step.finished for step in steps):
        print(f"script/test: {tier} is not finished; the same command continues where it ended")
        return steps
    if commit is not None and commit == clean_commit() and not any(step.is_recorded for step in steps):
        counts = dict(zip(("passed", "failed", "skipped"), totals(steps), strict=True))
        record({"commit": commit, "tier": tier, **counts, "seconds": round(time.monotonic() - start)})
    return steps


def mistakes(options: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options."""
    found = []
    known = [*FAST, *scenarios()]
    if unknown := [name for name in options.names if name not in known]:
        found.append(f"unknown scenario {', '.join(unknown)}; expected some of {', '.join(known)}")
    if options.long and options.long not in TIERS:
        found.append(f"unknown tier {options.long}; expected one of {', '.join(TIERS)}")
    if options.jobs < 1:
        found.append(f"--jobs {options.jobs}: expected 1 or more")
    return found


def parse() -> argparse.Namespace:
    """Return the options; the program ends with status 2 if one of them is wrong."""
    parser = command_line.Parser(
        "script/test", mistakes, description="Run lint, unit tests and Molecule scenarios, and count their results."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="run these Molecule scenarios only, or field")
    parser.add_argument("--fast", action="store_true", help="run lint, unit tests and the reports of tests/field only")
    parser.add_argument(
        "--long", nargs="?", const="", metavar="TIER", help="run this tier; without a name, list the tiers"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(CORES, 2),
        metavar="N",
        help="scenarios at a time (default: 2, on one core 1)",
    )
    return parser.parse_args()


def main() -> int:
    """Run what the options select and return the exit status: 1 if a test failed."""
    options = parse()
    if options.long == "":
        list_tiers()
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    if options.long:
        steps = run_tier(options.long, options.jobs)
    elif options.names:
        steps = run_steps([(name, FAST.get(name, molecule)) for name in options.names], options.jobs)
    else:
        # Whether a clone works from elsewhere, and whether a page of a report does in a browser, take seconds to test;
        # the rest of tests/collection and tests/browser are tiers.
        # With --fast, the tests that need a framework are among those that are skipped, and counted.
        units = ("tests/unit", "tests/collection/test_clone.py", "tests/browser/test_smoke.py")
        units += () if options.fast else ("-m", "not frameworks")
        steps = run_steps([("unit", pytest(*units)), ("lint", lint), *FAST.items()], 2)
        if not options.fast:
            steps += run_steps([("frameworks", frameworks), *((name, molecule) for name in by_default())], options.jobs)
    print_summary(steps, time.monotonic() - start)
    return 1 if totals(steps)[1] else 0


if __name__ == "__main__":
    command_line.run(main)
