"""Fixtures that several of these tests share."""

from pathlib import Path

import pytest

from tests.doubles import simulated_cuda


@pytest.fixture(scope="session")
def program() -> Path:
    """cuda_check.cu on simulated CUDA, cuDNN and NCCL."""
    return simulated_cuda.built()
