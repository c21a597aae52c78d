"""Resolve (catalog, request, host) to a plan: the newest consistent set for the host's GPUs, or all problems at once.

Runs on the controller; a pure function. The modules beside this one, in the order of the work:

    foreign_drivers                   refuse hosts whose driver is not theirs to install
    gpus                              identify the host's GPUs
    architectures                     refuse what the catalog has no entry of for the host's processors
    scope                             leave out all but the frameworks where the request says so
    drivers, toolkits, frameworks     list candidates, each with its problems on this host
    platform                          select driver, toolkit and TensorFlow, which depend on each other
    explain                           add a reason for each of them, and warnings
    libraries, frameworks             list cuDNN, NCCL and PyTorch candidates; this module selects among them
    relaxation                        find what limits the versions of a plan
    present                           keep what is there: a verified configuration, packages on hold
    remedies                          where there are problems, plan changed requests and hosts
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LABELS, Components, LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import PlanInputError, Reading, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import (
    architectures,
    frameworks,
    known_bad,
    libraries,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext, quote_hint
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import (
    driver_sets,
    foreign_drivers,
    kernels,
    prebuilt,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.explain import explain_platform
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import (
    ARM_ONLY,
    check_gpu_count,
    check_processors,
    identify_gpus,
    leave_out_small_gpus,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.libraries import LibraryCandidate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.platform import (
    Platform,
    archive_only,
    closest,
    explain_missing,
    explain_old_driver,
    minimum_driver,
    resolve_platform,
    runs_major,
    usable_candidates,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds, keeping
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.relaxation import LOCKS, Scenario, explain_limits
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.remedies import find_remedies
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scope import check_frameworks, limit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaCandidate, cuda_candidates

WARNINGS = {
    "pytorch-cuda-differs": "PyTorch is built for another CUDA release than the toolkit: extensions may not fit",
    "repository-not-read": "no repository was read: the versions are those of the catalog and may not be offered",
    "request-interpreted": "what a word such as `newest`, `no` or an empty value was taken for",
}


PROBLEMS = {
    "distro-not-supported": "the catalog has no file for the release, or no entries for the CPU architecture",
    "invalid-request": "a `gpu_stack_*` variable has an invalid value; the message lists the valid ones",
}


def plan_for_probe(probe: Probe, request: Mapping[str, Any], catalog: Catalog | None = None) -> Plan:
    """Return the plan for a probe and a request's plain data; raises PlanInputError where one cannot be read.

    Invalid values of the request are problems of the plan, so that they are reported with all others.
    """
    read = Request.read(request)
    wrong = read.errors
    if unknown_names := [why for name, why in wrong.items() if name not in vars(read.request)]:
        raise PlanInputError("; ".join(unknown_names))
    plan = plan_for_reading(catalog or load_catalog(), read, host_from_probe(probe))
    invalid = [Problem("invalid-request", why, f"correct gpu_stack_{name}") for name, why in wrong.items()]
    return dataclasses.replace(plan, problems=(*invalid, *plan.problems))


def plan_for_reading(catalog: Catalog, read: Reading, host: Host) -> Plan:
    """Return the plan for a request as it was understood, which keeps what fits of a verified configuration.

    It says what limits each version, and what was interpreted.
    """
    catalog = of_architecture(catalog, host.architecture)
    once = functools.partial(plan_once, catalog)
    kept = keeping.keep(catalog, read.request, host, once)
    plan = resolve(catalog, kept.request, kept.host, functools.partial(_plan_kept, catalog, once))
    plan = keeping.explained(kept, with_limits(catalog, plan, kept.host, kept), catalog)
    notes = [PlanWarning("request-interpreted", note) for note in read.notes.values()]
    return dataclasses.replace(plan, warnings=(*notes, *plan.warnings))


def _plan_kept(catalog: Catalog, once: keeping.Attempt, request: Request, host: Host) -> Plan:
    """Return the plan that a host would get for another request, without remedies and limits."""
    kept = keeping.keep(catalog, request, host, once)
    return dataclasses.replace(once(kept.request, kept.host), request=request)


def resolve(catalog: Catalog, request: Request, host: Host, attempt: keeping.Attempt | None = None) -> Plan:
    """Return the newest consistent set for a host, or all problems with remedies that were planned.

    What is there does not count; see plan_for_reading. attempt: plans a remedy, as if nothing were there by default.
    """
    catalog = of_architecture(catalog, host.architecture)
    plan = plan_once(catalog, request, host)
    # The remedy for a foreign driver, a hold or another processor is no change of the request or distribution.
    if plan.ok or (host.described and not host.gpus):  # what would fit unknown GPUs is unknown, too
        return plan
    final = (*foreign_drivers.PROBLEMS, holds.CODE, ARM_ONLY, frameworks.CPU_LACKS)
    if any(problem.code in final for problem in plan.problems):
        return plan
    attempt = attempt or functools.partial(plan_once, catalog)
    remedies = find_remedies(catalog, plan, host, attempt, functools.partial(plan_once, with_every_lock(catalog)))
    if not remedies:
        return plan
    text = "; or ".join(remedy.text for remedy in remedies)
    problems = tuple(dataclasses.replace(p, remedy=text) for p in plan.problems)
    return dataclasses.replace(plan, problems=problems, remedies=remedies)


def with_limits(catalog: Catalog, plan: Plan, host: Host, kept: keeping.Kept | None = None) -> Plan:
    """Return a plan with reasons that say what limits each version, which takes about twenty more plans.

    What is kept needs no such reason, and limits the rest.
    """
    if not plan.ok:
        return plan
    parts = kept.parts if kept else ()
    freed = {part.names[0]: kept.freed(part) for part in parts} if kept else {}
    asked = kept.asked[1] if kept else host
    reasons = explain_limits(catalog, plan, host, functools.partial(_answer, catalog), freed, asked)
    return dataclasses.replace(plan, reasons=reasons)


def _answer(catalog: Catalog, scenario: Scenario) -> Plan:
    known = with_every_lock(catalog) if LOCKS in scenario.relaxed else catalog
    return plan_once(known, scenario.request, scenario.host, scenario.relaxed - {LOCKS})


@functools.lru_cache(maxsize=4)
def with_every_lock(catalog: Catalog) -> Catalog:
    """Return a catalog by which a plan may name a lock that does not exist."""
    return dataclasses.replace(catalog, locks=None)


def plan_once(catalog: Catalog, request: Request, host: Host, relaxed: frozenset[str] = frozenset()) -> Plan:
    """Return a plan without remedies and limits, as if nothing were there. `latest` is `auto` here.

    Where no TensorFlow works and none is asked for, it has PyTorch alone. relaxed: see ResolveContext, and `gpu NAME`:
    this kind of GPU.
    """
    request, catalog = request.newest(), of_architecture(catalog, host.architecture)
    plan = _plan_as_asked(catalog, request, host, relaxed)
    if plan.ok or request.pytorch == "none":
        return plan
    if (request.tensorflow, request.tensorflow_cuda_libraries) != ("auto", "auto"):
        return plan
    if {problem.code for problem in plan.problems} == {"no-lock"}:  # it works, and its lock can be made
        return plan
    pytorch = "auto" if request.pytorch == "fallback" else request.pytorch
    other = _plan_as_asked(catalog, dataclasses.replace(request, tensorflow="none", pytorch=pytorch), host, relaxed)
    if {problem.code for problem in other.problems} == {"no-lock"}:  # PyTorch works, and its lock can be made
        return dataclasses.replace(plan, problems=tuple(dict.fromkeys((*plan.problems, *other.problems))))
    if not other.ok:  # where that is all about other components, PyTorch would be taken without them
        others = tuple(problem for problem in plan.problems if problem.code != "no-published-run")
        return dataclasses.replace(plan, problems=others or plan.problems)
    # Whatever is a problem here and none without TensorFlow is about TensorFlow.
    why = "; ".join(dict.fromkeys(problem.message for problem in plan.problems))
    # Those are of the closest release; the newest one may lack something else.
    found = frameworks.tensorflow_candidates(ResolveContext(catalog, host, request, plan.gpus, relaxed))
    of_newest = found[0].problems if found else ()
    why = "; ".join([why, *(problem.message for problem in of_newest if problem.message not in why)])
    because = {"tensorflow": f"no release works here: {why}"}
    if request.pytorch == "fallback":
        because["pytorch"] = "in place of TensorFlow: " + next(
            r.because for r in other.reasons if r.component == "pytorch"
        )
    reasons = tuple(dataclasses.replace(r, because=because.get(r.component, r.because)) for r in other.reasons)
    return dataclasses.replace(other, request=request, reasons=reasons)


def _plan_as_asked(catalog: Catalog, request: Request, host: Host, relaxed: frozenset[str]) -> Plan:
    """Return the plan for a request; where packages on hold are why there is none, that is its problem."""
    if request.scope == "frameworks":  # which changes no package
        host = dataclasses.replace(host, foreign_holds=())
    plan = _plan_around_holds(catalog, request, host, relaxed)
    if plan.ok or not host.foreign_holds:
        return plan
    freed = dataclasses.replace(host, foreign_holds=())
    held = holds.names(catalog, host)
    if not held or not _plan_around_holds(catalog, request, freed, relaxed).ok:
        return plan
    # The others follow from these.
    known = tuple(problem for problem in plan.problems if problem.code == holds.CODE)
    why = "; ".join(dict.fromkeys(problem.message for problem in plan.problems))
    return dataclasses.replace(plan, problems=known or (holds.problem(held, f"nothing fits beside them: {why}"),))


def _plan_around_holds(catalog: Catalog, request: Request, host: Host, relaxed: frozenset[str]) -> Plan:
    findings = Findings()
    if foreign_drivers.check_foreign_drivers(catalog, host, request, findings):
        return _plan(host, request, (), Components(), None, findings)
    gpus = identify_gpus(catalog, host, findings)
    check_gpu_count(request, host, gpus, findings)
    if host.distribution not in catalog.distros:
        findings.problem(
            architectures.CODE,
            f"{host.distribution} on {host.architecture} is not supported; supported are "
            f"{architectures.where_supported(catalog)}",
            "use one of those",
        )
        return _plan(host, request, gpus, Components(), None, findings)
    if check_processors(catalog, host, findings):
        return _plan(host, request, gpus, Components(), None, findings)
    limiting = tuple(gpu for gpu in gpus if f"gpu {gpu.name}" not in relaxed)
    context = ResolveContext(catalog, host, limit(request, host, findings), limiting, relaxed)
    if architectures.check(context, findings):
        return _plan(host, request, gpus, Components(), None, findings)
    if host.offers is None and request.scope == "host":
        why = f": {host.offers_error}" if host.offers_error else ""
        findings.warn(
            "repository-not-read",
            f"no repository was read{why}; versions are those of the catalog and may not be offered",
        )
    platform = resolve_platform(context, findings)
    explain_platform(context, platform, findings)
    components = _components(context, platform, findings)
    check_frameworks(request, components, findings)
    if components.tensorflow:
        gpus = leave_out_small_gpus(catalog, gpus, findings)
    plan = _plan(host, request, gpus, components, _repository(context, components), findings)
    return dataclasses.replace(plan, kept_driver=driver_sets.kept(context))


def _plan(
    host: Host,
    request: Request,
    gpus: tuple[Gpu, ...],
    components: Components,
    repository: Mapping[str, str] | None,
    findings: Findings,
) -> Plan:
    return Plan(
        distribution=host.distribution,
        request=request,
        gpus=gpus,
        components=components,
        repository=repository,
        reasons=tuple(dict.fromkeys(findings.reasons)),
        problems=tuple(dict.fromkeys(findings.problems)),
        warnings=tuple(dict.fromkeys(findings.warnings)),
    )


def _components(context: ResolveContext, platform: Platform, findings: Findings) -> Components:
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    cudnn = _library(context, "cudnn", platform, findings)
    nccl = _library(context, "nccl", platform, findings)
    if tensorflow and tensorflow.component.cuda_libraries == "system" and cudnn is None and not findings.problems:
        findings.problem(
            "tensorflow-cudnn-mismatch",
            f"TensorFlow {tensorflow.release.version} with the system's libraries loads libcudnn.so."
            f"{versions.major(tensorflow.release.tested.cudnn)} when it starts (built with cuDNN "
            f"{tensorflow.release.tested.cudnn}); the plan has no cuDNN",
            "set gpu_stack_tensorflow_cuda_libraries=wheel, or gpu_stack_cudnn to that version",
        )
    pytorch = _pytorch(context, platform, findings)
    if cudnn and pytorch:
        cudnn = _cudnn_beside(context, cudnn, pytorch, platform, findings)
    component = driver.component if driver else None
    if component and component.module_source == prebuilt.PREBUILT:
        prebuilt.warn_unknown(context, findings)
    return Components(
        driver=kernels.with_build_packages(context, component, findings) if component else None,
        cuda=cuda.component if cuda else None,
        cudnn=cudnn,
        nccl=nccl,
        tensorflow=tensorflow.component if tensorflow else None,
        pytorch=pytorch.component if pytorch else None,
    )


def _cudnn_beside(
    context: ResolveContext,
    cudnn: LibraryComponent,
    pytorch: frameworks.PytorchCandidate,
    platform: Platform,
    findings: Findings,
) -> LibraryComponent | None:
    """Return the cuDNN to install beside PyTorch's own: at auto the newest with which PyTorch is not known to fail."""
    wheel = pytorch.build.cudnn
    bad = known_bad.cudnn_conflict(context, wheel, cudnn.version)
    if bad is None:
        return cudnn
    release = pytorch.release.version
    why = (
        f"PyTorch {release} with cuDNN {wheel} fails beside {bad.system_first} and newer: {bad.symptom} ({bad.source})"
    )
    if context.request.cudnn != "auto" or platform.cuda is None:
        findings.problem("known-bad", why, f"take {bad.instead}: set gpu_stack_cudnn to it, or to none")
        return cudnn
    findings.reasons = [reason for reason in findings.reasons if reason.component != "cudnn"]
    for candidate in libraries.cudnn_candidates(context, platform.cuda, platform.tensorflow):
        if not candidate.problems and not known_bad.cudnn_conflict(context, wheel, candidate.version):
            findings.reason("cudnn", candidate.version, f"built for CUDA {candidate.cuda}; {why}")
            return candidate.component
    findings.reason("cudnn", "none", why)
    return None


def _library(context: ResolveContext, name: str, platform: Platform, findings: Findings) -> LibraryComponent | None:
    """Return cuDNN or NCCL for the selected toolkit; at auto it is left out, with a warning, where none fits."""
    wanted, cuda = getattr(context.request, name), platform.cuda
    if wanted == "none":
        findings.reason(name, "none", context.unmanaged(name))
        return None
    if cuda is None:
        if wanted != "auto":
            findings.problem(
                f"{name}-cuda-mismatch",
                f"{LABELS[name]} {wanted} needs a CUDA toolkit; there is none",
                f"set gpu_stack_cuda to a release, or gpu_stack_{name}=none",
            )
        elif context.request.cuda == "none":
            findings.reason(name, "none", "not installed without a CUDA toolkit of the plan; what is installed stays")
        return None
    if wanted == "auto" and archive_only(platform):
        findings.reason(
            name,
            "none",
            f"only in NVIDIA's repository, which this plan does not use: the toolkit is {context.distro.id}'s own",
        )
        return None
    found = _builds(context, name, cuda, platform)
    if "cuda" in context.relaxed:
        free = dataclasses.replace(
            context, request=dataclasses.replace(context.request, cuda="auto", cuda_source="auto")
        )
        toolkits = {candidate.version: candidate for candidate in cuda_candidates(free)}
        found = [build for toolkit in toolkits.values() for build in _builds(context, name, toolkit, platform)]
        found.sort(key=lambda build: versions.key(build.version), reverse=True)
    fitting, held = holds.libraries(context, name, found, cuda.version)
    if held and not any(context.is_usable(candidate.problems) for candidate in fitting):
        why = next((p.message for c in fitting for p in c.problems), f"none is for CUDA {cuda.version}")
        asked = "" if wanted == "auto" else f"; gpu_stack_{name}={wanted} is requested"
        findings.problems.append(
            holds.problem(held, f"no {LABELS[name]} keeps them beside CUDA {cuda.version}: {why}{asked}")
        )
        return None
    component = _choose_library(context, name, wanted, cuda, fitting, findings)
    if held and component:
        findings.reasons[-1] = dataclasses.replace(findings.reasons[-1], because=holds.because(held))
    return component


def _builds(context: ResolveContext, name: str, cuda: CudaCandidate, platform: Platform) -> list[LibraryCandidate]:
    if name == "cudnn":
        return libraries.cudnn_candidates(context, cuda, platform.tensorflow)
    return libraries.nccl_candidates(context, cuda)


def _choose_library(
    context: ResolveContext,
    name: str,
    wanted: str,
    cuda: CudaCandidate,
    found: list[LibraryCandidate],
    findings: Findings,
) -> LibraryComponent | None:
    clean = [candidate for candidate in found if context.is_usable(candidate.problems)]
    if clean:
        best = clean[0]
        findings.reason(name, best.version, f"built for CUDA {best.cuda}")
        return best.component
    if wanted == "auto":
        findings.warn(
            "not-in-repository",
            f"{LABELS[name]} is left out: {context.repository_name} offers none for CUDA {cuda.version} and these GPUs",
        )
        findings.reason(name, "none", f"none is offered for CUDA {cuda.version} and these GPUs")
        return None
    known = libraries.known_cudnn(context) if name == "cudnn" else libraries.known_nccl(context)
    if not found:
        explain_missing(context, name, wanted, known, findings)
    else:
        hint = quote_hint(name, wanted, known)
        findings.problems += [dataclasses.replace(p, message=p.message + hint) for p in closest(found).problems]
    return None


def _pytorch(context: ResolveContext, platform: Platform, findings: Findings) -> frameworks.PytorchCandidate | None:
    wanted = context.request.pytorch
    if wanted in ("none", "fallback"):
        why = (
            context.unmanaged("pytorch")
            if wanted == "none"
            else "only where gpu_stack_tensorflow=auto finds no release that works"
        )
        if (build := context.request.pytorch_cuda) != "auto":
            unused = f"gpu_stack_pytorch_cuda={build} has no effect without PyTorch"
            why += f"; {unused}: set gpu_stack_pytorch=auto for it"
        findings.reason("pytorch", "none", why)
        return None
    toolkit = platform.cuda.version if platform.cuda and _is_toolkit_requested(context) else ""
    found = usable_candidates(
        context,
        "pytorch",
        wanted,
        functools.partial(frameworks.pytorch_candidates, toolkit=toolkit),
        frameworks.known_pytorches,
        findings,
    )
    fitting = [c for c in found if runs_major(context, platform.driver, versions.major(c.build.cuda))]
    if found and not fitting and platform.driver:
        floor = minimum_driver(context, versions.major(found[0].build.cuda))
        explain_old_driver(context, platform.driver, floor, f"PyTorch {found[0].release.version}", findings)
    if not fitting:
        return None
    _explain_pytorch(context, fitting[0], platform, findings)
    return fitting[0]


def _is_toolkit_requested(context: ResolveContext) -> bool:
    return context.request.cuda not in ("auto", "none") and "cuda" not in context.host.keeping


def _explain_pytorch(
    context: ResolveContext, chosen: frameworks.PytorchCandidate, platform: Platform, findings: Findings
) -> None:
    """Add the reason for a PyTorch, and a warning if its CUDA is not that of the toolkit."""
    request, component, cuda = context.request, chosen.component, platform.cuda
    index = "PyTorch's own index" if chosen.build.index == "own" else "PyPI"
    why = f"the wheel of {index} for CUDA {component.cuda}"
    if request.pytorch_cuda != "auto":
        why += ", as requested"
    elif _is_toolkit_requested(context) and cuda and component.cuda == cuda.version:
        why += ", that of the requested toolkit"
    if component.build_packages:
        verb = "needs" if request.scope == "frameworks" else "with"
        why += f"; {verb} {', '.join(component.build_packages)} for what Triton compiles"
    findings.reason("pytorch", component.version, why)
    if cuda is None or cuda.version == component.cuda:
        return
    if versions.major(cuda.version) == versions.major(component.cuda):
        meaning = "extensions built with this nvcc get CUDA code of another minor release; PyTorch warns of them"
    else:
        meaning = "PyTorch refuses to build CUDA extensions with this nvcc, and extensions built with it do not fit"
    findings.warn(
        "pytorch-cuda-differs",
        f"PyTorch {component.version} is built for CUDA {component.cuda}, and the toolkit is CUDA {cuda.version}: "
        f"{meaning}. PyTorch itself does not use the toolkit",
    )


def _repository(context: ResolveContext, components: Components) -> dict[str, str] | None:
    """Return NVIDIA's repository where the plan needs it: the request's, else the one that was read, else NVIDIA's own.

    A plan needs it to install from, or to block its driver packages: where the host already reads it and the driver is
    the distribution's.
    """
    origins = [part.source if part else None for part in (components.driver, components.cuda)]
    kept = driver_sets.kept(context)
    is_distros = origins[0] == "distro" or (kept is not None and kept.source == "distro")
    to_block = context.host.repository_configured and is_distros
    if not ("nvidia" in origins or components.cudnn or components.nccl or to_block):
        return None
    request = context.request
    base = None if request.repository_url == "auto" else request.repository_url
    facts = repository_facts(context.catalog, context.distro.id, context.host.architecture, base)
    if base is None and context.host.repository_url:
        # The plan is for the repository that was read, which may be a mirror.
        key_file = facts["key_url"].rsplit("/", 1)[-1]
        facts["url"] = context.host.repository_url.rstrip("/") + "/"
        facts["key_url"] = facts["url"] + key_file
    if request.repository_key_url != "auto":
        facts["key_url"] = request.repository_key_url
    if request.repository_key_fingerprint != "auto":
        facts["key_fingerprint"] = request.repository_key_fingerprint
    return facts
