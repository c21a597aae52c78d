# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What the probe of a framework prints: framework_probe.py, in the environment of TensorFlow or PyTorch."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple

_NAN = float("nan")


@dataclasses.dataclass(frozen=True)
class Result:
    """A computation on a device; difference: from the exact result, relative to its largest element. Or the error."""

    device: str
    ran_on: Optional[str] = None
    difference: float = _NAN
    error: Optional[str] = None

    @property
    def elsewhere(self) -> str | None:
        """The device that it ran on in place of its own."""
        return self.ran_on if self.ran_on != self.device else None

    def is_right(self, tolerance: float) -> bool:
        """Return whether it was computed on its device and is close enough; NaN is not."""
        return self.error is None and self.ran_on == self.device and self.difference <= tolerance


@dataclasses.dataclass(frozen=True)
class Build:
    """TensorFlow's build information, of which a release may lack each key."""

    is_cuda_build: Any = None
    cuda_version: Any = None
    cudnn_version: Any = None

    @property
    def without_cuda(self) -> bool:
        """Whether it says that it is a build without CUDA."""
        return self.is_cuda_build is False


@dataclasses.dataclass(frozen=True)
class Keras:
    """TensorFlow's Keras, or why it cannot be imported."""

    version: str = ""
    backend: str = "tensorflow"
    error: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The framework's library in the process, and the version that is recorded beside it."""

    path: str
    version: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class CompilesWith:
    """What Triton finds: a C compiler, and Python.h in the directory `headers`."""

    compiler: Optional[str] = None
    headers: str = ""
    has_headers: bool = True


@dataclasses.dataclass(frozen=True)
class Output:
    """All parts that the probe printed before it ended; None, and no prefix, for those that it did not reach.

    prefix, search_path, pinned: of the environment its directory, LD_LIBRARY_PATH, and the versions of the wheels of
    cuDNN and NCCL. cuda: of PyTorch's build, None without CUDA. asked: file names of CUDA's libraries that TensorFlow
    was asked to load, by library; errors: by file name. libraries: paths of those in the process. called: the versions
    that they return, as they return them. sitecustomize: the path of the host's.
    """

    version: Optional[str] = None
    prefix: str = ""
    search_path: str = ""
    pinned: Mapping[str, Optional[str]] = dataclasses.field(default_factory=dict)
    loaded: Optional[Loaded] = None
    build: Build = Build()
    keras: Keras = Keras()
    cuda: Optional[str] = None
    asked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    libraries: Optional[Tuple[str, ...]] = None
    called: Optional[Mapping[str, Any]] = None
    devices: Optional[Tuple[str, ...]] = None
    matmul: Optional[Tuple[Result, ...]] = None
    convolution: Optional[Tuple[Result, ...]] = None
    triton: Optional[Tuple[Result, ...]] = None
    compiles_with: CompilesWith = CompilesWith()
    ended: bool = False
    sitecustomize: Optional[str] = None

    def results(self, part: str) -> tuple[Result, ...] | None:
        """Return the results of a computation: `matmul`, `convolution` or `triton`."""
        found: tuple[Result, ...] | None = getattr(self, part)
        return found
