# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a framework's probe in the environment's own Python, as a user would start it, and parse its output.

The probe prints lines of MARK and a JSON object, one for each part as soon as it is known, so that a crash in a driver
library does not lose the parts before it. All parts together are the output that the checks judge.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import REAPPLY, Check, CheckSpec, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer

MARK = "GPUHOST-ANSWER "
TIMEOUT = 300  # seconds
# Relative to the largest element of a product of 512 x 512 matrices of standard normal numbers. Single precision stays
# within 1e-6 of double precision; TF32, which the probes disable, has 13 bits less and exceeds 1e-4.
TOLERANCE = 1e-5


def run_probe(context: Context, python: str, source: str, environment: dict[str, str] | None = None) -> Answer:
    """Run `source` with the environment variables of a login: profiles and /etc/environment can shadow libraries."""
    env = dict({"HOME": "/root", "PATH": "/usr/bin:/bin"}, **(environment or {}))
    env.update(system.login_environment(context.root))
    argv = ["/bin/bash", "-lc", 'exec "$0" "$@"', python, "-c", source]
    # Where it computes on the GPUs, no other program of the checks may do so at the same time.
    with context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext():
        answer: Answer = context.run(argv, TIMEOUT, env)
    return answer


def parse(answer: Answer) -> dict[str, Any]:
    """Return all parts of the probe's output merged into one object."""
    output: dict[str, Any] = {}
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            output.update(json.loads(line[len(MARK) :]))
    return output


def exit_text(answer: Answer) -> str:
    """Return the exit code and the last lines of the output."""
    return "exit %d: %s" % (answer.exit_code, " | ".join(answer.text().splitlines()[-4:])[-800:])


def ended_early(spec: CheckSpec, framework: str, answer: Answer, expected: str | None = None) -> Check:
    """Fail because the probe crashed or hung before it printed this part, usually in a library of driver or CUDA."""
    remedy = "Run the environment's Python with `-X faulthandler`: import %s, then list and use its GPUs." % framework
    return spec.compare(False, "the process ended early: " + exit_text(answer), expected, remedy)


def shadowed_remedy(output: dict[str, Any], framework: str) -> str:
    """Return the remedy for a library that is loaded from outside the environment."""
    search = "LD_LIBRARY_PATH is %s. " % output["search_path"] if output.get("search_path") else ""
    return search + (
        "Another library takes precedence over %s's own, or its own is missing. Remove LD_LIBRARY_PATH from "
        "/etc/environment, /etc/profile.d and root's profile. Otherwise: %s" % (framework, REAPPLY)
    )
