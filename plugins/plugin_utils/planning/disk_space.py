"""Disk space: how much a plan writes to each file system of a host, compared with what is free there.

Sizes of NVIDIA's packages come from the repository's index in the probe, all others from catalog/disk.yml.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components, DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, REMOVE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PACKAGED, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

# Where the roles write unless their variables say otherwise; the probe reads the free space of these directories.
PACKAGE_CACHE = "/var"
ENVIRONMENTS = "/opt/gpuhost/environments"
WHEEL_CACHE = "/var/cache/gpuhost/uv"
WORKSPACE = "/var/lib/gpuhost"
BOOT = "/boot"
# mkinitramfs builds there, not in /tmp: the tree, and then its archive before it is compressed. Ubuntu's images with
# NVIDIA's packages (initramfs-tools, merge request 128) unpack from 200 to 490 MiB, from 186 to 224 MiB where the
# kernel's modules are compressed files.
INITRAMFS_BUILD = "/var/tmp"
INITRAMFS_BUILD_FACTOR = 5
INITRAMFS_BUILD_FACTOR_COMPRESSED = 3
# apt splits and verifies the package lists' signatures there, and the compiler writes its assembly: kernels do not use
# gcc -pipe. DKMS has as many jobs as the host has cores.
TEMPORARY = "/tmp"
RECORDS = "records of this host's state"
# Role variables: uv's cache and whether it is kept, by framework; the directory of the training's data.
CACHES = {part.name: f"{part.role}_cache" for part in FRAMEWORKS}
KEPT = {part.name: f"{part.role}_keep_cache" for part in FRAMEWORKS}
DATA = "smoke_train_data_directory"
WITHOUT_RESERVE = (BOOT, INITRAMFS_BUILD, TEMPORARY)  # a small file system of their own
DISK_FULL = FindingSpec(
    "disk-full",
    "A file system has too little space for what is downloaded and installed on it, plus 1 GiB; `/boot`, "
    "`/var/tmp` and `/tmp` (or `TMPDIR`) for initramfs, apt and compilers",
    "Free space, or enlarge it; for `/tmp`, or `gpu_stack_environment: {TMPDIR: /var/tmp}`",
)
EXTRA_SIZE_UNKNOWN = FindingSpec(
    "extra-size-unknown",
    "Warning: the check for disk space leaves out packages of your own whose size the index does not state, or "
    "whose lock is of an older gpuhost",
    "None needed if `/opt/gpuhost/environments` has space for them; for an old lock, remove it from "
    "`gpu_stack_locks`, and the next run resolves it again",
)
FINDINGS = (DISK_FULL, EXTRA_SIZE_UNKNOWN)


@dataclasses.dataclass(frozen=True)
class ArchiveSize:
    """Sizes of a component's packages in the distribution's archive, with all their dependencies."""

    component: str
    download_mib: int
    installed_mib: int


@dataclasses.dataclass(frozen=True)
class EnvironmentSize:
    """Size of a framework's environment."""

    version: str
    installed_mib: int


@dataclasses.dataclass(frozen=True)
class DiskSizes:
    """catalog/disk.yml; reserve_mib must stay free on each file system that is written to.

    verification_mib: the programs of the checks, and the data and results of the training. records_mib: the state of
    the host, which each run may write again. wheel_expansion: what wheels unpack to, by their size. signatures_mib:
    temporary files of apt; initramfs_growth_mib: NVIDIA's modules and firmware in an initramfs; compiler_mib,
    compiler_job_mib: of the largest file of NVIDIA's modules, and of each further one that is compiled at that time.
    """

    reserve_mib: int
    verification_mib: int
    records_mib: int
    wheel_expansion: float
    signatures_mib: int
    initramfs_growth_mib: int
    compiler_mib: int
    compiler_job_mib: int
    archive: tuple[ArchiveSize, ...]
    environments: Mapping[str, tuple[EnvironmentSize, ...]]

    def environment_mib(self, framework: str, version: str) -> int:
        """Return the size of an environment; a version that was not measured counts as the largest one."""
        known = {entry.version: entry.installed_mib for entry in self.environments[framework]}
        return known.get(version, max(known.values()))


@dataclasses.dataclass(frozen=True)
class Need:
    """Space that is needed in a directory; directory: a key of the probe's `disk`; purpose: a text for messages."""

    directory: str
    purpose: str
    mib: int


@dataclasses.dataclass(frozen=True)
class ExtraPackages:
    """Packages of the user's own in a framework's environment: the size of their wheels in bytes, None if not known.

    lock: the beginning of the SHA-256 of the lock that has them.
    """

    lock: str
    sizes: Mapping[str, int | None]

    @property
    def mib(self) -> int:
        """The space that those with a size need, in whole MiB."""
        wheels = sum(size for size in self.sizes.values() if size is not None)
        return math.ceil(wheels * load_sizes().wheel_expansion / 2**20)


@dataclasses.dataclass(frozen=True)
class Directories:
    """Where the roles of a host write; one that the probe has not measured counts as the usual one.

    caches: uv's, by framework. emptied: the frameworks whose cache has nothing of the installed environments, since a
    role removes it. data: of the training.
    """

    caches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    emptied: Collection[str] = ()
    data: str = ""

    @classmethod
    def of_variables(cls, values: Mapping[str, Any], components: Components) -> Directories:
        """Return the directories by the values of role variables; those of the planned frameworks' roles count."""
        planned = [part.name for part in FRAMEWORKS if part.planned(components)]
        caches = {name: str(values.get(CACHES[name], "")) for name in planned}
        removed = [caches[name] for name in planned if not boolean(values.get(KEPT[name], True), strict=False)]
        emptied = tuple(name for name in planned if caches[name] in removed)
        return cls(caches, emptied, str(values.get(DATA, "")))

    def measured(self, probe: Probe, usual_cache: str, usual_data: str) -> Directories:
        """Return the directories for the planned frameworks as keys of the probe's `disk`."""
        caches = {part.name: self.caches.get(part.name, "") for part in FRAMEWORKS}
        caches = {name: path if path in probe.disk else usual_cache for name, path in caches.items()}
        return Directories(caches, self.emptied, self.data if self.data in probe.disk else usual_data)


def variables(components: Components) -> tuple[str, ...]:
    """Return the role variables that say where the roles of planned components write, and whether that is kept."""
    planned = [part.name for part in FRAMEWORKS if part.planned(components)]
    return (*(of[name] for of in (CACHES, KEPT) for name in planned), *([DATA] if planned else []))


@functools.cache
def load_sizes() -> DiskSizes:
    """Return catalog/disk.yml, read once a process."""
    return records.from_json(DiskSizes, load_yaml(CATALOG_FOLDER / "disk.yml"), "disk.yml")


def check_disk(
    plan: Plan,
    diff: PlanDiff,
    probe: Probe,
    findings: Findings,
    extra: Mapping[str, ExtraPackages] | None = None,
    directories: Directories | None = None,
) -> None:
    """Add a problem for each file system with too little space for all that the plan writes to it.

    extra: packages of the user's own, by framework; a warning names those whose size is not known. uv unpacks while it
    downloads, so that a wheel itself takes no space.
    """
    extra = extra or {}
    _warn_of_unknown_sizes(plan.components, diff, probe, findings, extra)
    reserve = load_sizes().reserve_mib
    within = plan.request["scope"] == "frameworks"  # then all is below the directory of the environments, unless moved
    words = load_catalog().words(plan.distribution)
    usual = (ENVIRONMENTS, ENVIRONMENTS) if within else (WHEEL_CACHE, WORKSPACE)
    places = (directories or Directories()).measured(probe, *usual)
    by_mount: dict[str, list[Need]] = {}
    for need in _needs(plan.components, diff, probe, extra, places):
        if need.mib and need.directory in probe.disk:
            by_mount.setdefault(probe.disk[need.directory].mount, []).append(need)
    records = probe.disk.get(WORKSPACE)
    others = {space.mount for path, space in probe.disk.items() if not f"{path}/".startswith(f"{WORKSPACE}/")}
    if not within and records and records.mount not in others:  # of its own
        by_mount.setdefault(records.mount, [Need(WORKSPACE, RECORDS, load_sizes().records_mib)])
    for mount, needs in by_mount.items():
        free = min(space.free_mib for space in probe.disk.values() if space.mount == mount)
        listed = [f"{need.purpose} {need.mib} MiB" for need in needs]
        total, what = sum(need.mib for need in needs), f"sudo {words.REMOVE_UNNEEDED}, for old kernels"
        paths = sorted({need.directory for need in needs})
        if set(paths) <= {INITRAMFS_BUILD, TEMPORARY}:
            what = f"remove what programs left in {' and '.join(paths)}"
            if TEMPORARY in paths:
                what += ", or set TMPDIR in gpu_stack_environment to a directory on a larger one"
        if [need.purpose for need in needs] == [RECORDS]:
            what = f"sudo du -xhd1 {mount} lists what takes it"
        elif any(need.directory not in WITHOUT_RESERVE for need in needs):
            listed.append(f"reserve {reserve} MiB")
            total, what = total + reserve, f"sudo {words.REMOVE_DOWNLOADS}, old toolkits and environments"
        if total > free:
            DISK_FULL.add_problem(
                findings,
                f"the file system at {mount} has {free} MiB free; expected at least {total} MiB ({', '.join(listed)})",
                f"free {total - free} MiB there ({what}), or enlarge it",
            )


def totals(components: Components, diff: PlanDiff, probe: Probe, extra: Mapping[str, ExtraPackages]) -> tuple[int, int]:
    """Return how much a plan downloads and how much of that stays on the host, in MiB; 0 where sizes are not known.

    What wheels unpack to is known; what they are themselves is estimated from that.
    """
    changing = [part.name for part in PACKAGED if part.planned(components) and diff.of(part.name).action != KEEP]
    if changing and not probe.package_sizes:
        return 0, 0
    packages = [_package_sizes(name, components, diff, probe) for name in changing]
    frameworks = [part for part in FRAMEWORKS if _is_built(part.name, diff, probe, extra)]
    planned = [(part.name, part.planned(components)) for part in frameworks]
    environments = [load_sizes().environment_mib(name, found.version) for name, found in planned if found]
    wheels = sum(environments) / load_sizes().wheel_expansion
    download, installed = (sum(sizes) for sizes in zip(*packages, strict=True)) if packages else (0, 0)
    return download + round(wheels), installed + sum(environments)


def _warn_of_unknown_sizes(
    components: Components, diff: PlanDiff, probe: Probe, findings: Findings, extra: Mapping[str, ExtraPackages]
) -> None:
    for name, packages in extra.items():
        unknown = sorted(package for package, size in packages.sizes.items() if size is None)
        if unknown and components.framework(name) and _is_built(name, diff, probe, extra):
            EXTRA_SIZE_UNKNOWN.add_warning(
                findings,
                f"the size of {', '.join(unknown)} (gpu_stack_{name}_extra) is not known: the package index does not "
                "state it, or the lock is of an older release of gpuhost; the check for disk space leaves "
                f"{'them' if len(unknown) > 1 else 'it'} out, so see that {ENVIRONMENTS} has space",
            )


def _is_built(name: str, diff: PlanDiff, probe: Probe, extra: Mapping[str, ExtraPackages]) -> bool:
    """Return whether a framework's environment is built: another release, or another lock of the user's own."""
    found = probe.environment(name)
    return diff.of(name).action != KEEP or (name in extra and (found is None or found.lock != extra[name].lock))


def _needs(
    components: Components, diff: PlanDiff, probe: Probe, extra: Mapping[str, ExtraPackages], places: Directories
) -> Iterator[Need]:
    changing = [part.name for part in PARTS if part.planned(components) and diff.of(part.name).action != KEEP]
    for packaged in (part for part in PACKAGED if part.name in changing):
        download, installed = _package_sizes(packaged.name, components, diff, probe)
        yield Need(PACKAGE_CACHE, f"{packaged.label} download", download)
        yield Need(packaged.directory(packaged.planned(components)), packaged.label, installed)
    for part in (part for part in FRAMEWORKS if _is_built(part.name, diff, probe, extra)):
        is_cached = part.name not in changing and part.name not in places.emptied
        added, cache = extra.get(part.name), places.caches[part.name]
        yield from _environment_needs(part, components, probe, added, cache, is_cached)
    if "driver" in changing:
        # update-initramfs writes each image beside the old one; those with a first driver's modules are larger than it.
        image, driver = probe.kernel.initramfs_mib, probe.driver
        is_first = not driver.loaded and not (driver.installed and driver.installed.version)
        growth = load_sizes().initramfs_growth_mib if image and is_first else 0
        kernels = {probe.kernel.running, probe.kernel.next_boot or probe.kernel.running}
        yield Need(BOOT, "a rebuilt initramfs", image)
        yield Need(BOOT, "NVIDIA's modules and firmware in each initramfs", growth * len(kernels))
        packed = all(release.compression for release in probe.kernel.releases.values()) and probe.kernel.releases
        factor = INITRAMFS_BUILD_FACTOR_COMPRESSED if packed else INITRAMFS_BUILD_FACTOR
        yield Need(INITRAMFS_BUILD, "the build of an initramfs", factor * (image + growth))
    yield from _temporary_needs(changing, components, probe)
    if changing:
        yield Need(places.data, "checks and training", load_sizes().verification_mib)


def _temporary_needs(changing: Collection[str], components: Components, probe: Probe) -> Iterator[Need]:
    sizes, jobs = load_sizes(), probe.kernel.build_jobs
    if any(part.name in changing for part in PACKAGED):
        yield Need(TEMPORARY, "verification of signatures", sizes.signatures_mib)
    driver = DriverComponent.of(components)
    if "driver" in changing and driver and driver.module_source == "dkms":
        compilers = f"{counted(jobs, 'compiler')} of kernel modules"
        yield Need(TEMPORARY, compilers, sizes.compiler_mib + (jobs - 1) * sizes.compiler_job_mib)


def _environment_needs(
    part: EnvironmentPart[Any],
    components: Components,
    probe: Probe,
    extra: ExtraPackages | None,
    cache: str,
    is_cached: bool,
) -> Iterator[Need]:
    """Yield what an environment needs; is_cached: uv's cache has all but the packages of the user's own."""
    name, planned = part.name, part.planned(components)
    if planned is None:
        return
    size, added = load_sizes().environment_mib(name, planned.version), extra.mib if extra else 0
    mounts = {probe.disk[path].mount for path in (ENVIRONMENTS, cache) if path in probe.disk}
    is_copied = len(mounts) > 1  # on one file system, the environment is hard links into the cache
    yield Need(ENVIRONMENTS, f"{part.label} environment", 0 if is_cached and not is_copied else size)
    yield Need(ENVIRONMENTS, f"packages of gpu_stack_{name}_extra", added)
    if is_copied:
        yield Need(cache, f"{part.label} packages", 0 if is_cached else size)
        yield Need(cache, f"packages of gpu_stack_{name}_extra", added)


def _package_sizes(name: str, components: Components, diff: PlanDiff, probe: Probe) -> tuple[int, int]:
    """Return (download, installed) in MiB of the packages that change; replaced ones need no further space."""
    changed = [package for package in diff.of(name).packages if package.action not in (KEEP, REMOVE)]
    if getattr(components.get(name), "source", "nvidia") == "distro":
        entry = next((entry for entry in load_sizes().archive if entry.component == name), None)
        is_new = any(package.installed is None for package in changed)
        return (entry.download_mib, entry.installed_mib if is_new else 0) if entry and changed else (0, 0)
    sizes = {
        package: size
        for package in changed
        if package.planned and (size := probe.package_sizes.get(package.name, {}).get(package.planned))
    }
    included = {other for size in sizes.values() for other in size.includes}
    counted = {package: size for package, size in sizes.items() if package.name not in included}
    download = sum(size.download_kib for size in counted.values())
    installed = sum(size.installed_kib for package, size in counted.items() if package.installed is None)
    return download >> 10, installed >> 10
