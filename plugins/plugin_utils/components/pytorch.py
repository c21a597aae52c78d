"""PyTorch on a host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, PytorchRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import PytorchComponent


class Pytorch(EnvironmentPart[PytorchComponent]):
    """PyTorch in an environment of its own, with the CUDA libraries of its wheels."""

    name = "pytorch"
    label = "PyTorch"
    role = "pytorch_env"
    training = "smoke training with PyTorch"
    training_file = "smoke_train_pytorch"
    follows_host = ("compiler_packages", "header_packages")

    def origin(self, planned: PytorchComponent) -> str:
        """Return the Python, and the CUDA release of the build."""
        return f"Python {planned.python}, CUDA {planned.cuda}"

    def releases(self, catalog: Catalog) -> tuple[PytorchRelease, ...]:
        """Return PyTorch's releases."""
        return catalog.pytorch.releases

    def other_build(self, planned: PytorchComponent, found: Environment) -> str:
        """Return that the wheel is of another CUDA build, which its version tells, such as 2.14.1+cu126."""
        wanted = f"cu{planned.cuda.replace('.', '')}" if planned.index else ""
        return f"rebuilt for CUDA {planned.cuda}" if found.version.partition("+")[2] != wanted else ""
