# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Drain a node of Slurm whose host fails, and resume it when the host is well: what is drained by others stays so.

Slurm ignores the exit status of its HealthCheckProgram, which therefore calls scontrol (slurm.conf(5)).
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
from typing import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.judgement import Verdict

PREFIX = "gpuhost:"
REASON_CHARACTERS = 200
SECONDS = 20
# slurmd starts the program without a shell's PATH.
PLACES = (
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
)
DRAIN, RESUME, NOTHING = "drain", "resume", "nothing"
_STATE = re.compile(r"^\s*State=(\S+)", re.MULTILINE)
# The user and time that scontrol adds are no part of the reason.
_REASON = re.compile(r"^\s*Reason=(.*?)(?: \[[^\]\s]+@[^\]]+\])?\s*$", re.MULTILINE)


class SlurmError(Exception):
    """Slurm did not answer, or refused an update; the message says why."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as slurmctld has it: whether it drains, and the reason; empty without one."""

    name: str
    drains: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class Step:
    """What is to be done with a node: DRAIN with a reason, RESUME or NOTHING, and what to say about it."""

    action: str
    text: str
    reason: str = ""


def parse(name: str, text: str) -> Node:
    """Return a node from the output of `scontrol show node`. Raise SlurmError for another output."""
    state = _STATE.search(text)
    if state is None:
        raise SlurmError("`scontrol show node %s` printed no State: %.200s" % (name, text.strip() or "nothing"))
    flags = {re.sub(r"[^A-Z_]", "", flag) for flag in state.group(1).split("+")}
    reason = _REASON.search(text)
    # Before Slurm 20.11 the flag and the state are one word.
    drains = bool(flags & {"DRAIN", "DRAINED", "DRAINING"})
    return Node(name, drains, reason.group(1) if reason else "")


def decide(node: Node, verdict: Verdict) -> Step:
    """Return what is to be done. A reason of others is never replaced, and what they drained never resumed."""
    is_ours = node.reason.startswith(PREFIX)
    if verdict.status == FAIL:
        wanted = reason(verdict)
        if node.reason and not is_ours:
            return Step(NOTHING, "left alone: its reason is %r" % node.reason)
        if node.drains and node.reason == wanted:
            return Step(NOTHING, "drained already: %s" % wanted)
        return Step(DRAIN, "drained: %s" % wanted, wanted)
    if node.drains and is_ours:
        if verdict.exit_status:
            return Step(NOTHING, "stays drained (%s): the host is %s" % (node.reason, verdict.status))
        return Step(RESUME, "resumed: it was drained with the reason %r" % node.reason)
    return Step(NOTHING, "left alone" + (": its reason is %r" % node.reason if node.reason else ""))


def reason(verdict: Verdict) -> str:
    """Return why a node is drained, as one line without quotes, which scontrol would read."""
    failed = [finding for finding in verdict.worst() if finding.outcome == FAIL]
    text = "%s %s" % (PREFIX, "; ".join("%s: %s" % (finding.id, finding.text) for finding in failed))
    return " ".join(re.sub(r"[\"'\\\x00-\x1f]", " ", text).split())[:REASON_CHARACTERS].strip()


def program(environment: Mapping[str, str]) -> str:
    """Return the path of scontrol; raise SlurmError where it is in none of the usual places."""
    places = [place for place in environment.get("PATH", "").split(os.pathsep) if place]
    found = shutil.which("scontrol", path=os.pathsep.join([*places, *PLACES]))
    if found is None:
        raise SlurmError("scontrol is not in PATH (%s) nor in %s" % (os.pathsep.join(places), ", ".join(PLACES)))
    return found


def node_name(scontrol: str, environment: Mapping[str, str], run: Run) -> str:
    """Return the name of this node: what slurmd says, else what slurm.conf calls this host, else the host's name."""
    given = environment.get("SLURMD_NODENAME")
    if given:
        return given
    host = socket.gethostname().split(".")[0]
    answer = run([scontrol, "show", "aliases", host], SECONDS)
    names = answer.output.split()
    return names[0] if answer.exit_code == 0 and len(names) == 1 else host


def keep(verdict: Verdict, environment: Mapping[str, str], run: Run) -> str:
    """Drain or resume this node as the verdict says; return what was done. Raise SlurmError if that is not possible."""
    scontrol = program(environment)
    name = node_name(scontrol, environment, run)
    node = parse(name, _ask(run, [scontrol, "show", "node", name]))
    step = decide(node, verdict)
    update = [scontrol, "update", "NodeName=%s" % name]
    if step.action == DRAIN:
        _ask(run, [*update, "State=DRAIN", "Reason=%s" % step.reason])
    elif step.action == RESUME:
        _ask(run, [*update, "State=RESUME"])
    return "node %s %s" % (name, step.text)


def _ask(run: Run, argv: list[str]) -> str:
    answer = run(argv, SECONDS)
    if answer.exit_code:
        raise SlurmError("`%s`: %s" % (" ".join(argv), answer.ending()))
    return answer.output
