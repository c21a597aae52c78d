"""The state of the host after a step. EXPECTED_* describe the step, by default the last one."""

import os
import re
import shlex

import pytest

from tests import distributions

DRIVER = os.environ.get("EXPECTED_DRIVER", "580")
CUDA = os.environ.get("EXPECTED_CUDA", "13.0")
KERNEL_MODULES = os.environ.get("EXPECTED_KERNEL_MODULES", "open")
TOOLKITS = os.environ.get("EXPECTED_TOOLKITS", "13.0 13.2").split()
FIRST_PINNED_BRANCH = 580
# Debian's and Ubuntu's names, with and without a branch, and those of Enterprise Linux.
KERNEL_MODULE_PACKAGE = re.compile(r"nvidia-(kernel-)?(open-)?dkms(-\d+)?(-open)?|kmod-nvidia-(open|latest)-dkms")
# Static linking is nvcc's default: the version is that of the toolkit whose nvcc and libcudart_static.a were found.
PROGRAM = r"""
#include <cstdio>
#include <cuda_runtime.h>
int main() {
  int runtime = 0;
  cudaError_t error = cudaRuntimeGetVersion(&runtime);
  printf("%d %s\n", runtime, cudaGetErrorName(error));
  return 0;
}
"""
with_cuda = pytest.mark.skipif(CUDA == "none", reason="this step has no CUDA toolkit")


def test_driver_has_the_requested_version(host):
    (version,) = set(
        host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.splitlines()
    )
    assert f"{version}.".startswith(f"{DRIVER}.")


def test_no_package_of_another_version_is_left(installed):
    driver = {
        name: version for name, version in installed.items() if re.match(r"(lib)?nvidia-|libcuda1|cuda-driv", name)
    }
    assert driver
    assert {name: version for name, version in driver.items() if not re.match(rf"(\d+:)?{DRIVER}[.-]", version)} == {}


@pytest.mark.skipif(distributions.MANAGER == "dnf", reason="a module's stream takes the place of the pinning package")
def test_requested_version_is_pinned(host, installed):
    is_pinned = int(DRIVER.split(".")[0]) >= FIRST_PINNED_BRANCH
    pins = [name for name in installed if name.startswith("nvidia-driver-pinning-")]
    assert pins == [f"nvidia-driver-pinning-{DRIVER}"] * is_pinned
    path = "/etc/apt/preferences.d/nvidia-driver-pin"
    assert host.file(path).exists == is_pinned
    assert not is_pinned or f"Pin: version {DRIVER}" in host.file(path).content_string


@pytest.mark.skipif(distributions.MANAGER == "apt", reason="apt has no streams")
def test_requested_stream_is_enabled(as_root):
    has_streams = "nvidia-driver" in as_root.run_expect([0, 1], "dnf module list nvidia-driver").stdout
    settings = as_root.run_expect(
        [0], "sh -c 'cat /etc/dnf/modules.d/*.module 2>/dev/null || true'"
    ).stdout.splitlines()
    flavour = "open" if KERNEL_MODULES == "open" else "dkms"
    wanted = [f"stream={DRIVER.partition('.')[0]}-{flavour}"] * has_streams
    assert [line for line in settings if line.startswith("stream=")] == wanted


def test_kernel_modules_have_the_requested_flavour(installed, held):
    names = [name for name in installed if KERNEL_MODULE_PACKAGE.fullmatch(name)]
    assert len(names) == 1, names
    assert ("open" in names[0]) == (KERNEL_MODULES == "open")
    assert names[0] in held


@with_cuda
def test_every_shell_runs_nvcc_of_the_default_toolkit(host):
    for shell in ("nvcc --version", "bash -lc 'nvcc --version'", "sudo nvcc --version"):
        assert f"release {CUDA}," in host.run_expect([0], shell).stdout


@with_cuda
def test_a_program_built_by_the_default_nvcc_runs_with_its_runtime(host):
    folder = host.run_expect([0], "mktemp -d").stdout.strip()
    host.run_expect([0], f"printf %s {shlex.quote(PROGRAM)} > {folder}/version.cu")
    host.run_expect([0], f"nvcc -o {folder}/version {folder}/version.cu")
    output = host.run_expect([0], f"{folder}/version").stdout
    host.run_expect([0], f"rm -r {folder}")
    major, minor = map(int, CUDA.split("."))
    assert output == f"{major * 1000 + minor * 10} cudaSuccess\n"


def test_toolkits_are_installed_side_by_side(host):
    """The one that was requested first stays beside the other."""
    homes = host.run_expect([0], "find /usr/local -maxdepth 1 -name 'cuda-*.*' -type d").stdout.split()
    assert sorted(homes) == [f"/usr/local/cuda-{version}" for version in TOOLKITS]
    for home in homes:
        assert f"release {home.rpartition('-')[2]}," in host.run_expect([0], f"{home}/bin/nvcc --version").stdout


def test_each_toolkit_is_held(installed, held):
    toolkits = {name for name in installed if re.fullmatch(r"cuda-toolkit-\d+-\d+", name)}
    assert toolkits == {f"cuda-toolkit-{version.replace('.', '-')}" for version in TOOLKITS}
    assert toolkits <= held
