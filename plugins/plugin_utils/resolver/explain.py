"""Why each part of the platform was chosen, and what a user should know about it.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import Case
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.drivers import DriverOption, accepted_modules
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.platform import Platform, is_native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.toolkits import CudaOption


def explain_platform(case: Case, platform: Platform, findings: Findings) -> None:
    driver, cuda, tensorflow = platform.driver, platform.cuda, platform.tensorflow
    if driver and driver.component and driver.branch:
        _explain_driver(case, driver, cuda, findings)
    if cuda:
        asked = (
            "the newest that is offered and fits GPUs, driver and compiler"
            if case.request.cuda == "auto"
            else f"asked for ({case.request.cuda})"
        )
        findings.reason("cuda", cuda.release, asked)
        if cuda.source == "distro" and case.request.cuda_source == "auto":
            findings.warn(
                "source-fallback",
                f"CUDA {cuda.release} is from {case.distro.id}'s archive: {case.repository_name} offers none that fits",
            )
        if driver and driver.version and not is_native(driver, cuda):
            findings.warn(
                "minor-version-compatibility",
                f"driver {driver.version} is older than CUDA {cuda.release}'s "
                f"own ({cuda.min_driver or 'newer branch'}): programs run, PTX of this toolkit does not",
            )
    elif case.request.cuda == "none":
        findings.reason("cuda", "none", "not asked for")
    if tensorflow:
        which = (
            "the newest with a wheel for this Python and code for these GPUs"
            if case.request.tensorflow == "auto"
            else f"asked for ({case.request.tensorflow})"
        )
        findings.reason("tensorflow", tensorflow.release.version, which)
        findings.warnings += tensorflow.warnings
    elif case.request.tensorflow == "none":
        findings.reason("tensorflow", "none", "not asked for")


def _explain_driver(case: Case, driver: DriverOption, cuda: CudaOption | None, findings: Findings) -> None:
    branch, component = driver.branch, driver.component
    assert branch is not None
    assert component is not None
    native = f"; made for CUDA {branch.native_cuda}" if cuda is None or is_native(driver, cuda) else ""
    how = "asked for" if case.request.driver != "auto" else "the newest that fits"
    findings.reason(
        "driver",
        driver.version,
        f"{how}: {_kind(branch)} {branch.branch}{native}; "
        f"{component.kernel_modules} kernel modules: {_modules_reason(case, component)}",
    )
    if branch.type in ("NFB", "unknown"):
        what = "is a new feature branch, short-lived" if branch.type == "NFB" else "may be a short-lived one"
        findings.warn("new-feature-branch", f"driver branch {branch.branch} {what}")
    if not branch.maintained:
        when = f" ({branch.end_of_life})" if branch.end_of_life else ""
        findings.warn("branch-end-of-life", f"driver branch {branch.branch} reached its end of life{when}")
    kernel = versions.kernel_series(case.host.kernel or case.distro.kernel.default)
    if branch.newest_kernel and versions.key(kernel) > versions.key(branch.newest_kernel):
        findings.warn(
            "kernel-newer-than-driver",
            f"nobody is known to have built driver branch {branch.branch} for kernel {kernel} (newest: "
            f"{branch.newest_kernel}): its module may not compile; an older kernel of the distribution is the safe way",
        )
    if driver.source == "distro" and case.request.driver_source == "auto":
        findings.warn(
            "source-fallback",
            f"driver {driver.version} is from {case.distro.id}'s archive: {case.repository_name} offers none that fits",
        )
    if case.host.secure_boot == "enabled":
        findings.warn(
            "secure-boot",
            "Secure Boot is enabled: the kernel refuses the module that DKMS builds until its "
            "signing key is enrolled (mokutil --import, confirmed at the console)",
        )


def _kind(branch: Branch) -> str:
    return "branch" if branch.type == "unknown" else f"{branch.type} branch"


def _modules_reason(case: Case, component: DriverComponent) -> str:
    if case.request.driver_kernel_modules != "auto":
        return "asked for"
    if not case.gpus:
        return "no GPU decides"
    if accepted_modules(case.gpus) == {component.kernel_modules}:
        return "the only flavour that all GPUs accept"
    return "the branch's default for these GPUs"
