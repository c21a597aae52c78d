"""Mark the GPUs that TensorFlow ignores.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog

WARNINGS = {
    "gpu-left-out-by-tensorflow": "TensorFlow ignores a GPU with fewer than 8 multiprocessors beside a larger one",
}
# GetDefaultMinGPUMultiprocessorCount in tensorflow/core/common_runtime/gpu/gpu_device.cc.
FEW_MULTIPROCESSORS = 8


def leave_out(catalog: Catalog, gpus: tuple[Gpu, ...], findings: Findings) -> tuple[Gpu, ...]:
    """Return the GPUs, those marked that TensorFlow ignores, each with a warning.

    It ignores a GPU with fewer multiprocessors than 8 and than the largest GPU. A GPU without a number in the catalog
    has at least 8.
    """
    most = [_most_multiprocessors(catalog, gpu) for gpu in gpus]
    largest = max((number or FEW_MULTIPROCESSORS for number in most), default=0)
    marked = []
    for gpu, number in zip(gpus, most, strict=True):
        is_small = number is not None and number < min(FEW_MULTIPROCESSORS, largest)
        marked.append(dataclasses.replace(gpu, left_out_by="tensorflow") if is_small else gpu)
        if is_small:
            findings.warn(
                "gpu-left-out-by-tensorflow",
                f"{gpu.name} has {number} multiprocessors or fewer: beside a larger GPU, TensorFlow ignores one with "
                f"fewer than {FEW_MULTIPROCESSORS}. Its checks and its training leave it out; for your own programs, "
                "TF_MIN_GPU_MULTIPROCESSOR_COUNT lowers the limit",
            )
    return tuple(marked)


def _most_multiprocessors(catalog: Catalog, gpu: Gpu) -> int | None:
    device = gpu.pci_id.partition(":")[2]
    product, few = catalog.products.get(device), catalog.gpu.few_multiprocessors
    chip = product.chip if product else ""
    rows = few.gpus if few else ()
    return next((row.most for row in rows if device in row.devices or chip in row.chips), None)
