"""A host's root directory with the records of gpuhost, from its files to its plan; for the tests of present/."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import Repository
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.saved_versions import Saved
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures/probe"


class Root:
    """A root directory with one H200; `packages`: {name: version}, those in `held` are on hold."""

    def __init__(self, root: Path, distribution: str = "debian-12") -> None:
        self.root, self.status, self.smi = root, "", ""
        put(root, "/etc/os-release", (FIXTURES / f"os-release-{distribution}.txt").read_text())
        self.gpu("2335")

    def gpu(self, device: str, address: str = "0000:05:00.0") -> None:
        for name, text in {"vendor": "0x10de", "device": f"0x{device}", "class": "0x030200"}.items():
            put(self.root, f"/sys/bus/pci/devices/{address}/{name}", f"{text}\n")

    def load(self, version: str, modules: str = "Open Kernel Module") -> None:
        """Load the kernel module of a driver, as its /proc file shows it."""
        text = (FIXTURES / "proc-driver-nvidia-version-open-580.txt").read_text()
        text = text.replace("580.95.05", version).replace("Open Kernel Module for x86_64", f"{modules}")
        put(self.root, "/proc/driver/nvidia/version", text)
        self.smi = (
            f"0, NVIDIA H200, GPU-0d5a7f3e-1111-2222-3333-444455556666, {version}, 143771, 9.0, 00000000:05:00.0\n"
        )

    def verify(self, plan: Plan, at: str = "2026-11-02T03:04:05Z") -> None:
        """Install the packages of a plan, and record it as the verified configuration."""
        packages = [package for part in plan.components.packaged() for package in part.all_packages]
        names = [package.name for package in packages]
        self.add({package.name: package.version or "0" for package in packages}, held=names)
        self.journal(**dict.fromkeys(names))
        record = {"plan": json.loads(json.dumps(plan.to_json())), "packages": {}, "files": {}, "evidence": {"at": at}}
        store.write(str(self.root / "var/lib/gpuhost"), store.VERIFIED, record)

    def add(self, packages: dict[str, str], held: Any = (), status: str = "installed", depends: str = "") -> None:
        for name, version in packages.items():
            want = "hold" if name in held else "install"
            self.status += f"Package: {name}\nStatus: {want} ok {status}\nArchitecture: amd64\n"
            self.status += f"Depends: {depends}\n" if depends else ""
            self.status += f"Version: {version}\n\n" if version else "\n"
        put(self.root, "/var/lib/dpkg/status", self.status)

    def remove(self, *names: str) -> None:
        entries = self.status.split("\n\n")
        self.status = "\n\n".join(e for e in entries if e.partition("\n")[0].partition(": ")[2] not in names)
        put(self.root, "/var/lib/dpkg/status", self.status)

    def journal(self, **states: Any) -> None:
        directory = self.root / "var/lib/gpuhost"
        directory.mkdir(parents=True, exist_ok=True)
        store.record_packages(str(directory), {name.replace("_", "-"): state for name, state in states.items()})

    def probe(self, offers: dict[str, tuple[str, ...]] | None = None) -> Probe:
        names = probe_options(frozen_catalog())
        options = host_probe.Options(
            repository_url=None,
            repositories={},
            repository_check=False,
            repository_patterns=tuple(names["repository_patterns"]),
            package_patterns=tuple(names["package_patterns"]),
            tensorflow_path="/opt/gpuhost/tensorflow",
            driver_packages=names["driver_packages"],
            distro_cuda_package=names["distro_cuda_package"],
        )
        read = {**to_json(host_probe.probe(str(self.root), options)), "disk": None}
        read["driver"]["nvidia_smi"] = {"gpus": to_json(nvidia_smi.parse(self.smi)[0])}
        found = Probe.from_json(read)
        return dataclasses.replace(found, repository=Repository(packages=offers) if offers else None)

    def plan(
        self, offers: dict[str, tuple[str, ...]] | None = None, saved: Saved | None = None, **request: str
    ) -> Plan:
        asked = {"tensorflow": "none", "pytorch": "none", **request}
        return plan_for_probe(self.probe(offers), asked, frozen_catalog(), saved)

    def problems(self, offers: dict[str, tuple[str, ...]] | None = None, **request: str) -> list[Any]:
        """Return the problems of plan and preflight together."""
        plan, probe = self.plan(offers, **request), self.probe(offers)
        options = Options(own_kernel=False)
        found = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe), options)
        return [*plan.problems, *(found.problems if plan.ok else ())]
