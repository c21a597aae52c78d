"""What the checks of both frameworks share: one process in the environment's Python, asked as a user's would be.

Runs on the target. The process prints lines of MARK and a JSON object, part by part, so that what it told before a
crash in a driver library is not lost.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, Context, compared
from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer

MARK = "GPUHOST-ANSWER "
TIMEOUT = 300
# Of the largest element of a product of 512 x 512 matrices of standard normal numbers. Single precision stays below
# 1e-6 of double precision; TF32, which is switched off for it, has 13 bits less and passes 1e-4.
TOLERANCE = 1e-5


def ask(context: Context, python: str, source: str, environment: dict[str, str] | None = None) -> Answer:
    """Runs `source` with what a user gets at login: profiles and /etc/environment are where libraries get shadowed."""
    env = dict({"HOME": "/root", "PATH": "/usr/bin:/bin"}, **(environment or {}))
    env.update(_pam_environment(context.root))
    argv = ["/bin/bash", "-lc", 'exec "$0" "$@"', python, "-c", source]
    # Where it will compute on the GPUs, no other program of the checks does at the same time.
    with context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext():
        answer: Answer = context.run(argv, TIMEOUT, env)
    return answer


def _pam_environment(root: str) -> dict[str, str]:
    """NAME=value lines of /etc/environment, quotes taken off, as pam_env reads them."""
    found = {}
    for line in (files.read_text(root, "/etc/environment") or "").splitlines():
        name, equals, value = line.strip().partition("=")
        name = name[len("export ") :].strip() if name.startswith("export ") else name
        if equals and name and not name.startswith("#"):
            found[name] = value.strip().strip("\"'")
    return found


def parse(answer: Answer) -> dict[str, Any]:
    """What the process told, all parts together."""
    told: dict[str, Any] = {}
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(MARK):
            told.update(json.loads(line[len(MARK) :]))
    return told


def end(answer: Answer) -> str:
    """How the process ended, with its last lines."""
    return "exit %d: %s" % (answer.exit_code, " | ".join(answer.text().splitlines()[-4:])[-800:])


def died(check_id: str, framework: str, answer: Answer, expected: str) -> Check:
    """The process ended before it came to this: a library of the driver or of CUDA took it down, or it hung."""
    remedy = (
        "Run the environment's Python by hand with `-X faulthandler`, import %s, list and use its GPUs." % framework
    )
    return compared(check_id, False, "the process ended before: " + end(answer), expected, remedy)


def shadowed(told: dict[str, Any], framework: str, role: str) -> str:
    """What to do where another library than the environment's own answers."""
    search = "LD_LIBRARY_PATH is %s. " % told["search_path"] if told.get("search_path") else ""
    return search + (
        "Another library stands before %s's own, or its own is missing. Take LD_LIBRARY_PATH out of "
        "/etc/environment, /etc/profile.d and root's profile; else run the role %s again." % (framework, role)
    )
