"""The probe as typed records: what `gpuhost.stack.gpu_probe` reads on a host.

The module's JSON becomes a `Probe` where it enters the controller's code. A part that the module could not read is null
in the JSON and has its default here: None, or a record of which nothing is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.model import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model import records


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The distribution release from os-release; `id` is that of the catalog, such as `ubuntu-24.04`."""

    id: str
    pretty_name: str = ""


@dataclasses.dataclass(frozen=True)
class KernelRelease:
    """What a host says about a kernel.

    package: the one with its image, None where no package owns it. metas: the installed metapackages of its flavour,
    such as `linux-image-generic`. compiler: its description in the kernel's configuration, gcc: the major of that, None
    where it is not known or another compiler. compression: of its modules (`zst`, `xz`, `gz`).
    """

    package: str | None = None
    metas: tuple[str, ...] = ()
    compiler: str | None = None
    gcc: int | None = None
    compression: str | None = None


@dataclasses.dataclass(frozen=True)
class KernelOffer:
    """A package that apt offers: the kernel releases whose headers it brings, and the kernels that it would install."""

    headers: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Kernel releases: the running one, the next-boot one, those that are installed, and those with their headers.

    releases: what is known of each. installed_packages, offers: those of the packages to build modules with
    that are installed, and that are in apt's lists (None: not searched, since nothing is missing, or apt has none).
    headers_from: for each release without headers, the packages that provide them; None: apt has no lists.
    held_back: the one that the kernel guard keeps from being the next-boot kernel. next_boot_unknown: why that is None.
    initramfs_mib: the size of the largest initramfs in /boot. build_jobs: how many files DKMS compiles at a time.
    prebuilt: the releases for which apt offers NVIDIA's modules prebuilt, by package, exact ones and metapackages;
    None: not searched, or apt has no lists. menu_entries: the identifiers of kernels in GRUB's menu. grub_defaults: by
    file, in the order in which grub-mkconfig reads them (that of their names), what it sets as GRUB_DEFAULT.
    """

    running: str | None = None
    next_boot: str | None = None
    next_boot_unknown: str = ""
    installed: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    releases: Mapping[str, KernelRelease] = dataclasses.field(default_factory=dict)
    installed_packages: tuple[str, ...] = ()
    offers: Mapping[str, KernelOffer] | None = None
    headers_from: Mapping[str, tuple[str, ...]] | None = None
    prebuilt: Mapping[str, str] | None = None
    initramfs_mib: int = 0
    build_jobs: int = 1
    held_back: str | None = None
    menu_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grub_defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Python:
    """Paths of the interpreters by version (`3.12`), the version of /usr/bin/python3, whether that has ensurepip.

    headers: the versions with Python.h beside the interpreter, None where that was not read.
    """

    default: str | None = None
    ensurepip: bool = True
    interpreters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headers: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """Versions of the default compiler (its major) and the C library.

    c_compilers: paths of those that Triton can use, None where that was not read.
    """

    gcc: str | None = None
    glibc: str | None = None
    c_compilers: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Gpu:
    """An NVIDIA display or 3D controller on the PCI bus; kernel_driver: the kernel module bound to it.

    subsystem_id: as `10de:130f`, None where it is not known.
    vgpu: the driver version of the hypervisor ("" where unknown) if this is a part of a card, None for a whole one.
    """

    pci_id: str
    pci_address: str = ""
    pci_class: str = dataclasses.field(default="03", metadata={"key": "class"})
    kernel_driver: str | None = None
    vgpu: str | None = None
    subsystem_id: str | None = None


@dataclasses.dataclass(frozen=True)
class ForeignDriver:
    """Why a host is to have no driver of its own: `wsl`, `driver-container`, `vgpu-host`, `proxmox`; found: by what."""

    kind: str
    found: str


@dataclasses.dataclass(frozen=True)
class Display:
    """The signs that this host has a local user with a display.

    manager: the service of the display manager; graphical: whether the host boots to graphical.target, and so to that
    manager; connected: the connectors with a display, such as `card1-HDMI-A-1`.
    """

    manager: str | None = None
    graphical: bool = False
    connected: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NvSwitch:
    """An NVSwitch on the PCI bus."""

    pci_id: str
    pci_address: str = ""


@dataclasses.dataclass(frozen=True)
class PcieLink:
    """Current and maximum speed (GT/s) and width (lanes) of a PCIe link; None where the kernel reports none."""

    speed: float | None = None
    max_speed: float | None = None
    width: int | None = None
    max_width: int | None = None


@dataclasses.dataclass(frozen=True)
class PcieGpu:
    """A GPU's own link, the link of the slot (bridge) above it, and the type of its IOMMU group's domain."""

    link: PcieLink = PcieLink()
    slot: PcieLink = PcieLink()
    iommu_type: str | None = None


@dataclasses.dataclass(frozen=True)
class Pcie:
    """GPUs by PCI address, enabled ACS controls by bridge (None: unreadable), kernel options about IOMMU and PCI."""

    gpus: Mapping[str, PcieGpu] = dataclasses.field(default_factory=dict)
    acs: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    kernel_options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class LoadedDriver:
    """The loaded NVIDIA kernel module; kernel_modules: `open` or `proprietary`."""

    version: str
    kernel_modules: str = ""


@dataclasses.dataclass(frozen=True)
class SmiGpu:
    """A GPU as nvidia-smi lists it; drivers before 510 report no compute capability."""

    pci_address: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    driver_version: str | None = None


@dataclasses.dataclass(frozen=True)
class NvidiaSmi:
    """The answer of nvidia-smi; no GPU where it failed. seconds: what it took; mig: addresses of GPUs in MIG mode."""

    gpus: tuple[SmiGpu, ...] = ()
    seconds: float = 0.0
    mig: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class InstalledDriver:
    """The driver whose libcuda is on the host; version: None without one, package: None where no package has it."""

    version: str | None = None
    package: str | None = None


@dataclasses.dataclass(frozen=True)
class DkmsLeftover:
    """A module of DKMS, NAME/VERSION, that no package has any more."""

    module: str
    has_source: bool


@dataclasses.dataclass(frozen=True)
class Driver:
    """The kernel modules that are loaded, what nvidia-smi reports, and what is installed.

    installed: None in probes of earlier versions, and where it could not be read.
    """

    loaded: LoadedDriver | None = None
    nouveau_loaded: bool = False
    nvidia_smi: NvidiaSmi = NvidiaSmi()
    installed: InstalledDriver | None = None
    dkms_leftovers: tuple[DkmsLeftover, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModulesOfOthers:
    """Kernel modules of others that the host depends on, `zfs` or `ofed`; found: the evidence; dkms: DKMS builds them.

    peermem: nvidia-peermem is loaded, by which network cards reach the GPUs' memory (GPUDirect RDMA).
    """

    name: str
    found: str
    dkms: bool = False
    peermem: bool = False


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU; name: its command line, program: the kernel's name for it, cut to 15 characters.

    computes: nvidia-smi lists it as a compute process; devices: its open files below /dev, such as `nvidia-uvm`.
    """

    pid: int
    name: str = ""
    program: str = ""
    computes: bool = False
    devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class InstalledPackage:
    """A package in dpkg's database, with dpkg's name of its state; depends: the names in its dependencies."""

    version: str
    status: str = "installed"
    held: bool = False
    depends: tuple[str, ...] = ()

    @property
    def is_present(self) -> bool:
        """Whether files of it are on the host, configured or not."""
        return bool(self.version) and self.status not in ("config-files", "not-installed")


@dataclasses.dataclass(frozen=True)
class PackageLock:
    """A lock of the package manager and its holder; pid is None for a process of another PID namespace."""

    path: str
    pid: int | None = None
    command: str | None = None


@dataclasses.dataclass(frozen=True)
class BrokenPackage:
    """A package that dpkg left between two states; of_others: gpuhost has not changed it."""

    name: str
    state: str
    of_others: bool = False


@dataclasses.dataclass(frozen=True)
class PackageManager:
    """Whether apt could start now; interrupted: dpkg left a journal of an unfinished run."""

    name: str
    locks: tuple[PackageLock, ...] = ()
    broken: tuple[BrokenPackage, ...] = ()
    interrupted: bool = False


@dataclasses.dataclass(frozen=True)
class RunfileDriver:
    """A driver from NVIDIA's .run installer; uninstaller is None where only other traces of it remain."""

    uninstaller: str | None = None
    traces: tuple[str, ...] = ()
    version: str | None = None


@dataclasses.dataclass(frozen=True)
class RunfileToolkit:
    """A CUDA toolkit from NVIDIA's .run installer."""

    version: str
    uninstaller: str


@dataclasses.dataclass(frozen=True)
class Runfile:
    """The driver and toolkits from NVIDIA's .run installers."""

    driver: RunfileDriver | None = None
    toolkits: tuple[RunfileToolkit, ...] = ()


@dataclasses.dataclass(frozen=True)
class PackageSize:
    """Sizes of a package with all packages of the repository that it depends on, which `includes` names."""

    download_kib: int
    installed_kib: int
    includes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Repository:
    """NVIDIA's repository: versions by package, newest first, and sizes by package and version.

    error: why it could not be read; what it offers is then unknown. unreachable: why apt's lists of it could not be
    compared with the server's.
    """

    url: str | None = None
    packages: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, PackageSize]] = dataclasses.field(default_factory=dict)
    error: str | None = None
    unreachable: str | None = None


@dataclasses.dataclass(frozen=True)
class SourceEntry:
    """An apt source; signed_by: the key file, fingerprints, or None for any trusted key.

    offers: whether apt's lists of it have packages that a plan may install; None where there are no lists.
    """

    file: str
    uri: str
    signed_by: str | None = None
    offers: bool | None = None


@dataclasses.dataclass(frozen=True)
class PreferredSource:
    """A source of others whose packages apt would take in place of NVIDIA's or the distribution's.

    file: empty where none was found that defines it; suite: with the component, as apt prints it; mixed: the file also
    defines other repositories. pins: the files of preferences that give it its priority, none where that is apt's own.
    packages: the versions that apt would take. refused: the files with a negative pin that keeps apt from the planned.
    """

    file: str
    uri: str
    suite: str
    priority: int
    packages: Mapping[str, str]
    pins: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    mixed: bool = False


@dataclasses.dataclass(frozen=True)
class RepositoryFiles:
    """apt sources of NVIDIA's software and fingerprints of NVIDIA's globally trusted keys, by file.

    mixed: those of the files that also contain other sources or keys. preferred: the sources of whatever software that
    would win over NVIDIA's repository or the distribution's archive.
    """

    entries: tuple[SourceEntry, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    mixed: tuple[str, ...] = ()
    preferred: tuple[PreferredSource, ...] = ()


@dataclasses.dataclass(frozen=True)
class InstalledCuda:
    """Releases of the toolkits in /usr/local, oldest first, and of the distribution's own toolkit in /usr.

    default: the release that /usr/local/cuda points to.
    """

    installed: tuple[str, ...] = ()
    default: str | None = None
    distro: str | None = None


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment of a framework: its version and its Python's; lock: the beginning of its lock's SHA-256."""

    version: str
    python: str | None = None
    path: str | None = None
    lock: str | None = None


@dataclasses.dataclass(frozen=True)
class Cpu:
    """The processor's name, and the features that all processors have, as in /proc/cpuinfo."""

    model: str = ""
    flags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """A key that DKMS signs modules with; enrolled is None where the firmware's list could not be read.

    key_id: by which the kernel knows the key, hexadecimal.
    """

    path: str
    enrolled: bool | None = None
    key_id: str | None = None


@dataclasses.dataclass(frozen=True)
class SignaturesEnforced:
    """A kernel that loads only modules with a trusted signature; by: kernel options, "SETTING in FILE", and files."""

    by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModulesDisabled:
    """A kernel that loads no module until the next boot; by: the files and kernel options that have it do so."""

    by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class DiskSpace:
    """Free space of the file system that a directory is on, and where that is mounted."""

    free_mib: int
    mount: str


@dataclasses.dataclass(frozen=True)
class SettingsLine:
    """A line in a file of settings of others that breaks the stack, such as a global LD_LIBRARY_PATH."""

    file: str
    line: str


@dataclasses.dataclass(frozen=True)
class Repairs:
    """What is damaged: packages to install again, environments to rebuild, services to enable, lines to disable."""

    packages: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    lines: tuple[SettingsLine, ...] = ()


@dataclasses.dataclass(frozen=True)
class AppliedPart:
    """A part as the last complete run recorded it; changed: one sentence for each difference from the record.

    fingerprint: None for a part without a record, of which only damage is known. damage: a message by the name of what
    is damaged; accepted: the damage that stays (gpu_stack_accept_damage). why: the reason to apply a part whose record
    does not show whether it is whole.
    """

    fingerprint: str | None = None
    changed: tuple[str, ...] = ()
    repairs: Repairs = Repairs()
    damage: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accepted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    why: str = ""


@dataclasses.dataclass(frozen=True)
class VerifiedTraining:
    """A training that verified a configuration.

    finished: UTC, in ISO 8601; stack: the fingerprint of components and locks; hardware: the GPUs and the driver;
    result: its key figures; checks: the outcome of each of its checks by id, empty in records of earlier versions.
    """

    finished: str
    stack: str
    hardware: Mapping[str, Any]
    status: str
    result: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Verified:
    """What verified the last verified configuration, and when (UTC, ISO 8601); empty in records of earlier versions.

    checks: the outcome of each check by id; trainings: by framework.
    """

    at: str = ""
    stack: str = ""
    checks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trainings: Mapping[str, VerifiedTraining] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class VerifiedComponent:
    """A component of the verified configuration, with what can be requested of it; as in a plan, of any release."""

    version: str
    release: str = ""
    source: str = ""
    kernel_modules: str = ""
    profile: str = ""
    module_source: str = ""
    cuda: str = ""
    cuda_libraries: str = ""
    packages: tuple[Package, ...] = ()
    pinning_packages: tuple[Package, ...] = ()


@dataclasses.dataclass(frozen=True)
class VerifiedPlan:
    """The components of the verified configuration by name, None where it left one out; gpus: their PCI ids then."""

    components: Mapping[str, VerifiedComponent | None] = dataclasses.field(default_factory=dict)
    gpus: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class EndedTransaction:
    """What a package transaction did whose run lost the connection or was killed; failed: its error."""

    what: str
    changes: int
    ended: str
    failed: str | None = None


@dataclasses.dataclass(frozen=True)
class Transaction:
    """gpuhost's package transactions: the process that runs one, and the result of the last, if no run got it."""

    running: PackageLock | None = None
    ended: EndedTransaction | None = None


@dataclasses.dataclass(frozen=True)
class Pending:
    """A change that was begun and is neither verified nor rolled back."""

    since: str = ""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Everything that gpu_probe reads from a host; distribution: None where os-release could not be read.

    architecture: as `uname -m` prints it. uid: the user that it read as, 0 for root; may_write: whether that user may
    write to a directory, by path.
    run: the run that changes the host, as the module run_lock records it, if any.
    requested, verified_plan: of the verified configuration, if any. changed_packages: those that gpuhost changed.
    newer_state: which record a later gpuhost wrote. errors: why parts could not be read, "PART: CAUSE".
    """

    gpus: tuple[Gpu, ...]
    uid: int = 0
    may_write: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    distribution: Distribution | None = None
    architecture: str = ""
    cpu: Cpu | None = None
    kernel: Kernel = Kernel()
    python: Python = Python()
    toolchain: Toolchain = Toolchain()
    nvswitches: tuple[NvSwitch, ...] = ()
    pcie: Pcie = Pcie()
    display: Display = Display()
    driver: Driver = Driver()
    foreign_driver: ForeignDriver | None = None
    modules_of_others: tuple[ModulesOfOthers, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    packages: Mapping[str, InstalledPackage] | None = None
    foreign_holds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    package_manager: PackageManager | None = None
    transaction: Transaction = Transaction()
    run: Mapping[str, Any] | None = None
    cloud_init_running: bool = False
    runfile: Runfile = Runfile()
    repository: Repository | None = None
    repository_files: RepositoryFiles = RepositoryFiles()
    cuda: InstalledCuda = InstalledCuda()
    tensorflow: Environment | None = None
    tensorflow_in_the_way: str | None = None
    pytorch: Environment | None = None
    pytorch_in_the_way: str | None = None
    secure_boot: str = "unknown"
    secure_boot_keys: tuple[SigningKey, ...] = ()
    trusted_certificates: tuple[str, ...] | None = None
    signatures_enforced: SignaturesEnforced | None = None
    kernel_keys: tuple[str, ...] | None = None
    modules_disabled: ModulesDisabled | None = None
    disk: Mapping[str, DiskSpace] = dataclasses.field(default_factory=dict)
    applied: Mapping[str, AppliedPart] = dataclasses.field(default_factory=dict)
    masked_services: tuple[str, ...] = ()
    verified: Verified | None = None
    requested: Mapping[str, str] | None = None
    verified_plan: VerifiedPlan | None = None
    changed_packages: tuple[str, ...] = ()
    pending: Pending | None = None
    newer_state: str | None = None
    simulated: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Any) -> Probe:
        """Read the `probe` of gpuhost.stack.gpu_probe; raises records.RecordError with the path of a wrong field."""
        return records.from_json(cls, data, "probe")

    @property
    def present_packages(self) -> dict[str, InstalledPackage]:
        """The packages with files on the host, by name; none where dpkg's database could not be read."""
        return {name: package for name, package in (self.packages or {}).items() if package.is_present}

    @property
    def package_sizes(self) -> Mapping[str, Mapping[str, PackageSize]]:
        """Sizes of the repository's packages by name and version; none where it could not be read."""
        return self.repository.sizes if self.repository else {}

    @property
    def trusts_dkms(self) -> bool:
        """Whether a module that DKMS signs can be loaded: its key is enrolled, or with signatures enforced, known."""
        return any(self.trusts(key.key_id, key.enrolled) for key in self.secure_boot_keys)

    def trusts(self, key_id: str | None, enrolled: bool | None) -> bool:
        """Return whether the kernel trusts a key: by its own list where signatures are enforced without Secure Boot."""
        if self.secure_boot == "enabled" or self.kernel_keys is None or key_id is None:
            return bool(enrolled)
        return key_id in self.kernel_keys

    def environment(self, framework: str) -> Environment | None:
        """Return the environment of `tensorflow` or `pytorch`."""
        return {"tensorflow": self.tensorflow, "pytorch": self.pytorch}[framework]

    def in_the_way(self, framework: str) -> str | None:
        """Return what occupies the path of a framework's environment, such as `a directory`; gpuhost's link is None."""
        return {"tensorflow": self.tensorflow_in_the_way, "pytorch": self.pytorch_in_the_way}[framework]
