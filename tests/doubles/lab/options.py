"""The options of script/lab, which are read before there need be an environment: imports the standard library alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

PROJECT = Path(__file__).resolve().parents[3]


def name(inventory: Path) -> str:
    """Return the name of an inventory's lab: that of its directory."""
    path = inventory.resolve()
    return path.parent.name if path.is_file() else path.name


def _mistakes(found: argparse.Namespace) -> list[str]:
    inventory: Path = found.inventory
    if inventory.exists() or (found.action == "down" and (PROJECT / ".lab" / name(inventory)).is_dir()):
        return []
    return [f"found no inventory {inventory}; expected a file or a directory such as inventories/demo"]


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    result = command_line.Parser(
        "script/lab", _mistakes, description="Start or remove the container lab that an inventory describes."
    )
    result.add_argument("action", choices=["up", "down"])
    result.add_argument("inventory", type=Path, help="inventory file or directory; the directory's name is the lab's")
    return result
