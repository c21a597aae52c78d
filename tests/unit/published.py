"""Build documents of `nvidia-smi -q -x` from published output of real machines (tests/fixtures/nvidia-smi)."""

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/nvidia-smi"
# Errors of NVML as nvmlErrorString has them, which nvidia-smi prints in place of values; `ERR!` is its short form.
LOST = ("GPU is lost", "GPU requires reset", "Interrupt Request Issue")
ERRORS = (
    *("Unknown Error", "ERR!", "Timeout", "Function Not Found", "GPU access blocked by the operating system"),
    *("Requires Reset", "Driver Not Loaded", "Uninitialized"),
)
OF_A_VALUE = ("Unknown Error", "ERR!", "Function Not Found")  # those that need not be of the whole GPU
MACHINES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "published.yml").read_text())


def document(name: str) -> str:
    """Return the document of a machine of MACHINES, in the layout of the genuine program."""
    machine = MACHINES[name]
    lines = ['<?xml version="1.0" ?>', f'<!DOCTYPE nvidia_smi_log SYSTEM "{machine["dtd"]}">', "<nvidia_smi_log>"]
    lines += [f"\t<{tag}>{machine[tag]}</{tag}>" for tag in ("driver_version", "cuda_version", "attached_gpus")]
    for gpu in machine["gpus"]:
        lines += [f'\t<gpu id="{gpu["id"]}">', *_elements(gpu["elements"], 2), "\t</gpu>"]
    return "\n".join([*lines, "</nvidia_smi_log>", ""])


def _elements(rows: list[dict[str, Any]], depth: int) -> list[str]:
    indent, lines = "\t" * depth, []
    for row in rows:
        for tag, value in row.items():
            if isinstance(value, list):
                lines += [f"{indent}<{tag}>", *_elements(value, depth + 1), f"{indent}</{tag}>"]
            else:
                lines.append(f"{indent}<{tag}>{escape(str(value))}</{tag}>")
    return lines
