"""Check the package manager, packages on hold and the simulated transaction."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import processes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import BrokenPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import any_of
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, REMOVE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import kernel_builds, repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import LONGER, Context
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.package_sources import (
    REPOSITORY_UNREADABLE,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

CLOUD_INIT_RUNNING = FindingSpec(
    "cloud-init-running",
    "cloud-init sets up the host, for longer than `gpu_stack_wait`",
    f"wait until `cloud-init status` says done, or longer with {LONGER}; a stage that hangs is in "
    "/var/log/cloud-init-output.log",
)
APT_BUSY = FindingSpec(
    "apt-busy",
    "A process holds a lock of apt or dpkg, for longer than `gpu_stack_wait` (a warning if nothing has to be "
    "installed)",
    f"wait until that process has ended, or longer with {LONGER}",
)
PACKAGES_BROKEN = FindingSpec(
    "packages-broken",
    "Packages of others are half installed, or their dependencies are not met: apt would change them, too",
    any_of(lambda words: words.FINISH),
)
DPKG_INTERRUPTED = FindingSpec(
    "dpkg-interrupted",
    "Warning: dpkg was interrupted and left packages of gpuhost half installed",
    "None needed: the run finishes them before it installs anything",
)
_OF_KERNELS = (kernel_builds.HEADERS, kernel_builds.IMAGE)  # whose scripts let DKMS build all modules


def check_package_manager(context: Context, findings: Findings) -> None:
    """Check that packages can be changed now: no lock, no cloud-init, no unfinished packages of others."""
    state = context.probe.package_manager
    if state is None or context.plan.request["scope"] == "frameworks":
        return
    is_needed = any(context.is_changed(part.name) for part in PARTS)
    if context.probe.cloud_init_running and is_needed:
        CLOUD_INIT_RUNNING.add_problem(
            findings, "cloud-init still sets up this host: it may install packages and change their sources"
        )
    words = context.words
    if state.locks:  # while it runs, half-installed packages are normal
        message = f"{state.name} is busy: {processes.describe(state.locks)}"
        if is_needed:
            APT_BUSY.add_problem(findings, message)
        else:
            APT_BUSY.add_warning(findings, message)
    elif is_needed and (state.broken or state.interrupted):
        others = [package for package in state.broken if package.of_others and package.name not in context.packages]
        if others:
            removed = {row.name for part in context.diff.components for row in part.packages if row.action == REMOVE}
            gone = [package.name for package in others if package.name in removed]
            instead = _without_modules(others, gone, words)
            PACKAGES_BROKEN.add_problem(
                findings,
                f"{words.INTERRUPTED} and left packages of others unfinished: {_states(others)}; with what is "
                f"planned, {words.NAME} would finish them, too",
                words.FINISH + instead,
            )
            return
        found = _states(state.broken) if state.broken else "its journal is unfinished"
        DPKG_INTERRUPTED.add_warning(
            findings, f"{words.INTERRUPTED}: {found}; this run finishes that first ({words.CONFIGURE})"
        )


def _without_modules(others: Sequence[BrokenPackage], gone: Sequence[str], words: Words) -> str:
    """Return what else to do about packages whose configuration ends at a module that DKMS does not build.

    gone: those that the plan removes. Of the others, the package of a module, or a kernel's, for which all are built.
    """
    if gone:
        return f"; or, where a module does not build, remove what is replaced anyway: sudo {words.remove(gone)}"
    configured = [package.name for package in others if package.state == "half-configured"]
    modules = [name for name in configured if name.endswith("-dkms")]
    if not modules and not any(name.startswith(_OF_KERNELS) for name in configured):
        return ""
    remove = f": sudo {words.remove(modules)}" if modules else ""
    return (
        "; where that ends at a module that does not build (/var/lib/dkms/NAME/VERSION/build/make.log has why), update "
        f"or remove the package of that module{remove}"
    )


def _states(packages: Sequence[BrokenPackage]) -> str:
    more = f" and {len(packages) - 5} more" if len(packages) > 5 else ""
    return ", ".join(f"{package.name} is {package.state}" for package in packages[:5]) + more


PACKAGE_HELD = FindingSpec(
    holds.CODE,
    "The plan would change, remove or install a package that is on hold, and gpuhost did not set that hold",
    "`sudo apt-mark unhold` with the names, or a request that leaves them as they are",
)


def check_holds(context: Context, findings: Findings) -> None:
    """Check the planned packages for those that somebody else holds; the simulation finds what else would change."""
    held = context.probe.foreign_holds
    rows = [package for row in context.diff.components for package in row.packages if package.name in held]
    changed = {
        package.name: "would be removed"
        if package.action == REMOVE
        else f"{package.installed} would become {package.planned or 'the newest'}"
        if package.installed
        else "would be installed"
        for package in rows
        if package.action != KEEP
    }
    changed |= {name: "would be installed" for name in context.packages if held.get(name) == ""}
    changed |= {name: "would be removed" for name in context.diff.leftovers.purge if name in held}
    if changed:
        listed = ", ".join(f"{name} {what}" for name, what in changed.items())
        findings.problems.append(holds.problem(context.words, changed, listed))


TRANSACTION_REFUSED = FindingSpec(
    "transaction-refused",
    "In the simulation apt would remove packages of others or install another kernel, or finds no solution",
    "By cause, in the message",
)


def refused(message: str, words: Words) -> Problem:
    """Return the problem of a host that refuses a transaction and names none: that of a repository, or as it says."""
    if download := repository.failed_download(message):
        line, why = download
        return Problem(REPOSITORY_UNREADABLE.code, line + (f"; {why.meaning}" if why.meaning else ""), why.remedy)
    return Problem(
        TRANSACTION_REFUSED.code, message, f"solve what {words.NAME} reports on the host, then run this again"
    )


CANNOT_GO_BACK = FindingSpec(
    "cannot-go-back",
    "A package would be replaced that neither a rollback nor the teardown could restore: no repository offers "
    "it, and files of it are missing",
    "Install it again, add a repository that offers it, or accept that with `gpu_stack_accept_no_return`",
)


def check_simulated(context: Context, findings: Findings) -> None:
    """Add why the simulation of the package transaction was refused, unless that is known already."""
    refused = context.options.refused
    if refused and refused.code not in [problem.code for problem in findings.problems]:
        findings.problems.append(refused)


FINDINGS = (
    CLOUD_INIT_RUNNING,
    APT_BUSY,
    PACKAGES_BROKEN,
    DPKG_INTERRUPTED,
    PACKAGE_HELD,
    TRANSACTION_REFUSED,
    CANNOT_GO_BACK,
)
