# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Explain a kernel of Triton that fails because the host lacks what Triton compiles with (pytorch#196977, #129351).

At the first kernel, Triton has the host's compiler make a library that needs Python.h. The cause counts only if the
compiler or the header is missing *and* that is what the kernel failed of.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HOST, REAPPLY, Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import PytorchComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import words_of

# triton/runtime/build.py: its own words without a compiler; else subprocess's, of a compiler's call that failed. Older
# releases compile a copy in a temporary directory: /tmp/tmpXXXX/main.c (sglang#1240), cuda_utils.c.
_NO_COMPILER = re.compile(r"^Failed to find C compiler\.")
_NOT_COMPILED = re.compile(r"^Command '\['.*(/triton/.*|/(main|cuda_utils|driver))\.c'")


def explain(root: str, plan: Plan, check: Check, output: Output) -> Check:
    """Return a failed check with what is missing and the packages, if that explains each GPU's failure.

    root: of the host; output: the probe's. Where gpuhost installs no packages (gpu_stack_scope=frameworks), it is a
    failure of the host.
    """
    if check.status != FAIL:
        return check
    found, errors = output.compiles_with, [result.error or "" for result in output.triton or ()]
    planned = PytorchComponent.of(plan.components)
    if not found.compiler and _all(_NO_COMPILER, errors):
        missing, names = "no C compiler", planned.compiler_packages if planned else ()
    elif found.compiler and not found.has_headers and _all(_NOT_COMPILED, errors):
        missing, names = "no %s/Python.h" % found.headers, planned.header_packages if planned else ()
    else:
        return check
    install = "`%s`" % words_of(root).install(names) if names else "that of the environment's Python"
    remedy = "Triton, with which PyTorch compiles operations, finds %s on this host: %s. " % (missing, install)
    if plan.request.get("scope") == "frameworks":
        return dataclasses.replace(check, cause=HOST, setting=missing, remedy=remedy.strip())
    return dataclasses.replace(check, remedy=remedy + REAPPLY)


def _all(pattern: re.Pattern[str], errors: Iterable[str]) -> bool:
    return all(pattern.match(error) for error in errors)
