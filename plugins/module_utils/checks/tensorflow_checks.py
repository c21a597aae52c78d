# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the TensorFlow environment: one process imports it, loads its CUDA libraries and computes on each GPU."""

from __future__ import annotations

import re
from typing import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes, users_environment
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import TensorflowComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL

_NAME = "TensorFlow"
_NOT_LOCKED = "The environment differs from its lock file. " + REAPPLY

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
    skipped="no TensorFlow is planned",
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
    measures="the process's CUDA libraries (/proc/PID/maps): those that TensorFlow's own loader finds, and those that "
    "computing loads",
    expected="the needed ones (libcudart, libcublas, libcudnn, libnccl) are loaded; with "
    "`cuda_libraries: wheel`, each of NVIDIA's libraries is the environment's",
    skipped="TensorFlow was built without CUDA",
    remedy="Remove LD_LIBRARY_PATH from /etc/environment, /etc/profile.d and root's profile.",
)
CUDNN_VERSION = CheckSpec(
    "tensorflow.cudnn_version",
    measures="`cudnnGetVersion()` of that file",
    expected="the version of the wheel in the lock file, or of the plan",
    skipped="TensorFlow was built without CUDA",
    remedy="The loaded file is not the installed one: tensorflow.libraries shows its path. " + _NOT_LOCKED,
)
NCCL_VERSION = CheckSpec(
    "tensorflow.nccl_version",
    measures="`ncclGetVersion()` of that file",
    expected="the version of the wheel in the lock file, or of the plan",
    skipped="TensorFlow was built without CUDA",
    remedy=CUDNN_VERSION.remedy,
)
MATMUL = framework_checks.matmul_spec(
    "tensorflow",
    "RESOURCE_EXHAUSTED: other programs use its memory (`nvidia-smi`). CUDA_ERROR_NO_BINARY_FOR_GPU or INVALID_PTX: "
    "this TensorFlow does not support that GPU.",
)
CONVOLUTION = framework_checks.convolution_spec("tensorflow")
CHECKS = (VERSION, BUILT_FOR_CUDA, DEVICES, LIBRARIES, CUDNN_VERSION, NCCL_VERSION, MATMUL, CONVOLUTION)
USES_GPUS = (DEVICES, MATMUL, CONVOLUTION)
_TOLERANCES = {"matmul": framework_checks.TOLERANCE, "convolution": framework_checks.CONVOLUTION_TOLERANCE}
_NO_DEVICE = re.compile(r"unknown device|invalid device ordinal", re.IGNORECASE)


def run(context: Context) -> list[Check]:
    """Run the probe, judge its output, and compare that with what users get."""
    component = TensorflowComponent.of(context.plan.components)
    if component is None:
        return not_planned(CHECKS, _NAME)

    def probed(users: Sequence[str] | None = None) -> list[Check]:
        verbose = {"TF_CPP_MIN_LOG_LEVEL": "0"}  # it says which GPUs it leaves out
        answer = framework_checks.run_probe(
            context, "tensorflow", context.environment_paths["tensorflow"], verbose, users
        )
        return _judge(context, component, answer)

    version, *others = probed()
    version = framework_checks.of_sitecustomize(context, version, "tensorflow", context.environment_paths["tensorflow"])
    return users_environment.compare(context, [version, *others], probed)


def _judge(context: Context, component: TensorflowComponent, answer: Answer) -> list[Check]:
    output, planned = framework_checks.parse(answer), component.version
    if output.version is None:
        return framework_checks.not_imported(CHECKS, _NAME, answer, planned)
    tolerance = framework_checks.CONVOLUTION_TOLERANCE
    checks = [
        _version(output, output.version, planned),
        _built_for_cuda(output),
        framework_checks.devices(context, DEVICES, _NAME, output, answer),
        _libraries(component, output, answer),
        _library_version(CUDNN_VERSION, "cudnn", context, component, output, answer),
        _library_version(NCCL_VERSION, "nccl", context, component, output, answer),
        framework_checks.computed(context, MATMUL, _NAME, output, answer, framework_checks.TOLERANCE),
        framework_checks.computed(context, CONVOLUTION, _NAME, output, answer, tolerance),
    ]
    ignored = known_causes.ignored_by_tensorflow(context, answer.text())
    return [_without_ignored(context, check, output, ignored) for check in checks] if ignored else checks


def _without_ignored(context: Context, check: Check, output: Output, ignored: list[str]) -> Check:
    """Skip the GPUs that TensorFlow ignores, if it used all others well."""
    spec = next((spec for spec in USES_GPUS if spec.id == check.id), None)
    if spec is None or check.status != FAIL:
        return check
    used = context.expect_gpus - len(ignored)
    if spec is DEVICES:
        is_right = len(output.devices or ()) == used
    else:
        part = check.id.split(".", 1)[1]
        results = output.results(part) or ()
        right = [result for result in results if result.is_right(_TOLERANCES[part])]
        # Releases that list the ignored GPU, too, refuse to compute on it.
        others = [result for result in results if result not in right]
        is_right = len(right) == used > 0 and all(_NO_DEVICE.search(str(other.error)) for other in others)
    if not is_right:
        return check
    reason = "TensorFlow leaves out %s, beside a larger GPU: TF_MIN_GPU_MULTIPROCESSOR_COUNT sets how many it must have"
    return spec.skip(reason % ", ".join(ignored), check.found)


def _version(output: Output, version: str, planned: str) -> Check:
    versions, loaded = {"tensorflow": version}, framework_checks.loaded("tensorflow", output)
    keras = output.keras
    if keras.error is not None or keras.backend != "tensorflow":
        found = keras.error or "Keras %s computes with %s" % (keras.version, keras.backend)
        return VERSION.compare(False, "%s; importing its Keras: %s" % (version, found), planned)
    return VERSION.compare(is_version(version, planned), version, planned, versions=versions, loaded=loaded)


def _built_for_cuda(output: Output) -> Check:
    build = output.build
    if build.without_cuda:
        return BUILT_FOR_CUDA.compare(False, "built without CUDA")
    absent = [name for name in ("is_cuda_build", "cuda_version", "cudnn_version") if not getattr(build, name)]
    if absent:
        return BUILT_FOR_CUDA.unknown("the build information of TensorFlow has no " + ", ".join(absent))
    return BUILT_FOR_CUDA.compare(True, "built for CUDA %s, cuDNN %s" % (build.cuda_version, build.cudnn_version))


def _from_wheels(component: TensorflowComponent) -> bool:
    return component.cuda_libraries != "system"


def _libraries(component: TensorflowComponent, output: Output, answer: Answer) -> Check:
    """Judge which files TensorFlow loads; with wheels, none may come from outside the environment."""
    own = framework_checks.own_directory(output)
    expected = "each from the wheels in %s" % own if _from_wheels(component) else "each is found"
    if output.build.without_cuda:
        return LIBRARIES.skip("TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if output.libraries is None:
        return framework_checks.not_printed(LIBRARIES, _NAME, answer, expected)
    asked, errors = output.asked, output.errors
    wrong = framework_checks.foreign_libraries(output) if _from_wheels(component) else []
    missing = framework_checks.missing_libraries(output)
    wrong += ["%s: %s" % (asked[name], errors.get(asked[name], "not loaded")) for name in missing if name in asked]
    names = framework_checks.loaded_text(output)
    unnamed = [name for name in missing if name not in asked]
    if unnamed and not wrong:
        reason = "neither a wheel nor the build information has the version of " + ", ".join(unnamed)
        return LIBRARIES.unknown(reason, names)
    early = framework_checks.ended_early(output, answer)
    if early is not None and not wrong:
        return LIBRARIES.unknown(early, names)
    found = "; ".join(wrong) or "%s from %s" % (names, own if _from_wheels(component) else "the system")
    return LIBRARIES.compare(not wrong, found, expected, framework_checks.shadowed_remedy(output, _NAME))


def _library_version(
    spec: CheckSpec, name: str, context: Context, component: TensorflowComponent, output: Output, answer: Answer
) -> Check:
    """Compare the version that the loaded library returns with that of the wheel, or of the plan."""
    if output.build.without_cuda:
        return spec.skip("TensorFlow was built without CUDA, see tensorflow.built_for_cuda")
    if _from_wheels(component):
        expected = output.pinned.get(name)
    else:
        library = context.component(name)
        expected = library.version if library else None
    if expected is None:
        return spec.unknown("the environment has no wheel of this library, nor the plan a version")
    if output.called is None:
        return framework_checks.not_printed(spec, _NAME, answer, expected)
    if name not in output.called:
        return spec.unknown("the library is not loaded, see tensorflow.libraries")
    version = framework_checks.decoded(output.called[name])
    if version is None:
        return spec.unknown("the library returns no version")
    return spec.compare(is_version(expected, version), version, expected)
