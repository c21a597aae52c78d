"""List the cuDNN and NCCL builds that a request allows, each with the problems that it has on the host.

Runs on the controller; pure functions. resolve.py chooses among these candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import CudnnApt
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.frameworks import TensorflowCandidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaCandidate

PROBLEMS = {
    "cudnn-cuda-mismatch": "cuDNN is built for another CUDA",
    "nccl-cuda-mismatch": "NCCL is built for another CUDA, or has no code for a GPU of the host",
    "gpu-dropped-by-cudnn": "cuDNN has no code for a GPU of the host",
    "tensorflow-cudnn-mismatch": "TensorFlow with the system's libraries needs another cuDNN",
}


@dataclasses.dataclass(frozen=True)
class LibraryCandidate:
    """A cuDNN or NCCL build. cuda: the CUDA release (NCCL, cuDNN 8) or CUDA major (cuDNN 9) that it was built for."""

    version: str
    cuda: str
    component: LibraryComponent
    problems: tuple[Problem, ...] = ()


def in_repository(context: ResolveContext, slugs: tuple[str, ...] | None) -> bool:
    """Return whether a build is in the repositories of this distribution release. slugs: None for all of them."""
    return slugs is None or context.distro.nvidia_repository.slug in slugs or "repository" in context.relaxed


def _offered_whole(context: ResolveContext, packages: Iterable[str]) -> list[str]:
    """Return the releases of which the repository offers each of these packages, built for the same CUDA."""
    builds = [{(versions.upstream(v), versions.cuda_suffix(v)) for v in offered(context, name)} for name in packages]
    return [release for release, _cuda in set.intersection(*builds)]


# cuDNN ----------------------------------------------------------------------------------------------------------


def cudnn_candidates(
    context: ResolveContext, cuda: CudaCandidate, tensorflow: TensorflowCandidate | None
) -> list[LibraryCandidate]:
    """Return the cuDNN builds that the request allows, newest first.

    tensorflow: the one of the plan; with the system's libraries it needs a certain cuDNN.
    """
    needs = tensorflow if tensorflow and tensorflow.component.cuda_libraries == "system" else None
    return list(_cudnn_candidates(_reduced(context, "cudnn"), cuda.version, needs))


def _reduced(context: ResolveContext, library: str) -> ResolveContext:
    return context.reduced(host=("offers", "repository_url"), request=(library,))


@cached
def _cudnn_candidates(
    context: ResolveContext, cuda: str, tensorflow: TensorflowCandidate | None
) -> tuple[LibraryCandidate, ...]:
    builds = _cudnn_builds(context.with_gpus(()), versions.major(cuda))
    return tuple(_with(build, _cudnn_problems(context, build, cuda, tensorflow)) for build in builds)


def _with(candidate: LibraryCandidate, problems: list[Problem]) -> LibraryCandidate:
    """Return a build with more problems."""
    return dataclasses.replace(candidate, problems=(*candidate.problems, *problems)) if problems else candidate


def known_cudnn(context: ResolveContext) -> list[str]:
    """Return every cuDNN version of the catalog."""
    return [v.version for v in context.catalog.cudnn.versions]


@cached
def _cudnn_builds(context: ResolveContext, cuda_major: int) -> tuple[LibraryCandidate, ...]:
    """Return the builds that the request allows for a CUDA major, newest first, without what GPUs have to do with."""
    found = {
        build.version + build.cuda: build
        for apt in context.catalog.cudnn.apt
        for build in _cudnn_packages(context, apt, cuda_major)
        if context.request.cudnn == "auto" or versions.has_prefix(build.version, context.request.cudnn)
    }
    return tuple(sorted(found.values(), key=lambda c: (versions.key(c.version), versions.key(c.cuda)), reverse=True))


def _cudnn_packages(context: ResolveContext, apt: CudnnApt, cuda_major: int) -> list[LibraryCandidate]:
    """Return the builds with one way of naming packages."""
    runtime = apt.runtime.format(cuda_major=cuda_major)
    builds: set[tuple[str, str | None]] = {
        (versions.upstream(v), versions.cuda_suffix(v)) for v in offered(context, runtime)
    }
    if apt.cudnn_major < 9:
        builds |= {
            (b.version, c)
            for b in context.catalog.cudnn.apt_builds
            for c in b.cuda
            if versions.major(b.version) == apt.cudnn_major and in_repository(context, b.slugs)
        }
    else:
        builds |= {
            (v.version, None)
            for v in context.catalog.cudnn.versions
            if versions.major(v.version) == apt.cudnn_major
            and (cuda_major in v.cuda_majors or context.request.cudnn != "auto")
        }
    return [_cudnn_build(context, apt, cuda_major, version, suffix) for version, suffix in builds]


def _cudnn_build(
    context: ResolveContext, apt: CudnnApt, cuda_major: int, version: str, suffix: str | None
) -> LibraryCandidate:
    runtime = apt.runtime.format(cuda_major=cuda_major)
    development = [name.format(cuda_major=cuda_major) for name in apt.development]
    names, problems = [runtime, *development], []
    if context.host.offers is None:
        packages = [Package(name, apt.version.format(version=version, cuda=suffix)) for name in names]
    else:
        # Older repositories have no package for the headers alone; they are in the -dev package then.
        names = [n for n in names if "headers" not in n or offered(context, n)]
        found = {name: offered_version(context, name, version, suffix) for name in names}
        packages = [Package(name, v) for name, v in found.items() if v]
        missing = [name for name, v in found.items() if not v]
        if missing:
            exist = _offered_whole(context, names)
            problems = [not_in_repository(context, f"cuDNN {version}", missing, exist, "cudnn")]
    return LibraryCandidate(
        version, suffix or str(cuda_major), LibraryComponent(version, tuple(packages)), tuple(problems)
    )


def _cudnn_problems(
    context: ResolveContext, candidate: LibraryCandidate, cuda: str, tensorflow: TensorflowCandidate | None
) -> list[Problem]:
    """tensorflow: one that loads the system's libraries."""
    major, problems = versions.major(cuda), []
    built = [v for v in context.catalog.cudnn.versions if v.version == candidate.version]
    if not serves(candidate.cuda, cuda) or (built and major not in built[0].cuda_majors):
        made_for = " and ".join(f"{m}.x" for m in built[0].cuda_majors) if built else candidate.cuda
        problems.append(
            Problem(
                "cudnn-cuda-mismatch",
                f"cuDNN {candidate.version} is built for CUDA {made_for}, the toolkit here is CUDA {cuda}",
                "leave gpu_stack_cudnn at auto, or set gpu_stack_cuda to a release of that major",
            )
        )
    else:
        for gpu in context.gpu_kinds:
            if not covers(context.catalog.cudnn.support, candidate.version, major, gpu):
                problems.append(
                    Problem(
                        "gpu-dropped-by-cudnn",
                        f"cuDNN {candidate.version} for CUDA {major} has no code for {gpu_label(gpu)}: it covers "
                        f"{supported(context.catalog.cudnn.support, candidate.version, major)}",
                        "leave gpu_stack_cudnn at auto: it selects the newest build with code for it",
                    )
                )
    if tensorflow:
        tested = tensorflow.release.tested.cudnn
        if versions.major(candidate.version) != versions.major(tested) or versions.key(
            candidate.version
        ) < versions.key(tested):
            problems.append(
                Problem(
                    "tensorflow-cudnn-mismatch",
                    f"TensorFlow {tensorflow.release.version} was built with cuDNN {tested} and loads libcudnn.so."
                    f"{versions.major(tested)} of that version or newer; cuDNN {candidate.version} is not",
                    f"set gpu_stack_cudnn={versions.major(tested)}, or gpu_stack_tensorflow_cuda_libraries=wheel",
                )
            )
    return problems


def serves(built_for: str, cuda: str) -> bool:
    """Return whether a library that was built for a CUDA release or major works with the toolkit of another release."""
    if versions.major(built_for) != versions.major(cuda):
        return False
    if versions.major(cuda) < 11 and "." in built_for:
        return built_for == cuda  # minor version compatibility began with CUDA 11
    return versions.key(built_for) <= versions.key(cuda)


# NCCL -----------------------------------------------------------------------------------------------------------


def nccl_candidates(context: ResolveContext, cuda: CudaCandidate) -> list[LibraryCandidate]:
    """Return the NCCL builds that the request allows: those for this toolkit or an older one first, newest first."""
    return list(_nccl_candidates(_reduced(context, "nccl"), cuda.version))


@cached
def _nccl_candidates(context: ResolveContext, cuda: str) -> tuple[LibraryCandidate, ...]:
    candidates = [_with(build, _nccl_problems(context, build, cuda)) for build in _nccl_builds(context.with_gpus(()))]

    def rank(candidate: LibraryCandidate) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
        if versions.key(candidate.cuda) <= versions.key(cuda):
            return True, versions.key(candidate.version), versions.key(candidate.cuda)
        # A build for a newer minor: the nearest one first.
        return False, tuple(-n for n in versions.key(candidate.cuda)), versions.key(candidate.version)

    return tuple(sorted(candidates, key=rank, reverse=True))


def known_nccl(context: ResolveContext) -> list[str]:
    """Return every NCCL version of the catalog."""
    return [b.version for b in context.catalog.nccl.builds]


@cached
def _nccl_builds(context: ResolveContext) -> tuple[LibraryCandidate, ...]:
    """Return the builds that the request allows, without what toolkit and GPUs have to do with."""
    runtime = context.catalog.nccl.apt.packages[0]
    builds = {(versions.upstream(v), versions.cuda_suffix(v) or "") for v in offered(context, runtime)}
    builds |= {(b.version, b.cuda) for b in context.catalog.nccl.builds if in_repository(context, b.slugs)}
    return tuple(
        _nccl_build(context, version, suffix)
        for version, suffix in builds
        if suffix and (context.request.nccl == "auto" or versions.has_prefix(version, context.request.nccl))
    )


def _nccl_build(context: ResolveContext, version: str, suffix: str) -> LibraryCandidate:
    apt, problems = context.catalog.nccl.apt, []
    found: dict[str, str | None] = {}
    for name in apt.packages:
        found[name] = (
            apt.version.format(version=version, cuda=suffix)
            if context.host.offers is None
            else offered_version(context, name, version, suffix)
        )
    missing = [name for name, v in found.items() if not v]
    majors = context.distro.nvidia_repository.nccl_cuda_majors
    if missing or (context.host.offers is None and majors is not None and versions.major(suffix) not in majors):
        exist = _offered_whole(context, apt.packages)
        problems = [
            not_in_repository(context, f"NCCL {version} for CUDA {suffix}", missing or apt.packages, exist, "nccl")
        ]
    packages = tuple(Package(name, v) for name, v in found.items() if v)
    return LibraryCandidate(version, suffix, LibraryComponent(version, packages), tuple(problems))


def _nccl_problems(context: ResolveContext, candidate: LibraryCandidate, cuda: str) -> list[Problem]:
    version, suffix, major = candidate.version, candidate.cuda, versions.major(cuda)
    if versions.major(suffix) != major:
        return [
            Problem(
                "nccl-cuda-mismatch",
                f"NCCL {version} is built for CUDA {suffix}, the toolkit here is CUDA {cuda}",
                "leave gpu_stack_nccl at auto, or set gpu_stack_cuda to a release of that major",
            )
        ]
    return [
        Problem(
            "nccl-cuda-mismatch",
            f"NCCL {version} for CUDA {suffix} has no code for {gpu_label(gpu)}: it covers "
            f"{supported(context.catalog.nccl.support, version, major)}",
            "leave gpu_stack_nccl at auto: it selects the newest build with code for it",
        )
        for gpu in context.gpu_kinds
        if not covers(context.catalog.nccl.support, version, major, gpu)
    ]
