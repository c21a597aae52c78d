"""The command line of script/bench."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

from benchmarks import cases, lab
from benchmarks.measure import Failed, say
from benchmarks.results import Options, Result, all_met, curves, document, table


def _mistakes(found: argparse.Namespace) -> list[str]:
    problems = [f"unknown case {name}: expected some of {', '.join(cases.CASES)}" for name in found.cases
                if name not in cases.CASES]  # fmt: skip
    problems += [f"--runs {found.runs}: expected 1 or more"] if found.runs < 1 else []
    problems += [f"--hosts {size!r}: expected numbers from 1 on, such as 1,5,20" for size in found.hosts.split(",")
                 if not (size.isascii() and size.isdigit() and int(size))]  # fmt: skip
    if found.peer and not found.peer.is_file():
        problems.append(f"--peer {found.peer}: no such file")
    if found.output and found.output.exists() and not found.output.is_dir():
        problems.append(f"--output {found.output}: expected a directory, found a file")
    return problems


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.Parser(
        "script/bench",
        _mistakes,
        description="Measure the figures of docs/dev/performance.md: medians of runs of whole processes, as ratios "
        "to a floor, and to another project's playbook, of the same run.",
        epilog="Exit status: 0 if all measured targets are met, 1 if one is missed, 2 after bad usage or if a measured "
        "command failed.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases.CASES)} (default: all)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each command (default: 5)")
    parser.add_argument("--hosts", default="1,5,20,50", metavar="N,N", help="sizes of the fleet (default: 1,5,20,50)")
    parser.add_argument(
        "--peer", type=Path, metavar="PLAYBOOK", help="a playbook for the group gpu_hosts to compare with"
    )
    parser.add_argument(
        "--peer-option",
        action="append",
        default=[],
        metavar="WORD",
        help="an option for the peer's playbook; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument(
        "--output", type=Path, metavar="DIRECTORY", help="write bench.json and the fleet's curves as SVG files to it"
    )
    parser.add_argument("--keep-lab", action="store_true", help="keep the containers for the next run")
    return parser.parse_args(arguments)


def measure(chosen: Sequence[str], options: Options) -> dict[str, Result]:
    """Run the cases and return their results. Raises Failed if a measured command fails."""
    results = {}
    for name in chosen:
        say(f"== {name}")
        cases.prepare(name)
        results[name] = cases.CASES[name](options)
    return results


def write(folder: Path, results: dict[str, Result]) -> None:
    """Write bench.json, and the curves if a fleet was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(document(results), indent=2) + "\n")
    if "fleet" in results:
        for name, text in curves(results["fleet"].figures).items():
            (folder / name).write_text(text)
    say(f"written to {folder}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the results, and return the exit status."""
    asked = _parse(arguments)
    chosen = cases.in_order(asked.cases)
    sizes = tuple(int(size) for size in asked.hosts.split(","))
    options = Options(asked.runs, sizes, asked.peer, tuple(asked.peer_option))
    try:
        try:
            results = measure(chosen, options)
        finally:
            if cases.NEEDS_LAB & set(chosen) and not asked.keep_lab:
                lab.lab("down")
    except Failed as failure:
        print(f"script/bench: {failure}", file=sys.stderr)
        return 2
    if asked.output:
        write(asked.output, results)
    print(json.dumps(document(results), indent=2) if asked.json else table(results))
    return 0 if all_met(results) else 1


if __name__ == "__main__":
    command_line.run(main)
