# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run framework_probe.py in a framework's environment, and judge what frameworks share.

What the process does not print is a failure if it crashed, and unknown if it hung, was killed or ended as if nothing
were wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import re
from typing import Any, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, workspace
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import users_environment
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    HOST,
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    Symptom,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output, Result
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import words_of

TIMEOUT, LONG_TIMEOUT = 120, 300  # seconds
# For a release that was asked for and is not known to run on the GPUs (a warning of the plan): the driver compiles its
# PTX first, "which could take 30 minutes or longer" (TensorFlow's gpu_device.cc).
UNPROVEN, COMPILE_SECONDS = "no-published-run-asked", 3600
PATH = "/usr/bin:/bin"
_COMPILE_CACHE = "gpuhost-compiled-"
# Python as it starts, but for the sitecustomize that a host may have for all its Pythons.
WITHOUT_SITECUSTOMIZE = """
import importlib.machinery, json, sys, types
sys.modules["sitecustomize"] = sys.modules["usercustomize"] = types.ModuleType("none")
import site
site.main()
del sys.modules["sitecustomize"], sys.modules["usercustomize"]
found = importlib.machinery.PathFinder.find_spec("sitecustomize")
print("%s" + json.dumps({"sitecustomize": found and found.origin}), flush=True)
exec(sys.argv.pop(1))
"""
# Relative to the largest element of a product of 512 x 512 matrices of standard normal numbers. Single precision stays
# within 1e-6 of double precision; TF32, which the probe disables, has 13 bits less and exceeds 1e-4.
TOLERANCE = 1e-5
# cuDNN may choose an algorithm (Winograd) that loses one more digit; a wrong result differs by far more.
CONVOLUTION_TOLERANCE = 1e-4
_CONVOLUTION = "forward and both gradients of a 3 x 3 convolution on each GPU, without TF32"
_AGREES = "each runs on its GPU and agrees with double precision, computed %s, to %g of the largest element"
ON_THE_CPU = "no GPU can be used; then the result of the same code on the CPU is shown"
CONVOLUTION_REMEDY = (
    "A crash here and nowhere before is usually a second cuDNN in the process, such as a system's beside the wheel's: "
    "the check of the libraries shows their paths. Remove LD_LIBRARY_PATH, and the system's cuDNN if nothing needs it. "
)


def agrees(computed_how: str, tolerance: float) -> str:
    """Return what is expected of a computation on each GPU."""
    return _AGREES % (computed_how, tolerance)


def convolution_spec(framework: str) -> CheckSpec:
    """Return the check of the convolution, the first operation for which frameworks use cuDNN."""
    return CheckSpec(
        framework + ".convolution",
        measures=_CONVOLUTION,
        expected=agrees("without cuDNN", CONVOLUTION_TOLERANCE),
        skipped=ON_THE_CPU,
        remedy=CONVOLUTION_REMEDY + REAPPLY,
    )


def matmul_spec(framework: str, remedy: str) -> CheckSpec:
    """Return the check of the product of two matrices."""
    return CheckSpec(
        framework + ".matmul",
        measures="a product of 512 x 512 matrices on each GPU, without TF32",
        expected=agrees("on the CPU", TOLERANCE),
        skipped=ON_THE_CPU,
        remedy="If one GPU fails, it is faulty: see gpu.ecc_errors and `journalctl -k -b -g Xid`. " + remedy,
    )


def run_probe(
    context: Context,
    framework: str,
    path: str,
    environment: dict[str, str] | None = None,
    users: Sequence[str] | None = None,
    sitecustomize: bool = True,
) -> Answer:
    """Run the probe in an environment of ours.

    users: run it in that of all users, with these arguments of env(1), and let it import what training needs as well
    sitecustomize: whether Python runs the host's
    """
    source = inspect.getsource(framework_probe)
    is_unproven = any(warning.code == UNPROVEN for warning in context.plan.warnings)
    limit = TIMEOUT + (COMPILE_SECONDS if is_unproven else 0)
    code = [source] if sitecustomize else [WITHOUT_SITECUSTOMIZE % framework_probe.MARK, source]
    argv = [path + "/bin/python", *([] if sitecustomize else ["-S"]), "-c", *code, framework]
    # Where it computes on the GPUs, no other program of the checks may do so at the same time.
    with contextlib.ExitStack() as stack:
        stack.enter_context(context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext())
        cache = {}
        for variable in (each.compile_cache for each in FRAMEWORKS if each.name == framework and each.compile_cache):
            # Of its own, so that nothing is left over, and nothing that was compiled earlier hides that it no longer
            # can be. Libraries are loaded from there, so not below a /tmp that may be mounted with noexec.
            cache[variable] = stack.enter_context(workspace.directory(_COMPILE_CACHE, context.workspaces))
        if users is None:
            isolated = users_environment.isolated(context, {"PATH": PATH, **(environment or {}), **cache})
            return command.ask(context.run, argv, limit, isolated, max(limit, LONG_TIMEOUT))
        home = stack.enter_context(workspace.directory(users_environment.HOME, context.workspaces))
        words = [*users, *("%s=%s" % pair for pair in cache.items()), *argv, framework_probe.AND_KERAS]
        in_shell, of_login = users_environment.shell(context, home, words)
        return command.ask(context.run, in_shell, limit, {**(environment or {}), **of_login}, max(limit, LONG_TIMEOUT))


def of_sitecustomize(context: Context, check: Check, framework: str, path: str) -> Check:
    """Return a failed check of the version as one of the host if the host's sitecustomize is the reason."""
    if check.status != FAIL:
        return check
    answer = run_probe(context, framework, path, sitecustomize=False)
    output = parse(answer)
    origin = os.path.realpath(output.sitecustomize or "/")
    if output.version is None or origin == "/" or in_directory(origin, own_directory(output)):
        return check
    named = "/" + os.path.relpath(origin, context.root)
    return dataclasses.replace(
        check,
        cause=HOST,
        setting="%s, which every Python of the host runs at its start" % named,
        remedy="Without it the import succeeds. Mend it, or remove it: `%s` names the package that it is of, "
        "if any." % words_of(context.root).owner([named]),
    )


def parse(answer: Answer) -> Output:
    """Return all parts of the probe's output, of each the last. Raise ValueError for what is not the probe's JSON."""
    parts: dict[str, Any] = {}
    for line in answer.output.splitlines():
        if line.startswith(framework_probe.MARK):
            parts.update(json.loads(line[len(framework_probe.MARK) :]))
    return records.from_json(Output, parts, "the probe")


def not_imported(specs: tuple[CheckSpec, ...], label: str, answer: Answer, planned: str) -> list[Check]:
    """Return the results if the framework could not be imported; the first check is that of its version."""
    reason = "importing %s: %s" % (label, answer.ending())
    if answer.stopped or answer.exit_code == 0:
        return [spec.unknown(reason) for spec in specs]
    rest = "%s cannot be imported, see %s" % (label, specs[0].id)
    return [specs[0].compare(False, reason, planned, REAPPLY), *(spec.unknown(rest) for spec in specs[1:])]


def not_printed(spec: CheckSpec, label: str, answer: Answer, expected: str | None = None) -> Check:
    """Return the result for a part that the probe did not print, usually because of a library of driver or CUDA."""
    reason = "the process ended early: " + answer.ending()
    if answer.stopped or answer.exit_code == 0:
        return spec.unknown(reason)
    remedy = "Run the environment's Python with `-X faulthandler`: import %s, then list and use its GPUs. " % label
    if spec.id.endswith(".convolution"):
        remedy += CONVOLUTION_REMEDY
    check = spec.compare(False, reason, expected, remedy)
    return dataclasses.replace(check, symptom=_of_process(answer, None, other=True))


def _of_process(answer: Answer, seen: int | None, other: bool = False) -> Symptom:
    """Return what a known cause may explain of a process that could use no GPU; it prints CUDA's error.

    other: whether something else was wrong, unless it prints such an error
    """
    errors = cuda_errors.read(answer.text())
    return Symptom(frozenset((None, error) for error in errors), seen, other and not errors)


def ended_early(output: Output, answer: Answer) -> str | None:
    """Return how the process ended if it did so before its last part, or with an error; None if it ended well."""
    if output.ended and answer.exit_code == 0:
        return None
    ending = Answer(answer.exit_code, b"", answer.stderr).ending()
    when = "after it computed" if output.ended else "before it listed what computing loads"
    return "the process ended %s: %s" % (when, ending)


def devices(context: Context, spec: CheckSpec, label: str, output: Output, answer: Answer) -> Check:
    """Compare the number of GPUs that the framework lists with the expected one."""
    expected = "%d" % context.expect_gpus
    if output.devices is None:
        return not_printed(spec, label, answer, expected)
    count, reason = len(output.devices), context.no_device_reason
    if reason is not None and count == 0:
        return spec.skip(reason, "0")
    check = spec.compare(count == context.expect_gpus, "%d" % count, expected)
    return dataclasses.replace(check, symptom=Symptom(seen=count) if count else _of_process(answer, 0))


def foreign_libraries(output: Output) -> list[str]:
    """Return the CUDA libraries in the process that are not in the environment.

    cuDNN's parts may be the system's if they are of the same release: libcudnn.so.9 of cuDNN 9.28.0 first looks for
    libcudnn_graph.so.9.28.0, a name that NVIDIA's packages have and its wheels lack (seen with LD_DEBUG=libs).
    """
    own, cudnn = own_directory(output), decoded((output.called or {}).get("cudnn"))

    def is_foreign(path: str) -> bool:
        is_same = framework_probe.named(path).startswith("libcudnn_") and path.endswith(".so.%s" % cudnn)
        return not in_directory(path, own) and not is_same

    return ["%s from %s" % (framework_probe.named(path), path) for path in output.libraries or () if is_foreign(path)]


def missing_libraries(output: Output) -> list[str]:
    """Return the needed libraries that the process has not loaded."""
    names = {framework_probe.named(path) for path in output.libraries or ()}
    return [name for name in framework_probe.NEEDED if name not in names]


def loaded_text(output: Output) -> str:
    """Return the names of the loaded libraries."""
    return ", ".join(sorted({framework_probe.named(path) for path in output.libraries or ()}))


def own_directory(output: Output) -> str:
    """Return the environment's directory, with a slash at its end. Raise ValueError where it was not printed."""
    if not output.prefix:
        raise ValueError("the probe printed no directory of its environment")
    return output.prefix.rstrip("/") + "/"


def in_directory(path: str, directory: str) -> bool:
    """Return whether a file is in a directory, also if a link names it."""
    return os.path.realpath(path).startswith(directory)


def shadowed_remedy(output: Output, label: str) -> str:
    """Return the remedy for a library that is loaded from outside the environment."""
    search = "LD_LIBRARY_PATH is %s. " % output.search_path if output.search_path else ""
    return search + (
        "Another library takes precedence over %s's own, or its own is missing. Remove LD_LIBRARY_PATH from "
        "/etc/environment, /etc/profile.d and root's profile. Otherwise: %s" % (label, REAPPLY)
    )


def loaded(framework: str, output: Output) -> dict[str, str] | None:
    """Return the version that is recorded beside the framework's library in the process, and its environment."""
    found = output.loaded
    if found is None or not found.version:
        return None
    environment = os.path.basename(found.path.split("/lib/python", 1)[0])
    return {framework: "%s (%s)" % (found.version, environment)}


def computed(context: Context, spec: CheckSpec, label: str, output: Output, answer: Answer, tolerance: float) -> Check:
    """Judge the results of a computation: one on each GPU, or on the CPU if there is none."""
    results = output.results(spec.id.split(".", 1)[1])
    reason = context.no_device_reason
    gpus = len(output.devices or ())
    wanted = context.expect_gpus if reason is None else gpus
    expected = "each of %d GPUs agrees to %g of the largest element" % (wanted, tolerance)
    if results is None:
        return not_printed(spec, label, answer, expected)
    passed = bool(results) and all(result.is_right(tolerance) for result in results)
    found = "; ".join(_results_text(results)) or "no result"
    if gpus:
        every = len({result.device for result in results}) == len(results) == wanted
        found = found if every else "%s (%d GPUs)" % (found, len(results))
        check = spec.compare(passed and every, found, expected)
        return dataclasses.replace(check, symptom=_of_results(context, results, tolerance, wanted, answer))
    if not results:
        return spec.unknown("%s computed nothing, not even on the CPU" % label)
    if not passed:
        return spec.compare(False, found, "the CPU agrees to %g" % tolerance)
    found = "the same code on the CPU: " + found
    if reason is None:
        check = spec.unknown("%s lists no GPU, see %s.devices" % (label, spec.id.split(".", 1)[0]), found)
        return dataclasses.replace(check, symptom=_of_process(answer, 0))
    return spec.skip(reason, found)


_IN_THE_LOG = "Look at the errors above for more details"  # TensorFlow's, of what XLA and cuDNN have logged


def _of_results(context: Context, results: Sequence[Result], tolerance: float, wanted: int, answer: Answer) -> Symptom:
    """Return what a known cause may explain of the results: each GPU's errors, also where they are in the log alone."""
    addresses = dict(enumerate(gpu.pci_address for gpu in context.smi_gpus))
    errors, other = set(), False
    for result in results:
        if result.is_right(tolerance):
            continue
        error = result.error or ""
        said = cuda_errors.read(error + answer.text() if _IN_THE_LOG in error else error)
        digits = re.search(r"\d+$", result.device)
        at = addresses.get(int(digits.group())) if digits else None
        errors |= {(at, key) for key in said}
        other = other or not said
    return Symptom(frozenset(errors), None if len(results) == wanted else len(results), other)


def _results_text(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        text = "differs by %.1e" % result.difference if result.error is None else result.error
        if result.elsewhere:
            text += ", ran on %s" % result.elsewhere
        yield "%s %s" % (result.device, text)


def decoded(number: Any) -> str | None:
    """Decode a version number: major * 1000 before cuDNN 9 and NCCL 2.9, since then major * 10000. Text is kept."""
    if number is None or isinstance(number, str):
        return number
    unit = 1000 if number < 10000 else 10000
    return "%d.%d.%d" % (number // unit, number % unit // 100, number % 100)
