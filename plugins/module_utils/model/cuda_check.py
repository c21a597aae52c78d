# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The document that the program of the checks, cuda_check.cu, prints about the GPUs. Rates are in GB/s."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple


@dataclasses.dataclass(frozen=True)
class Error:
    """A call of CUDA, cuDNN or NCCL that failed."""

    call: str
    number: int
    name: str
    message: str


@dataclasses.dataclass(frozen=True)
class Part:
    """A kernel or a copy on a GPU, or what failed beside them; wrong_words: of a copy, None where it did not arrive."""

    error: Optional[Error] = None
    right: Optional[bool] = None
    bytes: int = 0
    wrong_words: Optional[int] = None
    gb_per_second: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU, without what was not read because of the error. copies: None where its kernel did not run."""

    index: int
    kernel: Part
    copies: Optional[Mapping[str, Part]] = None
    error: Optional[Error] = None
    name: Optional[str] = None
    compute_capability: str = "unknown"
    memory_bytes: int = 0
    pci_bus_id: Optional[str] = None
    uuid: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Pair:
    """A copy from one GPU to another and what that reads back, None where they were not made."""

    source: int = dataclasses.field(metadata={"key": "from"})
    to: int
    access: bool
    copy: Optional[Part] = None
    read: Optional[Part] = None
    error: Optional[Error] = None

    def __str__(self) -> str:
        return "%d-%d" % (self.source, self.to)

    @property
    def rate(self) -> float | None:
        """The rate of the copy, None if it was not measured."""
        return self.copy.gb_per_second if self.copy else None


@dataclasses.dataclass(frozen=True)
class Cudnn:
    """cuDNN's handle on a GPU."""

    device: int
    error: Optional[Error] = None


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """The sum over the GPUs of NCCL; wrong_words: by device."""

    devices: Tuple[int, ...]
    right: bool
    wrong_words: Tuple[int, ...] = ()
    bus_gb_per_second: Optional[float] = None
    error: Optional[Error] = None


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """The step in which the program crashed or hung."""

    step: str
    signal: int


@dataclasses.dataclass(frozen=True)
class Document:
    """All that the program prints; json: the same as it is stored in the evidence.

    versions: of the libraries, as they return them. libraries: the paths of those in the process. outcome: `devices`,
    `no device`, or None where the program did not get that far.
    """

    versions: Mapping[str, Optional[int]]
    outcome: Optional[str] = None
    libraries: Tuple[str, ...] = ()
    error: Optional[Error] = None
    devices: Tuple[Device, ...] = ()
    peers: Tuple[Pair, ...] = ()
    cudnn: Optional[Cudnn] = None
    all_reduce: Optional[AllReduce] = None
    unfinished: Optional[Unfinished] = None
    json: Mapping[str, Any] = dataclasses.field(default_factory=dict)
