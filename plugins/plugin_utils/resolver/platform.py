"""Driver, CUDA toolkit and TensorFlow together: the search for the best set, and why there is none.

Runs on the controller; pure functions. TensorFlow's newest comes first, then the best pair of driver and toolkit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.references import libcudart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LABELS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import drivers as drivers_
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import frameworks as frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import toolkits as toolkits
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import Case, gpu_label, span
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.drivers import DriverOption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.frameworks import TensorflowOption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.libraries import cudnn_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaOption

_NO_DRIVER = DriverOption("", None, "", None)


class _Option(Protocol):
    @property
    def problems(self) -> tuple[Problem, ...]: ...


AnyOption = TypeVar("AnyOption", bound=_Option)
Drivers = Sequence[DriverOption | None]
Cudas = Sequence[CudaOption | None]
Tensorflows = Sequence[TensorflowOption | None]


@dataclasses.dataclass(frozen=True)
class Platform:
    """The part of a plan whose members depend on each other."""

    driver: DriverOption | None = None
    cuda: CudaOption | None = None
    tensorflow: TensorflowOption | None = None


def resolve_platform(case: Case, findings: Findings) -> Platform:
    """The best driver, toolkit and TensorFlow; with the problems where there are none."""
    request = case.request
    drivers = _driver_pool(case, findings)
    cudas: Cudas = [None]
    if request.cuda != "none":
        cudas = pool(case, "cuda", request.cuda, toolkits.cuda_options, toolkits.known_toolkits, findings)
    tensorflows: Tensorflows = [None]
    if request.tensorflow != "none":
        tensorflows = pool(
            case,
            "tensorflow",
            request.tensorflow,
            frameworks.tensorflow_options,
            frameworks.known_tensorflows,
            findings,
        )
    pairs = _pairs(case, drivers or [None], cudas or [None])
    found = _first(case, pairs, tensorflows or [None])
    if found is None:
        _explain_conflict(case, drivers, cudas, tensorflows, pairs, findings)
        # The parts that do fit are shown, and what depends on them is checked too.
        found = _first(case, pairs, [None]) or Platform(
            cuda=next(iter(cudas), None) if request.cuda != "auto" else None
        )
    return found


# The options of each component ------------------------------------------------------------------------------------


def _driver_pool(case: Case, findings: Findings) -> Drivers:
    if case.request.driver == "none":
        loaded = case.host.loaded_driver
        if loaded is None:
            findings.reason("driver", "none", "not asked for")
            return [_NO_DRIVER]
        branch = next((b for b in case.catalog.driver.branches if versions.has_prefix(loaded, b.branch)), None)
        findings.reason("driver", "none", f"not asked for; the loaded driver is {loaded}")
        return [DriverOption(loaded, branch, "", None)]
    if case.request.driver == "auto" and not case.gpus:
        findings.reason("driver", "none", "no GPU to drive; ask for a version to install one all the same")
        return [_NO_DRIVER]
    found = pool(case, "driver", case.request.driver, drivers_.driver_options, drivers_.known_drivers, findings)
    # Within a branch and source the newest serves whatever an older one does.
    newest: dict[tuple[str, str], DriverOption] = {}
    for option in found:
        newest.setdefault((option.source, option.branch.branch if option.branch else ""), option)
    return list(newest.values())


def pool(
    case: Case,
    name: str,
    wanted: str,
    enumerate_options: Callable[[Case], list[AnyOption]],
    known: Callable[[Case], list[str]],
    findings: Findings,
) -> list[AnyOption]:
    """The options without problems; else the problems, and for an explicit request the closest option all the same."""
    found = enumerate_options(case)
    clean = [option for option in found if not option.problems]
    if clean:
        return clean
    if not found:
        explain_missing(case, name, wanted, known(case), findings)
        return []
    best = closest(found)
    if wanted == "auto" and len(case.gpu_kinds) > 1 and _each_gpu_alone(case, enumerate_options):
        if not drivers_.accepted_modules(case.gpus) and name == "driver":
            findings.problems.append(drivers_.mixed_modules_problem(case))
        else:
            each = ", ".join(f"{gpu_label(g)} {_alone(case, name, g)}" for g in case.gpu_kinds)
            findings.problem(
                "mixed-gpus-conflict",
                f"no {LABELS[name]} serves all GPUs of this host: {each}",
                "move the older or the newer GPUs to another host",
            )
        return []
    if wanted != "auto":
        findings.problems += best.problems
        return [best]
    findings.problems += [
        dataclasses.replace(p, message=f"no {LABELS[name]} for {case.distro.id} fits: {p.message}")
        for p in best.problems
    ]
    return []


def _alone(case: Case, name: str, gpu: Gpu) -> str:
    """What one GPU of a mixed host can do with."""
    if name == "driver":
        able = drivers_.able_branches(case, gpu)
        return f"needs {span('driver branch', able)}"
    if name == "cuda":
        return f"needs {span('CUDA', toolkits.able_toolkits(case, gpu))}"
    releases = case.catalog.tensorflow.releases
    able = [versions.series(r.version) for r in releases if r.sass and frameworks.runs(r, gpu) != "none"]
    return f"needs {span('TensorFlow', able)}" if name == "tensorflow" and able else "needs another one"


def closest(found: Sequence[AnyOption]) -> AnyOption:
    """The option that is easiest to make possible: GPUs stay what they are, so what fits them comes first."""
    return min(
        found, key=lambda option: (any(p.code.startswith("gpu-") for p in option.problems), len(option.problems))
    )


def _each_gpu_alone(case: Case, enumerate_options: Callable[[Case], list[AnyOption]]) -> bool:
    return all(any(not o.problems for o in enumerate_options(case.with_gpus((gpu,)))) for gpu in case.gpu_kinds)


def explain_missing(case: Case, name: str, wanted: str, known: list[str], findings: Findings) -> None:
    """Why there is no option at all."""
    source = {"driver": case.request.driver_source, "cuda": case.request.cuda_source}.get(name, "auto")
    where = f"{case.distro.id}'s own archive" if source == "distro" else case.repository_name
    if wanted != "auto" and not any(versions.has_prefix(version, wanted) for version in known):
        near = ", ".join(versions.nearest(wanted, known)) or "none"
        findings.problem(
            "unknown-version",
            f"there is no {LABELS[name]} {wanted} in the catalog; the nearest that exist: {near}",
            f"ask for one of those, or leave {name} at auto",
        )
        return
    there = _in_archive(case, name) if source == "distro" else _in_repository(case, known)
    findings.problem(
        "not-in-repository",
        f"{where} does not offer {LABELS[name]}{'' if wanted == 'auto' else ' ' + wanted}; it offers {there}",
        f"leave {name} and its source at auto, or set {name} to none",
    )


def _in_archive(case: Case, name: str) -> str:
    if name == "driver":
        return ", ".join(f"branch {d.branch}" for d in case.distro.distro_drivers) or "none"
    return ", ".join(d.release for d in case.distro.distro_cuda) or "none"


def _in_repository(case: Case, known: list[str]) -> str:
    # cuDNN and NCCL builds have many names; what the repository offers of them is in its packages' versions.
    offers = case.host.offers or {}
    found = {versions.upstream(v) for package in offers for v in offers[package]} & set(known)
    return ", ".join(sorted(found, key=versions.key, reverse=True)[:8]) or "none of them"


# The search -------------------------------------------------------------------------------------------------------


def _pairs(case: Case, drivers: Drivers, cudas: Cudas) -> list[Platform]:
    """Driver and toolkit pairs that go together, the best first."""
    found = [Platform(d, c) for d in drivers for c in cudas if _driver_runs_toolkit(case, d, c)]
    return sorted(found, key=_rank, reverse=True)


def _first(case: Case, pairs: Sequence[Platform], tensorflows: Tensorflows) -> Platform | None:
    """The newest TensorFlow that a pair serves, with the best such pair; cuDNN may be short only as a last resort."""
    for check_cudnn in (True, False):
        for tensorflow in tensorflows:
            for pair in pairs:
                if _serves(case, pair, tensorflow, check_cudnn):
                    return Platform(pair.driver, pair.cuda, tensorflow)
    return None


def _serves(case: Case, pair: Platform, tensorflow: TensorflowOption | None, check_cudnn: bool) -> bool:
    if tensorflow is None:
        return True
    wheel = tensorflow.release.and_cuda
    if tensorflow.component.cuda_libraries == "wheel":
        return wheel is None or runs_major(case, pair.driver, wheel.cuda_major)
    if not finds_runtime(case, tensorflow, pair.cuda):
        return False
    return not check_cudnn or case.request.cudnn == "none" or _has_cudnn(case, pair, tensorflow)


def _has_cudnn(case: Case, pair: Platform, tensorflow: TensorflowOption) -> bool:
    assert pair.cuda is not None
    if case.request.cudnn == "auto" and archive_only(pair):
        return False
    tested = tensorflow.release.tested.cudnn
    name = f"cudnn {case.request.cudnn} {pair.cuda.source} {pair.cuda.version} {tested}"
    if name not in case.memo:
        case.memo[name] = any(not o.problems for o in cudnn_options(case, pair.cuda, tensorflow))
    return bool(case.memo[name])


def archive_only(platform: Platform) -> bool:
    """Whether driver and toolkit are the distribution's own, so that NVIDIA's repository is not used."""
    return (
        platform.cuda is not None
        and platform.cuda.source == "distro"
        and (platform.driver is None or platform.driver.source in ("distro", ""))
    )


def _rank(platform: Platform) -> tuple[Any, ...]:
    """NVIDIA's repository before the archive; the better kind of driver; the newest toolkit; the newest driver."""
    driver, cuda = platform.driver, platform.cuda
    return (
        driver is not None and driver.source == "nvidia",
        cuda is not None and cuda.source == "nvidia",
        -_tier(driver, cuda),
        versions.key(cuda.release) if cuda else (),
        versions.key(driver.version) if driver else (),
    )


def _tier(driver: DriverOption | None, cuda: CudaOption | None) -> int:
    """0: maintained PB or LTSB made for this CUDA or newer; 1: unmaintained; 2: NFB; 3: unknown; 4: an older driver."""
    if driver is None or driver.branch is None:
        return 0
    if cuda is not None and not is_native(driver, cuda):
        return 4
    if driver.branch.type not in ("PB", "LTSB"):
        return 2 if driver.branch.type == "NFB" else 3
    return 0 if driver.branch.maintained else 1


def is_native(driver: DriverOption, cuda: CudaOption) -> bool:
    """Whether a driver came with this CUDA release or a newer one."""
    if driver.branch is not None and versions.key(driver.branch.native_cuda) < versions.key(cuda.version):
        return False
    return cuda.min_driver is None or _reaches(driver, cuda.min_driver)


def _reaches(driver: DriverOption, minimum: str) -> bool:
    """Whether a driver is at least a version; one of an archive is known by its branch alone."""
    if "." not in driver.version:
        return int(driver.version) >= versions.major(minimum)
    return versions.key(driver.version) >= versions.key(minimum)


def runs_major(case: Case, driver: DriverOption | None, cuda_major: int) -> bool:
    """Whether a driver runs programs of a CUDA major (minor version compatibility)."""
    if driver is None or not driver.version:
        return True
    floor = minimum_driver(case, cuda_major)
    return floor is None or _reaches(driver, floor)


def minimum_driver(case: Case, cuda_major: int) -> str | None:
    """The oldest driver that runs programs of a CUDA major; None where minor version compatibility does not exist."""
    return next(
        (m.min_driver for m in case.catalog.cuda.minor_version_compatibility if m.cuda_major == cuda_major), None
    )


def _toolkit_floor(case: Case, cuda: CudaOption) -> str | None:
    # Before CUDA 11 there is no minor version compatibility: each toolkit needs the driver that it came with.
    major = versions.major(cuda.version)
    return cuda.min_driver if major < 11 else minimum_driver(case, major)


def _driver_runs_toolkit(case: Case, driver: DriverOption | None, cuda: CudaOption | None) -> bool:
    if cuda is None or driver is None or not driver.version:
        return True
    floor = _toolkit_floor(case, cuda)
    return floor is None or _reaches(driver, floor)


def finds_runtime(case: Case, tensorflow: TensorflowOption, cuda: CudaOption | None) -> bool:
    """Whether the toolkit has the CUDA runtime that a TensorFlow with the system's libraries loads by name."""
    tested = tensorflow.release.tested.cuda
    return (
        cuda is not None
        and versions.key(cuda.version) >= versions.key(tested)
        and _runtime(case, cuda.version) == _runtime(case, tested)
    )


def _runtime(case: Case, cuda: str) -> str | None:
    name = f"runtime {cuda}"
    if name not in case.concluded:
        case.concluded[name] = libcudart(case.catalog, cuda)
    found: str | None = case.concluded[name]
    return found


# Why nothing fits -------------------------------------------------------------------------------------------------


def _explain_conflict(
    case: Case,
    drivers: Drivers,
    cudas: Cudas,
    tensorflows: Tensorflows,
    pairs: Sequence[Platform],
    findings: Findings,
) -> None:
    """Why no driver, toolkit and TensorFlow of the pools go together."""
    driver = next((d for d in drivers if d), None)
    cuda = next((c for c in cudas if c), None)
    tensorflow = next((t for t in tensorflows if t), None)
    if cuda and driver and not pairs:
        explain_old_driver(case, driver, _toolkit_floor(case, cuda), f"CUDA {cuda.release}", findings)
    if tensorflow is None:
        return
    wheel = tensorflow.release.and_cuda
    if tensorflow.component.cuda_libraries == "system":
        if not any(finds_runtime(case, tensorflow, c) for c in cudas):
            _explain_runtime(case, tensorflow, cudas, findings)
    elif wheel and driver and not any(runs_major(case, d, wheel.cuda_major) for d in drivers):
        floor = minimum_driver(case, wheel.cuda_major)
        what = f"TensorFlow {tensorflow.release.version} with its CUDA {wheel.cuda_major} libraries"
        explain_old_driver(case, driver, floor, what, findings)


def _explain_runtime(case: Case, tensorflow: TensorflowOption, cudas: Cudas, findings: Findings) -> None:
    release = tensorflow.release
    tested = release.tested.cuda
    present = [c for c in cudas if c]
    if not present:
        found = "the plan has no CUDA toolkit"
    elif len({c.version for c in present}) == 1:
        has = libcudart(case.catalog, present[0].version)
        found = f"CUDA {present[0].release} brings {has}" + (
            " of an older release" if has == libcudart(case.catalog, tested) else ""
        )
    else:
        found = f"what fits this host is {span('CUDA', (c.version for c in present))}"
    findings.problem(
        "tensorflow-cuda-mismatch",
        f"TensorFlow {release.version} was built for CUDA {tested}: with the system's libraries it loads "
        f"{libcudart(case.catalog, tested)} when it starts, and without that file it runs without the GPUs; {found}",
        "set tensorflow_cuda_libraries to wheel, or ask for that CUDA"
        if release.and_cuda
        else f"ask for CUDA {tested}, or for a TensorFlow that was built for another",
    )


def explain_old_driver(case: Case, driver: DriverOption, floor: str | None, what: str, findings: Findings) -> None:
    """A driver that does not reach a floor."""
    if driver.component is None:
        found = f"the loaded driver is {driver.version}"
    elif case.request.driver == "auto":
        found = f"the newest that fits this host's GPUs is {driver.version}"
    else:
        found = f"the driver asked for is {driver.version}"
    findings.problem(
        "driver-too-old-for-cuda",
        f"{what} needs driver {floor} or newer; {found}",
        "leave driver and driver_source at auto, or ask for an older CUDA",
    )
