"""Secure Boot's state, the certificates that the kernel trusts, and DKMS's key, with variables of real firmware."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import secure_boot
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import SigningKey

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[3] / "fixtures" / "secure_boot"
MOK_LIST = (FIXTURES / "mok-list").read_bytes()
VARIABLE = secure_boot.OWNER_KEYS + "-605dab50-e046-4300-abb6-3dd810dd8b23"
# By sig-list-to-certs of efitools and sha256sum: Microsoft Corporation UEFI CA 2011, Windows Production PCA 2011.
MICROSOFT = [
    "48e99b991f57fc52f76149599bff0a58c47154229b9f8d603ac40d3500248507",
    "e8e95f0733a55e8bad7be0a1413ee23c51fcea64b3c8fa6a786935fddcc71961",
]


def digest(name: str) -> str:
    return hashlib.sha256((FIXTURES / name).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("variable", "other", "expected"),
    [
        (b"\x06\0\0\0\x01", "", "enabled"),
        (b"\x06\0\0\0\x00", "", "disabled"),
        (None, "/sys/firmware/acpi/x", "disabled"),
        (None, "/sys/firmware/efi/systab", "unknown"),
        (None, "", "unknown"),
    ],
    ids=["enabled", "disabled", "BIOS", "efivars not mounted", "container"],
)
def test_the_state_is_read_from_the_firmware_variable(
    tmp_path: Path, variable: bytes | None, other: str, expected: str
) -> None:
    (tmp_path / "sys/firmware").mkdir(parents=True)
    if variable is not None:
        put(tmp_path, secure_boot.SECURE_BOOT, variable)
    if other:
        put(tmp_path, other)
    assert secure_boot.state(str(tmp_path)) == expected


@pytest.mark.parametrize(("value", "expected"), [(b"\x01", "disabled"), (b"\x00", "enabled")])
def test_without_validation_by_shim_the_kernel_takes_secure_boot_for_disabled(
    tmp_path: Path, value: bytes, expected: str
) -> None:
    put(tmp_path, secure_boot.SECURE_BOOT, b"\x06\0\0\0\x01")
    put(tmp_path, secure_boot.NOT_VALIDATED, b"\x06\0\0\0" + value)
    assert secure_boot.state(str(tmp_path)) == expected


def test_certificates_of_the_firmware_and_of_the_owner_are_trusted(tmp_path: Path) -> None:
    assert secure_boot.trusted_certificates(str(tmp_path)) is None
    put(tmp_path, secure_boot.SIGNATURES, (FIXTURES / "db-ovmf-ms").read_bytes())
    assert secure_boot.trusted_certificates(str(tmp_path)) == tuple(MICROSOFT)
    put(tmp_path, VARIABLE, MOK_LIST)
    assert secure_boot.trusted_certificates(str(tmp_path)) == (
        *sorted([*MICROSOFT, digest("one.der"), digest("two.der")]),
    )


def test_a_divided_list_and_the_table_of_newer_kernels(tmp_path: Path) -> None:
    half = 4 + (len(MOK_LIST) - 4) // 2  # two lists of the same size
    put(tmp_path, VARIABLE, MOK_LIST[:half])
    put(tmp_path, VARIABLE.replace("RT-", "RT1-"), MOK_LIST[:4] + MOK_LIST[half:])
    both = tuple(sorted([digest("one.der"), digest("two.der")]))
    assert secure_boot.trusted_certificates(str(tmp_path)) == both
    other = tmp_path / "other"
    put(other, secure_boot.OWNER_KEYS_TABLE, MOK_LIST[4:])
    assert secure_boot.trusted_certificates(str(other)) == both


@pytest.mark.parametrize("length", [5, 40, len(MOK_LIST) - 1])
def test_a_cut_list_is_an_error_and_not_an_empty_one(tmp_path: Path, length: int) -> None:
    put(tmp_path, VARIABLE, MOK_LIST[:length])
    with pytest.raises(ValueError, match="list of the firmware's certificates"):
        secure_boot.trusted_certificates(str(tmp_path))


@pytest.mark.parametrize(
    ("certificate", "variables", "expected"),
    [("one.der", True, True), ("one.pem", True, True), ("ms", True, False), ("one.der", False, None)],
    ids=["enrolled", "enrolled, PEM", "not enrolled", "not readable"],
)
def test_keys_of_dkms_are_looked_up_in_the_firmware(
    tmp_path: Path, certificate: str, variables: bool, expected: Any
) -> None:
    assert secure_boot.dkms_keys(str(tmp_path)) == []
    content = b"0\x82 another" if certificate == "ms" else (FIXTURES / certificate).read_bytes()
    put(tmp_path, "/var/lib/dkms/mok.pub", content)
    if variables:
        put(tmp_path, VARIABLE, MOK_LIST)
    assert secure_boot.dkms_keys(str(tmp_path)) == [SigningKey("/var/lib/dkms/mok.pub", expected)]


def test_the_key_in_dkms_settings_takes_the_place_of_generated_ones(tmp_path: Path) -> None:
    put(tmp_path, VARIABLE, MOK_LIST)
    put(tmp_path, "/var/lib/dkms/mok.pub", b"0\x82 another")
    put(tmp_path, "/root/lab.der", (FIXTURES / "two.der").read_bytes())
    put(tmp_path, "/etc/dkms/framework.conf", "# mok_certificate=/var/lib/dkms/mok.pub\n")
    put(
        tmp_path,
        "/etc/dkms/framework.conf.d/lab.conf",
        "mok_signing_key=/root/lab.key\nmok_certificate=/root/lab.der\n",
    )
    own = f"/etc/dkms/framework.conf.d/{secure_boot.OWN_SETTINGS}"
    put(tmp_path, own, "mok_certificate=/var/lib/gpuhost/module_signing/certificate\n")
    assert secure_boot.dkms_keys(str(tmp_path)) == [SigningKey("/root/lab.der", True)]
