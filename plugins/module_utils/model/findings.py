# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Findings: the problems, warnings and reasons that the resolver and the preflight collect."""

from __future__ import annotations

import dataclasses
from typing import List, Tuple


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a plan cannot be made or applied, with what to do about it; code: stable, for scripts and documents."""

    code: str
    message: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class PlanWarning:
    """Something to know about a plan that can be applied; code: stable, like that of a problem."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True)
class Limit:
    """What is against the version `newer`; by: the code of a problem, or the name of a preference."""

    by: str
    newer: str


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a component has the version `choice`, or why it is left out (`none`); limits: why it is not newer.

    The choice is more exact than the plan's version where an archive decides it and the catalog knows it.
    """

    component: str
    choice: str
    because: str
    limits: Tuple[Limit, ...] = ()


@dataclasses.dataclass
class Findings:
    """A collector that the checks of one host append to, in the order in which the findings are shown."""

    problems: List[Problem] = dataclasses.field(default_factory=list)
    warnings: List[PlanWarning] = dataclasses.field(default_factory=list)
    reasons: List[Reason] = dataclasses.field(default_factory=list)

    def problem(self, code: str, message: str, remedy: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(code, message, remedy))

    def warn(self, code: str, message: str) -> None:
        """Add a warning."""
        self.warnings.append(PlanWarning(code, message))

    def reason(self, component: str, choice: str, because: str) -> None:
        """Add the reason for a component's version, or for its absence (`none`)."""
        self.reasons.append(Reason(component, choice, because))


@dataclasses.dataclass(frozen=True)
class FindingSpec:
    """The description of a finding of the preflight: a row of docs/troubleshooting.md, and its default remedy.

    meaning: when it is found; it begins with `Warning: ` where it is never a problem.
    remedy: what to do. Where that depends on the host, each problem has its own, and this one says it for all hosts.
    """

    code: str
    meaning: str
    remedy: str

    def add_problem(self, findings: Findings, message: str, remedy: str | None = None) -> None:
        """Add a problem; `remedy` defaults to the spec's own."""
        findings.problem(self.code, message, self.remedy if remedy is None else remedy)

    def add_warning(self, findings: Findings, message: str) -> None:
        """Add a warning, whose message includes what to do."""
        findings.warn(self.code, message)
