"""The components of the stack: their names, labels and order, and what a plan says about each."""

from __future__ import annotations

import dataclasses

# In the order of tables. The keys are also the request's names and those of the plan's JSON.
LABELS = {
    "driver": "NVIDIA driver",
    "cuda": "CUDA toolkit",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
}
COMPONENTS = tuple(LABELS)


@dataclasses.dataclass(frozen=True)
class DriverComponent:
    """The driver to install."""

    version: str
    branch: str
    kernel_modules: str
    source: str
    packages: tuple[str, ...]
    pinning_packages: tuple[str, ...]
    kernel_headers: tuple[str, ...]
    apt_components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CudaComponent:
    """The CUDA toolkit to install."""

    version: str
    release: str
    source: str
    home: str
    packages: tuple[str, ...]
    host_compilers: tuple[str, ...]
    apt_components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LibraryComponent:
    """cuDNN or NCCL to install."""

    version: str
    packages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TensorflowComponent:
    """The TensorFlow environment to make."""

    version: str
    python: str
    cuda_libraries: str
    requirements: tuple[str, ...]
    lock: str


@dataclasses.dataclass(frozen=True)
class PytorchComponent:
    """The PyTorch environment to make."""

    version: str
    python: str
    cuda: str
    requirements: tuple[str, ...]
    lock: str


Component = DriverComponent | CudaComponent | LibraryComponent | TensorflowComponent | PytorchComponent
