"""Check how the GPUs are used: programs on them, MIG, and the time that they take to answer."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, nvidia_smi
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

GPU_BUSY = FindingSpec(
    "gpu-busy",
    "The driver would change under programs that compute on the GPUs (displays and monitors: a warning)",
    "wait for them or end them (drain the node), then run this again",
)


def check_gpu_users(context: Context, findings: Findings) -> None:
    """Check for jobs on the GPUs; displays and monitors may keep running with the old driver."""
    if not context.is_changed("driver"):
        return
    users = gpu_processes.staying(context.probe.gpu_processes)
    jobs = gpu_processes.jobs(users)
    others = [user for user in users if user not in jobs]
    if jobs:
        GPU_BUSY.add_problem(
            findings, f"the driver would change under programs that use the GPUs: {gpu_processes.listed(jobs)}"
        )
    if others:
        GPU_BUSY.add_warning(
            findings,
            f"displays or monitors use the GPUs: {gpu_processes.listed(others)}; while they do, a new driver is loaded "
            "by a reboot (gpu_stack_reboot), or when they have been restarted",
        )


SLOW_GPU_QUERY = FindingSpec(
    "slow-gpu-query",
    f"Warning: nvidia-smi answers, but took longer than {nvidia_smi.SLOW} s (times `gpu_stack_timeout_factor`)",
    "Persistence mode, unless that was the first call since the boot; `journalctl -k -g NVRM` names a slow GPU",
)


def check_nvidia_smi(context: Context, findings: Findings) -> None:
    """Warn of a driver that answers slowly, as the check driver.nvidia_smi will: slow is not dead."""
    answer = context.probe.driver.smi
    if answer.gpus and answer.seconds > nvidia_smi.SLOW * context.options.timeout_factor:
        SLOW_GPU_QUERY.add_warning(
            findings,
            f"nvidia-smi took {answer.seconds:.0f} s for {len(answer.gpus)} GPUs: without persistence mode each call "
            "initialises all of them (systemctl status nvidia-persistenced), and a GPU may be slow to answer "
            "(journalctl -k -g NVRM)",
        )


MIG_ENABLED = FindingSpec(
    "mig-enabled",
    "MIG is enabled on a GPU, and the driver changes (a warning): that removes the instances, and a program sees "
    "one instance alone",
    "None if it is meant; otherwise `nvidia-smi -i N -mig 0`",
)


def check_mig(context: Context, findings: Findings) -> None:
    """Warn of MIG where the driver changes: what that means for it, and what it means for what is planned."""
    gpus = context.probe.driver.smi.mig
    if not gpus or DriverComponent.of(context.components) is None or not context.is_changed("driver"):
        return
    text = (
        f"MIG is enabled on {', '.join(gpus)}: a program sees one instance, however many there are, so that checks of "
        "whole GPUs or of several, and the training, are skipped; the instances do not outlast the change of the "
        "driver: note them before (`nvidia-smi mig -lgi` and `-lci`) and create them again"
    )
    MIG_ENABLED.add_warning(findings, text)


FINDINGS = (GPU_BUSY, SLOW_GPU_QUERY, MIG_ENABLED)
