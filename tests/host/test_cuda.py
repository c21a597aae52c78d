"""The CUDA toolkit, cuDNN and NCCL: found in every kind of shell; a program that calls all three builds and runs."""

import shlex

import pytest

PROGRAM = r"""
#include <cstdio>
#include <cuda_runtime.h>
#ifdef WITH_CUDNN
#include <cudnn.h>
#endif
#ifdef WITH_NCCL
#include <nccl.h>
#endif
__global__ void add(int *x) { *x += 1; }
int main() {
  int runtime = 0, devices = 0;
  // Up to CUDA 11 the runtime names its version only with a driver. nvcc links it statically, so it is the headers'.
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
  printf("runtime %d\n", runtime);
#ifdef WITH_CUDNN
  printf("cudnn %zu\n", cudnnGetVersion());
#endif
#ifdef WITH_NCCL
  int nccl = 0;
  ncclGetVersion(&nccl);
  printf("nccl %d\n", nccl);
#endif
  cudaError_t error = cudaGetDeviceCount(&devices);
  printf("devices %d %s\n", error == cudaSuccess ? devices : 0, cudaGetErrorName(error));
  return 0;
}
"""
WITHOUT_A_DEVICE = {"cudaErrorNoDevice", "cudaErrorInsufficientDriver"}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


@pytest.fixture(scope="module")
def program_output(host, plan, component) -> dict[str, list[str]]:
    """Compiles and runs PROGRAM on the host; {first word of a line: the other words}."""
    component("cuda")
    libraries = [(name, flag, link) for name, flag, link in (("cudnn", "-DWITH_CUDNN", "-lcudnn"),
                 ("nccl", "-DWITH_NCCL", "-lnccl")) if plan["components"].get(name)]  # fmt: skip
    folder = host.run_expect([0], "mktemp -d").stdout.strip()
    flags = " ".join(f"{flag} {link}" for _, flag, link in libraries)
    host.run_expect([0], f"printf %s {shlex.quote(PROGRAM)} > {folder}/check.cu")
    host.run_expect([0], f"nvcc -o {folder}/check {folder}/check.cu {flags}")
    output = host.run_expect([0], f"{folder}/check").stdout
    host.run_expect([0], f"rm -r {folder}")
    return {line.split()[0]: line.split()[1:] for line in output.splitlines()}


@pytest.mark.parametrize(
    "shell",
    [
        "nvcc --version",
        "bash -lc 'nvcc --version'",
        "sudo nvcc --version",
        "sudo systemd-run --quiet --wait --pipe nvcc --version",
    ],
    ids=["ssh-without-profile", "login-shell", "sudo", "systemd-unit"],
)  # fmt: skip
def test_nvcc_is_found_and_has_the_planned_version(host, component, shell):
    answer = host.run_expect([0], shell).stdout
    assert f"release {component('cuda')['version']}," in answer


def test_packages_are_installed_and_held(host, plan):
    held = set(host.run_expect([0], "apt-mark showhold").stdout.split())
    specs = [
        spec for name in ("cuda", "cudnn", "nccl") for spec in (plan["components"][name] or {}).get("packages", [])
    ]
    assert specs
    for spec in specs:
        name, _, version = spec.partition("=")
        installed = host.run_expect([0], f"dpkg-query -W -f '${{Version}}' {name}").stdout
        assert version in ("", installed)
        assert name in held


def test_no_package_of_the_toolkit_pulled_a_driver_in(host, component):
    component("cuda")
    for name in ("cuda", "cuda-drivers", "cuda-runtime-" + component("cuda")["version"].replace(".", "-")):
        assert not host.package(name).is_installed


def test_default_toolkit_is_the_planned_one(host, component):
    cuda = component("cuda")
    if cuda["home"] == "/usr":
        pytest.skip("the distribution's toolkit lies in /usr and has no /usr/local/cuda")
    assert host.file("/usr/local/cuda").exists
    assert host.run_expect([0], "readlink -f /usr/local/cuda").stdout.strip() == cuda["home"]


def test_program_reports_the_planned_runtime(program_output, component):
    major, minor = numbers(component("cuda")["version"])[:2]
    assert program_output["runtime"] == [str(major * 1000 + minor * 10)]


def test_program_reports_the_planned_cudnn(program_output, component):
    major, minor, patch = numbers(component("cudnn")["version"])[:3]
    assert program_output["cudnn"] == [str(major * 10000 + minor * 100 + patch)]


def test_program_reports_the_planned_nccl(program_output, component):
    major, minor, patch = numbers(component("nccl")["version"])[:3]
    assert program_output["nccl"] == [str(major * 10000 + minor * 100 + patch)]


def test_program_sees_the_gpus_or_says_that_there_is_no_driver(program_output, plan, variables):
    devices, error = program_output["devices"]
    if variables.get("nvidia_driver_load_module", True):
        assert (int(devices), error) == (len(plan["gpus"]), "cudaSuccess")
    else:
        assert (devices, error in WITHOUT_A_DEVICE) == ("0", True), error


def test_no_library_path_is_set_for_everybody(host):
    """LD_LIBRARY_PATH would win over the CUDA libraries that a TensorFlow wheel brings."""
    for shell in ("bash -lc env", "env"):
        assert "LD_LIBRARY_PATH" not in host.run_expect([0], shell).stdout
