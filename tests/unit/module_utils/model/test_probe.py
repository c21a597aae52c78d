"""The records of a probe: JSON that was recorded becomes the same JSON again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as module
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import from_json, to_json

from tests.unit.module_utils.host_files import link, put
from tests.unit.module_utils.simulated_host import H200, SimulatedHost

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDED = [path for path in sorted(FIXTURES.rglob("*.json")) if '"pci_address"' in path.read_text()]
OPTIONS = module.Options(package_patterns=["*"], managed={"driver": {"services": ["nvidia-persistenced"]}})


def of_a_host(root: Path) -> Any:
    """Return the probe's JSON of a root with GPUs, packages, sources, records of earlier runs and a display."""
    host = SimulatedHost(root, [H200, H200], switches=1)
    status = (FIXTURES / "probe/dpkg-status-states.txt").read_text()
    for path, text in {
        "/etc/os-release": (FIXTURES / "probe/os-release-debian-12.txt").read_text(),
        "/var/lib/dpkg/status": status,
        "/boot/vmlinuz-6.1.0-56-amd64": "",
        "/lib/modules/6.1.0-56-amd64/kernel/drivers/x.ko": "",
        "/usr/bin/python3.11": "",
        "/proc/sys/kernel/osrelease": "6.1.0-56-amd64\n",
        "/proc/sys/kernel/modules_disabled": "1\n",
        "/proc/cmdline": "overlayroot=tmpfs\n",
        "/etc/modprobe.d/a.conf": "alias nvidia off\n",
        "/sys/module/module/parameters/sig_enforce": "Y\n",
        "/proc/mounts": "pool / zfs rw 0 0\n",
        "/proc/cpuinfo": "model name\t: A\nflags\t\t: fpu avx2\n",
        "/sys/class/dmi/id/sys_vendor": "Supermicro\n",
        "/proc/42/comm": "python3\n",
        "/dev/nvidiactl": "",
        "/etc/pve/.version": "{}",
        "/usr/bin/ofed_info": "",
        "/usr/bin/nvidia-uninstall": "",
        "/usr/local/cuda-12.4/bin/nvcc": "",
        "/usr/local/cuda-12.4/bin/cuda-uninstaller": "",
        "/opt/gpuhost/tensorflow/lib/python3.11/site-packages/tensorflow-2.21.0.dist-info/METADATA": "",
        "/opt/gpuhost/pytorch/lib/python3.11/site-packages/torch-2.9.0.dist-info/METADATA": "",
        "/usr/share/gpuhost-simulated/gpus.txt": "GPUs\n",
        "/etc/ansible/facts.d/gpu_stack.fact": '{"components": {}}',
        "/etc/apt/sources.list": "deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n",
        "/var/lib/dkms/nvidia/550.54.15/source/x": "",
        "/var/lib/gpuhost/verified.json": json.dumps({"plan": {"request": {"cuda": "13.2"}}, "evidence": {"at": "x"}}),
        "/var/lib/gpuhost/last_result.json": '{"status": "pass", "checks": {}}',
        "/var/lib/gpuhost/journal.json": '{"packages": {"libnccl2": null}}',
        "/var/lib/gpuhost/pending.json": '{"since": "2026-11-02T00:00:00Z"}',
        "/var/lib/gpuhost/transaction.json": '{"what": "install", "changes": 2, "ended": "x", "failed": null}',
        "/var/lib/gpuhost/applied.json": json.dumps(
            {
                "parts": {
                    "env_paths": {
                        "fingerprint": "f",
                        "watch": {"files": ["/etc/x"]},
                        "resources": {"file": {"/etc/x": {}}},
                    }
                }
            }
        ),
    }.items():
        put(root, path, text)
    link(root, "/proc/42/fd/3", "/dev/nvidia-uvm")
    link(root, "/etc/systemd/system/nvidia-persistenced.service", "/dev/null")
    return json.loads(json.dumps(to_json(module.probe(str(root), OPTIONS, host.run))))


def again(data: Any) -> Any:
    return to_json(from_json(Probe, data, "probe"))


def within(data: Any, given: Any) -> Any:
    """Return `data` without the keys that `given` lacks, as a probe of an earlier release does."""
    if isinstance(data, dict):
        return {key: within(value, given[key]) for key, value in data.items() if key in given}
    if isinstance(data, list):
        return [within(item, of) for item, of in zip(data, given, strict=True)]
    return data


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_probe_is_the_same_again(path: Path) -> None:
    given = json.loads(path.read_text())
    assert within(again(given), given) == given


def test_the_probe_of_a_host_is_the_same_again(tmp_path: Path) -> None:
    found = of_a_host(tmp_path)
    assert again(found) == found
    nothing = {key for key, value in found.items() if not value}
    assert nothing - {"uid", "kernel_keys"} == {
        *("cloud_init_running", "errors", "newer_state", "repository", "run", "secure_boot_keys", "undone"),
        *("guest_settings", "selinux_enforcing", "switch_managers"),
        "trusted_certificates",
    }


@pytest.mark.parametrize("root", ["/", "empty"])
def test_so_is_that_of_this_machine_and_of_an_empty_root(tmp_path: Path, root: str) -> None:
    place = str(tmp_path) if root == "empty" else root
    found = json.loads(json.dumps(to_json(module.probe(place, OPTIONS, command.run))))
    assert again(found) == found
