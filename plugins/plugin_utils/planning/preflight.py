"""Preflight: check a host for everything that prevents its plan, each problem with a remedy.

docs/preflight.md lists the codes, generated from CODES.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version, processes, store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import PcieLink
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import BrokenPackage, PackageLock
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, module_loading, nvidia_smi
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.installed_stack import PYTORCH, TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.manager import words
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP, REMOVE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    COMPONENTS,
    FRAMEWORKS,
    LABELS,
    PACKAGED,
    Components,
    PytorchComponent,
    all_packages,
    full_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, VerifiedPlan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import (
    fabric_manager,
    kernel_builds,
    leftovers,
    repository,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import ExtraPackages, check_disk
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds, keeping

SCHEMA = 1
ENVIRONMENT_PATHS = {"tensorflow": TENSORFLOW, "pytorch": PYTORCH}
# Every code of a finding: its meaning and its remedy, for the generated table of docs/preflight.md.
CODES = {
    "not-root": (
        "The tasks run on the host as another user than root",
        "`ansible_become: true` in the inventory, or `--become`; with `--ask-become-pass` if sudo asks for a password",
    ),
    "probe-incomplete": (
        "The host's kernels could not be read, and modules have to be built for them (of other parts of the host: a "
        "warning, and the plan is made as if these were not there)",
        "By cause, in the message",
    ),
    "newer-state": (
        "A later gpuhost has managed this host: a record in `/var/lib/gpuhost` has a schema unknown to this one",
        "Update gpuhost on the controller",
    ),
    "folder-not-writable": (
        "With `gpu_stack_scope=frameworks`, the user of the tasks may not write to `/opt/gpuhost`",
        "Once, as root: `install -d -o USER /opt/gpuhost`; or `--become`",
    ),
    "venv-missing": (
        "With `gpu_stack_scope=frameworks`, no package is installed, and the host's Python cannot create environments",
        "Ask the machine's administrator for the package `python3-venv`",
    ),
    "triton-build-missing": (
        "Warning: the host lacks the C compiler or the Python headers with which this PyTorch compiles operations when "
        "it runs (Triton), and no package is installed for them: with `gpu_stack_scope=frameworks`, or since the "
        "distribution has none for a Python of another source",
        "Ask the machine's administrator for the packages that the message names; for another Python, install its "
        "headers from where that Python came from",
    ),
    "apt-busy": (
        "A process holds a lock of apt or dpkg, for longer than `gpu_stack_wait` (a warning if nothing has to be "
        "installed)",
        "Wait for the process",
    ),
    "transaction-running": (
        "A package transaction of gpuhost has been running for longer than `gpu_stack_wait`: of another controller, or "
        "of a run that lost its connection or was killed",
        "Wait for it",
    ),
    "other-run": (
        "Another run has been changing this host for longer than `gpu_stack_wait`; nothing is planned for what "
        "is there between two of its steps",
        "Wait for it; a run of another controller that was killed is taken for dead after two hours",
    ),
    "transaction-ended": (
        "Warning: the result of a package transaction that its run did not wait for",
        "None needed: the run continues from there",
    ),
    "cloud-init-running": (
        "cloud-init sets up the host, for longer than `gpu_stack_wait`",
        "Wait until `cloud-init status` says done; `/var/log/cloud-init-output.log` shows where it is",
    ),
    "dpkg-interrupted": (
        "Warning: dpkg was interrupted and left packages of gpuhost half installed",
        "None needed: the run finishes them before it installs anything",
    ),
    "packages-broken": (
        "dpkg left packages of others between two states, or their dependencies are not met, and the planned packages "
        "do not meet them: apt would change them, too",
        "`sudo dpkg --configure -a`, `sudo apt-get --fix-broken install`",
    ),
    "package-held": (
        "The plan would change, remove or install a package that is on hold, and gpuhost did not set that hold (also a "
        "[problem of the plan](compatibility.md))",
        "`sudo apt-mark unhold` with the names, or a request that leaves them as they are",
    ),
    "transaction-refused": (
        "By the simulation of the planned packages, with the lists as they are, apt would remove packages of others or "
        "install another kernel, or it finds no solution",
        "By cause, in the message",
    ),
    "repository-unreadable": (
        "NVIDIA's repository cannot be read from the host, and packages of it have to be installed (a warning if none "
        "has to be): no name server, a proxy's password or certificate, a wrong clock, no signature",
        "By cause, in the message; it comes before anything is changed",
    ),
    "disk-full": (
        "A file system has too little space for all downloads and installations on it, plus a reserve of 1 GiB; a "
        "`/boot` of its own for another initramfs, a `/var/tmp` of its own for the build of one, a `/tmp` of its own "
        "(or `TMPDIR`) for the temporary files of apt and of the compilers of kernel modules",
        "Free space, or enlarge it; for `/tmp`, or `gpu_stack_environment: {TMPDIR: /var/tmp}`",
    ),
    "extra-size-unknown": (
        "Warning: the package index does not state the size of packages of `gpu_stack_tensorflow_extra` or "
        "`gpu_stack_pytorch_extra`, or their lock is of an older release of gpuhost: the check for disk space leaves "
        "them out",
        "None needed if `/opt/gpuhost/environments` has space for them; for an old lock, remove it from "
        "`gpu_stack_locks`, and the next run resolves it again",
    ),
    "runfile-install": (
        "NVIDIA's `.run` installer installed a driver, or a toolkit in the planned directory (another "
        "toolkit: a warning)",
        "Run its uninstaller, or `-e gpu_stack_leftovers=remove`; or keep the driver with `-e gpu_stack_driver=none`",
    ),
    "mig-enabled": (
        "MIG is enabled on a GPU, and the driver changes (a warning): that removes the instances, and a program sees "
        "one instance alone",
        "None if it is meant; otherwise `nvidia-smi -i N -mig 0`",
    ),
    "modules-of-others": (
        "ZFS or DOCA-OFED depend on kernel modules that DKMS builds beside the driver, or that the driver is built "
        "against, and the driver changes (a warning)",
        "`dkms status` and a reboot while the console can be reached; `modprobe nvidia_peermem` for GPUDirect RDMA",
    ),
    "gpu-busy": (
        "The driver would change under programs that compute on the GPUs (displays and monitors: a warning)",
        "Drain the host, or end those programs",
    ),
    "secure-boot": (
        "Secure Boot is enabled, and the key that signs the modules of DKMS is not enrolled",
        "[Enrol one](secure-boot.md); or disable Secure Boot",
    ),
    "module-signatures": (
        "Without Secure Boot, the kernel loads only modules with a signature that it trusts (`module.sig_enforce`, "
        "lockdown, `CONFIG_MODULE_SIG_FORCE`), and it does not trust the key that signs the modules of DKMS",
        "Remove the option that the message names, and reboot; or have the kernel trust the key, by way of "
        "[the firmware](secure-boot.md#signatures-without-secure-boot) if there is one",
    ),
    "signing-key-unused": (
        "`gpu_stack_module_signing_key` is set, and the DKMS of this host is too old to sign with it (before 3.0.4)",
        "`gpu_stack_driver_source: nvidia`, whose repository has a newer DKMS; or "
        "[the key of the host](secure-boot.md#enrol-a-key-by-hand)",
    ),
    "modules-disabled": (
        "The kernel loads no module until the next boot (`kernel.modules_disabled=1`), and the driver's must be loaded",
        "Remove that setting, which the message names, and reboot",
    ),
    **kernel_builds.CODES,
    **fabric_manager.CODES,
    "service-masked": (
        "A service that the run would enable is masked (`systemctl mask`), nvidia-persistenced for example",
        "`systemctl unmask NAME` on the host; or, to keep nvidia-persistenced off, `nvidia_driver_persistence: false`",
    ),
    "path-taken": (
        "A directory, a file or a foreign link occupies `/opt/gpuhost/tensorflow` or `/opt/gpuhost/pytorch`, "
        "the path of the link to the environment",
        "Move it away",
    ),
    "stale-repository": (
        "Another source defines the same repository with another `Signed-By`, which apt refuses; or apt would take a "
        "planned package from a source of others, by a pin or as the newest (a warning once it is installed; old keys, "
        "PPAs and NVIDIA's other repositories that do not win: a warning)",
        "Lower the pin, or remove the file, that the message names, or `-e gpu_stack_leftovers=remove`",
    ),
    "graphics-removed": (
        "Warning: the new driver replaces one with OpenGL and X, and the host has no display: the new one has none",
        "`-e gpu_stack_driver_profile=full`, if something renders on this host",
    ),
    "nouveau-in-use": (
        "Warning: nouveau is loaded or bound to a GPU",
        "None needed: it is blacklisted, and the host needs a reboot",
    ),
    "reboot-pending": (
        "Warning: the loaded module is of another version than the installed driver, which the plan leaves as it is",
        "`sudo reboot`",
    ),
    "dkms-leftover": (
        "Warning: DKMS still has a module of a removed package, which lacks its source, so that DKMS builds no module "
        "for a new kernel, or is another version of the driver, which DKMS builds, too",
        "`sudo dkms remove NAME/VERSION --all`; where dkms refuses because the source is gone, "
        "`sudo rm -r /var/lib/dkms/NAME/VERSION`",
    ),
    "slow-gpu-query": (
        f"Warning: nvidia-smi answers, but took longer than {nvidia_smi.SLOW} s (times `gpu_stack_timeout_factor`)",
        "Persistence mode, unless that was the first call since the boot; `journalctl -k -g NVRM` names a slow GPU",
    ),
    "request-changed": (
        "Warning: the verified configuration was requested with other values than this run, such as one that was given "
        "with `-e` once",
        "None needed if that is intended; else set the value in the inventory",
    ),
    "pcie-link-below-ability": (
        "Warning: a GPU's PCIe link is narrower or slower than the card supports",
        "Reseat the card or riser; check the firmware's slot settings",
    ),
    "peer-to-peer-blocked": (
        "Warning: the IOMMU or ACS redirects traffic between GPUs; NCCL may hang",
        "Kernel option `iommu=pt`; disable ACS in the firmware setup",
    ),
}
# What ends without anybody's help: the run waits for it.
TRANSIENT = ("apt-busy", "cloud-init-running", "other-run", "transaction-running")
_PERSISTENCED = "nvidia-persistenced"
_LONGER = "-e gpu_stack_wait=SECONDS"
_ONCE = ("leftovers",)  # what is requested for one run
_VERIFIED = "plan of the verified configuration: "  # the part of the probe
_PEER_TO_PEER_REDIRECTS = {"ReqRedir", "CmpltRedir"}  # ACS controls, by lspci's names


@dataclasses.dataclass(frozen=True)
class Options:
    """What the inventory decides and no probe can show.

    own_kernel: whether the host loads modules into a kernel of its own (a container borrows one). kernel_headers,
    kernel_compilers: the packages that will be installed for them; None: those of the plan. signing: the certificate of
    the user's own key for kernel modules. extra: packages of the user's own, by framework. timeout_factor: multiplies
    time limits. keeps_cache: whether the roles leave the packages of environments in uv's cache for the next one.
    persistence: whether nvidia-persistenced is to be enabled.
    refused: why the host refuses the package transaction, if it was simulated. other_run: the run that changes the host
    now, for people.
    """

    own_kernel: bool = True
    kernel_headers: tuple[str, ...] | None = None
    kernel_compilers: tuple[str, ...] | None = None
    signing: SigningCertificate | None = None
    extra: Mapping[str, ExtraPackages] = dataclasses.field(default_factory=dict)
    timeout_factor: float = 1.0
    keeps_cache: bool = True
    persistence: bool = True
    refused: Problem | None = None
    other_run: str = ""


@dataclasses.dataclass(frozen=True)
class Preflight:
    """The problems and warnings of a host."""

    problems: tuple[Problem, ...]
    warnings: tuple[PlanWarning, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing on the host prevents the plan."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain data: the fact gpu_stack_preflight."""
        return {"schema": SCHEMA, "ok": self.ok, **to_json(self)}


@dataclasses.dataclass(frozen=True)
class _Context:
    plan: Plan
    probe: Probe
    diff: PlanDiff
    options: Options

    @property
    def components(self) -> Components:
        return self.plan.components

    def is_changed(self, name: str) -> bool:
        """Whether the plan changes a planned component."""
        return self.components.get(name) is not None and self.diff.of(name).action != KEEP

    @property
    def packages(self) -> list[str]:
        """The names of all packages that the plan installs, those to build modules with included."""
        planned = [package.name for part in self.components.packaged() for package in all_packages(part)]
        pytorch = self.components.pytorch.build_packages if self.components.pytorch else ()
        return [*planned, *self.kernel_headers, *self.kernel_compilers, *pytorch]

    @property
    def kernel_headers(self) -> tuple[str, ...]:
        """The packages with headers that will be installed."""
        planned = self.components.driver.kernel_headers if self.components.driver else ()
        return planned if self.options.kernel_headers is None else self.options.kernel_headers

    @property
    def kernel_compilers(self) -> tuple[str, ...]:
        """The packages with compilers and tools for modules that will be installed."""
        driver = self.components.driver
        planned = (*driver.kernel_compilers, *driver.kernel_tools) if driver else ()
        return planned if self.options.kernel_compilers is None else self.options.kernel_compilers

    @property
    def builds_modules(self) -> bool:
        """Whether DKMS has to build modules for this host, because no prebuilt ones are planned."""
        driver = self.components.driver
        if driver is None or not self.options.own_kernel:
            return False
        if driver.module_source != "dkms":
            return False
        return self.is_changed("driver") or self.probe.driver.loaded is None


def preflight(plan: Plan, probe: Probe, diff: PlanDiff, options: Options | None = None) -> Preflight:
    """Check a host for its plan; diff: what the plan changes on it."""
    context, findings = _Context(plan, probe, diff, options or Options()), Findings()
    if context.options.other_run:
        _other_run(context, findings)
        return Preflight(tuple(findings.problems), ())  # what was found between two of its steps says nothing
    for check in (
        _user,
        _newer_state,
        _unread,
        _request,
        _transaction,
        _package_manager,
        _holds,
        _simulated,
        _repository,
        _leftovers,
        _gpu_users,
        _signing_dkms,
        _secure_boot,
        _signatures,
        _modules_disabled,
        _kernel_builds,
        _graphics,
        _nouveau,
        _pending_reboot,
        _dkms_leftovers,
        _nvidia_smi,
        _masked_services,
        _links,
        _environment_paths,
        _triton,
        _peer_to_peer,
        _mig,
        _modules_of_others,
    ):
        check(context, findings)
    fabric_manager.check(plan, probe, diff, findings)
    check_disk(plan, diff, probe, findings, context.options.extra, context.options.keeps_cache)
    return Preflight(tuple(findings.problems), tuple(findings.warnings))


def refusal(problems: Iterable[Problem]) -> str:
    """Return all problems of a host for a terminal: a line for each, its remedy below."""
    lines = [f"- {problem.code}: {problem.message}\n  Remedy: {problem.remedy}" for problem in problems]
    return "\n".join([f"{len(lines)} problem(s) on this host; nothing was changed on it.", *lines])


def _user(context: _Context, findings: Findings) -> None:
    if context.plan.request.scope == "frameworks":
        _ordinary_user(context.probe, findings)
    elif context.probe.uid != 0:
        findings.problem(
            "not-root",
            f"the tasks run as the user with uid {context.probe.uid}, expected root",
            "set ansible_become: true in the inventory, or add --become; --ask-become-pass if sudo asks for a password",
        )


def _newer_state(context: _Context, findings: Findings) -> None:
    if context.probe.newer_state:
        findings.problem("newer-state", context.probe.newer_state, "update gpuhost on the controller")


def _unread(context: _Context, findings: Findings) -> None:
    """Name the parts of the host that could not be read; an ordinary user may not read all, and needs few."""
    if context.plan.request.scope == "frameworks":
        return
    kernel = [error for error in context.probe.errors if error.startswith("kernel: ")]
    if kernel and context.builds_modules:
        findings.problem(
            "probe-incomplete",
            f"the kernels of this host could not be read, and modules have to be built for them: {'; '.join(kernel)}",
            "repair what the message names, below /boot, /lib/modules or /var/lib/dpkg, and run this again",
        )
    verified = [error for error in context.probe.errors if error.startswith(_VERIFIED)]
    if verified:
        findings.problem(
            "probe-incomplete",
            f"what was verified on this host could not be read, so that `auto` might change it: {'; '.join(verified)}",
            "repair the record, or move it away to plan as if nothing had been verified, and run this again",
        )
    known = (*verified, *(kernel if context.builds_modules else ()))
    others = [error for error in context.probe.errors if error not in known]
    if others:
        findings.warn(
            "probe-incomplete",
            f"this host could not be read completely, and is planned for without that: {'; '.join(others)}",
        )


def _request(context: _Context, findings: Findings) -> None:
    """Name what the verified configuration was requested with and this run was not."""
    before, now = context.probe.requested or {}, vars(context.plan.request)
    changed = [
        f"gpu_stack_{name} was {before[name]} and is {now[name]}"
        for name in now
        if name in before
        and name not in _ONCE
        and before[name] != now[name]
        and not _is_kept(context, name, before[name])
    ]
    if changed:
        findings.warn(
            "request-changed",
            f"since this host was verified, {', '.join(changed)}; a value given with -e counts for one run: set it in "
            "the inventory to keep it",
        )


def _is_kept(context: _Context, field: str, before: str) -> bool:
    """Return whether the plan has what a field was requested with, which `auto` keeps."""
    owners = {name: name for name in COMPONENTS} | {f: n for n, fields in keeping.DECIDED_BY.items() for f in fields}
    name = owners.get(field)
    component = context.plan.components.get(name) if name else None
    if name is None or component is None or getattr(context.plan.request, field) not in ("auto", "fallback"):
        return False
    if field != name:
        return str(getattr(component, keeping.DECIDED_BY[name][field])) == before
    was = (context.probe.verified_plan or VerifiedPlan()).components.get(name)
    return was is not None and full_version(component) == (was.release or was.version)


def _ordinary_user(probe: Probe, findings: Findings) -> None:
    """Check what frameworks alone need: their directory, and a Python that creates environments."""
    for path in (path for path, may_write in probe.may_write.items() if not may_write):
        findings.problem(
            "folder-not-writable",
            f"the tasks run as the user with uid {probe.uid}, who may not write to {path}, the only directory that "
            "gpu_stack_scope=frameworks uses",
            f"once, as root on the host: install -d -o USER {path} (with that user's name); or add --become",
        )
    if not (probe.python.ensurepip or probe.tensorflow or probe.pytorch):  # an environment came with the installer
        findings.problem(
            "venv-missing",
            f"Python {probe.python.default or '3'} of the host has no ensurepip and creates no environment; "
            "gpu_stack_scope=frameworks installs no package",
            "ask the machine's administrator to install python3-venv",
        )


def missing_to_compile(pytorch: PytorchComponent, probe: Probe) -> tuple[str, ...]:
    """Return the packages without which this host's PyTorch would not find what it compiles with when it runs."""
    compiler = pytorch.compiler_packages if probe.toolchain.c_compilers == () else ()
    return (*compiler, *(pytorch.header_packages if _lacks_headers(pytorch, probe) else ()))


def _lacks_headers(pytorch: PytorchComponent, probe: Probe) -> bool:
    return probe.python.headers is not None and pytorch.python not in probe.python.headers


def _triton(context: _Context, findings: Findings) -> None:
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
        findings.warn(
            "triton-build-missing",
            f"PyTorch {pytorch.version} compiles operations on the host when it runs (Triton), and this host lacks "
            f"{' and '.join(missing)}; {remedy}",
        )


# Frameworks -----------------------------------------------------------------------------------------------------


def _environment_paths(context: _Context, findings: Findings) -> None:
    """Check the paths before the driver changes; the role would refuse as well, but after that."""
    for name in FRAMEWORKS:
        found = context.probe.path_conflict(name)
        if found and context.components.framework(name):
            environment = context.probe.environment(name)
            path = environment.path if environment and environment.path else ENVIRONMENT_PATHS[name]
            findings.problem(
                "path-taken",
                f"found {found} at {path}, expected nothing or gpuhost's own link to the {LABELS[name]} environment",
                f"move it away (sudo mv {path} {path}.old), or leave {LABELS[name]} out with -e gpu_stack_{name}=none",
            )


# Packages -------------------------------------------------------------------------------------------------------


def _other_run(context: _Context, findings: Findings) -> None:
    findings.problem(
        "other-run",
        f"another run is changing this host: {context.options.other_run}",
        f"wait until it has ended, or longer with {_LONGER}; if you know that it was killed on another controller, "
        f"remove {run_lock.RECORD}.json in the host's state directory ({store.DIRECTORY})",
    )


def _transaction(context: _Context, findings: Findings) -> None:
    """Wait for gpuhost's own package transaction even if nothing has to change: it may be removing what is planned."""
    found = context.probe.transaction
    if found.running:
        findings.problem(
            "transaction-running",
            f"a package transaction of gpuhost is running on this host: {_holders([found.running])}",
            f"wait until it has ended, or longer with {_LONGER}",
        )
    elif found.ended:
        result = f"failed: {found.ended.failed}" if found.ended.failed else f"succeeded ({found.ended.changes} changes)"
        findings.warn(
            "transaction-ended",
            f"{found.ended.what} continued after its run had lost the connection or was killed, ended at "
            f"{found.ended.ended} and {result}",
        )


def _package_manager(context: _Context, findings: Findings) -> None:
    state = context.probe.package_manager
    if state is None or context.plan.request.scope == "frameworks":
        return
    is_needed = any(context.is_changed(name) for name in COMPONENTS)
    if context.probe.cloud_init_running and is_needed:
        findings.problem(
            "cloud-init-running",
            "cloud-init still sets up this host: it may install packages and change their sources",
            f"wait until `cloud-init status` says done, or longer with {_LONGER}; a stage that hangs is in "
            "/var/log/cloud-init-output.log",
        )
    if state.locks:  # while it runs, half-installed packages are normal
        message = f"{state.name} is busy: {_holders(state.locks)}"
        if is_needed:
            findings.problem("apt-busy", message, f"wait until that process has ended, or longer with {_LONGER}")
        else:
            findings.warn("apt-busy", message)
    elif is_needed and (state.broken or state.interrupted):
        others = [package for package in state.broken if package.of_others and package.name not in context.packages]
        if others:
            findings.problem(
                "packages-broken",
                f"{words.INTERRUPTED} and left packages of others unfinished: {_states(others)}; with what is "
                f"planned, {words.NAME} would finish them, too",
                words.FINISH,
            )
            return
        found = _states(state.broken) if state.broken else "its journal is unfinished"
        findings.warn(
            "dpkg-interrupted", f"{words.INTERRUPTED}: {found}; this run finishes that first ({words.CONFIGURE})"
        )


def _states(packages: Sequence[BrokenPackage]) -> str:
    more = f" and {len(packages) - 5} more" if len(packages) > 5 else ""
    return ", ".join(f"{package.name} is {package.state}" for package in packages[:5]) + more


def _holds(context: _Context, findings: Findings) -> None:
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
        findings.problems.append(holds.problem(changed, listed))


def _simulated(context: _Context, findings: Findings) -> None:
    """Add why the simulation of the package transaction was refused, unless that is known already."""
    refused = context.options.refused
    if refused and refused.code not in [problem.code for problem in findings.problems]:
        findings.problems.append(refused)


def _repository(context: _Context, findings: Findings) -> None:
    """Check that what the plan installs from NVIDIA's repository can be had."""
    read = context.probe.repository
    error = read and (read.error or read.unreachable)
    if not error or context.plan.repository is None:
        return
    why = repository.cause(error)
    message = f"NVIDIA's repository cannot be read: {error}" + (f"; {why.meaning}" if why.meaning else "")
    names = [name for name in PACKAGED if getattr(context.components.get(name), "source", "nvidia") == "nvidia"]
    if any(context.is_changed(name) for name in names):
        findings.problem("repository-unreadable", message, why.remedy)
    else:
        findings.warn("repository-unreadable", f"{message}. Nothing has to be installed from it now: {why.remedy}")


def _holders(locks: Iterable[PackageLock]) -> str:
    return processes.describe(locks)


def _leftovers(context: _Context, findings: Findings) -> None:
    """Add the leftovers; those that the user allows the run to remove are warnings."""
    for found in leftovers.find(context.plan, context.probe):
        if found.action and leftovers.may_remove(context.plan):
            findings.warn(found.code, f"{found.message}; gpu_stack_leftovers=remove: {found.action}")
        elif found.blocks:
            findings.problem(found.code, found.message, found.remedy)
        else:
            findings.warn(found.code, found.message)


# GPUs in use ----------------------------------------------------------------------------------------------------


def _gpu_users(context: _Context, findings: Findings) -> None:
    """Check for jobs on the GPUs; displays and monitors may keep running with the old driver."""
    if not context.is_changed("driver"):
        return
    users = [user for user in context.probe.gpu_processes if user.program not in gpu_processes.SERVICES]
    jobs = gpu_processes.jobs(users)
    others = [user for user in users if user not in jobs]
    if jobs:
        findings.problem(
            "gpu-busy",
            f"the driver would change under programs that use the GPUs: {gpu_processes.listed(jobs)}",
            "wait for them or end them (drain the node), then run this again",
        )
    if others:
        findings.warn(
            "gpu-busy",
            f"programs use the GPUs without computing: {gpu_processes.listed(others)}; restart them (or reboot) after "
            "the driver has changed",
        )


def _graphics(context: _Context, findings: Findings) -> None:
    """Check for OpenGL and X of a driver that is replaced by one without; a host with a display keeps them."""
    driver = context.components.driver
    if driver is None or driver.profile == "full":
        return
    expressions = load_catalog().packages.graphics
    removed = [change.name for change in context.diff.of("driver").packages if change.action == REMOVE]
    lost = [name for name in removed if any(re.fullmatch(expression, name) for expression in expressions)]
    if lost:
        findings.warn(
            "graphics-removed",
            f"the host has no display, so the new driver has no OpenGL and X: {', '.join(lost)} are removed; "
            "set gpu_stack_driver_profile=full if something renders on this host",
        )


def _nouveau(context: _Context, findings: Findings) -> None:
    if context.components.driver is None or not context.options.own_kernel:
        return
    rivals = [driver.module for driver in load_catalog().known_bad.kernel_drivers]
    bound = {gpu.pci_address: gpu.kernel_driver for gpu in context.probe.gpus if gpu.kernel_driver in rivals}
    if bound or context.probe.driver.nouveau_loaded:
        gpus = f" and bound to {', '.join(bound)}" if bound else ""
        module = next((name for name in rivals if name in bound.values()), "nouveau")
        findings.warn(
            "nouveau-in-use",
            f"{module} is loaded{gpus}: it will be blacklisted, and NVIDIA's module can be loaded after a reboot",
        )


def _pending_reboot(context: _Context, findings: Findings) -> None:
    """Warn of a driver that somebody has installed and not loaded; a run that changes the driver loads it."""
    driver = context.probe.driver
    installed = driver.installed.version if driver.installed else None
    if not driver.loaded or not installed or context.is_changed("driver") or not context.options.own_kernel:
        return
    if driver.loaded.version != installed:
        findings.warn(
            "reboot-pending",
            f"driver {installed} is installed, and the module of {driver.loaded.version} is still loaded: programs "
            "that start now find no GPU; type: sudo reboot",
        )


def _dkms_leftovers(context: _Context, findings: Findings) -> None:
    """Warn of what DKMS still builds of removed packages; a driver of NVIDIA's .run installer has its own finding."""
    runfile = context.probe.runfile.driver
    if context.components.driver is None:
        return
    for module, has_source in ((left.module, left.has_source) for left in context.probe.driver.dkms_leftovers):
        if not has_source:
            findings.warn(
                "dkms-leftover",
                f"DKMS still has {module}, whose source and package are gone; dkms 2.8 to 3.0 fail at it, and build no "
                f"module for a new kernel; type: sudo dkms remove {module} --all, and where dkms refuses because the "
                f"source is gone, sudo rm -r /var/lib/dkms/{module}",
            )
        elif runfile is None or runfile.version != module.partition("/")[2]:
            source = f"/usr/src/{module.replace('/', '-')}"
            findings.warn(
                "dkms-leftover",
                f"DKMS builds NVIDIA's module {module} for new kernels, and no package has it ({source}): it can take "
                f"the place of the planned driver's; type: sudo dkms remove {module} --all && sudo rm -r {source}",
            )


def _nvidia_smi(context: _Context, findings: Findings) -> None:
    """Warn of a driver that answers slowly, as the check driver.nvidia_smi will: slow is not dead."""
    answer = context.probe.driver.smi
    if answer.gpus and answer.seconds > nvidia_smi.SLOW * context.options.timeout_factor:
        findings.warn(
            "slow-gpu-query",
            f"nvidia-smi took {answer.seconds:.0f} s for {len(answer.gpus)} GPUs: without persistence mode each call "
            "initialises all of them (systemctl status nvidia-persistenced), and a GPU may be slow to answer "
            "(journalctl -k -g NVRM)",
        )


# Kernel ---------------------------------------------------------------------------------------------------------


def _signing_dkms(context: _Context, findings: Findings) -> None:
    """Refuse a key of the user's own where DKMS reads no settings about keys, and signs with the host's key or none.

    NVIDIA's repository brings a newer one, since its packages depend on it.
    """
    driver, catalog = context.components.driver, load_catalog()
    if not context.options.signing or driver is None or driver.module_source != "dkms" or driver.source != "distro":
        return
    installed, distro = context.probe.present_packages.get("dkms"), catalog.distros.get(context.plan.distribution)
    needed = catalog.packages.dkms_with_keys
    archive = distro.dkms if distro and context.plan.repository is None else None
    version = installed.version if installed else archive
    if version and debian_version.key(version.partition(":")[2] or version) < debian_version.key(needed):
        findings.problem(
            "signing-key-unused",
            f"dkms {version} would not sign with gpu_stack_module_signing_key: {needed} is the first one that "
            "reads which key to use",
            "set gpu_stack_driver_source=nvidia, whose packages bring a newer dkms; or remove "
            "gpu_stack_module_signing_key and gpu_stack_module_signing_certificate and enrol the key of the host "
            "(docs/secure-boot.md)",
        )


def _secure_boot(context: _Context, findings: Findings) -> None:
    if context.probe.secure_boot != "enabled" or not context.builds_modules:
        return
    if context.options.signing:
        _own_signing_key(context.options.signing, context.probe.trusted_certificates, findings)
        return
    keys = context.probe.secure_boot_keys
    if any(key.enrolled for key in keys):
        return
    message = "Secure Boot is enabled, and the firmware trusts no key that DKMS signs modules with: they would not load"
    if keys:
        state = "is not enrolled" if keys[0].enrolled is False else "may not be enrolled"
        message += f" ({keys[0].path} exists but {state})"
    findings.problem("secure-boot", message, _enrolment(context))


def _enrolment(context: _Context) -> str:
    """Return how to have the firmware trust the key that DKMS signs modules with, after it is made if need be."""
    keys = context.probe.secure_boot_keys
    if keys:
        prepare = f"sudo mokutil --import {keys[0].path}"
    elif context.plan.distribution.startswith("ubuntu"):
        prepare = (
            f"sudo {words.install(('shim-signed', 'mokutil'))}, sudo update-secureboot-policy --new-key and "
            "sudo update-secureboot-policy --enroll-key"
        )
    else:
        prepare = (  # what DKMS runs when it has no key; `dkms generate_mok` is newer than Debian 12's
            f"sudo {words.install(('mokutil', 'openssl'))}, sudo install -d /var/lib/dkms, sudo openssl req -new -x509 "
            "-nodes -newkey rsa:2048 -days 36500 -subj '/CN=DKMS module signing key' -keyout /var/lib/dkms/mok.key "
            "-outform DER -out /var/lib/dkms/mok.pub and sudo mokutil --import /var/lib/dkms/mok.pub"
        )
    return (
        f"run {prepare}, {_CONFIRM}; or set gpu_stack_module_signing_key and gpu_stack_module_signing_certificate to a "
        "key that is enrolled; or disable Secure Boot in the firmware setup"
    )


_CONFIRM = "which asks for a password of your choice; reboot, and type it at the console (MokManager: Enroll MOK)"


def _own_signing_key(signing: SigningCertificate, trusted: tuple[str, ...] | None, findings: Findings) -> None:
    """Check that the firmware trusts the certificate of the user's own key."""
    if trusted is not None and signing.sha256 in trusted:
        return
    state = (
        "is not enrolled" if trusted is not None else "may not be enrolled (the firmware's variables are unreadable)"
    )
    findings.problem(
        "secure-boot",
        f"Secure Boot is enabled, and {signing.path}, the certificate of gpu_stack_module_signing_key, {state}: the "
        "kernel would refuse the modules that it signs",
        _own_enrolment(signing),
    )


def _own_enrolment(signing: SigningCertificate) -> str:
    return (
        f"convert it with openssl x509 -in {signing.path} -outform DER -out module_signing.der, copy that to the host "
        f"and run there sudo mokutil --import module_signing.der, {_CONFIRM}; or add it to the firmware's db; or "
        "disable Secure Boot in the firmware setup"
    )


def _signatures(context: _Context, findings: Findings) -> None:
    """Refuse modules whose signature a kernel would reject that demands one without Secure Boot."""
    probe, signing = context.probe, context.options.signing
    found = probe.signatures_enforced
    if found is None or probe.secure_boot == "enabled" or not context.builds_modules:
        return
    if signing:
        is_enrolled = signing.sha256 in (probe.trusted_certificates or ())
        is_trusted, key = probe.trusts(signing.key_id or None, is_enrolled), signing.path
    else:
        keys = probe.secure_boot_keys
        is_trusted, key = probe.trusts_dkms, keys[0].path if keys else "which is made with the first module"
    if is_trusted:
        return
    message = (
        f"the kernel loads only modules with a signature that it trusts ({', '.join(found.by)}), and it does not trust "
        f"the key that signs the modules of DKMS ({key})"
    )
    no_longer = "; ".join(_not_enforced(source) for source in found.by)
    if probe.secure_boot == "unknown" and module_loading.LOCKDOWN in found.by:  # by no option and no configuration
        findings.problem(
            "module-signatures",
            f"{message}: Secure Boot, which has the kernel do so, is probably enabled, and the firmware's variables, "
            "which say so, cannot be read",
            "boot with the kernel option efi=runtime (GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub), with "
            "which they can be read and written where a realtime kernel turns that off; then "
            f"{_own_enrolment(signing) if signing else _enrolment(context)}; or, if Secure Boot is disabled, "
            f"{no_longer}, and reboot",
        )
        return
    trust = (
        "build a kernel with its certificate (CONFIG_SYSTEM_TRUSTED_KEYS), since no firmware brings keys here"
        if probe.trusted_certificates is None and probe.secure_boot == "disabled"
        else "enrol the key in the firmware (docs/secure-boot.md), from which the kernel takes it"
    )
    findings.problem("module-signatures", message, f"{no_longer}; then reboot, and run this again; or {trust}")


def _not_enforced(source: str) -> str:
    """Return how to have the kernel no longer demand signatures."""
    if " in " in source:
        return f"boot a kernel without {source.partition('=')[0]} (grep -L {source.partition(' ')[0]} /boot/config-*)"
    if source.startswith("/"):
        name = source.rpartition("/")[2]
        return (
            f"find the service or script that sets {source} after the boot (grep -rl {name} /etc /usr/lib/systemd "
            "/usr/local) and disable that"
        )
    return _without_option(source)


def _without_option(option: str) -> str:
    return f"remove {option} from the kernel options (GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub)"


def _modules_disabled(context: _Context, findings: Findings) -> None:
    """Refuse a driver whose modules the kernel will not load; the ones that are loaded, and stay, go on working."""
    found, has_loaded = context.probe.modules_disabled, context.probe.driver.loaded is not None
    is_planned = context.components.driver is not None or context.plan.kept_driver is not None
    if found is None or not context.options.own_kernel or not is_planned:
        return
    if has_loaded and not context.is_changed("driver"):
        return
    remedies = [_not_disabled(source) for source in found.by] or [
        "no file of sysctl.d sets it: find the service or script that does (grep -rl modules_disabled /etc "
        "/usr/lib/systemd /usr/local) and disable that"
    ]
    findings.problem(
        "modules-disabled",
        "kernel.modules_disabled is 1: the kernel loads no module until the next boot, and the driver's must be "
        + ("loaded anew" if has_loaded else "loaded")
        + (f"; it is set by {', '.join(found.by)}" if found.by else ""),
        f"{'; '.join(remedies)}; then reboot, and run this again",
    )


def _not_disabled(source: str) -> str:
    """Return how to remove a setting from a file, one of a package's included, or from the kernel's options."""
    if " in /" in source:  # a glob: leaving the setting out of all of them is sysctl.d(5)'s own way
        return "echo -kernel.modules_disabled | sudo tee /etc/sysctl.d/modules_disabled.conf"
    if not source.startswith("/"):
        return _without_option(source)
    if source.startswith("/etc/"):
        return f"sudo sed -i '/modules_disabled/d' {source}"
    own = f"/etc/sysctl.d/{source.rpartition('/')[2]}"  # which takes the place of that file
    return f"sed '/modules_disabled/d' {source} | sudo tee {own}"


def _kernel_builds(context: _Context, findings: Findings) -> None:
    """Check what DKMS builds with for the running and the next-boot kernel; modules must exist for both."""
    driver = context.components.driver
    distro = load_catalog().distros.get(context.plan.distribution)
    if driver is None or distro is None or not context.builds_modules:
        return
    probe = context.probe
    builds = kernel_builds.Builds(
        probe.kernel, driver, context.kernel_headers, context.kernel_compilers, distro, probe.architecture
    )
    kernel_builds.check(builds, findings)


# Links between GPUs ---------------------------------------------------------------------------------------------


def _masked_services(context: _Context, findings: Findings) -> None:
    """Name the services that the run would enable: only who has masked one removes the mask."""
    if context.components.driver is None:
        return
    wanted = {name for part in context.probe.applied.values() for name in part.repairs.services} - {_PERSISTENCED}
    wanted |= {_PERSISTENCED} if context.options.persistence else set()
    for name in (name for name in context.probe.masked_services if name in wanted):
        keep = "; or set nvidia_driver_persistence: false to keep it masked" if name == _PERSISTENCED else ""
        findings.problem(
            "service-masked",
            f"the service {name} is masked on this host, and the run would enable it, which systemd refuses",
            f"on the host: systemctl unmask {name}{keep}",
        )


def _links(context: _Context, findings: Findings) -> None:
    for address, gpu in context.probe.pcie.gpus.items():
        limits = _link_limits(gpu.link, gpu.slot or PcieLink(), is_loaded=context.probe.driver.loaded is not None)
        if limits:
            findings.warn(
                "pcie-link-below-ability",
                f"the PCIe link of GPU {address} runs below what the card supports: {', '.join(limits)}; "
                "if the slot supports more, reseat the card or its riser and check the firmware's slot settings",
            )


def _link_limits(link: PcieLink, slot: PcieLink, is_loaded: bool) -> list[str]:
    """Return what limits a link; its speed counts only without a loaded driver, which lowers it on an idle GPU."""
    limits = []
    if link.width is not None and link.max_width is not None and link.width < link.max_width:
        limits.append(f"x{link.width} of x{link.max_width}{_slot_limit(slot.max_width, link.max_width, 'x')}")
    if not is_loaded and link.speed is not None and link.max_speed is not None and link.speed < link.max_speed:
        limits.append(f"{link.speed:g} of {link.max_speed:g} GT/s{_slot_limit(slot.max_speed, link.max_speed, '')}")
    return limits


def _slot_limit(slot: float | None, card: float, unit: str) -> str:
    return f" (the slot supports {unit}{slot:g})" if slot is not None and slot < card else ""


def _mig(context: _Context, findings: Findings) -> None:
    """Warn of MIG where the driver changes: what that means for it, and what it means for what is planned."""
    gpus = context.probe.driver.smi.mig
    if not gpus or context.components.driver is None or not context.is_changed("driver"):
        return
    text = (
        f"MIG is enabled on {', '.join(gpus)}: a program sees one instance, however many there are, so that checks of "
        "whole GPUs or of several, and the training, are skipped; the instances do not outlast the change of the "
        "driver: note them before (`nvidia-smi mig -lgi` and `-lci`) and create them again"
    )
    findings.warn("mig-enabled", text)


def _modules_of_others(context: _Context, findings: Findings) -> None:
    """Name what depends on kernel modules beside the driver's, where a change of the driver may touch these."""
    if context.components.driver is None or not context.is_changed("driver") or not context.options.own_kernel:
        return
    for modules in context.probe.modules_of_others:
        text = modules.found
        if modules.dkms:
            text += ", and DKMS builds its modules for each kernel whose headers are installed: see `dkms status`"
        if modules.name == "zfs" and modules.found.startswith("the root"):
            text += "; the initramfs, which must have them, is written again: reboot when the console can be reached"
        if modules.name == "ofed":
            text += "; nvidia_peermem (GPUDirect RDMA) is built against it with the new driver"
            text += ", and is loaded now: it has to be loaded again" if modules.peermem else ""
        findings.warn("modules-of-others", text)


def _peer_to_peer(context: _Context, findings: Findings) -> None:
    """Check the paths between GPUs without NVSwitches, which reach each other over PCIe alone."""
    pcie = context.probe.pcie
    if len(pcie.gpus) < 2 or context.probe.nvswitches:
        return
    translated = [address for address, gpu in pcie.gpus.items() if (gpu.iommu_type or "").startswith("DMA")]
    if len(translated) > 1:
        options = " ".join(pcie.kernel_options) or "none"
        findings.warn(
            "peer-to-peer-blocked",
            f"the IOMMU translates the traffic between GPUs {', '.join(translated)} (kernel options: {options}); "
            "NCCL may hang or compute NaN: boot with the kernel option iommu=pt",
        )
    redirecting = [name for name, controls in pcie.acs.items() if _PEER_TO_PEER_REDIRECTS.intersection(controls or ())]
    if redirecting:
        findings.warn(
            "peer-to-peer-blocked",
            f"ACS of the PCIe bridges {', '.join(redirecting)} redirects the traffic between GPUs through the root "
            "complex; disable ACS in the firmware setup, or with setpci on each of them",
        )
