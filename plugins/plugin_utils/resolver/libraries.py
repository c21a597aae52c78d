"""cuDNN and NCCL: every option that a request leaves, each with what speaks against it.

Runs on the controller; pure functions. resolver.py chooses among the options.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import CudnnApt
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    Case,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.frameworks import TensorflowOption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaOption


@dataclasses.dataclass(frozen=True)
class LibraryOption:
    """A cuDNN or NCCL build; cuda is the release (NCCL, cuDNN 8) or the major (cuDNN 9) it was made for."""

    version: str
    cuda: str
    component: LibraryComponent
    problems: tuple[Problem, ...] = ()


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
            and (b.slugs is None or case.distro.nvidia_repository.slug in b.slugs)
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
    if not serves(option.cuda, cuda.version) or (built and major not in built[0].cuda_majors):
        made_for = " and ".join(f"{m}.x" for m in built[0].cuda_majors) if built else option.cuda
        problems.append(
            Problem(
                "cudnn-cuda-mismatch",
                f"cuDNN {option.version} is built for CUDA {made_for}, the toolkit here is CUDA {cuda.version}",
                "leave cudnn at auto, or ask for a CUDA of that major",
            )
        )
    else:
        for gpu in case.gpu_kinds:
            if not covers(case.catalog.cudnn.support, option.version, major, gpu):
                problems.append(
                    Problem(
                        "gpu-dropped-by-cudnn",
                        f"cuDNN {option.version} for CUDA {major} has no code for {gpu_label(gpu)}: it covers "
                        f"{supported(case.catalog.cudnn.support, option.version, major)}",
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
                    f"TensorFlow {tensorflow.release.version} was built with cuDNN {tested} and loads libcudnn.so."
                    f"{versions.major(tested)} of that version or newer; cuDNN {option.version} is not",
                    f"ask for cudnn={versions.major(tested)}, or for the wheel's own libraries",
                )
            )
    return problems


def serves(built_for: str, cuda: str) -> bool:
    """Whether a library built for a CUDA release (or a major) works with another: the same major, as new or newer."""
    if versions.major(built_for) != versions.major(cuda):
        return False
    if versions.major(cuda) < 11 and "." in built_for:
        return built_for == cuda  # minor version compatibility began with CUDA 11
    return versions.key(built_for) <= versions.key(cuda)


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
                f"NCCL {version} is built for CUDA {suffix}, the toolkit here is CUDA {cuda.version}",
                "leave nccl at auto, or ask for a CUDA of that major",
            )
        )
    else:
        problems += [
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {version} for CUDA {suffix} has no code for {gpu_label(gpu)}: it covers "
                f"{supported(case.catalog.nccl.support, version, major)}",
                "leave nccl at auto: it takes the newest that has",
            )
            for gpu in case.gpu_kinds
            if not covers(case.catalog.nccl.support, version, major, gpu)
        ]
    packages = tuple(f"{name}={v}" for name, v in found.items() if v)
    return LibraryOption(version, suffix, LibraryComponent(version, packages), tuple(problems))
