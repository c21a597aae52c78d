"""cuDNN, NCCL, TensorFlow and PyTorch: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver.py chooses among the options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import (
    CudnnApt,
    CudnnSupport,
    NcclSupport,
    PytorchRelease,
    TensorflowRelease,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import (
    Gpu,
    LibraryComponent,
    PlanWarning,
    Problem,
    PytorchComponent,
    TensorflowComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver_options import (
    Case,
    CudaOption,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
)

Support = CudnnSupport | NcclSupport


@dataclasses.dataclass(frozen=True)
class LibraryOption:
    """A cuDNN or NCCL build; cuda is the release (NCCL, cuDNN 8) or the major (cuDNN 9) it was made for."""

    version: str
    cuda: str
    component: LibraryComponent
    problems: tuple[Problem, ...] = ()


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


def covers(support: Iterable[Support], version: str, cuda_major: int, gpu: Gpu) -> bool:
    """Whether a library version for a CUDA major carries code for a GPU."""
    for entry in support:
        majors = entry.cuda_majors if isinstance(entry, CudnnSupport) else (entry.cuda_major,)
        if (
            cuda_major in majors
            and versions.key(version) >= versions.key(entry.first)
            and (entry.last is None or versions.at_most(version, entry.last))
        ):
            return (
                versions.key(entry.min_compute_capability)
                <= versions.key(gpu.compute_capability)
                <= versions.key(entry.max_compute_capability)
            )
    return False


# cuDNN ----------------------------------------------------------------------------------------------------------


def cudnn_options(case: Case, cuda: CudaOption, tensorflow: TensorflowOption | None) -> list[LibraryOption]:
    """All cuDNN builds that a request allows, newest first."""
    found = {o.version + o.cuda: o for apt in case.catalog.cudnn.apt for o in _cudnn_builds(case, apt, cuda)}
    options = [
        o for o in found.values() if case.request.cudnn == "auto" or versions.has_prefix(o.version, case.request.cudnn)
    ]
    checked = [
        dataclasses.replace(o, problems=(*o.problems, *_cudnn_problems(case, o, cuda, tensorflow))) for o in options
    ]
    return sorted(checked, key=lambda o: (versions.key(o.version), versions.key(o.cuda)), reverse=True)


def known_cudnn(case: Case) -> list[str]:
    """Every cuDNN version the catalog knows."""
    return [v.version for v in case.catalog.cudnn.versions]


def _cudnn_builds(case: Case, apt: CudnnApt, cuda: CudaOption) -> list[LibraryOption]:
    major = versions.major(cuda.version)
    runtime = apt.runtime.format(cuda_major=major)
    builds: set[tuple[str, str | None]] = {
        (versions.upstream(v), versions.cuda_suffix(v)) for v in offered(case, runtime)
    }
    if apt.cudnn_major < 9:
        builds |= {
            (b.version, c)
            for b in case.catalog.cudnn.apt_builds
            for c in b.cuda
            if versions.major(b.version) == apt.cudnn_major
        }
    else:
        builds |= {
            (v.version, None)
            for v in case.catalog.cudnn.versions
            if versions.major(v.version) == apt.cudnn_major and (major in v.cuda_majors or case.request.cudnn != "auto")
        }
    return [_cudnn_build(case, apt, major, version, suffix) for version, suffix in builds]


def _cudnn_build(case: Case, apt: CudnnApt, cuda_major: int, version: str, suffix: str | None) -> LibraryOption:
    runtime = apt.runtime.format(cuda_major=cuda_major)
    development = [name.format(cuda_major=cuda_major) for name in apt.development]
    names, problems = [runtime, *development], []
    if case.host.offers is None:
        packages = [f"{name}={apt.version.format(version=version, cuda=suffix)}" for name in names]
    else:
        # Older repositories have no package for the headers alone; they are in the -dev package then.
        names = [n for n in names if "headers" not in n or offered(case, n)]
        found = {name: offered_version(case, name, version, suffix) for name in names}
        packages = [f"{name}={v}" for name, v in found.items() if v]
        missing = [name for name, v in found.items() if not v]
        if missing:
            exist = [versions.upstream(v) for v in offered(case, runtime)]
            problems = [not_in_repository(case, f"cuDNN {version}", missing, exist, "cudnn")]
    return LibraryOption(
        version, suffix or str(cuda_major), LibraryComponent(version, tuple(packages)), tuple(problems)
    )


def _cudnn_problems(
    case: Case, option: LibraryOption, cuda: CudaOption, tensorflow: TensorflowOption | None
) -> list[Problem]:
    major, problems = versions.major(cuda.version), []
    built = [v for v in case.catalog.cudnn.versions if v.version == option.version]
    fits = versions.major(option.cuda) == major and versions.key(option.cuda) <= versions.key(cuda.version)
    if not fits or (built and major not in built[0].cuda_majors):
        majors = ", ".join(str(m) for m in built[0].cuda_majors) if built else option.cuda
        problems.append(
            Problem(
                "cudnn-cuda-mismatch",
                f"cuDNN {option.version} is built for CUDA {majors}, not for CUDA {cuda.version}",
                "leave cudnn at auto, or ask for a CUDA of that major",
            )
        )
    else:
        for gpu in case.gpu_kinds:
            if not covers(case.catalog.cudnn.support, option.version, major, gpu):
                problems.append(
                    Problem(
                        "gpu-dropped-by-cudnn",
                        f"cuDNN {option.version} for CUDA {major} has no code for {gpu_label(gpu)}",
                        "leave cudnn at auto: it takes the newest that has",
                    )
                )
    if tensorflow and tensorflow.component.cuda_libraries == "system":
        tested = tensorflow.release.tested.cudnn
        if versions.major(option.version) != versions.major(tested) or versions.key(option.version) < versions.key(
            tested
        ):
            problems.append(
                Problem(
                    "tensorflow-cudnn-mismatch",
                    f"TensorFlow {tensorflow.release.version} needs cuDNN {tested} or newer of its major, "
                    f"not {option.version}",
                    f"ask for cudnn={versions.major(tested)}, or for the wheel's own libraries",
                )
            )
    return problems


# NCCL -----------------------------------------------------------------------------------------------------------


def nccl_options(case: Case, cuda: CudaOption) -> list[LibraryOption]:
    """All NCCL builds that a request allows; first those for the toolkit or an older one, newest first."""
    runtime = case.catalog.nccl.apt.packages[0]
    repository = case.distro.nvidia_repository
    builds = {(versions.upstream(v), versions.cuda_suffix(v) or "") for v in offered(case, runtime)}
    builds |= {(b.version, b.cuda) for b in case.catalog.nccl.builds if (b.slugs is None or repository.slug in b.slugs)}
    options = [
        _nccl_build(case, version, suffix, cuda)
        for version, suffix in builds
        if suffix and (case.request.nccl == "auto" or versions.has_prefix(version, case.request.nccl))
    ]

    def rank(option: LibraryOption) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
        if versions.key(option.cuda) <= versions.key(cuda.version):
            return True, versions.key(option.version), versions.key(option.cuda)
        # A build for a newer minor: the nearest one first.
        return False, tuple(-n for n in versions.key(option.cuda)), versions.key(option.version)

    return sorted(options, key=rank, reverse=True)


def known_nccl(case: Case) -> list[str]:
    """Every NCCL version the catalog knows."""
    return [b.version for b in case.catalog.nccl.builds]


def _nccl_build(case: Case, version: str, suffix: str, cuda: CudaOption) -> LibraryOption:
    apt, major, problems = case.catalog.nccl.apt, versions.major(cuda.version), []
    found: dict[str, str | None] = {}
    for name in apt.packages:
        found[name] = (
            apt.version.format(version=version, cuda=suffix)
            if case.host.offers is None
            else offered_version(case, name, version, suffix)
        )
    missing = [name for name, v in found.items() if not v]
    majors = case.distro.nvidia_repository.nccl_cuda_majors
    if missing or (case.host.offers is None and majors is not None and versions.major(suffix) not in majors):
        exist = [versions.upstream(v) for v in offered(case, apt.packages[0])]
        problems.append(not_in_repository(case, f"NCCL {version} for CUDA {suffix}", apt.packages, exist, "nccl"))
    if versions.major(suffix) != major:
        problems.append(
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {version} is built for CUDA {suffix}, not for CUDA {cuda.version}",
                "leave nccl at auto, or ask for a CUDA of that major",
            )
        )
    else:
        problems += [
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {version} for CUDA {suffix} has no code for {gpu_label(gpu)}",
                "leave nccl at auto: it takes the newest that has",
            )
            for gpu in case.gpu_kinds
            if not covers(case.catalog.nccl.support, version, major, gpu)
        ]
    packages = tuple(f"{name}={v}" for name, v in found.items() if v)
    return LibraryOption(version, suffix, LibraryComponent(version, packages), tuple(problems))


# TensorFlow -----------------------------------------------------------------------------------------------------


def tensorflow_options(case: Case) -> list[TensorflowOption]:
    """All TensorFlow releases that a request allows, newest first."""
    releases = [
        r
        for r in case.catalog.tensorflow.releases
        if case.request.tensorflow == "auto" or versions.has_prefix(r.version, case.request.tensorflow)
    ]
    releases.sort(key=lambda r: versions.key(r.version), reverse=True)
    return [_tensorflow_option(case, release) for release in releases]


def _tensorflow_option(case: Case, release: TensorflowRelease) -> TensorflowOption:
    python, problems = _python(case, "TensorFlow", release)
    libraries = case.request.tensorflow_cuda_libraries
    if libraries == "auto":
        libraries = "wheel" if release.and_cuda else "system"
    if libraries == "wheel" and release.and_cuda is None:
        problems.append(
            Problem(
                "tensorflow-cuda-mismatch",
                f"TensorFlow {release.version} has no [and-cuda] wheels",
                "set tensorflow_cuda_libraries to system, or use TensorFlow 2.14 or newer",
            )
        )
    warnings: list[PlanWarning] = []
    for gpu in case.gpu_kinds:
        _check_gpu_code(release, gpu, problems, warnings)
    requirements, suffix = [f"tensorflow=={release.version}"], "-system"
    if libraries == "wheel" and release.and_cuda:
        extra, suffix = _wheel_libraries(case, release, problems)
        requirements = [f"tensorflow[and-cuda]=={release.version}", *extra]
    component = TensorflowComponent(
        release.version, python, libraries, tuple(requirements), f"tensorflow-{release.version}{suffix}.txt"
    )
    return TensorflowOption(release, component, tuple(dict.fromkeys(problems)), tuple(warnings))


def _python(case: Case, framework: str, release: TensorflowRelease | PytorchRelease) -> tuple[str, list[Problem]]:
    """The host's default Python where the release has a wheel for it, else the newest that has one."""
    pythons = case.host.pythons or case.distro.python.available
    default = case.host.default_python or case.distro.python.default
    able = sorted((p for p in pythons if p in release.pythons), key=versions.key, reverse=True)
    if default in able or able:
        return (default if default in able else able[0]), []
    return default, [
        Problem(
            "python-not-supported",
            f"{framework} {release.version} has wheels for Python {', '.join(release.pythons)}; "
            f"the host has {', '.join(pythons)}",
            f"install one of those Pythons, or ask for another {framework}",
        )
    ]


def _check_gpu_code(release: TensorflowRelease, gpu: Gpu, problems: list[Problem], warnings: list[PlanWarning]) -> None:
    capability = versions.key(gpu.compute_capability)
    major = versions.major(gpu.compute_capability)
    if any(versions.major(s) == major and versions.key(s) <= capability for s in release.sass):
        return
    if any(versions.key(p) <= capability for p in release.ptx):
        warnings.append(
            PlanWarning(
                "ptx-jit",
                f"TensorFlow {release.version} has no native code for {gpu_label(gpu)}: "
                "the driver compiles its PTX at the first start, which takes long",
            )
        )
        return
    problems.append(
        Problem(
            "gpu-too-old-for-tensorflow",
            f"TensorFlow {release.version} has no code for {gpu_label(gpu)} (it has {', '.join(release.sass)})",
            "leave tensorflow at auto, or ask for an older one",
        )
    )


def _wheel_libraries(case: Case, release: TensorflowRelease, problems: list[Problem]) -> tuple[list[str], str]:
    """Further requirements that make the CUDA wheels fit the GPUs, and the lock file's suffix for them."""
    assert release.and_cuda is not None
    wheel, major = release.and_cuda, release.and_cuda.cuda_major
    known = [
        v.version
        for v in case.catalog.cudnn.versions
        if major in v.cuda_majors and versions.satisfies(v.version, wheel.cudnn)
    ]
    known.sort(key=versions.key, reverse=True)
    fitting = [v for v in known if all(covers(case.catalog.cudnn.support, v, major, g) for g in case.gpu_kinds)]
    nccl = wheel.nccl.removeprefix("==")
    uncovered = [
        g
        for g in case.gpu_kinds
        if wheel.nccl.startswith("==") and not covers(case.catalog.nccl.support, nccl, major, g)
    ]
    if not fitting or uncovered:
        what = f"NCCL {nccl}" if fitting else f"cuDNN {wheel.cudnn}"
        culprit = (
            uncovered[0]
            if fitting
            else next(
                g for g in case.gpu_kinds if not any(covers(case.catalog.cudnn.support, v, major, g) for v in known)
            )
        )
        newer = versions.key(culprit.compute_capability) > versions.key(release.ptx[-1])
        problems.append(
            Problem(
                "gpu-too-new-for-tensorflow" if newer else "gpu-too-old-for-tensorflow",
                f"TensorFlow {release.version} brings {what}, which has no code for {gpu_label(culprit)}",
                f"leave tensorflow at auto, or ask for a {'newer' if newer else 'older'} one",
            )
        )
        return [], ""
    if fitting[0] == known[0]:
        return [], ""
    return [f"nvidia-cudnn-cu{major}<={fitting[0]}"], f"-cudnn-{versions.series(fitting[0])}"


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
            (f"torch=={release.version}",),
            f"pytorch-{release.version}.txt",
        )
        options.append(PytorchOption(release, component, tuple(problems)))
    return options
