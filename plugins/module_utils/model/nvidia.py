# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What a probe has of NVIDIA's drivers, toolkits and environments. Read on the managed host, used on both sides."""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records


@dataclasses.dataclass(frozen=True)
class KernelModule:
    """NVIDIA's kernel module, loaded or built; kernel_modules: its flavour, `open` or `proprietary`."""

    version: str
    kernel_modules: str = ""


@dataclasses.dataclass(frozen=True)
class SmiGpu:
    """A GPU as nvidia-smi lists it; drivers before 510 report no compute capability.

    unreadable: the fields of the query whose value is not of its kind, and not one that the product lacks.
    """

    pci_address: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    driver_version: str | None = None
    index: int | None = None
    memory_mib: int | None = None
    unreadable: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NvidiaSmi:
    """The answer of nvidia-smi; no GPU where it failed. seconds: what it took; mig: addresses of GPUs in MIG mode.

    message: what it printed where it failed, or why its answer is not understood. notices: the lines beside the rows.
    corrupted: addresses of the GPUs of whose infoROM it warns.
    """

    gpus: tuple[SmiGpu, ...] = ()
    seconds: float = 0.0
    mig: tuple[str, ...] = ()
    path: str = ""
    exit_code: int = 0
    message: str = ""
    notices: tuple[str, ...] = ()
    corrupted: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CheckedGpu:
    """A GPU as the checks found it, with what identifies the board; None where nvidia-smi reports no such value.

    memory: as nvidia-smi prints it. pcie_*: lanes and generations of the link, now and at most; an idle GPU lowers the
    generation. nvlinks: how many NVLinks it has (None: not known, also where all are down), nvlinks_up: how many are
    up (None: not known), at nvlink_gb_per_second each.
    """

    index: int
    pci_address: str
    name: str
    uuid: str = ""
    serial: str | None = None
    memory: str | None = None
    vbios: str | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    nvlinks: int | None = None
    nvlinks_up: int | None = None
    nvlink_gb_per_second: float | None = None


@dataclasses.dataclass(frozen=True)
class InstalledDriver:
    """The driver whose libcuda is on the host; version: None without one, package: None where no package has it.

    modules: the package with the source that DKMS builds its modules from, "" where none has it, None without one.
    """

    version: str | None = None
    package: str | None = None
    modules: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages with its libcuda and its modules, each once."""
        return tuple(dict.fromkeys(name for name in (self.package, self.modules) if name))


@dataclasses.dataclass(frozen=True)
class DkmsLeftover:
    """A module of DKMS, NAME/VERSION, that no package has any more."""

    module: str
    has_source: bool


@dataclasses.dataclass(frozen=True)
class Driver:
    """The kernel modules that are loaded, what nvidia-smi reports, and what is installed.

    nvidia_smi: None where it is not installed. installed: None in probes of earlier versions, and where it could not be
    read.
    """

    loaded: KernelModule | None = None
    nouveau_loaded: bool = False
    nvidia_smi: NvidiaSmi | None = None
    installed: InstalledDriver | None = None
    dkms_leftovers: tuple[DkmsLeftover, ...] = ()

    @property
    def smi(self) -> NvidiaSmi:
        """The answer of nvidia-smi, one without GPUs where it is not installed."""
        return self.nvidia_smi or NvidiaSmi()


@dataclasses.dataclass(frozen=True)
class ForeignDriver:
    """Why a host is to have no driver of its own: a problem of foreign_drivers.py; found: by what."""

    kind: str
    found: str


SEAT, CONTAINER = "seat", "container"  # where a process runs


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU; name: its command line, program: the kernel's name for it, cut to 15 characters.

    computes: nvidia-smi lists it as a compute process; devices: its open files below /dev, such as `nvidia-uvm`.
    where: SEAT for a display server or what belongs to a desktop's session, CONTAINER; empty for any other.
    """

    pid: int
    name: str = ""
    program: str = ""
    computes: bool = False
    devices: tuple[str, ...] = ()
    where: str = ""


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
    lock: str | None = dataclasses.field(default=None, metadata=records.OMITTED)


@dataclasses.dataclass(frozen=True)
class SignaturesEnforced:
    """A kernel that loads only modules with a trusted signature; by: kernel options, "SETTING in FILE", and files."""

    by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ModulesDisabled:
    """A kernel that loads no module until the next boot; by: the files and kernel options that have it do so."""

    by: tuple[str, ...] = ()
