"""What the tests of the preflight share: a clean host, its plan, and a run of the preflight."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options, Preflight

from tests.unit.module_utils.host_files import put
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

LOCK = {"path": "/var/lib/dpkg/lock-frontend", "pid": 812, "command": "/usr/bin/unattended-upgrade"}
BUSY = {"name": "apt", "locks": [LOCK, {**LOCK, "path": "/var/lib/dpkg/lock"}], "broken": [], "interrupted": False}
BROKEN = {**BUSY, "locks": [], "broken": [{"name": "dkms", "state": "half-configured"}]}
RUN_DRIVER = {
    "driver": {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": ["/x"], "version": "550.54.14"},
    "toolkits": [],
}
JOB = [{"pid": 7, "name": "python3 train.py", "program": "python3", "computes": True, "devices": []}]
CONTAINER = Options(own_kernel=False, kernel_headers=())
PROBING = host_probe.Options(
    None, {}, True, (), ("*",), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit",
    managed={"nvidia_driver": {"services": ["nvidia-persistenced", "nvidia-fabricmanager"]}, "cudnn": {}},
)  # fmt: skip


def run(components: dict[str, Any] | None = None, options: Options | None = None, **parts: Any) -> Preflight:
    plan, probe = make_plan(components or COMPONENTS, url=URL), make_probe(**{**copy.deepcopy(PROBE), **parts})
    return checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe), options)


def without(*names: str) -> dict[str, Any]:
    return {name: None if name in names else part for name, part in COMPONENTS.items()}


def codes(found: Preflight) -> tuple[list[str], list[str]]:
    return [problem.code for problem in found.problems], [warning.code for warning in found.warnings]


def kernel(running: str, following: str, headers: list[str], offers: Any) -> dict[str, Any]:
    return {"kernel": {"running": running, "next_boot": following, "headers": headers, "headers_from": offers}}


def refused(code: str, **parts: Any) -> str:
    """Return what a terminal shows of a host with this problem alone."""
    found = run(**parts)
    assert codes(found) == ([code], [])
    assert found.ok is False
    return checks.refusal(found.problems)


def warned(code: str, **parts: Any) -> str:
    """Return the warning of a host with this one alone."""
    found = run(**parts)
    assert codes(found) == ([], [code])
    return found.warnings[0].message


def run_as_a_user(**parts: Any) -> Preflight:
    """Run the preflight of gpu_stack_scope=frameworks as a user without root, who owns gpuhost's directory."""
    user = {"uid": 1001, "may_write": {"/opt/gpuhost": True}, "python": {"default": "3.11", "ensurepip": True}}
    plan = make_plan(without("driver", "cuda", "cudnn", "nccl"), request={"scope": "frameworks"})
    probe = make_probe(**{**PROBE, **user, **parts})
    return checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe))


def probed(root: Path, files: dict[str, str | bytes], *parts: str) -> dict[str, Any]:
    """Return parts of the probe of a host with these files."""
    for path, content in files.items():
        put(root, path, content)
    found = to_json(host_probe.probe(str(root), PROBING))
    return {part: found[part] for part in parts}
