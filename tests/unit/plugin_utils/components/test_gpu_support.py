"""Code for a GPU in builds of cuDNN and NCCL: the rows of the frozen catalog, at their limits."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers, supported

from tests.unit.frozen_catalog import frozen_catalog

SUPPORT = {"cudnn": frozen_catalog().cudnn.support, "nccl": frozen_catalog().nccl.support}


def gpu(capability: str) -> Gpu:
    return Gpu("10de:ffff", "NVIDIA X1", capability, "", "either")


@pytest.mark.parametrize(
    ("library", "version", "cuda_major", "capability", "expected"),
    [
        ("cudnn", "8.6.0.163", 11, "3.5", True),
        ("cudnn", "8.6.0.163", 11, "3.0", False),
        ("cudnn", "8.6.0.163", 11, "9.0", True),
        ("cudnn", "8.5.0.96", 11, "9.0", False),  # Hopper came with 8.6
        ("cudnn", "8.7.0.84", 11, "3.7", True),
        ("cudnn", "8.8.0.121", 11, "3.7", False),  # and Kepler went with 8.8
        ("cudnn", "8.8.0.121", 12, "5.0", True),
        ("cudnn", "8.8.0", 12, "5.0", True),
        ("cudnn", "8.7.0.84", 12, "5.0", False),
        ("cudnn", "9.10.2.21", 11, "9.0", True),
        ("cudnn", "9.11.0.98", 11, "9.0", False),
        ("cudnn", "9.6.0.74", 12, "10.0", False),
        ("cudnn", "9.7.0.66", 12, "10.0", True),
        ("cudnn", "6.0.21", 8, "3.0", False),
        ("nccl", "2.26.5", 12, "10.0", False),
        ("nccl", "2.27.3", 12, "10.0", True),
        ("nccl", "2.27.7", 12, "5.0", True),
        ("nccl", "2.28.9", 12, "5.0", False),
        ("nccl", "2.28.9", 12, "6.0", True),
        ("nccl", "2.99.1", 13, "12.1", True),  # until there is a row with another limit
        ("nccl", "2.99.1", 13, "12.2", False),
        ("nccl", "2.21.5", 11, "9.0", True),
        ("nccl", "2.22.3", 11, "9.0", False),
        ("nccl", "2.28.9", 14, "9.0", False),
    ],
)
def test_a_build_has_code_for_the_gpus_within_its_limits(library, version, cuda_major, capability, expected):
    assert covers(SUPPORT[library], version, cuda_major, gpu(capability)) is expected


@pytest.mark.parametrize(
    ("library", "version", "cuda_major", "expected"),
    [
        ("cudnn", "8.6.0.163", 11, "3.5 to 9.0"),
        ("cudnn", "8.6.0.163", 10, "3.0 to 7.5"),
        ("cudnn", "8.6.0.163", 13, "none that is known"),
        ("nccl", "2.27.3", 12, "5.0 to 12.1"),
        ("nccl", "2.27.3", 13, "7.5 to 12.1"),
        ("nccl", "2.7.8", 11, "none that is known"),
    ],
)
def test_messages_name_the_compute_capabilities_of_a_build(library, version, cuda_major, expected):
    assert supported(SUPPORT[library], version, cuda_major) == expected
