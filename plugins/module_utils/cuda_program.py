"""A small CUDA program that names the libraries it runs with and the devices it sees. Runs on the target.

It is compiled, linked and run by gpu_verify: a toolkit that only lies on the disk proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = r"""
#include <cstdio>
#include <cuda_runtime.h>
#ifdef WITH_CUDNN
#include <cudnn.h>
#endif
#ifdef WITH_NCCL
#include <nccl.h>
#endif

__global__ void add_one(int *x) { *x += 1; }

static int run_kernel(int device) {
  int host = 41, *x = nullptr;
  if (cudaSetDevice(device) != cudaSuccess || cudaMalloc(&x, sizeof host) != cudaSuccess) return 0;
  cudaMemcpy(x, &host, sizeof host, cudaMemcpyHostToDevice);
  add_one<<<1, 1>>>(x);
  cudaMemcpy(&host, x, sizeof host, cudaMemcpyDeviceToHost);
  cudaFree(x);
  return cudaGetLastError() == cudaSuccess && host == 42;
}

int main() {
  int runtime = 0, devices = 0, computed = 0;
  // Up to CUDA 11 the runtime names its version only with a driver. nvcc links it statically, so it is the headers'.
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  printf("cuda %d\n", runtime);
#ifdef WITH_CUDNN
  printf("cudnn %zu\n", cudnnGetVersion());
#endif
#ifdef WITH_NCCL
  int nccl = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) printf("nccl %d\n", nccl);
#endif
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) devices = 0;
  for (int i = 0; i < devices; ++i) computed += run_kernel(i);
  printf("devices %d computed %d error %d %s\n", devices, computed, (int)error, cudaGetErrorName(error));
  return 0;
}
"""

NO_DEVICE_ERRORS = {35: "cudaErrorInsufficientDriver", 100: "cudaErrorNoDevice"}
LIBRARIES = ("cudnn", "nccl")


@dataclass(frozen=True)
class Devices:
    count: int
    computed: int
    error: int
    error_name: str


def arguments(nvcc: str, source: str, program: str, libraries: tuple[str, ...]) -> list[str]:
    """The command that compiles and links SOURCE with these of LIBRARIES."""
    with_libraries = ["-DWITH_%s" % name.upper() for name in libraries] + ["-l%s" % name for name in libraries]
    return [nvcc, "-o", program, source] + with_libraries


def parse(output: str) -> tuple[dict[str, str], Devices]:
    """(versions by library as people write them, devices) from what the program printed."""
    versions = {}
    devices = None
    for line in output.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in DECODERS:
            versions[words[0]] = DECODERS[words[0]](int(words[1]))
        elif len(words) == 7 and words[0] == "devices":
            devices = Devices(int(words[1]), int(words[3]), int(words[5]), words[6])
    if devices is None:
        raise ValueError("the program did not print its line on devices: %r" % output[-300:])
    return versions, devices


def _cuda(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def _cudnn(number: int) -> str:
    """Up to version 8 the major number counts thousands, since 9 ten thousands."""
    thousand = 10000 if number >= 90000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


def _nccl(number: int) -> str:
    """2.8 and older count the major number in thousands (2804), since 2.9 in ten thousands (20906)."""
    thousand = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


DECODERS = {"cuda": _cuda, "cudnn": _cudnn, "nccl": _nccl}
