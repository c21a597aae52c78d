"""Make all checks of a host, those that wait for programs side by side. Runs on the target."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_checks,
    driver_checks,
    gpu_checks,
    model,
    package_checks,
    pytorch_checks,
    tensorflow_checks,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, pci
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack, nvidia_smi


def context(
    plan: dict[str, Any],
    expect_gpus: int | None,
    kernel_module: str,
    driver_state: str,
    tensorflow_path: str,
    root: str = "/",
    run: Run = command.run,
    cuda_check_source: str = "",
    gpu_thresholds: dict[str, Any] | None = None,
    fabric_manager_packages: list[str] | None = None,
) -> model.Context:
    """What the checks are told. Without an expected number of GPUs the plan's is expected."""
    if driver_state == "auto":
        driver_state = "not_loaded" if kernel_module == "built" else "working"
    planned_gpus = list(plan.get("gpus") or [])
    return model.Context(
        plan=plan,
        root=root,
        run=run,
        expect_gpus=len(planned_gpus) if expect_gpus is None else expect_gpus,
        kernel_module=kernel_module,
        driver_state=driver_state,
        tensorflow_path=tensorflow_path,
        pci_gpus=len(pci.read(root)[0]),
        smi=nvidia_smi.read(nvidia_smi.find(), run),
        simulated=installed_stack.simulated(root),
        cuda_check_source=cuda_check_source,
        gpu_thresholds=gpu_thresholds or {},
        fabric_manager_packages=fabric_manager_packages or [],
    )


def verify(told: model.Context) -> dict[str, Any]:
    """The `verify` evidence; the order of the checks is fixed."""
    machine = os.uname().machine
    groups = [
        ("driver", lambda: driver_checks.run(told)),
        ("gpu", lambda: gpu_checks.run(told)),
        ("cuda", lambda: cuda_checks.run(told)),
        ("env", lambda: cuda_checks.environments(told)),
        ("packages", lambda: package_checks.packages(told, machine)),
        ("tensorflow", lambda: tensorflow_checks.run(told)),
        ("pytorch", lambda: pytorch_checks.run(told)),
    ]
    with ThreadPoolExecutor(max_workers=len(groups)) as pool:
        results = list(pool.map(lambda group: _guarded(*group), groups))
    found = [check for group in results for check in group]
    evidence = dict(model.summary(found), simulated=told.simulated)
    for check in found:
        evidence.update(check.data or {})
    return evidence


def _guarded(name: str, make: Callable[[], list[model.Check]]) -> list[model.Check]:
    """A group that cannot be made is a failure with its cause, not an end of the others."""
    try:
        return make()
    except (OSError, ValueError, KeyError) as error:
        cause = "%s: %s" % (type(error).__name__, error)
        remedy = "Give gpu_verify the plan of this run, whole; else report this as a fault of the check."
        return [model.compared(name + ".checks", False, cause, "the checks can be made", remedy)]
