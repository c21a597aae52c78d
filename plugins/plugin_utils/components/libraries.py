"""The choices of cuDNN and NCCL: libraries built for a CUDA release or major, from NVIDIA's repository alone.

Runs on the controller; pure functions. A `Library` says what the catalog has of one and what else differs; the rest is
the same for both.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    CudaComponent,
    LibraryComponent,
    OfComponent,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, CudnnVersion, NcclBuild
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange, Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import (
    Support,
    covers,
    supported,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    NONE,
    BesideHolds,
    Candidate,
    Choice,
    Evaluated,
    Facts,
    Holds,
    Keeping,
    Preference,
    Rule,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

PROBLEMS = {
    "cudnn-cuda-mismatch": "cuDNN is built for another CUDA",
    "gpu-dropped-by-cudnn": "cuDNN has no code for a GPU of the host",
    "nccl-cuda-mismatch": "NCCL is built for another CUDA, or has no code for a GPU of the host",
}


@dataclasses.dataclass(frozen=True)
class CudnnComponent(LibraryComponent):
    """The cuDNN to install."""

    name: ClassVar[str] = "cudnn"
    label: ClassVar[str] = "cuDNN"


@dataclasses.dataclass(frozen=True)
class NcclComponent(LibraryComponent):
    """The NCCL to install."""

    name: ClassVar[str] = "nccl"
    label: ClassVar[str] = "NCCL"


# What differs ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Naming:
    """NVIDIA's names of the packages of a library, for families of distributions.

    names: the runtime first, with `{cuda_major}` where they have it; version: of each, with `{version}` and `{cuda}`;
    major: of the library that is packaged so, None for all; others: a regular expression of the packages of the same
    library for another CUDA major, where they have the same paths.
    """

    families: tuple[str, ...]
    names: tuple[str, ...]
    version: str
    major: int | None = None
    others: str | None = None


@dataclasses.dataclass(frozen=True)
class Build:
    """A build in the catalog; cuda: the release or the major that it is for; slugs: the repositories, None for any."""

    version: str
    cuda: str
    slugs: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Library(OfComponent):
    """A library and what the catalog has of it.

    entries: by version, and by CUDA release where there is one for each; majors: the CUDA majors that a version was
    built for, empty where that is not known; repository_majors: those that NVIDIA's repository of a host has it for,
    None for all; newer_minors: whether a build also serves toolkits of an older minor; dropped: the code of the problem
    of a GPU that it has no code for.
    """

    record: type[LibraryComponent]
    entries: Callable[[Catalog], Mapping[str, CudnnVersion | NcclBuild]]
    namings: Callable[[Catalog], Iterable[Naming]]
    builds: Callable[[Catalog], Iterable[Build]]
    support: Callable[[Catalog], Iterable[Support]]
    dropped: str
    majors: Callable[[Catalog, str], Sequence[int]] = lambda _catalog, _version: ()
    repository_majors: Callable[[ResolveContext], tuple[int, ...] | None] = lambda _context: None
    newer_minors: bool = False

    def published(self, catalog: Catalog) -> list[str]:
        """Return every version of the catalog."""
        return [entry.version for entry in self.entries(catalog).values()]

    def major_of(self, catalog: Catalog, package: str) -> int | None:
        """Return the CUDA major in the name of a package, 0 where its name has none; None for another package."""
        for naming in self.namings(catalog):
            for template in naming.names:
                match = re.fullmatch(re.escape(template).replace(r"\{cuda_major\}", r"(\d+)"), package)
                if match:
                    return int(match.group(1)) if match.groups() else 0
        return None

    def held(self, catalog: Catalog, _host: Host, held: Mapping[str, str]) -> dict[str, str]:
        """Return its packages among those on hold."""
        return {name: version for name, version in held.items() if self.major_of(catalog, name) is not None}


def _cudnn_builds(catalog: Catalog) -> Iterable[Build]:
    for old in catalog.cudnn.apt_builds:
        yield from (Build(old.version, cuda, old.slugs) for cuda in old.cuda)
    for new in catalog.cudnn.versions:
        if versions.major(new.version) >= 9:
            yield from (Build(new.version, str(major)) for major in new.cuda_majors)


_CUDNN = Library(
    record=CudnnComponent,
    entries=lambda catalog: {entry.version: entry for entry in catalog.cudnn.versions},
    namings=lambda catalog: (
        Naming(row.families, (row.runtime, *row.development), row.version, row.cudnn_major, row.other_builds)
        for row in catalog.cudnn.names
    ),
    builds=_cudnn_builds,
    support=lambda catalog: catalog.cudnn.support,
    dropped="gpu-dropped-by-cudnn",
    majors=lambda catalog, version: next((e.cuda_majors for e in catalog.cudnn.versions if e.version == version), ()),
)
_NCCL = Library(
    record=NcclComponent,
    entries=lambda catalog: {f"{entry.version}+cuda{entry.cuda}": entry for entry in catalog.nccl.builds},
    namings=lambda catalog: (Naming(row.families, row.packages, row.version) for row in catalog.nccl.names),
    builds=lambda catalog: (Build(entry.version, entry.cuda, entry.slugs) for entry in catalog.nccl.builds),
    support=lambda catalog: catalog.nccl.support,
    dropped="nccl-cuda-mismatch",
    repository_majors=lambda context: context.distro.nvidia_repository.nccl_cuda_majors,
    newer_minors=True,
)


# Candidates -----------------------------------------------------------------------------------------------------------


def _candidates(library: Library, context: ResolveContext, facts: Facts) -> Sequence[Candidate]:
    absent = _without_builds(library, context, facts)
    return [absent] if absent else builds(library, reduced(library, context), facts.get("cuda.version"))


def _without_builds(library: Library, context: ResolveContext, facts: Facts) -> Candidate | None:
    """Return what a library is where none of its builds can be used; None where they can."""
    name, absent = library.name, _absent(library)
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


def _absent(library: Library) -> dict[str, str]:
    return {f"{library.name}.version": NONE}


def reduced(library: Library, context: ResolveContext) -> ResolveContext:
    """Return the question with what builds depend on; GPUs have nothing to do with them."""
    return context.reduced(host=("offers", "repository_url"), request=(library.name,)).with_gpus(())


@cached
def builds(library: Library, context: ResolveContext, cuda: str | None) -> tuple[Candidate, ...]:
    """Return the builds that the request allows: those for this toolkit or an older one first, newest first.

    Of a requested version the builds for the toolkit's CUDA major alone, where there are some: they are what it lacks.
    """
    wanted = context.request[library.name]
    known = {(b.version, b.cuda) for b in library.builds(context.catalog) if _in_repository(context, b.slugs)}

    def rank(build: tuple[str, str]) -> tuple[bool, versions.Key, versions.Key]:
        version, built_for = map(versions.key, build)
        if cuda is None or built_for <= versions.key(cuda):
            return True, version, built_for
        # A build for a newer minor: the nearest one first.
        return False, tuple(-n for n in built_for), version

    allowed = [b for b in known | _offered(library, context) if wanted == "auto" or versions.has_prefix(b[0], wanted)]
    own = [b for b in allowed if cuda and wanted != "auto" and versions.major(b[1]) == versions.major(cuda)]
    found = (_build(library, context, *build) for build in sorted(own or allowed, key=rank, reverse=True))
    return tuple(build for build in found if build)


def _in_repository(context: ResolveContext, slugs: tuple[str, ...] | None) -> bool:
    return slugs is None or context.distro.nvidia_repository.slug in slugs


def _offered(library: Library, context: ResolveContext) -> set[tuple[str, str]]:
    """Return version and CUDA of the builds that the repository offers, of the major alone where no more is said."""
    majors = {str(versions.major(toolkit.version)) for toolkit in context.catalog.cuda.toolkits}
    found = set()
    for naming in library.namings(context.catalog):
        name = naming.names[0]
        for major in majors if "{cuda_major}" in name else [""]:
            for version in offered(context, name.format(cuda_major=major)):
                found.add((versions.upstream(version), versions.cuda_suffix(version) or major))
    return {build for build in found if build[1]}


def _build(library: Library, context: ResolveContext, version: str, cuda: str) -> Candidate | None:
    """Return a build; None where the catalog names no packages of it for the distribution's family."""
    suffix, major = cuda if "." in cuda else None, versions.major(cuda)
    namings = (n for n in library.namings(context.catalog) if context.distro.family in n.families)
    naming = next((n for n in namings if n.major in (None, versions.major(version))), None)
    if naming is None:
        return None
    names = [name.format(cuda_major=major) for name in naming.names]
    found: dict[str, str | None] = {}
    if context.host.offers is None:
        found = dict.fromkeys(names, naming.version.format(version=version, cuda=suffix))
        majors = library.repository_majors(context)
        missing = names if majors is not None and major not in majors else []
    else:
        # Older repositories have no package for the headers alone; they are in the -dev package then.
        names = [name for name in names if "headers" not in name or offered(context, name)]
        found = {name: offered_version(context, name, version, suffix) for name in names}
        missing = [name for name, at in found.items() if not at]
    problems = []
    if missing:
        what = f"{library.label} {version}{f' for CUDA {suffix}' if suffix else ''}"
        exist = _offered_whole(context, names)
        problems = [not_in_repository(context, what, missing, exist, library.name)]
    packages = tuple(Package(name, at) for name, at in found.items() if at)
    facts = {f"{library.name}.version": version, f"{library.name}.cuda": cuda}
    return Candidate("install", facts, library.record(version, packages), tuple(problems))


def _offered_whole(context: ResolveContext, packages: Iterable[str]) -> list[str]:
    """Return the releases of which the repository offers each of these packages, built for the same CUDA."""
    each = [{(versions.upstream(v), versions.cuda_suffix(v)) for v in offered(context, name)} for name in packages]
    return [release for release, _cuda in set.intersection(*each)]


# What it fits ---------------------------------------------------------------------------------------------------------


def serves(built_for: str, cuda: str) -> bool:
    """Return whether a library that was built for a CUDA release or major works with the toolkit of another release."""
    if versions.major(built_for) != versions.major(cuda):
        return False
    if versions.major(cuda) < 11 and "." in built_for:
        return built_for == cuda  # minor version compatibility began with CUDA 11
    return versions.key(built_for) <= versions.key(cuda)


def _rules(library: Library, context: ResolveContext) -> tuple[Rule, ...]:
    """Return that it is for the toolkit, and that it has code for the GPUs."""
    name, label, support = library.name, library.label, library.support(context.catalog)
    built = (f"{name}.version", f"{name}.cuda")

    def is_for(facts: Facts) -> bool:
        version, built_for = map(facts.__getitem__, built)
        cuda = facts["cuda.version"]
        majors = library.majors(context.catalog, version) or (versions.major(built_for),)
        return versions.major(cuda) in majors and (
            versions.major(built_for) == versions.major(cuda) if library.newer_minors else serves(built_for, cuda)
        )

    def mismatch(facts: Facts) -> list[Problem]:
        version, built_for = map(facts.__getitem__, built)
        made_for = " and ".join(f"{m}.x" for m in library.majors(context.catalog, version)) or built_for
        return [
            Problem(
                f"{name}-cuda-mismatch",
                f"{label} {version} is built for CUDA {made_for}, the toolkit here is CUDA {facts['cuda.version']}",
                f"leave gpu_stack_{name} at auto, or set gpu_stack_cuda to a release of that major",
            )
        ]

    def uncovered(facts: Facts) -> list[Problem]:
        version, built_for = map(facts.__getitem__, built)
        major = versions.major(built_for)
        return [
            Problem(
                library.dropped,
                f"{label} {version} for CUDA {built_for} has no code for {gpu_label(gpu)}: it covers "
                f"{supported(support, version, major)}",
                f"leave gpu_stack_{name} at auto: it selects the newest build with code for it",
            )
            for gpu in context.gpu_kinds
            if not covers(support, version, major, gpu)
        ]

    return (
        Rule((*built, "cuda.version"), is_for, mismatch),
        Rule(built, lambda facts: not uncovered(facts), uncovered),
    )


def preferences(context: ResolveContext) -> list[Preference]:
    """Return that a toolkit is one for which a library that is requested by version is built."""
    asked = [library for library in (_CUDNN, _NCCL) if context.request[library.name] not in ("auto", "none")]
    return [_serving(library, context) for library in asked]


def _serving(library: Library, context: ResolveContext) -> Preference:
    is_for, what = _rules(library, context)[0].is_met, f"{library.label} {context.request[library.name]}"
    found = builds(library, reduced(library, context), None)

    def value(facts: Facts) -> bool:
        return facts.get("cuda.version", NONE) == NONE or any(is_for({**facts, **build.facts}) for build in found)

    return Preference(
        f"{library.name}-cuda-mismatch", value, lambda _facts: f"a CUDA that no {what} is built for", "cuda"
    )


# Packages on hold -----------------------------------------------------------------------------------------------------


def majors_on_hold(context: ResolveContext, there: Mapping[str, str]) -> dict[str, int]:
    """Return the CUDA majors that packages on hold are for, by their names, where the library is managed.

    there: the packages on hold, with their versions, whose suffix tells where the name does not.
    """
    found: dict[str, int] = {}
    for library in (_CUDNN, _NCCL):
        held = library.held(context.catalog, context.host, there) if context.request[library.name] != "none" else {}
        for name, version in held.items():
            major = library.major_of(context.catalog, name) or versions.major(versions.cuda_suffix(version) or "0")
            found |= {name: major} if major else {}
    return found


def _around_holds(library: Library, context: ResolveContext, found: Sequence[Evaluated], facts: Facts) -> BesideHolds:
    """Return the builds that leave the packages on hold as they are: at `auto` those whose packages are on hold.

    Only those, too, where packages of another CUDA major are: the libraries have the same paths.
    """
    held = library.held(context.catalog, context.host, holds.installed(context.host))
    wanted, cuda = context.request[library.name], facts.get("cuda.version", "")
    majors = {library.major_of(context.catalog, name) for name in held} - {0}
    fitting = [each for each in found if holds.agrees(context, _packages(each))]
    if held and (wanted == "auto" or (cuda and not majors <= {versions.major(cuda)})):
        fitting = [each for each in fitting if set(held) & {package.name for package in _packages(each)}]
    deciding = list(held or dict.fromkeys(n for each in found for n in holds.disagreeing(context, _packages(each))))
    if not deciding:
        return BesideHolds(fitting)
    if any(each.fits for each in fitting):
        return BesideHolds(fitting, because=holds.because(context.distro.words, deciding))
    why = next((problem.message for each in fitting for problem in each.problems), f"none is for CUDA {cuda}")
    asked = "" if wanted == "auto" else f"; gpu_stack_{library.name}={wanted} is requested"
    why = f"no {library.label} keeps them beside CUDA {cuda}: {why}{asked}"
    return BesideHolds((), holds.problem(context.distro.words, deciding, why))


def _packages(each: Evaluated) -> tuple[Package, ...]:
    component: LibraryComponent = each.candidate.component
    return component.packages


# Explanations ---------------------------------------------------------------------------------------------------------


def _serves_toolkit(facts: Facts) -> str:
    """Return what a build would have to serve, for messages."""
    return f"CUDA {facts['cuda.version']} and these GPUs" if "cuda.version" in facts else "these GPUs"


def _explain(name: str, facts: Facts, findings: Findings) -> None:
    findings.reason(name, facts[f"{name}.version"], f"built for CUDA {facts[f'{name}.cuda']}")


def _stays_out(present: Present) -> bool:
    """Return whether the repository offered none for the verified toolkit. Beside the archive's there is never one."""
    cuda = present.verified.components.get("cuda")
    return cuda is not None and cuda.source == "nvidia"


def _lacks(library: Library, context: ResolveContext) -> str:
    is_asked = context.request[library.name] not in ("auto", "none")  # at auto it is left out
    return library.label if is_asked and not library.published(context.catalog) else ""


def _choice(library: Library, **more: Any) -> Choice:
    """Return the choice of a library; more: the fields that differ."""
    rules = more.pop("rules", lambda _context: ())
    return Choice(
        record=library.record,
        candidates=lambda context, facts: _candidates(library, context, facts),
        known=lambda context: library.published(context.catalog),
        published=library.published,
        rules=lambda context: (*_rules(library, context), *rules(context)),
        optional=True,
        serves=_serves_toolkit,
        absent=_absent(library),
        explain=lambda _context, _candidate, facts, findings: _explain(library.name, facts, findings),
        lacks=lambda context: _lacks(library, context),
        holds=Holds(held=library.held, around=functools.partial(_around_holds, library)),
        keeping=Keeping(stays_out=_stays_out),
        **more,
    )


CUDNN = _choice(
    _CUDNN,
    after=("driver", "cuda", "pytorch"),
    rules=lambda context: [known_bad.beside_wheels(context, "pytorch")],
)
NCCL = _choice(
    _NCCL,
    after=("driver", "cuda"),
    series=3,
)


# On a host ------------------------------------------------------------------------------------------------------------


class _Part(PackagedPart[LibraryComponent]):
    """A library from NVIDIA's repository, built for the CUDA of the toolkit."""

    library: ClassVar[Library]
    in_summary = False

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages for another CUDA major, where its libraries have the paths of the planned ones."""
        planned, cuda = self.planned(plan.components), CudaComponent.of(plan.components)
        if planned is None or cuda is None:
            return Removal()
        number = versions.major(planned.version)
        others = next((n.others for n in self.library.namings(catalog) if n.major in (None, number)), None)
        if others is None:
            return Removal()
        pattern = others.format(cuda_major=versions.major(cuda.version))
        removed = tuple(sorted(name for name in native(probe) if re.fullmatch(pattern, name)))
        return Removal("replaces the build for another CUDA major", removed, (pattern,)) if removed else Removal()

    def entries(self, catalog: Catalog) -> Mapping[str, CudnnVersion | NcclBuild]:
        """Return the entries by version, and by CUDA release where there is one for each."""
        return self.library.entries(catalog)

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return which libraries change and are gone, and which are of another CUDA major: no name tells that."""
        yield from super().effects(change, plan, probe)
        if change.removed:
            yield f"programs that use the removed {', '.join(change.removed)} no longer find {self.label} for that CUDA"
        for package in change.packages:
            old, new = (versions.cuda_suffix(version or "") for version in (package.installed, package.planned))
            if old and new and versions.major(old) != versions.major(new):
                yield f"{package.name} changes from the build for CUDA {old} to that for CUDA {new}"


class Cudnn(_Part):
    """cuDNN on a host."""

    record, role, library = CudnnComponent, "cudnn", _CUDNN


class Nccl(_Part):
    """NCCL on a host."""

    record, role, library = NcclComponent, "nccl", _NCCL
