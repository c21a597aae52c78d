"""Check what gpuhost itself knows of a host: its records, and what the probe could not read."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME, OPTIONS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import VerifiedPlan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation import outlook
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import distributions

NEWER_STATE = FindingSpec(
    "newer-state",
    "A later gpuhost has managed this host: a record in `/var/lib/gpuhost` has a schema unknown to this one",
    "update gpuhost on the controller",
)


PLANNED_ONLY = FindingSpec(
    distributions.PLANNED_ONLY,
    "SELinux is enforcing on a host of Enterprise Linux, for which this release of gpuhost plans alone",
    "let SELinux warn only: SELINUX=permissive in /etc/selinux/config, and type: sudo setenforce 0",
)


def check_planned_only(context: Context, findings: Findings) -> None:
    """Refuse a host of a distribution that is planned alone where SELinux is enforcing."""
    distro = load_catalog().distros.get(context.plan.distribution)
    if distro is not None and distro.planned_only and context.probe.selinux_enforcing:
        PLANNED_ONLY.add_problem(findings, distributions.planned_only(distro))


def check_newer_state(context: Context, findings: Findings) -> None:
    """Refuse a host whose records this release cannot read."""
    if context.probe.newer_state:
        NEWER_STATE.add_problem(findings, context.probe.newer_state)


PROBE_INCOMPLETE = FindingSpec(
    "probe-incomplete",
    "gpuhost could not read which kernels are installed, and has to build modules for them; another unread "
    "part of the host is a warning",
    "By cause, in the message",
)
_VERIFIED = "plan of the verified configuration: "  # the part of the probe


def check_unread(context: Context, findings: Findings) -> None:
    """Name the parts of the host that could not be read; an ordinary user may not read all, and needs few."""
    if context.plan.request["scope"] == "frameworks":
        return
    kernel = [error for error in context.probe.errors if error.startswith("kernel: ")]
    if kernel and context.builds_modules:
        PROBE_INCOMPLETE.add_problem(
            findings,
            f"the kernels of this host could not be read, and modules have to be built for them: {'; '.join(kernel)}",
            "repair what the message names, below /boot, /lib/modules or /var/lib/dpkg, and run this again",
        )
    verified = [error for error in context.probe.errors if error.startswith(_VERIFIED)]
    if verified:
        PROBE_INCOMPLETE.add_problem(
            findings,
            f"what was verified on this host could not be read, so that `auto` might change it: {'; '.join(verified)}",
            "repair the record, or move it away to plan as if nothing had been verified, and run this again",
        )
    known = (*verified, *(kernel if context.builds_modules else ()))
    others = [error for error in context.probe.errors if error not in known]
    if others:
        PROBE_INCOMPLETE.add_warning(
            findings,
            f"this host could not be read completely, and is planned for without that: {'; '.join(others)}",
        )


ROOT_IN_MEMORY = FindingSpec(
    "root-in-memory",
    "The root file system is in memory (overlayroot, a live image, netboot): what is installed is gone after a boot",
    "Build the stack into the image that the host boots, or give it a root on a disk",
)


def check_root(context: Context, findings: Findings) -> None:
    """Refuse to install what the next boot loses."""
    found = context.probe.root_in_memory
    if found and context.plan.request["scope"] == "host" and context.diff.changes:
        ROOT_IN_MEMORY.add_problem(
            findings,
            f"the root file system is in memory ({found}): all that is installed is gone after the next reboot",
            "install it into the image that this host boots (overlayroot: sudo overlayroot-chroot), or give the "
            f"host a root on a disk{f', without {found}' if '=' in found else ''}, and run this again",
        )


REQUEST_CHANGED = FindingSpec(
    "request-changed",
    "Warning: the verified configuration was requested with other values than this run, such as one that was given "
    "with `-e` once",
    "None needed if that is intended; else set the value in the inventory",
)
_ONCE = ("leftovers",)  # what is requested for one run


def check_request(context: Context, findings: Findings) -> None:
    """Name what the verified configuration was requested with and this run was not."""
    before, now = context.probe.requested or {}, context.plan.request
    changed = [
        f"gpu_stack_{name} was {before[name]} and is {now[name]}"
        for name in now
        if name in before
        and name not in _ONCE
        and before[name] != now[name]
        and not _is_kept(context, name, before[name])
    ]
    if changed:
        REQUEST_CHANGED.add_warning(
            findings,
            f"since this host was verified, {', '.join(changed)}; a value given with -e counts for one run: set it in "
            "the inventory to keep it",
        )


def _is_kept(context: Context, field: str, before: str) -> bool:
    """Return whether the plan has what a field was requested with, which `auto` keeps."""
    owners = {name: name for name in BY_NAME} | {f: n for n, fields in OPTIONS.items() for f in fields}
    name = owners.get(field)
    component = context.plan.components.get(name) if name else None
    if name is None or component is None or context.plan.request[field] not in ("auto", "fallback"):
        return False
    if field != name:
        return str(getattr(component, OPTIONS[name][field])) == before
    was = (context.probe.verified_plan or VerifiedPlan()).components.get(name)
    return was is not None and component.full_version == (was.release or was.version)


UNDONE_BEFORE = FindingSpec(
    "undone-before",
    "The same versions were undone on this host, because checks failed that had passed before; a warning where "
    "it would not reboot for them",
    "The report of that run has what the checks found: request other versions; or repair the host, and to try once "
    "more, type on it: sudo rm /var/lib/gpuhost/undone.json",
)


def check_undone(context: Context, findings: Findings) -> None:
    """Name the change that was undone last, if this plan makes the same one again: no host reboots for it unasked."""
    undone, planned = context.probe.undone, context.components
    changed = [part.name for part in PARTS if context.is_changed(part.name)]
    same = {name: component.version for name in changed if (component := planned.get(name))}
    if undone is None or not same or any(undone.versions.get(name) != version for name, version in same.items()):
        return
    versions = ", ".join(f"{BY_NAME[name].label} {version}" for name, version in same.items())
    expected = outlook.outlook(context.plan, context.diff, context.probe, context.options.own_kernel)
    message = (
        f"this change ({versions}) was undone on {undone.at}, as checks failed after it that had passed before "
        f"({', '.join(undone.checks)}); "
    )
    if expected.reboot == outlook.NO:
        UNDONE_BEFORE.add_warning(findings, message + "this run makes it again")
    else:
        UNDONE_BEFORE.add_problem(findings, message + f"reboot: {expected.reboot}, {expected.because}")


FINDINGS = (PLANNED_ONLY, NEWER_STATE, PROBE_INCOMPLETE, ROOT_IN_MEMORY, REQUEST_CHANGED, UNDONE_BEFORE)
