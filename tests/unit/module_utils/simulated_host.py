"""A host for the checks: a root directory with simulated PCI devices, and the simulated nvidia-smi of the lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles import simulated_driver
from tests.doubles.nvidia_repository.contents import product_table
from tests.unit import plans

DRIVER = "580.95.05"
H200, H100, V100, A100, T4, RTX_5090 = "2335", "2330", "1db1", "20b2", "1eb8", "2b85"
NVSWITCH = "22a3"
NOT_ANSWERED = "run/gpuhost-simulated/not-answered"  # what nvidia-smi was asked that no published output answers
_ANSWERS: dict[tuple[object, ...], command.Answer] = {}  # of nvidia-smi, which is a process of a tenth of a second
NOTHING_PLANNED = {"cuda": None, "cudnn": None, "nccl": None, "tensorflow": None}


class SimulatedHost:
    """Run programs like command.run: nvidia-smi is the simulated one, the others print what `answer` sets."""

    def __init__(
        self, root: Path, gpus: list[str], switches: int = 0, driver: str = DRIVER, loaded: bool = True
    ) -> None:
        self.root, self.gpus = root, gpus
        self.security_floor: str | None = DRIVER
        self.answers: dict[str, command.Answer] = {}
        self.commands: list[list[str]] = []
        self.write("usr/share/gpuhost-simulated/nvidia-smi.json", product_table(driver, "13.0"))
        self.write("var/lib/dpkg/status", "Package: base-files\nStatus: install ok installed\nVersion: 12.4\n")
        for number, device in enumerate(gpus):
            self.add_device(f"0000:{5 + number:02x}:00.0", device, "0x030200", "nvidia" if loaded else None)
        for number in range(switches):
            self.add_device(f"0000:{0xC0 + number:02x}:00.0", NVSWITCH, "0x068000", "nvidia-nvswitch")
            self.write("run/gpuhost-simulated-fabric", f"{driver}\n")
        if loaded:
            text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
            self.write("proc/driver/nvidia/version", text)
            self.write("proc/modules", "nvidia 56717312 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (O)\n")
            self.write("run/nvidia-persistenced/nvidia-persistenced.pid", "1\n")
        self.driver = driver

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def add_device(self, address: str, device: str, pci_class: str, kernel_driver: str | None) -> None:
        directory = f"sys/bus/pci/devices/{address}"
        for name, text in {"vendor": "0x10de", "device": f"0x{device}", "class": pci_class}.items():
            self.write(f"{directory}/{name}", text + "\n")
        if kernel_driver:
            self.bind(address, kernel_driver)

    def bind(self, address: str, kernel_driver: str) -> None:
        link = self.root / f"sys/bus/pci/devices/{address}/driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../../../bus/pci/drivers/{kernel_driver}")

    def state(self, **state: object) -> None:
        """Set the state of the simulated nvidia-smi, in the format that its module docstring describes."""
        self.write("etc/gpuhost-simulated/nvidia-smi.json", json.dumps(state))

    def answer(self, program: str, text: str, exit_code: int = 0) -> None:
        """Set what a command that starts with `program` prints."""
        self.answers[program] = command.Answer(exit_code, text.encode(), b"")

    def run(self, argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        self.commands.append(argv)
        if argv[0] == str(simulated_driver.NVIDIA_SMI):
            asked = (*argv[1:], *simulated_driver.read_by_nvidia_smi(self.root))
            if asked not in _ANSWERS:
                _ANSWERS[asked] = self._nvidia_smi(argv[1:], timeout)
            return _ANSWERS[asked]
        for program, answer in self.answers.items():
            if " ".join(argv).startswith(program):
                return answer
        return command.Answer(command.NOT_STARTED, b"", f"{argv[0]}: not on this simulated host".encode())

    def _nvidia_smi(self, words: list[str], timeout: float) -> command.Answer:
        environment = {"GPUHOST_SIMULATED_ROOT": str(self.root), "LC_ALL": "C.UTF-8"}
        answer = command.run([*simulated_driver.nvidia_smi(), *words], timeout, environment)
        assert not (self.root / NOT_ANSWERED).exists(), (self.root / NOT_ANSWERED).read_text()
        return answer

    def context(self, **changes: Any) -> model.Context:
        """Return the context that gpu_verify would create on this host."""
        plan = {
            "components": {
                **NOTHING_PLANNED,
                "driver": {
                    "version": self.driver,
                    "kernel_modules": "open",
                    "packages": [],
                    "security_floor": self.security_floor,
                },
            },
            "gpus": [{"pci_id": f"10de:{device}"} for device in self.gpus],
        }
        arguments = {
            "kernel_module": "loaded",
            "driver_state": "auto",
            "environment_paths": {"tensorflow": "/nonexistent", "pytorch": "/nonexistent"},
            "fabric_manager_packages": list(load_catalog().packages.fabric_manager),
            "gpu_counters": facts.gpu_counters(load_catalog()),
            "xid_errors": facts.xid_errors(load_catalog()),
            **changes,
        }
        return verify.context(verify.Options(plans.plan_json(plan), **arguments), root=str(self.root), run=self.run)

    def verify(self, **changes: Any) -> dict[str, dict[str, Any]]:
        """Return every result of gpu_verify by check id."""
        checks = verify.verify(self.context(**changes))["checks"]
        return {str(check["id"]): check for check in checks}


def use_simulated_nvidia_smi(monkeypatch: Any) -> None:
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(simulated_driver.NVIDIA_SMI))
