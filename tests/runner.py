"""What script/test runs: lint, unit tests and Molecule scenarios, each timed, the tests counted.

Runs on the controller with the test environment; see script/test for the words it takes. Steps that run side by side
print what they say when they end, each as a whole; it is kept in .cache/test-results, too.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

PROJECT = Path(__file__).resolve().parents[1]
BIN = PROJECT / ".venv" / "bin"
RESULTS = PROJECT / ".cache" / "test-results"
COMPILED = PROJECT / ".cache" / "compiled"
MOLECULE = PROJECT / "molecule"
GIB = 2**30
# What one scenario takes at its peak, rounded up: memory (two hosts that train), disk (a host's CUDA and TensorFlow;
# of `proof`, two hosts with both frameworks).
SCENARIO_MEMORY, SCENARIO_DISK, DISK_OF = 4 * GIB, 12 * GIB, {"proof": 32 * GIB}
# About how long scenarios take, two at a time on two cores: those that take longest start first. One that is not listed
# comes before all.
MINUTES = {"proof": 9, "distro_packages": 8, "interrupted": 6, "undo": 4, "roles": 4, "drift": 4, "default": 3}
MINUTES |= {"upgrade": 3, "refusals": 2, "teardown": 2, "reboot": 15}


@dataclass
class Step:
    """One line of the closing table: what ran, how long it took, and how many tests passed, failed or were skipped."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: TextIO | None = None  # where its commands print; None: where the runner prints

    def say(self, text: str) -> None:
        print(text, file=self.output, flush=True)


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
        # Compiled modules are kept, outside the sources, even where the caller's Python keeps none: some hundred
        # processes load ansible-core, and compiling it takes each one as long as what it is started for.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(COMPILED),
        "NO_COLOR": "1",
    }


def run(step: Step, *command: str, extra: dict[str, str] | None = None) -> bool:
    """Runs a command of the environment in the project's folder; it prints where its step does."""
    errors = None if step.output is None else subprocess.STDOUT
    settings = {**environment(), **(extra or {})}
    return subprocess.run(command, cwd=PROJECT, env=settings, stdout=step.output, stderr=errors).returncode == 0


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


def lint(step: Step) -> None:
    for command in LINTERS:
        step.say(f"== {' '.join(command)}")
        good = run(step, *command)
        step.passed, step.failed = step.passed + good, step.failed + (not good)


def unit(step: Step) -> None:
    report = RESULTS / "unit.xml"
    report.unlink(missing_ok=True)
    # One more than cores, for some tests wait; a process that has nothing left takes over tests of another.
    spread = (f"--numprocesses={min(cores() + 1, 8)}", "--dist=worksteal")
    good = run(step, "pytest", "tests/unit", *spread, f"--junit-xml={report}", "-ra")
    if report.exists():
        count_junit(step, report)
    if not good and step.failed == 0:
        step.failed = 1


def scenario(step: Step) -> None:
    """`molecule test`: counts as one test, plus the tests of the host suite that its verify step ran."""
    report = RESULTS / f"{step.name}.xml"
    report.unlink(missing_ok=True)
    # Reports are named after the second that their run began in: two scenarios have a folder each.
    own = {"GPUHOST_HOST_SUITE_REPORT": str(report), "GPUHOST_REPORTS": str(RESULTS / "reports" / step.name)}
    good = run(step, "molecule", "test", "--scenario-name", step.name, extra=own)
    step.passed, step.failed = int(good), int(not good)
    if report.exists():
        count_junit(step, report)
    elif good:
        step.say(f"{step.name}: molecule succeeded without running the host suite, which counts as a failure")
        step.failed += 1


# How pytest, Ansible, Molecule and what they call begin a line that says what went wrong.
COMPLAINT = re.compile(r"(fatal: |FAILED |ERROR|CRITICAL|Traceback)")


def complaints(name: str, longest: int = 30) -> list[str]:
    """The lines of a step's log that say what went wrong, each with what is indented under it; else the last lines.

    The log of a step that failed long before the end is far away from where a reader looks, or cut off.
    """
    log = RESULTS / f"{name}.log"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line] if log.exists() else []
    told: list[str] = []
    belongs = False
    for line in lines:
        belongs = bool(COMPLAINT.match(line)) or (belongs and line.startswith(" "))
        told += [line] if belongs else []
    return (told or lines)[-longest:]


Work = Callable[[Step], None]


def perform(step: Step, work: Work) -> Step:
    """Does a step's work, timed. A program that is not there or a report that is cut off fails its step alone."""
    start = time.monotonic()
    try:
        work(step)
    except (OSError, ElementTree.ParseError):
        step.say(traceback.format_exc())
        step.failed += 1
    step.seconds = time.monotonic() - start
    return step


def one_by_one(steps: list[tuple[str, Work]]) -> Iterator[Step]:
    """Does them in their order; what they print is seen as they print it, and not kept."""
    for name, work in steps:
        (RESULTS / f"{name}.log").unlink(missing_ok=True)
        print(f"\n=== {name} ===", flush=True)
        yield perform(Step(name), work)


def side_by_side(steps: list[tuple[str, Work]], jobs: int) -> Iterator[Step]:
    """Does `jobs` of them at a time, in their order; each one's output is printed when it ends."""
    printing = threading.Lock()

    def record(name: str, work: Work) -> Step:
        with printing:
            print(f"=== {name} has begun ===", flush=True)
        with (RESULTS / f"{name}.log").open("w+", errors="replace") as output:
            step = perform(Step(name, output=output), work)
        step.output = None
        return step

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(record, name, work) for name, work in steps]):
            step = future.result()
            ended = f"failed ({step.failed})" if step.failed else "passed"
            with printing, (RESULTS / f"{step.name}.log").open(errors="replace") as output:
                print(f"\n=== {step.name} ===", flush=True)
                shutil.copyfileobj(output, sys.stdout)
                print(f"=== {step.name} {ended}, {wall(step.seconds)} ===", flush=True)
            yield step


def in_groups(groups: list[tuple[list[tuple[str, Work]], int]]) -> list[Step]:
    """The steps that were done, in the order of their names' groups; a group begins when the one before has ended."""
    done = {}
    for steps, jobs in groups:
        together = jobs > 1 and len(steps) > 1
        done.update({step.name: step for step in (side_by_side(steps, jobs) if together else one_by_one(steps))})
    return [done[name] for steps, _ in groups for name, _ in steps]


def fitting_jobs(cores: int, memory: int, disk: int, names: Sequence[str]) -> int:
    """How many of these scenarios this machine (bytes free) runs at a time when nobody says: two, or one where they do
    not fit, whichever two it is."""
    two = sum(sorted(DISK_OF.get(name, SCENARIO_DISK) for name in names)[-2:])
    return max(1, min(2, cores, memory // SCENARIO_MEMORY, 1 + (disk >= two)))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def free_memory() -> int:
    """Bytes that programs can still have; none where the kernel does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def free_disk() -> int:
    """Bytes free where Docker keeps containers by default."""
    kept = Path("/var/lib/docker")
    return shutil.disk_usage(kept if kept.exists() else "/").free


def choose(arguments: argparse.Namespace) -> list[tuple[list[tuple[str, Work]], int]]:
    """What to do: groups of steps, each with how many of them may run at a time."""
    known = scenarios()
    strangers = [name for name in arguments.names if name not in known]
    if strangers:
        raise SystemExit(f"script/test: no scenario named {', '.join(strangers)}; there are: {', '.join(known)}")
    chosen = arguments.names or [name for name, default in known.items() if default or arguments.long]
    groups: list[tuple[list[tuple[str, Work]], int]] = []
    if not arguments.names:
        groups.append(([("unit", unit), ("lint", lint)], 2))
    if not arguments.fast:
        longest = sorted(chosen, key=lambda name: -MINUTES.get(name, 1000))
        jobs = arguments.jobs or fitting_jobs(cores(), free_memory(), free_disk(), chosen)
        groups.append(([(name, scenario) for name in longest], jobs))
    return groups


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/test", description="Runs what must pass, and says what it took.")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help="only these Molecule scenarios")
    parser.add_argument("--fast", action="store_true", help="lint and unit tests alone")
    parser.add_argument("--long", action="store_true", help="also the scenarios that do not fit the default run")
    parser.add_argument(
        "--jobs", type=at_least_one, metavar="N", help="scenarios at a time (default: 2 where they fit, else 1)"
    )
    arguments = parser.parse_args()
    groups = choose(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    # Modules that earlier tests wrote to temporary folders; such a folder is never used again.
    shutil.rmtree(COMPILED / Path(tempfile.gettempdir()).relative_to("/"), ignore_errors=True)
    start = time.monotonic()
    steps = in_groups(groups)
    return report(steps, time.monotonic() - start)


def at_least_one(text: str) -> int:
    """A number of jobs; ValueError for less than one."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def wall(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:4.1f} s"


def report(steps: list[Step], seconds: float) -> int:
    """Prints the table, every skip with its reason, why steps failed, and the closing line; returns the exit status.

    `seconds` is what all of it took: less than the sum of the steps that ran side by side.
    """
    width = shutil.get_terminal_size().columns
    skips = [skip for step in steps for skip in step.skipped]
    print(f"\n{'step':<20}{'wall time':>14}{'passed':>9}{'failed':>9}{'skipped':>9}")
    for step in steps:
        print(f"{step.name:<20}{wall(step.seconds):>14}{step.passed:>9}{step.failed:>9}{len(step.skipped):>9}")
    for skip in skips:
        print(f"skipped: {skip}"[: max(width, 200)])
    failed = sum(step.failed for step in steps)
    for step in steps:
        for line in complaints(step.name) if step.failed else []:
            print(f"failed: {step.name}: {line}")
    print(f"{'all':<20}{wall(seconds):>14}")
    print(f"{sum(step.passed for step in steps)} passed, {failed} failed, {len(skips)} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
