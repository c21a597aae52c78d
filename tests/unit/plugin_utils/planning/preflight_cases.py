"""What the tests of the preflight share: a clean host, its plan, and a run of the preflight."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff, preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Options, Preflight

from tests.unit.plugin_utils.planning.planning_cases import CUDA, DRIVER, make_plan, make_probe

URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
COMPONENTS: dict[str, Any] = {
    "driver": {**DRIVER, "pinning_packages": [], "kernel_headers": ["linux-headers-amd64"]},
    "cuda": CUDA,
    "cudnn": {"version": "9.28", "packages": ["libcudnn9-cuda-13=9.28-1", "libcudnn9-dev-cuda-13=9.28-1"]},
    "nccl": None,
    "tensorflow": {"version": "2.21.0", "python": "3.11"},
    "pytorch": None,
}


def link(width: int | None = 16, speed: float | None = 16.0, **more: Any) -> dict[str, Any]:
    return {
        "link": {"speed": speed, "max_speed": 16.0, "width": width, "max_width": 16},
        "slot": None,
        "iommu_type": None,
        **more,
    }


def space(free: int, mount: str = "/") -> dict[str, Any]:
    return {"free_mib": free, "total_mib": 10**6, "mount": mount}


DIRECTORIES = (
    "/",
    "/usr",
    "/usr/local",
    "/opt/gpuhost/environments",
    "/var",
    "/var/cache/gpuhost/uv",
    "/var/lib/gpuhost",
)
PROBE: dict[str, Any] = {
    "kernel": {
        "running": "6.1.0-56-amd64",
        "next_boot": "6.1.0-56-amd64",
        "headers": ["6.1.0-56-amd64"],
        "headers_from": {},
    },
    "gpus": [{"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "kernel_driver": None}],
    "nvswitches": [],
    "pcie": {"gpus": {"0000:05:00.0": link(), "0000:26:00.0": link()}, "acs": {}, "kernel_options": []},
    "driver": {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None},
    "gpu_processes": [],
    "packages": {},
    "package_manager": {"name": "apt", "locks": [], "broken": [], "interrupted": False},
    "runfile": {"driver": None, "toolkits": []},
    "repository": {
        "sizes": {  # KiB
            "nvidia-driver-cuda": {"595.71.05-1": [200 * 1024, 500 * 1024, []]},
            "nvidia-kernel-open-dkms": {"595.71.05-1": [100 * 1024, 300 * 1024, []]},
            "cuda-toolkit-13-2": {"13.2.1-1": [3000 * 1024, 7000 * 1024, []]},
            "libcudnn9-cuda-13": {"9.28-1": [400 * 1024, 1000 * 1024, []]},
            "libcudnn9-dev-cuda-13": {"9.28-1": [401 * 1024, 1001 * 1024, ["libcudnn9-cuda-13"]]},
        }
    },
    "repository_files": {"entries": [], "keys": {}},
    "cuda": {"installed": []},
    "tensorflow": None,
    "secure_boot": "disabled",
    "secure_boot_keys": [],
    "disk": {directory: space(10**6) for directory in DIRECTORIES},
}
DRIVER_INSTALLED = {
    "packages": {
        name: {"version": "595.71.05-1", "status": "installed", "held": True}
        for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
    }
}
ALL_INSTALLED = {
    "packages": {
        **DRIVER_INSTALLED["packages"],
        "cuda-toolkit-13-2": {"version": "13.2.1-1", "status": "installed", "held": True},
        "libcudnn9-cuda-13": {"version": "9.28-1", "status": "installed", "held": True},
        "libcudnn9-dev-cuda-13": {"version": "9.28-1", "status": "installed", "held": True},
    },
    "tensorflow": {"version": "2.21.0", "python": "3.11"},
}
LOADED = {"driver": {"loaded": {"version": "595.71.05"}, "nouveau_loaded": False}}


def run(components: dict[str, Any] | None = None, options: Options | None = None, **parts: Any) -> Preflight:
    plan, probe = make_plan(components or COMPONENTS, url=URL), make_probe(**{**copy.deepcopy(PROBE), **parts})
    return preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe), options)


def without(*names: str) -> dict[str, Any]:
    return {name: None if name in names else part for name, part in COMPONENTS.items()}


def codes(found: Preflight) -> tuple[list[str], list[str]]:
    return [problem.code for problem in found.problems], [warning.code for warning in found.warnings]
