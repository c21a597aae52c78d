"""The options of script/field, which are read before anything is installed: imports the standard library alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

REPORTS = Path(__file__).parent / "reports"


def mistakes(options: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options."""
    return [f"{path}: no such file" for path in options.reports if not path.is_file()]


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    result = command_line.Parser(
        "script/field",
        mistakes,
        description="Try reports of hosts, YAML files as CONTRIBUTING.md describes them: right, or what differs.",
        epilog="The last line: N reports, N right, N open. Exit status: 0 each is right or open; 1 one is not, or one "
        "that is open is right, or none was tried; 2 bad usage.",
    )
    result.add_argument("reports", nargs="*", type=Path, metavar="FILE", help="a report (default: the project's)")
    result.add_argument("--answer", action="store_true", help="also print the whole answer to each report")
    result.add_argument("--json", type=Path, metavar="FILE", help="also write which reports are right to a file")
    return result


if __name__ == "__main__":
    command_line.run(parser().check)
