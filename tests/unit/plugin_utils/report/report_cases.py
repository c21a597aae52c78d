"""What the tests of the report share: the evidence of a host without failures, and of failures."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit import plans

PACKAGES = {
    "nvidia-driver-cuda": {"version": "595.71.05-1", "status": "installed", "held": True},
    "cuda-toolkit-13-2": {"version": "13.2.1-1", "status": "installed", "held": True},
    "libcudnn9-cuda-13": {"version": "9.28.0.42-1", "status": "installed", "held": True},
    "libnccl2": {"version": "2.32.3-1+cuda13.2", "status": "installed", "held": True},
    "libnccl-dev": {"version": "2.32.3-1+cuda13.2", "status": "installed", "held": True},
}
PROBE: dict[str, Any] = {
    "distribution": {"id": "debian-12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
    "kernel": {"running": "6.1.0-56-amd64"},
    "gpus": [{"pci_id": "10de:2335"}, {"pci_id": "10de:2335"}],
    "driver": {"loaded": {"version": "595.71.05", "kernel_modules": "open"}},
    "packages": PACKAGES,
    "tensorflow": {"path": "/opt/gpuhost/tensorflow", "version": "2.21.0", "python": "3.11"},
    "simulated": [],
}
BEFORE: dict[str, Any] = {**PROBE, "driver": {"loaded": None}, "packages": {}, "tensorflow": None}
_PLAN: dict[str, Any] = {
    "ok": True,
    "request": {
        "driver": "auto",
        "cuda": "13.2",
        "cudnn": "auto",
        "nccl": "auto",
        "tensorflow": "auto",
        "pytorch": "none",
    },
    "gpus": [{"pci_id": "10de:2335", "name": "NVIDIA H200", "compute_capability": "9.0", "architecture": "Hopper"}] * 2,
    "components": {
        "driver": {"version": "595.71.05", "kernel_modules": "open", "packages": ["nvidia-driver-cuda=595.71.05-1"]},
        "cuda": {"version": "13.2", "release": "13.2.1", "packages": ["cuda-toolkit-13-2=13.2.1-1"]},
        "cudnn": {"version": "9.28.0.42", "packages": ["libcudnn9-cuda-13=9.28.0.42-1"]},
        "nccl": {"version": "2.32.3", "packages": ["libnccl2=2.32.3-1+cuda13.2", "libnccl-dev=2.32.3-1+cuda13.2"]},
        "tensorflow": {"version": "2.21.0", "python": "3.11", "cuda_libraries": "wheel"},
        "pytorch": None,
    },
    "problems": [],
    "warnings": [],
}
PLAN = plans.plan_json(_PLAN)
VERIFY: dict[str, Any] = {
    "status": "pass",
    "simulated": [],
    "checks": [
        {"id": "driver.nvidia_smi", "status": "pass", "versions": {"driver": "595.71.05"}},
        {
            "id": "cuda.compile_link_run",
            "status": "pass",
            "versions": {"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.32.3"},
            "loaded": {"cudnn": "9.28.0", "nccl": "2.31.1"},
        },
        {
            "id": "tensorflow.version",
            "status": "pass",
            "versions": {"tensorflow": "2.21.0"},
            "loaded": {"tensorflow": "2.21.0 (tensorflow-2.21.0-py3.11)"},
        },
        {"id": "env.sudo", "status": "skip", "reason": "sudo is not installed"},
    ],
}
TRAINING: dict[str, Any] = {
    "status": "pass",
    "framework": "tensorflow",
    "version": "2.21.0",
    "checks": [{"id": "data", "status": "pass"}],
    "replicas": 2,
    "virtual": False,
    "simulated": [],
    "data": {"kind": "real", "description": "CIFAR-10"},
    "model": {"name": "ResNet-8"},
    "steps": 60,
    "loss": {"first": 2.41, "last": 1.32},
    "images_per_second": 5120.5,
    "seconds": 12.5,
}
FULL = {"probe": BEFORE, "plan": PLAN, "probe_after": PROBE, "verify": VERIFY, "smoke_train": TRAINING}


def evidence(**changes: Any) -> dict[str, Any]:
    """FULL with parts replaced; None removes a part."""
    parts = {**copy.deepcopy(FULL), **changes}
    return {name: part for name, part in parts.items() if part is not None}


def failing(part: dict[str, Any], check_id: str, **more: str) -> dict[str, Any]:
    check = {"id": check_id, "status": "fail", "found": "x|y", "expected": "z", "remedy": "do this", **more}
    return {**part, "status": "fail", "checks": [*part["checks"], check]}


REFUSED = {
    **PLAN,
    "ok": False,
    "components": {},
    "problems": [{"code": "no-gpu", "message": "no GPU was found", "remedy": "put one in"}],
}
FULL_DISK = {"problems": [{"code": "disk-full", "message": "/opt is full", "remedy": "make room"}], "warnings": []}
REPOSITORY = {
    "problems": [
        {
            "code": "repository-unreadable",
            "message": "Failed to fetch http://h/a.deb  Could not resolve 'h'; the name is not found",
            "remedy": "correct the host's name servers",
        }
    ]
}
NO_TENSORFLOW = {**PLAN, "components": {**PLAN["components"], "tensorflow": None}}


WITH_PYTORCH = {
    **PLAN,
    "components": {
        **PLAN["components"],
        "pytorch": plans.component("pytorch", {"version": "2.11.0", "python": "3.11"}),
    },
}
TORCH = {
    **TRAINING,
    "framework": "pytorch",
    "version": "2.11.0+cu130",
    "all_reduce": {"implementation": "gloo", "fallbacks": ["two replicas share GPU 0"]},
    "agreement": {"replicas": [1, 2], "largest_relative_difference": 2.5e-06, "tolerance": 0.001},
    "monitor": {
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "utilization_max": 97,
                "memory_used_max_mib": 5120,
                "power_max_w": 512.5,
                "temperature_max_c": 51,
            }
        ]
    },
    "counters": [
        {"gpu": 0, "grown": ["Recovery Errors (link 14: +3)", "FEC Errors - * +12 on 18 links"]},
        {"gpu": 1, "grown": []},
    ],
    "cluster": {"workers": ["a:12345", "b:12345"], "index": 1},
}
