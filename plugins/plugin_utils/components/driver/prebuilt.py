"""Plan the kernel modules that the distribution has built and signed for its kernels, in place of DKMS.

Runs on the controller; pure functions. On a host, apt's lists decide which modules there are for the running and the
next-boot kernel; for a described host the rows of the catalog.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Remedy
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import DistroDriver, PrebuiltModules
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import driver_sets, kernels
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Trial, outcome, settings

PROBLEMS = {
    "no-prebuilt-modules": "the distribution has no signed kernel modules of the driver for one of the host's kernels",
}
WARNINGS = {
    "prebuilt-unknown": "the catalog does not know whether the distribution has signed modules for a kernel",
}
DKMS, PREBUILT = "dkms", "prebuilt"
_INSTEAD = (
    "use DKMS with a key that the firmware trusts: set gpu_stack_module_signing_key and "
    "gpu_stack_module_signing_certificate, or enrol the host's own key and set gpu_stack_driver_module_source=dkms"
)


@dataclasses.dataclass(frozen=True)
class Modules:
    """The packages of a driver's prebuilt modules: of one kernel each, and the metapackages that follow updates."""

    exact: tuple[str, ...] = ()
    metas: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def source(context: ResolveContext) -> str:
    """Return where the kernel modules come from, `dkms` or `prebuilt`.

    At `auto` they are prebuilt where the kernel demands signatures and nothing signs what DKMS builds: neither is a key
    of the host trusted, nor has the kernel loaded such a module.
    """
    asked, host = context.request["driver_module_source"], context.host
    if asked != "auto":
        return asked
    if not host.needs_signatures or host.module_key_enrolled or context.request["driver_source"] == "nvidia":
        return DKMS
    pattern = context.catalog.packages.prebuilt_modules
    is_ours = any(fnmatch.fnmatchcase(package.name, pattern) for package in host.packages)
    if not context.distro.signs_modules or (host.loaded_driver is not None and not is_ours):
        return DKMS
    return PREBUILT


def unavailable(context: ResolveContext) -> list[Problem]:
    """Return the problem of prebuilt modules that no driver could have."""
    if source(context) != PREBUILT:
        return []
    if not context.distro.signs_modules:
        why, remedy = f"{context.distro.id} builds and signs none", _INSTEAD
    elif context.request["driver_source"] == "nvidia":
        why, remedy = "NVIDIA's repository has none", "leave gpu_stack_driver_source at auto; or " + _INSTEAD
    elif driver_sets.profile(context).name == "full" and context.distro.prebuilt_modules:
        why = "with OpenGL and X, Ubuntu's own tool installs them"
        remedy = "run sudo ubuntu-drivers install, reboot, and run this again: that driver then stays; or " + _INSTEAD
    else:
        return []
    return [Problem("no-prebuilt-modules", f"the kernel modules are to be prebuilt, but {why}", remedy)]


def too_early(context: ResolveContext, entry: DistroDriver) -> tuple[Problem, ...]:
    """Return the problem of a minor release of the distribution before the first with its signed modules, if known."""
    release, first = context.host.distribution_release, entry.first_release
    if not release or first is None or versions.key(release) >= versions.key(first):
        return ()
    message = f"{context.distro.id} signs the driver's kernel modules from {first} on, and the host has {release}"
    return (Problem("no-prebuilt-modules", message, f"update to {first} or newer; or {_INSTEAD}"),)


def modules(context: ResolveContext, series: str, flavour: str) -> Modules:
    """Return the modules of a driver series such as `580-server` for the host's kernels."""
    stem = context.catalog.packages.prebuilt["modules"].format(series=series, open=_open(flavour))
    known = context.host.kernels
    if known is None or known.prebuilt is None:
        return _of_catalog(context, stem, series + _open(flavour))
    # The metapackage of the next-boot kernel's flavour, unless it follows a newer kernel, which it would install.
    following = context.host.next_kernel or context.host.kernel or ""
    installed = known.releases[following].metas if following in known.releases else ()
    named = [stem + meta.removeprefix(kernels.IMAGE).replace("virtual", "generic") for meta in installed]
    metas = [meta for meta in dict.fromkeys(named) if known.prebuilt.get(meta) == following][:1]
    needed = [release for release in context.host.kernel_releases if not (metas and release == following)]
    missing = [release for release in needed if stem + release not in known.prebuilt]
    problems = [_missing(context, stem, release) for release in missing]
    exact = [stem + release for release in needed if release not in missing]
    return Modules(tuple(exact), tuple(metas), tuple(problems))


def instead(trial: Trial) -> Iterator[Remedy]:
    """Yield the next-boot kernel, if there are prebuilt modules for it, and DKMS with a key that is enrolled."""
    host, request, attempt = trial.host, trial.request, trial.attempt
    if host.next_kernel not in (None, host.kernel):
        booted = attempt(request, dataclasses.replace(host, kernel=host.next_kernel))
        if booted.ok:
            text = f"reboot into kernel {host.next_kernel} and run this again ({outcome(booted)})"
            yield Remedy(text, trial.changed(request), {"kernel": (str(host.next_kernel),)})
    built = request.but(driver_module_source="dkms")
    made = attempt(built, host)
    if made.ok:
        changes = trial.changed(built)
        key = "enrol a key for the modules of DKMS, or name an enrolled one with gpu_stack_module_signing_key"
        yield Remedy(f"{key}, and {settings(changes)} ({outcome(made)})", changes)


def warn_unknown(context: ResolveContext, findings: Findings) -> None:
    """Warn of a described host's kernel of whose flavour no row of the catalog says which modules there are."""
    if context.host.kernels is not None and context.host.kernels.prebuilt is not None:
        return
    if not context.distro.prebuilt_modules:
        findings.warn(
            "prebuilt-unknown",
            f"the catalog does not know for which kernels {context.distro.id} has signed modules: they may come days "
            "after a kernel, which then starts without a driver",
        )
        return
    for release in kernels.releases(context):
        if not _rows(context, release):
            findings.warn(
                "prebuilt-unknown",
                f"the catalog does not know for which drivers {context.distro.id} has signed modules of kernel "
                f"{release}: a plan on the host itself reads them from apt's lists",
            )


def user_space(context: ResolveContext, names: tuple[str, ...], series: str, flavour: str) -> tuple[str, ...]:
    """Return the packages of a driver without the one that has DKMS build its modules."""
    rules = context.catalog.packages.prebuilt
    rule = {key: name.format(series=series, open=_open(flavour)) for key, name in rules.items()}
    return tuple(rule["user_space"] if name == rule["headless"] else name for name in names)


def _open(flavour: str) -> str:
    return "-open" if flavour == "open" else ""


def _of_catalog(context: ResolveContext, stem: str, branch: str) -> Modules:
    """Return the exact modules of kernels that are known by their release, and the metapackages of their flavours."""
    exact = [stem + release for release in context.host.kernel_releases if not kernels.is_series(release)]
    metas, problems = [], []
    for release in kernels.releases(context):
        rows = _rows(context, release)
        fitting = [row for row in rows if branch in row.branches]
        metas += [stem + row.flavour for row in fitting]
        if rows and not fitting:
            problems.append(_missing(context, stem, release))
    return Modules(tuple(exact), tuple(dict.fromkeys(metas)), tuple(problems))


def _rows(context: ResolveContext, release: str) -> list[PrebuiltModules]:
    """Return the catalog's row of a kernel's flavour; an archive may have modules of flavours without one."""
    row = facts.kernel_headers(context.distro, release)
    flavour = row.package.removeprefix(kernels.HEADERS) if row else ""
    return [known for known in context.distro.prebuilt_modules if known.flavour == flavour]


def _missing(context: ResolveContext, stem: str, release: str) -> Problem:
    following = context.host.next_kernel
    known = context.host.kernels.prebuilt if context.host.kernels else None
    where = f"{context.distro.id}'s archive" if known is not None else context.archive_name
    role = "running" if release == (context.host.kernel or release) else "next boot"
    if role == "running" and following not in (None, release) and following in (known or {}).values():
        remedy = f"reboot into kernel {following}, for which there are some, and run this again; or {_INSTEAD}"
    else:
        remedy = f"install and boot the newest kernel of {context.distro.id}, and run this again; or {_INSTEAD}"
    return Problem(
        "no-prebuilt-modules",
        f"{where} has no {stem}{release}, the signed kernel modules for kernel {release} ({role})",
        remedy,
    )
