"""What script/test runs: lint, unit tests and Molecule scenarios, each timed, the tests counted.

Runs on the controller with the test environment; see script/test for the words it takes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
BIN = PROJECT / ".venv" / "bin"
RESULTS = PROJECT / ".cache" / "test-results"
MOLECULE = PROJECT / "molecule"


@dataclass
class Step:
    """One line of the closing table: what ran, how long it took, and how many tests passed, failed or were skipped."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0


def scenarios() -> dict[str, bool]:
    """{scenario: whether it is part of the default run}. A file named LONG in its folder keeps it for --long."""
    found = sorted(path.parent for path in MOLECULE.glob("*/molecule.yml"))
    return {folder.name: not (folder / "LONG").exists() for folder in found}


def environment() -> dict[str, str]:
    """The environment's programs come first (Molecule and ansible-lint call others by name)."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    # Molecule's ephemeral folders stay inside the checkout, so that two checkouts do not share state.
    return {
        **os.environ,
        "PATH": path,
        "MOLECULE_EPHEMERAL_DIRECTORY_BASE": str(PROJECT / ".cache"),
        "NO_COLOR": "1",
    }


def run(*command: str, extra: dict[str, str] | None = None) -> bool:
    """Runs a command of the environment in the project's folder, its output passed through."""
    return subprocess.run(command, cwd=PROJECT, env={**environment(), **(extra or {})}).returncode == 0


def count_junit(step: Step, report: Path) -> None:
    """Adds pytest's own counts; a report without a single test counts as a failure."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    if suite is None or int(suite.get("tests", "0")) == 0:
        step.failed += 1
        return
    failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    skips = suite.findall(".//skipped")
    step.failed += failed
    step.passed += int(suite.get("tests", "0")) - failed - len(skips)
    step.skipped += [f"{step.name}: {skip.get('message', 'no reason given')}" for skip in skips]


LINTERS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("yamllint", "--strict", "."),
    ("ansible-lint", "--offline", "--strict"),
)


def lint() -> Step:
    step = Step("lint")
    for command in LINTERS:
        print(f"== {' '.join(command)}", flush=True)
        good = run(*command)
        step.passed, step.failed = step.passed + good, step.failed + (not good)
    return step


def unit() -> Step:
    step, report = Step("unit"), RESULTS / "unit.xml"
    report.unlink(missing_ok=True)
    good = run("pytest", "tests/unit", f"--junit-xml={report}", "-ra")
    if report.exists():
        count_junit(step, report)
    if not good and step.failed == 0:
        step.failed = 1
    return step


def scenario(name: str) -> Step:
    """`molecule test`: counts as one test, plus the tests of the host suite that its verify step ran."""
    step, report = Step(name), RESULTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    good = run("molecule", "test", "--scenario-name", name, extra={"GPUHOST_HOST_SUITE_REPORT": str(report)})
    step.passed, step.failed = int(good), int(not good)
    if report.exists():
        count_junit(step, report)
    elif good:
        print(
            f"{name}: molecule succeeded without running the host suite, which counts as a failure",
            flush=True,
        )
        step.failed += 1
    return step


def choose(arguments: argparse.Namespace) -> list[tuple[str, Callable[[], Step]]]:
    known = scenarios()
    strangers = [name for name in arguments.names if name not in known]
    if strangers:
        raise SystemExit(f"script/test: no scenario named {', '.join(strangers)}; there are: {', '.join(known)}")
    chosen = arguments.names or [name for name, default in known.items() if default or arguments.long]
    steps: list[tuple[str, Callable[[], Step]]] = [] if arguments.names else [("lint", lint), ("unit", unit)]
    if not arguments.fast:
        steps += [(name, lambda name=name: scenario(name)) for name in chosen]  # type: ignore[misc]
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/test", description="Runs what must pass, and says what it took.")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="only these Molecule scenarios")
    parser.add_argument("--fast", action="store_true", help="lint and unit tests alone")
    parser.add_argument("--long", action="store_true", help="also the scenarios that do not fit the default run")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    done = []
    for name, work in choose(arguments):
        print(f"\n=== {name} ===", flush=True)
        start = time.monotonic()
        step = work()
        step.seconds = time.monotonic() - start
        done.append(step)
    return report(done)


def report(steps: list[Step]) -> int:
    """Prints the table, every skip with its reason, and the closing line; returns the exit status."""
    width = shutil.get_terminal_size().columns
    skips = [skip for step in steps for skip in step.skipped]
    print(f"\n{'step':<20}{'wall time':>12}{'passed':>9}{'failed':>9}{'skipped':>9}")
    for step in steps:
        wall = f"{int(step.seconds // 60)} min {step.seconds % 60:4.1f} s"
        print(f"{step.name:<20}{wall:>12}{step.passed:>9}{step.failed:>9}{len(step.skipped):>9}")
    for skip in skips:
        print(f"skipped: {skip}"[: max(width, 200)])
    failed = sum(step.failed for step in steps)
    print(f"{sum(step.passed for step in steps)} passed, {failed} failed, {len(skips)} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
