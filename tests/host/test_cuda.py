"""The CUDA toolkit, cuDNN and NCCL: nvcc is found in every kind of shell; cuda_check builds, runs and calls all."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "plugins/module_utils/nvidia/cuda_check.cu"
WITHOUT_A_DEVICE = {"cudaErrorNoDevice", "cudaErrorInsufficientDriver"}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


@pytest.fixture(scope="module")
def built(host, plan, component) -> dict[str, Any]:
    """Compile and run cuda_check by hand, as its first lines explain; return nvcc's output and the document."""
    component("cuda")
    libraries = [name for name in ("cudnn", "nccl") if plan["components"].get(name)]
    directory = host.run_expect([0], "mktemp -d").stdout.strip()
    flags = " ".join(f"-DWITH_{name.upper()} -l{name}" for name in libraries)
    host.run_expect([0], f"printf %s {shlex.quote(SOURCE.read_text())} > {directory}/cuda_check.cu")
    # A warning that a later toolkit will drop an architecture is not about the program.
    nvcc = "nvcc -Wno-deprecated-gpu-targets -Xcompiler=-Wall,-Wextra"
    compiled = host.run_expect([0], f"{nvcc} -o {directory}/cuda_check {directory}/cuda_check.cu {flags}")
    output = host.run_expect([0], f"{directory}/cuda_check").stdout
    host.run_expect([0], f"rm -r {directory}")
    return {"nvcc": compiled.stdout + compiled.stderr, "document": json.loads(output)}


@pytest.fixture(scope="module")
def document(built) -> dict[str, Any]:
    return built["document"]


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
def test_nvcc_is_found_in_the_planned_version(host, component, shell):
    version = component("cuda")["version"]
    assert f"release {version}," in host.run_expect([0], shell).stdout


def test_packages_are_installed_and_held(packages, plan):
    planned = [component for name in ("cuda", "cudnn", "nccl") if (component := plan["components"][name])]
    if not planned:
        pytest.skip("the plan has no cuda, cudnn and nccl")
    held = packages.held()
    specs = [spec for component in planned for spec in component.get("packages", [])]
    assert specs
    for name, version in map(packages.parse, specs):
        assert version in ("", packages.versions(name)[name])
        assert name in held


def test_toolkit_packages_installed_no_driver(host, component):
    component("cuda")
    for name in ("cuda", "cuda-drivers", "cuda-runtime-" + component("cuda")["version"].replace(".", "-")):
        assert not host.package(name).is_installed


def test_default_toolkit_is_the_planned_one(host, component):
    cuda = component("cuda")
    if cuda["home"] == "/usr":
        pytest.skip("the distribution's toolkit is in /usr and has no /usr/local/cuda")
    assert host.file("/usr/local/cuda").exists
    assert host.run_expect([0], "readlink -f /usr/local/cuda").stdout.strip() == cuda["home"]


def test_program_compiles_without_a_warning(built):
    assert built["nvcc"] == ""


def test_program_reports_the_planned_runtime(document, component):
    major, minor = numbers(component("cuda")["version"])[:2]
    assert document["versions"]["cuda"] == major * 1000 + minor * 10


def test_program_reports_the_planned_cudnn(document, component):
    major, minor, patch = numbers(component("cudnn")["version"])[:3]
    assert document["versions"]["cudnn"] == major * (10000 if major > 8 else 1000) + minor * 100 + patch


def test_program_reports_the_planned_nccl(document, component):
    major, minor, patch = numbers(component("nccl")["version"])[:3]
    assert document["versions"]["nccl"] == major * 10000 + minor * 100 + patch


def test_program_sees_the_gpus_or_reports_no_device(document, plan, variables):
    assert (document["simulated"], document["unfinished"]) == (None, None)
    if variables.get("nvidia_driver_load_module", True):
        assert (document["outcome"], len(document["devices"])) == ("devices", len(plan["gpus"]))
    else:
        assert (document["outcome"], document["devices"]) == ("no device", [])
        assert document["error"]["name"] in WITHOUT_A_DEVICE


def test_every_gpu_computes_and_transfers_data(document, plan, variables):
    if not variables.get("nvidia_driver_load_module", True):
        pytest.skip("nvidia_driver_load_module is false for this host: no GPU can be used")
    if not plan["gpus"]:
        pytest.skip("the plan has no GPU")
    for device in document["devices"]:
        assert device["kernel"]["right"], device
        assert all(copy["right"] for copy in device["copies"].values()), device
    count = len(plan["gpus"])
    assert len(document["peers"]) == count * (count - 1)
    assert [pair for pair in document["peers"] if not pair["copy"]["right"]] == []
    if plan["components"].get("nccl"):
        assert (document["all_reduce"]["right"], len(document["all_reduce"]["devices"])) == (True, count)


def test_no_library_path_is_set_system_wide(host):
    """LD_LIBRARY_PATH would take precedence over the CUDA libraries in TensorFlow's wheels."""
    for shell in ("bash -lc env", "env"):
        assert "LD_LIBRARY_PATH" not in host.run_expect([0], shell).stdout
