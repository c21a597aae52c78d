"""PyTorch on a host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import PYTORCH
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, PytorchRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import EnvironmentPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import PytorchComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

TRITON_BUILD_MISSING = FindingSpec(
    "triton-build-missing",
    "Warning: the host lacks the C compiler or the Python headers with which this PyTorch compiles operations when "
    "it runs (Triton), and no package is installed for them: with `gpu_stack_scope=frameworks`, or since the "
    "distribution has none for a Python of another source",
    "Ask the machine's administrator for the packages that the message names; for another Python, install its "
    "headers from where that Python came from",
)


class Pytorch(EnvironmentPart[PytorchComponent]):
    """PyTorch in an environment of its own, with the CUDA libraries of its wheels."""

    name = PYTORCH.name
    label = PYTORCH.label
    role = "pytorch_env"
    training = "smoke training with PyTorch"
    training_file = PYTORCH.training_file
    path = PYTORCH.path
    follows_host = ("compiler_packages", "header_packages")
    build_variables = ("pytorch_env_build_packages",)
    findings = (TRITON_BUILD_MISSING,)

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

    def missing_to_compile(self, planned: PytorchComponent, probe: Probe) -> tuple[str, ...]:
        """Return the packages without which it would not find what it compiles with when it runs."""
        compiler = planned.compiler_packages if probe.toolchain.c_compilers == () else ()
        return (*compiler, *(planned.header_packages if _lacks_headers(planned, probe) else ()))

    def check(self, planned: PytorchComponent, plan: Plan, probe: Probe, findings: Findings) -> None:
        """Warn of a PyTorch that will not find what it compiles with; elsewhere the plan installs that."""
        if not planned.compiler_packages:
            return
        missing: list[str] = []
        remedy = "the distribution has no package of that: install it from where this Python came from"
        if plan.request.scope == "frameworks":
            missing += self.missing_to_compile(planned, probe)
            remedy = "gpu_stack_scope=frameworks installs no package: ask the machine's administrator for that"
        if not planned.header_packages and _lacks_headers(planned, probe):
            missing.append(f"Python.h of Python {planned.python}")
        if missing:
            TRITON_BUILD_MISSING.add_warning(
                findings,
                f"PyTorch {planned.version} compiles operations on the host when it runs (Triton), and this host lacks "
                f"{' and '.join(missing)}; {remedy}",
            )


def _lacks_headers(planned: PytorchComponent, probe: Probe) -> bool:
    return probe.python.headers is not None and planned.python not in probe.python.headers
