# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the PyTorch environment: one process imports it, lists its CUDA libraries and computes on each GPU.

Without PyTorch in the plan, which is the default, there is no result at all: skips on every host would hide the
skips that matter.
"""

from __future__ import annotations

from typing import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import triton_build, users_environment
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import REAPPLY, Check, CheckSpec, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import PytorchComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output

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
    skipped="never: without PyTorch in the plan the check is absent",
    remedy=_NOT_LOCKED,
)
CUDA_LIBRARIES = CheckSpec(
    "pytorch.cuda_libraries",
    measures="the process's CUDA libraries (/proc/PID/maps), also those that computing loads, and the versions that "
    "cuDNN and NCCL return when called",
    expected="the needed ones (libcudart, libcublas, libcudnn, libnccl) are loaded; each of NVIDIA's libraries "
    "is the environment's; cuDNN and NCCL have the versions of their wheels",
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
MATMUL = framework_checks.matmul_spec(
    "pytorch",
    "Out of memory: other programs use it (`nvidia-smi`). No kernel image: this PyTorch does not support that GPU.",
)
CONVOLUTION = framework_checks.convolution_spec("pytorch")
TRITON = CheckSpec(
    "pytorch.triton",
    measures="products of vectors (`torch.bmm`) on each GPU: since PyTorch 2.14 a kernel of Triton, which has the "
    "host's C compiler make a library at the first one",
    expected=framework_checks.agrees("on the CPU", framework_checks.TOLERANCE),
    skipped=framework_checks.ON_THE_CPU,
    remedy="Triton needs a C compiler (gcc), the headers of the environment's Python (Python.h) and space in /tmp. "
    + REAPPLY,
)
CHECKS = (VERSION, BUILT_FOR_CUDA, CUDA_LIBRARIES, DEVICES, MATMUL, CONVOLUTION, TRITON)
USES_GPUS = (DEVICES, MATMUL, CONVOLUTION, TRITON)


def run(context: Context) -> list[Check]:
    """Run the probe, judge its output, and compare that with what users get; nothing if the plan has no PyTorch."""
    component = PytorchComponent.of(context.plan.components)
    if component is None:
        return []
    path = context.environment_paths["pytorch"]

    def probed(users: Sequence[str] | None = None) -> list[Check]:
        return _judge(context, component, framework_checks.run_probe(context, "pytorch", path, users=users))

    version, *others = probed()
    version = framework_checks.of_sitecustomize(context, version, "pytorch", path)
    return users_environment.compare(context, [version, *others], probed)


def _judge(context: Context, component: PytorchComponent, answer: Answer) -> list[Check]:
    output, planned = framework_checks.parse(answer), component.version
    if output.version is None:
        return framework_checks.not_imported(CHECKS, _NAME, answer, planned)
    tolerance = framework_checks.CONVOLUTION_TOLERANCE
    return [
        _version(output, output.version, planned),
        _built_for_cuda(output, component),
        _libraries(output, answer),
        framework_checks.devices(context, DEVICES, _NAME, output, answer),
        framework_checks.computed(context, MATMUL, _NAME, output, answer, framework_checks.TOLERANCE),
        framework_checks.computed(context, CONVOLUTION, _NAME, output, answer, tolerance),
        _triton(context, output, answer),
    ]


def _triton(context: Context, output: Output, answer: Answer) -> Check:
    check = framework_checks.computed(context, TRITON, _NAME, output, answer, framework_checks.TOLERANCE)
    return triton_build.explain(context.root, context.plan, check, output) if output.triton is not None else check


def _version(output: Output, version: str, planned: str) -> Check:
    """Compare the version without its local part: the wheel 2.15.0 reports itself as 2.15.0+cu132."""
    versions, loaded = {"pytorch": version.split("+")[0]}, framework_checks.loaded("pytorch", output)
    return VERSION.compare(is_version(version, planned), version, planned, versions=versions, loaded=loaded)


def _built_for_cuda(output: Output, component: PytorchComponent) -> Check:
    cuda, planned = output.cuda, component.cuda
    found = "built for CUDA %s" % cuda if cuda else "built without CUDA"
    return BUILT_FOR_CUDA.compare(
        cuda is not None and is_version(cuda, planned), found, "a build for CUDA %s" % planned
    )


def _libraries(output: Output, answer: Answer) -> Check:
    own = framework_checks.own_directory(output)
    expected = "each from the wheels in %s, in their versions" % own
    if not output.cuda:
        return CUDA_LIBRARIES.skip("PyTorch was built without CUDA, see pytorch.built_for_cuda")
    if output.libraries is None or output.called is None:
        return framework_checks.not_printed(CUDA_LIBRARIES, _NAME, answer, expected)
    wrong = ["%s is not loaded" % name for name in framework_checks.missing_libraries(output)]
    wrong += framework_checks.foreign_libraries(output)
    good = [framework_checks.loaded_text(output) + " from the wheels"]
    for name in ("cudnn", "nccl"):
        version, pin = framework_checks.decoded(output.called.get(name)), output.pinned.get(name)
        good.append("%s returns %s" % (name, version))
        if pin is None or version is None or not is_version(pin, version):
            wrong.append("%s returns %s when called, its wheel is %s" % (name, version, pin))
    early = framework_checks.ended_early(output, answer)
    if early is not None and not wrong:
        return CUDA_LIBRARIES.unknown(early, "; ".join(good))
    remedy = framework_checks.shadowed_remedy(output, _NAME)
    return CUDA_LIBRARIES.compare(not wrong, "; ".join(wrong or good), expected, remedy)
