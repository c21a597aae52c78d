"""Checks of the TensorFlow environment: one process imports, loads its CUDA libraries, computes. Runs on the target."""

from __future__ import annotations

import inspect
import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import tensorflow_probe
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

IDS = (
    "tensorflow.version",
    "tensorflow.built_for_cuda",
    "tensorflow.devices",
    "tensorflow.libraries",
    "tensorflow.cudnn_version",
    "tensorflow.nccl_version",
    "tensorflow.matmul",
)
_REBUILD = "Run the role tensorflow_env again: the environment is not the locked one."


def run(context: Context) -> list[Check]:
    component = context.component("tensorflow")
    if component is None:
        return [skipped(check_id, context.without("TensorFlow")) for check_id in IDS]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    python, source = context.tensorflow_path + "/bin/python", inspect.getsource(tensorflow_probe)
    answer = ask(context, python, source, environment)
    told = parse(answer)
    planned = str(component["version"])
    if "version" not in told:
        found = "importing TensorFlow: " + end(answer)
        remedy = "Run the role tensorflow_env again: it builds an environment that cannot import TensorFlow anew."
        missing = [skipped(check_id, "TensorFlow cannot be imported, see tensorflow.version") for check_id in IDS[1:]]
        return [compared(IDS[0], False, found, planned, remedy)] + missing
    return [
        _version(told, planned),
        _built_for_cuda(told),
        _devices(context, told, answer),
        _libraries(component, told, answer),
        _called(context, component, told, answer, "cudnn"),
        _called(context, component, told, answer, "nccl"),
        _matmul(context, told, answer),
    ]


def _version(told: dict[str, Any], planned: str) -> Check:
    version = str(told["version"])
    good = is_version(version, planned)
    return compared("tensorflow.version", good, version, planned, _REBUILD, {"tensorflow": version})


def _built_for_cuda(told: dict[str, Any]) -> Check:
    found = "built without CUDA"
    if told["cuda_build"]:
        found = "built for CUDA %s, cuDNN %s" % (told["cuda"], told["cudnn"])
    return compared("tensorflow.built_for_cuda", bool(told["cuda_build"]), found, "a build for CUDA", _REBUILD)


def _devices(context: Context, told: dict[str, Any], answer: Answer) -> Check:
    check_id, expected = "tensorflow.devices", "%d" % context.expect_gpus
    if "devices" not in told:
        return died(check_id, "TensorFlow", answer, expected)
    count, reason = len(list(told["devices"])), context.no_device_reason
    if reason is not None and count == 0:
        return skipped(check_id, reason, "0")
    remedy = (
        "Run the environment's Python with TF_CPP_MAX_VLOG_LEVEL=3 and list_physical_devices('GPU'): it names the "
        "library that is missing. LD_LIBRARY_PATH must not be set for everybody."
    )
    return compared(check_id, count == context.expect_gpus, "%d" % count, expected, remedy)


def _from_wheels(component: dict[str, Any]) -> bool:
    return component.get("cuda_libraries") != "system"


def _libraries(component: dict[str, Any], told: dict[str, Any], answer: Answer) -> Check:
    """Which files TensorFlow gets; with its own wheels, none from elsewhere."""
    check_id = "tensorflow.libraries"
    own = str(told["prefix"]).rstrip("/") + "/"
    expected = "each from the wheels below %s" % own if _from_wheels(component) else "each is found"
    if not told["cuda_build"]:
        return skipped(check_id, "TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if "libraries" not in told:
        return died(check_id, "TensorFlow", answer, expected)
    wrong, good = [], []
    for name, entry in sorted(dict(told["libraries"]).items()):
        path = entry.get("path")
        if path is None:
            wrong.append("%s: %s" % (entry["soname"], entry.get("error", "loaded from nowhere")))
        elif _from_wheels(component) and not os.path.realpath(path).startswith(own):
            wrong.append("%s from %s" % (entry["soname"], path))
        else:
            good.append(name)
    remedy = shadowed(told, "TensorFlow", "tensorflow_env")
    found = "; ".join(wrong) or "%s from %s" % (", ".join(good), own if _from_wheels(component) else "the system")
    return compared(check_id, not wrong and bool(good), found, expected, remedy)


def _called(context: Context, component: dict[str, Any], told: dict[str, Any], answer: Answer, name: str) -> Check:
    """The version that the loaded library tells when it is called, against the wheel's (or the plan's) one."""
    check_id = "tensorflow.%s_version" % name
    if not told["cuda_build"]:
        return skipped(check_id, "TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if _from_wheels(component):
        expected = dict(told["pinned"]).get(name)
    else:
        expected = (context.component(name) or {}).get("version")
    if expected is None:
        return skipped(check_id, "no version of it is pinned")
    expected = str(expected)
    if "called" not in told:
        return died(check_id, "TensorFlow", answer, expected)
    number = dict(told["called"]).get(name)
    if number is None:
        return skipped(check_id, "it cannot be loaded, see tensorflow.libraries")
    version = _decoded(name, int(number))
    remedy = "Not the file that was installed was loaded: tensorflow.libraries has its path. " + _REBUILD
    return compared(check_id, is_version(expected, version), version, expected, remedy)


def _decoded(name: str, number: int) -> str:
    """cuDNN before 9: major * 1000 + minor * 100 + patch. NCCL before 2.9 likewise. Since then major * 10000."""
    if number < 10000:
        return "%d.%d.%d" % (number // 1000, number // 100 % 10, number % 100)
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


def _matmul(context: Context, told: dict[str, Any], answer: Answer) -> Check:
    check_id = "tensorflow.matmul"
    expected = "each of %d GPUs agrees with NumPy to %g of the largest element" % (
        context.expect_gpus,
        TOLERANCE,
    )
    if "matmul" not in told:
        return died(check_id, "TensorFlow", answer, expected)
    texts, good = [], True
    for result in list(told["matmul"]):
        right = "error" not in result and result["ran_on"].endswith("device:" + result["device"].lstrip("/"))
        right = right and result["difference"] <= TOLERANCE
        good = good and right
        text = result.get("error") or "differs by %.1e, ran on %s" % (result["difference"], result["ran_on"])
        texts.append("%s %s" % (result["device"], text if not right else "differs by %.1e" % result["difference"]))
    found = "; ".join(texts)
    remedy = (
        "A GPU that is alone with its error is at fault: see gpu.ecc_errors and `journalctl -k -b -g Xid`. "
        "RESOURCE_EXHAUSTED: other programs hold its memory (`nvidia-smi`). CUDA_ERROR_NO_BINARY_FOR_GPU or "
        "INVALID_PTX: this TensorFlow does not serve that GPU."
    )
    if told.get("devices"):
        return compared(check_id, good, found, expected, remedy)
    if not good:
        return compared(check_id, False, found, "the CPU agrees with NumPy to %g" % TOLERANCE, remedy)
    reason = context.no_device_reason or "TensorFlow sees no GPU, see tensorflow.devices"
    return skipped(check_id, reason, "the same code on the CPU: " + found)
