"""List the drivers that can be installed and that a request allows, each with the problems that it has on the host.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Branch,
    Catalog,
    DistroDriver,
    DriverPackages,
    DriverSets,
    FirstDriver,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import driver_sets, prebuilt
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Candidate
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

PROBLEMS = {
    "gpu-dropped-by-driver": "the branch no longer supports a GPU; or the open kernel modules before Turing",
    "gpu-too-new-for-driver": "the branch is older than a GPU; or the proprietary kernel modules from Blackwell on",
}


# What a preference takes away from a branch, by its type; an unmaintained branch loses 1.
_BY_TYPE = {"PB": 0, "LTSB": 0, "NFB": 2}
_UNKNOWN_TYPE = 3


def facts_of(version: str, branch: Branch | None, source: str) -> dict[str, str]:
    """Return the facts of a driver. source: `nvidia`, `distro`, or empty for one that is kept."""
    found = {"driver.version": version, "driver.source": source}
    if branch is not None:
        tier = _BY_TYPE.get(branch.type, _UNKNOWN_TYPE) or int(not branch.maintained)
        found |= {"driver.branch": branch.branch, "driver.native_cuda": branch.native_cuda, "driver.tier": str(tier)}
    return found


def _candidate(branch: Branch, component: DriverComponent, problems: Iterable[Problem]) -> Candidate:
    facts = facts_of(component.version, branch, component.source)
    if component.source == "distro":
        facts["driver.stack"] = "-server" if any("-server" in package.name for package in component.packages) else ""
    return Candidate("install", facts, component, tuple(problems))


def driver_candidates(context: ResolveContext) -> list[Candidate]:
    """Return the drivers that the request allows: those of the preferred source first, of each source newest first."""
    key = _reduced(context)
    candidates: list[Candidate] = []
    is_prebuilt = prebuilt.source(context) == prebuilt.PREBUILT
    for source in ("distro",) if is_prebuilt else sources(context.request["driver_source"]):
        candidates += _newest_first(key, source)
    if context.request["driver"] == "auto":
        return candidates
    return [c for c in candidates if versions.has_prefix(_full_version(context, c), context.request["driver"])]


@cached
def _newest_first(context: ResolveContext, source: str) -> list[Candidate]:
    found = _nvidia_drivers(context) if source == "nvidia" else _distro_drivers(context)
    return sorted(found, key=lambda candidate: versions.key(_version(candidate)), reverse=True)


def _version(candidate: Candidate) -> str:
    return candidate.facts["driver.version"]


def branch_of_version(catalog: Catalog, version: str) -> Branch | None:
    """Return the branch that a version is of; None where the catalog does not have it."""
    return next((b for b in catalog.driver.branches if versions.has_prefix(version, b.branch)), None)


def branch_of(catalog: Catalog, name: str) -> Branch:
    """Return a branch of the catalog."""
    return next(branch for branch in catalog.driver.branches if branch.branch == name)


def _branch(context: ResolveContext, candidate: Candidate) -> Branch:
    return branch_of(context.catalog, candidate.facts["driver.branch"])


def _full_version(context: ResolveContext, candidate: Candidate) -> str:
    """Return a candidate's version; of an archive's driver the newest that the catalog has for it, else its branch."""
    if candidate.facts["driver.source"] == "distro":
        return archived_version(context, _branch(context, candidate)) or _version(candidate)
    return _version(candidate)


def listed_version(context: ResolveContext, branch: Branch) -> str | None:
    """Return the version of a branch that apt would take from the distribution's own archive, where apt was asked."""
    profile = driver_sets.profile(context).name
    rules = [rule for rule in context.distro.distro_drivers if rule.branch == branch.branch]
    names = {name for rule in rules for flavour in branch.kernel_modules for name in rule.of(profile, flavour)}
    found = [versions.upstream(version) for name, version in context.host.archive.items() if name in names]
    # A helper has a version of its own.
    return max((v for v in found if versions.has_prefix(v, branch.branch)), key=versions.key, default=None)


def archived_version(context: ResolveContext, branch: Branch) -> str | None:
    """Return the version of a branch in the distribution's own archive: by apt, else the newest of the catalog."""
    entry = next((d.version for d in context.distro.distro_drivers if d.branch == branch.branch), None)
    if known := listed_version(context, branch) or entry:
        return known
    found = [v.version for v in branch.versions if context.distro.family in v.archives]
    return max(found, key=versions.key, default=None)


def _reduced(context: ResolveContext) -> ResolveContext:
    source = prebuilt.source(context)
    kernels = ["kernel", "next_kernel", *(["kernels"] if source == prebuilt.PREBUILT else [])]
    host = ["distribution_release", "offers", "archive", "repository_url", *kernels]
    reduced = context.reduced(host=host, request=("driver_kernel_modules", "driver_profile", "driver_module_source"))
    profile = driver_sets.profile(context).name  # the same for most hosts of a fleet, whatever it depends on
    request = reduced.request.but(driver_profile=profile, driver_module_source=source)
    return dataclasses.replace(reduced, request=request)


def known_drivers(context: ResolveContext) -> list[str]:
    """Return every driver version that the catalog or the repository knows, and the branches of the archive."""
    found = [v.version for b in context.catalog.driver.branches for v in b.versions]
    return (
        found
        + [_version(c) for c in _nvidia_drivers(_reduced(context))]
        + [d.branch for d in context.distro.distro_drivers]
    )


def published(catalog: Catalog) -> list[str]:
    """Return the versions of the catalog; of a branch without any, the branch."""
    return [name for b in catalog.driver.branches for name in [b.branch, *(known.version for known in b.versions)]]


def is_for_production(catalog: Catalog, branch: str) -> bool:
    """Return whether a branch is a production or long-term support branch, at its end of life or not."""
    return not _BY_TYPE.get(branch_of(catalog, branch).type, _UNKNOWN_TYPE)


@cached
def _nvidia_drivers(context: ResolveContext) -> list[Candidate]:
    candidates = []
    for branch in context.catalog.driver.branches:
        rule = _package_rule(context, branch)
        if rule is None:
            continue
        found = {v.version for v in branch.versions if "nvidia" in v.archives}
        profile = driver_sets.profile(context).name
        # Not of the modules that a branch does not have: an empty metapackage has their name and a version.
        for name in (name for flavour in branch.kernel_modules for name in rule.of(profile, flavour)):
            found |= {versions.upstream(v) for v in offered(context, name.format(branch=branch.branch))}
        candidates += [
            _nvidia_driver(context, branch, rule, version)
            for version in sorted(found, key=versions.key)
            if versions.has_prefix(version, branch.branch)
        ]
    return [_with_kernel_problem(context, candidate, candidates) for candidate in candidates]


def _with_kernel_problem(context: ResolveContext, candidate: Candidate, others: list[Candidate]) -> Candidate:
    """Return a driver of NVIDIA's with the problem that its module does not build, which names one that does."""
    version = _version(candidate)
    if known_bad.builds(context, version, "nvidia"):
        return candidate

    def order(other: Candidate) -> tuple[bool, bool, int, versions.Key]:
        distance = versions.major(_version(other)) - versions.major(version)
        lasts = distance == 0 or _branch(context, other).maintained
        return not other.problems, lasts, -abs(distance), versions.key(_version(other))

    fitting = [
        other
        for other in others
        if {problem.code for problem in other.problems} <= {"not-in-repository"}
        and known_bad.builds(context, _version(other), "nvidia")
    ]
    instead = f"driver {_version(max(fitting, key=order))}" if fitting else None
    found = known_bad.driver_problems(context, version, "nvidia", instead)
    return dataclasses.replace(candidate, problems=(*candidate.problems, *found))


def _package_rule(context: ResolveContext, branch: Branch) -> DriverPackages | None:
    number = int(branch.branch)
    for rule in context.catalog.driver.packages:
        if (
            rule.family == context.distro.family
            and int(rule.first_branch) <= number
            and (rule.last_branch is None or number <= int(rule.last_branch))
        ):
            return rule
    return None


def _nvidia_driver(context: ResolveContext, branch: Branch, rule: DriverPackages, version: str) -> Candidate:
    profile = driver_sets.profile(context).name
    flavour, problems = _flavour(context, branch, version, rule, context.repository_name)
    names = [name.format(branch=branch.branch) for name in rule.of(profile, flavour)]
    if context.host.offers is None:
        packages = [Package(name, rule.package_version(version, context.distro.dist)) for name in names]
        if not in_nvidia_repository(context, branch.branch):
            packages = []
            exist = [b.branch for b in context.catalog.driver.branches if in_nvidia_repository(context, b.branch)]
            problems.append(not_in_repository(context, f"driver branch {branch.branch}", (), exist, "driver"))
    else:
        found = {name: offered_version(context, name, version) for name in names}
        packages = [Package(name, v) for name, v in found.items() if v]
        missing = [name for name, v in found.items() if not v]
        if missing:
            exist = [versions.upstream(v) for name in names for v in offered(context, name)]
            problems.append(not_in_repository(context, f"driver {version}", missing, exist, "driver"))
    component = DriverComponent(
        version=version,
        branch=branch.branch,
        kernel_modules=flavour,
        source="nvidia",
        packages=tuple(packages),
        pinning_packages=_pinning(context, branch),
        apt_components=(),
        profile=profile,
        security_floor=known_bad.security_floor(context, branch.branch),
        module_stream=_stream(context, branch, flavour),
        repositories=_of_architecture(context, context.distro.dkms_repositories) or None,
    )
    problems = [*gpu_driver_problems(context, branch, version, flavour), *problems]
    return _candidate(branch, component, problems)


def in_nvidia_repository(context: ResolveContext, branch: str) -> bool:
    """Return whether NVIDIA's repository for the distribution release has a branch, according to the catalog."""
    limits = context.distro.nvidia_branches
    if any(int(branch) < int(own.first_branch) for own in context.distro.nvidia_limits):
        return False
    if limits is None:
        return True
    return (limits.first is None or int(branch) >= int(limits.first)) and (
        limits.last is None or int(branch) <= int(limits.last)
    )


def _stream(context: ResolveContext, branch: Branch, flavour: str) -> str | None:
    """Return the module stream of a branch in NVIDIA's repository; None where that has none."""
    stream = context.distro.nvidia_repository.streams.get(flavour)
    return stream.format(branch=branch.branch) if stream else None


def _of_architecture(context: ResolveContext, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.format(architecture=context.host.architecture) for name in names)


def _has_pinning(context: ResolveContext, branch: str) -> bool:
    pinning = context.catalog.driver.pinning
    return context.distro.family in pinning.families and int(branch) >= int(pinning.first_branch)


def _pinning(context: ResolveContext, branch: Branch) -> tuple[Package, ...]:
    """Return the branch's pinning package; without a repository its version is unknown: it has its own numbering."""
    pinning = context.catalog.driver.pinning
    if not _has_pinning(context, branch.branch):
        return ()
    name = pinning.package.format(branch=branch.branch)
    return (Package(name),) if context.host.offers is None else _offered_pin(context, name)


def _offered_pin(context: ResolveContext, name: str) -> tuple[Package, ...]:
    found = offered(context, name)
    return (Package(name, found[0]),) if found else ()


def exact_pinning(context: ResolveContext, component: DriverComponent) -> tuple[Package, ...]:
    """Return the pinning package of a driver: of its full version where that was requested, or no other is offered.

    NVIDIA's metapackages depend on `>=` their version, and a branch's pin allows every patch of the branch. What stays
    keeps its pin.
    """
    pinning = context.catalog.driver.pinning
    if component.source != "nvidia" or not _has_pinning(context, component.branch):
        return component.pinning_packages
    if "driver" in context.host.keeping:
        kept = context.host.present.verified.components.get("driver")
        return kept.pinning_packages if kept else component.pinning_packages
    if component.pinning_packages and context.request["driver"] != component.version:
        return component.pinning_packages
    return _offered_pin(context, pinning.package.format(branch=component.version)) or component.pinning_packages


@cached
def _distro_drivers(context: ResolveContext) -> list[Candidate]:
    branches = {b.branch: b for b in context.catalog.driver.branches}
    entries = context.distro.distro_drivers
    is_prebuilt = prebuilt.source(context) == prebuilt.PREBUILT
    entries = tuple(entry for entry in entries if (entry.prebuilt or entry.signed if is_prebuilt else not entry.signed))
    return [_distro_driver(context, branches[entry.branch], entry) for entry in entries]


def _distro_driver(context: ResolveContext, branch: Branch, entry: DistroDriver) -> Candidate:
    profile = driver_sets.profile(context).name
    version = archived_version(context, branch) or branch.branch
    flavour, problems = _flavour(context, branch, version, entry, context.archive_name)
    packages, modules = entry.of(profile, flavour), prebuilt.Modules()
    source = prebuilt.source(context)
    if entry.signed:
        modules = prebuilt.Modules(metas=entry.signed, problems=prebuilt.too_early(context, entry))
    elif source == prebuilt.PREBUILT and entry.prebuilt:
        packages = prebuilt.user_space(context, packages, entry.prebuilt, flavour)
        modules = prebuilt.modules(context, entry.prebuilt, flavour)
    component = DriverComponent(
        version=entry.branch,
        branch=entry.branch,
        kernel_modules=flavour,
        source="distro",
        packages=tuple(map(Package, (*packages, *modules.exact))),
        pinning_packages=(),
        apt_components=entry.apt_components,
        profile=profile,
        module_source=source,
        module_metas=modules.metas,
        repositories=_of_architecture(context, entry.repositories) or None,
        security_floor=known_bad.security_floor(context, branch.branch),
    )
    problems = [*gpu_driver_problems(context, branch, version, flavour), *problems, *modules.problems]
    problems += known_bad.driver_problems(context, version, "distro")
    return _candidate(branch, component, problems)


def _flavour(
    context: ResolveContext, branch: Branch, version: str, packages: DriverSets, archive: str
) -> tuple[str, list[Problem]]:
    """Return the kernel modules to install, with the problems where no flavour drives all GPUs of the host.

    `auto` takes the first flavour of the branch that all GPUs accept.
    """
    accepted, asked = accepted_modules(context.gpus), context.request["driver_kernel_modules"]
    shipped = [f for f in branch.kernel_modules if packages.of(driver_sets.profile(context).name, f)]
    allowed = [f for f in shipped if asked in ("auto", f)]
    fitting = [flavour for flavour in allowed if flavour in accepted]
    for flavour in fitting:
        if all(knows(context, version, gpu, flavour) for gpu in context.gpu_kinds):
            return flavour, []
    if fitting:
        return fitting[0], []  # gpu_driver_problems names the GPUs that this version does not know
    fallback = (shipped or branch.kernel_modules)[0]
    if not accepted:
        return fallback, [mixed_modules_problem(context)]
    if asked not in ("auto", *accepted):
        return fallback, [unfit_modules(context, asked)]
    if asked != "auto":
        return fallback, [_missing_modules(context, branch, shipped, archive)]
    needed = min(accepted)
    affected = ", ".join(gpu_label(g) for g in context.gpu_kinds if g.kernel_modules == needed)
    return fallback, [
        Problem(
            _gpu_code(needed),
            f"driver branch {branch.branch} has no {needed} kernel modules here, and {affected} requires them",
            "set gpu_stack_driver or gpu_stack_driver_source to another branch or source, or leave both at auto",
        )
    ]


def _gpu_code(needed: str) -> str:
    """Return the code for GPUs that need one flavour: the proprietary one for old GPUs, the open one for the newest."""
    return "gpu-dropped-by-driver" if needed == "proprietary" else "gpu-too-new-for-driver"


def unfit_modules(context: ResolveContext, asked: str) -> Problem:
    """Return the problem of requested kernel modules that do not drive a GPU of the host."""
    needed = "proprietary" if asked == "open" else "open"
    affected = ", ".join(gpu_label(g) for g in context.gpu_kinds if g.kernel_modules == needed)
    why = "they need a Turing GPU or a newer one" if asked == "open" else "from Blackwell on only the open ones work"
    return Problem(
        _gpu_code(needed),
        f"the {asked} kernel modules do not drive {affected}: {why}",
        "leave gpu_stack_driver_kernel_modules at auto",
    )


def _missing_modules(context: ResolveContext, branch: Branch, shipped: list[str], archive: str) -> Problem:
    """Return the problem of requested kernel modules that a branch does not have, or an archive does not offer."""
    asked = context.request["driver_kernel_modules"]
    remedy = "leave gpu_stack_driver_kernel_modules at auto, or set gpu_stack_driver to another branch"
    if asked not in branch.kernel_modules:
        has = " and ".join(branch.kernel_modules)
        message = f"driver branch {branch.branch} has no {asked} kernel modules, only {has} ones"
        return Problem("unknown-version", message, remedy)
    has = " and ".join(shipped) or "none"
    message = f"{archive} does not offer driver branch {branch.branch} with the {asked} kernel modules; it offers {has}"
    return Problem("not-in-repository", message, remedy)


def accepted_modules(gpus: Iterable[Gpu]) -> set[str]:
    """Return the kernel modules, `open` and `proprietary`, that all these GPUs accept; empty where they differ."""
    accepted = {"open", "proprietary"}
    for gpu in gpus:
        accepted &= {"open", "proprietary"} if gpu.kernel_modules == "either" else {gpu.kernel_modules}
    return accepted


def mixed_modules_problem(context: ResolveContext) -> Problem:
    """Return the problem of a host with GPUs that need different kernel modules."""
    need = {
        flavour: ", ".join(gpu_label(g) for g in context.gpu_kinds if g.kernel_modules == flavour)
        for flavour in ("open", "proprietary")
    }
    return Problem(
        "mixed-gpus-conflict",
        f"{need['open']} works only with the open kernel modules, {need['proprietary']} only with the proprietary "
        "ones; a host loads one flavour",
        "move the older or the newer GPUs to another host",
    )


def knows(context: ResolveContext, version: str, gpu: Gpu, flavour: str) -> bool:
    """Return whether a driver of a branch that supports a GPU's architecture knows this GPU.

    version: a release, or a branch whose releases all count.
    """
    rule = _first_drivers(context.catalog).get(gpu.pci_id.removeprefix("10de:"))
    if rule is None or rule.modules not in (None, flavour):
        return True
    branch = versions.major(version)
    if branch > max(versions.major(first) for first in rule.drivers):
        return True
    return any(
        versions.major(first) == branch and ("." not in first or versions.key(version) >= versions.key(first))
        for first in rule.drivers
    )


@functools.lru_cache(maxsize=8)
def _first_drivers(catalog: Catalog) -> dict[str, FirstDriver]:
    rules = catalog.gpu.first_drivers.gpus if catalog.gpu.first_drivers else ()
    return {device: rule for rule in rules for device in rule.devices}


def branch_supports(branch: Branch, gpu: Gpu) -> bool:
    """Return whether a driver branch supports a GPU."""
    if gpu.last_driver_branch and int(branch.branch) > int(gpu.last_driver_branch):
        return False
    return gpu.architecture in branch.architectures and gpu.compute_capability not in branch.without


def gpu_problems(context: ResolveContext, version: str, flavour: str) -> list[Problem]:
    """Return a problem for each GPU that an installed driver does not drive; none where its branch is not known."""
    branch = branch_of_version(context.catalog, version)
    return gpu_driver_problems(context, branch, version, flavour) if branch else []


def gpu_driver_problems(context: ResolveContext, branch: Branch, version: str, flavour: str) -> list[Problem]:
    """Return a problem for each kind of GPU that a driver does not support."""
    problems = []
    for gpu in context.gpu_kinds:
        if branch_supports(branch, gpu):
            if not knows(context, version, gpu, flavour):
                problems.append(_unlisted(context, version, gpu, flavour))
            continue
        supporting = supporting_branches(context, gpu)
        too_new = bool(supporting) and int(branch.branch) < min(int(b) for b in supporting)
        why = "is older than this GPU" if too_new else f"no longer supports {gpu.architecture} GPUs"
        supported = "no branch of the catalog supports it"
        if supporting:
            several = len(supporting) > 1
            supported = (
                f"{span('branches', supporting)} support it" if several else f"branch {supporting[0]} supports it"
            )
        problems.append(
            Problem(
                "gpu-too-new-for-driver" if too_new else "gpu-dropped-by-driver",
                f"driver branch {branch.branch} does not support {gpu_label(gpu)}: it {why}; {supported}",
                "set gpu_stack_driver to one of those branches, or leave it at auto"
                if supporting
                else "remove the GPU",
            )
        )
    return problems


def _unlisted(context: ResolveContext, version: str, gpu: Gpu, flavour: str) -> Problem:
    """Return the problem of a driver that is older than a GPU of an architecture that it supports."""
    rule = _first_drivers(context.catalog)[gpu.pci_id.removeprefix("10de:")]
    modules = f" with the {flavour} kernel modules" if rule.modules else ""
    return Problem(
        "gpu-too-new-for-driver",
        f"driver {version} does not know {gpu_label(gpu)}{modules}: drivers {', '.join(rule.drivers)} and newer "
        f"ones of their branches do, and every branch after {versions.major(rule.drivers[-1])}",
        "set gpu_stack_driver to one of those, or leave it at auto",
    )


def supporting_branches(context: ResolveContext, gpu: Gpu) -> list[str]:
    """Return the driver branches of the catalog that support a GPU, in at least one version."""
    return [
        b.branch
        for b in context.catalog.driver.branches
        if branch_supports(b, gpu) and any(knows(context, v.version, gpu, gpu.kernel_modules) for v in b.versions)
    ]
