"""Explain the selected driver, toolkit and TensorFlow: a reason for each, and warnings about them.

relaxation.py adds to the reasons what limits the versions.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets, prebuilt
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver.drivers import (
    DriverCandidate,
    accepted_modules,
    archived_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.platform import Platform, is_native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaCandidate

WARNINGS = {
    "new-feature-branch": "the driver branch is a new feature branch, or its type is unknown",
    "branch-end-of-life": "the driver branch has reached its end of life",
    "secure-boot": "Secure Boot is enabled: the key that signs the kernel module must be enrolled",
    "kernel-newer-than-driver": "the driver branch is not known to build for this kernel",
    "minor-version-compatibility": "the driver is older than the toolkit, which runs without PTX",
    "source-fallback": "it is from the distribution's archive, since NVIDIA's repository offers none that fits",
}


# NVIDIA's names of the kinds that the catalog abbreviates as NVIDIA does.
BRANCH_KINDS = {
    "LTSB": "long-term support branch",
    "PB": "production branch",
    "NFB": "new feature branch",
    "legacy": "legacy branch",
}


def explain_platform(context: ResolveContext, platform: Platform, findings: Findings) -> None:
    """Add the reasons for a platform and the warnings about it."""
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    if driver and driver.component and driver.branch:
        _explain_driver(context, driver, driver.branch, driver.component, cuda, findings)
    if cuda:
        held = holds.of_components(context.catalog, context.host).get("cuda")
        findings.reason("cuda", cuda.release, holds.because(held) if held and context.request.cuda == "auto" else "")
        if cuda.source == "distro" and context.request.cuda_source == "auto":
            findings.warn(
                "source-fallback",
                f"CUDA {cuda.release} is from {context.distro.id}'s archive: "
                f"{context.repository_name} offers none that fits",
            )
        if driver and driver.version and not is_native(driver, cuda):
            findings.warn(
                "minor-version-compatibility",
                f"driver {driver.version} is older than CUDA {cuda.release}'s "
                f"own ({cuda.min_driver or 'newer branch'}): programs run, PTX of this toolkit does not",
            )
    elif context.request.cuda == "none":
        findings.reason("cuda", "none", context.unmanaged("cuda"))
    if tensorflow:
        findings.reason("tensorflow", tensorflow.release.version, "")
        findings.warnings += tensorflow.warnings
    elif context.request.tensorflow == "none":
        findings.reason("tensorflow", "none", context.unmanaged("tensorflow"))


def _explain_driver(
    context: ResolveContext,
    driver: DriverCandidate,
    branch: Branch,
    component: DriverComponent,
    cuda: CudaCandidate | None,
    findings: Findings,
) -> None:
    profile = driver_sets.profile(context)
    why = f"profile {profile.name}: {profile.why}; " if profile.why else ""
    native = f", made for CUDA {branch.native_cuda}" if cuda is None or is_native(driver, cuda) else ""
    archived = archived_version(context, branch) if driver.source == "distro" else None
    findings.reason(
        "driver",
        archived or driver.version,
        f"{branch_kind(branch)} {branch.branch}{native}; {why}"
        f"{component.kernel_modules} kernel modules: {_modules_reason(context, component)}"
        f"{_source_reason(context, component)}{_archive_reason(context, branch, component)}",
    )
    if branch.type in ("NFB", "unknown"):
        verb = "is" if branch.type == "NFB" else "may be"
        findings.warn("new-feature-branch", f"driver branch {branch.branch} {verb} a short-lived new feature branch")
    if not branch.maintained:
        when = f" ({branch.end_of_life})" if branch.end_of_life else ""
        findings.warn("branch-end-of-life", f"driver branch {branch.branch} reached its end of life{when}")
    known_bad.warn_of_driver(context, archived or driver.version, findings)
    kernel = versions.kernel_series(context.host.newest_kernel or context.distro.kernel.default)
    is_built = component.module_source == prebuilt.DKMS
    if is_built and branch.newest_kernel and versions.key(kernel) > versions.key(branch.newest_kernel):
        findings.warn(
            "kernel-newer-than-driver",
            f"driver branch {branch.branch} is not known to build for kernel {kernel} (newest: "
            f"{branch.newest_kernel}): its module may not compile; an older kernel of the distribution is safer",
        )
    if is_built and driver.source == "distro" and context.request.driver_source == "auto":
        findings.warn(
            "source-fallback",
            f"driver {driver.version} is from {context.distro.id}'s archive: "
            f"{context.repository_name} offers none that fits",
        )
    if is_built and context.host.secure_boot == "enabled":
        findings.warn(
            "secure-boot",
            "Secure Boot is enabled: the kernel refuses the module that DKMS builds until its "
            "signing key is enrolled (mokutil --import, confirmed at the console)",
        )


def branch_kind(branch: Branch) -> str:
    """Return the kind of a branch, as NVIDIA calls it in full."""
    return BRANCH_KINDS.get(branch.type, "branch")


def _source_reason(context: ResolveContext, component: DriverComponent) -> str:
    if component.module_source == prebuilt.DKMS:
        return ""
    why = (
        "requested"
        if context.request.driver_module_source != "auto"
        else f"the {'firmware' if context.host.secure_boot == 'enabled' else 'kernel'} trusts no key of DKMS"
    )
    return f"; prebuilt and signed by {context.distro.id}'s archive: {why}"


def _archive_reason(context: ResolveContext, branch: Branch, component: DriverComponent) -> str:
    """Return which version it will be where the distribution's archive decides, whatever was requested."""
    if component.source != "distro" or "." in component.version:
        return ""
    known = archived_version(context, branch)
    exact = f", {known} according to the catalog" if known else ""
    return f"; whichever {branch.branch} {context.distro.id}'s archive has{exact}"


def _modules_reason(context: ResolveContext, component: DriverComponent) -> str:
    if context.request.driver_kernel_modules != "auto":
        return "requested"
    if not context.gpus:
        return "the branch's default, since the host has no GPU"
    if accepted_modules(context.gpus) == {component.kernel_modules}:
        return "the only flavour that all GPUs accept"
    return "the branch's default for these GPUs"
