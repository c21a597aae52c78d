# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the NVIDIA driver: nvidia-smi, the loaded and the built kernel module, the PCI binding, Fabric Manager."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import (
    command,
    debian_version,
    files,
    playbook_call,
    processes,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    HOST,
    REAPPLY,
    STACK,
    Check,
    CheckSpec,
    Context,
    Symptom,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import display, module_keys, pci, secure_boot, system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent, FabricComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Gpu, NvSwitch
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, PASS, UNKNOWN
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    installed_driver,
    kernel_modules,
    nvidia_smi,
    proc_driver,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions, dkms, kernels
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import any_of, database, words_of

NO_GPU_EXIT, NOT_LOADED_EXIT = 6, 9
LOST_EXIT = 15  # some releases exit with 255 and print the reason
FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
_NOT_MANAGED = "the kernel belongs to the machine that runs this container: its module is not managed here"

# What modinfo prints of a field; nothing for the signer of a module without a signature.
_MODULE_FIELDS = {
    "version": re.compile(r"^\d[\w.-]*$"),
    "license": re.compile(r"^[\w/ .-]+$"),
    "signer": re.compile(r"^.*$"),
    "sig_key": re.compile(r"^[0-9A-F:\s]+$"),
}
_UNSIGNED = (
    "The kernel would reject this module. With a key that the firmware trusts, DKMS signs it: set "
    "`gpu_stack_module_signing_key` and run again (docs/secure-boot.md)."
)
_NOT_TRUSTED = (
    "The kernel would reject this module. Enrol the key that signed it: `sudo mokutil --import %s` (a certificate in "
    "DER), reboot and confirm it on the console; or set `gpu_stack_module_signing_key` to a key that is enrolled, and "
    "run again (docs/secure-boot.md). `mokutil --list-enrolled` lists the keys that are enrolled."
)
# What `systemctl is-active` prints.
_STATES = ("active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance", "refreshing")

NVIDIA_SMI = CheckSpec(
    "driver.nvidia_smi",
    measures="exit code of `nvidia-smi` and the driver version that it reports",
    expected="exit code 0 (or 14, see gpu.inforom) and the planned version; exit code 9 where the driver must not be "
    "loaded. Lines that are no rows are a warning",
    skipped="no driver is planned",
    remedy=REAPPLY
    + " If it persists, %s shows which command changed the driver." % any_of(lambda words: words.HISTORY),
)
GPU_COUNT = CheckSpec(
    "driver.gpu_count",
    measures="number of GPUs on the PCI bus and in `nvidia-smi`, without those that are left alone, see "
    "driver.pci_binding",
    expected="both are the expected number",
    skipped="the driver must not be loaded",
    remedy="A GPU is missing or has no driver: compare `lspci -d 10de:` with `nvidia-smi -L` and read "
    "`journalctl -k -g NVRM`. If GPUs were added or removed on purpose, set `gpu_stack_expect_gpus`.",
)
MODULE_MATCHES = CheckSpec(
    "driver.module_matches_user_space",
    measures="version and flavour of the loaded module in /proc/driver/nvidia/version",
    expected="the version of the libraries and the planned flavour (open or proprietary)",
    skipped="the kernel module is not loaded or not managed on this host, or the driver is simulated",
    remedy="Reboot: the loaded module is not the installed one.",
)
MODULE_BUILT = CheckSpec(
    "driver.module_built",
    measures="`modinfo` of the nvidia module of the running and the next-boot kernel; of several, the one that "
    "modprobe selects",
    expected="the planned version and flavour; with Secure Boot, a signature by a key of the firmware (db, MokListRT) "
    "or of the kernel (/proc/keys). A kernel that the kernel guard holds back without them is a warning",
    skipped="the kernel is not managed on this host, or the driver is simulated",
    remedy="Install the headers of that kernel and run `dkms autoinstall -k KERNEL`.",
)
NOUVEAU_ABSENT = CheckSpec(
    "driver.nouveau_absent",
    measures="the modules nouveau and nova_core in /proc/modules, and the kernel driver of each GPU",
    expected="neither loaded nor bound to a GPU",
    skipped="the kernel is not managed on this host and neither is bound to a GPU, or the driver is simulated",
    remedy=REAPPLY
    + " It blacklists nouveau, also in the initramfs; then reboot. "
    + any_of(lambda words: "`%s | grep nouveau`" % words.LIST_INITRAMFS)
    + " shows whether the initramfs still contains it.",
)
PCI_BINDING = CheckSpec(
    "driver.pci_binding",
    measures="kernel driver of each GPU's PCI function",
    expected="each GPU is bound to nvidia, but for those that vfio-pci or pci-stub has, for virtual machines, or "
    "`gpu_stack_ignore_gpus` names",
    skipped="the driver must not be loaded, it is simulated, or the PCI bus has no GPU",
    remedy="Run `modprobe nvidia` and read `journalctl -k -g NVRM`.",
)
FABRIC_MANAGER = CheckSpec(
    "driver.fabric_manager",
    measures="package and service of Fabric Manager, without which CUDA fails on NVSwitch systems (error 802)",
    expected="installed in exactly the driver's version, and active",
    skipped="the PCI bus has no NVSwitch, and Fabric Manager is not installed or no GPU reports a fabric; or the "
    "driver must not be loaded",
    remedy="Install nvidia-fabricmanager in exactly the driver's version and run "
    "`systemctl enable --now nvidia-fabricmanager`; /var/log/fabricmanager.log shows why it stops.",
)
NVLSM = CheckSpec(
    "driver.nvlsm",
    measures="the process of the NVLink subnet manager, `/opt/nvidia/nvlsm/sbin/nvlsm`, by which Fabric Manager "
    "reaches the NVSwitches of NVLink 5 (HGX B200 and B300); its start script starts it",
    expected="it runs while Fabric Manager is active",
    skipped="the plan has none, since the NVSwitches are on the PCI bus or there are none; Fabric Manager is not "
    "active, see driver.fabric_manager; or the driver must not be loaded",
    remedy="Run `systemctl restart nvidia-fabricmanager`, whose start script starts it; `journalctl -u "
    "nvidia-fabricmanager` and /var/log/nvlsm.log show why it ends. Another service that starts a subnet manager must "
    "be disabled: only one of them can run.",
)
DISPLAY_MANAGER = CheckSpec(
    "driver.display_manager",
    measures="`systemctl show` of display-manager.service",
    expected="it runs or is being started. Else a warning, and a failure where it ran just before the pending change",
    skipped="the host boots to no display manager",
    remedy="On a text console (Ctrl+Alt+F3), `journalctl -b -u display-manager` and /var/log/Xorg.0.log show what it "
    "met; `%s` undoes the last change." % playbook_call.call("rollback"),
)
SECURITY_FLOOR = CheckSpec(
    "driver.security_floor",
    measures="the driver version that `nvidia-smi` reports",
    expected="at least the first version of its branch with the fixes of published vulnerabilities; older is a warning",
    skipped="the catalog has no such version for the branch, or the driver must not be loaded",
    remedy="Set `gpu_stack_driver` to that version or a newer one of the branch, or to `latest`, and run again.",
)
CHECKS = (
    NVIDIA_SMI,
    GPU_COUNT,
    MODULE_MATCHES,
    MODULE_BUILT,
    NOUVEAU_ABSENT,
    PCI_BINDING,
    FABRIC_MANAGER,
    NVLSM,
    DISPLAY_MANAGER,
    SECURITY_FLOOR,
)

_SLOW_REMEDY = (
    "Without persistence mode each call initialises all GPUs: see `nvidia-smi -q -d PERFORMANCE` and `systemctl status "
    "nvidia-persistenced`. `journalctl -k -g NVRM` names a GPU that is slow to answer. If the host is that slow, "
    "gpu_stack_timeout_factor multiplies all time limits."
)
_NOTICES_REMEDY = (
    "Run `nvidia-smi --query-gpu=index --format=csv` and see where these lines are from: `type -a nvidia-smi` shows a "
    "wrapper, `journalctl -k -g NVRM` what the driver warns of."
)
_UNREADABLE_REMEDY = (
    "Run `nvidia-smi -q`; `journalctl -k -g NVRM` shows whether the driver reports an error of the GPU."
)
_EXIT_CODE_REMEDIES = {
    0: NVIDIA_SMI.remedy,
    6: "No GPU responds: see `lspci -d 10de:` and `journalctl -k -g NVRM`.",
    9: "Run `modprobe nvidia`; if it fails, `journalctl -k -g nvidia` and `dkms status` show why. "
    "After a kernel update: reboot.",
    12: "libnvidia-ml is missing. " + REAPPLY,
    15: "Reset or power-cycle the host; `journalctl -k -g Xid` names the GPU.",
    18: "Reboot: an older kernel module is still loaded.",
}


def run(context: Context) -> list[Check]:
    """Run the driver checks."""
    driver = DriverComponent.of(context.plan.components)
    if driver is None:
        checks = not_planned(CHECKS, "driver")  # but a screen needs none
        return [_display_manager(context) if check.id == DISPLAY_MANAGER.id else check for check in checks]
    found, switches = pci.read(context.root)
    gpus = [gpu for gpu in found if gpu.pci_address not in context.left_alone]
    checks = [
        _nvidia_smi(context, driver),
        _gpu_count(context, gpus),
        _module_matches(context, driver),
        _module_built(context, driver),
        _nouveau_absent(context, gpus),
        _pci_binding(context, gpus),
        _fabric_manager(context, driver, switches),
        _subnet_manager(context),
        _display_manager(context),
        _security_floor(context, driver),
    ]
    return [_of_others(each, driver) for each in checks] if context.plan.kept_driver else checks


def _of_others(check: Check, driver: DriverComponent) -> Check:
    """Return a check of a driver that gpuhost does not manage: nothing that it changed is the cause of a failure."""
    if check.cause != STACK:
        return check
    return dataclasses.replace(check, cause=HOST, setting="driver %s, which others installed" % driver.version)


def _smi_versions(context: Context) -> list[str]:
    return sorted({gpu.driver_version for gpu in context.smi_gpus if gpu.driver_version})


def _smi_problem(smi: NvidiaSmi) -> str | None:
    """Return why nvidia-smi's answer says nothing: it hangs, crashes or prints nonsense. None if it does answer."""
    if nvidia_smi.answers(smi):
        return smi.message or None
    if smi.exit_code in nvidia_smi.FAILURES or _lost(smi):
        return None
    return _smi_found(smi, [])


def _names_no_version(smi: NvidiaSmi) -> bool:
    """Return whether nvidia-smi has no GPU that reports a version, or no answer at all, whatever the libraries are."""
    return _smi_problem(smi) is not None or smi.exit_code in (NO_GPU_EXIT, LOST_EXIT) or _lost(smi)


def _lost(smi: NvidiaSmi) -> bool:
    return "unable to determine the device handle" in smi.message.lower()


def _smi_found(smi: NvidiaSmi, versions: list[str]) -> str:
    if nvidia_smi.answers(smi):
        driver = ", ".join(versions) or "not reported: no GPU is listed"
        return "exit %d, driver %s" % (smi.exit_code, driver)
    return "exit %s: %s" % (smi.exit_code, smi.message or nvidia_smi.meaning(smi.exit_code))


def _nvidia_smi(context: Context, driver: DriverComponent) -> Check:
    smi, version = context.smi, driver.version
    must_work = context.driver_state == "working"
    expected = "exit 0, driver %s" % version if must_work else "exit 9: the NVIDIA driver is not loaded"
    if smi is None:
        how = "Install the package with nvidia-smi of the driver's own series and version."
        remedy = how if context.plan.kept_driver else None
        return NVIDIA_SMI.compare(False, "nvidia-smi is not installed", expected, remedy)
    problem = _smi_problem(smi)
    if problem is not None:
        return NVIDIA_SMI.unknown("nvidia-smi: " + problem)
    versions = _smi_versions(context)
    if not must_work:
        passed = smi.exit_code == NOT_LOADED_EXIT
        remedy = (
            "If the driver should be loaded here, set gpu_stack_kernel_module=loaded, or in a task of your own "
            "`driver_state: working`."
        )
        return NVIDIA_SMI.compare(passed, _smi_found(smi, versions), expected, remedy)
    passed = nvidia_smi.answers(smi) and bool(smi.gpus) and all(is_version(found, version) for found in versions)
    if passed and not all(gpu.driver_version for gpu in smi.gpus):
        return NVIDIA_SMI.unknown(
            "nvidia-smi does not report the driver version of each GPU", _smi_found(smi, versions)
        )
    reported = {"driver": ", ".join(versions)} if versions else None
    odd = _oddities(smi) if passed else {}
    if odd:
        return NVIDIA_SMI.warn("; ".join([_smi_found(smi, versions), *odd]), " ".join(odd.values()), expected, reported)
    remedy = _smi_remedy(LOST_EXIT if _lost(smi) else smi.exit_code)
    seconds = smi.seconds
    if passed and seconds > nvidia_smi.SLOW * context.timeout_factor:
        found = "%s; slow: took %.0f s" % (_smi_found(smi, versions), seconds)
        return NVIDIA_SMI.warn(found, _SLOW_REMEDY, expected, reported)
    check = NVIDIA_SMI.compare(passed, _smi_found(smi, versions), expected, remedy, reported)
    symptom = Symptom(seen=0) if smi.exit_code in (NO_GPU_EXIT, NOT_LOADED_EXIT) else None
    return dataclasses.replace(check, symptom=symptom)


def _oddities(smi: NvidiaSmi) -> dict[str, str]:
    """Return what is odd in an answer, with its remedies; a check that needs a value which is missing is unknown."""
    odd = {}
    unreadable = dict.fromkeys(field for gpu in smi.gpus for field in gpu.unreadable)
    if unreadable:
        odd["%s of a GPU cannot be read" % ", ".join(unreadable)] = _UNREADABLE_REMEDY
    if smi.notices:
        odd["beside its rows: %s" % _notices(smi)] = _NOTICES_REMEDY
    return odd


def _notices(smi: NvidiaSmi) -> str:
    notices = list(smi.notices)
    more = " and %d more lines" % (len(notices) - 3) if len(notices) > 3 else ""
    return " | ".join(notice[:100] for notice in notices[:3]) + more


def _smi_remedy(exit_code: int) -> str:
    other = "Run `nvidia-smi` by hand. Exit code %d: %s." % (exit_code, nvidia_smi.meaning(exit_code))
    return _EXIT_CODE_REMEDIES.get(exit_code, other)


def _gpu_count(context: Context, gpus: Sequence[Gpu]) -> Check:
    works = nvidia_smi.answers(context.smi)
    listed = len(context.smi_gpus)
    found = "%d on the PCI bus, %s by nvidia-smi" % (context.pci_gpus, listed if works else "not counted")
    found = "; ".join([found, *_left_alone(context)])
    if context.pci_gpus == context.expect_gpus and not works and context.driver_state == "not_loaded":
        return GPU_COUNT.skip("nvidia-smi cannot count: the driver is not loaded, as requested", found)
    problem = "nvidia-smi is not installed" if context.smi is None else _smi_problem(context.smi)
    if context.pci_gpus == context.expect_gpus and problem is not None:
        return GPU_COUNT.unknown("nvidia-smi does not count: " + problem, found)
    passed = context.pci_gpus == listed == context.expect_gpus and works
    check = GPU_COUNT.compare(passed, found, "%d by both" % context.expect_gpus)
    return dataclasses.replace(check, symptom=Symptom(seen=listed, other=context.pci_gpus != context.expect_gpus))


def _module_matches(context: Context, driver: DriverComponent) -> Check:
    if context.kernel_module != "loaded":
        return MODULE_MATCHES.skip(_not_loaded_reason(context))
    if context.driver_simulated:
        return MODULE_MATCHES.skip("the NVIDIA driver is simulated: no kernel module is loaded")
    try:
        loaded = proc_driver.read(context.root)
    except (OSError, ValueError) as error:
        return MODULE_MATCHES.unknown(str(error))
    libraries = _smi_versions(context)
    flavour = driver.kernel_modules
    expected = "%s modules in the version of the libraries (%s)" % (
        flavour, ", ".join(libraries) or driver.version,
    )  # fmt: skip
    if loaded is None:
        remedy = _smi_remedy(NOT_LOADED_EXIT)
        check = MODULE_MATCHES.compare(False, "no NVIDIA module is loaded", expected, remedy)
        return dataclasses.replace(check, symptom=Symptom(seen=0))
    found = "%s modules %s, libraries %s" % (
        loaded.kernel_modules, loaded.version, ", ".join(libraries) or "unknown",
    )  # fmt: skip
    as_planned = loaded.kernel_modules == flavour
    if as_planned and not libraries and (context.smi is None or _names_no_version(context.smi)):
        return MODULE_MATCHES.unknown("the version of the libraries is unknown, see driver.nvidia_smi", found)
    return MODULE_MATCHES.compare(as_planned and libraries == [loaded.version], found, expected)


def _not_loaded_reason(context: Context) -> str:
    built = "the module is built for a kernel that does not run, and not loaded on this host"
    return {"built": built, "not_managed": _NOT_MANAGED}[context.kernel_module]


def _module_built(context: Context, driver: DriverComponent) -> Check:
    """Check the module's files: DKMS succeeds where it has skipped a kernel, too."""
    if context.kernel_module == "not_managed":
        return MODULE_BUILT.skip(_NOT_MANAGED)
    kernels = _kernels(context)
    if context.driver_simulated and not any(kernel_modules.paths(context.root, kernel) for kernel in kernels):
        return MODULE_BUILT.skip("the NVIDIA driver is simulated: no kernel module is built")
    if not kernels:
        remedy = "Install a kernel with its headers. " + REAPPLY
        return MODULE_BUILT.compare(False, "no kernel to build for is installed", remedy=remedy)
    checks = [_built_for(context, driver, kernel) for kernel in kernels]
    worst = min(checks, key=lambda check: (FAIL, UNKNOWN, PASS).index(check.status))
    check = dataclasses.replace(worst, found="; ".join(str(check.found) for check in checks))
    held = system.kernel(context.root, system.running(context.root)).held_back
    if check.status != PASS or context.kernel_module != "loaded" or held is None or held in kernels:
        return check
    other = _built_for(context, driver, held)
    if other.status == PASS:
        return check
    found = "%s; %s: it is kept from being the default" % (check.found, other.found or other.reason)
    return MODULE_BUILT.warn(found, other.remedy, check.expected)


def _built_for(context: Context, driver: DriverComponent, kernel: str) -> Check:
    planned = [driver.version, kernel_modules.LICENCES[driver.kernel_modules]]
    signed = secure_boot.state(context.root) == "enabled"
    expected = "module %s, licence %s%s" % (*planned, ", signed by a key that the kernel trusts" if signed else "")
    remedy = "Install the headers of kernel %s and run `dkms autoinstall -k %s`.%s" % (
        kernel, kernel, _make_log(context.root, driver),
    )  # fmt: skip
    if context.plan.kept_driver:
        is_prebuilt = driver.module_source == "prebuilt"
        names = database(context.root).read([kernels.PREBUILT + "*"]) if is_prebuilt else ()
        package = kernels.prebuilt_modules(names, driver.branch, kernel)
        how = kernels.without_driver(words_of(context.root), kernel, package)
        remedy = "%s.%s" % (how[0].upper() + how[1:], "" if package else _make_log(context.root, driver))
    elif driver.module_source == "prebuilt":
        remedy = "Run this again: the plan names the prebuilt modules for kernel %s. %s" % (kernel, REAPPLY)
    paths = kernel_modules.paths(context.root, kernel)
    if not paths:
        return MODULE_BUILT.compare(False, "kernel %s has no nvidia module" % kernel, expected, remedy)
    options, module, found = [], paths[0], "kernel %s: " % kernel
    if len(paths) > 1:  # open and prebuilt proprietary modules may lie side by side: the one that is loaded counts
        options, module = ["-k", kernel], os.path.basename(paths[0]).partition(".")[0]
        found += "of %d modules, modprobe selects " % len(paths)
        remedy = "Remove the packages of the other modules (%s). %s" % (words_of(context.root).owner(paths), REAPPLY)
    try:
        version, licence = (_modinfo(context, options, field, module) for field in ("version", "license"))
        signer = _modinfo(context, options, "signer", module) if signed else ""
    except ValueError as error:
        return MODULE_BUILT.unknown(str(error), found + "unknown")
    found += "module %s, licence %s" % (version, licence)
    passed = is_version(version, planned[0]) and licence == planned[1]
    if signed:
        found += ", signed by %s" % signer if signer else ", not signed"
        if passed:
            return _signature(context, options, module, signer, found, expected)
    return MODULE_BUILT.compare(passed, found, expected, remedy)


def _signature(context: Context, options: list[str], module: str, signer: str, found: str, expected: str) -> Check:
    """Check that the kernel would accept a module: one without a trusted signature is rejected under Secure Boot."""
    if not signer:
        return MODULE_BUILT.compare(False, found, expected, _UNSIGNED)
    try:
        key = "".join(_modinfo(context, options, "sig_key", module).split())
        trusted = module_keys.trusted(context.root, signer, key)
        path = None if trusted else module_keys.signed_with(context.root, signer, key)
    except (OSError, ValueError) as error:
        return MODULE_BUILT.unknown("whether the kernel trusts the module's key: %s" % error, found)
    if not trusted:
        found += ", whose key %s neither the firmware nor the kernel has" % key
    return MODULE_BUILT.compare(trusted, found, expected, _NOT_TRUSTED % (path or "CERTIFICATE.der"))


def _kernels(context: Context) -> list[str]:
    """Return the running and the next-boot kernel, if installed; the newest where these are unknown or none runs."""
    kernel = system.kernel(context.root, system.running(context.root))
    candidates = list(kernel.installed or kernel.headers)
    wanted = [kernel.running, kernel.next_boot] if context.kernel_module == "loaded" else []
    if context.kernel_module == "built":
        candidates = sorted({*candidates, *kernel.headers}, key=debian_version.key)
    return list(dict.fromkeys(name for name in wanted if name in kernel.installed)) or candidates[-1:]


def _modinfo(context: Context, options: list[str], field: str, module: str) -> str:
    """Return one line about a module. Raise ValueError if modinfo fails or prints something else."""
    answer = command.ask(context.run, [kernel_modules.MODINFO, *options, "-F", field, module], 20)
    text = answer.output.strip()
    if answer.exit_code != 0 or not _MODULE_FIELDS[field].match(text):
        raise ValueError("modinfo -F %s: %s" % (field, answer.ending()))
    return text


def _make_log(root: str, driver: DriverComponent) -> str:
    """Return the end of the DKMS build log of the driver's module: of a planned package, or else of no package."""
    packages = database(root)
    names = [package.name for package in driver.packages]
    below = decisions.dependencies(names, packages.read(), [".*"])
    found = ["", ""]
    for name in files.names(root, dkms.TREE):
        for version in files.names(root, "%s/%s" % (dkms.TREE, name)):
            path = "%s/%s/%s/build/make.log" % (dkms.TREE, name, version)
            text = files.read_text(root, path)
            module = "%s/%s" % (name, version)
            owner = dkms.owner(packages, root, module) if text else None
            may_be = owner is None or owner in below
            if text and (owner in names or (may_be and installed_driver.builds_driver(root, module))):
                ending = " %s ends with: %s" % (path, " | ".join(text.strip().splitlines()[-5:]))
                found[owner is None] = found[owner is None] or ending
    return found[0] or found[1]


def _nouveau_absent(context: Context, gpus: Sequence[Gpu]) -> Check:
    """Bound to a GPU, nouveau keeps NVIDIA's module from it; merely loaded, it binds the next GPU that appears."""
    bound = [gpu.pci_address for gpu in gpus if gpu.kernel_driver in proc_driver.RIVALS]
    if bound:
        return NOUVEAU_ABSENT.compare(False, "bound to " + ", ".join(bound), "not loaded")
    if context.kernel_module != "loaded":
        return NOUVEAU_ABSENT.skip(_not_loaded_reason(context))
    loaded, problem = False, None
    try:
        loaded = any(_loaded(context, module) for module in proc_driver.RIVALS)
    except (OSError, ValueError) as error:
        problem = "/proc/modules: %s" % error
    if context.driver_simulated and not loaded:
        return NOUVEAU_ABSENT.skip("the NVIDIA driver is simulated: no kernel module competes with it")
    if problem is not None:
        return NOUVEAU_ABSENT.unknown(problem)
    return NOUVEAU_ABSENT.compare(not loaded, "loaded, bound to no GPU" if loaded else "not loaded", "not loaded")


def _loaded(context: Context, module: str) -> bool:
    """Return whether a module is loaded. Raise OSError or ValueError if the list of modules cannot be read."""
    modules = kernel_modules.loaded(context.root)
    if not modules:
        raise ValueError("no module is listed")
    return module in modules


def _pci_binding(context: Context, gpus: Sequence[Gpu]) -> Check:
    texts = ["%s: %s" % (gpu.pci_address, gpu.kernel_driver or "none") for gpu in gpus]
    drivers = [gpu.kernel_driver for gpu in gpus]
    if context.driver_simulated and not any(drivers):
        return PCI_BINDING.skip("the NVIDIA driver and the PCI devices are simulated: no kernel driver is bound")
    if context.driver_state == "not_loaded":
        return PCI_BINDING.skip("the driver is not loaded, as requested", ", ".join(texts) or None)
    if not gpus:
        return PCI_BINDING.skip("the PCI bus has no GPU")
    wrong = [text for text, driver in zip(texts, drivers) if driver != "nvidia"]  # noqa: B905
    right = "nvidia on %d of %d" % (len(gpus), len(gpus))
    check = PCI_BINDING.compare(not wrong, "; ".join(wrong or [right, *_left_alone(context)]))
    bound = drivers.count("nvidia")
    return dataclasses.replace(check, symptom=Symptom(seen=bound, other=bound + drivers.count(None) < len(gpus)))


def _left_alone(context: Context) -> list[str]:
    return ["%s is left alone: %s" % each for each in context.left_alone.items()]


def _display_manager(context: Context) -> Check:
    """Check that a workstation's screen is not black; connectors report a display that shows nothing as well."""
    found = display.read(context.root)
    if found.manager is None or not found.graphical:
        return DISPLAY_MANAGER.skip("the host boots to no display manager")
    answer = command.ask(
        context.run, ["systemctl", "show", "--property=ActiveState,Job", "display-manager.service"], 30
    )
    state = re.search(r"^ActiveState=(\w+)$", answer.output, re.M)
    if answer.exit_code or state is None or state.group(1) not in _STATES:
        return DISPLAY_MANAGER.unknown("systemctl show display-manager.service: " + answer.ending())
    text = "%s is %s" % (found.manager, state.group(1))
    if state.group(1) not in ("inactive", "failed") or re.search(r"^Job=[1-9]", answer.output, re.M):
        return DISPLAY_MANAGER.compare(True, text)
    answers = known_causes.Host(context).before
    if answers.were_right(DISPLAY_MANAGER.id) and (answers.before or {}).get(DISPLAY_MANAGER.id) == PASS:
        return DISPLAY_MANAGER.compare(False, text, "active")
    return DISPLAY_MANAGER.warn(text, expected="active")


def _security_floor(context: Context, driver: DriverComponent) -> Check:
    floor = driver.security_floor
    if not floor:
        return SECURITY_FLOOR.skip("the catalog has no security floor for driver branch %s" % driver.branch)
    if context.driver_state == "not_loaded":
        return SECURITY_FLOOR.skip("the driver is not loaded, as requested")
    versions = _smi_versions(context)
    if not versions:
        return SECURITY_FLOOR.unknown("nvidia-smi reports no driver version")
    old = [found for found in versions if debian_version.key(found) < debian_version.key(floor)]
    if old:
        return SECURITY_FLOOR.warn("driver %s" % ", ".join(old), expected="%s or newer" % floor)
    return SECURITY_FLOOR.compare(True, "driver %s" % ", ".join(versions), "%s or newer" % floor)


def _fabric_manager(context: Context, driver: DriverComponent, switches: Sequence[NvSwitch]) -> Check:
    unreadable = database(context.root).unreadable()
    if unreadable:
        return FABRIC_MANAGER.unknown(unreadable)
    packages = database(context.root).read(context.fabric_manager_packages)
    installed = {name: package.version for name, package in packages.items() if package.status == "installed"}
    if not switches and not installed:
        return FABRIC_MANAGER.skip("the PCI bus has no NVSwitch and Fabric Manager is not installed")
    if context.driver_state == "not_loaded":
        return FABRIC_MANAGER.skip("the driver is not loaded, as requested, and Fabric Manager needs it")
    if not switches:
        log = known_causes.Host(context).log
        if not log.gpus:
            return FABRIC_MANAGER.unknown("whether a GPU reports a fabric: %s" % (log.problem or "nvidia-smi -q -x"))
        if not any(known_causes.has_fabric(gpu) for gpu in log.gpus):
            listed = ", ".join("%s %s" % pair for pair in sorted(installed.items()))
            return FABRIC_MANAGER.skip("not needed: the PCI bus has no NVSwitch, and no GPU reports a fabric", listed)
    version = ", ".join(_smi_versions(context)) or driver.version
    listed = ", ".join("%s %s" % pair for pair in sorted(installed.items())) or "not installed"
    right = bool(installed) and all(is_version(v, version) for v in installed.values())
    state, unclear = _fabric_manager_state(context)
    if right and unclear:
        return FABRIC_MANAGER.unknown(unclear, listed)
    found = "%s; service %s; %d NVSwitches" % (listed, state or "unknown", len(switches))
    return FABRIC_MANAGER.compare(right and state == "active", found, "Fabric Manager %s, active" % version)


def _fabric_manager_state(context: Context) -> tuple[str, str]:
    """Return the state of Fabric Manager's service, and why that is not clear, which is empty where it is."""
    answer = command.ask(context.run, ["systemctl", "is-active", FABRIC_MANAGER_UNIT], 30)
    state = answer.output.strip()
    is_clear = state in _STATES and (state != "active" or answer.exit_code == 0)
    return state, "" if is_clear else "systemctl is-active %s: %s" % (FABRIC_MANAGER_UNIT, answer.ending())


def _subnet_manager(context: Context) -> Check:
    """Check that the subnet manager runs, which the kernel names by its file (`pgrep -x` finds it in public checks)."""
    fabric = FabricComponent.of(context.plan.components)
    program = fabric.subnet_manager if fabric else ""
    if not program:
        return NVLSM.skip("the plan has no subnet manager: NVLink 5 alone needs one")
    if context.driver_state == "not_loaded":
        return NVLSM.skip("the driver is not loaded, as requested, and Fabric Manager needs it")
    state, unclear = _fabric_manager_state(context)
    if unclear:
        return NVLSM.unknown(unclear)
    if state != "active":
        return NVLSM.skip("Fabric Manager, which starts it, is %s: see driver.fabric_manager" % state)
    running = processes.names(context.root)
    if running is None:
        return NVLSM.unknown("the processes of others cannot be listed: /proc/1/comm is missing")
    if os.path.basename(program) in running:
        return NVLSM.compare(True, "%s runs" % program)
    there = os.path.exists(files.under(context.root, program))
    found = "Fabric Manager is active, and %s %s" % (program, "does not run" if there else "is not installed")
    return NVLSM.compare(False, found, remedy=None if there else REAPPLY)
