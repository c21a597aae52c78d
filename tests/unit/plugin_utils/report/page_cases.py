"""Runs whose pages the tests look at: a host with eight GPUs, one failed host of ten, 500 hosts, and hostile names."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify as checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, CheckSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.about import About
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import Report, build_report
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands

from tests.unit.plugin_utils.report.report_cases import FULL_DISK, PLAN, PROBE, TORCH, TRAINING, WITH_PYTORCH, evidence

RUN = About(
    "2026-11-27T16:12:00Z",
    "2026-11-27T16:21:22Z",
    562,
    "ansible-playbook playbooks/gpu_host.yml -i inventories/lab -e gpu_stack_cuda=13.2 --limit hopper",
    "me@lab",
    "0.1.0",
    "1a2b3c4d5e6f",
)
COMMANDS = Commands(
    {
        "args": ("playbooks/gpu_host.yml",),
        "inventory": ("inventories/lab",),
        "extra_vars": ("gpu_stack_cuda=13.2",),
        "subset": "hopper",
    }
)
MACHINE = {"vendor": "Supermicro", "model": "SYS-821GE-TNHR", "serial": "S411795X3A12345"}
SPECS: dict[str, CheckSpec] = {spec.id: spec for group in checks.GROUPS.values() for spec in group.CHECKS}
# What an inventory or a host may call itself or say.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnirts desrever\u202c",
    "\x1b[31mred\x00\x07\u2028",
    "שלום-עולם",
    "web/01?x=1#y&amp;%41",
    "n" * 200,
)


def gpus(count: int) -> list[dict[str, Any]]:
    """Return the GPUs of an HGX H200, as the checks record them."""
    return [
        {
            "index": index,
            "pci_address": f"0000:{0x1A + 0x11 * index:02x}:00.0",
            "name": "NVIDIA H200",
            "uuid": f"GPU-3f0c9a52-7e11-4b6d-9c1e-5d2a1f0e6b{index:02x}",
            "serial": f"16509230000{index:02d}",
            "memory": "143771 MiB",
            "vbios": "96.00.CF.00.01",
            "pcie_width": 16,
            "pcie_max_width": 16,
            "pcie_generation": 5,
            "pcie_max_generation": 5,
            "nvlinks": 18,
            "nvlinks_up": 18,
            "nvlink_gb_per_second": 26.562,
        }
        for index in range(count)
    ]


def bandwidths(count: int, slow: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return what cuda.bandwidth measured; slow: a pair below its threshold."""
    limits = {
        "host_to_device": (55.3, 44.1, "PCIe 32 GT/s x16"),
        "device_to_host": (56.1, 44.1, "PCIe 32 GT/s x16"),
        "device_to_device": (3890.0, 2880.0, "the model's"),
    }
    rows: list[dict[str, Any]] = [
        {"kind": kind, "gpus": [index], "gb_per_second": rate + index / 10, "minimum": minimum, "source": source}
        for index in range(count)
        for kind, (rate, minimum, source) in limits.items()
    ]
    for one in range(count):
        for to in range(count):
            if one != to:
                rate = 187.0 if (one, to) == slow else 392.0 + (one + to) % 5
                rows.append(
                    {"kind": "peer", "gpus": [one, to], "gb_per_second": rate, "minimum": 351.0}
                    | {"source": "18 NVLinks of 25"}
                )
    everyone = {"kind": "all_reduce", "gpus": list(range(count)), "gb_per_second": 478.0}
    return [*rows, {**everyone, "minimum": 340.0, "source": "the model's"}]


def verify(count: int, *others: Check, slow: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the evidence of checks that pass, but for the `others`."""
    results = {
        spec.id: Check(spec.id, "pass", f"GPU 0 to {count - 1}: as expected", spec.expected) for spec in SPECS.values()
    }
    results["driver.nvidia_smi"] = Check(
        "driver.nvidia_smi",
        "pass",
        "exit 0, driver 595.71.05",
        "exit 0, driver 595.71.05",
        versions={"driver": "595.71.05"},
    )
    results["cuda.compile_link_run"] = Check(
        "cuda.compile_link_run",
        "pass",
        "CUDA 13.2, cuDNN 9.28.0, NCCL 2.32.3",
        "CUDA 13.2, cuDNN 9.28.0, NCCL 2.32.3",
        versions={"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.32.3"},
        loaded={"cudnn": "9.28.0", "nccl": "2.32.3"},
    )
    results["env.sudo"] = SPECS["env.sudo"].skip("sudo is not installed")
    results.update({check.id: check for check in others})
    statuses = {check.status for check in results.values()}
    return {
        "status": next((status for status in ("fail", "unknown") if status in statuses), "pass"),
        "simulated": [],
        "checks": [check.to_dict() for check in results.values()],
        "gpus": gpus(count),
        "bandwidths": bandwidths(count, slow),
    }


def diff() -> dict[str, Any]:
    """Return what a first run changes on a host that had another driver."""

    def package(name: str, action: str, installed: str | None, planned: str | None) -> dict[str, Any]:
        return {"name": name, "action": action, "installed": installed, "planned": planned}

    return {
        "changes": True,
        "components": [
            {
                "component": "driver",
                "action": "upgrade",
                "installed": "580.126.16",
                "planned": "595.71.05",
                "packages": [
                    package("nvidia-driver-cuda", "upgrade", "580.126.16-1", "595.71.05-1"),
                    package("nvidia-dkms-580-open", "remove", "580.126.16-1", None),
                ],
            },
            {
                "component": "cuda",
                "action": "install",
                "installed": None,
                "planned": "13.2.1",
                "packages": [package("cuda-toolkit-13-2", "install", None, "13.2.1-1")],
            },
            {"component": "cudnn", "action": "keep", "installed": "9.28.0.42", "planned": "9.28.0.42", "packages": []},
        ],
        "leftovers": {"does": ["/etc/apt/sources.list.d/cuda.list is set aside"]},
        "others": ["the driver changes from 580.126.16 to 595.71.05: all programs must leave the GPUs"],
    }


def losses(steps: int) -> list[float]:
    """Return a loss that falls, with noise."""
    return [round(2.41 * math.exp(-step / 25) + 0.25 + 0.12 * math.sin(step * 1.7), 4) for step in range(steps)]


def recording(count: int, samples: int = 120) -> list[dict[str, str]]:
    """Return rows as gpu_monitor.py writes them: idle, then a training, then idle."""
    rows = []
    for sample in range(samples):
        mark = "before" if sample < samples * 0.15 else "during" if sample < samples * 0.85 else "after"
        for gpu in range(count):
            busy = mark == "during"
            wave = math.sin(sample / 4 + gpu)
            rows.append(
                {
                    "seconds": f"{sample * 0.5:.1f}",
                    "mark": mark,
                    "gpu": str(gpu),
                    "name": "NVIDIA H200",
                    "utilization_percent": f"{91 + 6 * wave:.0f}" if busy else "0",
                    "memory_used_mib": "5120" if busy else "1",
                    "power_w": f"{480 + 40 * wave:.1f}" if busy else f"{75 + gpu}",
                    "temperature_c": f"{48 + gpu + 5 * wave:.0f}" if busy else str(30 + gpu),
                    "sm_clock_mhz": "1980" if busy else "345",
                    "memory_clock_mhz": "3201",
                }
            )
    return rows


def host(count: int = 8, **changes: Any) -> dict[str, Any]:
    """Return the evidence of a host with many GPUs that a run changed and verified."""
    cards = [{"index": gpu["index"], "pci_address": gpu["pci_address"], "name": gpu["name"]} for gpu in gpus(count)]
    driver = {**PROBE["driver"], "nvidia_smi": {"gpus": cards}}
    damaged = {"applied": {"nvidia_driver": {"damage": {"a": "/etc/modprobe.d/nvidia.conf has another content"}}}}
    training = {
        **TORCH,
        **{name: TRAINING[name] for name in ("framework", "version")},
        "replicas": count,
        "cluster": None,
    }
    training["loss"] = {"first": 2.41, "last": 0.43, "history": losses(60)}
    training["monitor"] = {
        "gpus": [{**TORCH["monitor"]["gpus"][0], "index": gpu, "power_max_w": 512.5 + gpu} for gpu in range(count)]
    }
    parts = {
        "probe": {**PROBE, "driver": driver, **damaged},
        "plan": {**PLAN, "gpus": PLAN["gpus"][:1] * count},
        "diff": diff(),
        "drift": {
            "nvidia_driver": ["driver changes from 580.126.16 to 595.71.05"],
            "packages": ["no complete run is recorded for it"],
        },
        "probe_after": {**PROBE, "driver": driver, "machine": MACHINE},
        "stages": {"plan": 21.4, "provision": 372.0, "verify": 64.2, "smoke train": 88.0, "leave hosts": 0.1},
        "verify": verify(count),
        "smoke_train": training,
        "changed": True,
        "recorded": True,
    }
    return evidence(**copy.deepcopy({**parts, **changes}))


def failures() -> list[Check]:
    """Return checks of each outcome but pass, with the remedies that users read."""
    slow = SPECS["cuda.bandwidth"].compare(False, "2-5 187 GB/s, at least 351 (18 NVLinks of 25)")
    path = SPECS["cuda.cudnn_handle"]
    setting = "LD_LIBRARY_PATH=/opt/x in /etc/environment, line 3"
    return [
        slow,
        SPECS["gpu.pcie_width"].compare(False, "GPU 5: x8 of x16"),
        path.of_host("another libcudnn is loaded", setting, "Remove the line."),
        SPECS["gpu.persistence"].warn("GPU 1: persistence mode Disabled"),
        SPECS["gpu.inforom"].unknown("nvidia-smi does not answer within 90 s"),
    ]


def verified() -> Report:
    """Return a run of one host with eight GPUs."""
    return build_report("20261127-161200-a1b2c3d4", {"hopper-1": host()}, about=RUN)


def simulated() -> Report:
    """Return a run of one host whose driver is simulated, with both frameworks and many skips for one reason."""
    skips = [spec.skip("the driver is simulated") for name, spec in SPECS.items() if name.startswith("gpu.")]
    checked = {**verify(8, *skips), "simulated": ["GPUs on the PCI bus (simulated)", "NVIDIA driver (simulated)"]}
    for check in checked["checks"]:
        check["simulated"] = check["status"] == "pass"
    plan = {**WITH_PYTORCH, "gpus": PLAN["gpus"][:1] * 8}
    one = host(verify=checked, plan=plan, smoke_train_pytorch=TORCH)
    return build_report("20261127-161200-a1b2c3d4", {"hopper-1": one}, about=RUN)


def one_of_ten() -> Report:
    """Return a run of ten hosts of which one failed."""
    hosts = {f"hopper-{number}": host() for number in range(1, 11)}
    broken = verify(8, *failures(), slow=(2, 5))
    hosts["hopper-4"] = host(verify=broken, recorded=False, smoke_train=None)
    return build_report("20261127-161200-a1b2c3d4", hosts, about=RUN)


def fleet(count: int = 500) -> Report:
    """Return a run of many hosts: most are verified, some failed in some ways."""
    good, refused = host(), host(preflight=FULL_DISK, changed=False, verify=None, smoke_train=None, probe_after=None)
    broken = host(verify=verify(8, *failures(), slow=(2, 5)), recorded=False)
    gone = {"failure": {"task": "Probe the host", "message": "Failed to connect by ssh", "unreachable": True}}
    kinds: Mapping[int, dict[str, Any]] = {7: refused, 42: broken, 99: broken, 121: gone, 250: gone}
    hosts = {f"gpu-{number:04d}.cluster.example.org": kinds.get(number, good) for number in range(1, count + 1)}
    return build_report("20261127-161200-a1b2c3d4", hosts, about=RUN)


def all_different(count: int = 500) -> Report:
    """Return a run of many hosts that all fail, each in its own way and in long words."""
    hosts = {}
    for number in range(count):
        words = f"host {number} says " + "something long about itself, " * 20
        wrong = [
            {"id": f"gpu.check{at}", "status": "fail"} | dict.fromkeys(("found", "expected", "remedy"), words)
            for at in range(6)
        ]
        hosts[f"gpu-{number:04d}.cluster.example.org"] = host(
            2, verify={"status": "fail", "checks": wrong}, failure={"task": words, "message": words}, recorded=False
        )
    return build_report("20261127-161200-a1b2c3d4", hosts, about=RUN)


def hostile() -> Report:
    """Return a run of hosts with hostile names, which say them wherever a host says something."""
    hosts = {}
    for name in HOSTILE:
        parts = host(2, verify=verify(2, *failures()), recorded=False)
        parts["probe_after"]["distribution"]["pretty_name"] = name
        parts["verify"]["gpus"][0] |= {"name": name, "serial": name, "uuid": name}
        parts["verify"]["checks"] += [
            {
                "id": f"x.{name}",
                "status": status,
                "found": name,
                "expected": name,
                "remedy": name,
                "reason": name,
                "setting": name,
            }
            for status in ("pass", "fail", "unknown", "skip")
        ]
        parts["preflight"] = {"problems": [{"code": name, "message": name, "remedy": name}]}
        parts["plan"]["warnings"] = [{"code": name, "message": name}]
        parts["verify"]["simulated"] = [name]
        parts["diff"]["components"][0]["packages"][0]["name"] = name
        hosts[name] = parts
    command = f"ansible-playbook {HOSTILE[0]}"
    about = About(RUN.started, RUN.finished, RUN.seconds, command, HOSTILE[1], RUN.gpuhost, RUN.catalog)
    return build_report("20261127-161200-a1b2c3d4", hosts, about=about)
