"""The components of the stack: their names, labels and order, and what a plan decides about each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

# In the order of tables. The keys are also the request's names and those of the plan's JSON.
LABELS = {
    "driver": "NVIDIA driver",
    "cuda": "CUDA toolkit",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    **{framework.name: framework.label for framework in frameworks.FRAMEWORKS},
}
COMPONENTS = tuple(LABELS)
PACKAGED = ("driver", "cuda", "cudnn", "nccl")
FRAMEWORKS = tuple(framework.name for framework in frameworks.FRAMEWORKS)
TRAINING_FILES = {framework.name: framework.training_file for framework in frameworks.FRAMEWORKS}


@dataclasses.dataclass(frozen=True)
class DriverComponent:
    """The driver to install.

    kernel_modules: `open` or `proprietary`; source: `nvidia` (its repository) or `distro`; apt_components: sections of
    the distribution's archive that must be enabled.
    profile: `compute`, or `full` with OpenGL, X and Wayland.
    module_source: `dkms`, or `prebuilt` by the distribution, whose module_metas follow updates of the kernel.
    security_floor: the first version of the branch with the fixes of published vulnerabilities, None if none is known.
    kernel_headers, kernel_compilers, kernel_tools: names of the packages that the kernel modules are built with; empty
    where none are built.
    """

    version: str
    branch: str
    kernel_modules: str
    source: str
    packages: tuple[Package, ...]
    pinning_packages: tuple[Package, ...]
    apt_components: tuple[str, ...]
    profile: str = "compute"
    module_source: str = "dkms"
    module_metas: tuple[str, ...] = ()
    security_floor: str | None = None
    kernel_headers: tuple[str, ...] = ()
    kernel_compilers: tuple[str, ...] = ()
    kernel_tools: tuple[str, ...] = ()

    @property
    def build_packages(self) -> tuple[str, ...]:
        """The packages that the kernel modules are built with. They follow the host's kernels, not the request."""
        return (*self.kernel_headers, *self.kernel_compilers, *self.kernel_tools)


@dataclasses.dataclass(frozen=True)
class CudaComponent:
    """The CUDA toolkit to install: `version` is the series (13.2), `release` the whole number (13.2.1)."""

    version: str
    release: str
    source: str
    home: str
    packages: tuple[Package, ...]
    host_compilers: tuple[str, ...]
    apt_components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LibraryComponent:
    """cuDNN or NCCL to install."""

    version: str
    packages: tuple[Package, ...]


@dataclasses.dataclass(frozen=True)
class TensorflowComponent:
    """The TensorFlow environment to create; cuda_libraries: from the `wheel` or from the `system`."""

    version: str
    python: str
    cuda_libraries: str
    requirements: tuple[str, ...]
    lock: str


@dataclasses.dataclass(frozen=True)
class PytorchComponent:
    """The PyTorch environment to create.

    cuda: the CUDA release that its wheel was built for; index: PyTorch's own package index, empty where PyPI has it.
    compiler_packages, header_packages: names of the packages that it compiles with when it runs; no compiler where it
    compiles nothing, no headers where the archive has none of its Python.
    """

    version: str
    python: str
    cuda: str
    requirements: tuple[str, ...]
    lock: str
    index: str
    compiler_packages: tuple[str, ...] = ()
    header_packages: tuple[str, ...] = ()

    @property
    def build_packages(self) -> tuple[str, ...]:
        """The packages that it compiles with when it runs. They follow the host's Python, not the request."""
        return (*self.compiler_packages, *self.header_packages)


PackagedComponent = DriverComponent | CudaComponent | LibraryComponent
FrameworkComponent = TensorflowComponent | PytorchComponent
Component = PackagedComponent | FrameworkComponent


@dataclasses.dataclass(frozen=True)
class Components:
    """The planned components; None where one is left out."""

    driver: DriverComponent | None = None
    cuda: CudaComponent | None = None
    cudnn: LibraryComponent | None = None
    nccl: LibraryComponent | None = None
    tensorflow: TensorflowComponent | None = None
    pytorch: PytorchComponent | None = None

    def get(self, name: str) -> Component | None:
        """Return a component by its name, one of COMPONENTS."""
        component: Component | None = getattr(self, name)
        return component

    def packaged(self) -> Iterator[PackagedComponent]:
        """Yield the planned components that consist of packages."""
        yield from (part for part in (self.driver, self.cuda, self.cudnn, self.nccl) if part is not None)

    def framework(self, name: str) -> FrameworkComponent | None:
        """Return a framework's component by its name, one of FRAMEWORKS."""
        component: FrameworkComponent | None = getattr(self, name)
        return component


def full_version(component: Component) -> str:
    """Return the version to show: of CUDA the whole release, not the series."""
    return component.release if isinstance(component, CudaComponent) else component.version


def all_packages(component: PackagedComponent) -> tuple[Package, ...]:
    """Return all packages of a component, those that pin its versions first."""
    pinning = component.pinning_packages if isinstance(component, DriverComponent) else ()
    return (*pinning, *component.packages)
