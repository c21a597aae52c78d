"""Define the schema of the catalog: a frozen dataclass for each kind of entry in catalog/.

Runs on the controller. A field with a default is optional in the YAML. `cpu_architectures`, as `uname -m` prints them:
at the head of a file those of all its entries, in an entry its own in place of these; see architectures.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, Self, cast

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import kind_of
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words

Modules = Literal["proprietary", "either", "open"]
Family = Literal["debian", "ubuntu", "rhel"]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A GPU architecture and its compute capabilities."""

    name: str
    compute_capabilities: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class ModuleRule:
    """The kernel modules that the GPUs of some architectures accept: `proprietary`, `either` or `open`."""

    architectures: tuple[str, ...]
    accepts: Modules
    source: str


@dataclasses.dataclass(frozen=True)
class FirstDriver:
    """GPUs that drivers of their architecture's branches know only from these versions on.

    drivers: the first version in each branch, or the branch where all its versions do; every later branch does as well,
    every other one does not. modules: `open` or `proprietary` where only that flavour is concerned.
    """

    drivers: tuple[str, ...]
    devices: tuple[str, ...]
    modules: str | None = None


@dataclasses.dataclass(frozen=True)
class FirstDrivers:
    """The GPUs that came after the first release of a branch."""

    source: str
    gpus: tuple[FirstDriver, ...]


@dataclasses.dataclass(frozen=True)
class LegacyGpus:
    """GPUs that are too old for every driver branch of the catalog. driver: the last branch that served them."""

    driver: str
    devices: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class ChipOnly:
    """A PCI device id of which public sources name the chip, but not the compute capability."""

    device: str
    chip: str
    source: str


@dataclasses.dataclass(frozen=True)
class OtherMachine:
    """GPUs of machines that need more than a driver and CUDA, or another driver.

    fewest: how many of them such a machine has at least; instead: what sets it up
    """

    devices: tuple[str, ...]
    machine: str
    why: str
    instead: str
    source: str
    fewest: int = 1


@dataclasses.dataclass(frozen=True)
class SmallGpus:
    """GPUs by chip and by PCI device id; most: the number of multiprocessors that none of them exceeds."""

    most: int
    chips: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FewMultiprocessors:
    """The GPUs that TensorFlow leaves out beside a larger one."""

    gpus: tuple[SmallGpus, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class GpuFile:
    """gpu.yml."""

    schema: int
    architectures: tuple[Architecture, ...]
    kernel_modules: tuple[ModuleRule, ...]
    first_drivers: FirstDrivers | None = None
    legacy: tuple[LegacyGpus, ...] = ()
    chip_only: tuple[ChipOnly, ...] = ()
    other_machines: tuple[OtherMachine, ...] = ()
    few_multiprocessors: FewMultiprocessors | None = None


@dataclasses.dataclass(frozen=True)
class Product:
    """A PCI device id of NVIDIA: one row of gpu_products.csv.

    arm_only: the source that says that the product exists with an Arm processor alone; empty for all others, whose
    rows may end before it.
    """

    device: str
    name: str
    chip: str
    architecture: str
    compute_capability: str
    kernel_modules: Modules
    last_driver_branch: str
    source: str
    arm_only: str = ""


@dataclasses.dataclass(frozen=True)
class GpuName:
    """Another name that nvidia-smi prints for a PCI device id, by the card's subsystem: one row of gpu_names.csv.

    Source: g_nv_name_released.h of NVIDIA's open kernel modules 595.45.04 (from Turing on), where it names no other.
    """

    device: str
    name: str
    source: str


@dataclasses.dataclass(frozen=True)
class Vgpu:
    """Parts of a card that a hypervisor shows to a virtual machine as cards of their own: one row of vgpus.csv.

    They have the card's PCI device id, and NVIDIA's subsystem ids `first` to `last`, which no card has. All ids in a
    row are listed. Sources: g_nv_name_released.h of NVIDIA's open kernel modules 595.45.04 (from Turing on),
    vgpu_unlock_hooks.c of DualCoder/vgpu_unlock (before).
    """

    device: str
    first: str
    last: str
    source: str


@dataclasses.dataclass(frozen=True)
class Xid:
    """A number of the driver's Xid messages: one row of xids.csv.

    outcome: what gpu.xid_errors does about a message: fail, warn, pass (it is shown), or decode (see XidNvlink).
    blame: `hardware` where no driver can cause it, an uncorrectable error of the memory (NVIDIA's "GPU memory error
    management") or missing power; empty for a failure of the stack.
    nvidia: the immediate action that NVIDIA's catalogue asks for, which is no severity: CONTACT_SUPPORT also marks
    unused numbers, WORKFLOW_* describes several cases; `none` where it asks for nothing.
    """

    number: str
    outcome: Literal["fail", "warn", "pass", "decode"]
    blame: str
    meaning: str
    nvidia: str
    source: str


@dataclasses.dataclass(frozen=True)
class XidNvlink:
    """What a message of NVLink's errors since Blackwell means: one row of xid_nvlink.csv.

    unit: the names that a message may begin with; info, older_info: the bits of its first number from branch 575 on and
    before, `-` for either; status: its second number.
    """

    number: str
    unit: str
    info: str
    older_info: str
    status: str
    outcome: Literal["fail", "pass"]
    nvidia: str
    source: str


@dataclasses.dataclass(frozen=True)
class UserSetting:
    """What our programs do with a variable of the users: one row of user_settings.csv.

    use: dropped; replaced: dropped without a word, since a row with `set` takes its place; asked: dropped only where a
    file sets it for all users; kept, whatever else matches; set to value.
    programs: all, or those that build environments. name: a shell pattern. effect: what the variable or, for set, the
    file that it replaces would change
    """

    use: Literal["dropped", "replaced", "asked", "kept", "set"]
    programs: Literal["all", "build"]
    name: str
    value: str
    effect: str
    source: str


@dataclasses.dataclass(frozen=True)
class GpuModel:
    """Bandwidths of a GPU model in GB/s, one direction; nvlink is None where it depends on the host's wiring.

    links: the number of NVLinks, None where the model has none or boards leave some unused.
    """

    name: str
    devices: tuple[str, ...]
    host: int
    memory: int
    nvlink: int | None
    links: int | None
    source: str


@dataclasses.dataclass(frozen=True)
class PcieRate:
    """The GB/s of one PCIe lane (lane) at a speed in GT/s."""

    speed: float
    lane: float
    source: str


@dataclasses.dataclass(frozen=True)
class NvlinkRate:
    """The GB/s of one NVLink for which nvidia-smi prints a speed."""

    printed: float
    gb_per_second: float
    source: str


@dataclasses.dataclass(frozen=True)
class CounterRow:
    """How a counter of nvidia-smi is judged; names: as printed, `*` for any text.

    total, grows, over: outcomes where it is not 0, where it grew during the training, and by more than `limit`.
    """

    names: tuple[str, ...]
    total: str
    grows: str
    source: str
    limit: float | None = None
    unit: str | None = None
    over: str | None = None


@dataclasses.dataclass(frozen=True)
class GpuThresholdFile:
    """gpu_thresholds.yml."""

    schema: int
    pcie_percent: int
    pcie_rates: tuple[PcieRate, ...]
    pair_percent: int
    nvlink_rates: tuple[NvlinkRate, ...]
    host_percent: int
    memory_percent: int
    nvlink_percent: int
    models: tuple[GpuModel, ...]
    counters: tuple[CounterRow, ...]


@dataclasses.dataclass(frozen=True)
class DriverVersion:
    """A driver release. archives: where it was found (`nvidia`, `ubuntu`, `debian`)."""

    version: str
    archives: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Branch:
    """A driver branch. without: compute capabilities of its architectures that it does not support."""

    branch: str
    type: Literal["LTSB", "PB", "NFB", "legacy", "unknown"]
    maintained: bool
    end_of_life: str | None
    native_cuda: str
    architectures: tuple[str, ...]
    without: tuple[str, ...]
    kernel_modules: tuple[str, ...]
    versions: tuple[DriverVersion, ...]
    source: str
    newest_kernel: str | None = None
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class DriverSet:
    """The package names of a driver by its kernel modules; none where there is no such set."""

    open: tuple[str, ...]
    proprietary: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DriverSets(DriverSet):
    """The package names of a driver: those of the profile `compute`, and in `full` those of that profile."""

    full: DriverSet

    def of(self, profile: str, kernel_modules: str) -> tuple[str, ...]:
        """Return the packages of a profile; none where there is no such set."""
        found: tuple[str, ...] = getattr(self.full if profile == "full" else self, kernel_modules)
        return found

    def names(self) -> tuple[str, ...]:
        """Return the packages of all sets, each once."""
        return tuple(dict.fromkeys((*self.open, *self.proprietary, *self.full.open, *self.full.proprietary)))


@dataclasses.dataclass(frozen=True)
class DriverPackages(DriverSets):
    """The packages of a range of branches in NVIDIA's repository.

    revision: with {dist}, the distribution release in the versions of rpm packages; epoch: of these versions.
    """

    family: Family
    first_branch: str
    last_branch: str | None
    revision: str
    source: str
    epoch: str | None = None
    cpu_architectures: tuple[str, ...] | None = None

    def package_version(self, version: str, dist: str) -> str:
        """Return the version of the packages of a driver's release."""
        return f"{f'{self.epoch}:' if self.epoch else ''}{version}-{self.revision.format(dist=dist)}"


@dataclasses.dataclass(frozen=True)
class Pinning:
    """NVIDIA's package that pins a driver branch, for some families of distributions."""

    package: str
    families: tuple[Family, ...]
    first_branch: str
    source: str


@dataclasses.dataclass(frozen=True)
class DriverFile:
    """driver.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    branches: tuple[Branch, ...]
    packages: tuple[DriverPackages, ...]
    pinning: Pinning
    name_patterns: tuple[str, ...]
    name_exceptions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MinorVersionCompatibility:
    """The oldest driver that runs programs of a CUDA major."""

    cuda_major: int
    min_driver: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudaNames:
    """NVIDIA's names of the toolkit's packages; series and metapackages are regular expressions."""

    toolkit: str
    revision: str
    home: str
    series: str
    metapackages: str
    source: str


@dataclasses.dataclass(frozen=True)
class RuntimeLibrary:
    """The name by which programs of a range of CUDA releases load a library."""

    first: str
    last: str | None
    soname: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudaRelease:
    """A published CUDA release X.Y.Z. min_driver: the driver that it was released with."""

    version: str
    min_driver: str | None
    source: str


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit X.Y."""

    version: str
    releases: tuple[CudaRelease, ...]
    compute_capabilities: tuple[str, ...]
    max_gcc: int
    max_glibc: str | None
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CudaFile:
    """cuda.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    minor_version_compatibility: tuple[MinorVersionCompatibility, ...]
    names: CudaNames
    libcudart: tuple[RuntimeLibrary, ...]
    toolkits: tuple[Toolkit, ...]
    libcusolver: tuple[RuntimeLibrary, ...] = ()


@dataclasses.dataclass(frozen=True)
class CudnnNames:
    """NVIDIA's names of the packages of a cuDNN major, for families of distributions.

    other_builds: a regular expression of the packages that must be removed, since they have the same files.
    """

    families: tuple[Family, ...]
    cudnn_major: int
    runtime: str
    development: tuple[str, ...]
    version: str
    source: str
    other_builds: str | None = None
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CudnnSupport:
    """The compute capabilities that a range of cuDNN versions has code for."""

    first: str
    last: str | None
    cuda_majors: tuple[int, ...]
    min_compute_capability: str
    max_compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudnnAptBuild:
    """A cuDNN 7 or 8 package and the CUDA releases it was built for; slugs is None if any repository may offer it."""

    version: str
    cuda: tuple[str, ...]
    slugs: tuple[str, ...] | None
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CudnnVersion:
    """A published cuDNN and the CUDA majors that it was built for."""

    version: str
    cuda_majors: tuple[int, ...]
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CudnnFile:
    """cudnn.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    names: tuple[CudnnNames, ...]
    support: tuple[CudnnSupport, ...]
    apt_builds: tuple[CudnnAptBuild, ...]
    versions: tuple[CudnnVersion, ...]


@dataclasses.dataclass(frozen=True)
class NcclNames:
    """NVIDIA's names of the NCCL packages, for families of distributions."""

    families: tuple[Family, ...]
    packages: tuple[str, ...]
    version: str
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class NcclSupport:
    """The compute capabilities that a range of NCCL versions has code for."""

    first: str
    last: str | None
    cuda_major: int
    min_compute_capability: str
    max_compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class NcclBuild:
    """A published NCCL package; slugs is None if any repository of NVIDIA's may offer it."""

    version: str
    cuda: str
    slugs: tuple[str, ...] | None
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class NcclFile:
    """nccl.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    names: tuple[NcclNames, ...]
    support: tuple[NcclSupport, ...]
    builds: tuple[NcclBuild, ...]


@dataclasses.dataclass(frozen=True)
class TestedBuild:
    """The CUDA and cuDNN that a framework's release was built and tested with."""

    cuda: str
    cudnn: str


@dataclasses.dataclass(frozen=True)
class AndCuda:
    """The requirements of tensorflow[and-cuda] on the CUDA wheels.

    pythons: those that every pinned wheel exists for; None where that is all of the release's own.
    """

    cuda_major: int
    cudnn: str
    nccl: str
    pythons: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TensorflowRelease:
    """A TensorFlow release; sass and ptx are empty if its wheel has not been inspected for GPU architectures.

    sass_in_part: compute capabilities that only some of the wheel's kernels have machine code for.
    """

    version: str
    pythons: tuple[str, ...]
    tested: TestedBuild
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    and_cuda: AndCuda | None
    source: str
    package: Literal["tensorflow", "tensorflow-gpu"] = "tensorflow"
    sass_in_part: tuple[str, ...] = ()
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class PublishedRun:
    """A published run of a released wheel on GPUs that the toolkit it was built with does not know.

    source: where it was published; xla: where one with code that XLA compiled was.
    """

    first: str
    last: str | None
    compute_capabilities: tuple[str, ...]
    source: str
    xla: str


@dataclasses.dataclass(frozen=True)
class OfTheirTime:
    """The releases that newer dependencies break, and the packages that are as new as they are nevertheless."""

    releases: str
    any_age: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class SourceOnly:
    """Releases that pin a package without a wheel for these Pythons, None: for any; and_cuda: only with [and-cuda]."""

    releases: str
    package: str
    and_cuda: bool
    pythons: tuple[str, ...] | None
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CpuOnly:
    """Releases whose wheels on PyPI for a CPU architecture have no code for GPUs, although their locks resolve.

    releases: a specifier of versions.
    """

    releases: str
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TensorflowFile:
    """tensorflow.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    releases: tuple[TensorflowRelease, ...]
    of_their_time: OfTheirTime | None = None
    source_only: tuple[SourceOnly, ...] = ()
    published_runs: tuple[PublishedRun, ...] = ()
    cpu_only: tuple[CpuOnly, ...] = ()


@dataclasses.dataclass(frozen=True)
class PytorchIndex:
    """PyTorch's own package index; url: with {major} and {minor} of a CUDA release."""

    url: str
    source: str


@dataclasses.dataclass(frozen=True)
class PytorchBuild:
    """The wheels of a PyTorch release for one CUDA release; index: `pypi`, or `own` for PyTorch's own."""

    cuda: str
    index: Literal["pypi", "own"]
    cudnn: str
    nccl: str
    sass: tuple[str, ...]
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class TritonPackages:
    """The packages with which Triton compiles on the host, for families of distributions; headers: with {python}."""

    families: tuple[Family, ...]
    compiler: tuple[str, ...]
    headers: str
    source: str


@dataclasses.dataclass(frozen=True)
class Triton:
    """What Triton compiles with on the host, for releases of PyTorch whose eager operations need it.

    compute_capability: the oldest for which any release compiles.
    """

    releases: str
    packages: tuple[TritonPackages, ...]
    compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class PytorchRelease:
    """A PyTorch release with its builds."""

    version: str
    pythons: tuple[str, ...]
    builds: tuple[PytorchBuild, ...]
    source: str

    @property
    def pypi_build(self) -> PytorchBuild | None:
        """Return the build of PyPI's wheel; None if PyPI has none."""
        return next((build for build in self.builds if build.index == "pypi"), None)


FrameworkRelease = TensorflowRelease | PytorchRelease


@dataclasses.dataclass(frozen=True)
class PytorchFile:
    """pytorch.yml."""

    schema: int
    cpu_architectures: tuple[str, ...]
    own_index: PytorchIndex
    releases: tuple[PytorchRelease, ...]
    triton: Triton | None = None
    cpu_only: tuple[CpuOnly, ...] = ()


@dataclasses.dataclass(frozen=True)
class WheelCpu:
    """What the wheels of some releases need of a CPU; flags: by the names of /proc/cpuinfo."""

    package: str
    releases: str
    flags: tuple[str, ...]
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class CpuFile:
    """cpu.yml. unmarked_locks: the architecture of the lock files whose names have none."""

    schema: int
    known_architectures: tuple[str, ...]
    unmarked_locks: str
    cpu_architectures: tuple[str, ...]
    wheels: tuple[WheelCpu, ...]


@dataclasses.dataclass(frozen=True)
class RepositoryFile:
    """repository.yml: NVIDIA's apt repositories, and how to recognise conflicting ones.

    architectures: NVIDIA's names of CPU architectures; which of them a distribution release has is in its own file.
    """

    schema: int
    base_url: str
    architectures: dict[str, str]
    keyring: str
    keyring_package: str
    old_key: str
    rivals: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class PackagesFile:
    """packages.yml: package names of no single release; its comments mark globs and regular expressions."""

    schema: int
    installed: tuple[str, ...]
    offered: tuple[str, ...]
    distro_cuda: str
    fabric_manager: tuple[str, ...]
    vgpu_manager: tuple[str, ...]
    proxmox: tuple[str, ...]
    proxmox_kernels: dict[str, str]
    prebuilt_modules: str
    extra_modules: str
    prebuilt_driver: str
    prebuilt: dict[str, str]
    graphics: tuple[str, ...]
    leading: dict[str, str]
    kernel_modules: str
    signed_modules: str
    kernel_tools: tuple[str, ...]
    dkms_with_keys: str
    module_compressors: dict[str, str]
    driver_branch: tuple[str, ...]
    driver_parts: tuple[str, ...]
    cuda_parts: tuple[str, ...]
    metas: tuple[str, ...]
    empty_metas: dict[str, str]
    driver_pins: tuple[str, ...]
    driver_essentials: tuple[str, ...]
    driver_helpers: str
    unattended_upgrades: tuple[str, ...]
    wheels: dict[str, str]
    compiler_wheels: tuple[str, ...]
    gpu_list_packages: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class BadDriver:
    """Drivers whose module does not build: of a branch up to `last`, from `archive`, for kernels from `kernel` on.

    named: an expression of the kernels, where these are of an older series that got the change from a newer one.
    """

    branch: str
    archive: Literal["nvidia", "distro"]
    kernel: str
    last: str
    symptom: str
    instead: str
    source: str
    named: str | None = None


@dataclasses.dataclass(frozen=True)
class BadKernel:
    """Kernels that NVIDIA's modules do not work under: by a setting of their configuration, else by their names.

    setting: None where the names alone tell them; instead: what to do, None for starting a kernel of the archive
    """

    code: str
    setting: str | None
    named: str | None
    symptom: str
    source: str
    instead: str | None = None


@dataclasses.dataclass(frozen=True)
class PoorKernel:
    """Kernels that run and are a poor choice for some GPUs, named as in BadKernel. devices: those GPUs."""

    setting: str
    named: str | None
    devices: tuple[str, ...]
    symptom: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class BadCudnn:
    """A wheel's cuDNN that opens a library which only the system's has, from `system_first` on."""

    wheel_first: str
    wheel_last: str
    system_first: str
    library: str
    symptom: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class BadTensorflow:
    """TensorFlow releases that fail on some GPUs."""

    first: str
    last: str
    compute_capabilities: tuple[str, ...]
    symptom: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class KernelDriver:
    """A module of the kernel that takes NVIDIA's GPUs."""

    module: str
    symptom: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class SecurityFloor:
    """The first version of a driver branch with the fixes of published vulnerabilities."""

    branch: str
    version: str
    symptom: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class KnownBadFile:
    """known_bad.yml: combinations that fail although their versions fit."""

    schema: int
    drivers: tuple[BadDriver, ...]
    kernels: tuple[BadKernel, ...]
    cudnn: tuple[BadCudnn, ...]
    tensorflow: tuple[BadTensorflow, ...]
    kernel_drivers: tuple[KernelDriver, ...]
    security_floors: tuple[SecurityFloor, ...]
    poor_kernels: tuple[PoorKernel, ...] = ()


@dataclasses.dataclass(frozen=True)
class OsRelease:
    """The fields of /etc/os-release that identify a distribution release.

    version_id: without a minor release; platform_id: of a family of distributions, None where there is none.
    """

    id: str
    version_id: str
    codename: str
    platform_id: str | None = None


@dataclasses.dataclass(frozen=True)
class DistroPython:
    """The distribution's Python interpreters.

    packages: by version, those that can be installed beside the default one; empty where each has what it comes with.
    venv: the packages with the module venv, where it is in none of these.
    """

    default: str
    available: tuple[str, ...]
    venv: tuple[str, ...] = ()
    packages: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DistroGcc:
    """The distribution's compilers.

    names: of the packages of the default one, for C and C++; other_names: of another major, with {major}, None where
    the catalog knows none.
    """

    default: int
    available: tuple[int, ...]
    names: tuple[str, str] = ("gcc", "g++")
    other_names: tuple[str, str] | None = ("gcc-{major}", "g++-{major}")

    def of_major(self, major: int) -> tuple[str, ...]:
        """Return the packages of one of the available compilers."""
        names = self.names if self.other_names is None else self.other_names
        return tuple(name.format(major=major) for name in names)

    def for_modules(self, major: int) -> str | None:
        """Return the package with the C compiler of a major; None where the catalog knows none."""
        if self.other_names is None:
            return self.names[0] if major == self.default else None
        return self.other_names[0].format(major=major)


@dataclasses.dataclass(frozen=True)
class KernelHeaders:
    """The header meta package of a kernel flavour. running: an expression that is found in the kernel's release.

    exact: the package with the headers of one kernel, where it has another name than most of the distribution's.
    """

    running: str
    package: str
    source: str
    exact: str | None = None
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class KernelCompiler:
    """The major of the gcc that built kernels. running: an expression that is found in the kernel's release."""

    running: str
    gcc: int
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class DistroKernel:
    """The distribution's kernels; compression: of their modules, such as `zst`, None where they are plain files.

    flavours: of the standard kernel, by CPU architecture.

    releases: an expression of the whole releases of the archive's kernels. The rows are for these alone, and the first
    that fits counts; a kernel may fit none.
    exact: the package with the headers of one kernel, by its {release} or, without what follows a `+`, its {build}.
    metas_of_build: the metapackage of headers depends on the kernel of its own version, which must be one that is
    there. standard: how the release of the standard kernel is made from a series and a flavour.
    image: the package of the standard kernel, None where it is named as its headers are. compressors: packages that
    have other names here than in packages.yml, by compression.
    """

    default: str
    flavours: dict[str, str]
    releases: str
    compression: str | None
    headers: tuple[KernelHeaders, ...]
    compilers: tuple[KernelCompiler, ...]
    exact: str = "linux-headers-{release}"
    metas_of_build: bool = False
    standard: str = "{series}.0-0-{flavour}"
    image: str | None = None
    compressors: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NvidiaRepository:
    """NVIDIA's repository for a distribution release.

    key_fingerprint: None where no public source has it. streams: the module stream of a driver branch, by the flavour
    of the kernel modules and with {branch}; empty where the repository has none.
    """

    slug: str
    key_file: str
    key_fingerprint: str | None
    first_cuda: str
    nccl_cuda_majors: tuple[int, ...] | None
    source: str
    last_cuda: str | None = None
    streams: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class NvidiaBranches:
    """The driver branches in NVIDIA's repository for a distribution release, if it does not have all."""

    first: str | None
    last: str | None
    source: str


@dataclasses.dataclass(frozen=True)
class NvidiaLimits:
    """The first driver branch and the first CUDA in NVIDIA's repository for a CPU architecture, where others are later.

    They count beside those of the distribution release.
    """

    first_branch: str
    first_cuda: str
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class DistroDriver(DriverSets):
    """A driver branch in the distribution's own archive.

    version: the newest there; None where it is the newest that driver.yml has for the family's archives. prebuilt: the
    name under which the archive has the compute set with modules that the distribution has built and signed.
    signed: where the set has none for DKMS, the packages with such modules, which follow updates of the kernel.
    repositories: where the set is, which must be enabled, and by what command; first_release: the minor release from
    which on it is there.
    """

    branch: str
    source: str
    apt_components: tuple[str, ...] = ()
    version: str | None = None
    prebuilt: str | None = None
    signed: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    enable: str = ""
    first_release: str | None = None
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class PrebuiltModules:
    """The driver branches of which the archive has signed modules for the newest kernel of a flavour."""

    flavour: str
    branches: tuple[str, ...]
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class DistroCuda:
    """A CUDA toolkit in the distribution's own archive. min_driver: the branch whose libcuda its packages depend on."""

    version: str
    release: str
    min_driver: str
    packages: tuple[str, ...]
    home: str
    host_compilers: tuple[str, ...]
    apt_components: tuple[str, ...]
    source: str
    cpu_architectures: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Member:
    """A distribution of a family, and what differs there. id: of os-release.

    dkms_repositories: what DKMS needs enabled, with {architecture}; enable: what to type for that, likewise.
    same_repositories: expressions of names under which one repository is there, in clouds for example.
    """

    id: str
    name: str
    dkms_repositories: tuple[str, ...]
    enable: str
    source: str
    distro_drivers: tuple[DistroDriver, ...] = ()
    same_repositories: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Distro:
    """distro/<id>.yml. dkms: the version in the archive, where it is too old to sign with a key of the user's own.

    A file with members is a family of distributions, of which each member is a distribution release of its own in the
    catalog. dist: the release in the versions of rpm packages. planned_only: why this release of gpuhost installs
    nothing on a host of it where SELinux is enforcing. file: the id in the file, of a member. name, dkms_repositories,
    same_repositories, enable: those of the member.
    """

    schema: int
    cpu_architectures: tuple[str, ...]
    id: str
    os_release: OsRelease
    family: Family
    python: DistroPython
    gcc: DistroGcc
    glibc: str
    kernel: DistroKernel
    nvidia_repository: NvidiaRepository
    distro_drivers: tuple[DistroDriver, ...]
    distro_cuda: tuple[DistroCuda, ...]
    source: str
    nvidia_branches: NvidiaBranches | None = None
    nvidia_limits: tuple[NvidiaLimits, ...] = ()
    prebuilt_modules: tuple[PrebuiltModules, ...] = ()
    dkms: str | None = None
    dist: str = ""
    planned_only: str = ""
    file: str = ""
    members: tuple[Member, ...] = ()
    name: str = ""
    dkms_repositories: tuple[str, ...] = ()
    same_repositories: tuple[str, ...] = ()
    enable: str = ""

    def releases(self) -> tuple[Distro, ...]:
        """Return the distribution releases of the file: itself, or one for each member of a family."""
        return tuple(self._of(member) for member in self.members) or (self,)

    def _of(self, member: Member) -> Distro:
        return dataclasses.replace(
            self,
            id=f"{member.id}-{self.os_release.version_id}",
            file=self.id,
            os_release=dataclasses.replace(self.os_release, id=member.id),
            distro_drivers=(*self.distro_drivers, *member.distro_drivers),
            name=member.name,
            dkms_repositories=member.dkms_repositories,
            same_repositories=member.same_repositories,
            enable=member.enable,
            members=(),
        )

    @property
    def path(self) -> str:
        """Where it is in the catalog."""
        return f"distro/{self.file or self.id}.yml"

    @property
    def words(self) -> Words:
        """How messages name its package manager."""
        return kind_of({self.family}).words

    @property
    def signs_modules(self) -> bool:
        """Whether the distribution builds and signs the driver's kernel modules."""
        return bool(self.prebuilt_modules) or any(driver.signed for driver in self.distro_drivers)


@dataclasses.dataclass(frozen=True)
class OtherDistribution:
    """Distributions that are refused by name. ids: of os-release; releases: an expression of their whole versions.

    why: a clause; instead: what to use.
    """

    ids: tuple[str, ...]
    name: str
    releases: str
    why: str
    instead: str
    source: str


@dataclasses.dataclass(frozen=True)
class OtherDistributionsFile:
    """other_distributions.yml."""

    schema: int
    distributions: tuple[OtherDistribution, ...]


@dataclasses.dataclass(frozen=True)
class PackageNames:
    """Names of a component's packages.

    installed, offered: globs of those that a probe reports, of the host and of NVIDIA's repository. leading: the
    expression of those whose version is the component's. kernel_modules: those that NVSwitches of NVLink 5 need.
    """

    installed: tuple[str, ...]
    offered: tuple[str, ...]
    leading: str
    kernel_modules: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentFile:
    """The file of the catalog that one component alone reads: its module has the type, a subclass.

    name: of the component, and of the file.
    """

    name: ClassVar[str]
    schema: int
    cpu_architectures: tuple[str, ...]
    names: PackageNames

    @classmethod
    def of(cls, catalog: Catalog) -> Self:
        """Return the file of a catalog."""
        return cast(Self, catalog.components[cls.name])


@dataclasses.dataclass(frozen=True)
class LockFiles:
    """The locks that exist, and the command that makes others; {names} in it are theirs.

    files: by the name that the file of one Python has, also where one file has the locks of several.
    """

    files: frozenset[str]
    command: str


@dataclasses.dataclass(frozen=True, eq=False)  # compared and hashed by identity, since caches take it as a key
class Catalog:
    """The whole catalog.

    components: the files that one component alone reads, by its name; locks: None where they do not limit a plan.
    pinned: {lock, as in `locks`: {package: version}} of the packages in `cpu`.
    """

    gpu: GpuFile
    gpu_thresholds: GpuThresholdFile
    products: dict[str, Product]
    gpu_names: tuple[GpuName, ...]
    vgpus: tuple[Vgpu, ...]
    driver: DriverFile
    cuda: CudaFile
    cudnn: CudnnFile
    nccl: NcclFile
    tensorflow: TensorflowFile
    pytorch: PytorchFile
    cpu: CpuFile
    repository: RepositoryFile
    packages: PackagesFile
    known_bad: KnownBadFile
    other_distributions: OtherDistributionsFile
    user_settings: tuple[UserSetting, ...]
    xids: tuple[Xid, ...]
    xid_nvlink: tuple[XidNvlink, ...]
    distros: dict[str, Distro]
    components: Mapping[str, ComponentFile] = dataclasses.field(default_factory=dict)
    locks: LockFiles | None = None
    pinned: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    def words(self, distribution: str) -> Words:
        """How messages name the package manager of a distribution, of one without a file, too."""
        distro = self.distros.get(distribution)
        return distro.words if distro else kind_of(()).words
