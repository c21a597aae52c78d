"""Check what the environments of the frameworks need."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.installed_stack import PYTORCH, TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import FRAMEWORKS, LABELS, PytorchComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

ENVIRONMENT_PATHS = {"tensorflow": TENSORFLOW, "pytorch": PYTORCH}
PATH_TAKEN = FindingSpec(
    "path-taken",
    "A directory, a file or a foreign link occupies `/opt/gpuhost/tensorflow` or `/opt/gpuhost/pytorch`, "
    "the path of the link to the environment",
    "Move it away",
)


def check_environment_paths(context: Context, findings: Findings) -> None:
    """Check the paths before the driver changes; the role would refuse as well, but after that."""
    for name in FRAMEWORKS:
        found = context.probe.path_conflict(name)
        if found and context.components.framework(name):
            environment = context.probe.environment(name)
            path = environment.path if environment and environment.path else ENVIRONMENT_PATHS[name]
            PATH_TAKEN.add_problem(
                findings,
                f"found {found} at {path}, expected nothing or gpuhost's own link to the {LABELS[name]} environment",
                f"move it away (sudo mv {path} {path}.old), or leave {LABELS[name]} out with -e gpu_stack_{name}=none",
            )


TRITON_BUILD_MISSING = FindingSpec(
    "triton-build-missing",
    "Warning: the host lacks the C compiler or the Python headers with which this PyTorch compiles operations when "
    "it runs (Triton), and no package is installed for them: with `gpu_stack_scope=frameworks`, or since the "
    "distribution has none for a Python of another source",
    "Ask the machine's administrator for the packages that the message names; for another Python, install its "
    "headers from where that Python came from",
)


def check_triton(context: Context, findings: Findings) -> None:
    """Warn of a PyTorch that will not find what it compiles with; elsewhere the plan installs that."""
    pytorch, probe = context.components.pytorch, context.probe
    if pytorch is None or not pytorch.compiler_packages:
        return
    missing: list[str] = []
    remedy = "the distribution has no package of that: install it from where this Python came from"
    if context.plan.request.scope == "frameworks":
        missing += missing_to_compile(pytorch, probe)
        remedy = "gpu_stack_scope=frameworks installs no package: ask the machine's administrator for that"
    if not pytorch.header_packages and _lacks_headers(pytorch, probe):
        missing.append(f"Python.h of Python {pytorch.python}")
    if missing:
        TRITON_BUILD_MISSING.add_warning(
            findings,
            f"PyTorch {pytorch.version} compiles operations on the host when it runs (Triton), and this host lacks "
            f"{' and '.join(missing)}; {remedy}",
        )


def missing_to_compile(pytorch: PytorchComponent, probe: Probe) -> tuple[str, ...]:
    """Return the packages without which this host's PyTorch would not find what it compiles with when it runs."""
    compiler = pytorch.compiler_packages if probe.toolchain.c_compilers == () else ()
    return (*compiler, *(pytorch.header_packages if _lacks_headers(pytorch, probe) else ()))


def _lacks_headers(pytorch: PytorchComponent, probe: Probe) -> bool:
    return probe.python.headers is not None and pytorch.python not in probe.python.headers


FINDINGS = (PATH_TAKEN, TRITON_BUILD_MISSING)
