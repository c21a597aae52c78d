"""Select driver, CUDA toolkit and TensorFlow, which depend on each other, or explain why no set of them fits.

Runs on the controller; pure functions. The newest TensorFlow comes first, then the best pair of driver and toolkit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.references import loaded_libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LABELS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import frameworks, toolkits
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    gpu_label,
    quote_hint,
    span,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets, prebuilt
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import drivers as drivers_
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver.drivers import DriverCandidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.frameworks import TensorflowCandidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.libraries import cudnn_candidates
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaCandidate

PROBLEMS = {
    "unknown-version": "no such version, or no such kernel modules in it; or its wheel has not been inspected",
    "driver-too-old-for-cuda": "the driver is older than this CUDA needs",
}


_NO_DRIVER = DriverCandidate("", None, "", None)


class _Candidate(Protocol):
    @property
    def problems(self) -> tuple[Problem, ...]: ...


AnyCandidate = TypeVar("AnyCandidate", bound=_Candidate)
Drivers = Sequence[DriverCandidate | None]
Cudas = Sequence[CudaCandidate | None]
Tensorflows = Sequence[TensorflowCandidate | None]


@dataclasses.dataclass(frozen=True)
class Platform:
    """The part of a plan whose members depend on each other."""

    driver: DriverCandidate | None = None
    cuda: CudaCandidate | None = None
    tensorflow: TensorflowCandidate | None = None


def resolve_platform(context: ResolveContext, findings: Findings) -> Platform:
    """Return the best driver, toolkit and TensorFlow.

    Where no set fits, the findings get the problems, and the parts that do fit are returned.
    """
    request = context.request
    drivers = _driver_candidates(context, findings)
    cudas: Cudas = [None]
    if request.cuda != "none":
        cudas = usable_candidates(
            context, "cuda", request.cuda, toolkits.cuda_candidates, toolkits.known_toolkits, findings
        )
        cudas = holds.toolkits(context, cudas, findings)
    tensorflows: Tensorflows = [None]
    if request.tensorflow != "none":
        tensorflows = usable_candidates(
            context,
            "tensorflow",
            request.tensorflow,
            frameworks.tensorflow_candidates,
            frameworks.known_tensorflows,
            findings,
        )
    pairs = _pairs(context, drivers or [None], cudas or [None])
    found = _first(context, pairs, tensorflows or [None])
    if found is None:
        _explain_conflict(context, drivers, cudas, tensorflows, pairs, findings)
        # What depends on the parts that do fit is checked as well.
        found = _first(context, pairs, [None]) or Platform(
            cuda=next(iter(cudas), None) if request.cuda != "auto" else None
        )
    return found


# The candidates of each component ------------------------------------------------------------------------------------


def _driver_candidates(context: ResolveContext, findings: Findings) -> Drivers:
    kept = driver_sets.kept(context)
    if kept is not None:
        if not kept.of_others:
            driver_sets.check_kept(context, kept, findings)
        why = (
            f"driver {kept.version} stays: it works, and others installed it ({kept.package})"
            if kept.of_others
            else f"{kept.package} {kept.version} stays: its prebuilt kernel modules are updated with "
            f"{context.distro.id}'s kernels"
        )
        findings.reason("driver", "none", why)
        return [DriverCandidate(kept.version, _branch_of(context, kept.version), "", None)]
    if context.request.driver == "none":
        loaded = context.host.loaded_driver
        if loaded is None:
            findings.reason("driver", "none", context.unmanaged("driver"))
            return [_NO_DRIVER]
        findings.reason("driver", "none", f"{context.unmanaged('driver')}; the loaded driver is {loaded}")
        return [DriverCandidate(loaded, _branch_of(context, loaded), "", None)]
    if context.request.driver == "auto" and not context.host.gpus:
        findings.reason(
            "driver", "none", "the host has no GPU; set gpu_stack_driver to a version to install one nevertheless"
        )
        return [_NO_DRIVER]
    held = holds.driver(context, findings)
    if held is not None:
        holds.check_driver(context, held, findings)
        findings.reason("driver", "none", f"driver {held.version} stays: {holds.because(held.names)}")
        return [DriverCandidate(held.version, _branch_of(context, held.version), "", None)]
    driver_sets.check_display(context, findings)
    if prebuilt.check(context, findings):
        return []
    found = usable_candidates(
        context, "driver", context.request.driver, drivers_.driver_candidates, drivers_.known_drivers, findings
    )
    # Of a branch and source the newest serves everything that an older one does.
    newest: dict[tuple[str, str], DriverCandidate] = {}
    for candidate in found:
        newest.setdefault((candidate.source, candidate.branch.branch if candidate.branch else ""), candidate)
    return list(newest.values())


def _branch_of(context: ResolveContext, version: str) -> Branch | None:
    return next((b for b in context.catalog.driver.branches if versions.has_prefix(version, b.branch)), None)


def usable_candidates(
    context: ResolveContext,
    name: str,
    wanted: str,
    enumerate_candidates: Callable[[ResolveContext], list[AnyCandidate]],
    known: Callable[[ResolveContext], list[str]],
    findings: Findings,
) -> list[AnyCandidate]:
    """Return the candidates without problems.

    Where there are none, the findings get the problems; for an explicit request the closest candidate is returned.
    name: the component; known: lists the versions that exist, for messages.
    """
    found = enumerate_candidates(context)
    clean = [candidate for candidate in found if context.is_usable(candidate.problems)]
    if clean:
        return clean
    if not found:
        explain_missing(context, name, wanted, known(context), findings)
        return []
    best = closest(found)
    if wanted == "auto" and len(context.gpu_kinds) > 1 and _each_gpu_alone(context, enumerate_candidates):
        if not drivers_.accepted_modules(context.gpus) and name == "driver":
            findings.problems.append(drivers_.mixed_modules_problem(context))
        else:
            each = ", ".join(f"{gpu_label(g)} needs {_alone(context, name, g)}" for g in context.gpu_kinds)
            findings.problem(
                "mixed-gpus-conflict",
                f"no {LABELS[name]} serves all GPUs of this host: {each}",
                "move the older or the newer GPUs to another host",
            )
        return []
    if wanted != "auto":
        hint = quote_hint(name, wanted, known(context))
        findings.problems += [dataclasses.replace(p, message=p.message + hint) for p in best.problems]
        return [best]
    findings.problems += [
        dataclasses.replace(p, message=f"no {LABELS[name]} for {context.distro.id} fits: {p.message}")
        for p in best.problems
    ]
    return []


def _alone(context: ResolveContext, name: str, gpu: Gpu) -> str:
    """Return what serves one GPU of a mixed host, for a message."""
    alone = context.with_gpus((gpu,))
    if name == "driver":
        return span("driver branch", drivers_.supporting_branches(context, gpu))
    if name == "cuda":
        return span("CUDA", toolkits.supporting_toolkits(context, gpu))
    if name == "tensorflow":
        releases = (c.release for c in frameworks.tensorflow_candidates(alone) if not c.problems)
        return span("TensorFlow", (versions.series(release.version) for release in releases))
    builds = (c.component for c in frameworks.pytorch_candidates(alone) if not c.problems)
    return span("PyTorch for CUDA", (component.cuda for component in builds))


def closest(found: Sequence[AnyCandidate]) -> AnyCandidate:
    """Return the candidate that is easiest to make possible: one that fits the GPUs first, then one that is offered.

    Neither GPUs nor repositories change; a kernel does.
    """

    def order(candidate: AnyCandidate) -> tuple[bool, bool, int]:
        codes = [problem.code for problem in candidate.problems]
        return any(code.startswith("gpu-") for code in codes), "not-in-repository" in codes, len(codes)

    return min(found, key=order)


def _each_gpu_alone(
    context: ResolveContext, enumerate_candidates: Callable[[ResolveContext], list[AnyCandidate]]
) -> bool:
    return all(
        any(not c.problems for c in enumerate_candidates(context.with_gpus((gpu,)))) for gpu in context.gpu_kinds
    )


def explain_missing(context: ResolveContext, name: str, wanted: str, known: list[str], findings: Findings) -> None:
    """Add the problem of a request without any candidate: an unknown version, or one that is not offered."""
    source = {"driver": context.request.driver_source, "cuda": context.request.cuda_source}.get(name, "auto")
    where = context.archive_name if source == "distro" else context.repository_name
    if wanted != "auto" and not any(versions.has_prefix(version, wanted) for version in known):
        near = ", ".join(versions.nearest(wanted, known)) or "none"
        architecture = context.host.architecture
        served = f" for {architecture}" if supported(context.catalog) != (architecture,) else ""
        findings.problem(
            "unknown-version",
            f"there is no {LABELS[name]} {wanted}{served} in the catalog; the nearest that exist: {near}"
            + quote_hint(name, wanted, known),
            f"set gpu_stack_{name} to one of those, or leave it at auto",
        )
        return
    offers = _in_archive(context, name) if source == "distro" else _in_repository(context, known)
    fields = f"gpu_stack_{name}" + (f" and gpu_stack_{name}_source" if name in ("driver", "cuda") else "")
    findings.problem(
        "not-in-repository",
        f"{where} does not offer {LABELS[name]}{'' if wanted == 'auto' else ' ' + wanted}{offers}",
        f"leave {fields} at auto, or set gpu_stack_{name}=none",
    )


def _in_archive(context: ResolveContext, name: str) -> str:
    if name == "driver":
        found = [f"branch {d.branch}" for d in context.distro.distro_drivers]
    else:
        found = [d.release for d in context.distro.distro_cuda]
    return f"; it offers {', '.join(found) or 'none'}"


def _in_repository(context: ResolveContext, known: list[str]) -> str:
    if context.host.offers is None:
        return ""
    # cuDNN and NCCL builds have many names; what the repository offers of them is in its packages' versions.
    offered = {versions.upstream(v) for found in context.host.offers.values() for v in found} & set(known)
    newest = sorted(offered, key=versions.key, reverse=True)[:8]
    return f"; it offers {', '.join(newest) or 'no other either'}"


# The search -------------------------------------------------------------------------------------------------------


def _pairs(context: ResolveContext, drivers: Drivers, cudas: Cudas) -> list[Platform]:
    """Return the pairs of driver and toolkit that work together, the best first."""
    found = [Platform(d, c) for d in drivers for c in cudas if _driver_runs_toolkit(context, d, c)]
    return sorted(found, key=functools.partial(_rank, context), reverse=True)


def _first(context: ResolveContext, pairs: Sequence[Platform], tensorflows: Tensorflows) -> Platform | None:
    """Return the newest TensorFlow that a pair serves, with the best such pair.

    A set without the cuDNN that TensorFlow needs is the last resort: its problem is reported later.
    """
    for check_cudnn in (True, False):
        for tensorflow in tensorflows:
            for pair in pairs:
                if _serves(context, pair, tensorflow, check_cudnn):
                    return Platform(pair.driver, pair.cuda, tensorflow)
    return None


def _serves(context: ResolveContext, pair: Platform, tensorflow: TensorflowCandidate | None, check_cudnn: bool) -> bool:
    if tensorflow is None:
        return True
    wheel = tensorflow.release.and_cuda
    if tensorflow.component.cuda_libraries == "wheel":
        return wheel is None or runs_major(context, pair.driver, wheel.cuda_major)
    if pair.cuda is None or not finds_runtime(context, tensorflow, pair.cuda):
        return False
    if not check_cudnn or context.request.cudnn == "none":
        return True
    if context.request.cudnn == "auto" and archive_only(pair):
        return False
    return any(context.is_usable(c.problems) for c in cudnn_candidates(context, pair.cuda, tensorflow))


def archive_only(platform: Platform) -> bool:
    """Return whether driver and toolkit are the distribution's own, so that NVIDIA's repository is not used."""
    return (
        platform.cuda is not None
        and platform.cuda.source == "distro"
        and (platform.driver is None or platform.driver.source in ("distro", ""))
    )


def _rank(context: ResolveContext, platform: Platform) -> tuple[Any, ...]:
    """Return the sort key: NVIDIA's repository before the archive, the better tier, the newest toolkit, then driver."""
    driver, cuda = platform.driver, platform.cuda
    by_source = "source" not in context.relaxed
    return (
        by_source and driver is not None and driver.source == "nvidia",
        by_source and cuda is not None and cuda.source == "nvidia",
        -_tier(context, driver, cuda),
        versions.key(cuda.release) if cuda else (),
        versions.key(driver.version) if driver else (),
    )


def _tier(context: ResolveContext, driver: DriverCandidate | None, cuda: CudaCandidate | None) -> int:
    """Return the tier of a pair, the best one 0.

    0: a maintained PB or LTSB made for this CUDA or a newer one; 1: unmaintained; 2: NFB; 3: unknown; 4: made for an
    older CUDA.
    """
    if driver is None or driver.branch is None:
        return 0
    if cuda is not None and "native" not in context.relaxed and not is_native(driver, cuda):
        return 4
    if "branch" in context.relaxed:
        return 0
    if driver.branch.type not in ("PB", "LTSB"):
        return 2 if driver.branch.type == "NFB" else 3
    return 0 if driver.branch.maintained else 1


def is_native(driver: DriverCandidate, cuda: CudaCandidate) -> bool:
    """Return whether a driver was released with this CUDA release or a newer one."""
    if driver.branch is not None and versions.key(driver.branch.native_cuda) < versions.key(cuda.version):
        return False
    return cuda.min_driver is None or _reaches(driver, cuda.min_driver)


def _reaches(driver: DriverCandidate, minimum: str) -> bool:
    """Return whether a driver is at least a version; only the branch of an archive's driver is known."""
    if "." not in driver.version:
        return int(driver.version) >= versions.major(minimum)
    return versions.key(driver.version) >= versions.key(minimum)


def runs_major(context: ResolveContext, driver: DriverCandidate | None, cuda_major: int) -> bool:
    """Return whether a driver runs programs of a CUDA major (minor version compatibility)."""
    if driver is None or not driver.version or "driver" in context.relaxed:
        return True
    floor = minimum_driver(context, cuda_major)
    return floor is None or _reaches(driver, floor)


def minimum_driver(context: ResolveContext, cuda_major: int) -> str | None:
    """Return the oldest driver that runs programs of a CUDA major; None without minor version compatibility."""
    return next(
        (m.min_driver for m in context.catalog.cuda.minor_version_compatibility if m.cuda_major == cuda_major), None
    )


def _toolkit_floor(context: ResolveContext, cuda: CudaCandidate) -> str | None:
    if cuda.depends_on_driver is not None:
        return cuda.depends_on_driver
    # Before CUDA 11 there is no minor version compatibility: each toolkit needs the driver it was released with.
    major = versions.major(cuda.version)
    return cuda.min_driver if major < 11 else minimum_driver(context, major)


def _driver_runs_toolkit(context: ResolveContext, driver: DriverCandidate | None, cuda: CudaCandidate | None) -> bool:
    if cuda is None or driver is None or not driver.version or "driver" in context.relaxed:
        return True
    floor = _toolkit_floor(context, cuda)
    return floor is None or _reaches(driver, floor)


def finds_runtime(context: ResolveContext, tensorflow: TensorflowCandidate, cuda: CudaCandidate | None) -> bool:
    """Return whether the toolkit has the libraries that a TensorFlow with the system's libraries loads by name."""
    tested = tensorflow.release.tested.cuda
    return (
        cuda is not None
        and versions.key(cuda.version) >= versions.key(tested)
        and loaded_libraries(context.catalog, cuda.version) == loaded_libraries(context.catalog, tested)
    )


# Why nothing fits -------------------------------------------------------------------------------------------------


def _explain_conflict(
    context: ResolveContext,
    drivers: Drivers,
    cudas: Cudas,
    tensorflows: Tensorflows,
    pairs: Sequence[Platform],
    findings: Findings,
) -> None:
    """Add the problems that keep the candidates from working together."""
    driver = next((d for d in drivers if d), None)
    cuda = next((c for c in cudas if c), None)
    tensorflow = next((t for t in tensorflows if t), None)
    if cuda and driver and not pairs:
        whose = f"{context.distro.id}'s own " if cuda.depends_on_driver else ""
        explain_old_driver(context, driver, _toolkit_floor(context, cuda), f"{whose}CUDA {cuda.release}", findings)
    if tensorflow is None:
        return
    wheel = tensorflow.release.and_cuda
    if tensorflow.component.cuda_libraries == "system":
        if not any(finds_runtime(context, tensorflow, c) for c in cudas):
            _explain_runtime(context, tensorflow, cudas, findings)
    elif wheel and driver and not any(runs_major(context, d, wheel.cuda_major) for d in drivers):
        floor = minimum_driver(context, wheel.cuda_major)
        what = f"TensorFlow {tensorflow.release.version} with its CUDA {wheel.cuda_major} libraries"
        explain_old_driver(context, driver, floor, what, findings)


def _explain_runtime(
    context: ResolveContext, tensorflow: TensorflowCandidate, cudas: Cudas, findings: Findings
) -> None:
    release = tensorflow.release
    tested = release.tested.cuda
    present = [c for c in cudas if c]
    loads = missing = list(loaded_libraries(context.catalog, tested))
    if not present:
        found = "the plan has no CUDA toolkit"
    elif len({c.version for c in present}) == 1:
        has = loaded_libraries(context.catalog, present[0].version)
        missing = [name for name in loads if name not in has]
        found = f"CUDA {present[0].release} brings {' and '.join(n for n in has if n not in loads) or has[0]}" + (
            "" if missing else " of an older release"
        )
    else:
        found = f"what fits this host is {span('CUDA', (c.version for c in present))}"
    findings.problem(
        "tensorflow-cuda-mismatch",
        f"TensorFlow {release.version} was built for CUDA {tested}: with the system's libraries it loads "
        f"{(missing or loads)[0]} when it starts, and without that file it runs without the GPUs; {found}",
        f"set gpu_stack_tensorflow_cuda_libraries=wheel, or gpu_stack_cuda={tested}"
        if release.and_cuda
        else f"set gpu_stack_cuda={tested}, or gpu_stack_tensorflow to a release that was built for another CUDA",
    )


def _kernel_limits(context: ResolveContext, driver: DriverCandidate) -> bool:
    """Return whether a newer driver fits but for the kernel."""
    return any(
        {problem.code for problem in candidate.problems} == {"known-bad"}
        and versions.key(candidate.version) > versions.key(driver.version)
        for candidate in drivers_.driver_candidates(context)
    )


def explain_old_driver(
    context: ResolveContext, driver: DriverCandidate, floor: str | None, what: str, findings: Findings
) -> None:
    """Add the problem of a driver that is older than a minimum. what: the software that needs it."""
    if driver.component is None:
        loaded = driver.version == context.host.loaded_driver
        found = f"the {'loaded' if loaded else 'installed'} driver is {driver.version}"
    elif context.request.driver == "auto":
        kernel = context.host.newest_kernel
        newer = (
            f" and its kernel {versions.kernel_series(kernel)}" if kernel and _kernel_limits(context, driver) else ""
        )
        found = f"the newest that fits this host{newer} is {driver.version}"
    else:
        found = f"the requested driver is {driver.version}"
    findings.problem(
        "driver-too-old-for-cuda",
        f"{what} needs driver {floor} or newer; {found}",
        "ask the machine's administrator for such a driver, or set gpu_stack_scope=host"
        if context.request.scope == "frameworks"
        else "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_cuda to an older release",
    )
