"""Try reports of hosts for script/field: each is right, or what differs is printed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

from tests.field.asking import ASK, Answer, differences
from tests.field.options import REPORTS, parser

PROJECT = Path(__file__).parents[2]
ALWAYS = {"source", "says", "kind"}
ASKED = ALWAYS | {"ask", "right"}
OPTIONAL = {"host", "options", "request", "open"}
SHOWN_ELSEWHERE = ALWAYS | {"shown_by"}
RIGHT = {"ok", "problems", "warnings", "checks", "says", "never"}


@dataclasses.dataclass(frozen=True)
class Tried:
    """A report with its answer, and what is wrong with either; nothing where it is right."""

    path: Path
    report: Mapping[str, Any]
    answer: Answer | None
    wrong: Sequence[str]

    @property
    def reason(self) -> str:
        """Why the product has another answer than the right one, where the report says so."""
        return str(self.report.get("open", ""))

    def accepts(self, other: Tried) -> bool:
        """Return whether the answer to another report is right for this one, too: it cannot tell them apart."""
        if not (self.answer and other.answer) or self.report["ask"] != other.report["ask"]:
            return False
        return self.answer.text != other.answer.text and not differences(self.report["right"], other.answer)


def mistakes(report: object) -> list[str]:
    """Return what is wrong with the form of a report."""
    if not isinstance(report, dict):
        return ["expected a mapping with source, says, kind, ask and right"]
    needed = SHOWN_ELSEWHERE if "shown_by" in report else ASKED
    known = needed if "shown_by" in report else needed | OPTIONAL
    found = [f"{name} is missing" for name in sorted(needed - report.keys())]
    found += [f"{name}: no such key; known are {', '.join(sorted(known))}" for name in sorted(report.keys() - known)]
    if found or "shown_by" in report:
        return found
    if report["ask"] not in ASK:
        found.append(f"ask: {report['ask']}; expected one of {', '.join(ASK)}")
    right = report["right"]
    unknown = sorted(right.keys() - RIGHT)
    found += [f"right: {name}: no such key; known are {', '.join(sorted(RIGHT))}" for name in unknown]
    if not isinstance(right.get("ok"), bool):
        found.append("right: ok is missing")
    if not right.keys() - {"ok", "never"}:
        found.append("right: `ok` alone is no answer; expected a code, a check, or what is said")
    return found


def attempt(path: Path) -> Tried:
    """Lay out the host of a report, ask, and compare the answer with the right one."""
    try:
        report = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        return Tried(path, {}, None, [str(error)])
    if wrong := mistakes(report):
        return Tried(path, report if isinstance(report, dict) else {}, None, wrong)
    if test := report.get("shown_by"):
        return Tried(path, report, None, [] if _exists(test) else [f"shown_by: there is no {test}"])
    if capture := (report.get("host") or {}).get("capture"):
        report["host"]["capture"] = str(path.parent / capture)
    with tempfile.TemporaryDirectory(prefix="field-") as folder:
        try:
            answer = ASK[report["ask"]](report, Path(folder))
        except Exception as error:  # noqa: BLE001 - a report that cannot be tried is not to hide the others
            return Tried(path, report, None, [f"{type(error).__name__}: {error}"])
    return Tried(path, report, answer, differences(report["right"], answer))


def _exists(test: str) -> bool:
    """Return whether a test is there: FILE::FUNCTION, or the folder of a scenario."""
    file, _, name = test.partition("::")
    path = PROJECT / file
    return path.is_dir() if not name else path.is_file() and bool(re.search(rf"^def {name}\(", path.read_text(), re.M))


def main() -> int:
    """Run the command line; return the exit status."""
    options = parser().parse_args()
    paths = options.reports or sorted(REPORTS.glob("*.yml"))
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), 8)) as pool:
        results = list(pool.map(attempt, paths))
    right, still_open, failed = [], [], []
    for tried in results:
        name = tried.path.stem
        others = [other.path.stem for other in results if other is not tried and tried.accepts(other)]
        wrong = [*tried.wrong, *(f"the answer to {other} is right for it, too" for other in others)]
        if tried.reason and not wrong:
            wrong = [f"it is right, but has `open: {tried.reason}`"]
        elif tried.reason and tried.answer:
            still_open.append(f"{name}: {tried.reason}")
            wrong = []
        else:
            right += [] if wrong else [name]
        if wrong:
            failed.append(name)
            print(f"FAILED {name}: {tried.report.get('says', '')}", *wrong, sep="\n  ")
        if options.answer and tried.answer:
            print(f"{name}:", *tried.answer.text.splitlines(), sep="\n  ")
    print(*(f"open: {text}" for text in still_open), sep="\n", end="\n" if still_open else "")
    if options.json:
        options.json.write_text(json.dumps({"right": right, "open": still_open, "failed": failed}))
    print(f"{len(results)} reports, {len(right)} right, {len(still_open)} open")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    command_line.run(main)
