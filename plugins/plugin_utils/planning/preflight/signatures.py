"""Check that the kernel trusts the key that signs the modules of DKMS."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import module_loading
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.kernel_modules import without_option
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate

SIGNING_KEY_UNUSED = FindingSpec(
    "signing-key-unused",
    "`gpu_stack_module_signing_key` is set, and the DKMS of this host is too old to sign with it (before 3.0.4); see "
    "[how to enrol the key of the host](secure-boot.md#enrol-a-key-by-hand)",
    "set gpu_stack_driver_source=nvidia, whose packages bring a newer dkms; or remove gpu_stack_module_signing_key and "
    "gpu_stack_module_signing_certificate and enrol the key of the host (docs/secure-boot.md)",
)


def check_signing_dkms(context: Context, findings: Findings) -> None:
    """Refuse a key of the user's own where DKMS reads no settings about keys, and signs with the host's key or none.

    NVIDIA's repository brings a newer one, since its packages depend on it.
    """
    driver, catalog = DriverComponent.of(context.components), load_catalog()
    if not context.options.signing or driver is None or driver.module_source != "dkms" or driver.source != "distro":
        return
    installed, distro = context.probe.present_packages.get("dkms"), catalog.distros.get(context.plan.distribution)
    needed = catalog.packages.dkms_with_keys
    archive = distro.dkms if distro and context.plan.repository is None else None
    version = installed.version if installed else archive
    if version and debian_version.key(version.partition(":")[2] or version) < debian_version.key(needed):
        SIGNING_KEY_UNUSED.add_problem(
            findings,
            f"dkms {version} would not sign with gpu_stack_module_signing_key: {needed} is the first one that "
            "reads which key to use",
        )


SECURE_BOOT = FindingSpec(
    "secure-boot",
    "Secure Boot is enabled, and the key that signs the modules of DKMS is not enrolled",
    "[Enrol one](secure-boot.md); or disable Secure Boot",
)


def check_secure_boot(context: Context, findings: Findings) -> None:
    """Check that the firmware trusts the key that DKMS will sign modules with."""
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
    SECURE_BOOT.add_problem(findings, message, _enrolment(context))


def _enrolment(context: Context) -> str:
    """Return how to have the firmware trust the key that DKMS signs modules with, after it is made if need be."""
    keys = context.probe.secure_boot_keys
    if keys:
        prepare = f"sudo mokutil --import {keys[0].path}"
    elif context.plan.distribution.startswith("ubuntu"):
        prepare = (
            f"sudo {context.words.install(('shim-signed', 'mokutil'))}, sudo update-secureboot-policy --new-key and "
            "sudo update-secureboot-policy --enroll-key"
        )
    else:
        prepare = (  # what DKMS runs when it has no key; `dkms generate_mok` is newer than Debian 12's
            f"sudo {context.words.install(('mokutil', 'openssl'))}, sudo install -d /var/lib/dkms, sudo openssl req "
            "-new -x509 -nodes -newkey rsa:2048 -days 36500 -subj '/CN=DKMS module signing key' "
            "-keyout /var/lib/dkms/mok.key -outform DER -out /var/lib/dkms/mok.pub and "
            "sudo mokutil --import /var/lib/dkms/mok.pub"
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
    SECURE_BOOT.add_problem(
        findings,
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


MODULE_SIGNATURES = FindingSpec(
    "module-signatures",
    "Without Secure Boot, the kernel loads only modules that it trusts (`module.sig_enforce`, lockdown, "
    "`CONFIG_MODULE_SIG_FORCE`), and not those of DKMS",
    "Remove the option that the message names, and reboot; or have the kernel trust the key, by way of "
    "[the firmware](secure-boot.md#signatures-without-secure-boot) if there is one",
)


def check_signatures(context: Context, findings: Findings) -> None:
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
    no_longer = "; ".join(_not_enforced(source, context.words) for source in found.by)
    if probe.secure_boot == "unknown" and module_loading.LOCKDOWN in found.by:  # by no option and no configuration
        MODULE_SIGNATURES.add_problem(
            findings,
            f"{message}: Secure Boot, which has the kernel do so, is probably enabled, and the firmware's variables, "
            "which say so, cannot be read",
            f"boot with the kernel option efi=runtime ({context.words.KERNEL_OPTIONS}), with which they can be "
            f"read and written where a realtime kernel turns that off; then "
            f"{_own_enrolment(signing) if signing else _enrolment(context)}; or, if Secure Boot is disabled, "
            f"{no_longer}, and reboot",
        )
        return
    trust = (
        "build a kernel with its certificate (CONFIG_SYSTEM_TRUSTED_KEYS), since no firmware brings keys here"
        if probe.trusted_certificates is None and probe.secure_boot == "disabled"
        else "enrol the key in the firmware (docs/secure-boot.md), from which the kernel takes it"
    )
    MODULE_SIGNATURES.add_problem(findings, message, f"{no_longer}; then reboot, and run this again; or {trust}")


def _not_enforced(source: str, words: Words) -> str:
    """Return how to have the kernel no longer demand signatures."""
    if " in " in source:
        return f"boot a kernel without {source.partition('=')[0]} (grep -L {source.partition(' ')[0]} /boot/config-*)"
    if source.startswith("/"):
        name = source.rpartition("/")[2]
        return (
            f"find the service or script that sets {source} after the boot (grep -rl {name} /etc /usr/lib/systemd "
            "/usr/local) and disable that"
        )
    return without_option(source, words)


FINDINGS = (SIGNING_KEY_UNUSED, SECURE_BOOT, MODULE_SIGNATURES)
