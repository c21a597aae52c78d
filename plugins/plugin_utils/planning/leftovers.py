"""Find what other installers left on a host that conflicts with the planned packages, and how a run can remove it.

With `gpu_stack_leftovers=refuse`, what blocks the plan is a problem; with `remove`, the run removes it first. Source
and key files are moved aside and can be restored; what NVIDIA's uninstallers remove cannot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from urllib.parse import urlsplit

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import CudaComponent, DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    PreferredSource,
    SourceEntry,
    with_other_keys,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import RepositoryFile
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

# The role nvidia_repo's defaults: where it moves files, and with which files it configures NVIDIA's repository.
SET_ASIDE_DIRECTORY = "/var/lib/gpuhost/set_aside"
OWN_KEY = "/etc/apt/keyrings/nvidia-cuda.asc"
OWN_SOURCES = ("/etc/apt/sources.list.d/nvidia-cuda.sources", "/etc/yum.repos.d/nvidia-cuda.repo")
_OF_DNF = "/etc/yum.repos.d/"  # which takes a repository that several files define
# The priority of the versions that NVIDIA's pinning packages allow, that of the archive's driver (preferences.j2 of the
# role), and one below the default, 500.
_PINNED_PRIORITY, _ARCHIVE_PRIORITY, _LOW_PRIORITY = 1000, 1001, 100
_MOST = 4  # packages that a message lists
RUNFILE_INSTALL = FindingSpec(
    "runfile-install",
    "NVIDIA's `.run` installer installed a driver, or a toolkit in the planned directory (another toolkit: a warning)",
    "Run its uninstaller, or `-e gpu_stack_leftovers=remove`; or keep the driver with `-e gpu_stack_driver=none`",
)
STALE_REPOSITORY = FindingSpec(
    "stale-repository",
    "Another source has the same repository with another `Signed-By`, which apt refuses, or apt would take a "
    "planned package from others (a warning where it would not)",
    "Lower the pin, or remove the file, that the message names, or `-e gpu_stack_leftovers=remove`",
)
FINDINGS = (RUNFILE_INSTALL, STALE_REPOSITORY)
_OR_LET_THE_RUN = ", or let the run remove it with -e gpu_stack_leftovers=remove"


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A conflicting installation, source or key file of another installer.

    blocks: whether it prevents the plan. action: what a run with gpu_stack_leftovers=remove does, as an imperative;
    empty where it does nothing. uninstaller: the program that the action runs, for `component` (driver or cuda);
    set_aside: the file that it moves; purge: the package that it purges.
    """

    spec: FindingSpec
    message: str
    remedy: str
    blocks: bool = True
    action: str = ""
    component: str = ""
    uninstaller: str = ""
    set_aside: str = ""
    purge: str = ""


@dataclasses.dataclass(frozen=True)
class Cleanup:
    """What the run removes before it installs anything; does: in words, for the diff; the rest: for the roles."""

    does: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    purge: tuple[str, ...] = ()
    driver_uninstallers: tuple[str, ...] = ()
    cuda_uninstallers: tuple[str, ...] = ()


def adopted(plan: Plan, probe: Probe) -> str:
    """Return the source file of others that defines the planned repository with its key, and is used; empty if none.

    apt refuses a second source of it with another Signed-By, as that of the role would be.
    """
    if plan.repository is None or plan.request["scope"] == "frameworks":
        return ""
    url, key = plan.repository["url"].rstrip("/"), plan.repository["key_fingerprint"].upper()
    entries = [entry for entry in probe.repository_files.entries if entry.uri.rstrip("/") == url]
    if any(key not in (entry.keys or ()) or entry.file in OWN_SOURCES for entry in entries):
        return ""
    return next((entry.file for entry in entries if entry.suite.strip("./") == ""), "")


def find(plan: Plan, probe: Probe) -> list[Leftover]:
    """Return all leftovers in the order in which they are reported; none with gpu_stack_scope=frameworks."""
    if plan.request["scope"] == "frameworks":
        return []
    repository = load_catalog().repository
    return [
        *_driver(plan, probe),
        *_toolkits(plan, probe),
        *_sources(plan, probe, repository),
        *_keys(probe, repository),
    ]


def may_remove(plan: Plan) -> bool:
    """Return whether the user asked for leftovers to be removed."""
    return plan.request["leftovers"] == "remove" and not adoption.is_asked(plan.request)


def cleanup(plan: Plan, probe: Probe) -> Cleanup:
    """Return what the run removes; nothing unless the user asked for it."""
    if not may_remove(plan):
        return Cleanup()
    found = [leftover for leftover in find(plan, probe) if leftover.action]
    return Cleanup(
        does=tuple(dict.fromkeys(leftover.action for leftover in found)),
        set_aside=tuple(sorted({leftover.set_aside for leftover in found if leftover.set_aside})),
        purge=tuple(sorted({leftover.purge for leftover in found if leftover.purge})),
        driver_uninstallers=_uninstallers(found, "driver"),
        cuda_uninstallers=_uninstallers(found, "cuda"),
    )


def _uninstallers(leftovers: list[Leftover], component: str) -> tuple[str, ...]:
    return tuple(left.uninstaller for left in leftovers if left.uninstaller and left.component == component)


# .run installers ------------------------------------------------------------------------------------------------


def _driver(plan: Plan, probe: Probe) -> Iterator[Leftover]:
    driver = probe.runfile.driver
    if driver is None or DriverComponent.of(plan.components) is None:
        return
    version = f" {driver.version}" if driver.version else ""
    message = (
        f"driver{version} was installed by NVIDIA's .run installer (traces: {', '.join(driver.traces)}); "
        "packages would overwrite only a part of its files"
    )
    keep = "or keep this driver with -e gpu_stack_driver=none"
    program = driver.uninstaller
    if program is None:
        yield Leftover(RUNFILE_INSTALL, message, f"remove it with sudo ./<installer>.run --uninstall, {keep}")
        return
    yield Leftover(
        RUNFILE_INSTALL,
        message,
        f"remove it with sudo {program} --silent{_OR_LET_THE_RUN}, {keep}",
        action=f"uninstall driver{version} of the .run installer with {program} (cannot be rolled back)",
        component="driver",
        uninstaller=program,
    )


def _toolkits(plan: Plan, probe: Probe) -> Iterator[Leftover]:
    cuda = CudaComponent.of(plan.components)
    for toolkit in probe.runfile.toolkits:
        message = f"CUDA {toolkit.version} was installed by NVIDIA's .run installer ({toolkit.uninstaller})"
        if cuda is None or cuda.version != toolkit.version or cuda.source != "nvidia":
            yield Leftover(RUNFILE_INSTALL, f"{message}; it stays beside the planned one", "", blocks=False)
            continue
        yield Leftover(
            RUNFILE_INSTALL,
            f"{message}, into the directory of the planned packages",
            f"remove it with sudo {toolkit.uninstaller} --silent{_OR_LET_THE_RUN}, "
            "or request another version with -e gpu_stack_cuda=...",
            action=f"uninstall CUDA {toolkit.version} of the .run installer with {toolkit.uninstaller} "
            "(cannot be rolled back)",
            component="cuda",
            uninstaller=toolkit.uninstaller,
        )


# apt sources ----------------------------------------------------------------------------------------------------


def _sources(plan: Plan, probe: Probe, catalog: RepositoryFile) -> Iterator[Leftover]:
    """Yield other sources than gpuhost's. With two Signed-By values for one repository, apt reads no source at all.

    Of other repositories, those that win over the plan's, and NVIDIA's and the PPA's that may conflict later.
    """
    planned = plan.repository["url"].rstrip("/") if plan.repository else None
    named, is_adopted = set(), bool(adopted(plan, probe))
    for source in probe.repository_files.preferred:
        if won := _won(plan, probe, source):
            named.add(source.file)
            yield _preferred(source, won, plan, probe)
    for entry in probe.repository_files.entries:
        if entry.file in OWN_SOURCES:
            continue
        if entry.uri.rstrip("/") != planned:
            if entry.file in named or entry.offers is False or not _is_rival(entry, catalog):
                continue
            message = f"{entry.file} defines {entry.uri}, whose packages may conflict; remove it if nothing needs it"
            yield _source(entry, probe, catalog, message, blocks=False)
        elif entry.signed_by != OWN_KEY and not is_adopted and not _is_of_dnf(entry):
            message = (
                f"{entry.file} defines {entry.uri}, signed by {entry.signed_by or 'any trusted key'}; expected "
                f"{OWN_KEY}, since apt refuses a repository with two different Signed-By values"
            )
            yield _source(entry, probe, catalog, message, blocks=True)
    for entries in with_other_keys(probe.repository_files.entries):
        is_named = entries[0].uri.rstrip("/") == planned and not is_adopted
        if not is_named and not _is_of_dnf(entries[0]):
            yield _twice(entries)


def _is_of_dnf(entry: SourceEntry) -> bool:
    return entry.file.startswith(_OF_DNF)


def _twice(entries: list[SourceEntry]) -> Leftover:
    """Return the leftover of a repository that is there with two values of Signed-By, whichever it is."""
    named = dict.fromkeys(f"{entry.file} (signed by {entry.signed_by or 'any trusted key'})" for entry in entries)
    message = f"{entries[0].uri} is defined in {', '.join(named)}: with two Signed-By values, apt reads no source"
    kept = next(entry.file for entry in entries if entry.signed_by)
    remedy = f"leave one of these entries, such as that in {kept}, and remove the others"
    return Leftover(STALE_REPOSITORY, message, remedy)


def _source(entry: SourceEntry, probe: Probe, catalog: RepositoryFile, message: str, blocks: bool) -> Leftover:
    path = entry.file
    if path in probe.repository_files.mixed:
        remedy = f"remove that entry from {path}; the file also defines other repositories"
        return Leftover(STALE_REPOSITORY, message, remedy, blocks)
    remedy = f"remove {path} (sudo apt-get purge {catalog.keyring_package} if that package owns it){_OR_LET_THE_RUN}"
    package = _keyring_package(entry, probe, catalog)
    action = f"move {path} to {SET_ASIDE_DIRECTORY}" + (f" and purge {package}, which installed it" if package else "")
    return Leftover(STALE_REPOSITORY, message, remedy, blocks, action, set_aside=path, purge=package)


def _is_rival(entry: SourceEntry, catalog: RepositoryFile) -> bool:
    return any(part in entry.uri for part in catalog.rivals)


def _planned(plan: Plan, probe: Probe) -> dict[str, str | None]:
    """Return the planned packages with their versions, None where the archive decides.

    Without those of NVIDIA's repository where it could not be read: how they compare with a source's is not known.
    """
    is_read = probe.repository is None or not probe.repository.error
    parts = (p for p in plan.components.packaged() if is_read or getattr(p, "source", "nvidia") == "distro")
    return {package.name: package.version for part in parts for package in part.all_packages}


def _won(plan: Plan, probe: Probe, source: PreferredSource) -> dict[str, str]:
    """Return the planned packages that apt would take from a source of others, with their versions there."""
    planned, driver = _planned(plan, probe), DriverComponent.of(plan.components)
    of_driver = {package.name for package in driver.packages} if driver else set()
    won = {}
    for name, version in source.packages.items():
        if version == planned.get(name, version):  # not planned, or the same: a mirror
            continue
        # What will bind apt to the driver, and may not be there yet: NVIDIA's pins, or ours for the distribution's.
        if driver and name in of_driver:
            if driver.source == "distro" and plan.repository and source.priority < _ARCHIVE_PRIORITY:
                continue
            newer = debian_version.key(version) > debian_version.key(planned[name] or "")
            is_pinned = source.priority < _PINNED_PRIORITY and not version.startswith(f"{driver.branch}.")
            if driver.pinning_packages and source.priority <= _PINNED_PRIORITY and (is_pinned or not newer):
                continue
        won[name] = version
    return won


def _preferred(source: PreferredSource, won: dict[str, str], plan: Plan, probe: Probe) -> Leftover:
    """Return the leftover of a source that wins; it blocks the plan until its packages are installed."""
    planned, present = _planned(plan, probe), probe.present_packages
    listed = [f"{name} {won[name]} (planned: {planned[name] or 'that of the archive'})" for name in sorted(won)]
    more = f" and {len(listed) - _MOST} more" if len(listed) > _MOST else ""
    pins = " and ".join(source.pins)
    by = f"by the pin in {pins}" if source.pins else "which no pin gives"
    what = source.file or "a source of apt"
    message = (
        f"{what} defines {source.uri} ({source.suite or '/'}), from which apt would take {', '.join(listed[:_MOST])}"
        f"{more}, with priority {source.priority}, {by}"
    )
    installed = all(name in present and planned[name] in (None, present[name].version) for name in won)
    if source.refused:  # without this source, apt would have none for them
        away = " and ".join(source.refused)
        message += f"; the pin in {away} keeps apt from the planned ones"
        remedy = f"remove from {away} the negative Pin-Priority of the planned repository"
        return Leftover(STALE_REPOSITORY, message, remedy, blocks=not installed)
    if source.pins:
        lower = f"set Pin-Priority in {pins} to {_LOW_PRIORITY}"
    else:
        host = urlsplit(source.uri).hostname or ""
        lower = (
            f"give it priority {_LOW_PRIORITY} in a file in /etc/apt/preferences.d (Package: {' '.join(sorted(won))}; "
            f'Pin: origin "{host}"; Pin-Priority: {_LOW_PRIORITY})'
        )
    lower += ", with which apt takes its packages only where no other source has them"
    if not source.file or source.mixed:
        remove = f"remove that entry from {what}" + ("; the file also defines other repositories" * source.mixed)
        return Leftover(STALE_REPOSITORY, message, f"{lower}; or {remove}", blocks=not installed)
    action = f"move {source.file} to {SET_ASIDE_DIRECTORY}"
    remedy = f"{lower}; or remove {source.file}{_OR_LET_THE_RUN}"
    return Leftover(STALE_REPOSITORY, message, remedy, not installed, action, set_aside=source.file)


def _keyring_package(entry: SourceEntry, probe: Probe, catalog: RepositoryFile) -> str:
    """Return NVIDIA's package that configures the repository, if it configured this one; else empty."""
    is_present = catalog.keyring_package in probe.present_packages
    return catalog.keyring_package if is_present and entry.signed_by == catalog.keyring else ""


def _keys(probe: Probe, catalog: RepositoryFile) -> Iterator[Leftover]:
    for path, keys in probe.repository_files.keys.items():
        if any(key.endswith(catalog.old_key) for key in keys):
            message = f"{path} holds NVIDIA's old key {catalog.old_key}, which signs nothing any more: remove it"
            if path in probe.repository_files.mixed:
                yield Leftover(STALE_REPOSITORY, message, "", blocks=False)
            else:
                action = f"move {path} (NVIDIA's old key {catalog.old_key}) to {SET_ASIDE_DIRECTORY}"
                yield Leftover(STALE_REPOSITORY, message, "", False, action, set_aside=path)
