# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the PyTorch environment: one process imports it, lists its CUDA libraries and computes on each GPU.

Without PyTorch in the plan, which is the default, there is no result at all: five skips on every host would hide the
skips that matter.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import pytorch_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.framework_checks import (
    TOLERANCE,
    ended_early,
    exit_text,
    parse,
    run_probe,
    shadowed_remedy,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    is_version,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack

_NAME = "PyTorch"
_NOT_LOCKED = "The environment differs from its lock file. " + REAPPLY

VERSION = CheckSpec(
    "pytorch.version",
    measures="`import torch`",
    expected="the planned version",
    skipped="never: without PyTorch in the plan the check is absent",
    remedy=_NOT_LOCKED,
)
BUILT_FOR_CUDA = CheckSpec(
    "pytorch.built_for_cuda",
    measures="`torch.version.cuda`",
    expected="a build for the planned CUDA",
    skipped="PyTorch cannot be imported",
    remedy=_NOT_LOCKED,
)
CUDA_LIBRARIES = CheckSpec(
    "pytorch.cuda_libraries",
    measures="files of libcudart, libcublas, libcudnn and libnccl that PyTorch loads, and the versions that cuDNN and "
    "NCCL return when called",
    expected="each is in the environment, in the version of its wheel",
    skipped="PyTorch was built without CUDA",
    remedy="Remove LD_LIBRARY_PATH from /etc/environment, /etc/profile.d and root's profile.",
)
DEVICES = CheckSpec(
    "pytorch.devices",
    measures="GPUs that PyTorch counts",
    expected="the expected number",
    skipped="the driver is simulated or must not be loaded, or no GPU is expected",
    remedy="Run `torch.cuda.init()` in the environment's Python: its error names the cause. CUDA_VISIBLE_DEVICES hides "
    "GPUs; LD_LIBRARY_PATH must not be set system-wide; a PyTorch for a newer CUDA than the driver supports sees no "
    "GPU.",
)
MATMUL = CheckSpec(
    "pytorch.matmul",
    measures="a product of 512 x 512 matrices on each GPU, without TF32",
    expected="each runs on its GPU and agrees with the CPU's double precision to %g of the largest element" % TOLERANCE,
    skipped="no GPU can be used; then the result of the same code on the CPU is shown",
    remedy="If one GPU fails, it is faulty: see gpu.ecc_errors and `journalctl -k -b -g Xid`. Out of memory: other "
    "programs use it (`nvidia-smi`). No kernel image: this PyTorch does not support that GPU.",
)
CHECKS = (VERSION, BUILT_FOR_CUDA, CUDA_LIBRARIES, DEVICES, MATMUL)


def run(context: Context, path: str = installed_stack.PYTORCH) -> list[Check]:
    """Run the probe once and judge its output; return nothing if the plan has no PyTorch."""
    component = context.component("pytorch")
    if component is None:
        return []
    answer = run_probe(context, path + "/bin/python", inspect.getsource(pytorch_probe))
    output = parse(answer)
    planned = str(component["version"])
    if "version" not in output:
        failed = VERSION.compare(False, "importing PyTorch: " + exit_text(answer), planned, REAPPLY)
        return [failed, *(spec.skip("PyTorch cannot be imported, see pytorch.version") for spec in CHECKS[1:])]
    return [
        _version(output, planned),
        _built_for_cuda(output, component),
        _libraries(output, answer),
        _devices(context, output, answer),
        _matmul(context, output, answer),
    ]


def _version(output: dict[str, Any], planned: str) -> Check:
    """Compare the version without its local part: the wheel 2.15.0 reports itself as 2.15.0+cu132."""
    version = str(output["version"])
    return VERSION.compare(
        is_version(version, planned), version, planned, versions={"pytorch": version.split("+", 1)[0]}
    )


def _built_for_cuda(output: dict[str, Any], component: dict[str, Any]) -> Check:
    cuda, planned = output["cuda"], str(component["cuda"])
    found = "built for CUDA %s" % cuda if cuda else "built without CUDA"
    return BUILT_FOR_CUDA.compare(bool(cuda) and is_version(str(cuda), planned), found, "a build for CUDA %s" % planned)


def _libraries(output: dict[str, Any], answer: Answer) -> Check:
    own = str(output["prefix"]).rstrip("/") + "/"
    expected = "each from the wheels in %s, in their versions" % own
    if not output["cuda"]:
        return CUDA_LIBRARIES.skip("PyTorch was built without CUDA, see pytorch.built_for_cuda")
    if "libraries" not in output or "called" not in output:
        return ended_early(CUDA_LIBRARIES, _NAME, answer, expected)
    loaded = dict(output["libraries"])
    wrong = ["%s is not loaded" % name for name in pytorch_probe.LIBRARIES if name not in loaded]
    for name, path in sorted(loaded.items()):
        if not os.path.realpath(path).startswith(own):
            wrong.append("%s from %s" % (name, path))
    good = ["%s from the wheels" % ", ".join(sorted(loaded))]
    for name, number in sorted(dict(output["called"]).items()):
        version, pin = _decoded(number), dict(output["pinned"]).get(name)
        good.append("%s returns %s" % (name, version))
        if pin is None or version is None or not is_version(str(pin), version):
            wrong.append("%s returns %s when called, its wheel is %s" % (name, version, pin))
    return CUDA_LIBRARIES.compare(not wrong, "; ".join(wrong or good), expected, shadowed_remedy(output, _NAME))


def _decoded(number: Any) -> str | None:
    """Decode cuDNN's version number: major * 1000 before cuDNN 9, since then major * 10000. NCCL's is text."""
    if number is None or isinstance(number, str):
        return number
    unit = 1000 if number < 10000 else 10000
    return "%d.%d.%d" % (number // unit, number % unit // 100, number % 100)


def _devices(context: Context, output: dict[str, Any], answer: Answer) -> Check:
    expected = "%d" % context.expect_gpus
    if "devices" not in output:
        return ended_early(DEVICES, _NAME, answer, expected)
    count, reason = int(output["devices"]), context.no_device_reason
    if reason is not None and count == 0:
        return DEVICES.skip(reason, "0")
    return DEVICES.compare(count == context.expect_gpus, "%d" % count, expected)


def _matmul(context: Context, output: dict[str, Any], answer: Answer) -> Check:
    expected = "each of %d GPUs agrees with the CPU to %g of the largest element" % (context.expect_gpus, TOLERANCE)
    if "matmul" not in output:
        return ended_early(MATMUL, _NAME, answer, expected)
    texts, passed = [], True
    for result in list(output["matmul"]):
        right = "error" not in result and result["ran_on"] == result["device"] and result["difference"] <= TOLERANCE
        passed = passed and right
        text = "differs by %.1e" % result["difference"] if "difference" in result else result["error"]
        if "ran_on" in result and result["ran_on"] != result["device"]:
            text += ", ran on %s" % result["ran_on"]
        texts.append("%s %s" % (result["device"], text))
    found = "; ".join(texts)
    if output.get("devices"):
        return MATMUL.compare(passed, found, expected)
    if not passed:
        return MATMUL.compare(False, found, "single and double precision agree to %g" % TOLERANCE)
    reason = context.no_device_reason or "PyTorch sees no GPU, see pytorch.devices"
    return MATMUL.skip(reason, "the same code on the CPU: " + found)
