"""The options of script/catalog-check, which are read before anything is installed: imports no packages."""

from __future__ import annotations

import argparse

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

ARCHITECTURE, ARCHITECTURES = "x86_64", ("x86_64", "aarch64")
SOURCES = ("tensorflow", "pytorch", "pypi", "debian", "ubuntu", "nvidia")
# Of --deep; the last two are of it alone.
DEEP_SOURCES = ("tensorflow", "pytorch", "pypi", "debian", "wheels", "compilers")


def _mistakes(arguments: argparse.Namespace) -> list[str]:
    alone = [] if arguments.deep else sorted(set(arguments.only or ()) - set(SOURCES))
    return [f"{', '.join(alone)} need --deep"] if alone else []


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    result = command_line.Parser(
        "script/catalog-check",
        _mistakes,
        description="Compare catalog/ with the package index, the distributions' archives and NVIDIA's repositories.",
        epilog="Exit status: 0 nothing differs, 1 something differs, 2 bad usage, 3 nothing differs but a source could "
        "not be reached.",
    )
    result.add_argument(
        "--only",
        type=_sources,
        metavar="SOURCE[,SOURCE]",
        help=f"of {', '.join(SOURCES)} (default: all; of debian and ubuntu this machine's)",
    )
    result.add_argument(
        "--arch",
        default=ARCHITECTURE,
        choices=ARCHITECTURES,
        help="of which CPU architecture the entries are compared (default: %(default)s)",
    )
    result.add_argument("--json", action="store_true", help="print the findings as JSON")
    result.add_argument(
        "--deep",
        action="store_true",
        help="give a verdict on each entry: confirmed, contradicted, or taken on trust; reads wheels, compilers, "
        "apt's simulations, supported-gpus.json and pci.ids",
    )
    result.add_argument(
        "--wheels", type=int, default=8, metavar="N", help="with --deep: of how many releases (default: %(default)s)"
    )
    result.add_argument("--record", metavar="FILE", help="with --deep: write the shares of the verdicts to FILE")
    result.add_argument("--offline-ok", action="store_true", help="a source that cannot be reached is no failure")
    return result


def _sources(text: str) -> list[str]:
    wanted = [word.strip() for word in text.split(",")]
    known = dict.fromkeys((*SOURCES, *DEEP_SOURCES))
    if unknown := [word for word in wanted if word not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected of {', '.join(known)}")
    return wanted


if __name__ == "__main__":
    command_line.run(parser().check)
