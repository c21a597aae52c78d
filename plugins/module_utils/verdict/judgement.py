# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Judge a host by its last recorded result and by what has changed since. Pure functions.

The outcomes are those of the checks; beside them EXPIRED is evidence that is too old, PENDING a change that nothing has
verified, and DAMAGED a host whose checks have nothing against it while something that gpuhost installed is not as it
left it. The status is the worst that counts, the exit status follows from it.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Iterable, Mapping, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Waiver, count
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    DEFERRED,
    FAIL,
    PASS,
    REUSED,
    SKIP,
    TABLE,
    UNKNOWN,
    WAIVED,
    WARN,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.present import Present
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.recorded import Recorded, seconds

PENDING, EXPIRED, DAMAGED = "pending", "expired", "damaged"
STATUSES = (FAIL, UNKNOWN, PENDING, EXPIRED, DAMAGED, DEFERRED, PASS)  # from the worst to the best
EXIT = {PENDING: 1, EXPIRED: 1, DAMAGED: 0, **{name: outcome.exit for name, outcome in TABLE.items()}}
XID_CHECK = "gpu.xid_errors"
DAY = 86400.0
MAX_AGE = 30.0  # days, where an earlier release recorded none
CLOCK_SKEW = 300.0
AGAIN = "run playbooks/verify.yml on the controller, or `gpuhost-verify --fresh` as root"
REMEDIES = "its remedy is in the report of that run and in docs/checks.md; after a repair `gpuhost-verify --fresh`"
APPLY = "run playbooks/gpu_host.yml on the controller"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was compared or recorded; remedy: what to do where it is not right."""

    id: str
    outcome: str
    text: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a host: what was found, the number of recorded checks by outcome, when they ran, how long ago.

    status: one of STATUSES; trainings: (framework, when it ended); damage: a sentence each, as the last run of the
    playbooks or `--fresh` has found it; at and age (seconds) are None without a record.
    """

    status: str
    findings: Tuple[Finding, ...]
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    at: Optional[str] = None
    age: Optional[float] = None
    driver: Optional[str] = None
    gpus: Optional[Tuple[str, ...]] = None
    rebooted: bool = False
    trainings: Tuple[Tuple[str, str], ...] = ()
    damage: Tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """Return 2 for a failure, 1 for a host that is not known to work, else 0."""
        return EXIT[self.status]

    def prolog_status(self, strict: bool, has_max_age: bool) -> int:
        """Return the exit status for a prolog, which drains a node where it is not 0: as a rule for a failure alone."""
        is_old = has_max_age and any(finding.outcome == EXPIRED for finding in self.findings)
        return self.exit_status if strict or self.status == FAIL else int(is_old)

    def worst(self) -> list[Finding]:
        """Return the findings that are not right, the worst first."""
        order = (*STATUSES[:-1], WARN)
        wrong = [finding for finding in self.findings if finding.outcome in order]
        return sorted(wrong, key=lambda finding: order.index(finding.outcome))

    def to_json(self) -> dict[str, Any]:
        """Return the document of --json."""
        data = dataclasses.asdict(self)
        return dict(data, schema=1, exit_status=self.exit_status, trainings=dict(self.trainings))


def reads_log(recorded: Recorded) -> bool:
    """Return whether the kernel log is the host's own: the check of Xids was not skipped."""
    return _check(recorded, XID_CHECK).get("status") != SKIP


def judge(recorded: Recorded, present: Present, max_age: float | None = None) -> Verdict:
    """Return the verdict on a host.

    max_age: the age in seconds from which recorded checks and trainings are no evidence. None: checks do not expire,
    trainings and deferred checks do after the days that the record names.
    """
    findings = [Finding("record", UNKNOWN, text) for text in recorded.unread]
    result = recorded.result
    if result is None:
        if not findings:
            findings = [Finding("record", UNKNOWN, "%s has no result of checks" % store.DIRECTORY, AGAIN)]
        findings += [_gone(present)] if present.silent else []
        return Verdict(_status(findings, FAIL), tuple(findings), driver=present.driver, gpus=present.gpus)
    options = recorded.options or {}
    limit = options.get("max_age", MAX_AGE) * DAY if max_age is None else max_age
    checks = result.get("checks") or {}
    at = seconds(result.get("at"))
    age = None if at is None else present.now - at
    findings += [
        _module(result.get("driver"), present),
        _gpus(result.get("gpus"), present),
        _log(recorded, present),
        *_boot(result.get("boot_id"), present),
        *_age_of_checks(age, max_age),
        *_checks(checks, options, present.now),
        *_deferred(checks, recorded.evidence, present.now, limit),
        *_trainings(recorded, present.now, limit),
    ]
    if recorded.pending is not None:
        since = recorded.pending.get("since") or "an unknown date"
        findings.append(Finding("change", PENDING, "the change of %s is not verified" % since, APPLY))
    counts = count(check["status"] for check in checks.values())
    if not any(counts.get(outcome) for outcome in (PASS, WARN, REUSED, FAIL, DEFERRED)):
        findings.append(Finding("record", UNKNOWN, "the checks have measured nothing", AGAIN))
        options = {}
    trainings = ((recorded.evidence or {}).get("trainings") or {}).items()
    status, damage = _status(findings, options.get("unknown", FAIL)), tuple((options.get("damage") or {}).values())
    return Verdict(
        status=DAMAGED if damage and status in (DEFERRED, PASS) else status,
        findings=tuple(findings),
        counts=counts,
        at=result.get("at"),
        age=age,
        driver=present.driver,
        gpus=present.gpus,
        rebooted=any(finding.id == "host.boot" and finding.outcome == PASS for finding in findings),
        trainings=tuple((name, training["finished"]) for name, training in trainings),
        damage=damage,
    )


def _status(findings: Iterable[Finding], unknown: str) -> str:
    """Return the worst outcome that counts; unknown: WARN where UNKNOWN does not (gpu_stack_unknown)."""
    outcomes = {finding.outcome for finding in findings}
    counted = outcomes - {UNKNOWN} if unknown == WARN else outcomes
    return next((status for status in STATUSES if status in counted), PASS)


# What has changed since -------------------------------------------------------------------------------------------


def _module(then: str | None, present: Present) -> Finding:
    now, name = present.driver, "host.module"
    if present.driver_problem:
        return Finding(name, UNKNOWN, "the loaded module cannot be read: %s" % present.driver_problem)
    if now == then:
        return Finding(name, PASS, "%s is loaded, as checked" % now if now else "no module is loaded, as checked")
    if then is None:
        return Finding(name, UNKNOWN, "NVIDIA's module %s is loaded; none was when the host was checked" % now, AGAIN)
    if now is None:
        text = "NVIDIA's module is not loaded; %s was when the host was checked" % then
        return Finding(name, FAIL, text, "see `modprobe nvidia` and `journalctl -k -b -g 'NVRM|nvidia'`, or %s" % APPLY)
    text = "NVIDIA's module %s is loaded; %s was when the host was checked" % (now, then)
    return Finding(name, FAIL, text, "%s; if the change was meant, %s" % (APPLY, AGAIN))


def _gone(present: Present) -> Finding:
    text = "%s on the PCI bus, but silent" % _are(present.silent)
    return Finding("host.gpus", FAIL, text, "see `journalctl -k -b -g Xid`, and reboot or power-cycle the host")


def _gpus(then: list[dict[str, Any]] | None, present: Present) -> Finding:
    name = "host.gpus"
    if present.gpus is None:
        return Finding(name, UNKNOWN, "the PCI bus cannot be read: %s" % present.gpus_problem)
    if then is None:
        return Finding(name, UNKNOWN, "the GPUs could not be read when the host was checked", AGAIN)
    before = [gpu["pci_address"] for gpu in then]
    lost = [address for address in before if address not in present.gpus]
    if lost:
        text = "%s not on the PCI bus any more: %d of %d GPUs" % (_are(lost), len(before) - len(lost), len(before))
        return Finding(name, FAIL, text, "power-cycle the host, and reseat the card if that does not help")
    if present.silent:
        return _gone(present)
    new = [address for address in present.gpus if address not in before]
    if new:
        return Finding(name, UNKNOWN, "%s new since the host was checked" % _are(new), AGAIN)
    return Finding(name, PASS, "%d on the PCI bus, as checked" % len(before))


def _are(addresses: Iterable[str]) -> str:
    found = list(addresses)
    return ", ".join(found) + (" are" if len(found) > 1 else " is")


def _log(recorded: Recorded, present: Present) -> Finding:
    name, check = "host.kernel_log", _check(recorded, XID_CHECK)
    if not reads_log(recorded):
        return Finding(name, SKIP, "not compared: %s" % check.get("reason"))
    if present.log is None:
        return Finding(name, UNKNOWN, "the kernel log cannot be read: %s" % present.log_problem)
    result = recorded.result or {}
    text, since = present.log, "since this boot"
    is_comparable = True
    if result.get("kernel_log") and result.get("boot_id") == present.boot_id:
        new = kernel_log.after(text, result["kernel_log"])
        text, is_comparable, since = (text, False, since) if new is None else (new, True, "since the checks")
    xids = (recorded.options or {}).get("xid_errors") or {}
    events, rest = kernel_log.parse(text, xids), kernel_log.rest(text)
    fatal = [event for event in events if event.outcome == FAIL]
    others = [event for event in events if event.outcome == WARN]
    remedy = "see `journalctl -k -b -g 'NVRM|nvswitch'`; after a repair %s" % AGAIN
    if fatal and not is_comparable:
        return Finding(name, UNKNOWN, "%s; whether since the checks is not known" % _listed(fatal), remedy)
    if fatal:
        return Finding(name, FAIL, "%s, %s" % (_listed(fatal), since), remedy)
    if others and not xids:
        text = "%s: the record has no meaning of Xids, as an earlier gpuhost wrote it" % _listed(others)
        return Finding(name, UNKNOWN, text, AGAIN)
    if others or (rest.trouble and is_comparable):
        return Finding(name, WARN, "; ".join([*([_listed(others)] if others else []), *rest.trouble]), remedy)
    return Finding(name, PASS, "no fatal Xid %s" % since)


def _listed(events: Iterable[kernel_log.Event]) -> str:
    found = list(dict.fromkeys(str(event) for event in events))
    return "; ".join(found[:4]) + ("; and %d others" % (len(found) - 4) if len(found) > 4 else "")


def _boot(then: str | None, present: Present) -> list[Finding]:
    if present.boot_id is None:
        return [Finding("host.boot", UNKNOWN, "the boot cannot be read")]
    if then in (None, present.boot_id):
        return []
    return [Finding("host.boot", PASS, "the host was rebooted since the checks")]


# What is recorded -------------------------------------------------------------------------------------------------


def _check(recorded: Recorded, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ((recorded.result or {}).get("checks") or {}).get(name) or {}
    return found


def _age_of_checks(age: float | None, max_age: float | None) -> list[Finding]:
    if age is None or age < -CLOCK_SKEW:
        return [Finding("record", UNKNOWN, "the result has no date, or one in the future", AGAIN)]
    if max_age is not None and age > max_age:
        text = "the checks are of %s ago; expected at most %s" % (duration(age), duration(max_age))
        return [Finding("record", EXPIRED, text, AGAIN)]
    return []


def _checks(checks: Mapping[str, Any], options: Mapping[str, Any], now: float) -> list[Finding]:
    """Return a finding for each recorded check that has one of the outcomes that somebody should know."""
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    waivers = [Waiver(**waiver) for waiver in options.get("waivers") or []]
    findings = []
    for name, check in checks.items():
        outcome, texts = check["status"], [check.get("found"), check.get("reason")]
        text = next(filter(None, reversed(texts) if outcome == UNKNOWN else texts), "")
        ended = [w for w in waivers if w.check == name and w.until < today and str(w) in (check.get("reason") or "")]
        if outcome == WAIVED and ended:
            findings.append(Finding(name, FAIL, "%s; its waiver ended on %s" % (text, ended[0].until), AGAIN))
        elif outcome in (FAIL, UNKNOWN, WARN):
            findings.append(Finding(name, outcome, text, AGAIN if outcome == UNKNOWN else REMEDIES))
        elif outcome == WAIVED:
            findings.append(Finding(name, WAIVED, check.get("reason") or text))
    return findings


def _deferred(checks: Mapping[str, Any], evidence: Mapping[str, Any] | None, now: float, limit: float) -> list[Finding]:
    """Return what checks that waited for the GPUs mean: the last verification stands for them while it is young."""
    waiting = [name for name, check in checks.items() if check["status"] == DEFERRED]
    if not waiting:
        return []
    text = "not measured, as the GPUs ran a job: %s" % ", ".join(waiting)
    at = seconds((evidence or {}).get("at"))
    if at is None:
        return [Finding("deferred", EXPIRED, "%s, and the host was never verified" % text, AGAIN)]
    age = "%s; the host was verified %s ago" % (text, duration(now - at))
    if not -CLOCK_SKEW <= now - at <= limit:
        return [Finding("deferred", EXPIRED, "%s, expected at most %s" % (age, duration(limit)), AGAIN)]
    return [Finding("deferred", DEFERRED, age)]


def _trainings(recorded: Recorded, now: float, limit: float) -> list[Finding]:
    findings = []
    for name, training in ((recorded.evidence or {}).get("trainings") or {}).items():
        finished = seconds(training.get("finished"))
        if finished is None or now - finished < -CLOCK_SKEW:
            findings.append(Finding("training." + name, UNKNOWN, "no date, or one in the future", APPLY))
        elif now - finished > limit:
            text = "trained %s ago, expected at most %s" % (duration(now - finished), duration(limit))
            findings.append(Finding("training." + name, EXPIRED, text, APPLY))
        else:
            findings.append(Finding("training." + name, PASS, "trained %s ago" % duration(now - finished)))
    last = recorded.training
    if last:
        text = "the training of %s ago: %s" % (duration(now - last.ended), last.found)
        findings.append(Finding("training." + last.framework, FAIL if last.status == FAIL else UNKNOWN, text, APPLY))
    return findings


def duration(amount: float) -> str:
    """Return seconds as people say them: the largest unit of which there are two, or one."""
    for unit, length in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if amount >= 2 * length:
            return "%d %s" % (amount / length, unit)
    return "%d seconds" % max(amount, 0)
