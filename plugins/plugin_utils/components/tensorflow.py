"""The choice of TensorFlow: the releases that a request allows, each with its problems on the host, and what they need.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import TensorflowComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan, Remedy
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.references import loaded_libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    AndCuda,
    Catalog,
    PublishedRun,
    TensorflowRelease,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import fallback
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.cuda import minimum_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import choice as driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, locks
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
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import (
    Kept,
    Part,
    Repair,
    Trial,
)

PROBLEMS = {
    "tensorflow-cuda-mismatch": "it needs another CUDA of the system's libraries; or it has none of its own",
    "tensorflow-cudnn-mismatch": "TensorFlow with the system's libraries needs another cuDNN",
    "gpu-too-old-for-tensorflow": "the wheel, or a library that it pins, has no code for a GPU of the host",
    "gpu-too-new-for-tensorflow": "a library that the wheel pins is older than a GPU of the host",
    "no-published-run": "the wheel has PTX alone for a GPU that its toolkit does not know; no release was asked for",
}
WARNINGS = {
    "ptx-jit": "native code for no or for some kernels: the driver compiles PTX at the first start, which takes long",
    "no-published-run-asked": "the problem `no-published-run`, of a release that was asked for: it is installed",
}


def _candidates(context: ResolveContext, _facts: Facts) -> Sequence[Candidate]:
    if context.request["tensorflow"] == "none":
        return [Candidate("absent", because=context.unmanaged("tensorflow"))]
    return tensorflow_candidates(context)


def tensorflow_candidates(context: ResolveContext) -> Sequence[Candidate]:
    """Return the TensorFlow releases that the request allows, newest first."""
    wanted, key = context.request["tensorflow"], _reduced(context)
    if wanted == "auto":
        return _proven_tensorflows(key)
    found = _all_tensorflows(key)
    asked = [each for each in found if versions.has_prefix(each[0].facts["tensorflow.version"], wanted)]
    return [_with(candidate, warnings=_as_warnings(unproven)) for candidate, unproven in asked]


def _with(candidate: Candidate, problems: Sequence[Problem] = (), warnings: Sequence[PlanWarning] = ()) -> Candidate:
    """Return a candidate with more problems and warnings."""
    if not problems and not warnings:
        return candidate
    return dataclasses.replace(
        candidate, problems=(*candidate.problems, *problems), warnings=(*candidate.warnings, *warnings)
    )


def _as_warnings(problems: Iterable[Problem]) -> list[PlanWarning]:
    return [PlanWarning("no-published-run-asked", problem.message) for problem in problems]


def _reduced(context: ResolveContext) -> ResolveContext:
    return context.reduced(
        host=("pythons", "default_python", "cpu", "cpu_flags"), request=("tensorflow_cuda_libraries",)
    )


def known_tensorflows(context: ResolveContext) -> list[str]:
    """Return every TensorFlow version of the catalog."""
    return [r.version for r in context.catalog.tensorflow.releases]


@cached
def _all_tensorflows(context: ResolveContext) -> list[tuple[Candidate, tuple[Problem, ...]]]:
    """Return the candidates, each with the problem at `auto` that is a warning where the release was asked for."""
    releases = sorted(context.catalog.tensorflow.releases, key=lambda r: versions.key(r.version), reverse=True)
    of_locks = frameworks.reduced(context)
    return [(_candidate(context, of_locks, release), _unproven(context, release)) for release in releases]


@cached
def _proven_tensorflows(context: ResolveContext) -> tuple[Candidate, ...]:
    """Return the candidates at `auto`."""
    return tuple(_with(candidate, problems=unproven) for candidate, unproven in _all_tensorflows(context))


def _candidate(context: ResolveContext, of_locks: ResolveContext, release: TensorflowRelease) -> Candidate:
    libraries = context.request["tensorflow_cuda_libraries"]
    if libraries == "auto":
        libraries = "wheel" if release.and_cuda else "system"
    pythons, with_ = release.pythons, ""
    if libraries == "wheel" and release.and_cuda and release.and_cuda.pythons:
        pythons, with_ = release.and_cuda.pythons, " with its CUDA libraries"
    problems: list[Problem] = []
    if libraries == "wheel" and release.and_cuda is None:
        problems.append(_no_extra(context, release))
    warnings: list[PlanWarning] = []
    _check_gpu_code(context, release, problems, warnings)
    problems += known_bad.tensorflow_problems(context, release.version)
    requirements, build = [f"{release.package}=={release.version}"], locks.SYSTEM
    if libraries == "wheel" and release.and_cuda:
        extra, build = _wheel_libraries(context, release, release.and_cuda, problems)
        requirements = [f"{release.package}[and-cuda]=={release.version}", *extra]
    mark = locks.mark(context.catalog, context.host.architecture)
    lock, unserved = frameworks.lock_for(
        of_locks, locks.Lock("tensorflow", release.version, build, "", mark), with_, pythons
    )
    component = TensorflowComponent(release.version, lock.python, libraries, tuple(requirements), lock.file)
    found = tuple(dict.fromkeys((*unserved, *problems)))
    return Candidate("install", _facts(context, release, libraries), component, found, tuple(warnings))


def _facts(context: ResolveContext, release: TensorflowRelease, libraries: str) -> dict[str, str]:
    """Return the facts of a release. libraries: whose CUDA it loads, the `wheel`'s or the `system`'s."""
    facts = {"tensorflow.version": release.version}
    if release.and_cuda:
        facts["tensorflow.wheel_cuda"] = str(release.and_cuda.cuda_major)
    if libraries == "system":
        return facts | {
            "tensorflow.system_cuda": release.tested.cuda,
            "tensorflow.system_cudnn": release.tested.cudnn,
        }
    floor = minimum_driver(context, release.and_cuda.cuda_major) if release.and_cuda else None
    return facts | ({"tensorflow.needs_driver": floor} if floor else {})


def _no_extra(context: ResolveContext, release: TensorflowRelease) -> Problem:
    """Return the problem of a release without [and-cuda]."""
    with_it = [r.version for r in context.catalog.tensorflow.releases if r.and_cuda]
    first = min(with_it, key=versions.key, default=None)
    began = f" ([and-cuda] began with {first})" if first else ""
    newer = f", or use TensorFlow {versions.series(first)} or newer" if first else ""
    return Problem(
        "tensorflow-cuda-mismatch",
        f"TensorFlow {release.version} brings no CUDA libraries of its own{began}",
        f"set gpu_stack_tensorflow_cuda_libraries=system{newer}",
    )


def _check_gpu_code(
    context: ResolveContext, release: TensorflowRelease, problems: list[Problem], warnings: list[PlanWarning]
) -> None:
    if context.gpu_kinds and not release.sass:
        measured = [r.version for r in context.catalog.tensorflow.releases if r.sass]
        problems.append(
            Problem(
                "unknown-version",
                f"TensorFlow {release.version} exists (for CUDA {release.tested.cuda}, cuDNN {release.tested.cudnn}), "
                "but its wheel has not been inspected for GPU architectures; inspected ones are "
                f"{', '.join(versions.nearest(release.version, measured, 4))}",
                "set gpu_stack_tensorflow to one of those, or leave it at auto",
            )
        )
        return
    for gpu in context.gpu_kinds:
        code = runs(release, gpu)
        if code == "jit":
            warnings.append(
                PlanWarning(
                    "ptx-jit",
                    f"TensorFlow {release.version} has {_native(release, gpu)} for {gpu_label(gpu)}: "
                    "the driver compiles its PTX at the first start, which takes long",
                )
            )
        elif code == "none":
            problems.append(
                Problem(
                    "gpu-too-old-for-tensorflow",
                    f"TensorFlow {release.version} has no code for {gpu_label(gpu)}: its wheel covers "
                    f"{', '.join(release.sass)} and what is newer than {release.ptx[0]}",
                    "leave gpu_stack_tensorflow at auto, or set it to an older release",
                )
            )


def _unproven(context: ResolveContext, release: TensorflowRelease) -> tuple[Problem, ...]:
    """Return a problem for each kind of GPU that the wheel has PTX alone for and its toolkit does not know.

    XLA, by which Keras compiles, generates code with that toolkit.
    """
    by_ptx = [gpu for gpu in context.gpu_kinds if release.sass and runs(release, gpu) == "jit"]
    if not by_ptx:
        return ()
    toolkits = (t for t in context.catalog.cuda.toolkits if t.version == release.tested.cuda)
    known = next((toolkit.compute_capabilities for toolkit in toolkits), ())
    runs_of = [run for run in context.catalog.tensorflow.published_runs if _is_of(run, release)]
    proven = {capability for run in runs_of for capability in run.compute_capabilities}
    return tuple(
        Problem(
            "no-published-run",
            f"TensorFlow {release.version} was built with CUDA {release.tested.cuda}, which does not know "
            f"{gpu_label(gpu)}, and has no native code for it; no run of that wheel on one was published",
            f"use PyTorch, or try it nevertheless with gpu_stack_tensorflow={release.version}",
        )
        for gpu in by_ptx
        if gpu.compute_capability not in {*known, *proven}
    )


def _is_of(run: PublishedRun, release: TensorflowRelease) -> bool:
    is_late_enough = versions.key(release.version) >= versions.key(run.first)
    return is_late_enough and (run.last is None or versions.at_most(release.version, run.last))


def runs(release: TensorflowRelease, gpu: Gpu) -> str:
    """Return how a release runs on a GPU: with `native` code, by `jit` (the driver compiles PTX), or `none`."""
    if frameworks.has_code(release.sass, gpu):
        return "native"
    capability = versions.key(gpu.compute_capability)
    return "jit" if any(versions.key(p) <= capability for p in release.ptx) else "none"


def _native(release: TensorflowRelease, gpu: Gpu) -> str:
    return (
        "native code for a part of its kernels only"
        if frameworks.has_code(release.sass_in_part, gpu)
        else "no native code"
    )


def _wheel_libraries(
    context: ResolveContext, release: TensorflowRelease, wheel: AndCuda, problems: list[Problem]
) -> tuple[list[str], str]:
    """Return further requirements that make the CUDA wheels fit the GPUs, and the build of the lock with them."""
    major = wheel.cuda_major
    known, fitting = _wheel_cudnn(context, major, wheel.cudnn)
    nccl = wheel.nccl.removeprefix("==")
    uncovered = [
        g
        for g in context.gpu_kinds
        if wheel.nccl.startswith("==") and not covers(context.catalog.nccl.support, nccl, major, g)
    ]
    if not fitting or uncovered:
        problems.append(_wheel_problem(context, release, wheel, known, uncovered))
        return [], ""
    if fitting[0] == known[0]:
        return [], ""
    cudnn = context.catalog.packages.wheels["cudnn"].format(cuda_major=major)
    return [f"{cudnn}<={fitting[0]}"], f"cudnn-{versions.series(fitting[0])}"


def _wheel_cudnn(context: ResolveContext, cuda_major: int, specifier: str) -> tuple[list[str], list[str]]:
    """Return the cuDNN versions that a wheel allows, newest first, and those of them that have code for every GPU."""
    entries, support = context.catalog.cudnn.versions, context.catalog.cudnn.support
    known = [v.version for v in entries if cuda_major in v.cuda_majors and versions.satisfies(v.version, specifier)]
    known.sort(key=versions.key, reverse=True)
    return known, [v for v in known if all(covers(support, v, cuda_major, g) for g in context.gpu_kinds)]


def _wheel_problem(
    context: ResolveContext, release: TensorflowRelease, wheel: AndCuda, known: list[str], uncovered: list[Gpu]
) -> Problem:
    """Return the problem of a wheel whose pinned library, or every library that it allows, has no code for a GPU."""
    major = wheel.cuda_major
    support = context.catalog.cudnn.support
    lacking = [g for g in context.gpu_kinds if not any(covers(support, v, major, g) for v in known)]
    nccl = wheel.nccl.removeprefix("==")
    if lacking or not uncovered:
        # Where each GPU has a build with code for it, they need different ones, and none has code for all.
        gpu = (lacking or list(context.gpu_kinds))[0]
        what, coverage = f"cuDNN {wheel.cudnn}", supported(support, known[0], major) if known else "none that is known"
    else:
        gpu, what, coverage = uncovered[0], f"NCCL {nccl}", supported(context.catalog.nccl.support, nccl, major)
    newer = versions.key(gpu.compute_capability) > versions.key(release.ptx[-1])
    return Problem(
        "gpu-too-new-for-tensorflow" if newer else "gpu-too-old-for-tensorflow",
        f"TensorFlow {release.version} brings {what}, which has no code for {gpu_label(gpu)}: it covers {coverage}",
        f"leave gpu_stack_tensorflow at auto, or set it to {'a newer' if newer else 'an older'} release",
    )


# What it needs --------------------------------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> tuple[Rule, ...]:
    """Return that driver, toolkit and cuDNN are such as its own CUDA libraries, or those of the system, need."""

    def finds_runtime(facts: Facts) -> bool:
        """Return whether the toolkit has the libraries that it loads by name."""
        tested, cuda = facts["tensorflow.system_cuda"], facts["cuda.version"]
        return (
            cuda != NONE
            and versions.key(cuda) >= versions.key(tested)
            and loaded_libraries(context.catalog, cuda) == loaded_libraries(context.catalog, tested)
        )

    def no_driver(facts: Facts) -> list[Problem]:
        what = f"TensorFlow {facts['tensorflow.version']} with its CUDA {facts['tensorflow.wheel_cuda']} libraries"
        return [driver.too_old(context, facts, facts["tensorflow.needs_driver"], what)]

    def no_runtime(facts: Facts, toolkits: Sequence[Candidate]) -> list[Problem]:
        return [_no_runtime(context, facts, [toolkit.facts for toolkit in toolkits])]

    def finds_cudnn(facts: Facts) -> bool:
        found, tested = facts["cudnn.version"], facts["tensorflow.system_cudnn"]
        if found == NONE:
            return False
        return versions.major(found) == versions.major(tested) and versions.key(found) >= versions.key(tested)

    return (
        Rule(
            ("tensorflow.system_cuda", "cuda.version"),
            finds_runtime,
            lambda facts: [_no_runtime(context, facts, [facts])],
            no_runtime,
        ),
        Rule(
            ("tensorflow.needs_driver", "driver.version"),
            lambda facts: driver.reaches(facts["driver.version"], facts["tensorflow.needs_driver"]),
            no_driver,
        ),
        Rule(("tensorflow.system_cudnn", "cudnn.version"), finds_cudnn, _no_cudnn),
    )


def _no_runtime(context: ResolveContext, facts: Facts, toolkits: Sequence[Facts]) -> Problem:
    tested = facts["tensorflow.system_cuda"]
    present = [toolkit for toolkit in toolkits if toolkit["cuda.version"] != NONE]
    loads = missing = list(loaded_libraries(context.catalog, tested))
    if not present:
        found = "the plan has no CUDA toolkit"
    elif len({toolkit["cuda.version"] for toolkit in present}) == 1:
        has = loaded_libraries(context.catalog, present[0]["cuda.version"])
        missing = [name for name in loads if name not in has]
        release = present[0]["cuda.release"]
        found = f"CUDA {release} brings {' and '.join(n for n in has if n not in loads) or has[0]}" + (
            "" if missing else " of an older release"
        )
    else:
        found = f"what fits this host is {span('CUDA', (toolkit['cuda.version'] for toolkit in present))}"
    return Problem(
        "tensorflow-cuda-mismatch",
        f"TensorFlow {facts['tensorflow.version']} was built for CUDA {tested}: with the system's libraries it loads "
        f"{(missing or loads)[0]} when it starts, and without that file it runs without the GPUs; {found}",
        f"set gpu_stack_tensorflow_cuda_libraries=wheel, or gpu_stack_cuda={tested}"
        if "tensorflow.wheel_cuda" in facts
        else f"set gpu_stack_cuda={tested}, or gpu_stack_tensorflow to a release that was built for another CUDA",
    )


def _no_cudnn(facts: Facts) -> list[Problem]:
    version, tested, found = facts["tensorflow.version"], facts["tensorflow.system_cudnn"], facts["cudnn.version"]
    major = versions.major(tested)
    if found == NONE:
        message = (
            f"TensorFlow {version} with the system's libraries loads libcudnn.so.{major} when it starts (built with "
            f"cuDNN {tested}); the plan has no cuDNN"
        )
        remedy = "set gpu_stack_tensorflow_cuda_libraries=wheel, or gpu_stack_cudnn to that version"
    else:
        message = (
            f"TensorFlow {version} was built with cuDNN {tested} and loads libcudnn.so.{major} of that version or "
            f"newer; cuDNN {found} is not"
        )
        remedy = f"set gpu_stack_cudnn={major}, or gpu_stack_tensorflow_cuda_libraries=wheel"
    return [Problem("tensorflow-cudnn-mismatch", message, remedy)]


def _explain(_context: ResolveContext, chosen: Candidate, facts: Facts, findings: Findings) -> None:
    findings.reason("tensorflow", facts["tensorflow.version"], "")
    findings.warnings += chosen.warnings


def _alone(context: ResolveContext, gpu: Gpu) -> str:
    found = (c for c in tensorflow_candidates(context.with_gpus((gpu,))) if not c.problems)
    return span("TensorFlow", (versions.series(c.facts["tensorflow.version"]) for c in found))


def published(catalog: Catalog) -> list[str]:
    """Return the releases of the catalog whose wheels were inspected."""
    return [release.version for release in catalog.tensorflow.releases if release.sass]


def _lacks(context: ResolveContext) -> str:
    asked, file = context.request["tensorflow"], context.catalog.tensorflow
    return "" if asked == "none" else frameworks.lacking_wheel("TensorFlow", asked, file.releases, file.cpu_only)


def _unproven_nevertheless(trial: Trial) -> Iterator[Remedy]:
    """Yield PyTorch, then the newest TensorFlow by its version, although it is not known to run on the GPUs."""
    newest = max(published(trial.catalog), key=versions.key)
    for changes in ({"pytorch": "fallback"}, {"tensorflow": newest}):
        changed = trial.request.but(**changes)
        if changed != trial.request and trial.attempt(changed, trial.host).ok:
            yield trial.remedy(changed)


def _stays(context: ResolveContext, verified: Sequence[Part]) -> Sequence[Part]:
    return [] if fallback.is_in_place(context.request, context.host.present) else verified


def _misfit(_catalog: Catalog, kept: Kept, plan: Plan) -> str | None:
    """Return why a TensorFlow does not stay for other GPUs than those on which it has run."""
    host = kept.host
    if "tensorflow" not in kept.names or not {gpu.pci_id for gpu in host.gpus} - set(host.present.verified.gpus):
        return None
    return next((w.message for w in plan.warnings if w.code == "no-published-run-asked"), None)


CHOICE = Choice(
    record=TensorflowComponent,
    candidates=_candidates,
    known=known_tensorflows,
    published=published,
    rules=_rules,
    options={"tensorflow_cuda_libraries": "cuda_libraries"},
    explain=_explain,
    lacks=_lacks,
    remedies=Remedies(
        pythons=lambda catalog: {python for release in catalog.tensorflow.releases for python in release.pythons},
        leave_out=(("tensorflow",), ("tensorflow", "cuda")),
        repairs=(Repair("no-published-run", _unproven_nevertheless, last=True),),
    ),
    keeping=Keeping(stays=_stays, misfit=_misfit),
    alone=_alone,
)


# On a host -----------------------------------------------------------------------------------------------------------


class Tensorflow(EnvironmentPart[TensorflowComponent]):
    """TensorFlow in an environment of its own, with CUDA libraries of its wheels or of the system."""

    record = TensorflowComponent
    role = "tensorflow_env"
    training = "smoke training"
    training_file = TENSORFLOW.training_file
    path = TENSORFLOW.path

    def details(self, planned: TensorflowComponent) -> str:
        """Return the Python, and where the CUDA libraries are from."""
        return f"Python {planned.python}, CUDA of the {planned.cuda_libraries}"

    def lockable(self, context: ResolveContext) -> Iterable[Candidate]:
        """Return the wheels, with their own CUDA libraries and with those of the system."""
        for libraries in ("wheel", "system"):
            request = context.request.but(tensorflow="auto", tensorflow_cuda_libraries=libraries)
            yield from tensorflow_candidates(dataclasses.replace(context, request=request))

    def releases(self, catalog: Catalog) -> tuple[TensorflowRelease, ...]:
        """Return TensorFlow's releases."""
        return catalog.tensorflow.releases
