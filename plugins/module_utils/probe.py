# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Assemble the probe of a host. Runs on the managed host; changes nothing and needs no driver."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import replace
from typing import Callable, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils import probe_start
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, digests, files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.host import (
    cloud_init,
    display,
    foreign_settings,
    module_keys,
    os_release,
    pci,
    pcie,
    secure_boot,
    system,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Distribution, Kernel
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import (
    Driver,
    Environment,
    NvidiaSmi,
    SignaturesEnforced,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    ModulesOfOthers,
    ProbedPackage,
    Repository,
    RepositoryFiles,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    foreign_driver,
    gpu_processes,
    installed_driver,
    installed_stack,
    kernel_modules,
    module_loading,
    nvidia_smi,
    proc_driver,
    runfile,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import kernels, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Journal, foreign_holds
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.lists import lists
from ansible_collections.gpuhost.stack.plugins.module_utils.probe_start import Options
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result, run_lock

Part = TypeVar("Part")
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system")
OWN_FOLDERS = (frameworks.FOLDER,)  # all that a run with frameworks alone writes to


class _Attempts:
    """Reads the parts of a probe: one that cannot be read is None, and has a message in `errors`."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def __call__(self, part: str, read: Callable[[], Part]) -> Part | None:
        """Return what `read` does."""
        try:
            return read()
        except (OSError, ValueError) as error:
            self.errors.append("%s: %s" % (part, error))
            return None


def probe(
    root: str, options: Options, run: Run = command.run, compared: Callable[[], dict[str, AppliedPart]] | None = None
) -> Probe:
    """Return the probe of the host at `root`. compared: its comparison with the last run, if that is under way."""
    attempt = _Attempts()
    compared = compared or probe_start.compare(root, options, run)
    machine = os.uname().machine
    distribution = attempt("distribution", lambda: os_release.read(root))
    gpus, switches = attempt("PCI devices", lambda: pci.read(root)) or ((), ())
    paths = frameworks.paths(options)
    driver = _driver(root, run, attempt)
    repository = _repository(root, options, machine, run, distribution)
    state = files.under(root, options.state_directory)
    journal = attempt("record of changed packages", lambda: store.journal(state)) or {}
    managers = attempt("NVLink 5 switches", lambda: pci.switch_managers(root)) or ()
    modules = options.switch_modules if managers else []
    kernel = attempt("kernel", lambda: _kernel(root, system.running(root), options, distribution, modules, run))
    signed = attempt("enforced module signatures", lambda: _signatures_enforced(root, kernel or Kernel()))
    found = Probe(
        uid=os.geteuid(),
        may_write={path: system.may_write(root, path) for path in OWN_FOLDERS},
        distribution=distribution,
        architecture=machine,
        machine=attempt("DMI", lambda: system.machine(root)),
        cpu=attempt("CPU", lambda: system.cpu(root)),
        kernel=kernel,
        python=attempt("python", lambda: system.python(root)),
        toolchain=attempt("toolchain", lambda: system.toolchain(root, run)),
        gpus=gpus,
        guest_settings=attempt("devices of virtual machines", lambda: foreign_settings.guest_settings(root)) or (),
        nvswitches=switches,
        switch_managers=managers,
        pcie=attempt("PCIe links", lambda: pcie.read(root, [gpu.pci_address for gpu in gpus])),
        display=attempt("display", lambda: display.read(root)),
        driver=driver,
        modules_of_others=attempt("kernel modules of others", lambda: _modules_of_others(root)) or (),
        foreign_driver=attempt("driver of others", lambda: foreign_driver.read(root)),
        gpu_processes=attempt("GPU processes", lambda: gpu_processes.read(root, driver.nvidia_smi, run)),
        packages=attempt("packages", lambda: _packages(root, options, driver)),
        foreign_holds=attempt("packages on hold", lambda: _foreign_holds(root, journal)) or {},
        package_manager=attempt("package manager", lambda: lists(root, run).state(journal)),
        transaction=attempt("package transaction", lambda: transaction_lock.read(root, options.state_directory)),
        run=attempt("run that changes the host", lambda: run_lock.living(state, root)),
        cloud_init_running=attempt("cloud-init", lambda: cloud_init.running(root, run)) or False,
        runfile=attempt("run file installations", lambda: runfile.read(root)),
        repository=repository,
        repository_files=_sources(root, options, repository, distribution, run, attempt),
        cuda=attempt("CUDA", lambda: installed_stack.cuda(root, options.distro_cuda_package)),
        environments={each.name: _environment(root, each, paths[each.name], attempt) for each in frameworks.FRAMEWORKS},
        environments_in_the_way={
            each.name: _path_conflict(root, each, paths[each.name], attempt) for each in frameworks.FRAMEWORKS
        },
        secure_boot=attempt("Secure Boot", lambda: secure_boot.state(root)) or "unknown",
        secure_boot_keys=attempt("module signing keys", lambda: module_keys.dkms_keys(root)) or (),
        trusted_certificates=attempt("trusted certificates", lambda: secure_boot.trusted_certificates(root)),
        signatures_enforced=signed,
        kernel_keys=module_keys.key_ids(root) if signed else None,
        modules_disabled=attempt("kernel.modules_disabled", lambda: module_loading.disabled(root)),
        root_in_memory=attempt("root file system", lambda: system.root_in_memory(root)) or "",
        selinux_enforcing=files.read_text(root, "/sys/fs/selinux/enforce") == "1",
        module_blacklists=attempt("module blacklists", lambda: foreign_settings.of_driver(root)) or {},
        disk=attempt("disk", lambda: system.disk(root, options.directories)),
        masked_services=attempt("masked services", lambda: _masked(root, options)) or (),
        verified=attempt("record of the verified configuration", lambda: store.evidence(state)),
        requested=attempt("request of the verified configuration", lambda: store.requested(state)),
        verified_plan=attempt("plan of the verified configuration", lambda: store.verified_plan(state)),
        changed_packages=tuple(sorted(journal)),
        pending=attempt("record of a pending change", lambda: store.read(state, store.PENDING)),
        undone=attempt("record of a change that was undone", lambda: store.read(state, store.UNDONE)),
        last_result=attempt("last result", lambda: last_result.read(state)),
        newer_state=attempt("newer records", lambda: _newer_state(state)),
        applied_plan=attempt("applied plan", lambda: installed_stack.applied_plan(root)),
        simulated=attempt("simulated parts", lambda: tuple(installed_stack.simulated(root))) or (),
        applied=attempt("record of the last run", compared) or {},  # last, as it takes longest
    )
    if options.contents:
        attempt("content of packages", digests.check_md5)
    return replace(found, errors=tuple(attempt.errors))


def _environment(root: str, framework: frameworks.Framework, path: str, attempt: _Attempts) -> Environment | None:
    return attempt(framework.label, lambda: installed_stack.environment(root, framework, path))


def _path_conflict(root: str, framework: frameworks.Framework, path: str, attempt: _Attempts) -> str | None:
    return attempt(framework.label + "'s path", lambda: installed_stack.path_conflict(root, path))


def _kernel(
    root: str, running: str, options: Options, distribution: Distribution | None, modules: list[str], run: Run
) -> Kernel:
    """Return the kernels, what is known of each, and what apt has to build modules, or with those that one lacks."""
    found = system.kernel(root, running)
    packages = kernels.images(root)
    names = sorted({running, *found.installed})
    releases = {n: kernels.release(root, n, n == running, packages, modules) for n in names}
    if found.next_boot in releases:
        built = sorted({module.version for module in kernel_modules.built(root, found.next_boot, run)})
        has_driver = bool(kernel_modules.paths(root, found.next_boot))
        following = replace(releases[found.next_boot], has_driver=has_driver, driver_versions=tuple(built))
        releases[found.next_boot] = following
    found = replace(found, releases=releases)
    compressors = options.module_compressors.get(distribution.id if distribution else "", {})
    tools = {"": list(options.kernel_tools), **{how: [name] for how, name in compressors.items()}}
    found = kernels.building(root, found, tools, options.kernel_header_offers, run)
    signed = secure_boot.state(root) != "disabled" or _signatures_enforced(root, found)
    if options.prebuilt_modules and options.kernel_header_offers and signed:
        found = replace(found, prebuilt=lists(root, run).modules(options.prebuilt_modules, names))
    lacking = [name for name, row in found.releases.items() if row.lacks]
    if lacking and options.kernel_header_offers:
        found = replace(found, extra_modules=lists(root, run).modules(options.extra_modules, lacking))
    return found


def _sources(
    root: str,
    options: Options,
    repository: Repository | None,
    distribution: Distribution | None,
    run: Run,
    attempt: _Attempts,
) -> RepositoryFiles | None:
    """Return NVIDIA's sources and those whose packages apt prefers, and which of them offer what a plan may install.

    Where NVIDIA's repository cannot be read, those that apt prefers to the distribution's.
    """
    url = repository.url if repository else None
    sources = attempt("package sources", lambda: lists(root, run).sources(url))
    if sources is None or repository is None or url is None or distribution is None:
        return sources
    globs = sorted({*options.repository_patterns, *options.package_patterns})
    name, offers = distribution.id.partition("-")[0], repository.packages
    others = attempt("preferred sources", lambda: lists(root, run).others(name, url, offers, globs))
    if others is None:
        return sources
    matches = re.compile("|".join(fnmatch.translate(glob) for glob in options.repository_patterns) or r"(?!)").match
    entries = []
    for entry in sources.entries:
        offering = others.offering(entry.uri)
        entries.append(replace(entry, offers=None if offering is None else any(map(matches, offering))))
    # What gpuhost has verified stays in its version, and its hosts are probed often.
    is_new = store.VERIFIED + ".json" not in files.names(root, options.state_directory)
    names = options.archive_drivers.get(distribution.id, []) if is_new else []
    archive = attempt("the archive's drivers", lambda: others.of_archive(names)) if names else None
    preferred = attempt("preferred sources", others.preferred) or ()
    return replace(sources, entries=tuple(entries), preferred=preferred, archive=archive or {})


def _signatures_enforced(root: str, kernel: Kernel) -> SignaturesEnforced | None:
    running = kernel.running or system.running(root)
    return module_loading.signatures_enforced(root, running, [kernel.next_boot] if kernel.next_boot else [])


def _packages(root: str, options: Options, driver: Driver) -> dict[str, ProbedPackage]:
    """Return the packages with names of the catalog's patterns, and those with the driver, whatever their names."""
    owners = driver.installed.packages if driver.installed else ()
    found = database(root).read([*options.package_patterns, *owners])
    return {name: ProbedPackage(row.version, row.status, row.held, row.depends) for name, row in found.items()}


def _newer_state(directory: str) -> str | None:
    error = store.newer(directory)
    return error.found if error else None


def _foreign_holds(root: str, journal: Journal) -> dict[str, str]:
    """Return the installed versions of the packages that somebody else holds, "" for one that is not installed."""
    held = database(root).held()
    absent = ("config-files", "not-installed")
    return {name: "" if held[name].status in absent else held[name].version for name in foreign_holds(held, journal)}


def _masked(root: str, options: Options) -> tuple[str, ...]:
    """Return the managed services that an administrator has masked (systemctl mask), which nothing can enable."""
    names = sorted({name for watch in options.managed.values() for name in watch.get("services") or []})
    units = {name: [os.path.join(place, name + ".service") for place in UNIT_DIRECTORIES] for name in names}
    return tuple(name for name in names if any(files.link_target(root, path) == "/dev/null" for path in units[name]))


def _driver(root: str, run: Run, attempt: _Attempts) -> Driver:
    def smi() -> NvidiaSmi | None:
        found = nvidia_smi.read(nvidia_smi.find() if root == "/" else None, run)
        return replace(found, mig=tuple(nvidia_smi.in_mig_mode(found, run))) if found else None

    return Driver(
        loaded=attempt("loaded driver", lambda: proc_driver.read(root)),
        nouveau_loaded=proc_driver.nouveau_loaded(root),
        nvidia_smi=attempt("nvidia-smi", smi),
        installed=attempt("installed driver", lambda: installed_driver.read(root)),
        dkms_leftovers=attempt("modules of DKMS", lambda: installed_driver.dkms_leftovers(root)) or (),
    )


def _modules_of_others(root: str) -> tuple[ModulesOfOthers, ...]:
    return (*kernels.of_others(root), *installed_driver.dependents(root))


def _repository(
    root: str, options: Options, machine: str, run: Run, distribution: Distribution | None
) -> Repository | None:
    name = distribution.id if distribution else ""
    url = options.repository_url or options.repositories.get(name)
    if not url:
        return None
    patterns = list(options.repository_patterns)
    return lists(root, run).repository(url, patterns, options.driver_packages, machine, options.repository_check)
