"""What a check is, what the checks are told, and how their results are counted. Runs on the target; no I/O."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run

PASS, FAIL, SKIP = "pass", "fail", "skip"
SCHEMA = 1
# Failures that tell of the hardware alone: no other version of the software repairs them, so nothing is undone for
# them. Not among them is what a driver may cause, too: a GPU that does not answer, Xid messages.
HARDWARE = frozenset(
    ("gpu.ecc_errors", "gpu.memory_repair", "gpu.pcie_generation", "gpu.pcie_width", "gpu.recovery", "gpu.slowdown")
)


@dataclass(frozen=True)
class Check:
    """One result. A failed check has a remedy, a skipped one a reason."""

    id: str
    status: str
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None
    reason: str | None = None
    versions: dict[str, str] | None = None  # by component, as the running software told them: for the report
    data: dict[str, Any] | None = None  # what was measured, by the name that it gets in the evidence beside the checks

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}


_FIELDS = ("id", "status", "found", "expected", "remedy", "reason", "versions")


def skipped(check_id: str, reason: str, found: str | None = None) -> Check:
    return Check(check_id, SKIP, found=found, reason=reason)


def compared(
    check_id: str, good: bool, found: str, expected: str, remedy: str, versions: dict[str, str] | None = None
) -> Check:
    """Pass when `good`, else fail with the remedy."""
    status = PASS if good else FAIL
    return Check(check_id, status, found, expected, None if good else remedy, versions=versions)


def is_version(found: str, planned: str) -> bool:
    """Whether `found` is the planned version or lies in the planned family: 535.309.01 is of 535, 13.20 is not 13.2."""
    return found == planned or (found.startswith(planned) and not found[len(planned)].isalnum())


def summary(checks: list[Check]) -> dict[str, Any]:
    """The `verify` evidence; `hardware_alone`: whether what failed is nothing that another set would repair."""
    counts = {status: sum(check.status == status for check in checks) for status in (PASS, FAIL, SKIP)}
    status = FAIL if counts[FAIL] or not counts[PASS] else PASS
    failed = {check.id for check in checks if check.status == FAIL}
    return {
        "schema": SCHEMA,
        "status": status,
        "checks": [check.to_dict() for check in checks],
        "counts": counts,
        "hardware_alone": bool(failed) and failed <= HARDWARE,
    }


@dataclass(frozen=True)
class Context:
    """What the checks are told. `run(argv, timeout, env)` gives a command.Answer."""

    plan: dict[str, Any]
    root: str
    run: Run
    expect_gpus: int
    kernel_module: str  # loaded | built | not_managed
    driver_state: str  # working | not_loaded
    tensorflow_path: str
    pci_gpus: int
    smi: dict[str, Any] | None
    simulated: list[str] = field(default_factory=list)
    cuda_check_source: str = ""  # the text of cuda_check.cu
    gpu_thresholds: dict[str, Any] = field(default_factory=dict)  # by PCI id, as the catalog's gpu_thresholds() says
    fabric_manager_packages: list[str] = field(default_factory=list)  # globs, as the catalog's packages.yml has them
    # Held while a program uses the GPUs: two at once take each other's memory, and their figures would mean nothing.
    gpus_alone: Any = field(default_factory=threading.Lock, compare=False)

    def component(self, name: str) -> dict[str, Any] | None:
        return (self.plan.get("components") or {}).get(name)

    def without(self, name: str) -> str:
        """Why a check on this component is skipped."""
        return "the plan leaves %s out" % name

    @property
    def driver_simulated(self) -> bool:
        return any("driver" in line.lower() for line in self.simulated)

    @property
    def no_device_reason(self) -> str | None:
        """Why no program can use a GPU here though all is as planned; None when one must."""
        if self.driver_simulated:
            return "the NVIDIA driver is simulated: no program can use a GPU here"
        if self.driver_state == "not_loaded":
            return "the NVIDIA driver is installed but not loaded, as this host's options say"
        if self.expect_gpus == 0:
            return "the plan counts no GPU on this host"
        return None
