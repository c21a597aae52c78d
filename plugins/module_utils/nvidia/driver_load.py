# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Decide whether the planned kernel module must be loaded, reloaded or needs a reboot, and load it.

`read` collects the facts, `decide` is a pure function of them, `apply` executes the decision.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess, KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    gpu_processes,
    kernel_modules,
    nvidia_smi,
    proc_driver,
)

KEEP, LOAD, RELOAD, REBOOT = "keep", "load", "reload", "reboot"
MODULE = "nvidia"
# NVIDIA's own services that have the GPUs open: stopped while the module is replaced, then started again.
UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
)
RUNNING = ("active", "activating", "reloading")
# A program that was just stopped may need a moment to close its devices.
RELEASE_SECONDS = 5.0
SYSTEMCTL_SECONDS = 120.0
MODPROBE_SECONDS = 180.0


class NotPossible(Exception):
    """The planned module cannot be loaded now, and a reboot would not change that."""


class NotLoaded(NotPossible):
    """modprobe has refused to load a module."""


@dataclass(frozen=True)
class Situation:
    """The facts that the decision needs.

    loaded: version and flavour of the loaded module, None without one
    nouveau: whether nouveau is loaded
    running, next_boot: kernel releases
    built: the nvidia modules of these kernels by release, each with version and flavour
    users: the processes that use the GPUs (gpu_processes.read)
    """

    loaded: KernelModule | None
    nouveau: bool
    running: str
    next_boot: str | None
    built: dict[str, list[KernelModule]]
    users: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class Decision:
    """KEEP, LOAD, RELOAD, or REBOOT with its reasons."""

    action: str
    reasons: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What was done; REBOOT if a reboot is still needed. `services` were stopped and started again."""

    action: str
    reasons: list[str]
    services: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read(root: str, run: Run, assume_built: KernelModule | None = None) -> Situation:
    """Read the facts from the host. In check mode, `assume_built` is a module to assume for the running kernel."""
    running = system.running(root)
    next_boot = system.kernel(root, running).next_boot
    releases = {running, next_boot or running}
    built = {release: kernel_modules.built(root, release, run) for release in releases}
    if assume_built:
        built[running] = [assume_built]
    return Situation(
        loaded=proc_driver.read(root),
        nouveau=proc_driver.nouveau_loaded(root),
        running=running,
        next_boot=next_boot,
        built=built,
        users=gpu_processes.read(root, nvidia_smi.read(nvidia_smi.find(), run), run),
    )


def decide(version: str, flavour: str, now: Situation) -> Decision:
    """Return the least disruptive action that loads the planned module.

    Raise NotPossible if the module is built for neither kernel, or if jobs would lose their driver.
    """

    def planned(module: KernelModule | None) -> bool:
        return module is not None and is_version(module.version, version) and module.kernel_modules == flavour

    if planned(now.loaded) and not now.nouveau:
        return Decision(KEEP)
    reasons = []
    if now.nouveau:
        reasons.append("nouveau is loaded")
    if not any(planned(module) for module in now.built.get(now.running, [])):
        if now.next_boot in (None, now.running) or not any(map(planned, now.built.get(str(now.next_boot), []))):
            raise NotPossible(_not_built(version, flavour, now))
        reasons.append(
            "the module is built for the next-boot kernel %s, not for the running kernel %s"
            % (now.next_boot, now.running)
        )
    users = gpu_processes.staying(now.users)
    refuse_under_jobs(version, users)
    if now.loaded and users:
        reasons.append("programs have the GPUs open: %s" % gpu_processes.listed(users))
    if reasons:
        return Decision(REBOOT, reasons)
    return Decision(RELOAD if now.loaded else LOAD)


def refuse_under_jobs(version: str, users: Iterable[GpuProcess]) -> None:
    """Raise NotPossible if a job uses the GPUs."""
    jobs = gpu_processes.jobs(users)
    if jobs:
        raise NotPossible(
            "programs compute on the GPUs: %s. The module of driver %s cannot be loaded while they run. Wait until "
            "they end or stop them (drain the node), then run the playbook again"
            % (gpu_processes.listed(jobs), version)
        )


def _not_built(version: str, flavour: str, now: Situation) -> str:
    found = [
        "%s: %s" % (kernel, ", ".join("%s %s" % (m.kernel_modules, m.version) for m in modules) or "none")
        for kernel, modules in sorted(now.built.items())
    ]
    return (
        "no %s kernel module of driver %s is built (modules by kernel: %s). `dkms status` and "
        "/var/lib/dkms/nvidia*/*/build/make.log show why; usually the kernel's headers are missing "
        "(nvidia_driver_kernel_headers)" % (flavour, version, "; ".join(found))
    )


# Apply ----------------------------------------------------------------------------------------------------------


def apply(decision: Decision, root: str, run: Run, sleep: Callable[[float], None] = time.sleep) -> Outcome:
    """Load or reload the module. Services that were stopped are started again, even after an error.

    Raise NotPossible if a service does not stop or the module cannot be loaded.
    """
    if decision.action == LOAD:
        _modprobe(MODULE, run)
        return Outcome(LOAD, [])
    if decision.action != RELOAD:
        return Outcome(decision.action, decision.reasons)
    states = unit_states(run)
    services = [unit for unit, state in states.items() if state in RUNNING]
    outcome = Outcome(RELOAD, [], services)
    try:
        _systemctl("stop", services, run)
        busy = _replace(root, run, sleep, outcome)
    finally:
        # A service that failed may have done so because new libraries met the old module: start it as well.
        failed = [unit for unit, state in states.items() if state == "failed"]
        problem = _systemctl("start", services + failed, run, required=False)
    if busy:
        return Outcome(REBOOT, [busy], services)
    if problem:
        outcome.warnings.append(problem)
    return outcome


def _replace(root: str, run: Run, sleep: Callable[[float], None], outcome: Outcome) -> str:
    """Replace the module and those that use it; return what prevents unloading, or ''."""
    deadline = RELEASE_SECONDS
    while True:
        modules = kernel_modules.loaded(root)
        order = kernel_modules.unload_order(modules, MODULE)
        if any(modules[name].uses is None for name in order):
            return "the kernel is built without CONFIG_MODULE_UNLOAD, and unloads no module"
        busy = ["%s (used %d times)" % (n, modules[n].others) for n in order if modules[n].busy]
        if not busy:
            break
        if deadline <= 0:
            return "modules are in use: %s" % ", ".join(busy)
        sleep(0.25)
        deadline -= 0.25
    for name in order:
        answer = run(["/sbin/rmmod", name], MODPROBE_SECONDS)
        if answer.exit_code:
            return "module %s cannot be unloaded: %s" % (name, answer.text())
    _modprobe(MODULE, run)
    for name in reversed(order[:-1]):
        try:
            _modprobe(name, run)
        except NotPossible as error:
            # A third party's module that uses NVIDIA's may be built for the old driver only.
            if kernel_modules.is_own(name):
                raise
            outcome.warnings.append(str(error))
    return ""


def _modprobe(name: str, run: Run) -> None:
    answer = run(["/sbin/modprobe", name], MODPROBE_SECONDS)
    if answer.exit_code:
        is_untrusted = "Key was rejected" in answer.text()
        why = "; Secure Boot does not trust the key of DKMS (`mokutil --import`)" if is_untrusted else ""
        raise NotLoaded("modprobe %s: %s. See `journalctl -k -g 'NVRM|nvidia|Lockdown'`%s" % (name, answer.text(), why))


def unit_states(run: Run) -> dict[str, str]:
    """Return {unit: state} of UNITS that are running or failed."""
    states = ",".join((*RUNNING, "failed"))
    command = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "--state=" + states]
    lines = run([*command, *UNITS], SYSTEMCTL_SECONDS).output.splitlines()
    rows = [line.split() for line in lines if line.strip()]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def _systemctl(verb: str, units: list[str], run: Run, required: bool = True) -> str:
    """Run systemctl; return its error or ''. Raise NotPossible instead if success is required."""
    if not units:
        return ""
    answer = run(["systemctl", verb, *units], SYSTEMCTL_SECONDS)
    problem = "systemctl %s %s: %s" % (verb, " ".join(units), answer.text()) if answer.exit_code else ""
    if problem and required:
        raise NotPossible(problem)
    return problem
