"""The choice of a driver: what is kept, what can be installed, what others need of it, and why it was chosen.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, KeptDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Branch
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    driver_sets,
    drivers,
    kernels,
    prebuilt,
    staying,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    Candidate,
    Choice,
    Facts,
    Holds,
    Keeping,
    Preference,
    Remedies,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext, span
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Repair

PROBLEMS = {
    "driver-too-old-for-cuda": "the driver is older than this CUDA needs",
}
WARNINGS = {
    "new-feature-branch": "the driver branch is a new feature branch, or its type is unknown",
    "branch-end-of-life": "the driver branch has reached its end of life",
    "secure-boot": "Secure Boot is enabled: the key that signs the kernel module must be enrolled",
    "kernel-newer-than-driver": "the driver branch is not known to build for this kernel",
    "source-fallback": "it is from the distribution's archive, since NVIDIA's repository offers none that fits",
}


# NVIDIA's names of the kinds that the catalog abbreviates as NVIDIA does.
BRANCH_KINDS = {
    "LTSB": "long-term support branch",
    "PB": "production branch",
    "NFB": "new feature branch",
    "legacy": "legacy branch",
}


# Candidates -----------------------------------------------------------------------------------------------------------


def _candidates(context: ResolveContext, _facts: Facts) -> Sequence[Candidate]:
    """Return the driver that stays, or those that can be installed."""
    kept = staying.kept(context)
    if kept is not None:
        return [_stays(context, kept.version, _why_kept(context, kept))]
    request, loaded = context.request, context.host.loaded_driver
    if request["driver"] == "none":
        unmanaged = context.unmanaged("driver")
        if loaded is None:
            return [Candidate("absent", because=unmanaged)]
        return [_stays(context, loaded, f"{unmanaged}; the loaded driver is {loaded}")]
    if request["driver"] == "auto" and not context.host.gpus:
        why = "the host has no GPU; set gpu_stack_driver to a version to install one nevertheless"
        return [Candidate("absent", because=why)]
    if held := staying.held(context):
        driver, names = held
        why = holds.because(context.distro.words, names)
        return [_stays(context, driver.version, f"driver {driver.version} stays: {why}")]
    if prebuilt.unavailable(context):
        return [Candidate("absent")]
    return drivers.driver_candidates(context)


def _why_kept(context: ResolveContext, kept: KeptDriver) -> str:
    if kept.of_others:
        return f"driver {kept.version} stays: it works, and others installed it ({kept.origin})"
    return (
        f"{kept.package} {kept.version} stays: its prebuilt kernel modules are updated with "
        f"{context.distro.id}'s kernels"
    )


def _stays(context: ResolveContext, version: str, because: str) -> Candidate:
    branch = drivers.branch_of_version(context.catalog, version)
    state = "loaded" if version == context.host.loaded_driver else "installed"
    return Candidate("keep", drivers.facts_of(version, branch, "") | {"driver.kept": state}, because=because)


def _check(context: ResolveContext, findings: Findings) -> None:
    """Add the problems of a driver that stays, and of what is requested of every other one."""
    kernels.warn_of_poor_kernels(context, findings)
    kept = staying.kept(context)
    if kept is not None:
        if not kept.of_others:
            staying.check_kept(context, kept, findings)
        return
    if not _is_needed(context):
        return
    if held := staying.held(context):
        staying.check_held(context, *held, findings)
        return
    driver_sets.check_display(context, findings)
    findings.problems += prebuilt.unavailable(context)


def _is_needed(context: ResolveContext) -> bool:
    return context.request["driver"] != "none" and (context.request["driver"] != "auto" or bool(context.host.gpus))


def _lacks(context: ResolveContext) -> bool:
    catalog = context.catalog
    if not _is_needed(context) or (catalog.driver.branches and catalog.driver.packages):
        return False
    return staying.kept(context) is None and staying.held(context) is None


# What others need of it -----------------------------------------------------------------------------------------------


def reaches(version: str, minimum: str) -> bool:
    """Return whether a driver is at least a version; only the branch of an archive's driver is known."""
    if "." not in version:
        return int(version) >= versions.major(minimum)
    return versions.key(version) >= versions.key(minimum)


def is_native(facts: Facts) -> bool:
    """Return whether a driver was released with the CUDA release beside it or a newer one, where there are both."""
    version, cuda = facts.get("driver.version"), facts.get("cuda.release")
    if version is None or cuda is None:
        return True
    native = facts.get("driver.native_cuda")
    if native is not None and versions.key(native) < versions.key(facts["cuda.version"]):
        return False
    return "cuda.min_driver" not in facts or reaches(version, facts["cuda.min_driver"])


def preferences(context: ResolveContext) -> tuple[Preference, Preference, Preference]:
    """Return those of drivers: of NVIDIA's repository, then of the better branch, then the newest.

    Drivers that were made for an older CUDA come last, whatever their branch is.
    """

    def said(facts: Facts) -> str:
        if "driver.branch" not in facts:
            return "no driver"
        if not is_native(facts):
            return f"driver {facts['driver.version']}, which was made for an older CUDA"
        branch = drivers.branch_of(context.catalog, facts["driver.branch"])
        kind = branch_kind(branch) if branch.type != "unknown" else "branch of unknown kind"
        return f"driver {branch.branch}, a {kind}{'' if branch.maintained else ' at its end of life'}"

    def tier(facts: Facts) -> int:
        is_older = "driver.branch" in facts and not is_native(facts)
        return -max(4 if is_older else 0, int(facts.get("driver.tier", 0)))

    own = f"the driver of {context.distro.id}'s own archive"
    return (
        Preference("source", lambda facts: facts.get("driver.source") == "nvidia", lambda _facts: own, "driver"),
        Preference("branch", tier, said),
        Preference("driver", lambda facts: versions.key(facts.get("driver.version", "")), said, "driver"),
    )


def too_old(context: ResolveContext, facts: Facts, floor: str, what: str) -> Problem:
    """Return the problem of a driver that is older than a minimum. what: the software that needs it."""
    version = facts["driver.version"]
    if "driver.kept" in facts:
        found = f"the {facts['driver.kept']} driver is {version}"
    elif "driver" in context.host.keeping:
        found = f"the verified driver is {version}"
    elif context.request["driver"] == "auto":
        kernel = context.host.newest_kernel
        newer = (
            f" and its kernel {versions.kernel_series(kernel)}" if kernel and _kernel_limits(context, version) else ""
        )
        found = f"the best that fits this host{newer} is {version}"
    else:
        found = f"the requested driver is {version}"
    return Problem(
        "driver-too-old-for-cuda",
        f"{what} needs driver {floor} or newer; {found}",
        "ask the machine's administrator for such a driver, or set gpu_stack_scope=host"
        if context.request["scope"] == "frameworks"
        else "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_cuda to an older release",
    )


def _kernel_limits(context: ResolveContext, version: str) -> bool:
    """Return whether a newer driver fits but for the kernel."""
    return any(
        {problem.code for problem in candidate.problems} == {"known-bad"}
        and versions.key(candidate.facts["driver.version"]) > versions.key(version)
        for candidate in drivers.driver_candidates(context)
    )


# Explanations ---------------------------------------------------------------------------------------------------------


def _explain(context: ResolveContext, driver: Candidate, facts: Facts, findings: Findings) -> None:
    """Add the reason for a driver, and warnings about it."""
    component: DriverComponent = driver.component
    version, branch = component.version, drivers.branch_of(context.catalog, component.branch)
    profile = driver_sets.profile(context)
    why = f"profile {profile.name}: {profile.why}; " if profile.why else ""
    native = f", made for CUDA {branch.native_cuda}" if is_native(facts) else ""
    archived = drivers.archived_version(context, branch) if component.source == "distro" else None
    findings.reason(
        "driver",
        archived or version,
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
    known_bad.warn_of_driver(context, archived or version, findings)
    kernel = versions.kernel_series(context.host.newest_kernel or context.distro.kernel.default)
    is_built = component.module_source == prebuilt.DKMS
    if is_built and branch.newest_kernel and versions.key(kernel) > versions.key(branch.newest_kernel):
        findings.warn(
            "kernel-newer-than-driver",
            f"driver branch {branch.branch} is not known to build for kernel {kernel} (newest: "
            f"{branch.newest_kernel}): its module may not compile; an older kernel of the distribution is safer",
        )
    if is_built and component.source == "distro" and context.request["driver_source"] == "auto":
        findings.warn(
            "source-fallback",
            f"driver {version} is from {context.distro.id}'s archive: {context.repository_name} offers none that fits",
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
        if context.request["driver_module_source"] != "auto"
        else f"the {'firmware' if context.host.secure_boot == 'enabled' else 'kernel'} trusts no key of DKMS"
    )
    return f"; prebuilt and signed by {context.distro.id}'s archive: {why}"


def _archive_reason(context: ResolveContext, branch: Branch, component: DriverComponent) -> str:
    """Return which version it will be where the distribution's archive decides, whatever was requested."""
    if component.source != "distro" or "." in component.version:
        return ""
    known = drivers.archived_version(context, branch)
    by = f"{context.distro.words.NAME}'s lists" if drivers.listed_version(context, branch) else "the catalog"
    exact = f", {known} according to {by}" if known else ""
    return f"; whichever {branch.branch} {context.distro.id}'s archive has{exact}"


def _modules_reason(context: ResolveContext, component: DriverComponent) -> str:
    if context.request["driver_kernel_modules"] != "auto":
        return "requested"
    if not context.gpus:
        return "the branch's default, since the host has no GPU"
    if drivers.accepted_modules(context.gpus) == {component.kernel_modules}:
        return "the only flavour that all GPUs accept"
    return "the branch's default for these GPUs"


def _alone(context: ResolveContext, gpu: Gpu) -> str:
    return span("driver branch", drivers.supporting_branches(context, gpu))


def _complete(context: ResolveContext, component: DriverComponent, findings: Findings) -> DriverComponent:
    if component.module_source == prebuilt.PREBUILT:
        prebuilt.warn_unknown(context, findings)
    component = dataclasses.replace(component, pinning_packages=drivers.exact_pinning(context, component))
    return kernels.with_build_packages(context, component, findings)


CHOICE = Choice(
    record=DriverComponent,
    candidates=_candidates,
    # Of a branch and source the newest serves everything that an older one does.
    alike=lambda facts: (facts["driver.source"], facts["driver.branch"]),
    known=drivers.known_drivers,
    published=drivers.published,
    series=1,
    preferences=preferences,
    options=staying.OPTIONS,
    check=_check,
    explain=_explain,
    complete=_complete,
    archive=lambda context: [f"branch {driver.branch}" for driver in context.distro.distro_drivers],
    lacks=lambda context: "driver branch" if _lacks(context) else "",
    holds=Holds(held=staying.held_packages),
    remedies=Remedies(advises=drivers.is_for_production, repairs=(Repair("no-prebuilt-modules", prebuilt.instead),)),
    keeping=Keeping(
        leading=True,
        stays=staying.ways,
        misfit=staying.misfit,
        explain=staying.explained,
    ),
    alone=_alone,
)
