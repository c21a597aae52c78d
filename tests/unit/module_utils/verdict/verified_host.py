"""A host with the records of a verification, for gpuhost-verify: the checks have run on it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import command_line
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit import plans
from tests.unit.module_utils.simulated_host import DRIVER, H200, NOTHING_PLANNED, SimulatedHost

DAY = 86400
FIRST, SECOND = "0000:05:00.0", "0000:06:00.0"
# As journalctl and dmesg print them; the Xid is that of NVIDIA's catalogue for a GPU that has fallen off the bus.
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
FATAL = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
HARMLESS = "NVRM: Xid (PCI:0000:05:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 0): Out Of Range Address"
# Every row of the catalog's table of Xids that is shown and does not fail.
WARNING = "NVRM: Xid (PCI:0000:05:00): 1, pid=1, name=x"


def utc(seconds_ago: float) -> str:
    return time.strftime(store.NOW, time.gmtime(time.time() - seconds_ago))


def journal(*messages: str, first_hour: int = 10) -> str:
    """Return messages with the times of journalctl, one an hour."""
    lines = (f"2026-11-27T{first_hour + n:02d}:00:00.000001+0000 gpu01 kernel: {m}" for n, m in enumerate(messages))
    return "\n".join(lines) + "\n"


class VerifiedHost(SimulatedHost):
    """Two H200 whose checks have passed; `run` notes every command."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, [H200, H200])
        self.write("proc/sys/kernel/random/boot_id", "0c5f\n")
        self.write("sys/module/nvidia/version", DRIVER + "\n")
        self.write("boot/vmlinuz-6.1.0-56-amd64", "")
        self.write("proc/sys/kernel/osrelease", "6.1.0-56-amd64\n")
        self.write("lib/modules/6.1.0-56-amd64/updates/dkms/nvidia-current.ko", "")
        for field, text in {"version": DRIVER, "license": "Dual MIT/GPL", "signer": "", "sig_key": ""}.items():
            self.answer(f"/sbin/modinfo -F {field} ", text + "\n")
        self.log(LOADED)
        self.state_directory.mkdir(parents=True)
        catalog = load_catalog()
        component = {"version": DRIVER, "kernel_modules": "open", "packages": [], "security_floor": DRIVER}
        plan = {
            "components": {**NOTHING_PLANNED, "driver": component},
            "gpus": [{"pci_id": f"10de:{H200}"}] * 2,
        }
        options = verify.Options(
            plans.plan_json(plan), xid_errors=facts.xid_errors(catalog), gpu_counters=facts.gpu_counters(catalog)
        ).to_json()
        store.write(str(self.state_directory), store.OPTIONS, options)
        self.record("verified", evidence={"at": utc(DAY), "trainings": {"pytorch": {"finished": utc(DAY)}}})

    @property
    def state_directory(self) -> Path:
        return self.root / "var/lib/gpuhost"

    def log(self, *messages: str) -> None:
        """Set what the journal has of the kernel."""
        self.answer("journalctl", journal(*messages))

    def record(self, name: str, **content: Any) -> None:
        """Write a record, or change fields of the one that is there."""
        kept = store.read(str(self.state_directory), name) or {}
        store.write(str(self.state_directory), name, {**kept, **content})

    def recorded(self, name: str) -> dict[str, Any]:
        return dict(store.read(str(self.state_directory), name) or {})

    def check(self, name: str, **fields: Any) -> None:
        """Change what is recorded of a check."""
        checks = self.recorded("last_result")["checks"]
        self.record("last_result", checks={**checks, name: {**checks.get(name, {}), **fields}})

    def lose(self, address: str) -> None:
        """Remove a GPU from the bus."""
        device = self.root / "sys/bus/pci/devices" / address
        for path in device.iterdir():
            path.unlink()
        device.rmdir()

    def load(self, version: str) -> None:
        """Replace the loaded module by another version."""
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        self.write("proc/driver/nvidia/version", text)
        self.write("sys/module/nvidia/version", version + "\n")

    def main(self, *arguments: str) -> int:
        return command_line.main(arguments, str(self.root), self.run)

    def training(self, status: str, **check: Any) -> None:
        result = {"framework": "pytorch", "status": status, "checks": [{"id": "loss", "status": status, **check}]}
        self.write("var/lib/gpuhost/smoke_train/result.json", json.dumps(result))
