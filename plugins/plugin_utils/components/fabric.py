"""The choice of Fabric Manager, which sets up a host's NVSwitches: without it CUDA fails there (error 802).

It must have exactly the driver's version, since it compares itself with the loaded module; hence drivers without it are
no candidates on such a host. A host needs it for the NVSwitches on its PCI bus (HGX A100, H100, H200), and with NVLink
5 (HGX B200, B300) for the functions of a ConnectX that manage switches; not for a GPU that could have been on such a
board, such as that of a virtual machine, where it cannot start.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import FabricComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import FOR_GUESTS, Kernel, KernelRelease
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch, Catalog, ComponentFile
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange, Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.drivers import in_nvidia_repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.kernels import IMAGE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    Candidate,
    Choice,
    Facts,
    Rule,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    cached,
    not_in_repository,
    offered,
    offered_version,
)

NO_MODULE = "fabric-module-missing"
PROBLEMS = {
    "fabric-module-missing": "a kernel of the host lacks a module that NVSwitches of NVLink 5 need, and apt does not "
    "offer the package with it",
    "fabric-manager-missing": "the host has NVSwitches, and no Fabric Manager of exactly the driver's version is there",
}
WARNINGS = {
    "fabric-left-out": "the host has NVSwitches, and gpu_stack_fabric=none leaves out what CUDA needs there",
    "switches-not-described": "a host that is described by its GPUs alone may be a board with NVSwitches",
}


@dataclasses.dataclass(frozen=True)
class ArchivePackages:
    """Names in an archive for driver branches up to `last_branch`; fabric.yml explains the fields."""

    archive: str
    last_branch: str | None
    manager: str
    library: str
    telemetry: str | None
    revision: dict[str, str]
    stack: str
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Nvlink5:
    """What NVSwitches that are not on the PCI bus need besides; fabric.yml explains the fields."""

    packages: tuple[str, ...]
    distribution: tuple[str, ...]
    subnet_manager: str
    source: str


@dataclasses.dataclass(frozen=True)
class Board:
    """A board with NVSwitches, by the names and the number of its GPUs; fabric.yml explains the fields."""

    name: str
    gpus: str
    fewest: int
    pci: str
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FabricFile(ComponentFile):
    """fabric.yml."""

    name: ClassVar[str] = "fabric"
    packages: tuple[ArchivePackages, ...]
    replaced: str
    services: tuple[str, ...]
    boards: tuple[Board, ...]
    nvlink5: Nvlink5


# Candidates -----------------------------------------------------------------------------------------------------------


def switches(host: Host) -> str:
    """Return how messages name what needs a Fabric Manager on a host; empty where nothing does."""
    if host.nvswitches:
        ids = ", ".join(dict.fromkeys(host.nvswitches))
        return f"{'NVSwitches' if len(host.nvswitches) > 1 else 'an NVSwitch'} on the PCI bus ({ids})"
    return "NVSwitches of NVLink 5 behind a ConnectX" if host.switch_managers else ""


def _candidates(context: ResolveContext, _facts: Facts) -> Sequence[Candidate]:
    host, wanted = context.host, context.request["fabric"]
    if not host.unread and not switches(host):
        return [_without_switches(context, wanted)]
    if wanted == "none":
        return [Candidate("absent", because=context.unmanaged("fabric"))]
    if not host.unread and _lacks_driver(context):
        return [Candidate("absent", because="it needs a driver, and none is loaded or planned")]
    found = [*_builds(_reduced(context), is_nvlink5=_is_nvlink5(host)), *_present(context)]
    return [each for each in found if wanted == "auto" or versions.has_prefix(each.facts["fabric.version"], wanted)]


def _lacks_driver(context: ResolveContext) -> bool:
    return context.request["driver"] == "none" and context.host.loaded_driver is None


def _is_nvlink5(host: Host) -> bool:
    return bool(host.switch_managers) and not host.nvswitches


def _without_switches(context: ResolveContext, wanted: str) -> Candidate:
    if wanted in ("auto", "none"):
        return Candidate("absent", because=context.unmanaged("fabric") if wanted == "none" else "")
    return Candidate(
        "absent",
        problems=(
            Problem(
                "fabric-manager-missing",
                f"gpu_stack_fabric={wanted} is requested, and the host has no NVSwitch: Fabric Manager cannot start",
                "leave gpu_stack_fabric at auto",
            ),
        ),
    )


def _reduced(context: ResolveContext) -> ResolveContext:
    return context.reduced(host=("offers", "repository_url"))


@cached
def _builds(context: ResolveContext, is_nvlink5: bool) -> tuple[Candidate, ...]:
    """Return a build for each driver version that an archive has one for, newest first, NVIDIA's repository first."""
    file = FabricFile.of(context.catalog)
    found = []
    for branch in sorted(context.catalog.driver.branches, key=lambda branch: int(branch.branch), reverse=True):
        rule = _rule(file, "nvidia", context.distro.family, branch)
        if rule:
            newest_first = sorted(_versions(context, branch, rule), key=versions.key, reverse=True)
            found += [_of_nvidia(context, rule, branch, version, is_nvlink5) for version in newest_first]
    for driver in context.distro.distro_drivers:
        branch = next(b for b in context.catalog.driver.branches if b.branch == driver.branch)
        rule = _rule(file, context.distro.family, context.distro.family, branch)
        if rule and not (is_nvlink5 and rule.telemetry is None):
            names = (rule.manager, rule.library)
            packages = tuple(Package(name.format(branch=branch.branch)) for name in names)
            found.append(_candidate(file, branch.branch, "distro", packages, (), is_nvlink5, rule.stack))
    return tuple(found)


def _rule(file: FabricFile, archive: str, family: str, branch: Branch) -> ArchivePackages | None:
    """Return the row of a branch; those of NVIDIA's repositories are for the families that they have a revision for."""
    number = int(branch.branch)
    fitting = (row for row in file.packages if row.archive == archive and (archive == family or family in row.revision))
    return next((row for row in fitting if row.last_branch is None or number <= int(row.last_branch)), None)


def _versions(context: ResolveContext, branch: Branch, rule: ArchivePackages) -> set[str]:
    if context.host.offers is not None:
        found = {versions.upstream(v) for v in offered(context, rule.manager.format(branch=branch.branch))}
        return {version for version in found if versions.has_prefix(version, branch.branch)}
    if not in_nvidia_repository(context, branch.branch):
        return set()
    return {known.version for known in branch.versions if "nvidia" in known.archives}


def _of_nvidia(
    context: ResolveContext, rule: ArchivePackages, branch: Branch, version: str, is_nvlink5: bool
) -> Candidate:
    file = FabricFile.of(context.catalog)
    needed = [rule.manager, *([rule.telemetry] if is_nvlink5 and rule.telemetry else [])]
    names = {name.format(branch=branch.branch): name != rule.library for name in (*needed, rule.library)}
    calendar = file.nvlink5.packages if is_nvlink5 else ()
    if context.host.offers is None:
        revision = rule.revision[context.distro.family]
        packages = [*(Package(name, f"{version}-{revision}") for name in names), *map(Package, calendar)]
        return _candidate(file, version, "nvidia", tuple(packages), (), is_nvlink5)
    found = {name: offered_version(context, name, version) for name in names}
    found |= {name: next(iter(offered(context, name)), None) for name in calendar}
    missing = [name for name, at in found.items() if not at and names.get(name, True)]
    exist = [versions.upstream(v) for v in offered(context, rule.manager.format(branch=branch.branch))]
    problems = [not_in_repository(context, f"Fabric Manager {version}", missing, exist, "fabric")] if missing else []
    packages = [Package(name, at) for name, at in found.items() if at]
    return _candidate(file, version, "nvidia", tuple(packages), tuple(problems), is_nvlink5)


def _candidate(
    file: FabricFile,
    version: str,
    source: str,
    packages: tuple[Package, ...],
    problems: tuple[Problem, ...],
    is_nvlink5: bool,
    stack: str = "",
) -> Candidate:
    of_distribution = tuple(map(Package, file.nvlink5.distribution)) if is_nvlink5 else ()
    needed = (file.names.kernel_modules, file.nvlink5.subnet_manager) if is_nvlink5 else ()
    component = FabricComponent(version, source, (*packages, *of_distribution), file.services, *needed)
    facts = {"fabric.version": version, "fabric.source": source, "fabric.stack": stack}
    return Candidate("install", facts, component, problems)


def _present(context: ResolveContext) -> list[Candidate]:
    """Return the installed Fabric Manager, which may stay beside a driver that stays."""
    leading = FabricFile.of(context.catalog).names.leading
    found = [package for package in context.host.packages if re.fullmatch(leading, package.name) and package.version]
    return [
        Candidate(
            "keep",
            {"fabric.version": versions.upstream(package.version), "fabric.source": ""},
            because=f"{package.name} {package.version} stays: it is of the driver that stays",
        )
        for package in found
        if package.version
    ]


# What it fits ---------------------------------------------------------------------------------------------------------


def _rules(context: ResolveContext) -> Sequence[Rule]:
    """Return that it has the driver's version, from the driver's archive."""
    what = switches(context.host)
    if not what:
        return ()

    def fits(facts: Facts) -> bool:
        ours, archive = facts["fabric.version"], facts["fabric.source"]
        if archive == "distro":  # of which only the branch is known
            is_of_stack = facts["fabric.stack"] in facts.get("driver.stack", "")
            return facts["driver.source"] == archive and is_of_stack and facts["driver.version"] == ours
        # NVIDIA's or the installed one may also be of a driver that stays, whose archive is not known.
        is_of_archive = facts["driver.source"] == archive or "driver.kept" in facts
        return is_of_archive and facts["driver.version"] == ours

    def missing(facts: Facts) -> list[Problem]:
        version, is_archives = facts["driver.version"], facts["driver.source"] == "distro"
        where = context.archive_name if is_archives else context.repository_name
        has_own = any(row.archive == context.distro.family for row in FabricFile.of(context.catalog).packages)
        why = "; its own is for the -server packages of the driver alone" if is_archives and has_own else ""
        return [
            Problem(
                "fabric-manager-missing",
                f"{what}: CUDA fails (error 802) without Fabric Manager in exactly the driver's version; {where} "
                f"offers none for driver {version}{why}",
                "leave gpu_stack_driver, gpu_stack_driver_source and gpu_stack_driver_profile at auto, or set "
                "gpu_stack_fabric=none if it is installed in another way",
            )
        ]

    return (Rule(("fabric.version", "driver.version", "driver.source"), fits, missing, exact=True),)


# The kernels' modules -------------------------------------------------------------------------------------------------


def _modules(context: ResolveContext) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the packages with the modules that the host's kernels lack, and the problems of those that none has.

    Without apt's lists it is the package of the kernel's name.
    """
    known, prefix = context.host.kernels or Kernel(), context.catalog.packages.extra_modules.rstrip("*")
    packages: list[str] = []
    problems = []
    for release in context.host.kernel_releases:
        row = known.releases.get(release, KernelRelease())
        if not row.lacks:
            continue
        # The kernel's own metapackages, those that bring this release: another one would install a kernel.
        names = [prefix + release, *(prefix + meta.removeprefix(IMAGE) for meta in row.metas)]
        offers = {names[0]: release} if known.extra_modules is None else known.extra_modules
        found = [name for name in names if offers.get(name) == release]
        packages += found
        if not found:
            problems.append(_lacking(context, release, row.lacks, names[0]))
    return tuple(dict.fromkeys(packages)), problems


def _lacking(context: ResolveContext, release: str, lacks: Sequence[str], package: str) -> Problem:
    host = context.host
    role, following = "running" if release == host.kernel else "next boot", host.next_kernel
    if role == "running" and following not in (None, release) and _has_modules(context, str(following)):
        boot = f"reboot into kernel {following}, which has or gets them"
    else:
        boot = "install and boot a kernel that has them"
    return Problem(
        NO_MODULE,
        f"{switches(host)}: kernel {release} ({role}) lacks {' and '.join(lacks)}, without which Fabric Manager does "
        f"not start, and apt does not offer {package}",
        f"{boot}, and run this again; or set gpu_stack_fabric=none: CUDA fails (error 802) until they are there",
    )


def _has_modules(context: ResolveContext, release: str) -> bool:
    """Return whether a kernel has what the NVSwitches need, or apt has it."""
    known = context.host.kernels or Kernel()
    return not known.releases.get(release, KernelRelease()).lacks or release in (known.extra_modules or {}).values()


def _check(context: ResolveContext, findings: Findings) -> None:
    """Add the problems of modules that a kernel lacks; warn where Fabric Manager or what needs it is left out."""
    host, is_unwanted = context.host, context.request["fabric"] == "none"
    if is_unwanted and context.request["scope"] != "frameworks" and switches(host) and not _present(context):
        findings.warn(
            "fabric-left-out",
            f"{switches(host)}, and gpu_stack_fabric=none: each CUDA program ends with error 802 unless somebody else "
            "installs and starts a Fabric Manager of exactly the driver's version",
        )
    elif host.described and not is_unwanted and not switches(host) and (board := _possible_board(context)):
        findings.warn(
            "switches-not-described",
            f"if this is {board.name}, add --pci {board.pci}: its NVSwitches need Fabric Manager, without which CUDA "
            "fails (error 802). On a host the plan sees them by itself",
        )
    if _is_nvlink5(host) and not is_unwanted and not _lacks_driver(context):
        findings.problems += _modules(context)[1]


def _possible_board(context: ResolveContext) -> Board | None:
    """Return the board with NVSwitches that has GPUs of these names, and as many."""
    names = [gpu.name for gpu in context.gpus]
    for board in FabricFile.of(context.catalog).boards:
        if sum(bool(re.search(board.gpus, name)) for name in names) >= board.fewest:
            return board
    return None


def _complete(context: ResolveContext, component: FabricComponent, _findings: Findings) -> FabricComponent:
    """Return it with the packages of the modules that the host's kernels lack."""
    return dataclasses.replace(component, helpers=_modules(context)[0]) if component.modules else component


def _explain(context: ResolveContext, candidate: Candidate, _facts: Facts, findings: Findings) -> None:
    component: FabricComponent = candidate.component
    why = f"{switches(context.host)}; in exactly the driver's version"
    findings.reason("fabric", component.version, why)


def _known(context: ResolveContext) -> list[str]:
    return [candidate.facts["fabric.version"] for candidate in _builds(_reduced(context), _is_nvlink5(context.host))]


def _published(catalog: Catalog) -> list[str]:
    return [known.version for branch in catalog.driver.branches for known in branch.versions]


CHOICE = Choice(
    record=FabricComponent,
    candidates=_candidates,
    known=_known,
    published=_published,
    series=1,
    rules=_rules,
    check=_check,
    explain=_explain,
    complete=_complete,
)


# On a host -----------------------------------------------------------------------------------------------------------

FABRIC_GPU_PASSED_THROUGH = FindingSpec(
    "fabric-gpu-passed-through",
    "A GPU of a board with NVSwitches is bound to vfio-pci, for a virtual machine",
    "Give all GPUs of the board to this host, or run gpuhost in the virtual machines: the fabric of a board that is "
    "divided is set up by the hypervisor's Fabric Manager in shared mode, which gpuhost does not do",
)


def _managers_name(catalog: Catalog, driver: KeptDriver, host: Host) -> str:
    """Return the package of Fabric Manager for a driver: in the archive of that, or else in NVIDIA's repository."""
    file, branch = FabricFile.of(catalog), next((b for b in catalog.driver.branches if b.branch == driver.branch), None)
    family = catalog.distros[host.distribution].family
    archive = family if driver.source == "distro" else "nvidia"
    rule = branch and (_rule(file, archive, family, branch) or _rule(file, "nvidia", family, branch))
    return rule.manager.format(branch=driver.branch) if rule else "Fabric Manager"


class Fabric(PackagedPart[FabricComponent]):
    """Fabric Manager, from the archive of the driver."""

    record = FabricComponent
    role = "fabric"
    role_fields = ("services", "modules")
    build_variables = ("fabric_helpers",)
    catalog_file = FabricFile
    findings = (FABRIC_GPU_PASSED_THROUGH,)
    in_summary = False
    is_common = False

    def details(self, planned: FabricComponent) -> str:
        """Return the archive, unless that is NVIDIA's."""
        return "" if planned.source == "nvidia" else "from the distribution"

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages for another driver: their names, or metapackages, have its branch."""
        planned = self.planned(plan.components)
        if planned is None:
            return Removal()
        kept = {package.name for package in planned.packages}
        pattern = FabricFile.of(catalog).replaced
        removed = tuple(sorted(n for n in native(probe) if re.fullmatch(pattern, n) and n not in kept))
        why = "replaces that of another driver"
        return Removal(why, removed, tuple(re.escape(name) for name in removed)) if removed else Removal()

    def missing_to_compile(self, planned: FabricComponent, probe: Probe) -> tuple[str, ...]:
        """Return the packages with modules, which are planned for kernels that lack them alone."""
        return planned.helpers

    def unadoptable(self, installed: str | None, driver: KeptDriver, host: Host, catalog: Catalog) -> Problem | None:
        """Return that a host with NVSwitches has no Fabric Manager of exactly the driver's version."""
        what = switches(host)
        if not what or installed == driver.version:
            return None
        found = f"Fabric Manager {installed} is installed" if installed else "no Fabric Manager is installed"
        text = f"{what}: CUDA fails (error 802) without Fabric Manager in exactly the driver's version {driver.version}"
        install = f"install {_managers_name(catalog, driver, host)} in that version"
        return Problem(
            "fabric-manager-missing",
            f"{text}; {found}",
            f"{install} and type `sudo systemctl enable --now {FabricFile.of(catalog).services[0]}`; or run "
            f"`{playbook_call.call('gpu_host', 'gpu_stack_adopt=false')}`, which installs it; or, if it runs without a "
            "package, set gpu_stack_fabric=none and waive the check driver.fabric_manager (gpu_stack_waivers)",
        )

    def check(self, planned: FabricComponent, plan: Plan, probe: Probe, findings: Findings) -> None:
        """Check that no GPU of the board is given to a virtual machine."""
        given = [gpu.pci_address for gpu in probe.gpus if gpu.kernel_driver in FOR_GUESTS]
        if given:
            FABRIC_GPU_PASSED_THROUGH.add_problem(
                findings,
                f"GPU {', '.join(given)} is bound to vfio-pci on a board with NVSwitches: the others cannot join the "
                "fabric without it",
                "bind all GPUs of the board to the nvidia driver (`driverctl unset-override ADDRESS`, and remove "
                "vfio-pci.ids from the kernel's command line), or set gpu_stack_fabric=none and install Fabric "
                "Manager in shared mode as the hypervisor's documentation says",
            )

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return nothing: it changes with the driver, which says so."""
        return ()

    def entries(self, catalog: Catalog) -> Mapping[str, str]:
        """Return the versions, which are those of the driver."""
        return {version: version for version in _published(catalog)}
