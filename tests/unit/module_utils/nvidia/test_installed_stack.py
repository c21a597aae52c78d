"""CUDA trees and framework environments on a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment, InstalledCuda
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack

from tests.unit.module_utils.host_files import link, put


def environment(root: Path, name: str, path: str = "") -> Environment | None:
    (framework,) = (each for each in FRAMEWORKS if each.name == name)
    return installed_stack.environment(str(root), framework, path or framework.path)


def test_cuda_trees_and_default_link(tmp_path: Path) -> None:
    for tree in ("cuda-13.2", "cuda-9.0", "cuda-12.9"):
        put(tmp_path, f"/usr/local/{tree}/bin/nvcc")
    put(tmp_path, "/usr/local/cuda-11.8/lib64/libcudart.so")  # a library alone is no toolkit
    link(tmp_path, "/usr/local/cuda", "/etc/alternatives/cuda")
    link(tmp_path, "/etc/alternatives/cuda", "/usr/local/cuda-12.9")
    # The package as dpkg has it on a Debian 12 host.
    status = "Package: nvidia-cuda-toolkit\nStatus: hold ok %s\nVersion: 11.8.89~11.8.0-5~deb12u1\n"
    put(tmp_path, "/var/lib/dpkg/status", status % "config-files")
    assert installed_stack.cuda(str(tmp_path), "nvidia-cuda-toolkit").distro is None
    put(tmp_path, "/var/lib/dpkg/status", status % "installed")
    assert to_json(installed_stack.cuda(str(tmp_path), "nvidia-cuda-toolkit")) == {
        "installed": ["9.0", "12.9", "13.2"],
        "default": "12.9",
        "distro": "11.8",
    }
    assert to_json(installed_stack.cuda(str(tmp_path / "nothing"), "nvidia-cuda-toolkit")) == {
        "installed": [],
        "default": None,
        "distro": None,
    }


def test_tensorflow_by_its_metadata(tmp_path: Path) -> None:
    site = "/opt/gpuhost/tensorflow/lib/python3.11/site-packages"
    put(tmp_path, f"{site}/tensorflow_io_gcs_filesystem-0.37.dist-info/METADATA")
    assert environment(tmp_path, "tensorflow") is None
    put(tmp_path, f"{site}/tensorflow-2.21.0.dist-info/METADATA")
    assert to_json(environment(tmp_path, "tensorflow")) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.21.0",
        "python": "3.11",
    }


@pytest.mark.parametrize("directory", ["environments", "/opt/gpuhost/environments"], ids=["relative", "absolute"])
def test_link_is_resolved_within_the_root(tmp_path: Path, directory: str) -> None:
    environments = "/opt/gpuhost/environments"
    put(tmp_path, f"{environments}/new/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA")
    put(tmp_path, f"{environments}/old/lib/python3.12/site-packages/tensorflow-2.20.0.dist-info/METADATA")
    link(tmp_path, "/opt/gpuhost/tensorflow", f"{directory}/old")
    assert to_json(environment(tmp_path, "tensorflow")) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.20.0",
        "python": "3.12",
    }
    link(tmp_path, "/opt/gpuhost/dangling", f"{directory}/removed")
    assert environment(tmp_path, "tensorflow", "/opt/gpuhost/dangling") is None


@pytest.mark.parametrize(
    ("name", "lock"),
    [("tensorflow-2.21.0-py3.11-4b868730", "4b868730"), ("tensorflow-2.21.0-py3.11-4b868730-2", "4b868730")],
)
def test_an_environment_is_named_after_its_lock(tmp_path: Path, name: str, lock: str) -> None:
    """A number at the end marks the replacement of a damaged one (framework_env/files/state.py)."""
    put(tmp_path, f"/opt/gpuhost/environments/{name}/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA")
    link(tmp_path, "/opt/gpuhost/tensorflow", f"environments/{name}")
    found = environment(tmp_path, "tensorflow")
    assert found
    assert found.lock == lock


def test_pytorch_by_its_metadata(tmp_path: Path) -> None:
    environments = "/opt/gpuhost/environments"
    put(tmp_path, f"{environments}/t/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA")
    put(tmp_path, f"{environments}/p/lib/python3.11/site-packages/torchvision-0.30.0.dist-info/METADATA")
    link(tmp_path, "/opt/gpuhost/tensorflow", "environments/t")
    assert environment(tmp_path, "pytorch") is None
    link(tmp_path, "/opt/gpuhost/pytorch", "environments/p")
    assert environment(tmp_path, "pytorch") is None
    put(tmp_path, f"{environments}/p/lib/python3.11/site-packages/torch-2.15.0.dist-info/METADATA")
    assert to_json(environment(tmp_path, "pytorch")) == {
        "path": "/opt/gpuhost/pytorch",
        "version": "2.15.0",
        "python": "3.11",
    }
    assert to_json(environment(tmp_path, "tensorflow")) == {
        "path": "/opt/gpuhost/tensorflow",
        "version": "2.21.0",
        "python": "3.11",
    }


def test_what_occupies_the_path_of_the_link(tmp_path: Path) -> None:
    path = "/opt/gpuhost/tensorflow"
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/tensorflow") is None
    put(tmp_path, path)
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/tensorflow") == "a file"
    (tmp_path / path.lstrip("/")).unlink()
    put(tmp_path, f"{path}/bin/python")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/tensorflow") == "a directory"
    link(tmp_path, "/opt/gpuhost/ours", "environments/tensorflow-2.21.0-py3.11-4b868730")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/ours") is None
    link(tmp_path, "/opt/gpuhost/theirs", "/srv/tensorflow")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/theirs") == "a link to /srv/tensorflow"


@pytest.mark.parametrize(
    ("version", "status", "distro"),
    [
        ("11.8.89~11.8.0-5~deb12u1", "installed", "11.8"),
        ("1:12.2.140-4", "half-configured", "12.2"),
        ("11.8.89-5", "config-files", None),
        ("11.8.89-5", "not-installed", None),
        ("none", "installed", None),
    ],
)
def test_toolkit_of_the_distribution(tmp_path: Path, version: str, status: str, distro: str | None) -> None:
    text = f"Package: nvidia-cuda-toolkit\nStatus: hold ok {status}\nVersion: {version}\n"
    put(tmp_path, "/var/lib/dpkg/status", text)
    assert installed_stack.cuda(str(tmp_path), "nvidia-cuda-toolkit").distro == distro


@pytest.mark.parametrize(("target", "default"), [("cuda-13.2", "13.2"), ("/opt/cuda", None), ("cuda-13", None)])
def test_default_toolkit_is_the_target_of_the_link(tmp_path: Path, target: str, default: str | None) -> None:
    for path in ("/usr/local/cuda-13.2/bin/nvcc", "/usr/local/cuda-13/bin/nvcc", "/opt/cuda/bin/nvcc"):
        put(tmp_path, path)
    link(tmp_path, "/usr/local/cuda", target)
    assert installed_stack.cuda(str(tmp_path), "x") == InstalledCuda(("13.2",), default)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "5", "null"])
def test_plan_that_is_damaged_is_an_error(tmp_path: Path, text: str) -> None:
    put(tmp_path, installed_stack.APPLIED_PLAN, text)
    with pytest.raises(ValueError, match=r"^/etc/ansible/facts\.d/gpu_stack\.fact "):
        installed_stack.applied_plan(str(tmp_path))


def test_plan_that_was_applied(tmp_path: Path) -> None:
    assert installed_stack.applied_plan(str(tmp_path)) is None
    put(tmp_path, "/etc/ansible/facts.d/gpu_stack.fact", '{"components": {}}')
    assert installed_stack.applied_plan(str(tmp_path)) == {"components": {}}


def test_what_is_simulated(tmp_path: Path) -> None:
    assert installed_stack.simulated(str(tmp_path)) == []
    put(tmp_path, "/usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05\n\n PCI devices \n")
    put(tmp_path, "/usr/share/gpuhost-simulated/nvidia-smi.json", "{}\n")
    assert installed_stack.simulated(str(tmp_path)) == ["NVIDIA driver 580.95.05", "PCI devices"]


def test_path_of_the_link_with_something_else(tmp_path: Path) -> None:
    link(tmp_path, "/opt/gpuhost/tensorflow", "/srv/removed")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/tensorflow") == "a link to /srv/removed"
    link(tmp_path, "/opt/gpuhost/absolute", "/opt/gpuhost/environments/x")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/absolute") is None
    link(tmp_path, "/opt/gpuhost/above", "environments")
    assert installed_stack.path_conflict(str(tmp_path), "/opt/gpuhost/above") == "a link to environments"
