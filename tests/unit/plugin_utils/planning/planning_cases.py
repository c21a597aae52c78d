"""What the tests of planning/ share: plans from parts, and probes from JSON with the rest of a host left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import KINDS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import NOTHING
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit import plans
from tests.unit.requested import requested

# The plan of a Debian 12 host with two H200 and every component, as JSON.
PLANNED: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[3] / "fixtures" / "plan" / "planned.json").read_text()
)
PROBE: dict[str, Any] = {
    "schema": 1,
    "distribution": {"id": "debian-12", "name": "debian", "version": "12", "codename": "bookworm"},
    "architecture": "x86_64",
    "kernel": {"running": "6.1.0-56-amd64", "installed": [], "headers": []},
    "python": {"default": "3.11", "interpreters": {"3.11": "/usr/bin/python3.11"}},
    "toolchain": {"gcc": "12", "glibc": "2.36"},
    "gpus": [
        {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": None},
        {"pci_address": "0000:06:00.0", "pci_id": "10DE:2335", "class": "0302", "kernel_driver": None},
        {"pci_address": "0000:06:00.1", "pci_id": "10de:22a3", "class": "0680", "kernel_driver": None},
    ],
    "driver": {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None},
    "repository": None,
    "secure_boot": "disabled",
}
# What is planned of NVIDIA's repository, without what most tests do not read.
DRIVER: dict[str, Any] = {
    "version": "595.71.05",
    "branch": "595",
    "kernel_modules": "open",
    "source": "nvidia",
    "packages": ["nvidia-driver-cuda=595.71.05-1", "nvidia-kernel-open-dkms=595.71.05-1"],
}
CUDA: dict[str, Any] = {
    "version": "13.2",
    "release": "13.2.1",
    "source": "nvidia",
    "packages": ["cuda-toolkit-13-2=13.2.1-1"],
}


def component(name: str, data: dict[str, Any] | None) -> Any:
    """Return a component from the part of its JSON that matters to a test."""
    return None if data is None else records.from_json(KINDS[name], plans.component(name, data), name)


def planned(*components: str) -> Plan:
    """Return the plan of PLANNED with these of its components."""
    return plan_from_json({**PLANNED, "components": {name: PLANNED["components"][name] for name in components}})


KEY_FINGERPRINT = "EB693B3035CD5710E231E123A4B469963BF863CC"  # of NVIDIA's key for Debian 12 (catalog/distro)


def make_plan(
    components: dict[str, Any] | None = None, request: dict[str, Any] | None = None, url: str | None = None
) -> Plan:
    """Return a plan for Debian 12 with these components; url: of NVIDIA's repository."""
    parts = NOTHING.but(**{name: component(name, data) for name, data in (components or {}).items()})
    repository = {"url": url, "key_fingerprint": KEY_FINGERPRINT} if url else None
    asked = requested(request or {})
    return Plan(distribution="debian-12", request=asked, components=parts, repository=repository)


def make_probe(**parts: Any) -> Probe:
    """Return the probe of a Debian 12 host with these parts, as the module's JSON has them."""
    return Probe.from_json({"distribution": {"id": "debian-12"}, "architecture": "x86_64", "gpus": [], **parts})
