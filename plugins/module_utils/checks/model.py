# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Types of the checks: the description of a check, its result, and the summary of all results. No I/O."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call, workspace
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Component
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    DEFERRED,
    FAIL,
    OUTCOMES,
    PASS,
    SKIP,
    UNKNOWN,
    WAIVED,
    WARN,
    Answers,
    worst,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan

# The causes of a failure: what gpuhost installs or sets; a GPU, link or board; a setting for all users, or a program of
# the host, which explains the failure, was found, and is not ours.
STACK, HARDWARE, HOST = "stack", "hardware", "host"
SCHEMA = 1
REAPPLY = "Run `%s`." % playbook_call.call("gpu_host", "gpu_stack_converge=always")
NOT_MANAGED = "this host was adopted as it is: gpuhost sets nothing on it"
_ALWAYS_COUNTED = (PASS, FAIL, SKIP)


@dataclass(frozen=True)
class Symptom:
    """What a program on the GPUs met, as far as a known cause can explain it (see known_causes).

    errors: (PCI address or None for all GPUs, key in the table of cuda_errors, or a number that it lacks)
    seen: how many GPUs the program saw, if that is not the expected number
    other: whether anything else is wrong, which no known cause explains
    """

    errors: frozenset[tuple[str | None, int | str]] = frozenset()
    seen: int | None = None
    other: bool = False


@dataclass(frozen=True)
class Check:
    """One result. `warn` and `fail` have a remedy, every other outcome but `pass` has a reason.

    setting: with the cause HOST, what explains the failure and where it is set; the same for MIG, with a skip
    versions: the versions that the running software reports, by component, for the report
    loaded: the versions of the files that the process has loaded, by component, for the report
    simulated: whether simulated values were judged
    data: measurements, by the key under which they are stored in the evidence beside the checks
    symptom: what a known cause may explain; not in the evidence
    """

    id: str
    status: str
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None
    reason: str | None = None
    cause: str | None = None
    setting: str | None = None
    versions: dict[str, str] | None = None
    data: dict[str, Any] | None = None
    loaded: dict[str, str] | None = None
    simulated: bool | None = None
    symptom: Symptom | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as it is in the evidence, without `data` and without empty fields."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}


_FIELDS = (
    *("id", "status", "found", "expected", "remedy", "reason", "cause", "setting"),
    *("versions", "loaded", "simulated"),
)


@dataclass(frozen=True)
class Waiver:
    """A failure that the operator accepts until a date (gpu_stack_waivers).

    gpu: index, UUID or PCI address of one GPU, None for the whole host
    until: ISO date, the last day
    """

    check: str
    reason: str
    until: str
    gpu: Optional[str] = None  # Python 3.8 reads the types of options

    def __str__(self) -> str:
        return "waived until %s: %s" % (self.until, self.reason)


@dataclass(frozen=True)
class CheckSpec:
    """The description of a check: one row of docs/checks.md, and the default texts of its results.

    measures: what is read or run
    expected: when the check passes
    skipped: when the check does not apply to a host
    remedy: what to do about a failure
    cause: HARDWARE if no other version of the software can repair a failure, so that nothing is rolled back for it;
        STACK for everything that a driver can cause as well, such as a GPU that does not answer
    """

    id: str
    measures: str
    expected: str
    skipped: str
    remedy: str
    cause: str = STACK

    def compare(
        self,
        passed: bool,
        found: str,
        expected: str | None = None,
        remedy: str | None = None,
        versions: dict[str, str] | None = None,
        data: dict[str, Any] | None = None,
        loaded: dict[str, str] | None = None,
        cause: str | None = None,
    ) -> Check:
        """Return a pass, or a failure with its cause and remedy; `expected` and both default to the spec's own."""
        return Check(
            self.id,
            PASS if passed else FAIL,
            found=found,
            expected=self.expected if expected is None else expected,
            remedy=None if passed else remedy or self.remedy,
            cause=None if passed else cause or self.cause,
            versions=versions,
            data=data,
            loaded=loaded,
        )

    def of_host(self, found: str, setting: str, remedy: str, expected: str | None = None) -> Check:
        """Return a failure that a setting for all users, or a program of the host, explains.

        setting: what it is and where it is set, such as "LD_LIBRARY_PATH=/opt/x in /etc/environment, line 3". It must
            have been found and explain this failure, and must not be ours: such a failure undoes no change.
        remedy: what to type
        """
        failed = self.compare(False, found, expected, remedy, cause=HOST)
        return dataclasses.replace(failed, setting=setting)

    def warn(
        self,
        found: str,
        remedy: str | None = None,
        expected: str | None = None,
        versions: dict[str, str] | None = None,
    ) -> Check:
        """Return a warning: it works, but somebody should act."""
        expected = self.expected if expected is None else expected
        return Check(self.id, WARN, found, expected, remedy or self.remedy, versions=versions)

    def unknown(self, reason: str, found: str | None = None) -> Check:
        """Return that nothing was measured because of a tool: missing, hanging, crashing, or printing nonsense."""
        return Check(self.id, UNKNOWN, found=found, reason=reason)

    def waived(self, found: str, waivers: list[Waiver]) -> Check:
        """Return a failure that the operator accepted."""
        reason = "; ".join(dict.fromkeys(str(waiver) for waiver in waivers))
        return Check(self.id, WAIVED, found=found, expected=self.expected, reason=reason)

    def deferred(self, reason: str) -> Check:
        """Return that nothing was measured because the GPUs run a job."""
        return Check(self.id, DEFERRED, reason=reason)

    def skip(self, reason: str, found: str | None = None) -> Check:
        """Return that the check does not apply to this host. A value that cannot be read is `unknown` instead."""
        return Check(self.id, SKIP, found=found, reason=reason)


def count(outcomes: Iterable[str]) -> dict[str, int]:
    """Return how often each outcome occurs: pass, fail and skip always, the others where they occur."""
    numbers = Counter(outcomes)
    return {outcome: numbers[outcome] for outcome in OUTCOMES if numbers[outcome] or outcome in _ALWAYS_COUNTED}


def summary(checks: list[Check], unknown: str = FAIL, answers: Answers | None = None) -> dict[str, Any]:
    """Return the `verify` evidence.

    unknown: WARN if the host is verified although checks are unknown (gpu_stack_unknown)

    `status` is the worst of fail, unknown and deferred. If none counts it is pass, which alone verifies a host, or
    unknown if nothing was measured. `worse` are the checks that were right before the change that is pending, and which
    now fail, or have no answer where that counts, without evidence that hardware or host explains it; `before` has what
    the checks that are not right now were then.
    """
    answers = answers or Answers()
    before = answers.before or {}
    counting = (FAIL, UNKNOWN) if unknown == FAIL else (FAIL,)
    wrong = [check for check in checks if check.status in counting]
    lost = [check for check in wrong if check.cause in (None, STACK) and answers.were_right(check.id)]
    return {
        "schema": SCHEMA,
        "status": worst((check.status for check in checks), unknown),
        "checks": [check.to_dict() for check in checks],
        "counts": count(check.status for check in checks),
        "unknown_counts": unknown == FAIL,
        "worse": [check.id for check in lost],
        "before": {check.id: before[check.id] for check in wrong if check.id in before},
    }


def failure_message(evidence: dict[str, Any]) -> str:
    """Return a line for each check that keeps the host from being verified; what several say is said once."""
    groups: dict[str, dict[str, list[str]]] = {}  # the ids by what was found, by what to do about it
    for check in evidence["checks"]:
        remedy, said = "", ""
        if check["status"] == FAIL:
            reason = "The host is the reason: %(setting)s. " % check if check.get("setting") else ""
            remedy, said = reason + check["remedy"], ": found %(found)s, expected %(expected)s." % check
        elif check["status"] in (UNKNOWN, DEFERRED):
            said = " %(status)s: %(reason)s" % check
        if said:
            groups.setdefault(remedy, {}).setdefault(said, []).append(check["id"])
    lines = []
    for remedy, found in groups.items():
        verbs = {said: (" is" if len(ids) == 1 else " are") * (said[0] == " ") for said, ids in found.items()}
        texts = [", ".join(ids) + verbs[said] + said for said, ids in found.items()]
        lines += texts[:-1] + ["%s %s" % (texts[-1], remedy)] if len(texts) == 1 else [*texts, remedy]
    return "\n".join(line.rstrip() for line in lines if line) or "nothing was measured"


@dataclass(frozen=True)
class Context:
    """The input of the checks.

    run: run(argv, timeout[, env]), returns a command.Answer
    kernel_module: loaded, built or not_managed (see the option of gpu_verify)
    driver_state: working or not_loaded
    environment_paths: the path of each framework's environment, by the framework's name
    pci_gpus: number of this stack's GPUs on the PCI bus
    left_alone: who has the other ones, by their addresses; neither pci_gpus nor smi has them
    visible: CUDA_VISIBLE_DEVICES of all programs that compute, None where they may see every GPU
    smi: the result of nvidia_smi.read, None without nvidia-smi
    simulated: what is simulated on this host, one line each
    cuda_check_source: the text of cuda_check.cu
    gpu_thresholds: minimum bandwidths by PCI id, as the catalog's gpu_thresholds() returns them
    link_thresholds: rates of PCIe and NVLink links, as the catalog's link_thresholds() returns them
    fabric_manager_packages: globs of Fabric Manager's packages, as in the catalog's packages.yml
    user_settings: the rows of the catalog's list of variables that programs of the checks drop, keep or set
    gpu_counters: how counters are judged, as the catalog's gpu_counters() returns it
    xid_errors: what the catalog knows of Xid messages, as its xid_errors() returns it
    waivers: the failures that the operator accepts
    workspaces: where a program may be compiled and run, the first that can be used
    unknown: WARN if a host is verified although checks are unknown, otherwise FAIL
    idle_before: what idle_checks.before read, for the comparison after all other checks
    gpu_jobs: the programs of others that use the GPUs, as text; nothing of ours may compute beside them
    state_directory: where the host's records are (see state/store.py)
    timeout_factor: what `run` multiplies time limits by (gpu_stack_timeout_factor)
    gpus_alone: a lock held while a program uses the GPUs; two at once would take each other's memory and distort each
        other's measurements
    """

    plan: Plan
    root: str
    run: Run
    expect_gpus: int
    kernel_module: str
    driver_state: str
    environment_paths: Mapping[str, str]
    pci_gpus: int
    smi: NvidiaSmi | None
    left_alone: Mapping[str, str] = field(default_factory=dict)
    visible: str | None = None
    simulated: list[str] = field(default_factory=list)
    cuda_check_source: str = ""
    gpu_thresholds: dict[str, Any] = field(default_factory=dict)
    link_thresholds: dict[str, Any] = field(default_factory=dict)
    fabric_manager_packages: list[str] = field(default_factory=list)
    user_settings: list[dict[str, str]] = field(default_factory=list)
    gpu_counters: list[dict[str, Any]] = field(default_factory=list)
    xid_errors: dict[str, Any] = field(default_factory=dict)
    waivers: list[Waiver] = field(default_factory=list)
    unknown: str = FAIL
    workspaces: tuple[str, ...] = workspace.PLACES
    gpu_jobs: str = ""
    state_directory: str = "/var/lib/gpuhost"
    timeout_factor: float = 1.0
    idle_before: dict[str, Any] = field(default_factory=dict)
    gpus_alone: Any = field(default_factory=threading.Lock, compare=False)

    @property
    def smi_path(self) -> str:
        """The path of nvidia-smi; empty where it is not installed."""
        return self.smi.path if self.smi else ""

    @property
    def smi_gpus(self) -> tuple[SmiGpu, ...]:
        """The GPUs that nvidia-smi lists; none where it is not installed."""
        return self.smi.gpus if self.smi else ()

    @property
    def smi_notices(self) -> tuple[str, ...]:
        """The lines that nvidia-smi prints beside its rows."""
        return self.smi.notices if self.smi else ()

    def component(self, name: str) -> Component | None:
        """Return the planned component, None if the plan has none."""
        return self.plan.components.get(name)

    def waiver(self, check: str, *gpu: str) -> Waiver | None:
        """Return the waiver of a check, for one GPU by any of its names, or for the whole host."""
        names = {None, *(name.lower() for name in gpu if name)}
        matching = (waiver for waiver in self.waivers if waiver.check == check)
        return next((item for item in matching if (item.gpu and item.gpu.lower()) in names), None)

    @property
    def driver_simulated(self) -> bool:
        """Whether the NVIDIA driver of this host is simulated."""
        return any("driver" in line.lower() for line in self.simulated)

    @property
    def no_device_reason(self) -> str | None:
        """Why no program can use a GPU on this host although everything is as planned; None if programs must."""
        if self.driver_simulated:
            return "the NVIDIA driver is simulated: no program can use a GPU here"
        if self.driver_state == "not_loaded":
            return "the NVIDIA driver is installed but not loaded, as this host's options request"
        if self.expect_gpus == 0:
            return "no GPU is expected on this host"
        return None


def not_planned(specs: tuple[CheckSpec, ...], label: str) -> list[Check]:
    """Return a skip of each check because the plan has no such component."""
    return [spec.skip("the plan has no %s" % label) for spec in specs]
