"""Checks of the PyTorch environment: one process imports, shows its CUDA libraries, computes. Runs on the target.

Where the plan leaves PyTorch out, which it does unless it is asked for, nothing is checked and nothing skipped: five
skips on every host would drown those that mean something.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import pytorch_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.framework_checks import (
    TOLERANCE,
    ask,
    died,
    end,
    parse,
    shadowed,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    Check,
    Context,
    compared,
    is_version,
    skipped,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack

IDS = ("pytorch.version", "pytorch.built_for_cuda", "pytorch.cuda_libraries", "pytorch.devices", "pytorch.matmul")
_REBUILD = "Run the role pytorch_env again: the environment is not the locked one."


def run(context: Context, path: str = installed_stack.PYTORCH) -> list[Check]:
    component = context.component("pytorch")
    if component is None:
        return []
    answer = ask(context, path + "/bin/python", inspect.getsource(pytorch_probe))
    told = parse(answer)
    planned = str(component["version"])
    if "version" not in told:
        remedy = "Run the role pytorch_env again: it builds an environment that cannot import PyTorch anew."
        missing = [skipped(check_id, "PyTorch cannot be imported, see pytorch.version") for check_id in IDS[1:]]
        return [compared(IDS[0], False, "importing PyTorch: " + end(answer), planned, remedy)] + missing
    return [
        _version(told, planned),
        _built_for_cuda(told, component),
        _libraries(told, answer),
        _devices(context, told, answer),
        _matmul(context, told, answer),
    ]


def _version(told: dict[str, Any], planned: str) -> Check:
    """The wheel calls itself 2.15.0+cu132 where its metadata say 2.15.0."""
    version = str(told["version"])
    return compared(
        "pytorch.version", is_version(version, planned), version, planned, _REBUILD, {"pytorch": version.split("+")[0]}
    )


def _built_for_cuda(told: dict[str, Any], component: dict[str, Any]) -> Check:
    found, planned = told["cuda"], str(component["cuda"])
    text = "built for CUDA %s" % found if found else "built without CUDA"
    good = bool(found) and is_version(str(found), planned)
    return compared("pytorch.built_for_cuda", good, text, "a build for CUDA %s" % planned, _REBUILD)


def _libraries(told: dict[str, Any], answer: Answer) -> Check:
    """None from elsewhere than the environment; cuDNN and NCCL tell the wheels' versions when they are called."""
    check_id = "pytorch.cuda_libraries"
    own = str(told["prefix"]).rstrip("/") + "/"
    expected = "each from the wheels below %s, in their versions" % own
    if not told["cuda"]:
        return skipped(check_id, "PyTorch was built without CUDA, see pytorch.built_for_cuda")
    if "libraries" not in told or "called" not in told:
        return died(check_id, "PyTorch", answer, expected)
    loaded = dict(told["libraries"])
    wrong = ["%s is not loaded" % name for name in pytorch_probe.LIBRARIES if name not in loaded]
    for name, path in sorted(loaded.items()):
        if not os.path.realpath(path).startswith(own):
            wrong.append("%s from %s" % (name, path))
    good = ["%s from the wheels" % ", ".join(sorted(loaded))]
    for name, number in sorted(dict(told["called"]).items()):
        version, pin = _decoded(number), dict(told["pinned"]).get(name)
        good.append("%s says %s" % (name, version))
        if pin is None or version is None or not is_version(str(pin), version):
            wrong.append("%s says %s when it is called, its wheel is %s" % (name, version, pin))
    remedy = shadowed(told, "PyTorch", "pytorch_env")
    return compared(check_id, not wrong, "; ".join(wrong or good), expected, remedy)


def _decoded(number: Any) -> str | None:
    """cuDNN before 9 counts its major version in thousands, since then in ten thousands; NCCL comes as text."""
    if number is None or isinstance(number, str):
        return number
    unit = 1000 if number < 10000 else 10000
    return "%d.%d.%d" % (number // unit, number % unit // 100, number % 100)


def _devices(context: Context, told: dict[str, Any], answer: Answer) -> Check:
    check_id, expected = "pytorch.devices", "%d" % context.expect_gpus
    if "devices" not in told:
        return died(check_id, "PyTorch", answer, expected)
    count, reason = int(told["devices"]), context.no_device_reason
    if reason is not None and count == 0:
        return skipped(check_id, reason, "0")
    remedy = (
        "Run the environment's Python with torch.cuda.init(): its error names what is missing. CUDA_VISIBLE_DEVICES "
        "hides GPUs; LD_LIBRARY_PATH must not be set for everybody; a PyTorch for a newer CUDA than the driver's sees "
        "none."
    )
    return compared(check_id, count == context.expect_gpus, "%d" % count, expected, remedy)


def _matmul(context: Context, told: dict[str, Any], answer: Answer) -> Check:
    check_id = "pytorch.matmul"
    expected = "each of %d GPUs agrees with the CPU to %g of the largest element" % (
        context.expect_gpus,
        TOLERANCE,
    )
    if "matmul" not in told:
        return died(check_id, "PyTorch", answer, expected)
    texts, good = [], True
    for result in list(told["matmul"]):
        right = "error" not in result and result["ran_on"] == result["device"] and result["difference"] <= TOLERANCE
        good = good and right
        text = "differs by %.1e" % result["difference"] if "difference" in result else result["error"]
        if "ran_on" in result and result["ran_on"] != result["device"]:
            text += ", ran on %s" % result["ran_on"]
        texts.append("%s %s" % (result["device"], text))
    found = "; ".join(texts)
    remedy = (
        "A GPU that is alone with its error is at fault: see gpu.ecc_errors and `journalctl -k -b -g Xid`. "
        "Out of memory: other programs hold it (`nvidia-smi`). No kernel image: this PyTorch does not serve that GPU."
    )
    if told.get("devices"):
        return compared(check_id, good, found, expected, remedy)
    if not good:
        return compared(check_id, False, found, "single and double precision agree to %g" % TOLERANCE, remedy)
    reason = context.no_device_reason or "PyTorch sees no GPU, see pytorch.devices"
    return skipped(check_id, reason, "the same code on the CPU: " + found)
