"""Decide whether a cuDNN or NCCL build has code for a GPU.

Runs on the controller; a pure function of the catalog's `support` lists.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import CudnnSupport, NcclSupport

Support = CudnnSupport | NcclSupport


def covers(support: Iterable[Support], version: str, cuda_major: int, gpu: Gpu) -> bool:
    """Return whether a library version for a CUDA major has code for a GPU."""
    entry = _entry(support, version, cuda_major)
    if entry is None:
        return False
    lowest, highest = versions.key(entry.min_compute_capability), versions.key(entry.max_compute_capability)
    return lowest <= versions.key(gpu.compute_capability) <= highest


def supported(support: Iterable[Support], version: str, cuda_major: int) -> str:
    """Return the compute capabilities that a build has code for, as messages show them."""
    entry = _entry(support, version, cuda_major)
    return f"{entry.min_compute_capability} to {entry.max_compute_capability}" if entry else "none that is known"


def _entry(support: Iterable[Support], version: str, cuda_major: int) -> Support | None:
    for entry in support:
        majors = entry.cuda_majors if isinstance(entry, CudnnSupport) else (entry.cuda_major,)
        if (
            cuda_major in majors
            and versions.key(version) >= versions.key(entry.first)
            and (entry.last is None or versions.at_most(version, entry.last))
        ):
            return entry
    return None
