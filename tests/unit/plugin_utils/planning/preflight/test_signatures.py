"""Signed modules: keys, Secure Boot, and kernels that enforce signatures."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import module_keys
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    COMPONENTS,
    CONTAINER,
    DRIVER_INSTALLED,
    LOADED,
    PROBE,
    URL,
    codes,
    probed,
    refused,
    run,
)

ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": True}]
NOT_ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
UNKNOWN = [{"path": "/var/lib/dkms/mok.pub", "enrolled": None}]  # the firmware's variables are unreadable
SIGNING = SigningCertificate("/keys/lab.der", "5e" * 32)
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "Secure Boot without a key": ({"secure_boot": "enabled"}, "secure-boot"),
    "Secure Boot, key not enrolled": (
        {"secure_boot": "enabled", "secure_boot_keys": NOT_ENROLLED},
        "secure-boot",
    ),
    "Secure Boot, enrolment unknown": ({"secure_boot": "enabled", "secure_boot_keys": UNKNOWN}, "secure-boot"),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "Secure Boot with an enrolled key": ({"secure_boot": "enabled", "secure_boot_keys": ENROLLED}, None, None),
    "Secure Boot, and the module is loaded": ({"secure_boot": "enabled", **DRIVER_INSTALLED, **LOADED}, None, None),
    "Secure Boot on a borrowed kernel": ({"secure_boot": "enabled"}, None, CONTAINER),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


@pytest.mark.parametrize(
    ("trusted", "state"),
    [([], "is not enrolled"), (["aa" * 32], "is not enrolled"), (None, "may not be enrolled")],
)
def test_the_users_own_signing_key_must_be_enrolled(trusted: list[str] | None, state: str) -> None:
    """Whether DKMS has another key that is enrolled does not matter: it does not sign with that one."""
    options = Options(signing=SIGNING)
    found = run(options=options, secure_boot="enabled", secure_boot_keys=ENROLLED, trusted_certificates=trusted)
    (problem,) = found.problems
    assert problem.code == "secure-boot"
    assert f"/keys/lab.der, the certificate of gpu_stack_module_signing_key, {state}" in problem.message
    assert "openssl x509 -in /keys/lab.der -outform DER -out module_signing.der" in problem.remedy
    assert "mokutil --import module_signing.der" in problem.remedy


def test_modules_that_an_enrolled_key_of_the_user_signs_are_no_problem() -> None:
    options = Options(signing=SIGNING)
    assert codes(run(options=options, secure_boot="enabled", trusted_certificates=["aa" * 32, SIGNING.sha256])) == (
        [],
        [],
    )
    assert codes(run(options=options, secure_boot="disabled", trusted_certificates=[])) == ([], [])


@pytest.mark.parametrize(
    ("source", "installed", "url", "refused"),
    [
        ("distro", None, None, "dkms 2.8.7 would not sign"),
        ("distro", "2.8.7-2ubuntu2.2", None, "dkms 2.8.7-2ubuntu2.2 would not sign"),
        ("distro", "2.8.7-2ubuntu2.2", URL, "dkms 2.8.7-2ubuntu2.2 would not sign"),
        ("distro", "1:3.2.1-1ubuntu1", URL, ""),  # NVIDIA's
        ("distro", None, URL, ""),  # apt takes NVIDIA's, whose epoch makes it the newer one
        ("nvidia", "2.8.7-2ubuntu2.2", URL, ""),  # upgraded with the driver
    ],
)
def test_a_key_that_the_hosts_dkms_does_not_sign_with_is_refused(
    source: str, installed: str | None, url: str | None, refused: str
) -> None:
    """The versions are those of Ubuntu 22.04, as `apt-get` prints their upgrade."""
    packages = {"dkms": {"version": installed, "status": "installed", "held": False}} if installed else {}
    plan = make_plan({"driver": {**COMPONENTS["driver"], "source": source}}, url=url)
    plan = dataclasses.replace(plan, distribution="ubuntu-22.04")
    probe = make_probe(**{**PROBE, "packages": packages})
    diff = plan_diff.plan_diff(plan, probe)
    found = checks.preflight(plan, probe, diff, Options(signing=SIGNING)).problems
    assert [problem.code for problem in found] == ["signing-key-unused"] * bool(refused)
    assert all(refused in problem.message for problem in found)
    assert checks.preflight(plan, probe, diff).problems == ()


@pytest.mark.parametrize(
    ("distribution", "command"),
    [("debian-12", "-out /var/lib/dkms/mok.pub"), ("ubuntu-24.04", "update-secureboot-policy --enroll-key")],
)
def test_without_a_key_the_remedy_has_the_commands_of_the_distribution(distribution: str, command: str) -> None:
    plan, probe = make_plan(COMPONENTS, url=URL), make_probe(**{**PROBE, "secure_boot": "enabled"})
    plan = dataclasses.replace(plan, distribution=distribution)
    (problem,) = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).problems
    assert command in problem.remedy
    assert "generate_mok" not in problem.remedy  # not in dkms 3.0.10 of Debian 12
    assert "gpu_stack_module_signing_key" in problem.remedy


# Captured keys and variables: see the README of the fixtures.
SECURE_BOOT = Path(__file__).parents[4] / "fixtures" / "secure_boot"
ENFORCED: dict[str, str | bytes] = {
    "/sys/module/module/parameters/sig_enforce": "Y\n",
    "/proc/cmdline": "ro module.sig_enforce=1\n",
    "/sys/firmware/acpi/tables/DSDT": "",  # a computer without UEFI
}
KERNEL_KEYS: dict[str, str | bytes] = {"/proc/keys": (SECURE_BOOT / "proc-keys-6.12").read_bytes()}
VARIABLES = "/sys/firmware/efi/efivars"
UEFI: dict[str, str | bytes] = {
    f"{VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\0",
    f"{VARIABLES}/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23": (SECURE_BOOT / "mok-list-enrolled").read_bytes(),
}
SIGNED_BY = {
    name: {"/var/lib/dkms/mok.pub": (SECURE_BOOT / f"{name}.der").read_bytes()} for name in ("enrolled", "not-enrolled")
}
LOCKED: dict[str, str | bytes] = {"/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}
RUNTIME_OFF: dict[str, str | bytes] = {"/sys/firmware/efi/systab": "", "/sys/firmware/efi/runtime": ""}
SIGNING_PARTS = ("signatures_enforced", "kernel_keys", "secure_boot", "secure_boot_keys", "trusted_certificates")
ENFORCING: dict[str, dict[str, str | bytes]] = {
    "an option": {**ENFORCED, **KERNEL_KEYS, **SIGNED_BY["not-enrolled"]},
    "an option, and no key yet": {**ENFORCED, **KERNEL_KEYS},
    "an option with UEFI": {**ENFORCED, **UEFI, **SIGNED_BY["not-enrolled"]},
    "lockdown": {**LOCKED, **KERNEL_KEYS, "/sys/firmware/acpi/tables/DSDT": ""},
    "lockdown, UEFI without Secure Boot": {**LOCKED, **UEFI, **SIGNED_BY["not-enrolled"]},
    # Ubuntu's realtime kernels turn the runtime services of EFI off: canonical/pc-gadget#64
    "lockdown, and variables that cannot be read": {**LOCKED, **KERNEL_KEYS, **RUNTIME_OFF},
    "the same, and a key": {**LOCKED, **KERNEL_KEYS, **RUNTIME_OFF, **SIGNED_BY["not-enrolled"]},
    "an option, and variables that cannot be read": {
        "/sys/module/module/parameters/sig_enforce": "Y\n",
        "/proc/cmdline": "ro module.sig_enforce=1\n",
        **LOCKED,
        **KERNEL_KEYS,
        **RUNTIME_OFF,
    },
    "a service, and variables that cannot be read": {
        "/sys/module/module/parameters/sig_enforce": "Y\n",
        **KERNEL_KEYS,
        **RUNTIME_OFF,
    },
    "a configuration": {
        "/proc/sys/kernel/osrelease": "6.1.0-56-amd64\n",
        "/boot/config-6.1.0-56-amd64": "CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_FORCE=y\n",
    },
}


@pytest.mark.parametrize("files", ENFORCING.values(), ids=ENFORCING)
def test_modules_that_an_enforcing_kernel_would_reject_are_refused(
    tmp_path: Path, files: dict[str, str | bytes], snapshot: SnapshotAssertion
) -> None:
    found = run(**probed(tmp_path, files, *SIGNING_PARTS))
    assert codes(found) == (["module-signatures"], [])
    assert checks.refusal(found.problems) == snapshot


@pytest.mark.parametrize(
    "files",
    [
        {**ENFORCED, **KERNEL_KEYS, **SIGNED_BY["enrolled"]},
        {**ENFORCED, **UEFI, **SIGNED_BY["enrolled"]},
        {**LOCKED, **RUNTIME_OFF, **KERNEL_KEYS, **SIGNED_BY["enrolled"]},
    ],
    ids=["in the kernel's keyring", "in the firmware, and the keyring is hidden", "Secure Boot that is not read"],
)
def test_an_enforcing_kernel_that_trusts_the_key_is_no_finding(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    assert codes(run(**probed(tmp_path, files, *SIGNING_PARTS))) == ([], [])


def test_what_is_not_to_be_built_and_loaded_needs_no_signature(tmp_path: Path) -> None:
    parts = probed(tmp_path, ENFORCING["an option"], *SIGNING_PARTS)
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == ([], [])
    assert codes(run(options=CONTAINER, **parts)) == ([], [])
    assert codes(run({**COMPONENTS, "driver": {**COMPONENTS["driver"], "module_source": "prebuilt"}}, **parts))[0] == []


@pytest.mark.parametrize("name", ["enrolled", "not-enrolled"])
def test_lockdown_under_secure_boot_says_nothing_that_secure_boot_does_not(tmp_path: Path, name: str) -> None:
    enabled = {**UEFI, next(iter(UEFI)): b"\6\0\0\0\1", "/sys/kernel/security/lockdown": "none [integrity] x\n"}
    found = run(**probed(tmp_path, {**enabled, **KERNEL_KEYS, **SIGNED_BY[name]}, *SIGNING_PARTS))
    assert codes(found) == ([] if name == "enrolled" else ["secure-boot"], [])


@pytest.mark.parametrize(("name", "expected"), [("enrolled", []), ("not-enrolled", ["module-signatures"])])
def test_a_key_of_the_user_must_be_one_of_the_enforcing_kernels(tmp_path: Path, name: str, expected: list[str]) -> None:
    content = (SECURE_BOOT / f"{name}.der").read_bytes()
    own = SigningCertificate("/k.der", hashlib.sha256(content).hexdigest(), module_keys.key_id(content) or "")
    for files in {**ENFORCED, **KERNEL_KEYS}, {**ENFORCED, **UEFI}:
        found = run(options=Options(signing=own), **probed(tmp_path / str(len(files)), files, *SIGNING_PARTS))
        assert codes(found)[0] == expected
        assert all("/k.der" in problem.message for problem in found.problems)
