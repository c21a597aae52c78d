# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse `nvidia-smi topo -m`: how each pair of GPUs is connected."""

from __future__ import annotations

import re
from typing import Dict, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi

_STYLE = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined
_GPU = re.compile(r"^GPU(\d+)$")
_NVLINKS = re.compile(r"^NV(\d+)$")
_KNOWN = re.compile(r"^(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+)$")

Pairs = Dict[Tuple[int, int], int]  # {(index, index): number of active NVLinks between them, 0 for PCIe}


def read(path: str, run: Run) -> Pairs:
    """Run nvidia-smi. Raise ValueError if it fails or prints something else."""
    answer = nvidia_smi.ask(run, [path, "topo", "-m"])
    if answer.exit_code not in nvidia_smi.ANSWERS:
        raise ValueError("nvidia-smi topo -m: " + answer.ending())
    return parse(answer.output)


def parse(output: str) -> Pairs:
    """Return the NVLinks by pair. Raise ValueError without a complete matrix of known connections."""
    rows = [[cell.strip() for cell in _STYLE.sub("", line).split("\t")] for line in output.splitlines()]
    header = next((row for row in rows if len(row) > 1 and row[0] == "" and _GPU.match(row[1])), None)
    if header is None:
        raise ValueError("nvidia-smi topo -m printed no matrix: %r" % output[:200])
    columns = {column: int(name[3:]) for column, name in enumerate(header) if _GPU.match(name)}
    pairs: Pairs = {}
    for row in rows:
        if row is header or not _GPU.match(row[0]):
            continue
        for column, other in columns.items():
            cell = row[column] if column < len(row) else ""
            if not _KNOWN.match(cell):
                raise ValueError("nvidia-smi topo -m printed %r for %s and GPU%d" % (cell, row[0], other))
            links = _NVLINKS.match(cell)
            if cell != "X":
                pairs[int(row[0][3:]), other] = int(links.group(1)) if links else 0
    if len(pairs) != len(columns) * (len(columns) - 1):
        raise ValueError("nvidia-smi topo -m printed %d of %d GPUs" % (len({one for one, _two in pairs}), len(columns)))
    return pairs
