"""Errors of CUDA and its libraries, by number, name and sentence as programs print them."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HARDWARE, HOST
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        # pytorch/pytorch, torch/cuda/__init__.py; NVIDIA/nvidia-docker issue 1256
        (
            "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
            "functions before calling NumCudaDevices() that might have already set an error? Error 803: system has "
            "unsupported display driver / cuda driver combination (Triggered internally at ../c10/cuda/...)",
            803,
        ),
        (
            "external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:152] failed call to cuInit: INTERNAL: CUDA "
            "error: Failed call to cuInit: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: forward compatibility was "
            "attempted on non supported HW",
            804,
        ),
        ("cudaGetDeviceCount returned 802\n-> system not yet initialized", 802),  # NVIDIA/nvtrust issue 87
        ("all CUDA-capable devices are busy or unavailable", 46),  # NVIDIA/DIGITS issue 2005
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", 46),
        ("failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", 100),
        ("failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error", 999),
        ("CUDA driver version is insufficient for CUDA runtime version", 35),
        # pytorch/pytorch issue 49327; its CUDAFunctions.cpp
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing "
            "env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
            999,
        ),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", 35),
        ("failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (100)", 100),
        # NVIDIA/nccl issues 1488 and 976; what a number says beside it is less
        ("node23:12098 [2] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'", cuda_errors.NVLS),
        # meta-pytorch/torchcomms pull request 3130
        ("cuMulticastBindMem() -> CUDA error 802 'system not yet initialized'", cuda_errors.NVLS),
        ("NVLS multicast support is available on dev 0\nCUDA out of memory. Tried to allocate 2.00 GiB", 2),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'.", 2),
        ("2 root error(s) found. (0) RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[64,1024]", 2),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'uncorrectable ECC error "
            "encountered'",
            214,
        ),
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast "
            "error:\nError while creating shared memory segment /dev/shm/nccl-WbhNQ8 (size 9637888), error: No space "
            "left on device (28)",
            cuda_errors.FULL,
        ),
        ("NCCL WARN XML Parse error : expecting '<', got 'd'\nncclInternalError", cuda_errors.TOPOLOGY),
        ("NCCL error in: ProcessGroupNCCL.cpp:1269, internal error, NCCL version 2.10.3", "ncclInternalError"),
        ("ncclCommInitAll: internal error (3)", "ncclInternalError"),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", "ncclSystemError"),
        # NVIDIA/nccl-tests issue 206, NVIDIA/nccl issue 1837, pytorch/pytorch issue 91067
        (
            "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\nunhandled system error",
            cuda_errors.LOCKED,
        ),
        (
            "ncclInternalError: Internal check failed.\nLast error:\nncclSocketInit: connecting to address  with "
            "family 59936 is neither AF_INET(2) nor AF_INET6(10)",
            cuda_errors.NO_INTERFACE,
        ),
        (
            "OSError: libcublas.so.11: undefined symbol: cublasLtHSHMatmulAlgoInit, version libcublasLt.so.11",
            cuda_errors.MIXED,
        ),
        (
            "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}\n"
            "Invalid handle. Cannot load symbol cudnnCreateTensorDescriptor",
            cuda_errors.MIXED,
        ),
        ("RuntimeError: nvrtc: error: failed to open libnvrtc-builtins.so.13.0.", cuda_errors.MIXED),
        (
            "'cuLaunchKernel(function, grid, block)' failed with 'CUDA_ERROR_ILLEGAL_ADDRESS'",
            700,
        ),
        ("Connect to fe80::c4eb:49ff:fe04:e32d%6<57335> failed : Network is unreachable", cuda_errors.UNREACHABLE),
        ("Connect to 10.0.0.4<56849> failed : Connection refused\nunhandled system error", "ncclSystemError"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(`", cuda_errors.MIXED),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "CUDNN_STATUS_EXECUTION_FAILED"),
        ("RuntimeError: can't start new thread", cuda_errors.THREADS),
        # what a process says of its peers is less than what it met itself
        ("Watchdog caught collective operation timeout\nCUDA error: unspecified launch failure", 719),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "CUBLAS_STATUS_NOT_INITIALIZED"),
    ],
)
def test_error_that_a_program_prints(printed: str, error: int | str) -> None:
    assert cuda_errors.read(printed) == {error}


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "RuntimeError: unknown error 804 of the scheduler",
        "an internal error of the scheduler",
        "Illegal instruction",
        "exit status 46",
        "undefined symbol: curl_easy_init",
    ],
)
def test_other_text_is_no_error(printed: str) -> None:
    assert cuda_errors.read(printed) == frozenset()


def test_each_number_has_a_meaning_and_a_remedy(snapshot) -> None:
    assert {key: cuda_errors.remedy(key) for key in cuda_errors.ERRORS} == snapshot
    assert {34, 35, 46, 100, 101, 802, 803, 804, 999} <= set(cuda_errors.ERRORS)
    assert cuda_errors.remedy(1) is None


def test_errors_of_the_hardware_and_of_the_host_are_not_blamed_on_the_installed_versions() -> None:
    """A failed check with one of these as its reason does not undo a change."""
    keys: dict[str, set[int | str]] = {}
    for key in cuda_errors.ERRORS:
        keys.setdefault(cuda_errors.cause([key]), set()).add(key)
    assert set(keys) == {"", HARDWARE, HOST}
    assert keys[HARDWARE] == {214, 220}  # uncorrectable errors of memory and of an NVLink
    nccl = {f"NCCL's {of}" for of in ("NVLink SHARP", "connections", "network interface")}
    limits = {"No space left on device", "SIGKILL", "locked memory", "open files", "threads"}
    # A kernel's time limit, too many peers, and three of MPS (cuda.h).
    assert keys[HOST] == {702, 711, 805, 806, 807, *nccl, *limits}


@pytest.mark.parametrize(
    ("name", "number", "text"),
    [
        ("unrecognized error code", 804, "cudaErrorCompatNotSupportedOnDevice (804)"),
        ("unrecognized error code", 4711, "unrecognized error code (4711)"),
        ("cudaErrorNoDevice", 100, "cudaErrorNoDevice (100)"),
    ],
)
def test_number_that_an_older_runtime_has_no_name_for(name: str, number: int, text: str) -> None:
    assert cuda_errors.text(number, name) == text
