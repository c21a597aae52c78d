"""TensorFlow and PyTorch: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver_platform.py chooses among the options.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import PytorchRelease, TensorflowRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import (
    PytorchComponent,
    TensorflowComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import Case, gpu_label
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpu_support import covers, supported


@dataclasses.dataclass(frozen=True)
class TensorflowOption:
    """A TensorFlow wheel for a Python of the host."""

    release: TensorflowRelease
    component: TensorflowComponent
    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()


@dataclasses.dataclass(frozen=True)
class PytorchOption:
    """A PyTorch wheel for a Python of the host."""

    release: PytorchRelease
    component: PytorchComponent
    problems: tuple[Problem, ...] = ()


# TensorFlow -----------------------------------------------------------------------------------------------------


def tensorflow_options(case: Case) -> list[TensorflowOption]:
    """All TensorFlow releases that a request allows, newest first."""
    wanted = case.request.tensorflow
    return [o for o in _all_tensorflows(case) if wanted == "auto" or versions.has_prefix(o.release.version, wanted)]


def known_tensorflows(case: Case) -> list[str]:
    """Every TensorFlow version the catalog knows."""
    return [r.version for r in case.catalog.tensorflow.releases]


def _all_tensorflows(case: Case) -> list[TensorflowOption]:
    name = f"tensorflows {case.request.tensorflow_cuda_libraries} {_pythons(case)}"
    if name not in case.concluded:
        releases = sorted(case.catalog.tensorflow.releases, key=lambda r: versions.key(r.version), reverse=True)
        case.concluded[name] = [_tensorflow_option(case, release) for release in releases]
    found: list[TensorflowOption] = case.concluded[name]
    return found


def _tensorflow_option(case: Case, release: TensorflowRelease) -> TensorflowOption:
    python, problems = _python(case, "TensorFlow", release)
    libraries = case.request.tensorflow_cuda_libraries
    if libraries == "auto":
        libraries = "wheel" if release.and_cuda else "system"
    name = f"tensorflow {release.version} {libraries}"
    if name not in case.concluded:
        case.concluded[name] = _wheel(case, release, libraries)
    wheel: Wheel = case.concluded[name]
    component = TensorflowComponent(release.version, python, libraries, wheel.requirements, wheel.lock)
    return TensorflowOption(release, component, (*problems, *wheel.problems), wheel.warnings)


@dataclasses.dataclass(frozen=True)
class Wheel:
    """What a TensorFlow wheel means for a host's GPUs, whatever its Pythons are."""

    requirements: tuple[str, ...]
    lock: str
    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]


def _wheel(case: Case, release: TensorflowRelease, libraries: str) -> Wheel:
    problems: list[Problem] = []
    if libraries == "wheel" and release.and_cuda is None:
        first = min(
            (r.version for r in case.catalog.tensorflow.releases if r.and_cuda),
            key=versions.key,
        )
        problems.append(
            Problem(
                "tensorflow-cuda-mismatch",
                f"TensorFlow {release.version} brings no CUDA libraries of its own ([and-cuda] began with {first})",
                f"set tensorflow_cuda_libraries to system, or use TensorFlow {versions.series(first)} or newer",
            )
        )
    warnings: list[PlanWarning] = []
    _check_gpu_code(case, release, problems, warnings)
    requirements, suffix = [f"{release.package}=={release.version}"], "-system"
    if libraries == "wheel" and release.and_cuda:
        extra, suffix = _wheel_libraries(case, release, problems)
        requirements = [f"{release.package}[and-cuda]=={release.version}", *extra]
    lock = f"tensorflow-{release.version}{suffix}.txt"
    return Wheel(tuple(requirements), lock, tuple(dict.fromkeys(problems)), tuple(warnings))


def _pythons(case: Case) -> tuple[str, tuple[str, ...]]:
    """The default one, and all that the host has or its distribution release offers."""
    own = case.distro.python
    return case.host.default_python or own.default, tuple(case.host.pythons or own.available)


def _python(case: Case, framework: str, release: TensorflowRelease | PytorchRelease) -> tuple[str, list[Problem]]:
    """The host's default Python where the release has a wheel for it, else the newest that has one."""
    default, pythons = _pythons(case)
    able = [p for p in pythons if p in release.pythons]
    if able:
        return (default if default in able else max(able, key=versions.key)), []
    return default, [
        Problem(
            "python-not-supported",
            f"{framework} {release.version} is made for Python {', '.join(release.pythons)}; "
            f"this host has Python {', '.join(pythons)}",
            f"install one of those Pythons, or ask for another {framework}",
        )
    ]


def _check_gpu_code(
    case: Case, release: TensorflowRelease, problems: list[Problem], warnings: list[PlanWarning]
) -> None:
    if case.gpu_kinds and not release.sass:
        measured = [r.version for r in case.catalog.tensorflow.releases if r.sass]
        problems.append(
            Problem(
                "unknown-version",
                f"TensorFlow {release.version} exists (for CUDA {release.tested.cuda}, cuDNN {release.tested.cudnn}), "
                "but nobody read which GPUs its wheel has code for; known are "
                f"{', '.join(versions.nearest(release.version, measured, 4))}",
                "ask for one of those, or leave tensorflow at auto",
            )
        )
        return
    for gpu in case.gpu_kinds:
        code = runs(release, gpu)
        if code == "jit":
            warnings.append(
                PlanWarning(
                    "ptx-jit",
                    f"TensorFlow {release.version} has no native code for {gpu_label(gpu)}: "
                    "the driver compiles its PTX at the first start, which takes long",
                )
            )
        elif code == "none":
            problems.append(
                Problem(
                    "gpu-too-old-for-tensorflow",
                    f"TensorFlow {release.version} has no code for {gpu_label(gpu)}: its wheel covers "
                    f"{', '.join(release.sass)} and what is newer than {release.ptx[0]}",
                    "leave tensorflow at auto, or ask for an older one",
                )
            )


def runs(release: TensorflowRelease, gpu: Gpu) -> str:
    """How a release runs on a GPU: `native` code, `jit` (the driver compiles PTX) or `none`."""
    capability, major = versions.key(gpu.compute_capability), versions.major(gpu.compute_capability)
    if any(versions.major(s) == major and versions.key(s) <= capability for s in release.sass):
        return "native"
    return "jit" if any(versions.key(p) <= capability for p in release.ptx) else "none"


def _wheel_libraries(case: Case, release: TensorflowRelease, problems: list[Problem]) -> tuple[list[str], str]:
    """Further requirements that make the CUDA wheels fit the GPUs, and the lock file's suffix for them."""
    assert release.and_cuda is not None
    wheel, major = release.and_cuda, release.and_cuda.cuda_major
    known, fitting = _wheel_cudnn(case, major, wheel.cudnn)
    nccl = wheel.nccl.removeprefix("==")
    uncovered = [
        g
        for g in case.gpu_kinds
        if wheel.nccl.startswith("==") and not covers(case.catalog.nccl.support, nccl, major, g)
    ]
    if not fitting or uncovered:
        problems.append(_wheel_problem(case, release, known, uncovered))
        return [], ""
    if fitting[0] == known[0]:
        return [], ""
    cudnn = case.catalog.packages.wheels["cudnn"].format(cuda_major=major)
    return [f"{cudnn}<={fitting[0]}"], f"-cudnn-{versions.series(fitting[0])}"


def _wheel_cudnn(case: Case, cuda_major: int, specifier: str) -> tuple[list[str], list[str]]:
    """The cuDNN versions that a wheel allows, newest first, and those of them with code for every GPU."""
    name = f"cudnn wheels {cuda_major} {specifier}"
    if name not in case.concluded:
        entries = case.catalog.cudnn.versions
        known = [v.version for v in entries if cuda_major in v.cuda_majors and versions.satisfies(v.version, specifier)]
        known.sort(key=versions.key, reverse=True)
        support = case.catalog.cudnn.support
        fitting = [v for v in known if all(covers(support, v, cuda_major, g) for g in case.gpu_kinds)]
        case.concluded[name] = (known, fitting)
    found: tuple[list[str], list[str]] = case.concluded[name]
    return found


def _wheel_problem(case: Case, release: TensorflowRelease, known: list[str], uncovered: list[Gpu]) -> Problem:
    """A library that the wheel pins, or every one that it allows, has no code for a GPU."""
    assert release.and_cuda is not None
    wheel, major = release.and_cuda, release.and_cuda.cuda_major
    support = case.catalog.cudnn.support
    lacking = [g for g in case.gpu_kinds if not any(covers(support, v, major, g) for v in known)]
    nccl = wheel.nccl.removeprefix("==")
    if lacking or not uncovered:
        # Without a single culprit the GPUs need different builds, and there is none for all.
        gpu = (lacking or list(case.gpu_kinds))[0]
        what, able = f"cuDNN {wheel.cudnn}", supported(support, known[0], major) if known else "none that is known"
    else:
        gpu, what, able = uncovered[0], f"NCCL {nccl}", supported(case.catalog.nccl.support, nccl, major)
    newer = versions.key(gpu.compute_capability) > versions.key(release.ptx[-1])
    return Problem(
        "gpu-too-new-for-tensorflow" if newer else "gpu-too-old-for-tensorflow",
        f"TensorFlow {release.version} brings {what}, which has no code for {gpu_label(gpu)}: it covers {able}",
        f"leave tensorflow at auto, or ask for a {'newer' if newer else 'older'} one",
    )


# PyTorch --------------------------------------------------------------------------------------------------------


def pytorch_options(case: Case) -> list[PytorchOption]:
    """All PyTorch releases that a request allows, newest first."""
    releases = [
        r
        for r in case.catalog.pytorch.releases
        if case.request.pytorch == "auto" or versions.has_prefix(r.version, case.request.pytorch)
    ]
    releases.sort(key=lambda r: versions.key(r.version), reverse=True)
    options = []
    for release in releases:
        python, problems = _python(case, "PyTorch", release)
        major = versions.major(release.cuda)
        problems += [
            Problem(
                "gpu-dropped-by-cuda",
                f"PyTorch {release.version} (CUDA {versions.series(release.cuda)}, "
                f"cuDNN {release.cudnn}) has no code for {gpu_label(gpu)}",
                "leave pytorch at auto, or ask for an older one",
            )
            for gpu in case.gpu_kinds
            if versions.key(gpu.compute_capability) < versions.key(release.min_compute_capability)
            or not covers(case.catalog.cudnn.support, release.cudnn, major, gpu)
        ]
        component = PytorchComponent(
            release.version,
            python,
            versions.series(release.cuda),
            (f"torch=={release.version}", "numpy"),  # without it PyTorch has no arrays
            f"pytorch-{release.version}.txt",
        )
        options.append(PytorchOption(release, component, tuple(problems)))
    return options


def known_pytorches(case: Case) -> list[str]:
    """Every PyTorch version the catalog knows."""
    return [r.version for r in case.catalog.pytorch.releases]
