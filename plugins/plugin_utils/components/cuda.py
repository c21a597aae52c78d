"""The choice of a CUDA toolkit: those that a request allows, each with its problems on the host, and what they need.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import CudaComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, DistroCuda, Toolkit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import libraries
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import (
    ComponentChange,
    Packages,
    Removal,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import choice as driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
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
    Remedies,
    Rule,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
    sources,
    span,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Kept

PROBLEMS = {
    "gpu-dropped-by-cuda": "CUDA does not compile for a GPU of the host, or PyTorch has no code for it",
    "host-toolchain-mismatch": "the CUDA compiler does not work with the host's gcc or C library",
}
WARNINGS = {
    "minor-version-compatibility": "the driver is older than the toolkit, which runs without PTX",
}
ABSENT = {"cuda.version": NONE}
_NOT_NATIVE = "minor-version-compatibility"


def cuda_candidates(context: ResolveContext) -> list[Candidate]:
    """Return the toolkits that the request allows: those of the preferred source first, of each source newest first."""
    key = _reduced(context)
    candidates: list[Candidate] = []
    for source in sources(context.request["cuda_source"]):
        candidates += _newest_first(key, source)
    if context.request["cuda"] == "auto":
        return candidates
    return [c for c in candidates if versions.has_prefix(_release(c), context.request["cuda"])]


@cached
def _newest_first(context: ResolveContext, source: str) -> list[Candidate]:
    found = _nvidia_toolkits(context) if source == "nvidia" else _distro_toolkits(context)
    return sorted(found, key=lambda candidate: versions.key(_release(candidate)), reverse=True)


def _candidates(context: ResolveContext, _facts: Facts) -> list[Candidate]:
    if context.request["cuda"] == "none":
        return [Candidate("absent", ABSENT, because=context.unmanaged("cuda"))]
    return cuda_candidates(context)


def published(catalog: Catalog) -> list[str]:
    """Return the series and the releases of the catalog."""
    return [name for t in catalog.cuda.toolkits for name in [t.version, *(release.version for release in t.releases)]]


def _release(candidate: Candidate) -> str:
    return candidate.facts["cuda.release"]


def _reduced(context: ResolveContext) -> ResolveContext:
    return context.reduced(host=("offers", "gcc", "glibc", "repository_url"))


def known_toolkits(context: ResolveContext) -> list[str]:
    """Return every toolkit release that the catalog, the repository or the archive knows."""
    found = [r.version for t in context.catalog.cuda.toolkits for r in t.releases]
    return (
        found
        + [_release(c) for c in _nvidia_toolkits(_reduced(context))]
        + [d.release for d in context.distro.distro_cuda]
    )


@cached
def _nvidia_toolkits(context: ResolveContext) -> list[Candidate]:
    unfit = {t.version: tuple(_gpu_toolkit_problems(context, t)) for t in context.catalog.cuda.toolkits}
    return [
        dataclasses.replace(c, problems=(*unfit[c.facts["cuda.version"]], *c.problems))
        for c in _published_toolkits(context.with_gpus(()))
    ]


@cached
def _published_toolkits(context: ResolveContext) -> list[Candidate]:
    """Return the toolkits of NVIDIA's repository, without what GPUs have to do with."""
    candidates = []
    for toolkit in context.catalog.cuda.toolkits:
        package = _toolkit_package(context, toolkit)
        found = {r.version for r in toolkit.releases} | {versions.upstream(v) for v in offered(context, package)}
        candidates += [
            _nvidia_toolkit(context, toolkit, package, release)
            for release in found
            if versions.has_prefix(release, toolkit.version)
        ]
    return candidates


def _toolkit_package(context: ResolveContext, toolkit: Toolkit) -> str:
    number = toolkit.version.split(".")
    return context.catalog.cuda.names.toolkit.format(major=number[0], minor=number[1])


def _nvidia_toolkit(context: ResolveContext, toolkit: Toolkit, package: str, release: str) -> Candidate:
    names = context.catalog.cuda.names
    compilers, problems = _toolchain(context, toolkit)
    found: str | None = f"{release}-{names.revision}"
    if context.host.offers is not None:
        found = offered_version(context, package, release)
    elif not in_nvidia_repository(context, toolkit.version):
        found = None
    if found is None:
        exist = _offered_toolkits(context)
        problems.append(not_in_repository(context, f"CUDA {release}", [package], exist, "cuda"))
    number = toolkit.version.split(".")
    component = CudaComponent(
        version=toolkit.version,
        release=release,
        source="nvidia",
        home=names.home.format(major=number[0], minor=number[1]),
        packages=(Package(package, found),) if found else (),
        host_compilers=compilers,
        apt_components=(),
    )
    return Candidate("install", _facts(context, toolkit, component), component, tuple(problems))


@cached
def _offered_toolkits(context: ResolveContext) -> list[str]:
    """Return the toolkits that NVIDIA's repository offers, according to the catalog where it was not read."""
    known = context.catalog.cuda.toolkits
    if context.host.offers is None:
        return [t.version for t in known if t.releases and in_nvidia_repository(context, t.version)]
    return [versions.upstream(v) for t in known for v in offered(context, _toolkit_package(context, t))]


def in_nvidia_repository(context: ResolveContext, cuda: str) -> bool:
    """Return whether NVIDIA's repository for the distribution release has a CUDA release, according to the catalog."""
    repository = context.distro.nvidia_repository
    firsts = (repository.first_cuda, *(own.first_cuda for own in context.distro.nvidia_limits))
    is_late_enough = all(versions.key(cuda) >= versions.key(first) for first in firsts)
    return is_late_enough and (repository.last_cuda is None or versions.at_most(cuda, repository.last_cuda))


def _facts(
    context: ResolveContext, toolkit: Toolkit, component: CudaComponent, depends_on: str | None = None
) -> dict[str, str]:
    """Return the facts of a toolkit. depends_on: the branch whose libcuda a distribution's packages depend on."""
    min_driver = _min_driver(toolkit, component.release)
    # Before CUDA 11 there is no minor version compatibility: each toolkit needs the driver it was released with.
    major = versions.major(toolkit.version)
    known = {
        "cuda.version": toolkit.version,
        "cuda.release": component.release,
        "cuda.source": component.source,
        "cuda.min_driver": min_driver,
        "cuda.needs_driver": depends_on or (min_driver if major < 11 else minimum_driver(context, major)),
        "cuda.depends_on_driver": depends_on,
    }
    return {name: value for name, value in known.items() if value is not None}


def minimum_driver(context: ResolveContext, cuda_major: int) -> str | None:
    """Return the oldest driver that runs programs of a CUDA major; None without minor version compatibility."""
    return next(
        (m.min_driver for m in context.catalog.cuda.minor_version_compatibility if m.cuda_major == cuda_major), None
    )


def _min_driver(toolkit: Toolkit, release: str) -> str | None:
    """Return the driver that a release was published with; if none is recorded, the newest one of its series."""
    recorded = {r.version: r.min_driver for r in toolkit.releases if r.min_driver}
    if release in recorded:
        return recorded[release]
    return max(recorded.values(), key=versions.key, default=None)


@cached
def _distro_toolkits(context: ResolveContext) -> list[Candidate]:
    toolkits = {t.version: t for t in context.catalog.cuda.toolkits}
    return [
        _distro_toolkit(context, toolkits[entry.version], entry)
        for entry in context.distro.distro_cuda
        if entry.version in toolkits
    ]


def _distro_toolkit(context: ResolveContext, toolkit: Toolkit, entry: DistroCuda) -> Candidate:
    # The distribution ships the toolkit with a compiler and a C library that fit, so neither is checked.
    component = CudaComponent(
        version=entry.version,
        release=entry.release,
        source="distro",
        home=entry.home,
        packages=tuple(map(Package, entry.packages)),
        host_compilers=entry.host_compilers,
        apt_components=entry.apt_components,
    )
    problems = tuple(_gpu_toolkit_problems(context, toolkit))
    return Candidate("install", _facts(context, toolkit, component, entry.min_driver), component, problems)


def _gpu_toolkit_problems(context: ResolveContext, toolkit: Toolkit) -> list[Problem]:
    problems = []
    for gpu in context.gpu_kinds:
        if gpu.compute_capability in toolkit.compute_capabilities:
            continue
        supporting = supporting_toolkits(context, gpu)
        known = toolkit.compute_capabilities
        supported = f"{span('CUDA', supporting)} can" if supporting else "no CUDA of the catalog can"
        problems.append(
            Problem(
                "gpu-dropped-by-cuda",
                f"CUDA {toolkit.version} cannot compile for {gpu_label(gpu)}: it covers compute capability "
                f"{known[0]} to {known[-1]}; {supported}",
                "set gpu_stack_cuda to one of those, or leave it at auto"
                if supporting
                else "remove the GPU, or set gpu_stack_cuda=none",
            )
        )
    return problems


def supporting_toolkits(context: ResolveContext, gpu: Gpu) -> list[str]:
    """Return the CUDA releases of the catalog that compile for a GPU."""
    return [t.version for t in context.catalog.cuda.toolkits if gpu.compute_capability in t.compute_capabilities]


def _toolchain(context: ResolveContext, toolkit: Toolkit) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the packages of a compiler that nvcc can use, with the problems of the host's compiler and C library."""
    problems = []
    glibc = context.host.glibc or context.distro.glibc
    if not _reads(toolkit, glibc):
        newer = [t.version for t in context.catalog.cuda.toolkits if _reads(t, glibc)]
        hint = f"; CUDA {min(newer, key=versions.key)} and newer can" if newer else ""
        problems.append(
            Problem(
                "host-toolchain-mismatch",
                f"the compiler of CUDA {toolkit.version} cannot read the headers of this host's glibc {glibc}: "
                f"it works with glibc {toolkit.max_glibc} and older{hint}",
                "set gpu_stack_cuda to a newer release, or leave it at auto"
                if newer
                else "use an older distribution release",
            )
        )
    default = context.host.gcc or context.distro.gcc.default
    if default <= toolkit.max_gcc:
        return context.distro.gcc.names, problems
    older = [gcc for gcc in context.distro.gcc.available if gcc <= toolkit.max_gcc]
    if older:
        return context.distro.gcc.of_major(max(older)), problems
    problems.append(
        Problem(
            "host-toolchain-mismatch",
            f"the compiler of CUDA {toolkit.version} works with gcc up to {toolkit.max_gcc}; the host has {default} "
            f"and {context.distro.id} offers {', '.join(str(g) for g in context.distro.gcc.available)}",
            "set gpu_stack_cuda to a newer release, or leave it at auto",
        )
    )
    return (), problems


def _reads(toolkit: Toolkit, glibc: str) -> bool:
    """Return whether the compiler of a toolkit can read the headers of a C library."""
    return toolkit.max_glibc is None or versions.at_most(glibc, toolkit.max_glibc)


# What it needs, and what is preferred ---------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> tuple[Rule, ...]:
    def problems(facts: Facts) -> list[Problem]:
        whose = f"{context.distro.id}'s own " if "cuda.depends_on_driver" in facts else ""
        what = f"{whose}CUDA {facts['cuda.release']}"
        return [driver.too_old(context, facts, facts["cuda.needs_driver"], what)]

    def is_met(facts: Facts) -> bool:
        return driver.reaches(facts["driver.version"], facts["cuda.needs_driver"])

    return (Rule(("cuda.needs_driver", "driver.version"), is_met, problems),)


def _preferences(context: ResolveContext) -> tuple[Preference, ...]:
    """Return those of driver and toolkit together.

    A toolkit for the requested libraries comes first, NVIDIA's repository before the archive, then the better branch,
    the newest toolkit, the newest driver.
    """
    own = f"the toolkit of {context.distro.id}'s own archive"
    nvidias = Preference("source", lambda facts: facts.get("cuda.source") == "nvidia", lambda _facts: own, "cuda")
    newest = Preference(
        "cuda",
        lambda facts: versions.key(facts.get("cuda.release", "")),
        lambda facts: f"CUDA {facts.get('cuda.release', 'of none')}",
        "cuda",
    )
    of_driver = driver.preferences(context)
    return (*libraries.preferences(context), of_driver[0], nvidias, of_driver[1], newest, of_driver[2])


# Packages on hold -----------------------------------------------------------------------------------------------------


def series_of(catalog: Catalog, name: str) -> str | None:
    """Return the CUDA release whose toolkit a package belongs to."""
    for toolkit in catalog.cuda.toolkits:
        major, minor = toolkit.version.split(".")[:2]
        if re.fullmatch(catalog.cuda.names.series.format(major=major, minor=minor), name):
            return toolkit.version
    return None


def _held(catalog: Catalog, _host: Host, held: Mapping[str, str]) -> dict[str, str]:
    own = catalog.packages.distro_cuda
    return {name: version for name, version in held.items() if series_of(catalog, name) or name == own}


def _around_holds(context: ResolveContext, found: Sequence[Evaluated], _facts: Facts) -> BesideHolds:
    """Return the toolkits that leave the packages on hold as they are.

    At `auto` those are toolkits that are on hold themselves, or of the CUDA major that a library on hold is for.
    """
    candidates = [each for each in found if each.fits]
    if not candidates:
        return BesideHolds(found)
    catalog, there = context.catalog, holds.installed(context.host)
    held = _held(catalog, context.host, there)
    fitting = [each for each in candidates if holds.agrees(context, _packages(each))]
    deciding = [name for each in candidates for name in holds.disagreeing(context, _packages(each))]
    if context.request["cuda"] == "auto" and held:
        deciding = list(held)
        series = {series_of(catalog, name) for name in deciding}
        fitting = [each for each in fitting if _held_series(each) in series]
    elif context.request["cuda"] == "auto":
        majors = libraries.majors_on_hold(context, there)
        if majors:
            deciding += majors
            wanted = set(majors.values())
            fitting = [each for each in fitting if versions.major(each.facts["cuda.version"]) in wanted]
    if fitting:
        is_reason = held and context.request["cuda"] == "auto"
        return BesideHolds(fitting, because=holds.because(context.distro.words, held) if is_reason else "")
    listed = ", ".join(dict.fromkeys(f"CUDA {_release(each.candidate)}" for each in candidates[:4]))
    why = f"of the toolkits that this host can have ({listed}, ...) none keeps them"
    return BesideHolds((), holds.problem(context.distro.words, dict.fromkeys(deciding), why))


def _packages(each: Evaluated) -> tuple[Package, ...]:
    component: CudaComponent = each.candidate.component
    return component.packages


def _held_series(each: Evaluated) -> str | None:
    return each.facts["cuda.version"] if each.facts["cuda.source"] == "nvidia" else None


# Explanations ---------------------------------------------------------------------------------------------------------


def _explain(context: ResolveContext, _cuda: Candidate, facts: Facts, findings: Findings) -> None:
    release = facts["cuda.release"]
    findings.reason("cuda", release, "")
    if facts["cuda.source"] == "distro" and context.request["cuda_source"] == "auto":
        findings.warn(
            "source-fallback",
            f"CUDA {release} is from {context.distro.id}'s archive: {context.repository_name} offers none that fits",
        )
    if not driver.is_native(facts):
        findings.warn(
            "minor-version-compatibility",
            f"driver {facts['driver.version']} is older than CUDA {release}'s "
            f"own ({facts.get('cuda.min_driver', 'newer branch')}): programs run, PTX of this toolkit does not",
        )


def _alone(context: ResolveContext, gpu: Gpu) -> str:
    return span("CUDA", supporting_toolkits(context, gpu))


def _misfit(_catalog: Catalog, kept: Kept, plan: Plan) -> str | None:
    """Return why a requested toolkit would run without PTX beside what is kept, if it need not.

    It is to be used: the programs of one that is newer than its driver run without PTX.
    """
    asked = kept.asked[0]["cuda"]
    if asked in ("auto", "none") or {"driver", "cuda"} <= kept.names.keys():
        return None
    return None if kept.newest and _without_ptx(kept.newest) else _without_ptx(plan)


def _without_ptx(plan: Plan) -> str | None:
    return next((warning.message for warning in plan.warnings if warning.code == _NOT_NATIVE), None)


CHOICE = Choice(
    record=CudaComponent,
    candidates=_candidates,
    # Of a series the newest release serves everything that an older one for the same drivers does.
    alike=lambda facts: tuple(
        facts.get(f"cuda.{name}") for name in ("source", "version", "needs_driver", "min_driver")
    ),
    known=known_toolkits,
    published=published,
    rules=_rules,
    preferences=_preferences,
    absent=ABSENT,
    options={"cuda_source": "source"},
    explain=_explain,
    archive=lambda context: [toolkit.release for toolkit in context.distro.distro_cuda],
    lacks=lambda context: (
        "CUDA toolkit" if context.request["cuda"] != "none" and not context.catalog.cuda.toolkits else ""
    ),
    holds=Holds(held=_held, around=_around_holds),
    remedies=Remedies(leave_out=(("cuda",),)),
    keeping=Keeping(leading=True, misfit=_misfit),
    alone=_alone,
)


# On a host -----------------------------------------------------------------------------------------------------------


class Cuda(PackagedPart[CudaComponent]):
    """The CUDA toolkit, from NVIDIA's repository or the distribution's archive."""

    record = CudaComponent
    role = "cuda_toolkit"
    role_fields = ("home",)
    side_by_side = True
    has_steps = True

    def installed(self, planned: CudaComponent | None, probe: Probe, catalog: Catalog) -> str | None:
        """Return the version of the planned toolkit if it is there, by its package, else the newest of the others."""
        present = probe.present_packages
        for package in planned.packages if planned else ():
            if package.name in present:
                return versions.upstream(present[package.name].version)
        if planned and planned.version in _toolkits_on_host(probe):
            return planned.version
        releases = _installed_releases(probe, catalog)
        return releases[max(releases, key=versions.key)] if releases else None

    def all_installed(self, probe: Probe, catalog: Catalog) -> list[str]:
        """Return the release of each toolkit: that of /usr/local/cuda, then the newest first."""
        releases = _installed_releases(probe, catalog)
        order = sorted(releases, key=lambda series: (series == probe.cuda.default, versions.key(series)), reverse=True)
        return [releases[series] for series in order]

    def adopted(self, planned: CudaComponent, probe: Probe) -> CudaComponent | None:
        """Return the toolkit of packages, or the one of a `.run` installer, of which only the series is known."""
        if planned.source == "nvidia" and planned.version in {t.version for t in probe.runfile.toolkits}:
            return dataclasses.replace(planned, release=planned.version, packages=())
        return super().adopted(planned, probe)

    def directory(self, planned: CudaComponent) -> str:
        """Return where the archive's packages have the toolkit."""
        return "/usr/local" if planned.source == "nvidia" else "/usr"

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages of the oldest toolkits beyond the number to keep."""
        planned = self.planned(plan.components)
        return _removal(plan.request["keep_cuda"], planned, probe, catalog) if planned else Removal()

    def note(self, plan: Plan, probe: Probe, removal: Removal) -> str:
        """Return which toolkits are removed and kept."""
        planned = self.planned(plan.components)
        removed = removal.why.removeprefix("CUDA ").split(", CUDA ") if removal.why else []
        own = planned.version if planned else ""
        kept = [f"CUDA {version}" for version in _toolkits_on_host(probe) if version not in (own, *removed)]
        notes = [f"removes {removal.why}"] if removed else []
        return "; ".join([*notes, f"keeps {', '.join(kept)}"] if kept else notes)

    def removed(self, change: ComponentChange, removal: Removal) -> str:
        """Return the number of packages: a toolkit has dozens."""
        return f"{len(change.removed)} packages of {removal.why}"

    def details(self, planned: CudaComponent) -> str:
        """Return where /usr/local/cuda leads, or the archive."""
        return f"/usr/local/cuda -> {planned.version}" if planned.source == "nvidia" else "from the distribution"

    def entries(self, catalog: Catalog) -> Mapping[str, Toolkit]:
        """Return the toolkits by series."""
        return {toolkit.version: toolkit for toolkit in catalog.cuda.toolkits}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return where nvcc leads to afterwards, where that changes."""
        planned, default = self.planned(plan.components), probe.cuda.default
        if planned is None or planned.source != "nvidia":
            return
        if default and default != planned.version:
            yield f"/usr/local/cuda, and with it nvcc, changes from CUDA {default} to {planned.version}"
        elif not default and probe.cuda.distro:
            yield (
                f"nvcc changes from the distribution's CUDA {probe.cuda.distro} to CUDA {planned.version} in "
                "/usr/local/cuda"
            )


def _installed_releases(probe: Probe, catalog: Catalog) -> dict[str, str]:
    """Return the whole release of each toolkit by X.Y; where no package tells, that is all that is known."""
    return {**{version: version for version in _toolkits_on_host(probe)}, **_releases_on_host(probe, catalog)}


def _releases_on_host(probe: Probe, catalog: Catalog) -> dict[str, str]:
    """Return the whole release of each toolkit that NVIDIA's packages installed, by X.Y."""
    found = {name: _package_name(catalog).fullmatch(name) for name in probe.present_packages}
    return {
        ".".join(match.groups()): versions.upstream(probe.present_packages[name].version)
        for name, match in found.items()
        if match
    }


def _package_name(catalog: Catalog) -> re.Pattern[str]:
    """Return the name of a toolkit's package, with major and minor as groups."""
    name = re.escape(catalog.cuda.names.toolkit)
    return re.compile(name.replace(r"\{major\}", r"(\d+)").replace(r"\{minor\}", r"(\d+)"))


def _toolkits_on_host(probe: Probe) -> list[str]:
    distro = [probe.cuda.distro] if probe.cuda.distro else []
    return sorted(dict.fromkeys([*probe.cuda.installed, *distro]), key=versions.key)


# Removals -------------------------------------------------------------------------------------------------------


def _removal(keep: str, planned: CudaComponent, probe: Probe, catalog: Catalog) -> Removal:
    """Return the packages of the oldest toolkits beyond `keep` (`all` or a count), which includes the planned one.

    Only toolkits of NVIDIA's packages count.
    """
    if keep == "all":
        return Removal()
    present = native(probe)
    own = [planned.version] if planned.source == "nvidia" else []
    others = [version for version in _packaged(probe, present, catalog) if version not in own]
    removed = others[max(int(keep) - len(own), 0) :]
    packages = [name for version in removed for name in _of_series(version, present, catalog)]
    return Removal(
        ", ".join(f"CUDA {version}" for version in removed),
        tuple(sorted(packages)),
        tuple(_series_pattern(version, catalog) for version in removed),
        (catalog.cuda.names.metapackages,) if removed else (),
    )


def _packaged(probe: Probe, present: Packages, catalog: Catalog) -> list[str]:
    """Return the toolkits that dpkg installed in /usr/local, newest first."""
    from_runfile = {toolkit.version for toolkit in probe.runfile.toolkits}
    named = [match.groups() for match in map(_package_name(catalog).fullmatch, present) if match]
    found = {*probe.cuda.installed, *(".".join(number) for number in named)} - from_runfile
    packaged = [version for version in found if _of_series(version, present, catalog)]
    return sorted(packaged, key=versions.key, reverse=True)


def _of_series(version: str, present: Packages, catalog: Catalog) -> list[str]:
    pattern = _series_pattern(version, catalog)
    return [name for name in present if re.fullmatch(pattern, name)]


def _series_pattern(version: str, catalog: Catalog) -> str:
    major, minor = version.split(".")[:2]
    return catalog.cuda.names.series.format(major=major, minor=minor)
