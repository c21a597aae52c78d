"""Change the code in one place at a time, and count how many of these mutants the tests notice.

An equal number of mutants is drawn from each area, by a seed. Each is tested in a copy of the checkout: first with the
test files that are nearest to the module, then with the area's tests. It is killed if a test fails or does not end.
Results are kept below .cache/mutation until a file of the checkout changes, so that a run which was stopped, or has
used up its minutes, goes on where it ended.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import yaml

from tests.mutation.areas import AREAS, Area
from tests.mutation.operators import Mutant, mutants

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache/mutation"
ACCEPTED = Path(__file__).with_name("survivors.yml")
# What may change without making results obsolete.
IGNORED = ("tests/ledger.jsonl", "tests/mutation/survivors.yml", "docs/", "changelogs/")
REQUIRED = 0.9
CORES = len(os.sched_getaffinity(0))


def sample(areas: list[str], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Draw the mutants: of each area the same number, or all where it has fewer."""
    drawn = []
    for name in areas:
        every = [m for path in AREAS[name].sources(PROJECT) for m in mutants(path, (PROJECT / path).read_bytes())]
        chosen = random.Random(f"{seed} {name}").sample(every, min(count // len(areas), len(every)))
        drawn += [(name, mutant) for mutant in chosen]
    return drawn


NEAREST = 3  # test files of a module: more would take longer than the area's tests, which follow


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the dotted names that a test file imports: modules, and what it takes from them."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))

    return frozenset(names())


def nearest_tests(path: str) -> list[str]:
    """Return the test files that are most likely to notice a change of a module; none for one that no test imports.

    That is the file at the module's place below tests/unit (plugins/x/y.py: x/test_y.py, roles/x/files/y.py:
    roles/x/test_y.py), or those that import the module, of which the ones in the nearest folders.
    """
    place = Path("tests/unit", path.removeprefix("plugins/").replace("/files/", "/"))
    own = place.with_name(f"test_{place.name}")
    if (PROJECT / own).exists():
        return [str(own)]
    module = "." + path.removesuffix(".py").replace("/", ".")
    found = [
        str(test.relative_to(PROJECT))
        for test in PROJECT.glob("tests/unit/**/test_*.py")
        if any(name.endswith(module) for name in imported(test))
    ]
    found.sort(key=lambda test: (-len(os.path.commonpath([test, str(own)])), test))
    return found[:NEAREST]


NAMESPACE = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
# Code that removes files may remove others when it is changed: it can write to two directories of the tests alone.
SANDBOX = """
for mount in $(cut -d ' ' -f 2 /proc/self/mounts); do
  case "$mount" in /dev* | /proc* | /sys*) ;; *) mount -n -o remount,bind,ro "$mount" 2>/dev/null ;; esac
done
for own in "$TMPDIR" "$PWD/.cache"; do
  mount -n --bind "$own" "$own" && mount -n -o remount,bind,rw "$own" || exit 9
done
mount -n -t tmpfs none /var/tmp || exit 9  # for programs that are started without TMPDIR
if touch read-only 2>/dev/null; then echo "the checkout is not read-only" >&2; exit 9; fi
exec "$@"
"""


class Copy:
    """A copy of the checkout in which one mutant at a time is tested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder.with_name(f"{folder.name}.scratch")

    def passes(self, tests: list[str], limit: float | None = None, sandbox: bool = True) -> tuple[bool, str]:
        """Run tests until the first failure, and return whether all passed, and pytest's output.

        sandbox: without it compiled modules are written.
        """
        words = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ}
        if sandbox:
            for directory in (self.scratch, self.folder / ".cache"):
                directory.mkdir(exist_ok=True)
            environment |= {"TMPDIR": str(self.scratch), "HOME": str(self.scratch), "PYTHONDONTWRITEBYTECODE": "1"}
            words = [*NAMESPACE, "sh", "-c", SANDBOX, "sandbox", *words]
        with subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return False, "timeout"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        # 1: a test failed; 2: a test file could not be imported.
        if process.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest {' '.join(tests)} ended with status {process.returncode}:\n{output}")
        return process.returncode == 0, output

    def test(self, area: Area, mutant: Mutant, limit: float) -> str:
        """Return how a mutant ended: killed, timeout or survived."""
        path = self.folder / mutant.path
        source = path.read_bytes()
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        try:
            path.write_bytes(mutant.apply(source))
            for tests in (nearest_tests(mutant.path), [f"tests/unit/{name}" for name in area.tests]):
                passed, output = self.passes(tests, limit) if tests else (True, "")
                if not passed:
                    return "timeout" if output == "timeout" else "killed"
            return "survived"
        finally:
            path.write_bytes(source)


def checkout() -> list[str]:
    """Return the files of the checkout that git does not ignore."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(words, cwd=PROJECT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in names if name not in ("", ".venv") and os.path.lexists(PROJECT / name))


def digest(names: list[str]) -> str:
    """Return a hash of the files that decide the results."""
    hashed = hashlib.sha256()
    for name in names:
        path = PROJECT / name
        if not name.startswith(IGNORED):
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            hashed.update(f"{name} {len(content)}\n".encode() + content)
    return hashed.hexdigest()[:16]


def first_copy(names: list[str], folder: Path) -> Copy:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, folder / name, follow_symlinks=False)
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    return Copy(folder)


def limits(copy: Copy, areas: set[str]) -> dict[str, float]:
    """Run the unchanged tests of each area, and return how many seconds a mutant may take."""
    found = {}
    for name in sorted(areas):
        own = {test for path in AREAS[name].sources(PROJECT) for test in nearest_tests(path)}
        tests = [*(f"tests/unit/{test}" for test in AREAS[name].tests), *sorted(own)]
        copy.passes(tests, sandbox=False)  # compiles all modules, so that a mutant costs one
        start = time.monotonic()
        passed, output = copy.passes(tests)
        if not passed:
            raise SystemExit(f"the tests of {name} fail without a mutant:\n{output}")
        found[name] = 20 + 5 * (time.monotonic() - start)
        print(f"{name}: its tests pass; limit for a mutant {found[name]:.0f} s", flush=True)
    return found


def run(drawn: list[tuple[str, Mutant]], results: Path, names: list[str], minutes: float, jobs: int) -> None:
    """Test the mutants that have no result yet, until the minutes are over."""
    start, known = time.monotonic(), {entry["mutant"] for entry in read(results)}
    todo = [(area, mutant) for area, mutant in drawn if str(mutant) not in known]
    if not todo:
        return
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        os.chmod(scratch, 0o755)  # a check runs a program as an unprivileged user
        copies: SimpleQueue[Copy] = SimpleQueue()
        first = first_copy(names, Path(scratch, "0"))
        allowed = limits(first, {area for area, _ in todo})
        copies.put(first)
        for number in range(1, jobs):
            # With the compiled modules that the first tests left.
            shutil.copytree(first.folder, Path(scratch, str(number)), symlinks=True)
            copies.put(Copy(Path(scratch, str(number))))
        record(results, {"mutant": "", "seconds": time.monotonic() - start})

        def work(entry: tuple[str, Mutant]) -> None:
            if time.monotonic() - start > minutes * 60:
                return
            area, mutant = entry
            copy, began = copies.get(), time.monotonic()
            try:
                result = copy.test(AREAS[area], mutant, allowed[area])
            finally:
                copies.put(copy)
            seconds = (time.monotonic() - began) / jobs
            record(results, {"mutant": str(mutant), "area": area, "result": result, "seconds": seconds})
            print(f"{area}: {result}: {mutant.path}: {mutant.function}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, todo))


def read(results: Path) -> list[dict]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def record(results: Path, entry: dict) -> None:
    with results.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


def accepted() -> dict[tuple[str, str, str, str], str]:
    """Return the reasons of the survivors that are known, by mutant."""
    entries = yaml.safe_load(ACCEPTED.read_text()) or []
    return {(e["file"], e["function"], e["was"], e["becomes"]): e["reason"] for e in entries}


def report(drawn: list[tuple[str, Mutant]], entries: list[dict]) -> dict:
    """Print the survivors as diffs and the counts of each area, and return the counts."""
    results, reasons = {entry["mutant"]: entry.get("result") for entry in entries}, accepted()
    survived = [mutant for _, mutant in drawn if results.get(str(mutant)) == "survived"]
    skipped = []
    for mutant in survived:
        source = (PROJECT / mutant.path).read_bytes()
        reason = reasons.get(mutant.key(source), "not in tests/mutation/survivors.yml")
        skipped.append(f"{mutant.path}: {mutant.function}: {mutant.key(source)[3]}: {reason}")
        print("\n".join(["", *mutant.diff(source), f"survived: {reason}"]))
    print()
    for area in dict.fromkeys(area for area, _ in drawn):
        ended = Counter(results.get(str(mutant), "not tested yet") for name, mutant in drawn if name == area)
        print(f"{area}: " + ", ".join(f"{count} {result}" for result, count in sorted(ended.items())))
    done = sum(str(mutant) in results for _, mutant in drawn)
    killed = done - len(survived)
    print(f"{killed} of {done} mutants killed ({killed / done:.1%})" if done else "no mutant was tested")
    return {
        "finished": done == len(drawn),
        "killed": killed,
        "survived": skipped,
        "enough": bool(drawn) and killed >= REQUIRED * len(drawn),
        "seconds": round(sum(entry["seconds"] for entry in entries)),
    }


def main() -> int:
    """Return 0 if enough mutants were killed, 1 if not, 3 if the run is not finished."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)} (default: all)")
    parser.add_argument("--mutants", type=int, default=500, metavar="N", help="mutants to draw (default: 500)")
    parser.add_argument("--seed", type=int, metavar="N", help="default: a number that the files of the checkout give")
    parser.add_argument("--minutes", type=float, default=55, metavar="N", help="start no mutant later than this")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="default: the cores"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    options = parser.parse_args()
    if unknown := [name for name in options.areas if name not in AREAS]:
        parser.error(f"unknown area {', '.join(unknown)}; expected some of {', '.join(AREAS)}")
    names = checkout()
    tested = digest(names)
    seed = int(tested[:6], 16) if options.seed is None else options.seed
    drawn = sample(options.areas or list(AREAS), options.mutants, seed)
    CACHE.mkdir(parents=True, exist_ok=True)
    results = CACHE / f"{tested}.jsonl"
    print(f"{len(drawn)} mutants, seed {seed}; results in {results.relative_to(PROJECT)}", flush=True)
    run(drawn, results, names, options.minutes, options.jobs)
    counts = {"seed": seed, **report(drawn, read(results))}
    if options.json:
        options.json.write_text(json.dumps(counts))
    if not counts["finished"]:
        print("not finished: run the same command again")
        return 3
    return 0 if counts["enough"] else 1


if __name__ == "__main__":
    sys.exit(main())
