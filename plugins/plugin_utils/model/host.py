"""The host as the resolver sees it: the part of a probe that decides which versions fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Display, GuestSetting, Kernel
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import ForeignDriver, InstalledDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, VerifiedPlan

_PACKAGED = "/usr/bin/"  # where Debian's and Ubuntu's packages have interpreters
_DISPLAY_CLASS = "03"  # of PCI: VGA and 3D controllers, and not a card's audio function or an NVSwitch


@dataclasses.dataclass(frozen=True)
class HostGpu:
    """A GPU of a host; name and compute capability are those that a loaded driver reports.

    subsystem_id: as `10de:130f`, None where it is not known.
    vgpu: the driver version of the hypervisor ("" where unknown) if this is a part of a card, None for a whole one.
    """

    pci_id: str
    pci_address: str = ""
    name: str | None = None
    compute_capability: str | None = None
    vgpu: str | None = None
    subsystem_id: str | None = None
    kernel_driver: str | None = None


@dataclasses.dataclass(frozen=True)
class Present:
    """What may stay on a host as it is.

    verified: the plan of the verified configuration; requested: its request; verified_at: UTC, in ISO 8601, empty where
    it was not recorded. driver_works: nvidia-smi lists GPUs; where it is not installed, the loaded module has one and
    is of the version of the libraries. loaded_modules: the flavour of the loaded kernel module.
    changed_packages: those that gpuhost has changed.
    """

    verified: VerifiedPlan = dataclasses.field(default_factory=VerifiedPlan)
    requested: Mapping[str, str] = dataclasses.field(default_factory=dict)
    verified_at: str = ""
    driver_works: bool = False
    loaded_modules: str = ""
    changed_packages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Host:
    """The properties of a host that the resolver uses; a missing one defaults to the catalog's for its distribution.

    distribution_release: its minor release such as 9.6, where the distribution has those and it is known.
    others: the GPUs that are left alone, and who has them (resolver/gpus.py); guest_settings: what gives devices to
    virtual machines.
    cpu: the processor's name; cpu_flags: its features as in /proc/cpuinfo, None where they are not known.
    own_pythons: those of `pythons` that no package of the distribution has.
    pythons: versions of the interpreters (`3.12`); gcc: the default compiler's major. kernel, next_kernel: the
    releases that run now and after a reboot; kernels: what the probe says about them. offers: versions of the
    repository's packages by name, None where no repository was read. archive: those of the distribution's drivers that
    apt would take, where it was asked. repository_configured: the host's apt already
    reads NVIDIA's repository. signatures_enforced: the kernel demands signed modules whatever secure_boot is.
    module_key_enrolled: firmware or kernel trust a key of DKMS. described: options of
    script/plan describe the host, no probe does. display: what shows a display, for messages; empty without one.
    packages: the installed packages that the probe reports, `name=version`. foreign_holds: those that somebody else
    holds, likewise, and bare names of packages that are not installed and must not be. installed_driver: by its
    libraries, None where these are not known. What of it stays: present says what may, staying is a driver of others
    that does, and keeping are the components whose request keeps what is there. nvswitches: the PCI ids of the
    NVSwitches on the bus; switch_managers: how many functions manage NVLink 5 switches, which are not on it. unread:
    nothing tells what the host consists of, as for a role that is used alone.
    """

    distribution: str
    architecture: str
    gpus: tuple[HostGpu, ...] = ()
    pythons: tuple[str, ...] = ()
    default_python: str | None = None
    gcc: int | None = None
    glibc: str | None = None
    kernel: str | None = None
    next_kernel: str | None = None
    kernels: Kernel | None = dataclasses.field(default=None, hash=False)
    offers: Mapping[str, tuple[str, ...]] | None = dataclasses.field(default=None, hash=False)
    archive: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    offers_error: str | None = None
    repository_url: str | None = None
    repository_configured: bool = False
    secure_boot: str = "unknown"
    signatures_enforced: bool = False
    module_key_enrolled: bool = False
    loaded_driver: str | None = None
    described: bool = False
    foreign_driver: ForeignDriver | None = None
    display: str = ""
    packages: tuple[Package, ...] = ()
    foreign_holds: tuple[Package, ...] = ()
    installed_driver: InstalledDriver | None = None
    present: Present = dataclasses.field(default_factory=Present, hash=False)
    staying: KeptDriver | None = None
    keeping: tuple[str, ...] = ()
    own_pythons: tuple[str, ...] = ()
    cpu: str = ""
    cpu_flags: frozenset[str] | None = None
    nvswitches: tuple[str, ...] = ()
    switch_managers: int = 0
    unread: bool = False
    distribution_release: str = ""
    others: Mapping[HostGpu, str] = dataclasses.field(default_factory=dict, hash=False)
    guest_settings: tuple[GuestSetting, ...] = ()

    @property
    def kernel_releases(self) -> tuple[str, ...]:
        """The running and the next-boot kernel, each once."""
        return tuple(dict.fromkeys(release for release in (self.kernel, self.next_kernel) if release))

    @property
    def needs_signatures(self) -> bool:
        """Whether the kernel refuses modules without a signature that it trusts."""
        return self.secure_boot == "enabled" or self.signatures_enforced

    @property
    def newest_kernel(self) -> str | None:
        """The newer of the running and the next-boot kernel: a driver must build for both."""
        return max(self.kernel_releases, key=lambda name: versions.key(versions.kernel_series(name)), default=None)


def host_from_probe(probe: Probe) -> Host:
    """Return the resolver's view of a probe; raises PlanInputError where distribution or architecture is unknown."""
    if probe.distribution is None:
        raise PlanInputError("the probe could not read the distribution; expected /etc/os-release on the host")
    if not probe.architecture:
        raise PlanInputError("the probe does not name the host's CPU architecture; expected that of uname -m")
    repository = probe.repository
    return Host(
        distribution=probe.distribution.id,
        distribution_release=probe.distribution.version,
        architecture=probe.architecture,
        cpu=probe.cpu.model if probe.cpu else "",
        cpu_flags=frozenset(probe.cpu.flags) if probe.cpu and probe.cpu.flags else None,
        gpus=_gpus(probe),
        guest_settings=probe.guest_settings,
        pythons=tuple(probe.python.interpreters),
        default_python=probe.python.default,
        own_pythons=tuple(v for v, path in probe.python.interpreters.items() if not path.startswith(_PACKAGED)),
        gcc=int(probe.toolchain.gcc.split(".", 1)[0]) if probe.toolchain.gcc else None,
        glibc=probe.toolchain.glibc,
        kernel=probe.kernel.running,
        next_kernel=probe.kernel.held_back or probe.kernel.next_boot,
        kernels=probe.kernel,
        offers=_with_held(repository.packages, probe) if repository and not repository.error else None,
        archive=probe.repository_files.archive,
        offers_error=repository.error if repository else None,
        repository_url=repository.url if repository else None,
        repository_configured=_is_configured(probe),
        secure_boot=probe.secure_boot,
        signatures_enforced=probe.signatures_enforced is not None,
        module_key_enrolled=probe.trusts_dkms,
        loaded_driver=_loaded_driver(probe),
        foreign_driver=probe.foreign_driver,
        display=_display(probe.display),
        packages=tuple(Package(name, package.version) for name, package in probe.present_packages.items()),
        foreign_holds=tuple(Package(name, version or None) for name, version in probe.foreign_holds.items()),
        installed_driver=probe.driver.installed,
        present=_present(probe),
        nvswitches=tuple(switch.pci_id for switch in probe.nvswitches),
        switch_managers=len(probe.switch_managers),
    )


def _present(probe: Probe) -> Present:
    loaded, smi = _loaded_driver(probe), probe.driver.smi.gpus
    installed, is_bound = probe.driver.installed, any(gpu.kernel_driver == "nvidia" for gpu in probe.gpus)
    agrees = is_bound and installed is not None and loaded is not None and installed.version == loaded
    return Present(
        verified=probe.verified_plan or VerifiedPlan(),
        requested=probe.requested or {},
        verified_at=probe.verified.at if probe.verified else "",
        driver_works=agrees
        if probe.driver.nvidia_smi is None
        else bool(smi) and all(gpu.driver_version in (None, loaded) for gpu in smi),
        loaded_modules=probe.driver.loaded.kernel_modules if probe.driver.loaded else "",
        changed_packages=probe.changed_packages,
    )


def _with_held(offers: Mapping[str, tuple[str, ...]], probe: Probe) -> dict[str, tuple[str, ...]]:
    """Return what is offered and what is there on hold, which need not be offered any more."""
    held = {name: version for name, version in probe.foreign_holds.items() if version}
    return {**offers, **{name: tuple(dict.fromkeys((*offers.get(name, ()), v))) for name, v in held.items()}}


def _loaded_driver(probe: Probe) -> str | None:
    """Return the loaded kernel module's version, as /proc or, where a container lacks that, nvidia-smi reports it."""
    if probe.driver.loaded:
        return probe.driver.loaded.version
    return next((gpu.driver_version for gpu in probe.driver.smi.gpus if gpu.driver_version), None)


def _display(found: Display) -> str:
    manager = f"display manager {found.manager}" + ("" if found.graphical else ", not started at boot")
    connected = f"display at {', '.join(found.connected)}"
    return "; ".join([manager] * bool(found.manager) + [connected] * bool(found.connected))


def _is_configured(probe: Probe) -> bool:
    url = probe.repository.url if probe.repository else None
    entries = probe.repository_files.entries
    return url is not None and any(entry.uri.rstrip("/") == url.rstrip("/") for entry in entries)


def _gpus(probe: Probe) -> tuple[HostGpu, ...]:
    reported = {gpu.pci_address: gpu for gpu in probe.driver.smi.gpus}
    gpus = []
    for device in probe.gpus:
        if device.pci_class.startswith(_DISPLAY_CLASS):
            known = reported.get(device.pci_address)
            gpus.append(
                HostGpu(
                    pci_id=device.pci_id.lower(),
                    pci_address=device.pci_address,
                    name=known.name if known else None,
                    compute_capability=known.compute_capability if known else None,
                    vgpu=device.vgpu,
                    subsystem_id=device.subsystem_id,
                    kernel_driver=device.kernel_driver,
                )
            )
    return tuple(gpus)
