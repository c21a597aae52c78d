"""What it takes that the planned driver's kernel module drives the GPUs: nothing, loading, reloading or a reboot.

Runs on the target. `decide` is the rule, `apply` carries it out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, kernel_modules

KEEP, LOAD, RELOAD, REBOOT = "keep", "load", "reload", "reboot"
MODULE = "nvidia"
# They have the GPUs open and are NVIDIA's own: stopped while the module is replaced, and started again.
UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
)
RUNNING = ("active", "activating", "reloading")
# A program that was just stopped may take a moment to close what it had open.
RELEASE_SECONDS = 5.0
SYSTEMCTL_SECONDS = 120.0
MODPROBE_SECONDS = 180.0


class NotPossible(Exception):
    """The planned module cannot be loaded now, and a reboot would not change that."""


@dataclass(frozen=True)
class Situation:
    """What drives the GPUs, what could, and who uses them.

    built: the modules of each kernel that matters, by release: the running one and the one that starts next.
    """

    loaded: dict[str, str] | None
    nouveau: bool
    running: str
    next_boot: str | None
    built: dict[str, list[dict[str, str]]]
    users: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Decision:
    action: str
    reasons: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """`action` is what was done, or REBOOT where that is left to do."""

    action: str
    reasons: list[str]
    services: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def decide(version: str, flavour: str, now: Situation) -> Decision:
    """Raises NotPossible where the module is built for no kernel, and where jobs would lose their driver."""

    def planned(module: dict[str, str] | None) -> bool:
        return module is not None and is_version(module["version"], version) and module["kernel_modules"] == flavour

    if planned(now.loaded) and not now.nouveau:
        return Decision(KEEP)
    reasons = []
    if now.nouveau:
        reasons.append("nouveau is loaded and has the GPUs")
    if not any(planned(module) for module in now.built.get(now.running, [])):
        if now.next_boot in (None, now.running) or not any(map(planned, now.built.get(str(now.next_boot), []))):
            raise NotPossible(_not_built(version, flavour, now))
        reasons.append(
            "the module is built for kernel %s, which starts next; %s is running" % (now.next_boot, now.running)
        )
    users = [user for user in now.users if user["program"] not in gpu_processes.SERVICES]
    refuse_under_jobs(version, users)
    if now.loaded and users:
        reasons.append("programs have the GPUs open: %s" % gpu_processes.listed(users))
    if reasons:
        return Decision(REBOOT, reasons)
    return Decision(RELOAD if now.loaded else LOAD)


def refuse_under_jobs(version: str, users: list[dict[str, Any]]) -> None:
    jobs = gpu_processes.jobs(users)
    if jobs:
        raise NotPossible(
            "programs compute on the GPUs: %s. The module of driver %s cannot be loaded under them. Wait for them or "
            "end them (drain the node), then run this again" % (gpu_processes.listed(jobs), version)
        )


def _not_built(version: str, flavour: str, now: Situation) -> str:
    found = [
        "%s: %s" % (kernel, ", ".join("%s %s" % (m["kernel_modules"], m["version"]) for m in modules) or "none")
        for kernel, modules in sorted(now.built.items())
    ]
    return (
        "no %s kernel module of driver %s is built (modules by kernel: %s). dkms status and "
        "/var/lib/dkms/nvidia*/*/build/make.log tell why; most often the kernel's headers are missing "
        "(nvidia_driver_kernel_headers)" % (flavour, version, "; ".join(found))
    )


# Carrying it out ------------------------------------------------------------------------------------------------


def apply(decision: Decision, root: str, run: Run, sleep: Callable[[float], None] = time.sleep) -> Outcome:
    """Loads or reloads. Services that were stopped for it are started again, whatever comes."""
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
        # One that failed did so because the new libraries met the old module; it gets another chance.
        failed = [unit for unit, state in states.items() if state == "failed"]
        problem = _systemctl("start", services + failed, run, must=False)
    if busy:
        return Outcome(REBOOT, [busy], services)
    if problem:
        outcome.warnings.append(problem)
    return outcome


def _replace(root: str, run: Run, sleep: Callable[[float], None], outcome: Outcome) -> str:
    """Unloads the module with all on top of it and loads them again; returns what keeps it from being unloaded."""
    deadline = RELEASE_SECONDS
    while True:
        modules = kernel_modules.loaded(root)
        order = kernel_modules.unload_order(modules, MODULE)
        busy = ["%s (used %d times)" % (n, modules[n].uses - len(modules[n].users)) for n in order if modules[n].busy]
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
            # Someone else's module on top of NVIDIA's may be built for the old driver alone.
            if name.startswith("nvidia"):
                raise
            outcome.warnings.append(str(error))
    return ""


def _modprobe(name: str, run: Run) -> None:
    answer = run(["/sbin/modprobe", name], MODPROBE_SECONDS)
    if answer.exit_code:
        raise NotPossible(
            "modprobe %s: %s. journalctl -k -g 'NVRM|nvidia|Lockdown' tells more; \"Key was rejected\" means that "
            "Secure Boot does not trust DKMS's key (mokutil --import)" % (name, answer.text())
        )


def unit_states(run: Run) -> dict[str, str]:
    """{unit: active, failed, ...} of the units above that systemd knows."""
    wanted = ",".join((*RUNNING, "failed"))
    command = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "--state=" + wanted]
    lines = run([*command, *UNITS], SYSTEMCTL_SECONDS).stdout.decode("utf-8", "replace").splitlines()
    rows = [line.split() for line in lines if line.strip()]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def _systemctl(verb: str, units: list[str], run: Run, must: bool = True) -> str:
    """The problem, where there is one and it need not end everything."""
    if not units:
        return ""
    answer = run(["systemctl", verb, *units], SYSTEMCTL_SECONDS)
    problem = "systemctl %s %s: %s" % (verb, " ".join(units), answer.text()) if answer.exit_code else ""
    if problem and must:
        raise NotPossible(problem)
    return problem
