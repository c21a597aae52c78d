# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the TensorFlow environment: one process imports it, loads its CUDA libraries and computes on each GPU."""

from __future__ import annotations

import inspect
import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import tensorflow_probe
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
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer

_NAME = "TensorFlow"
_NOT_LOCKED = "The environment differs from its lock file. " + REAPPLY
_NOT_LOADED = "TensorFlow was built without CUDA, or the library cannot be loaded"

VERSION = CheckSpec(
    "tensorflow.version",
    measures="`import tensorflow`",
    expected="the planned version",
    skipped="no TensorFlow is planned",
    remedy=_NOT_LOCKED,
)
BUILT_FOR_CUDA = CheckSpec(
    "tensorflow.built_for_cuda",
    measures="build information of TensorFlow",
    expected="a build for CUDA",
    skipped="TensorFlow cannot be imported",
    remedy=_NOT_LOCKED,
)
DEVICES = CheckSpec(
    "tensorflow.devices",
    measures="GPUs that TensorFlow lists",
    expected="the expected number",
    skipped="the driver is simulated or must not be loaded, or no GPU is expected",
    remedy="Run the environment's Python with TF_CPP_MAX_VLOG_LEVEL=3 and tf.config.list_physical_devices('GPU'): it "
    "names the missing library. LD_LIBRARY_PATH must not be set system-wide.",
)
LIBRARIES = CheckSpec(
    "tensorflow.libraries",
    measures="files of libcudart, libcublas, libcudnn and libnccl that TensorFlow's own loader finds",
    expected="with `cuda_libraries: wheel`, each is in the environment; otherwise each is found",
    skipped="TensorFlow was built without CUDA",
    remedy="Remove LD_LIBRARY_PATH from /etc/environment, /etc/profile.d and root's profile.",
)
CUDNN_VERSION = CheckSpec(
    "tensorflow.cudnn_version",
    measures="`cudnnGetVersion()` of that file",
    expected="the version of the wheel in the lock file, or of the plan",
    skipped=_NOT_LOADED,
    remedy="The loaded file is not the installed one: tensorflow.libraries shows its path. " + _NOT_LOCKED,
)
NCCL_VERSION = CheckSpec(
    "tensorflow.nccl_version",
    measures="`ncclGetVersion()` of that file",
    expected="the version of the wheel in the lock file, or of the plan",
    skipped=_NOT_LOADED,
    remedy=CUDNN_VERSION.remedy,
)
MATMUL = CheckSpec(
    "tensorflow.matmul",
    measures="a product of 512 x 512 matrices on each GPU, without TF32",
    expected="each runs on its GPU and agrees with NumPy's double precision to %g of the largest element" % TOLERANCE,
    skipped="no GPU can be used; then the result of the same code on the CPU is shown",
    remedy="If one GPU fails, it is faulty: see gpu.ecc_errors and `journalctl -k -b -g Xid`. RESOURCE_EXHAUSTED: "
    "other programs use its memory (`nvidia-smi`). CUDA_ERROR_NO_BINARY_FOR_GPU or INVALID_PTX: this TensorFlow does "
    "not support that GPU.",
)
CHECKS = (VERSION, BUILT_FOR_CUDA, DEVICES, LIBRARIES, CUDNN_VERSION, NCCL_VERSION, MATMUL)


def run(context: Context) -> list[Check]:
    """Run the probe once and judge its output."""
    component = context.component("tensorflow")
    if component is None:
        return not_planned(CHECKS, _NAME)
    python, source = context.tensorflow_path + "/bin/python", inspect.getsource(tensorflow_probe)
    answer = run_probe(context, python, source, {"TF_CPP_MIN_LOG_LEVEL": "2"})
    output = parse(answer)
    planned = str(component["version"])
    if "version" not in output:
        failed = VERSION.compare(False, "importing TensorFlow: " + exit_text(answer), planned, REAPPLY)
        return [failed, *(spec.skip("TensorFlow cannot be imported, see tensorflow.version") for spec in CHECKS[1:])]
    return [
        _version(output, planned),
        _built_for_cuda(output),
        _devices(context, output, answer),
        _libraries(component, output, answer),
        _library_version(CUDNN_VERSION, "cudnn", context, component, output, answer),
        _library_version(NCCL_VERSION, "nccl", context, component, output, answer),
        _matmul(context, output, answer),
    ]


def _version(output: dict[str, Any], planned: str) -> Check:
    version = str(output["version"])
    return VERSION.compare(is_version(version, planned), version, planned, versions={"tensorflow": version})


def _built_for_cuda(output: dict[str, Any]) -> Check:
    found = "built without CUDA"
    if output["cuda_build"]:
        found = "built for CUDA %s, cuDNN %s" % (output["cuda"], output["cudnn"])
    return BUILT_FOR_CUDA.compare(bool(output["cuda_build"]), found)


def _devices(context: Context, output: dict[str, Any], answer: Answer) -> Check:
    expected = "%d" % context.expect_gpus
    if "devices" not in output:
        return ended_early(DEVICES, _NAME, answer, expected)
    count, reason = len(list(output["devices"])), context.no_device_reason
    if reason is not None and count == 0:
        return DEVICES.skip(reason, "0")
    return DEVICES.compare(count == context.expect_gpus, "%d" % count, expected)


def _from_wheels(component: dict[str, Any]) -> bool:
    return component.get("cuda_libraries") != "system"


def _libraries(component: dict[str, Any], output: dict[str, Any], answer: Answer) -> Check:
    """Judge which files TensorFlow loads; with wheels, none may come from outside the environment."""
    own = str(output["prefix"]).rstrip("/") + "/"
    expected = "each from the wheels in %s" % own if _from_wheels(component) else "each is found"
    if not output["cuda_build"]:
        return LIBRARIES.skip("TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if "libraries" not in output:
        return ended_early(LIBRARIES, _NAME, answer, expected)
    wrong, good = [], []
    for name, entry in sorted(dict(output["libraries"]).items()):
        path = entry.get("path")
        if path is None:
            wrong.append("%s: %s" % (entry["soname"], entry.get("error", "not loaded")))
        elif _from_wheels(component) and not os.path.realpath(path).startswith(own):
            wrong.append("%s from %s" % (entry["soname"], path))
        else:
            good.append(name)
    found = "; ".join(wrong) or "%s from %s" % (", ".join(good), own if _from_wheels(component) else "the system")
    return LIBRARIES.compare(not wrong and bool(good), found, expected, shadowed_remedy(output, _NAME))


def _library_version(
    spec: CheckSpec, name: str, context: Context, component: dict[str, Any], output: dict[str, Any], answer: Answer
) -> Check:
    """Compare the version that the loaded library returns with that of the wheel, or of the plan."""
    if not output["cuda_build"]:
        return spec.skip("TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if _from_wheels(component):
        expected = dict(output["pinned"]).get(name)
    else:
        expected = (context.component(name) or {}).get("version")
    if expected is None:
        return spec.skip("no version of this library is pinned")
    expected = str(expected)
    if "called" not in output:
        return ended_early(spec, _NAME, answer, expected)
    number = dict(output["called"]).get(name)
    if number is None:
        return spec.skip("the library cannot be loaded, see tensorflow.libraries")
    version = _decoded(int(number))
    return spec.compare(is_version(expected, version), version, expected)


def _decoded(number: int) -> str:
    """Decode a version number; before cuDNN 9 and NCCL 2.9 it is major * 1000, since then major * 10000."""
    if number < 10000:
        return "%d.%d.%d" % (number // 1000, number // 100 % 10, number % 100)
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


def _matmul(context: Context, output: dict[str, Any], answer: Answer) -> Check:
    expected = "each of %d GPUs agrees with NumPy to %g of the largest element" % (context.expect_gpus, TOLERANCE)
    if "matmul" not in output:
        return ended_early(MATMUL, _NAME, answer, expected)
    texts, passed = [], True
    for result in list(output["matmul"]):
        right = "error" not in result and result["ran_on"].endswith("device:" + result["device"].lstrip("/"))
        right = right and result["difference"] <= TOLERANCE
        passed = passed and right
        text = result.get("error") or "differs by %.1e, ran on %s" % (result["difference"], result["ran_on"])
        texts.append("%s %s" % (result["device"], text if not right else "differs by %.1e" % result["difference"]))
    found = "; ".join(texts)
    if output.get("devices"):
        return MATMUL.compare(passed, found, expected)
    if not passed:
        return MATMUL.compare(False, found, "the CPU agrees with NumPy to %g" % TOLERANCE)
    reason = context.no_device_reason or "TensorFlow sees no GPU, see tensorflow.devices"
    return MATMUL.skip(reason, "the same code on the CPU: " + found)
