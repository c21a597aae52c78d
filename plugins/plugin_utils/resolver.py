"""The resolver: (catalog, request, host) -> Plan, the newest consistent set for a host's GPUs or every problem at once.

Runs on the controller; a pure function. Options and what speaks against each come from resolver_options and
resolver_libraries; here they are searched, chosen and explained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils import resolver_libraries as libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils import resolver_options as options
from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import Catalog, load_catalog, repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import (
    Component,
    DriverComponent,
    Gpu,
    Host,
    HostGpu,
    LibraryComponent,
    Plan,
    PlanWarning,
    Problem,
    Reason,
    Request,
    host_from_probe,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver_libraries import (
    LibraryOption,
    PytorchOption,
    TensorflowOption,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver_options import (
    Case,
    CudaOption,
    DriverOption,
    gpu_label,
)

_NO_DRIVER = DriverOption("", None, "", None)
_NAMES = {
    "driver": "driver",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "tensorflow": "TensorFlow",
    "pytorch": "PyTorch",
}


class _Option(Protocol):
    @property
    def problems(self) -> tuple[Problem, ...]: ...


AnyOption = TypeVar("AnyOption", bound=_Option)


@dataclasses.dataclass
class _Findings:
    """Collected on the way; the plan gets them in this order, each once."""

    problems: list[Problem] = dataclasses.field(default_factory=list)
    warnings: list[PlanWarning] = dataclasses.field(default_factory=list)
    reasons: list[Reason] = dataclasses.field(default_factory=list)

    def problem(self, code: str, message: str, remedy: str) -> None:
        self.problems.append(Problem(code, message, remedy))

    def warn(self, code: str, message: str) -> None:
        self.warnings.append(PlanWarning(code, message))

    def reason(self, component: str, choice: str, because: str) -> None:
        self.reasons.append(Reason(component, choice, because))


@dataclasses.dataclass(frozen=True)
class _Platform:
    """The part of a plan whose members depend on each other."""

    driver: DriverOption | None = None
    cuda: CudaOption | None = None
    tensorflow: TensorflowOption | None = None


def plan_for_probe(probe: Mapping[str, Any], request: Mapping[str, Any], catalog: Catalog | None = None) -> Plan:
    """A plan from a probe's and a request's plain data; raises PlanInputError where one cannot be read."""
    return resolve(catalog or load_catalog(), Request.from_mapping(request), host_from_probe(probe))


def resolve(catalog: Catalog, request: Request, host: Host) -> Plan:
    """The newest consistent set for a host, or every problem."""
    findings = _Findings()
    gpus = _identify_gpus(catalog, host, findings)
    _check_gpu_count(request, gpus, findings)
    distro = catalog.distros.get(host.distribution)
    if distro is None or host.architecture not in catalog.repository.architectures:
        findings.problem(
            "distro-not-supported",
            f"{host.distribution} on {host.architecture} is not supported",
            f"use one of {', '.join(sorted(catalog.distros))} on {', '.join(sorted(catalog.repository.architectures))}",
        )
        return _plan(host, request, gpus, {}, None, findings)
    case = Case(catalog, distro, host, request, gpus)
    if host.offers is None:
        why = f": {host.offers_error}" if host.offers_error else ""
        findings.warn(
            "repository-not-read",
            f"no repository was read{why}; versions are those of the catalog and may not be offered",
        )
    platform = _resolve_platform(case, findings)
    components = _components(case, platform, findings)
    return _plan(host, request, gpus, components, _repository(case, components), findings)


def _plan(
    host: Host,
    request: Request,
    gpus: tuple[Gpu, ...],
    components: Mapping[str, Component | None],
    repository: Mapping[str, str] | None,
    findings: _Findings,
) -> Plan:
    return Plan(
        host.distribution,
        request,
        gpus,
        components,
        repository,
        tuple(dict.fromkeys(findings.reasons)),
        tuple(dict.fromkeys(findings.problems)),
        tuple(dict.fromkeys(findings.warnings)),
    )


# GPUs -----------------------------------------------------------------------------------------------------------


def _identify_gpus(catalog: Catalog, host: Host, findings: _Findings) -> tuple[Gpu, ...]:
    known = [(_identify(catalog, gpu, findings)) for gpu in host.gpus]
    return tuple(gpu for gpu in known if gpu is not None)


def _identify(catalog: Catalog, gpu: HostGpu, findings: _Findings) -> Gpu | None:
    vendor, _, device = gpu.pci_id.partition(":")
    product = catalog.products.get(device) if vendor == "10de" else None
    if product is not None:
        return Gpu(
            gpu.pci_id,
            product.name,
            product.compute_capability,
            product.architecture,
            product.kernel_modules,
            product.last_driver_branch,
        )
    capability = gpu.compute_capability
    architecture = next((a.name for a in catalog.gpu.architectures if capability in a.compute_capabilities), None)
    if capability is None or architecture is None:
        findings.problem(
            "unknown-gpu",
            f"PCI id {gpu.pci_id} at {gpu.pci_address or '?'} is not in the catalog",
            "add it to catalog/gpu_products.csv, or remove the device",
        )
        return None
    accepts = next(r.accepts for r in catalog.gpu.kernel_modules if architecture in r.architectures)
    name = gpu.name or f"GPU of compute capability {capability}"
    if gpu.pci_address:
        findings.warn(
            "unknown-gpu",
            f"PCI id {gpu.pci_id} is not in the catalog; the loaded driver calls it "
            f"{name} of compute capability {capability}",
        )
    return Gpu(gpu.pci_id, name, capability, architecture, accepts)


def _check_gpu_count(request: Request, gpus: tuple[Gpu, ...], findings: _Findings) -> None:
    expected = None if request.expect_gpus == "auto" else int(request.expect_gpus)
    if expected is None and not gpus:
        findings.problem(
            "no-gpu",
            "no NVIDIA GPU was found on the PCI bus; expected at least one",
            "check lspci -d 10de: and the slot, or set expect_gpus to 0 for a host without GPUs",
        )
    if expected and len(gpus) < expected:
        findings.problem(
            "no-gpu",
            f"found {len(gpus)} usable NVIDIA GPU(s), expected {expected}",
            "check lspci -d 10de: and the slots, or correct expect_gpus",
        )


# Driver, CUDA toolkit and TensorFlow ----------------------------------------------------------------------------


def _resolve_platform(case: Case, findings: _Findings) -> _Platform:
    """Driver, toolkit and TensorFlow are searched together: TensorFlow's newest first, then the best pair."""
    request = case.request
    drivers = _driver_pool(case, findings)
    cudas: Sequence[CudaOption | None] = [None]
    if request.cuda != "none":
        cudas = _pool(case, "cuda", request.cuda, options.cuda_options, options.known_toolkits, findings)
    tensorflows: Sequence[TensorflowOption | None] = [None]
    if request.tensorflow != "none":
        tensorflows = _pool(
            case,
            "tensorflow",
            request.tensorflow,
            libraries.tensorflow_options,
            lambda c: [r.version for r in c.catalog.tensorflow.releases],
            findings,
        )
    found = _search(case, drivers or [None], cudas or [None], tensorflows or [None])
    if found is None:
        _explain_conflict(case, drivers, cudas, tensorflows, findings)
        # The parts that do fit are shown, and what depends on them is checked too.
        found = _search(case, drivers or [None], cudas or [None], [None]) or _Platform(
            cuda=next(iter(cudas), None) if request.cuda != "auto" else None
        )
    _explain_platform(case, found, findings)
    return found


def _driver_pool(case: Case, findings: _Findings) -> Sequence[DriverOption | None]:
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
    return _pool(case, "driver", case.request.driver, options.driver_options, options.known_drivers, findings)


def _pool(
    case: Case,
    name: str,
    wanted: str,
    enumerate_options: Callable[[Case], list[AnyOption]],
    known: Callable[[Case], list[str]],
    findings: _Findings,
) -> list[AnyOption]:
    """The options without problems; else the problems, and for an explicit request the closest option all the same."""
    found = enumerate_options(case)
    clean = [option for option in found if not option.problems]
    if clean:
        return clean
    if not found:
        _explain_missing(case, name, wanted, known(case), findings)
        return []
    closest = _closest(found)
    if wanted == "auto" and len(case.gpu_kinds) > 1 and _each_gpu_alone(case, enumerate_options):
        if not options.accepted_modules(case.gpus) and name == "driver":
            findings.problems.append(options.mixed_modules_problem(case))
        else:
            findings.problem(
                "mixed-gpus-conflict",
                f"no {_NAMES[name]} supports all of "
                f"{', '.join(gpu_label(g) for g in case.gpu_kinds)}, though each alone has one",
                "move the older or the newer GPUs to another host",
            )
        return []
    if wanted != "auto":
        findings.problems += closest.problems
        return [closest]
    findings.problems += [
        dataclasses.replace(p, message=f"no {_NAMES[name]} for {case.distro.id} fits: {p.message}")
        for p in closest.problems
    ]
    return []


def _closest(found: Sequence[AnyOption]) -> AnyOption:
    """The option that is easiest to make possible: GPUs stay what they are, so what fits them comes first."""
    return min(
        found, key=lambda option: (any(p.code.startswith("gpu-") for p in option.problems), len(option.problems))
    )


def _each_gpu_alone(case: Case, enumerate_options: Callable[[Case], list[AnyOption]]) -> bool:
    return all(
        any(not o.problems for o in enumerate_options(dataclasses.replace(case, gpus=(gpu,)))) for gpu in case.gpu_kinds
    )


def _explain_missing(case: Case, name: str, wanted: str, known: list[str], findings: _Findings) -> None:
    if wanted == "auto":
        findings.problem(
            "not-in-repository",
            f"no {_NAMES[name]} is offered for {case.distro.id} by the source asked for",
            f"leave the source at auto, check the repository, or set {name} to none",
        )
    elif any(versions.has_prefix(version, wanted) for version in known):
        findings.problem(
            "not-in-repository",
            f"{_NAMES[name]} {wanted} is not offered for {case.distro.id} by the source asked for",
            f"change {name}_source, or leave {name} at auto",
        )
    else:
        near = ", ".join(versions.nearest(wanted, known)) or "none"
        findings.problem(
            "unknown-version",
            f"{_NAMES[name]} {wanted} is not known; the nearest that exist: {near}",
            f"ask for one of those, or leave {name} at auto",
        )


def _search(
    case: Case,
    drivers: Sequence[DriverOption | None],
    cudas: Sequence[CudaOption | None],
    tensorflows: Sequence[TensorflowOption | None],
) -> _Platform | None:
    for tensorflow in tensorflows:
        fitting = [
            _Platform(driver, cuda, tensorflow)
            for driver in drivers
            for cuda in cudas
            if _driver_runs(case, driver, cuda, tensorflow) and _tensorflow_finds(tensorflow, cuda)
        ]
        if fitting:
            return max(fitting, key=_rank)
    return None


def _rank(platform: _Platform) -> tuple[Any, ...]:
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
    """0: maintained PB or LTSB made for this CUDA or a newer one; 1: unmaintained; 2: NFB; 3: an older driver."""
    if driver is None or driver.branch is None:
        return 0
    if cuda is not None and not _is_native(driver, cuda):
        return 3
    if driver.branch.type == "NFB":
        return 2
    return 0 if driver.branch.maintained else 1


def _is_native(driver: DriverOption, cuda: CudaOption) -> bool:
    if driver.branch is not None and versions.key(driver.branch.native_cuda) < versions.key(cuda.version):
        return False
    return cuda.min_driver is None or _reaches(driver, cuda.min_driver)


def _reaches(driver: DriverOption, minimum: str) -> bool:
    """Whether a driver is at least a version; one of an archive is known by its branch alone."""
    if "." not in driver.version:
        return int(driver.version) >= versions.major(minimum)
    return versions.key(driver.version) >= versions.key(minimum)


def _runs_major(case: Case, driver: DriverOption | None, cuda_major: int) -> bool:
    """Whether a driver runs programs of a CUDA major (minor version compatibility)."""
    if driver is None or not driver.version:
        return True
    floor = _floor(case, cuda_major)
    return floor is None or _reaches(driver, floor)


def _floor(case: Case, cuda_major: int) -> str | None:
    return next(
        (m.min_driver for m in case.catalog.cuda.minor_version_compatibility if m.cuda_major == cuda_major), None
    )


def _driver_runs(
    case: Case, driver: DriverOption | None, cuda: CudaOption | None, tensorflow: TensorflowOption | None
) -> bool:
    majors = {versions.major(cuda.version)} if cuda else set()
    if tensorflow and tensorflow.component.cuda_libraries == "wheel" and tensorflow.release.and_cuda:
        majors.add(tensorflow.release.and_cuda.cuda_major)
    return all(_runs_major(case, driver, major) for major in majors)


def _tensorflow_finds(tensorflow: TensorflowOption | None, cuda: CudaOption | None) -> bool:
    """Whether the toolkit has the libraries that a TensorFlow with the system's CUDA loads."""
    if tensorflow is None or tensorflow.component.cuda_libraries == "wheel":
        return True
    tested = tensorflow.release.tested.cuda
    return (
        cuda is not None
        and versions.major(cuda.version) == versions.major(tested)
        and versions.key(cuda.version) >= versions.key(tested)
    )


def _explain_conflict(
    case: Case,
    drivers: Sequence[DriverOption | None],
    cudas: Sequence[CudaOption | None],
    tensorflows: Sequence[TensorflowOption | None],
    findings: _Findings,
) -> None:
    """Why no driver, toolkit and TensorFlow of the pools go together."""
    driver = next((d for d in drivers if d), None)
    cuda = next((c for c in cudas if c), None)
    tensorflow = next((t for t in tensorflows if t), None)
    if cuda and not _search(case, drivers or [None], cudas, [None]) and driver:
        _explain_old_driver(case, driver, versions.major(cuda.version), f"CUDA {cuda.release}", findings)
    if tensorflow is None:
        return
    if not any(_tensorflow_finds(tensorflow, c) for c in cudas or [None]):
        release = tensorflow.release
        found = f"CUDA {cuda.release}" if cuda else "no CUDA toolkit"
        findings.problem(
            "tensorflow-cuda-mismatch",
            f"TensorFlow {release.version} with the system's libraries needs "
            f"CUDA {release.tested.cuda} or newer of its major; the plan has {found}",
            "set tensorflow_cuda_libraries to wheel, or ask for that CUDA",
        )
    wheel = tensorflow.release.and_cuda
    if wheel and driver and not any(_runs_major(case, d, wheel.cuda_major) for d in drivers):
        _explain_old_driver(case, driver, wheel.cuda_major, f"TensorFlow {tensorflow.release.version}", findings)


def _explain_old_driver(case: Case, driver: DriverOption, cuda_major: int, what: str, findings: _Findings) -> None:
    floor = _floor(case, cuda_major)
    findings.problem(
        "driver-too-old-for-cuda",
        f"{what} needs driver {floor} or newer; the newest choice here is {driver.version}",
        "leave driver and driver_source at auto, or ask for an older CUDA",
    )


def _explain_platform(case: Case, platform: _Platform, findings: _Findings) -> None:
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    if driver and driver.component and driver.branch:
        _explain_driver(case, driver, cuda, findings)
    if cuda:
        asked = (
            "the newest that is offered and fits GPUs, driver and compiler"
            if case.request.cuda == "auto"
            else f"asked for ({case.request.cuda})"
        )
        findings.reason("cuda", cuda.release, asked)
        if cuda.source == "distro" and case.request.cuda_source == "auto":
            findings.warn(
                "source-fallback",
                f"CUDA {cuda.release} is from {case.distro.id}'s archive: {case.repository_name} offers none that fits",
            )
        if driver and driver.version and not _is_native(driver, cuda):
            findings.warn(
                "minor-version-compatibility",
                f"driver {driver.version} is older than CUDA {cuda.release}'s "
                f"own ({cuda.min_driver or 'newer branch'}): programs run, PTX of this toolkit does not",
            )
    elif case.request.cuda == "none":
        findings.reason("cuda", "none", "not asked for")
    if tensorflow:
        which = (
            "the newest with a wheel for this Python and code for these GPUs"
            if case.request.tensorflow == "auto"
            else f"asked for ({case.request.tensorflow})"
        )
        findings.reason("tensorflow", tensorflow.release.version, which)
        findings.warnings += tensorflow.warnings
    elif case.request.tensorflow == "none":
        findings.reason("tensorflow", "none", "not asked for")


def _explain_driver(case: Case, driver: DriverOption, cuda: CudaOption | None, findings: _Findings) -> None:
    branch, component = driver.branch, driver.component
    assert branch is not None
    assert component is not None
    native = f"; made for CUDA {branch.native_cuda}" if cuda is None or _is_native(driver, cuda) else ""
    how = "asked for" if case.request.driver != "auto" else "the newest that fits"
    findings.reason(
        "driver",
        driver.version,
        f"{how}: {branch.type} branch {branch.branch}{native}; "
        f"{component.kernel_modules} kernel modules: {_modules_reason(case, component)}",
    )
    if branch.type == "NFB":
        findings.warn("new-feature-branch", f"driver branch {branch.branch} is a new feature branch, short-lived")
    if not branch.maintained:
        findings.warn(
            "branch-end-of-life", f"driver branch {branch.branch} reached its end of life ({branch.end_of_life})"
        )
    if driver.source == "distro" and case.request.driver_source == "auto":
        findings.warn(
            "source-fallback",
            f"driver {driver.version} is from {case.distro.id}'s archive: {case.repository_name} offers none that fits",
        )
    if case.host.secure_boot == "enabled":
        findings.warn(
            "secure-boot",
            "Secure Boot is enabled: the kernel refuses the module that DKMS builds until its "
            "signing key is enrolled (mokutil --import, confirmed at the console)",
        )


def _modules_reason(case: Case, component: DriverComponent) -> str:
    if not case.gpus:
        return "no GPU decides"
    if options.accepted_modules(case.gpus) == {component.kernel_modules}:
        return "the only flavour that all GPUs accept"
    return "the branch's default for these GPUs"


# The rest -------------------------------------------------------------------------------------------------------


def _components(case: Case, platform: _Platform, findings: _Findings) -> dict[str, Component | None]:
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    cudnn = _library(case, "cudnn", platform, findings)
    nccl = _library(case, "nccl", platform, findings)
    if tensorflow and tensorflow.component.cuda_libraries == "system" and cudnn is None and not findings.problems:
        findings.problem(
            "tensorflow-cudnn-mismatch",
            f"TensorFlow {tensorflow.release.version} with the system's "
            f"libraries needs cuDNN {tensorflow.release.tested.cudnn}; the plan has none",
            "set tensorflow_cuda_libraries to wheel, or cudnn to that version",
        )
    pytorch = _pytorch(case, driver, findings)
    return {
        "driver": driver.component if driver else None,
        "cuda": cuda.component if cuda else None,
        "cudnn": cudnn,
        "nccl": nccl,
        "tensorflow": tensorflow.component if tensorflow else None,
        "pytorch": pytorch.component if pytorch else None,
    }


def _library(case: Case, name: str, platform: _Platform, findings: _Findings) -> LibraryComponent | None:
    """cuDNN or NCCL for the chosen toolkit; at auto it is left out, with a warning, where none fits."""
    wanted, cuda = getattr(case.request, name), platform.cuda
    if wanted == "none":
        findings.reason(name, "none", "not asked for")
        return None
    if cuda is None:
        if wanted != "auto":
            findings.problem(
                f"{name}-cuda-mismatch",
                f"{_NAMES[name]} {wanted} needs a CUDA toolkit; there is none",
                f"ask for a CUDA, or set {name} to none",
            )
        elif case.request.cuda == "none":
            findings.reason(name, "none", "no CUDA toolkit asked for")
        return None
    from_archive = platform.driver is None or platform.driver.source in ("distro", "")
    if wanted == "auto" and cuda.source == "distro" and from_archive:
        findings.reason(
            name,
            "none",
            f"comes from NVIDIA's repository, which this plan does not use: the toolkit is {case.distro.id}'s own",
        )
        return None
    found = (
        libraries.cudnn_options(case, cuda, platform.tensorflow)
        if name == "cudnn"
        else libraries.nccl_options(case, cuda)
    )
    return _choose_library(case, name, wanted, cuda, found, findings)


def _choose_library(
    case: Case, name: str, wanted: str, cuda: CudaOption, found: list[LibraryOption], findings: _Findings
) -> LibraryComponent | None:
    clean = [option for option in found if not option.problems]
    if clean:
        best = clean[0]
        because = f"the newest for CUDA {cuda.version}" if wanted == "auto" else f"asked for ({wanted})"
        findings.reason(name, best.version, f"{because}; built for CUDA {best.cuda}")
        return best.component
    if wanted == "auto":
        findings.warn(
            "not-in-repository",
            f"{_NAMES[name]} is left out: {case.repository_name} offers none for CUDA {cuda.version} and these GPUs",
        )
        findings.reason(name, "none", f"none is offered for CUDA {cuda.version} and these GPUs")
    elif not found:
        known = libraries.known_cudnn(case) if name == "cudnn" else libraries.known_nccl(case)
        _explain_missing(case, name, wanted, known, findings)
    else:
        findings.problems += _closest(found).problems
    return None


def _pytorch(case: Case, driver: DriverOption | None, findings: _Findings) -> PytorchOption | None:
    wanted = case.request.pytorch
    if wanted == "none":
        findings.reason("pytorch", "none", "not asked for")
        return None
    pool = _pool(
        case,
        "pytorch",
        wanted,
        libraries.pytorch_options,
        lambda c: [r.version for r in c.catalog.pytorch.releases],
        findings,
    )
    fitting = [o for o in pool if _runs_major(case, driver, versions.major(o.release.cuda))]
    if pool and not fitting and driver:
        _explain_old_driver(
            case, driver, versions.major(pool[0].release.cuda), f"PyTorch {pool[0].release.version}", findings
        )
    if not fitting:
        return None
    findings.reason(
        "pytorch",
        fitting[0].release.version,
        "the newest for this Python, these GPUs and this driver" if wanted == "auto" else f"asked for ({wanted})",
    )
    return fitting[0]


def _repository(case: Case, components: Mapping[str, Component | None]) -> dict[str, str] | None:
    """NVIDIA's repository where the plan takes something from it: the host's own or the request's, else NVIDIA's."""
    used = any(getattr(components[name], "source", None) == "nvidia" for name in ("driver", "cuda"))
    if not (used or components["cudnn"] or components["nccl"]):
        return None
    request = case.request
    base = None if request.repository_url == "auto" else request.repository_url
    facts = repository_facts(case.catalog, case.distro.id, case.host.architecture, base)
    if base is None and case.host.repository_url:
        # The plan is for what was read, which may be a mirror.
        key_file = facts["key_url"].rsplit("/", 1)[-1]
        facts["url"] = case.host.repository_url.rstrip("/") + "/"
        facts["key_url"] = facts["url"] + key_file
    if request.repository_key_url != "auto":
        facts["key_url"] = request.repository_key_url
    if request.repository_key_fingerprint != "auto":
        facts["key_fingerprint"] = request.repository_key_fingerprint
    return facts
