"""List the TensorFlow and PyTorch releases that a request allows, each with the problems that it has on the host.

Runs on the controller; pure functions. platform.py (TensorFlow) and resolve.py (PyTorch) choose among these candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import triton_packages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    AndCuda,
    PublishedRun,
    PytorchBuild,
    PytorchRelease,
    TensorflowRelease,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    LABELS,
    PytorchComponent,
    TensorflowComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpu_support import covers, supported

WARNINGS = {
    "ptx-jit": "native code for no or for some kernels: the driver compiles PTX at the first start, which takes long",
    "no-published-run-asked": "the problem `no-published-run`, of a release that was asked for: it is installed",
}


PROBLEMS = {
    "python-not-supported": "the framework has no wheel for a Python of the host",
    "tensorflow-cuda-mismatch": "it needs another CUDA of the system's libraries; or it has none of its own",
    "gpu-too-old-for-tensorflow": "the wheel, or a library that it pins, has no code for a GPU of the host",
    "gpu-too-new-for-tensorflow": "a library that the wheel pins is older than a GPU of the host",
    "no-published-run": "the wheel has PTX alone for a GPU that its toolkit does not know; no release was asked for",
    "gpu-too-new-for-pytorch": "the wheel, or a library that it pins, is older than a GPU of the host",
    "cpu-feature-missing": "the wheels need instructions that the processor, often that of a virtual machine, lacks",
    "pytorch-cuda-mismatch": "the release has no build for the CUDA release that gpu_stack_pytorch_cuda asks for",
}


CPU_LACKS = "cpu-feature-missing"
_VIRTUAL = "hypervisor"  # the feature of a processor that a hypervisor shows


@dataclasses.dataclass(frozen=True)
class TensorflowCandidate:
    """A TensorFlow wheel for a Python of the host.

    unproven: a problem at `auto`, and a warning where the release was asked for.
    """

    release: TensorflowRelease
    component: TensorflowComponent
    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    unproven: tuple[Problem, ...] = ()


@dataclasses.dataclass(frozen=True)
class PytorchCandidate:
    """A PyTorch wheel for a Python of the host and a CUDA release."""

    release: PytorchRelease
    build: PytorchBuild
    component: PytorchComponent
    problems: tuple[Problem, ...] = ()


# TensorFlow -----------------------------------------------------------------------------------------------------


def tensorflow_candidates(context: ResolveContext) -> list[TensorflowCandidate]:
    """Return the TensorFlow releases that the request allows, newest first."""
    wanted = context.request.tensorflow
    found = _all_tensorflows(_reduced(context))
    if wanted == "auto":
        return [dataclasses.replace(c, problems=(*c.problems, *c.unproven)) for c in found]
    asked = [c for c in found if versions.has_prefix(c.release.version, wanted)]
    return [dataclasses.replace(c, warnings=(*c.warnings, *_as_warnings(c.unproven))) for c in asked]


def _as_warnings(problems: Iterable[Problem]) -> list[PlanWarning]:
    return [PlanWarning("no-published-run-asked", problem.message) for problem in problems]


def _reduced(context: ResolveContext) -> ResolveContext:
    return context.reduced(
        host=("pythons", "default_python", "cpu", "cpu_flags"), request=("tensorflow_cuda_libraries",)
    )


def known_tensorflows(context: ResolveContext) -> list[str]:
    """Return every TensorFlow version of the catalog."""
    return [r.version for r in context.catalog.tensorflow.releases]


@cached
def _all_tensorflows(context: ResolveContext) -> list[TensorflowCandidate]:
    releases = sorted(context.catalog.tensorflow.releases, key=lambda r: versions.key(r.version), reverse=True)
    return [_tensorflow_candidate(context, release) for release in releases]


def _tensorflow_candidate(context: ResolveContext, release: TensorflowRelease) -> TensorflowCandidate:
    libraries = context.request.tensorflow_cuda_libraries
    if libraries == "auto":
        libraries = "wheel" if release.and_cuda else "system"
    pythons, with_ = release.pythons, ""
    if libraries == "wheel" and release.and_cuda and release.and_cuda.pythons:
        pythons, with_ = release.and_cuda.pythons, " with its CUDA libraries"
    problems: list[Problem] = []
    if libraries == "wheel" and release.and_cuda is None:
        problems.append(_no_extra(context, release))
    warnings: list[PlanWarning] = []
    _check_gpu_code(context, release, problems, warnings)
    problems += known_bad.tensorflow_problems(context, release.version)
    requirements, build = [f"{release.package}=={release.version}"], locks.SYSTEM
    if libraries == "wheel" and release.and_cuda:
        extra, build = _wheel_libraries(context, release, release.and_cuda, problems)
        requirements = [f"{release.package}[and-cuda]=={release.version}", *extra]
    mark = locks.mark(context.catalog, context.host.architecture)
    lock, unserved = _lock(context, locks.Lock("tensorflow", release.version, build, "", mark), with_, pythons)
    component = TensorflowComponent(release.version, lock.python, libraries, tuple(requirements), lock.file)
    found = tuple(dict.fromkeys((*unserved, *problems)))
    return TensorflowCandidate(release, component, found, tuple(warnings), _unproven(context, release))


def _no_extra(context: ResolveContext, release: TensorflowRelease) -> Problem:
    """Return the problem of a release without [and-cuda]."""
    with_it = [r.version for r in context.catalog.tensorflow.releases if r.and_cuda]
    first = min(with_it, key=versions.key, default=None)
    began = f" ([and-cuda] began with {first})" if first else ""
    newer = f", or use TensorFlow {versions.series(first)} or newer" if first else ""
    return Problem(
        "tensorflow-cuda-mismatch",
        f"TensorFlow {release.version} brings no CUDA libraries of its own{began}",
        f"set gpu_stack_tensorflow_cuda_libraries=system{newer}",
    )


def _pythons(context: ResolveContext) -> tuple[str, tuple[str, ...]]:
    """Return the default Python, and all that the host has or its distribution release offers."""
    own = context.distro.python
    return context.host.default_python or own.default, tuple(context.host.pythons or own.available)


def _lock(
    context: ResolveContext, lock: locks.Lock, variant: str, offered: tuple[str, ...]
) -> tuple[locks.Lock, list[Problem]]:
    """Return a lock for one of the host's Pythons, and the problem if there is none.

    variant: what messages add to the release; offered: the Pythons that it has wheels for.
    """
    default, pythons = _pythons(context)
    supporting = [p for p in pythons if p in offered]
    if supporting:
        lacking = {p: locks.source_only(context.catalog, dataclasses.replace(lock, python=p)) for p in supporting}
        whole = [p for p in supporting if lacking[p] is None]
        started = [p for p in whole if not _cpu_problems(context, dataclasses.replace(lock, python=p))]
        chosen = locks.choose_python(context.catalog, lock, default, started or whole or supporting)
        package = lacking[chosen.python]
        problems = [locks.no_wheel(chosen, package)] if package else locks.no_lock(context.catalog, chosen)
        return chosen, [*problems, *_cpu_problems(context, chosen)]
    return dataclasses.replace(lock, python=default), [
        Problem(
            "python-not-supported",
            f"{LABELS[lock.framework]} {lock.version}{variant} is made for Python {', '.join(offered)}; "
            f"this host has Python {', '.join(pythons)}",
            f"install one of those Pythons, or set gpu_stack_{lock.framework} to another release",
        )
    ]


def _cpu_problems(context: ResolveContext, lock: locks.Lock) -> list[Problem]:
    """Return the problem of a lock whose wheels need what the host's processor lacks; none where it is not known."""
    flags = context.host.cpu_flags
    if flags is None:
        return []
    label = f"{LABELS[lock.framework]} {lock.version}"
    lacking: list[str] = []
    for row in context.catalog.cpu.wheels:
        is_framework = row.package == lock.framework
        version = lock.version if is_framework else context.catalog.pinned.get(lock.file, {}).get(row.package)
        missing = [flag for flag in row.flags if flag not in flags]
        if version and missing and versions.satisfies(version, row.releases):
            wheel = label if is_framework else f"{row.package} {version} in the lock of {label}"
            lacking.append(f"{', '.join(missing)} (for {wheel})")
    if not lacking:
        return []
    processor = f"the processor ({context.host.cpu})" if context.host.cpu else "the processor"
    message = f"{processor} lacks what the wheels need: {'; '.join(lacking)}"
    return [Problem(CPU_LACKS, message, _cpu_remedy(lock.framework, _VIRTUAL in flags))]


def _cpu_remedy(framework: str, is_virtual: bool) -> str:
    leave_out = f"leave {LABELS[framework]} out with gpu_stack_{framework}=none"
    if is_virtual:
        return (
            "give the virtual machine the processor of its host (CPU type `host`: `<cpu mode='host-passthrough'/>` of "
            f"libvirt, `qm set ID --cpu host` of Proxmox, `-cpu host` of QEMU), and start it anew; or {leave_out}"
        )
    return f"use a computer whose processor has that; or {leave_out}"


def _check_gpu_code(
    context: ResolveContext, release: TensorflowRelease, problems: list[Problem], warnings: list[PlanWarning]
) -> None:
    if context.gpu_kinds and not release.sass:
        measured = [r.version for r in context.catalog.tensorflow.releases if r.sass]
        problems.append(
            Problem(
                "unknown-version",
                f"TensorFlow {release.version} exists (for CUDA {release.tested.cuda}, cuDNN {release.tested.cudnn}), "
                "but its wheel has not been inspected for GPU architectures; inspected ones are "
                f"{', '.join(versions.nearest(release.version, measured, 4))}",
                "set gpu_stack_tensorflow to one of those, or leave it at auto",
            )
        )
        return
    for gpu in context.gpu_kinds:
        code = runs(release, gpu)
        if code == "jit":
            warnings.append(
                PlanWarning(
                    "ptx-jit",
                    f"TensorFlow {release.version} has {_native(release, gpu)} for {gpu_label(gpu)}: "
                    "the driver compiles its PTX at the first start, which takes long",
                )
            )
        elif code == "none":
            problems.append(
                Problem(
                    "gpu-too-old-for-tensorflow",
                    f"TensorFlow {release.version} has no code for {gpu_label(gpu)}: its wheel covers "
                    f"{', '.join(release.sass)} and what is newer than {release.ptx[0]}",
                    "leave gpu_stack_tensorflow at auto, or set it to an older release",
                )
            )


def _unproven(context: ResolveContext, release: TensorflowRelease) -> tuple[Problem, ...]:
    """Return a problem for each kind of GPU that the wheel has PTX alone for and its toolkit does not know.

    XLA, by which Keras compiles, generates code with that toolkit.
    """
    toolkits = (t for t in context.catalog.cuda.toolkits if t.version == release.tested.cuda)
    known = next((toolkit.compute_capabilities for toolkit in toolkits), ())
    runs_of = [run for run in context.catalog.tensorflow.published_runs if _is_of(run, release)]
    proven = {capability for run in runs_of for capability in run.compute_capabilities}
    return tuple(
        Problem(
            "no-published-run",
            f"TensorFlow {release.version} was built with CUDA {release.tested.cuda}, which does not know "
            f"{gpu_label(gpu)}, and has no native code for it; no run of that wheel on one was published",
            f"use PyTorch, or try it nevertheless with gpu_stack_tensorflow={release.version}",
        )
        for gpu in context.gpu_kinds
        if release.sass and runs(release, gpu) == "jit" and gpu.compute_capability not in {*known, *proven}
    )


def _is_of(run: PublishedRun, release: TensorflowRelease) -> bool:
    is_late_enough = versions.key(release.version) >= versions.key(run.first)
    return is_late_enough and (run.last is None or versions.at_most(release.version, run.last))


def runs(release: TensorflowRelease, gpu: Gpu) -> str:
    """Return how a release runs on a GPU: with `native` code, by `jit` (the driver compiles PTX), or `none`."""
    if _has_code(release.sass, gpu):
        return "native"
    capability = versions.key(gpu.compute_capability)
    return "jit" if any(versions.key(p) <= capability for p in release.ptx) else "none"


def _has_code(sass: tuple[str, ...], gpu: Gpu) -> bool:
    """Return whether machine code for these compute capabilities runs on a GPU: it does on later ones of its major."""
    capability, major = versions.key(gpu.compute_capability), versions.major(gpu.compute_capability)
    return any(versions.major(s) == major and versions.key(s) <= capability for s in sass)


def _native(release: TensorflowRelease, gpu: Gpu) -> str:
    return "native code for a part of its kernels only" if _has_code(release.sass_in_part, gpu) else "no native code"


def _wheel_libraries(
    context: ResolveContext, release: TensorflowRelease, wheel: AndCuda, problems: list[Problem]
) -> tuple[list[str], str]:
    """Return further requirements that make the CUDA wheels fit the GPUs, and the build of the lock with them."""
    major = wheel.cuda_major
    known, fitting = _wheel_cudnn(context, major, wheel.cudnn)
    nccl = wheel.nccl.removeprefix("==")
    uncovered = [
        g
        for g in context.gpu_kinds
        if wheel.nccl.startswith("==") and not covers(context.catalog.nccl.support, nccl, major, g)
    ]
    if not fitting or uncovered:
        problems.append(_wheel_problem(context, release, wheel, known, uncovered))
        return [], ""
    if fitting[0] == known[0]:
        return [], ""
    cudnn = context.catalog.packages.wheels["cudnn"].format(cuda_major=major)
    return [f"{cudnn}<={fitting[0]}"], f"cudnn-{versions.series(fitting[0])}"


def _wheel_cudnn(context: ResolveContext, cuda_major: int, specifier: str) -> tuple[list[str], list[str]]:
    """Return the cuDNN versions that a wheel allows, newest first, and those of them that have code for every GPU."""
    entries, support = context.catalog.cudnn.versions, context.catalog.cudnn.support
    known = [v.version for v in entries if cuda_major in v.cuda_majors and versions.satisfies(v.version, specifier)]
    known.sort(key=versions.key, reverse=True)
    return known, [v for v in known if all(covers(support, v, cuda_major, g) for g in context.gpu_kinds)]


def _wheel_problem(
    context: ResolveContext, release: TensorflowRelease, wheel: AndCuda, known: list[str], uncovered: list[Gpu]
) -> Problem:
    """Return the problem of a wheel whose pinned library, or every library that it allows, has no code for a GPU."""
    major = wheel.cuda_major
    support = context.catalog.cudnn.support
    lacking = [g for g in context.gpu_kinds if not any(covers(support, v, major, g) for v in known)]
    nccl = wheel.nccl.removeprefix("==")
    if lacking or not uncovered:
        # Where each GPU has a build with code for it, they need different ones, and none has code for all.
        gpu = (lacking or list(context.gpu_kinds))[0]
        what, coverage = f"cuDNN {wheel.cudnn}", supported(support, known[0], major) if known else "none that is known"
    else:
        gpu, what, coverage = uncovered[0], f"NCCL {nccl}", supported(context.catalog.nccl.support, nccl, major)
    newer = versions.key(gpu.compute_capability) > versions.key(release.ptx[-1])
    return Problem(
        "gpu-too-new-for-tensorflow" if newer else "gpu-too-old-for-tensorflow",
        f"TensorFlow {release.version} brings {what}, which has no code for {gpu_label(gpu)}: it covers {coverage}",
        f"leave gpu_stack_tensorflow at auto, or set it to {'a newer' if newer else 'an older'} release",
    )


# PyTorch --------------------------------------------------------------------------------------------------------


def pytorch_candidates(context: ResolveContext, toolkit: str = "") -> list[PytorchCandidate]:
    """Return the PyTorch wheels that the request allows, the preferred one first.

    toolkit: the CUDA series whose builds come first, then those of its major; empty: the newest release comes first.
    """
    wanted, cuda = context.request.pytorch, context.request.pytorch_cuda
    releases = [
        r for r in context.catalog.pytorch.releases if wanted == "auto" or versions.has_prefix(r.version, wanted)
    ]
    found = [_pytorch_candidate(context, release, build) for release in releases for build in release.builds]
    asked = [c for c in found if cuda == "auto" or versions.has_prefix(c.build.cuda, cuda)]
    if found and not asked:
        asked = [_without_build(context, candidate) for candidate in found]
    return sorted(asked, key=lambda candidate: _preference(candidate, toolkit), reverse=True)


def _preference(candidate: PytorchCandidate, toolkit: str) -> tuple[Any, ...]:
    """Return the sort key: the toolkit's CUDA or its major, the newest release, PyPI's wheel, the newest CUDA."""
    cuda = candidate.component.cuda
    return (
        cuda == toolkit,
        bool(toolkit) and versions.major(cuda) == versions.major(toolkit),
        versions.key(candidate.release.version),
        candidate.build.index == "pypi",
        versions.key(cuda),
    )


def _pytorch_candidate(context: ResolveContext, release: PytorchRelease, build: PytorchBuild) -> PytorchCandidate:
    mark = locks.mark(context.catalog, context.host.architecture)
    lock = locks.Lock("pytorch", release.version, locks.cuda_build(build.cuda), "", mark)
    lock, problems = _lock(context, lock, "", release.pythons)
    problems += _pytorch_gpu_problems(context, release, build)
    requirements, index = locks.pytorch_requirements(context.catalog, release, build)
    packaged = lock.python in context.distro.python.available and lock.python not in context.host.own_pythons
    packages = triton_packages(context.catalog, release.version, lock.python, packaged)
    component = PytorchComponent(
        release.version, lock.python, versions.series(build.cuda), requirements, lock.file, index, *packages
    )
    return PytorchCandidate(release, build, component, tuple(problems))


def _pytorch_gpu_problems(context: ResolveContext, release: PytorchRelease, build: PytorchBuild) -> list[Problem]:
    """Return a problem for each GPU for which the wheel, its cuDNN or its NCCL has no code."""
    problems = []
    major = versions.major(build.cuda)
    cudnn, nccl = context.catalog.cudnn.support, context.catalog.nccl.support
    for gpu in context.gpu_kinds:
        if not _has_code(build.sass, gpu):
            what, coverage = "the wheel", ", ".join(build.sass)
        elif not covers(cudnn, build.cudnn, major, gpu):
            what, coverage = f"its cuDNN {build.cudnn}", supported(cudnn, build.cudnn, major)
        elif not covers(nccl, build.nccl, major, gpu):
            what, coverage = f"its NCCL {build.nccl}", supported(nccl, build.nccl, major)
        else:
            continue
        newer = versions.key(gpu.compute_capability) > versions.key(build.sass[-1])
        problems.append(
            Problem(
                "gpu-too-new-for-pytorch" if newer else "gpu-dropped-by-cuda",
                f"PyTorch {release.version} for CUDA {versions.series(build.cuda)} has no code for {gpu_label(gpu)}: "
                f"{what} covers {coverage}",
                "leave gpu_stack_pytorch and gpu_stack_pytorch_cuda at auto, or set gpu_stack_pytorch to "
                f"{'a newer' if newer else 'an older'} release",
            )
        )
    return problems


def _without_build(context: ResolveContext, candidate: PytorchCandidate) -> PytorchCandidate:
    """Return the candidate with the problem that its release has no build for the CUDA that is asked for."""
    cuda, release = context.request.pytorch_cuda, candidate.release
    built = sorted((versions.series(b.cuda) for b in release.builds), key=versions.key)
    others = [
        r.version
        for r in context.catalog.pytorch.releases
        if any(versions.has_prefix(build.cuda, cuda) for build in r.builds)
    ]
    hint = f"; those for CUDA {cuda} are of PyTorch {', '.join(others)}" if others else ""
    problem = Problem(
        "pytorch-cuda-mismatch",
        f"PyTorch {release.version} has builds for CUDA {', '.join(built)}, none for CUDA {cuda}{hint}",
        "leave gpu_stack_pytorch_cuda at auto, or set gpu_stack_pytorch to one of those releases",
    )
    return dataclasses.replace(candidate, problems=(problem, *candidate.problems))


def known_pytorches(context: ResolveContext) -> list[str]:
    """Return every PyTorch version of the catalog."""
    return [r.version for r in context.catalog.pytorch.releases]
