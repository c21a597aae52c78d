"""Preflight: check a host for everything that prevents its plan, each problem with a remedy.

The modules beside this one have the checks, and above each check the specs of what it finds; FINDINGS lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    disk_space,
    kernel_builds,
    leftovers,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import (
    environments,
    gpu_links,
    gpu_use,
    host_records,
    kernel_modules,
    other_runs,
    package_sources,
    packages,
    present_driver,
    run_user,
    signatures,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context, Options, Preflight

# In the order in which they are asked.
FINDINGS = (
    *run_user.FINDINGS,
    *host_records.FINDINGS,
    *other_runs.FINDINGS,
    *packages.FINDINGS,
    *package_sources.FINDINGS,
    *leftovers.FINDINGS,
    *disk_space.FINDINGS,
    *environments.FINDINGS,
    *(spec for part in PARTS for spec in part.findings),
    *gpu_use.FINDINGS,
    *signatures.FINDINGS,
    *kernel_modules.FINDINGS,
    *kernel_builds.FINDINGS,
    *present_driver.FINDINGS,
    *gpu_links.FINDINGS,
)
# What ends without anybody's help: the run waits for it.
TRANSIENT = (
    packages.APT_BUSY.code,
    packages.CLOUD_INIT_RUNNING.code,
    other_runs.OTHER_RUN.code,
    other_runs.TRANSACTION_RUNNING.code,
)
# What is refused before packages are asked for.
REFUSED_AT_ONCE = (*TRANSIENT, host_records.PLANNED_ONLY.code, package_sources.REPOSITORY_DISABLED.code)


def without_change(plan: Plan, probe: Probe, diff: PlanDiff, options: Options) -> Preflight:
    """Check a host of which nothing is changed: only what keeps it from being read, checked and recorded."""
    context, findings = Context(plan, probe, diff, options), Findings()
    host_records.check_planned_only(context, findings)
    if findings.problems:
        return Preflight(tuple(findings.problems), ())
    for check in (
        other_runs.check_other_run if options.other_run else other_runs.check_transaction,
        run_user.check_user,
        host_records.check_newer_state,
        host_records.check_unread,
        kernel_modules.check_next_kernel,
        present_driver.check_nvidia_smi_is_there,
        gpu_use.check_nvidia_smi,
    ):
        check(context, findings)
    return Preflight(tuple(findings.problems), tuple(findings.warnings))


def preflight(plan: Plan, probe: Probe, diff: PlanDiff, options: Options | None = None) -> Preflight:
    """Check a host for its plan; diff: what the plan changes on it."""
    context, findings = Context(plan, probe, diff, options or Options()), Findings()
    host_records.check_planned_only(context, findings)
    if findings.problems:
        return Preflight(tuple(findings.problems), ())  # what else prevents a change there is not known yet
    if context.options.other_run:
        other_runs.check_other_run(context, findings)
        return Preflight(tuple(findings.problems), ())  # what was found between two of its steps says nothing
    for check in (
        run_user.check_user,
        host_records.check_newer_state,
        host_records.check_unread,
        host_records.check_root,
        host_records.check_request,
        host_records.check_undone,
        other_runs.check_transaction,
        packages.check_package_manager,
        packages.check_holds,
        packages.check_simulated,
        package_sources.check_repository,
        package_sources.check_key,
        package_sources.check_enabled,
        package_sources.check_leftovers,
        gpu_use.check_gpu_users,
        signatures.check_signing_dkms,
        signatures.check_secure_boot,
        signatures.check_signatures,
        kernel_modules.check_modules_disabled,
        kernel_modules.check_blacklists,
        kernel_modules.check_next_boot,
        kernel_modules.check_kernel_builds,
        kernel_modules.check_next_kernel,
        present_driver.check_graphics,
        present_driver.check_nouveau,
        present_driver.check_nvidia_smi_is_there,
        present_driver.check_pending_reboot,
        present_driver.check_dkms_leftovers,
        gpu_use.check_nvidia_smi,
        present_driver.check_masked_services,
        gpu_links.check_links,
        gpu_links.check_windows,
        environments.check_environment_paths,
        environments.check_components,
        gpu_links.check_peer_to_peer,
        gpu_use.check_mig,
        present_driver.check_modules_of_others,
    ):
        check(context, findings)
    disk_space.check_disk(plan, diff, probe, findings, context.options.extra, context.options.directories)
    return Preflight(tuple(findings.problems), tuple(findings.warnings))


def refusal(problems: Iterable[Problem]) -> str:
    """Return all problems of a host for a terminal: a line for each, its remedy below."""
    lines = [f"- {problem.code}: {problem.message}\n  Remedy: {problem.remedy}" for problem in problems]
    return "\n".join([f"{counted(len(lines), 'problem')} on this host; nothing was changed on it.", *lines])
