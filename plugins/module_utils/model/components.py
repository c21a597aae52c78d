# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What a plan decides about components. Used on the managed host and on the controller."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, Iterator, Optional, Tuple, Type, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import PYTORCH, TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import OMITTED, ByName

C = TypeVar("C", bound="Component")
P = TypeVar("P", bound="PackagedComponent")
# The records by the names of their components, those of modules of the controller once these are imported.
KINDS: Dict[str, Type[Component]] = {}


class Component:
    """What is planned of a component: a frozen dataclass of its module, and in JSON an object with its fields.

    name: of the component that has such a record, as in requests and in the plan's JSON; label: in messages.
    follows_host: its fields with packages that follow the host and not the request: what it compiles with there, and
    what the host's kernels lack.
    recorded_as_absent: fingerprints on record count it where it is not planned, as do those of the first components.
    variant_field: the field that reports show beside the version.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    follows_host: ClassVar[Tuple[str, ...]] = ()
    recorded_as_absent: ClassVar[bool] = False
    variant_field: ClassVar[str] = ""
    version: str

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            KINDS[cls.name] = cls

    @classmethod
    def of(cls: Type[C], components: Components) -> C | None:
        """Return the planned component that has this record; None where it is left out."""
        found = components.get(cls.name)
        return found if isinstance(found, cls) else None

    @property
    def full_version(self) -> str:
        """The version to show."""
        return self.version

    @property
    def variant(self) -> str:
        """What there is of this version; empty for a component of which there is one kind."""
        return getattr(self, self.variant_field) if self.variant_field else ""

    @property
    def build_packages(self) -> tuple[str, ...]:
        """The names of the packages that follow the host."""
        return tuple(name for field in self.follows_host for name in getattr(self, field))


class OfComponent:
    """What belongs to a component and has its name and label from the record of what is planned."""

    record: Type[Component]

    @property
    def name(self) -> str:
        """The name in requests, facts, plans and evidence."""
        return self.record.name

    @property
    def label(self) -> str:
        """The name in messages."""
        return self.record.label


class PackagedComponent(Component):
    """A component that consists of packages."""

    packages: Tuple[Package, ...]

    @property
    def all_packages(self) -> tuple[Package, ...]:
        """All packages, those that pin its versions first."""
        return self.packages

    def of_rpm(self: P) -> P:
        """Return the component with packages whose texts are those that dnf takes."""
        packages = tuple(dataclasses.replace(package, is_rpm=True) for package in self.packages)
        return dataclasses.replace(self, packages=packages)  # type: ignore[type-var]


class FrameworkComponent(Component):
    """A framework in an environment of its own. lock: the name of the file with its wheels."""

    python: str
    requirements: Tuple[str, ...]
    lock: str


@dataclasses.dataclass(frozen=True)
class DriverComponent(PackagedComponent):
    """The driver to install.

    kernel_modules: `open` or `proprietary`; source: `nvidia` (its repository) or `distro`; apt_components: sections of
    the distribution's archive that must be enabled.
    profile: `compute`, or `full` with OpenGL, X and Wayland.
    module_source: `dkms`, or `prebuilt` by the distribution, whose module_metas follow updates of the kernel.
    security_floor: the first version of the branch with the fixes of published vulnerabilities, None if none is known.
    kernel_headers, kernel_compilers, kernel_tools: names of the packages that the kernel modules are built with; empty
    where none are built.
    module_stream: of NVIDIA's repository, which is to be enabled, None where that has no streams; repositories: the
    others that must be enabled for its packages and their dependencies.
    """

    name: ClassVar[str] = "driver"
    label: ClassVar[str] = "NVIDIA driver"
    recorded_as_absent: ClassVar[bool] = True
    follows_host: ClassVar[Tuple[str, ...]] = ("kernel_headers", "kernel_compilers", "kernel_tools")
    variant_field: ClassVar[str] = "kernel_modules"
    version: str
    branch: str
    kernel_modules: str
    source: str
    packages: Tuple[Package, ...]
    pinning_packages: Tuple[Package, ...]
    apt_components: Tuple[str, ...]
    profile: str = "compute"
    module_source: str = "dkms"
    module_metas: Tuple[str, ...] = ()
    security_floor: Optional[str] = None
    kernel_headers: Tuple[str, ...] = ()
    kernel_compilers: Tuple[str, ...] = ()
    kernel_tools: Tuple[str, ...] = ()
    module_stream: Optional[str] = dataclasses.field(default=None, metadata=OMITTED)
    repositories: Optional[Tuple[str, ...]] = dataclasses.field(default=None, metadata=OMITTED)

    @property
    def all_packages(self) -> tuple[Package, ...]:
        """All packages, those that pin its versions first."""
        return (*self.pinning_packages, *self.packages)


@dataclasses.dataclass(frozen=True)
class FabricComponent(PackagedComponent):
    """The Fabric Manager to install.

    services: to enable and start; modules: of the kernel, that they need; subnet_manager: the program that must run
    beside it, empty where none must; helpers: names of the packages with those modules that a kernel of the host lacks.
    """

    name: ClassVar[str] = "fabric"
    label: ClassVar[str] = "Fabric Manager"
    follows_host: ClassVar[Tuple[str, ...]] = ("helpers",)
    version: str
    source: str
    packages: Tuple[Package, ...]
    services: Tuple[str, ...]
    modules: Tuple[str, ...] = ()
    subnet_manager: str = ""
    helpers: Tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CudaComponent(PackagedComponent):
    """The CUDA toolkit to install: `version` is the series (13.2), `release` the whole number (13.2.1)."""

    name: ClassVar[str] = "cuda"
    label: ClassVar[str] = "CUDA toolkit"
    recorded_as_absent: ClassVar[bool] = True
    version: str
    release: str
    source: str
    home: str
    packages: Tuple[Package, ...]
    host_compilers: Tuple[str, ...]
    apt_components: Tuple[str, ...]

    @property
    def full_version(self) -> str:
        """The whole release."""
        return self.release

    @property
    def nvcc(self) -> str:
        """The path of the compiler."""
        return self.home + "/bin/nvcc"


@dataclasses.dataclass(frozen=True)
class LibraryComponent(PackagedComponent):
    """A library to install, which consists of packages and has no other facts."""

    recorded_as_absent: ClassVar[bool] = True
    version: str
    packages: Tuple[Package, ...]


@dataclasses.dataclass(frozen=True)
class TensorflowComponent(FrameworkComponent):
    """The TensorFlow environment to create; cuda_libraries: from the `wheel` or from the `system`."""

    name: ClassVar[str] = TENSORFLOW.name
    label: ClassVar[str] = TENSORFLOW.label
    recorded_as_absent: ClassVar[bool] = True
    variant_field: ClassVar[str] = "cuda_libraries"
    version: str
    python: str
    cuda_libraries: str
    requirements: Tuple[str, ...]
    lock: str


@dataclasses.dataclass(frozen=True)
class PytorchComponent(FrameworkComponent):
    """The PyTorch environment to create.

    cuda: the CUDA release that its wheel was built for; index: PyTorch's own package index, empty where PyPI has it.
    compiler_packages, header_packages: names of the packages that it compiles with when it runs; no compiler where it
    compiles nothing, no headers where the archive has none of its Python.
    """

    name: ClassVar[str] = PYTORCH.name
    label: ClassVar[str] = PYTORCH.label
    recorded_as_absent: ClassVar[bool] = True
    follows_host: ClassVar[Tuple[str, ...]] = ("compiler_packages", "header_packages")
    version: str
    python: str
    cuda: str
    requirements: Tuple[str, ...]
    lock: str
    index: str
    compiler_packages: Tuple[str, ...] = ()
    header_packages: Tuple[str, ...] = ()


class Components(ByName[Optional[Component]]):
    """What is planned of each component, by name in the order of tables; None where one is left out."""

    @staticmethod
    def type_of(name: str) -> Any:
        """Return the type of what is read from JSON: of a component that is not known here, a library."""
        return Optional[KINDS.get(name, LibraryComponent)]

    def but(self, **changes: Component | None) -> Components:
        """Return them with others in place of some."""
        return Components({**self, **changes})

    def packaged(self) -> Iterator[PackagedComponent]:
        """Yield the planned components that consist of packages."""
        return (component for component in self.values() if isinstance(component, PackagedComponent))

    def framework(self, name: str) -> FrameworkComponent | None:
        """Return a framework's component by its name."""
        component = self.get(name)
        return component if isinstance(component, FrameworkComponent) else None
