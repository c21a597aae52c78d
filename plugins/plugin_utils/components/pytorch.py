"""The choice of PyTorch: the wheels that a request allows, each with its problems on the host, and what they need.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    PytorchComponent,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import PYTORCH
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import triton_packages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, PytorchBuild, PytorchRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import fallback
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.cuda import minimum_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import choice as driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    NONE,
    Candidate,
    Choice,
    Facts,
    Keeping,
    Remedies,
    Rule,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    span,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Part

PROBLEMS = {
    "gpu-too-new-for-pytorch": "the wheel, or a library that it pins, is older than a GPU of the host",
    "pytorch-cuda-mismatch": "the release has no build for the CUDA release that gpu_stack_pytorch_cuda asks for",
}
WARNINGS = {
    "pytorch-cuda-differs": "PyTorch is built for another CUDA release than the toolkit: extensions may not fit",
    "triton-gpu-too-old": "`torch.compile` refuses a GPU of the host, for which Triton does not compile",
}


def _candidates(context: ResolveContext, facts: Facts) -> list[Candidate]:
    request = context.request
    if request["pytorch"] in ("none", "fallback"):
        why = (
            context.unmanaged("pytorch")
            if request["pytorch"] == "none"
            else "gpu_stack_pytorch=auto installs it, too; else only where no TensorFlow release works"
        )
        if (build := request["pytorch_cuda"]) != "auto":
            unused = f"gpu_stack_pytorch_cuda={build} has no effect without PyTorch"
            why += f"; {unused}: set gpu_stack_pytorch=auto for it"
        return [Candidate("absent", because=why)]
    cuda = facts.get("cuda.version", NONE)
    return pytorch_candidates(context, cuda if cuda != NONE and _is_toolkit_requested(context) else "")


def _is_toolkit_requested(context: ResolveContext) -> bool:
    return context.request["cuda"] not in ("auto", "none") and "cuda" not in context.host.keeping


def pytorch_candidates(context: ResolveContext, toolkit: str = "") -> list[Candidate]:
    """Return the PyTorch wheels that the request allows, the preferred one first.

    toolkit: the CUDA series whose builds come first, then those of its major; empty: the newest release comes first.
    """
    wanted, cuda = context.request["pytorch"], context.request["pytorch_cuda"]
    key = context.reduced(host=("pythons", "default_python", "own_pythons", "cpu", "cpu_flags"))
    found = [c for c in _wheels(key) if wanted == "auto" or versions.has_prefix(c.facts["pytorch.version"], wanted)]
    asked = [c for c in found if cuda == "auto" or versions.has_prefix(c.facts["pytorch.build"], cuda)]
    if found and not asked:
        asked = [_without_build(context, candidate) for candidate in found]
    return sorted(asked, key=lambda candidate: _preference(candidate, toolkit), reverse=True)


@cached
def _wheels(context: ResolveContext) -> list[Candidate]:
    releases, of_locks = context.catalog.pytorch.releases, frameworks.reduced(context)
    return [_pytorch_candidate(context, of_locks, release, build) for release in releases for build in release.builds]


def _preference(candidate: Candidate, toolkit: str) -> tuple[Any, ...]:
    """Return the sort key: the toolkit's CUDA or its major, the newest release, PyPI's wheel, the newest CUDA."""
    cuda = candidate.component.cuda
    return (
        cuda == toolkit,
        bool(toolkit) and versions.major(cuda) == versions.major(toolkit),
        versions.key(candidate.facts["pytorch.version"]),
        candidate.facts["pytorch.index"] == "pypi",
        versions.key(cuda),
    )


def _pytorch_candidate(
    context: ResolveContext, of_locks: ResolveContext, release: PytorchRelease, build: PytorchBuild
) -> Candidate:
    mark = locks.mark(context.catalog, context.host.architecture)
    lock = locks.Lock("pytorch", release.version, locks.cuda_build(build.cuda), "", mark)
    lock, unserved = frameworks.lock_for(of_locks, lock, "", release.pythons)
    problems = (*unserved, *_pytorch_gpu_problems(context, release, build))
    requirements, index = locks.pytorch_requirements(context.catalog, release, build)
    packaged = lock.python in context.distro.python.available and lock.python not in context.host.own_pythons
    packages = triton_packages(context.catalog, context.distro.family, lock.python, packaged, release.version)
    component = PytorchComponent(
        release.version, lock.python, versions.series(build.cuda), requirements, lock.file, index, *packages
    )
    return Candidate("install", _facts(context, release, build), component, problems)


def _facts(context: ResolveContext, release: PytorchRelease, build: PytorchBuild) -> dict[str, str]:
    floor = minimum_driver(context, versions.major(build.cuda))
    return {
        "pytorch.version": release.version,
        "pytorch.build": build.cuda,
        "pytorch.index": build.index,
        "pytorch.wheel.cudnn": build.cudnn,
        **({"pytorch.needs_driver": floor} if floor else {}),
    }


def _pytorch_gpu_problems(context: ResolveContext, release: PytorchRelease, build: PytorchBuild) -> list[Problem]:
    """Return a problem for each GPU for which the wheel, its cuDNN or its NCCL has no code."""
    problems = []
    major = versions.major(build.cuda)
    cudnn, nccl = context.catalog.cudnn.support, context.catalog.nccl.support
    for gpu in context.gpu_kinds:
        if not frameworks.has_code(build.sass, gpu):
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


def _without_build(context: ResolveContext, candidate: Candidate) -> Candidate:
    """Return the candidate with the problem that its release has no build for the CUDA that is asked for."""
    cuda, version = context.request["pytorch_cuda"], candidate.facts["pytorch.version"]
    release = next(release for release in context.catalog.pytorch.releases if release.version == version)
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


# What it needs --------------------------------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> tuple[Rule, ...]:
    def problems(facts: Facts) -> list[Problem]:
        return [driver.too_old(context, facts, facts["pytorch.needs_driver"], f"PyTorch {facts['pytorch.version']}")]

    def is_met(facts: Facts) -> bool:
        return driver.reaches(facts["driver.version"], facts["pytorch.needs_driver"])

    return (Rule(("pytorch.needs_driver", "driver.version"), is_met, problems),)


def _explain(context: ResolveContext, chosen: Candidate, facts: Facts, findings: Findings) -> None:
    """Add the reason for a PyTorch, and a warning if its CUDA is not that of the toolkit."""
    request, cuda = context.request, facts.get("cuda.version", NONE)
    component: PytorchComponent = chosen.component
    index = "PyTorch's own index" if facts["pytorch.index"] == "own" else "PyPI"
    why = f"the wheel of {index} for CUDA {component.cuda}"
    if request["pytorch_cuda"] != "auto":
        why += ", as requested"
    elif _is_toolkit_requested(context) and component.cuda == cuda:
        why += ", that of the requested toolkit"
    if component.build_packages:
        verb = "needs" if request["scope"] == "frameworks" else "with"
        why += f"; {verb} {', '.join(component.build_packages)} for what Triton compiles"
    findings.reason("pytorch", component.version, why)
    triton = context.catalog.pytorch.triton
    oldest = triton.compute_capability if triton else "0"
    older = (gpu for gpu in context.gpu_kinds if versions.key(gpu.compute_capability) < versions.key(oldest))
    if old := ", ".join(map(gpu_label, older)):
        findings.warn(
            "triton-gpu-too-old",
            f"torch.compile refuses {old}: Triton needs compute capability {oldest}",
        )
    if cuda in (NONE, component.cuda):
        return
    if versions.major(cuda) == versions.major(component.cuda):
        meaning = "extensions built with this nvcc get CUDA code of another minor release; PyTorch warns of them"
    else:
        meaning = "PyTorch refuses to build CUDA extensions with this nvcc, and extensions built with it do not fit"
    findings.warn(
        "pytorch-cuda-differs",
        f"PyTorch {component.version} is built for CUDA {component.cuda}, and the toolkit is CUDA {cuda}: "
        f"{meaning}. PyTorch needs no toolkit",
    )


def _alone(context: ResolveContext, gpu: Gpu) -> str:
    found = (c for c in pytorch_candidates(context.with_gpus((gpu,))) if not c.problems)
    return span("PyTorch for CUDA", (versions.series(c.facts["pytorch.build"]) for c in found))


def _lacks(context: ResolveContext) -> str:
    request, file = context.request, context.catalog.pytorch
    asked = request["pytorch"]
    is_needed = asked != "none"
    if asked == "fallback":
        asked, is_needed = "auto", request["tensorflow"] != "none" and not context.catalog.tensorflow.releases
    return frameworks.lacking_wheel("PyTorch", asked, file.releases, file.cpu_only) if is_needed else ""


def _stays(context: ResolveContext, verified: Sequence[Part]) -> Sequence[Part]:
    if not fallback.is_in_place(context.request, context.host.present):
        return verified
    names = ("pytorch", "tensorflow")
    return [dataclasses.replace(part, names=names, asks={**part.asks, "tensorflow": "none"}) for part in verified]


CHOICE = Choice(
    record=PytorchComponent,
    after=("driver", "cuda"),
    candidates=_candidates,
    known=known_pytorches,
    published=lambda catalog: [release.version for release in catalog.pytorch.releases],
    rules=_rules,
    options={"pytorch_cuda": "cuda"},
    explain=_explain,
    lacks=_lacks,
    remedies=Remedies(
        pythons=lambda catalog: {python for release in catalog.pytorch.releases for python in release.pythons},
        options={"pytorch_cuda": lambda catalog: [build.cuda for r in catalog.pytorch.releases for build in r.builds]},
        leave_out=(("pytorch",),),
    ),
    keeping=Keeping(stays=_stays),
    alone=_alone,
)


# On a host -----------------------------------------------------------------------------------------------------------


TRITON_BUILD_MISSING = FindingSpec(
    "triton-build-missing",
    "Warning: the host lacks the C compiler or the Python headers with which this PyTorch compiles operations "
    "(Triton), and none is installed",
    "Ask the machine's administrator for the packages that the message names; for another Python, install its "
    "headers from where that Python came from",
)


class Pytorch(EnvironmentPart[PytorchComponent]):
    """PyTorch in an environment of its own, with the CUDA libraries of its wheels."""

    record = PytorchComponent
    role = "pytorch_env"
    training = "smoke training with PyTorch"
    training_file = PYTORCH.training_file
    path = PYTORCH.path
    build_variables = ("pytorch_env_build_packages",)
    findings = (TRITON_BUILD_MISSING,)

    def details(self, planned: PytorchComponent) -> str:
        """Return the Python, and the CUDA release of the build."""
        return f"Python {planned.python}, CUDA {planned.cuda}"

    def lockable(self, context: ResolveContext) -> Iterable[Candidate]:
        """Return the wheels of the Python package index."""
        request = context.request.but(pytorch="auto", pytorch_cuda="auto")
        found = pytorch_candidates(dataclasses.replace(context, request=request))
        return [each for each in found if each.facts["pytorch.index"] == "pypi"]

    def releases(self, catalog: Catalog) -> tuple[PytorchRelease, ...]:
        """Return PyTorch's releases."""
        return catalog.pytorch.releases

    def other_build(self, planned: PytorchComponent, found: Environment) -> str:
        """Return that the wheel is of another CUDA build, which its version tells, such as 2.14.1+cu126."""
        wanted = f"cu{planned.cuda.replace('.', '')}" if planned.index else ""
        return f"rebuilt for CUDA {planned.cuda}" if found.version.partition("+")[2] != wanted else ""

    def role_inputs(self, planned: PytorchComponent) -> Mapping[str, Any]:
        """Return PyTorch's own index, and the packages that Triton compiles with."""
        packages = [*planned.compiler_packages, *planned.header_packages]
        return {"extra_index_url": planned.index, "build_packages": packages}

    def missing_to_compile(self, planned: PytorchComponent, probe: Probe) -> tuple[str, ...]:
        """Return the packages without which it would not find what it compiles with when it runs."""
        compiler = planned.compiler_packages if probe.toolchain.c_compilers == () else ()
        return (*compiler, *(planned.header_packages if _lacks_headers(planned, probe) else ()))

    def check(self, planned: PytorchComponent, plan: Plan, probe: Probe, findings: Findings) -> None:
        """Warn of a PyTorch that will not find what it compiles with; elsewhere the plan installs that."""
        if not planned.compiler_packages:
            return
        missing: list[str] = []
        remedy = "the distribution has no package of that: install it from where this Python came from"
        if plan.request["scope"] == "frameworks":
            missing += self.missing_to_compile(planned, probe)
            remedy = "gpu_stack_scope=frameworks installs no package: ask the machine's administrator for that"
        if not planned.header_packages and _lacks_headers(planned, probe):
            missing.append(f"Python.h of Python {planned.python}")
        if missing:
            TRITON_BUILD_MISSING.add_warning(
                findings,
                f"PyTorch {planned.version} compiles operations on the host when it runs (Triton), and this host lacks "
                f"{' and '.join(missing)}; {remedy}",
            )


def _lacks_headers(planned: PytorchComponent, probe: Probe) -> bool:
    return probe.python.headers is not None and planned.python not in probe.python.headers
