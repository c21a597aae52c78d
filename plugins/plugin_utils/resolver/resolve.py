"""The resolver: (catalog, request, host) -> Plan, the newest consistent set for a host's GPUs or every problem at once.

Runs on the controller; a pure function. resolver_platform.py searches driver, toolkit and TensorFlow; here the rest is
chosen, each choice is explained, and a refusal gets the remedies that resolver_remedies.py has tried out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import (
    LABELS,
    Components,
    LibraryComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import Host, host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import PlanInputError, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import frameworks as frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import libraries as libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import Case
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.drivers import DriverOption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.explain import explain_platform
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import check_gpu_count, identify_gpus
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.libraries import LibraryOption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.platform import (
    Platform,
    archive_only,
    closest,
    explain_missing,
    explain_old_driver,
    minimum_driver,
    pool,
    resolve_platform,
    runs_major,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.remedies import find_remedies, remedy_text
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaOption


def plan_for_probe(probe: Probe, request: Mapping[str, Any], catalog: Catalog | None = None) -> Plan:
    """A plan from a probe and a request's plain data; raises PlanInputError where one cannot be read.

    Values that cannot be meant are problems of the plan, so that they are told with all the others.
    """
    asked, wrong = Request.read(request)
    if strangers := [why for name, why in wrong.items() if name not in vars(asked)]:
        raise PlanInputError("; ".join(strangers))
    plan = resolve(catalog or load_catalog(), asked, host_from_probe(probe))
    invalid = [Problem("invalid-request", why, f"correct gpu_stack_{name}") for name, why in wrong.items()]
    return dataclasses.replace(plan, problems=(*invalid, *plan.problems))


def resolve(catalog: Catalog, request: Request, host: Host) -> Plan:
    """The newest consistent set for a host, or every problem with remedies that were tried out."""
    memo: dict[str, Any] = {}
    plan = plan_once(catalog, request, host, memo)
    if plan.ok:
        return plan

    # What does not depend on the request is worked out once for each host that a remedy makes of this one; nothing of
    # it depends on the host's Pythons.
    memos = {(host.distribution, host.gpus): memo}

    def attempt(asked: Request, changed: Host) -> Plan:
        return plan_once(catalog, asked, changed, memos.setdefault((changed.distribution, changed.gpus), {}))

    remedies = find_remedies(catalog, plan, host, attempt)
    if not remedies:
        return plan
    text = remedy_text(remedies)
    problems = tuple(dataclasses.replace(p, remedy=text) for p in plan.problems)
    return dataclasses.replace(plan, problems=problems, remedies=remedies)


def plan_once(catalog: Catalog, request: Request, host: Host, memo: dict[str, Any]) -> Plan:
    """One plan, without remedies. The memo may be shared between plans for one catalog and host, its Pythons aside."""
    findings = Findings()
    gpus = identify_gpus(catalog, host, findings)
    check_gpu_count(request, gpus, findings)
    distro = catalog.distros.get(host.distribution)
    if distro is None or host.architecture not in catalog.repository.architectures:
        findings.problem(
            "distro-not-supported",
            f"{host.distribution} on {host.architecture} is not supported; supported are "
            f"{', '.join(sorted(catalog.distros))} on {', '.join(sorted(catalog.repository.architectures))}",
            "use one of those",
        )
        return _plan(host, request, gpus, Components(), None, findings)
    case = Case(catalog, distro, host, request, gpus, memo)
    if host.offers is None:
        why = f": {host.offers_error}" if host.offers_error else ""
        findings.warn(
            "repository-not-read",
            f"no repository was read{why}; versions are those of the catalog and may not be offered",
        )
    platform = resolve_platform(case, findings)
    explain_platform(case, platform, findings)
    components = _components(case, platform, findings)
    return _plan(host, request, gpus, components, _repository(case, components), findings)


def _plan(
    host: Host,
    request: Request,
    gpus: tuple[Gpu, ...],
    components: Components,
    repository: Mapping[str, str] | None,
    findings: Findings,
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


def _components(case: Case, platform: Platform, findings: Findings) -> Components:
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    cudnn = _library(case, "cudnn", platform, findings)
    nccl = _library(case, "nccl", platform, findings)
    if tensorflow and tensorflow.component.cuda_libraries == "system" and cudnn is None and not findings.problems:
        findings.problem(
            "tensorflow-cudnn-mismatch",
            f"TensorFlow {tensorflow.release.version} with the system's libraries loads libcudnn.so."
            f"{versions.major(tensorflow.release.tested.cudnn)} when it starts (built with cuDNN "
            f"{tensorflow.release.tested.cudnn}); the plan has no cuDNN",
            "set tensorflow_cuda_libraries to wheel, or cudnn to that version",
        )
    pytorch = _pytorch(case, driver, findings)
    return Components(
        driver=driver.component if driver else None,
        cuda=cuda.component if cuda else None,
        cudnn=cudnn,
        nccl=nccl,
        tensorflow=tensorflow.component if tensorflow else None,
        pytorch=pytorch.component if pytorch else None,
    )


def _library(case: Case, name: str, platform: Platform, findings: Findings) -> LibraryComponent | None:
    """cuDNN or NCCL for the chosen toolkit; at auto it is left out, with a warning, where none fits."""
    wanted, cuda = getattr(case.request, name), platform.cuda
    if wanted == "none":
        findings.reason(name, "none", "not asked for")
        return None
    if cuda is None:
        if wanted != "auto":
            findings.problem(
                f"{name}-cuda-mismatch",
                f"{LABELS[name]} {wanted} needs a CUDA toolkit; there is none",
                f"ask for a CUDA, or set {name} to none",
            )
        elif case.request.cuda == "none":
            findings.reason(name, "none", "no CUDA toolkit asked for")
        return None
    if wanted == "auto" and archive_only(platform):
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
    case: Case, name: str, wanted: str, cuda: CudaOption, found: list[LibraryOption], findings: Findings
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
            f"{LABELS[name]} is left out: {case.repository_name} offers none for CUDA {cuda.version} and these GPUs",
        )
        findings.reason(name, "none", f"none is offered for CUDA {cuda.version} and these GPUs")
    elif not found:
        known = libraries.known_cudnn(case) if name == "cudnn" else libraries.known_nccl(case)
        explain_missing(case, name, wanted, known, findings)
    else:
        findings.problems += closest(found).problems
    return None


def _pytorch(case: Case, driver: DriverOption | None, findings: Findings) -> frameworks.PytorchOption | None:
    wanted = case.request.pytorch
    if wanted == "none":
        findings.reason("pytorch", "none", "not asked for")
        return None
    found = pool(
        case,
        "pytorch",
        wanted,
        frameworks.pytorch_options,
        frameworks.known_pytorches,
        findings,
    )
    fitting = [o for o in found if runs_major(case, driver, versions.major(o.release.cuda))]
    if found and not fitting and driver:
        floor = minimum_driver(case, versions.major(found[0].release.cuda))
        explain_old_driver(case, driver, floor, f"PyTorch {found[0].release.version}", findings)
    if not fitting:
        return None
    findings.reason(
        "pytorch",
        fitting[0].release.version,
        "the newest for this Python, these GPUs and this driver" if wanted == "auto" else f"asked for ({wanted})",
    )
    return fitting[0]


def _repository(case: Case, components: Components) -> dict[str, str] | None:
    """NVIDIA's repository where the plan takes something from it: the host's own or the request's, else NVIDIA's.

    Also where the host has it from before and the driver is the distribution's: then it has to be closed for drivers.
    """
    origins = [part.source if part else None for part in (components.driver, components.cuda)]
    closed = case.host.repository_configured and origins[0] == "distro"
    if not ("nvidia" in origins or components.cudnn or components.nccl or closed):
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
