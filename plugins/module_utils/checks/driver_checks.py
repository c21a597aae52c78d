"""Checks of the NVIDIA driver: what nvidia-smi says, what is loaded, built, bound to the GPUs. Runs on the target."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    Check,
    Context,
    compared,
    is_version,
    skipped,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import files, pci, system
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, nvidia_smi, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import debian_version, dpkg

NOT_LOADED_EXIT = 9
LOST_EXIT = 15  # some releases end with 255 and say it in words
FABRIC_MANAGER = "nvidia-fabricmanager.service"
_NOT_OURS = "the kernel belongs to the machine around this host; its module is not managed here"
_REINSTALL = (
    "Run the playbook again; if it stays so, look at the apt history for another program that changed the driver."
)


def run(context: Context) -> list[Check]:
    ids = (
        "driver.nvidia_smi",
        "driver.gpu_count",
        "driver.module_matches_user_space",
        "driver.module_built",
        "driver.nouveau_absent",
        "driver.pci_binding",
        "driver.fabric_manager",
    )
    driver = context.component("driver")
    if driver is None:
        return [skipped(check_id, context.without("the driver")) for check_id in ids]
    gpus, switches = pci.read(context.root)
    return [
        _nvidia_smi(context, driver),
        _gpu_count(context),
        _module_matches(context, driver),
        _module_built(context, driver),
        _nouveau_absent(context, gpus),
        _pci_binding(context, gpus),
        _fabric_manager(context, driver, switches),
    ]


def _smi_versions(context: Context) -> list[str]:
    gpus = (context.smi or {}).get("gpus") or []
    return sorted({str(gpu["driver_version"]) for gpu in gpus})


def _smi_found(smi: dict[str, Any], versions: list[str]) -> str:
    if smi["exit_code"] == 0:
        return "exit 0, driver %s" % (", ".join(versions) or "without a GPU")
    return "exit %s: %s" % (smi["exit_code"], smi["message"] or nvidia_smi.meaning(int(str(smi["exit_code"]))))


def _nvidia_smi(context: Context, driver: dict[str, Any]) -> Check:
    check_id, smi, version = "driver.nvidia_smi", context.smi, str(driver["version"])
    works = context.driver_state == "working"
    expected = "exit 0, driver %s" % version if works else "exit 9: the NVIDIA driver is not loaded"
    if smi is None:
        return compared(check_id, False, "there is no nvidia-smi", expected, _REINSTALL)
    versions = _smi_versions(context)
    if not works:
        good = smi["exit_code"] == NOT_LOADED_EXIT
        remedy = "Set the check's driver_state to working if the driver is meant to be loaded here."
        return compared(check_id, good, _smi_found(smi, versions), expected, remedy)
    good = smi["exit_code"] == 0 and bool(versions) and all(is_version(found, version) for found in versions)
    told = {"driver": ", ".join(versions)} if versions else None
    lost = "unable to determine the device handle" in str(smi["message"]).lower()
    remedy = _smi_remedy(LOST_EXIT if lost else int(str(smi["exit_code"])))
    return compared(check_id, good, _smi_found(smi, versions), expected, remedy, told)


def _smi_remedy(exit_code: int) -> str:
    return {
        0: _REINSTALL,
        6: "No GPU answers: look at `lspci -d 10de:` and `journalctl -k -g NVRM`.",
        9: "Load the module (`modprobe nvidia`); if that fails, `journalctl -k -g nvidia` and `dkms status` tell why. "
        "After a kernel update: reboot.",
        12: "Install libnvidia-ml again: run the playbook.",
        15: "Reset or power-cycle the host; `journalctl -k -g Xid` names the GPU.",
        18: "Reboot: an older kernel module is still loaded.",
    }.get(exit_code, "Exit code %d means: %s. Run nvidia-smi by hand." % (exit_code, nvidia_smi.meaning(exit_code)))


def _gpu_count(context: Context) -> Check:
    check_id, expected = "driver.gpu_count", "%d" % context.expect_gpus
    answered = context.smi is not None and context.smi["exit_code"] == 0
    seen = len((context.smi or {}).get("gpus") or [])
    found = "%d on the PCI bus, %s by nvidia-smi" % (context.pci_gpus, seen if answered else "not counted")
    if context.pci_gpus == context.expect_gpus and not answered and context.driver_state == "not_loaded":
        return skipped(check_id, "nvidia-smi cannot count: the driver is not loaded, as expected here", found)
    good = context.pci_gpus == seen == context.expect_gpus and answered
    remedy = (
        "A GPU is missing or not driven: compare `lspci -d 10de:` with `nvidia-smi -L`; read `journalctl -k -g NVRM`. "
        "If the host was rebuilt on purpose, set gpu_stack_expect_gpus."
    )
    return compared(check_id, good, found, expected + " by both", remedy)


def _module_matches(context: Context, driver: dict[str, Any]) -> Check:
    check_id = "driver.module_matches_user_space"
    if context.kernel_module != "loaded":
        return skipped(check_id, _reason_not_loaded(context))
    if context.driver_simulated:
        return skipped(check_id, "the NVIDIA driver is simulated: no kernel module is loaded")
    loaded = proc_driver.read(context.root)
    user = _smi_versions(context)
    flavour = str(driver["kernel_modules"])
    expected = "%s modules of the version of the libraries (%s)" % (flavour, ", ".join(user) or driver["version"])
    if loaded is None:
        return compared(check_id, False, "no NVIDIA module is loaded", expected, _smi_remedy(NOT_LOADED_EXIT))
    good = user == [loaded["version"]] and loaded["kernel_modules"] == flavour
    found = "%s modules %s, libraries %s" % (loaded["kernel_modules"], loaded["version"], ", ".join(user) or "unknown")
    return compared(check_id, good, found, expected, "Reboot: the loaded module is not the one installed.")


def _reason_not_loaded(context: Context) -> str:
    reasons = {"built": "the module is built for another kernel and not loaded on this host", "not_managed": _NOT_OURS}
    return reasons[context.kernel_module]


def _module_built(context: Context, driver: dict[str, Any]) -> Check:
    """The newest installed kernel is the next to boot: it needs a module of the planned version and flavour."""
    check_id = "driver.module_built"
    if context.kernel_module == "not_managed":
        return skipped(check_id, _NOT_OURS)
    if context.driver_simulated:
        return skipped(check_id, "the NVIDIA driver is simulated: no kernel module is built")
    kernel = _next_kernel(context)
    licence = kernel_modules.LICENCES[str(driver["kernel_modules"])]
    expected = "module %s, licence %s" % (driver["version"], licence)
    remedy = "Install the headers of kernel %s and run `dkms autoinstall -k %s`.%s" % (
        kernel, kernel, _make_log(context.root),
    )  # fmt: skip
    if kernel is None:
        remedy = "Install a kernel's headers (nvidia_driver_kernel_headers) and run the playbook again."
        return compared(check_id, False, "no kernel to build for is installed", expected, remedy)
    modules = kernel_modules.paths(context.root, kernel)
    if not modules:
        return compared(check_id, False, "kernel %s has no nvidia module" % kernel, expected, remedy)
    facts = sorted({(_modinfo(context, path, "version"), _modinfo(context, path, "license")) for path in modules})
    good = any(is_version(version, str(driver["version"])) and found == licence for version, found in facts)
    found = "kernel %s: %s" % (kernel, "; ".join("module %s, licence %s" % fact for fact in facts))
    return compared(check_id, good, found, expected, remedy)


def _next_kernel(context: Context) -> str | None:
    kernel = system.kernel(context.root, os.uname().release)
    candidates = kernel["installed"] or kernel["headers"]
    if context.kernel_module == "built":
        candidates = sorted(set(candidates) | set(kernel["headers"]), key=debian_version.key)
    return candidates[-1] if candidates else None


def _modinfo(context: Context, path: str, name: str) -> str:
    answer = context.run(["/sbin/modinfo", "-F", name, path], 20)
    return str(answer.text()) if answer.exit_code == 0 else "unknown (%s)" % answer.text()


def _make_log(root: str) -> str:
    """The end of DKMS's last build log, where one failed."""
    for package in files.names(root, "/var/lib/dkms"):
        for version in files.names(root, "/var/lib/dkms/" + package):
            path = "/var/lib/dkms/%s/%s/build/make.log" % (package, version)
            text = files.read_text(root, path) if package.startswith("nvidia") else None
            if text:
                return " %s ends: %s" % (path, " | ".join(text.strip().splitlines()[-5:]))
    return ""


def _nouveau_absent(context: Context, gpus: list[dict[str, Any]]) -> Check:
    """Bound to a GPU it keeps NVIDIA's module from it; merely loaded it takes the next one that appears."""
    check_id = "driver.nouveau_absent"
    bound = [gpu["pci_address"] for gpu in gpus if gpu["kernel_driver"] == "nouveau"]
    loaded = context.kernel_module == "loaded" and proc_driver.nouveau_loaded(context.root)
    if not bound and context.kernel_module != "loaded":
        return skipped(check_id, _reason_not_loaded(context))
    if not bound and not loaded and context.driver_simulated:
        return skipped(check_id, "the NVIDIA driver is simulated: no kernel module competes with it")
    found = "bound to " + ", ".join(bound) if bound else "loaded, bound to no GPU" if loaded else "not loaded"
    remedy = (
        "Run the role nvidia_driver (it keeps nouveau from being loaded, in the initramfs, too) and restart the host; "
        "`lsinitramfs /boot/initrd.img-$(uname -r) | grep nouveau` shows one that was left there."
    )
    return compared(check_id, not bound and not loaded, found, "not loaded", remedy)


def _pci_binding(context: Context, gpus: list[dict[str, Any]]) -> Check:
    """Which kernel driver has each GPU: nvidia, else one for virtual machines (vfio-pci), nouveau, or none."""
    check_id = "driver.pci_binding"
    others = ["%s: %s" % (gpu["pci_address"], gpu["kernel_driver"] or "none") for gpu in gpus]
    bound = [gpu["kernel_driver"] for gpu in gpus]
    if context.driver_simulated and not any(bound):
        return skipped(check_id, "the NVIDIA driver and the PCI devices are simulated: no kernel driver has them")
    if context.driver_state == "not_loaded":
        return skipped(check_id, "the driver is not loaded, as expected here", ", ".join(others) or None)
    if not gpus:
        return skipped(check_id, "there is no GPU on the PCI bus")
    wrong = [text for text, name in zip(others, bound) if name != "nvidia"]  # noqa: B905
    remedy = (
        "A GPU given to virtual machines (vfio-pci) is not this host's: take it out of the expected number. Else run "
        "`modprobe nvidia`, and read `journalctl -k -g NVRM` for why it did not take the GPU."
    )
    found = "; ".join(wrong) or "nvidia on %d of %d" % (len(gpus), len(gpus))
    return compared(check_id, not wrong, found, "nvidia on each GPU", remedy)


def _fabric_manager(context: Context, driver: dict[str, Any], switches: list[dict[str, Any]]) -> Check:
    """It must be of the driver's version and run, or NVSwitch systems have no CUDA (error 802)."""
    check_id = "driver.fabric_manager"
    found = dpkg.read(context.root, context.fabric_manager_packages, os.uname().machine)
    installed = {name: package["version"] for name, package in found.items() if package["status"] == "installed"}
    if not switches and not installed:
        return skipped(check_id, "there is no NVSwitch on the PCI bus and no Fabric Manager is installed")
    if context.driver_state == "not_loaded":
        return skipped(check_id, "the driver is not loaded, as expected here, and Fabric Manager cannot run without it")
    version = ", ".join(_smi_versions(context)) or str(driver["version"])
    answer = context.run(["systemctl", "is-active", FABRIC_MANAGER], 30)
    state = answer.stdout.decode("utf-8", "replace").strip() or answer.text() or "unknown"
    good = state == "active" and bool(installed) and all(is_version(v, version) for v in installed.values())
    packages = ", ".join("%s %s" % pair for pair in sorted(installed.items())) or "not installed"
    remedy = (
        "Install nvidia-fabricmanager of exactly the driver's version, `systemctl enable --now nvidia-fabricmanager`; "
        "/var/log/fabricmanager.log tells why it does not stay up."
    )
    expected = "Fabric Manager %s, active" % version
    told = "%s; service %s; %d NVSwitches" % (packages, state, len(switches))
    return compared(check_id, good, told, expected, remedy)
