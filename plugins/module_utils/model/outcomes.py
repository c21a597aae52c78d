# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a check, and all that follows from each: one table. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional

PASS = "pass"
WARN = "warn"
FAIL = "fail"
UNKNOWN = "unknown"
DEFERRED = "deferred"
REUSED = "reused"
SKIP = "skip"
WAIVED = "waived"


@dataclass(frozen=True)
class Outcome:
    """What follows from an outcome.

    word: shown after a number of checks; verifies: whether a host with it can be verified; measured: whether something
    was measured; right: whether a change can make it worse; marked: whether a verified host is shown with it; exit: the
    exit status of gpuhost-verify; element: that of a test case in JUnit, None where it passes
    """

    word: str
    verifies: bool = True
    measured: bool = False
    right: bool = False
    marked: bool = False
    exit: int = 0
    element: Optional[str] = None


TABLE: Dict[str, Outcome] = {
    # Measured, within limits.
    PASS: Outcome("passed", measured=True, right=True),
    # Works, but somebody should act.
    WARN: Outcome("with a warning", measured=True, right=True, marked=True),
    # Wrong; `cause` is what is at fault.
    FAIL: Outcome("failed", verifies=False, exit=2, element="failure"),
    # Not measured: a tool is missing, hangs, crashes or prints something unexpected.
    UNKNOWN: Outcome("unknown", verifies=False, marked=True, exit=1, element="error"),
    # Not measured: the GPU runs a job.
    DEFERRED: Outcome("deferred", verifies=False, element="skipped"),
    # Passed earlier, on the same stack and hardware, and not too long ago.
    REUSED: Outcome("reused", measured=True, right=True, marked=True),
    # Does not apply to this host.
    SKIP: Outcome("skipped", element="skipped"),
    # The operator accepted a failure until a date.
    WAIVED: Outcome("waived", marked=True, element="skipped"),
}
OUTCOMES = tuple(TABLE)
WORST = tuple(name for name, outcome in TABLE.items() if not outcome.verifies)  # from the worst to the best


def worst(found: Iterable[str], unknown: str = FAIL) -> str:
    """Return the worst outcome; PASS where none keeps a host from being verified, UNKNOWN where nothing was measured.

    unknown: WARN where a host is verified although checks are unknown (gpu_stack_unknown)
    """
    there = set(found)
    counted = [outcome for outcome in WORST if outcome in there and not (outcome == UNKNOWN and unknown == WARN)]
    measured = any(TABLE[outcome].measured for outcome in there)
    return counted[0] if counted else PASS if measured else UNKNOWN


@dataclass(frozen=True)
class Answers:
    """The outcomes by check id of the configuration to which a change could return.

    before: of the checks that were asked just before the change that is pending; None without such a record
    verified: of those that verified that configuration; None where it was never verified
    passed: the checks that have been right since the change was last written
    """

    before: Optional[Mapping[str, str]] = None
    verified: Optional[Mapping[str, str]] = None
    passed: FrozenSet[str] = frozenset()

    def were_right(self, name: str) -> bool:
        """Return whether a check was right by each record from before the change, and has not been since."""
        records = [self.before or {}] + ([] if self.verified is None else [self.verified])
        return name not in self.passed and all(is_right(record.get(name)) for record in records)


def is_worse(check: Mapping[str, Any]) -> bool:
    """Return whether a check that was right before is worse now: nothing but the stack explains its failure."""
    return check.get("status") in (FAIL, UNKNOWN) and check.get("cause") in (None, "stack")


def is_right(outcome: Optional[str]) -> bool:
    """Return whether an outcome is one that a change can make worse; no outcome is none."""
    return outcome in TABLE and TABLE[outcome].right
