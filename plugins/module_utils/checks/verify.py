# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run all checks of a host, in parallel as far as they do not use the GPUs."""

from __future__ import annotations

import dataclasses
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, module_options, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_checks,
    driver_checks,
    environment_checks,
    gpu_checks,
    idle_checks,
    model,
    package_checks,
    pytorch_checks,
    tensorflow_checks,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes, module_blacklists
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks, outcomes, records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import left_to
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess, NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, installed_stack, nvidia_smi
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result

# By the prefix of the checks' ids, in the order of the evidence. Each module has CHECKS, the specs of its checks, and
# run(context), which returns one result for each. Where checks compute on the GPUs, USES_GPUS has their specs.
GROUPS: dict[str, Any] = {
    "driver": driver_checks,
    "gpu": gpu_checks,
    "cuda": cuda_checks,
    "env": environment_checks,
    "packages": package_checks,
    "tensorflow": tensorflow_checks,
    "pytorch": pytorch_checks,
    "idle": idle_checks,
}
LAST = "idle"  # after all others: it looks for what they left
# Groups whose values a simulated driver makes up; all others are measured, or skipped, on such a host.
SIMULATED_GROUPS = ("driver", "gpu")
MAX_AGE = 30.0  # days, the default of smoke_train_max_age


@dataclasses.dataclass(frozen=True)
class Options:
    """What to check, and by which data; the options of the module gpu_verify, where they are documented."""

    plan: Dict[str, Any]
    expect_gpus: Optional[int] = None
    kernel_module: str = option("loaded", choices=["loaded", "built", "not_managed"])
    driver_state: str = option("auto", choices=["auto", "working", "not_loaded"])
    tensorflow_path: str = option(frameworks.FOLDER + "/tensorflow", type="path")
    state_directory: str = option(store.DIRECTORY, type="path")
    # Not a secret: no_log keeps 20 kB of C++ out of the system journal.
    cuda_check_source: str = option("", default=None, no_log=True)
    gpu_thresholds: Dict[str, Any] = option({}, default=None)
    link_thresholds: Dict[str, Any] = option({}, default=None)
    fabric_manager_packages: List[str] = option([], default=None)
    user_settings: List[Dict[str, Any]] = option([], default=None)
    gpu_counters: List[Dict[str, Any]] = option([], default=None)
    xid_errors: Dict[str, Any] = option({}, default=None)
    waivers: List[Dict[str, Any]] = option([], options=module_options.argument_spec(model.Waiver))
    unknown: str = option(outcomes.FAIL, choices=[outcomes.FAIL, outcomes.WARN])
    max_age: float = MAX_AGE
    before_change: bool = False
    damage: Dict[str, Any] = option({})
    accept_damage: List[str] = option([])
    timeout_factor: float = 1
    fail: bool = False
    environment_paths: Dict[str, Any] = option({})

    def to_json(self) -> Dict[str, Any]:
        """Return what the host keeps, to run the same checks again."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Dict[str, Any], today: str) -> Options:
        """Return kept options without the waivers that have expired; those of another release are left out.

        today: ISO date. Raise TypeError where one is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in data.items() if name in known}
        given["waivers"] = [waiver for waiver in given.get("waivers") or [] if waiver["until"] >= today]
        return cls(**given)


def context(options: Options, root: str = "/", run: Run = command.run) -> model.Context:
    """Return the input of the checks. With `expect_gpus` None the plan's number of GPUs is expected.

    Raises records.RecordError for a plan of which a field is missing or of a wrong type.
    """
    plan = records.from_json(Plan, options.plan, "plan").with_kept_driver()
    run = command.patient(options.timeout_factor, run)
    driver_state = options.driver_state
    if driver_state == "auto":
        driver_state = "not_loaded" if options.kernel_module == "built" else "working"
    smi = nvidia_smi.read(nvidia_smi.find(), run)
    try:
        gpus, _switches = pci.read(root)
    except OSError:  # the checks of the driver read it again, and are unknown
        gpus = ()
    ignored = plan.request.get("ignore_gpus", "none")
    owners = {g.pci_address: left_to(g.kernel_driver, (g.pci_address, g.pci_id), ignored) for g in gpus}
    alone = {address: owner for address, owner in owners.items() if owner}
    pci_gpus, listed = len(gpus) - len(alone), smi.gpus if smi else ()
    smi = nvidia_smi.without_lost_rows(nvidia_smi.without(smi, alone), pci_gpus)
    is_listed = len(smi.gpus if smi else ()) < len(listed)  # the driver has one that is left alone
    known = {field.name for field in dataclasses.fields(model.Context)}
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name in known}
    given.update(
        plan=plan,
        expect_gpus=plan.expected(
            len(plan.gpus) if options.expect_gpus is None else options.expect_gpus, len(gpus), len(alone)
        ),
        driver_state=driver_state,
        environment_paths=frameworks.paths(options),
        waivers=[model.Waiver(**waiver) for waiver in options.waivers],
    )
    return model.Context(
        root=root,
        run=run,
        pci_gpus=pci_gpus,
        left_alone=alone,
        visible=",".join(gpu.uuid or "" for gpu in smi.gpus) if smi and is_listed else None,
        smi=smi,
        simulated=installed_stack.simulated(root),
        gpu_jobs=gpu_processes.listed(_jobs(root, smi, run)),
        **given,
    )


def _jobs(root: str, smi: NvidiaSmi | None, run: Run) -> list[GpuProcess]:
    """Return the jobs of others on the GPUs; where nvidia-smi cannot list them, those that have a device open."""
    try:
        return gpu_processes.jobs(gpu_processes.read(root, smi, run))
    except ValueError:
        return gpu_processes.jobs(gpu_processes.read(root, None, run))


def verify(context: model.Context) -> dict[str, Any]:
    """Return the `verify` evidence: model.summary, what is simulated, the GPUs' jobs, the checks' measurements.

    While the GPUs run a job, they are hidden from the programs of the checks, and what those would measure is deferred.
    """
    if context.gpu_jobs:
        context = dataclasses.replace(context, visible="")
    if context.visible is not None:
        context = dataclasses.replace(context, run=_seeing(context.visible, context.run))
    context = dataclasses.replace(context, idle_before=idle_checks.before(context))
    names = [name for name in GROUPS if name != LAST]
    with ThreadPoolExecutor(max_workers=len(GROUPS)) as pool:
        results = list(pool.map(lambda name: _run_group(name, context), names))
    results += [_run_group(name, context) for name in GROUPS if name == LAST]
    checks = known_causes.explain([check for group in results for check in group], context)
    checks = [_waive(check, context) for check in module_blacklists.explain(checks, context)]
    summary = model.summary(checks, context.unknown, _answers(context))
    evidence = dict(summary, simulated=context.simulated, gpu_jobs=context.gpu_jobs)
    for check in checks:
        evidence.update(check.data or {})
    return evidence


def _waive(check: model.Check, context: model.Context) -> model.Check:
    """Apply a waiver for the whole host; those for one GPU are applied where a check is judged GPU by GPU."""
    waiver = context.waiver(check.id) if check.status == outcomes.FAIL else None
    if waiver is None:
        return check
    return dataclasses.replace(check, status=outcomes.WAIVED, reason=str(waiver), remedy=None, cause=None, setting=None)


def _answers(context: model.Context) -> outcomes.Answers:
    """Return the answers from before the change that is pending; none where that record cannot be read."""
    directory = files.under(context.root, context.state_directory)
    try:
        return last_result.answers(directory, last_result.gpus(context.root, context.smi))
    except (OSError, ValueError):  # the probe reports it; another user than root may not read it
        return outcomes.Answers()


def _run_group(name: str, context: model.Context) -> list[model.Check]:
    """Run one group. After an unexpected error its checks are unknown, and the other groups still run."""
    try:
        checks: list[model.Check] = GROUPS[name].run(context)
        if context.driver_simulated and name in SIMULATED_GROUPS:
            return [dataclasses.replace(check, simulated=True) for check in checks]
    except Exception as error:  # noqa: BLE001  # nonsense from a tool raises anything; no check of it may pass
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "%s:%d" % (os.path.basename(last.filename), last.lineno or 0)
        reason = "the checks of this group ended with %s: %s (%s)" % (type(error).__name__, error, place)
        return [spec.unknown(reason) for spec in GROUPS[name].CHECKS]
    if not context.gpu_jobs or context.component(name) is None:
        return checks
    reason = "programs use the GPUs: " + context.gpu_jobs
    waiting = {spec.id: spec.deferred(reason) for spec in getattr(GROUPS[name], "USES_GPUS", ())}
    return [waiting.get(check.id, check) for check in checks]


def _seeing(visible: str, run: Run) -> Run:
    """Return a `run` whose programs see these GPUs alone; nvidia-smi, which does not compute, still sees all."""

    def limited(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        environment = dict(os.environ, LC_ALL="C") if env is None else env
        return run(argv, timeout, dict(environment, CUDA_VISIBLE_DEVICES=visible))

    return limited
