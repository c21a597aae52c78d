"""What cuDNN and NCCL have in common: builds for a CUDA release, from NVIDIA's repository alone.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    CudaComponent,
    DriverComponent,
    LibraryComponent,
    TensorflowComponent,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    NONE,
    BesideHolds,
    Candidate,
    Evaluated,
    Facts,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext, offered
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Constraint, Situation

Library = type[LibraryComponent]


def in_repository(context: ResolveContext, slugs: tuple[str, ...] | None) -> bool:
    """Return whether a build is in the repositories of this distribution release. slugs: None for all of them."""
    return slugs is None or context.distro.nvidia_repository.slug in slugs or "repository" in context.relaxed


def offered_whole(context: ResolveContext, packages: Iterable[str]) -> list[str]:
    """Return the releases of which the repository offers each of these packages, built for the same CUDA."""
    builds = [{(versions.upstream(v), versions.cuda_suffix(v)) for v in offered(context, name)} for name in packages]
    return [release for release, _cuda in set.intersection(*builds)]


def serves(built_for: str, cuda: str) -> bool:
    """Return whether a library that was built for a CUDA release or major works with the toolkit of another release."""
    if versions.major(built_for) != versions.major(cuda):
        return False
    if versions.major(cuda) < 11 and "." in built_for:
        return built_for == cuda  # minor version compatibility began with CUDA 11
    return versions.key(built_for) <= versions.key(cuda)


def reduced(context: ResolveContext, name: str) -> ResolveContext:
    """Return the question with what builds depend on."""
    return context.reduced(host=("offers", "repository_url"), request=(name,))


def build(
    library: Library, version: str, cuda: str, packages: Sequence[Package], problems: Sequence[Problem]
) -> Candidate:
    """Return a build. cuda: the CUDA release, or the major alone, that it was built for."""
    facts = {f"{library.name}.version": version, f"{library.name}.cuda": cuda}
    return Candidate("install", facts, library(version, tuple(packages)), tuple(problems))


def without_builds(context: ResolveContext, library: Library, absent: Facts, facts: Facts) -> Candidate | None:
    """Return what a library is where none of its builds can be used; None where they can."""
    name = library.name
    wanted, cuda = context.request[name], facts.get("cuda.version")
    if wanted == "none":
        return Candidate("absent", absent, because=context.unmanaged(name))
    if cuda == NONE and wanted != "auto":
        problem = Problem(
            f"{name}-cuda-mismatch",
            f"{library.label} {wanted} needs a CUDA toolkit; there is none",
            f"set gpu_stack_cuda to a release, or gpu_stack_{name}=none",
        )
        return Candidate("absent", absent, problems=(problem,))
    if cuda == NONE:
        why = "not installed without a CUDA toolkit of the plan; what is installed stays"
        return Candidate("absent", absent, because=why if context.request["cuda"] == "none" else "")
    is_archive = facts.get("cuda.source") == "distro" and facts.get("driver.source", "") in ("distro", "")
    if wanted == "auto" and is_archive:
        own = f"the toolkit is {context.distro.id}'s own"
        why = f"only in NVIDIA's repository, which this plan does not use: {own}"
        return Candidate("absent", absent, because=why)
    return None


def majors(context: ResolveContext, facts: Facts) -> list[int]:
    """Return the CUDA majors to list builds for: that of the toolkit, or all where it is not known."""
    if "cuda.version" in facts:
        return [versions.major(facts["cuda.version"])]
    return sorted({versions.major(toolkit.version) for toolkit in context.catalog.cuda.toolkits}, reverse=True)


def serves_toolkit(facts: Facts) -> str:
    """Return what a build would have to serve, for messages."""
    return f"CUDA {facts['cuda.version']} and these GPUs" if "cuda.version" in facts else "these GPUs"


def explain(library: Library) -> Callable[[ResolveContext, Candidate, Facts, Findings], None]:
    """Return what adds the reason for a build."""

    def add(_context: ResolveContext, _candidate: Candidate, facts: Facts, findings: Findings) -> None:
        name = library.name
        findings.reason(name, facts[f"{name}.version"], f"built for CUDA {facts[f'{name}.cuda']}")

    return add


def pins(plan: Plan) -> dict[str, str]:
    """Return the request for what a library depends on: the driver, the toolkit and the TensorFlow of a plan."""
    components = plan.components
    driver, cuda = DriverComponent.of(components), CudaComponent.of(components)
    tensorflow = TensorflowComponent.of(components)
    return {
        **({"driver": driver.version, "driver_source": driver.source} if driver else {}),
        **({"tensorflow": tensorflow.version} if tensorflow else {}),
        **({"cuda": cuda.release, "cuda_source": cuda.source} if cuda else {}),
    }


def constraints(situation: Situation) -> list[Constraint]:
    """Return what limits a library: the toolkit, and the TensorFlow that loads it."""
    cuda, tensorflow = CudaComponent.of(situation.plan.components), TensorflowComponent.of(situation.plan.components)
    found = []
    if cuda:
        text = f"for another CUDA than {cuda.version}"
        found.append(Constraint("cuda", lambda q: q.without("cudnn without cuda", "nccl without cuda"), text))
    if tensorflow:
        text = f"without TensorFlow {tensorflow.version}"
        found.append(Constraint("tensorflow", lambda q: q.asking(tensorflow="none"), text))
    return found


# Packages on hold -----------------------------------------------------------------------------------------------------


def built_for(version: str) -> int:
    """Return the CUDA major in the suffix of a package's version, 0 where it has none."""
    suffix = versions.cuda_suffix(version)
    return versions.major(suffix) if suffix else 0


def around_holds(
    context: ResolveContext,
    library: Library,
    held: Mapping[str, str],
    found: Sequence[Evaluated],
    facts: Facts,
    is_excluded: bool = False,
) -> BesideHolds:
    """Return the builds that leave the packages on hold as they are: at `auto` those whose packages are on hold.

    held: the library's own; is_excluded: they are in the way of every build.
    """
    wanted = context.request[library.name]
    fitting = [each for each in found if not is_excluded and holds.agrees(context, _packages(each))]
    if wanted == "auto" and held:
        fitting = [each for each in fitting if set(held) & {package.name for package in _packages(each)}]
    deciding = list(held or dict.fromkeys(n for each in found for n in holds.disagreeing(context, _packages(each))))
    if not deciding:
        return BesideHolds(fitting)
    if any(each.fits for each in fitting):
        return BesideHolds(fitting, because=holds.because(deciding))
    cuda = facts.get("cuda.version", "")
    why = next((problem.message for each in fitting for problem in each.problems), f"none is for CUDA {cuda}")
    asked = "" if wanted == "auto" else f"; gpu_stack_{library.name}={wanted} is requested"
    why = f"no {library.label} keeps them beside CUDA {cuda}: {why}{asked}"
    return BesideHolds((), holds.problem(deciding, why))


def _packages(each: Evaluated) -> tuple[Package, ...]:
    component: LibraryComponent = each.candidate.component
    return component.packages


def stays_out(present: Present) -> bool:
    """Return whether the repository offered none for the verified toolkit. Beside the archive's there is never one."""
    cuda = present.verified.components.get("cuda")
    return cuda is not None and cuda.source == "nvidia"
