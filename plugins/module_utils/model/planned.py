# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What the checks of a host read of its plan, gpu_stack_plan; that of an earlier release after a rollback."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple, Type, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

LEFT_ALONE = "gpu-left-alone"  # the code of the warning that names a GPU which is not this stack's


class Component:
    """A component of the plan: a record with what its checks read."""

    version: str


class Packaged(Component):
    """A component that consists of packages."""

    packages: Tuple[Package, ...]


@dataclasses.dataclass(frozen=True)
class Driver(Packaged):
    """The planned driver; see the controller's DriverComponent. stays: others installed it, and it is not managed."""

    version: str
    kernel_modules: str
    branch: Optional[str] = None
    module_source: str = "dkms"
    security_floor: Optional[str] = None
    packages: Tuple[Package, ...] = ()
    stays: bool = False


@dataclasses.dataclass(frozen=True)
class KeptDriver:
    """A driver that stays as others installed it; see the controller's."""

    version: str
    kernel_modules: str
    branch: str = ""
    prebuilt: bool = False


@dataclasses.dataclass(frozen=True)
class Cuda(Packaged):
    """The planned toolkit; version: its series, such as 13.2; home: where it is, empty for its usual directory."""

    version: str
    home: str = ""
    packages: Tuple[Package, ...] = ()

    @property
    def nvcc(self) -> str:
        """The path of the compiler."""
        return (self.home or "/usr/local/cuda-%s" % self.version) + "/bin/nvcc"


@dataclasses.dataclass(frozen=True)
class Fabric(Packaged):
    """The planned Fabric Manager; subnet_manager: the program that must run beside it, empty where none must."""

    version: str
    packages: Tuple[Package, ...] = ()
    subnet_manager: str = ""


@dataclasses.dataclass(frozen=True)
class Library(Packaged):
    """A planned component of which checks read no more than that."""

    version: str
    packages: Tuple[Package, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tensorflow(Component):
    """The planned TensorFlow; cuda_libraries: from the `wheel` or from the `system`."""

    version: str
    cuda_libraries: str = "wheel"


@dataclasses.dataclass(frozen=True)
class Pytorch(Component):
    """The planned PyTorch; cuda: the release that it is built for.

    compiler_packages, header_packages: the packages that Triton compiles with, empty where the plan names none.
    """

    version: str
    cuda: str
    compiler_packages: Tuple[str, ...] = ()
    header_packages: Tuple[str, ...] = ()


C = TypeVar("C", bound=Component)
# Those with a record of their own, by name; every other one is a Library.
KINDS: Mapping[str, Type[Component]] = {
    "driver": Driver,
    "fabric": Fabric,
    "cuda": Cuda,
    "tensorflow": Tensorflow,
    "pytorch": Pytorch,
}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU that was planned for; left_out_by: the framework that does not use it, if one does not."""

    pci_id: str = ""
    name: str = ""
    compute_capability: Optional[str] = None
    left_out_by: str = ""


@dataclasses.dataclass(frozen=True)
class Warned:
    """A warning of the plan."""

    code: str


@dataclasses.dataclass(frozen=True)
class Requested:
    """What was requested; scope: gpu_stack_scope; adopt: gpu_stack_adopt; ignore_gpus: gpu_stack_ignore_gpus."""

    scope: str = ""
    adopt: str = "false"
    ignore_gpus: str = "none"


@dataclasses.dataclass(frozen=True)
class Planned:
    """A plan; components: by name, without those that it leaves out, and with a driver that stays."""

    gpus: Tuple[Gpu, ...] = ()
    warnings: Tuple[Warned, ...] = ()
    request: Requested = Requested()
    components: Mapping[str, Component] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> Planned:
        """Read the fact gpu_stack_plan; raises records.RecordError with the path of a wrong field."""
        given = plan.get("components") or {}
        components = {
            name: records.from_json(KINDS.get(name, Library), value, "plan.components." + name)
            for name, value in given.items()
            if value is not None
        }
        if plan.get("kept_driver"):
            kept = records.from_json(KeptDriver, plan["kept_driver"], "plan.kept_driver")
            source = "prebuilt" if kept.prebuilt else "dkms"
            components["driver"] = Driver(kept.version, kept.kernel_modules, kept.branch, source, stays=True)
        others = {name: value for name, value in plan.items() if name != "components"}
        return dataclasses.replace(records.from_json(cls, others, "plan"), components=components)

    @property
    def is_adopted(self) -> bool:
        """Whether it is of what others installed, of which gpuhost manages nothing."""
        return self.request.adopt == "true"

    def expected(self, gpus: int, found: int, alone: int) -> int:
        """Return how many GPUs are to be there: at least one, less those that were given away since the plan.

        gpus: how many were planned; found: how many are on the bus, and alone: how many of these are left alone. A plan
        names those that were left alone then; one of an earlier release has them if the bus has more than it counts.
        """
        before = max(sum(warning.code == LEFT_ALONE for warning in self.warnings), found - gpus)
        return max(min(gpus, 1), gpus - max(0, alone - before))

    def component(self, kind: Type[C]) -> C | None:
        """Return the planned component of a kind of its own, None if the plan has none."""
        return next((component for component in self.components.values() if isinstance(component, kind)), None)

    def packaged(self) -> list[Packaged]:
        """Return the planned components that consist of packages."""
        return [component for component in self.components.values() if isinstance(component, Packaged)]
