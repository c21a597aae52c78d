# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Translate CUDA's error numbers: names and meanings by NVIDIA's table (cuda.h and driver_types.h of CUDA 13.0).

A program that was compiled with an older CUDA knows no name for a newer number ("unrecognized error code"), and
frameworks print names or sentences in place of numbers. No I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Error


class CudaError(NamedTuple):
    """A row of the table: the names of runtime and driver, cudaGetErrorString's sentence, meaning, and what to type."""

    runtime: str
    driver: str
    sentence: str
    meaning: str
    remedy: str


_LIBCUDA = (
    "`ldconfig -p | grep libcuda.so.1` lists the files in the order of the dynamic linker, `dpkg -l 'cuda-compat*'` "
    "the packages with another one, `cat /proc/driver/nvidia/version` the loaded module: reboot if that is not the "
    "installed driver's."
)
_MPS = (
    "Programs that find a control daemon of MPS use it: `ps -C nvidia-cuda-mps-control`; `echo quit | "
    "nvidia-cuda-mps-control` ends it."
)
ERRORS = {
    3: CudaError(
        "cudaErrorInitializationError",
        "CUDA_ERROR_NOT_INITIALIZED",
        "initialization error",
        "CUDA could not be initialized",
        "`journalctl -k -b -g 'NVRM|nvidia-uvm'` shows what the driver has logged; `lsmod | grep nvidia_uvm` whether "
        "the module that CUDA needs is loaded.",
    ),
    34: CudaError(
        "cudaErrorStubLibrary",
        "CUDA_ERROR_STUB_LIBRARY",
        "CUDA driver is a stub library",
        "the loaded libcuda is the toolkit's stub, which is there to link with",
        "Remove the directory `stubs` from /etc/ld.so.conf.d and run `ldconfig`. " + _LIBCUDA,
    ),
    35: CudaError(
        "cudaErrorInsufficientDriver",
        "",  # the runtime alone compares
        "CUDA driver version is insufficient for CUDA runtime version",
        "the driver is older than the CUDA runtime needs, or cannot be used",
        "If driver.nvidia_smi passes: " + _LIBCUDA,
    ),
    46: CudaError(
        "cudaErrorDevicesUnavailable",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "busy or unavailable",
        "the GPU admits no program, or no second one",
        "`nvidia-smi -q -d COMPUTE` shows the compute mode, which `nvidia-smi -i N -c 0` sets to the default; `fuser "
        "-v /dev/nvidia*` lists the programs that hold the GPU.",
    ),
    100: CudaError(
        "cudaErrorNoDevice",
        "CUDA_ERROR_NO_DEVICE",
        "no CUDA-capable device is detected",
        "CUDA detects no GPU",
        "Unset CUDA_VISIBLE_DEVICES, check that /dev/nvidia* exist and that `nvidia-smi -L` lists the GPUs.",
    ),
    101: CudaError(
        "cudaErrorInvalidDevice",
        "CUDA_ERROR_INVALID_DEVICE",
        "invalid device ordinal",
        "CUDA has no GPU of that number",
        "Unset CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists the GPUs. A GPU that is missing there is in `journalctl -k "
        "-b -g NVRM`.",
    ),
    304: CudaError(
        "cudaErrorOperatingSystem",
        "CUDA_ERROR_OPERATING_SYSTEM",
        "OS call failed or operation not supported on this OS",
        "a call of the operating system failed",
        "Check that /dev/nvidia-uvm exists (`nvidia-modprobe -u -c=0` creates it) and that `ulimit -a` and the cgroup "
        "limit no memory; `journalctl -k -b -g NVRM` shows what failed.",
    ),
    802: CudaError(
        "cudaErrorSystemNotReady",
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "system not yet initialized",
        "the system is not ready: a daemon that sets up the GPUs has not done so",
        "With NVSwitches, Fabric Manager sets up the GPUs: `systemctl status nvidia-fabricmanager`. In a confidential "
        "virtual machine, the attestation verifier does: `nvidia-smi conf-compute -q` shows whether they are ready.",
    ),
    803: CudaError(
        "cudaErrorSystemDriverMismatch",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "unsupported display driver / cuda driver combination",
        "libcuda and the loaded kernel module are of different versions",
        _LIBCUDA,
    ),
    804: CudaError(
        "cudaErrorCompatNotSupportedOnDevice",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "forward compatibility was attempted on non supported HW",
        "libcuda is that of a `cuda-compat` package, which serves data-center GPUs alone",
        _LIBCUDA,
    ),
    805: CudaError(
        "cudaErrorMpsConnectionFailed",
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "MPS client failed to connect to the MPS control daemon or the MPS server",
        "the control daemon of MPS or its server does not answer",
        _MPS,
    ),
    806: CudaError(
        "cudaErrorMpsRpcFailure",
        "CUDA_ERROR_MPS_RPC_FAILURE",
        "the remote procedural call between the MPS server and the MPS client failed",
        "the server of MPS does not answer",
        _MPS,
    ),
    807: CudaError(
        "cudaErrorMpsServerNotReady",
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "MPS server is not ready to accept new MPS client requests",
        "the server of MPS is recovering from a failure",
        _MPS,
    ),
    999: CudaError(
        "cudaErrorUnknown",
        "CUDA_ERROR_UNKNOWN",
        "unknown error",
        "an unknown error of the driver",
        "`journalctl -k -b -g NVRM` shows what the driver met. Without a program on the GPUs, `rmmod nvidia_uvm && "
        "modprobe nvidia_uvm` sets up CUDA's module again, as after a suspend; otherwise reboot.",
    ),
}
_UNRECOGNIZED = "unrecognized error code"
# As PyTorch prints it, and TensorFlow where it knows no name (cuda_driver.cc, ToString).
_NUMBER = re.compile(r"\bError (\d+): |\bUNKNOWN ERROR \((\d+)\)")
# PyTorch's own sentences for some (c10/cuda/CUDAFunctions.cpp, device_count_impl).
_OF_PYTORCH = {
    "CUDA unknown error - this may be due to an incorrectly set up environment": 999,
    "The NVIDIA driver on your system is too old": 35,
    "Found no NVIDIA driver on your system": 35,
}


def text(error: Error) -> str:
    """Return name and number of an error of cuda_check's document."""
    known = ERRORS.get(error.number)
    return "%s (%d)" % (known.runtime if known and error.name == _UNRECOGNIZED else error.name, error.number)


def remedy(number: int) -> str | None:
    """Return what an error means and what to type, None if the table lacks it."""
    known = ERRORS.get(number)
    return None if known is None else "CUDA's error %d: %s. %s" % (number, known.meaning, known.remedy)


def numbers(printed: str) -> frozenset[int]:
    """Return the numbers of the table's errors that a program printed by number, name or sentence."""
    found = {int(one or other) for one, other in _NUMBER.findall(printed)} & set(ERRORS)
    found |= {number for sentence, number in _OF_PYTORCH.items() if sentence in printed}
    words = set(re.findall(r"\w+", printed))
    for number, error in ERRORS.items():
        in_words = {error.runtime, error.driver} & words
        if in_words or (number != 999 and error.sentence in printed):
            found.add(number)
    return frozenset(found)
