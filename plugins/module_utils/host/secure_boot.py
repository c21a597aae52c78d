# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read Secure Boot's state, the certificates that the kernel trusts, and the key of DKMS. Runs on the managed host."""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import SigningKey

EFI = "/sys/firmware/efi"
SECURE_BOOT = EFI + "/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM = "-605dab50-e046-4300-abb6-3dd810dd8b23"
NOT_VALIDATED = EFI + "/efivars/MokSBStateRT" + _SHIM  # 1 after `mokutil --disable-validation`
SIGNATURES = EFI + "/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
# The machine owner's keys, mirrored for the kernel by shim. A long list is divided: MokListRT, MokListRT1, ...
OWNER_KEYS = EFI + "/efivars/MokListRT"
OWNER_KEYS_TABLE = EFI + "/mok-variables/MokListRT"  # the same since kernel 5.11, undivided and without attributes
DKMS_SETTINGS = "/etc/dkms/framework.conf"
OWN_SETTINGS = "zz-gpuhost-module-signing.conf"  # the last one in framework.conf.d wins
DKMS_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")  # Ubuntu's and Debian's
_ATTRIBUTES = 4
_X509 = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")  # EFI_CERT_X509_GUID, as it is stored


def state(root: str) -> str:
    """Return "enabled", "disabled" or "unknown", from the firmware's variable: four bytes of attributes, then 0 or 1.

    Without EFI it is disabled, also where shim is set not to validate, as the kernel sees it (efi_get_secureboot).
    With an empty /sys/firmware, as in a container, it is unknown.
    """
    variable = files.read_bytes(root, SECURE_BOOT)
    if variable is not None and len(variable) > _ATTRIBUTES:
        ignored = files.read_bytes(root, NOT_VALIDATED) or b""
        return "enabled" if variable[_ATTRIBUTES] == 1 and ignored[_ATTRIBUTES:] != b"\x01" else "disabled"
    firmware = files.names(root, "/sys/firmware")
    return "unknown" if not firmware or "efi" in firmware else "disabled"


def trusted_certificates(root: str) -> tuple[str, ...] | None:
    """Return the SHA-256 of each certificate in the firmware's db and among the owner's keys; None if unreadable."""
    found = certificates(root)
    if found is None:
        return None
    return tuple(sorted({hashlib.sha256(certificate).hexdigest() for certificate in found}))


def certificates(root: str) -> list[bytes] | None:
    """Return the certificates in the firmware's db and among the owner's keys; None if unreadable.

    Raise ValueError if a list of them ends early.
    """
    directory, name = os.path.split(OWNER_KEYS)
    owners = [entry for entry in files.names(root, directory) if entry.startswith(name) and entry.endswith(_SHIM)]
    variables = [files.read_bytes(root, path) for path in (SIGNATURES, *("%s/%s" % (directory, n) for n in owners))]
    lists = [variable[_ATTRIBUTES:] for variable in variables if variable]
    # For root alone; an ordinary user reads the variables.
    table = (
        files.read_bytes(root, OWNER_KEYS_TABLE) if os.access(files.under(root, OWNER_KEYS_TABLE), os.R_OK) else None
    )
    lists += [table] if table else []
    if not lists:
        return None
    return [found for data in lists for found in _certificates(data)]


def _certificates(data: bytes) -> Iterator[bytes]:
    """Yield the X.509 certificates of EFI_SIGNATURE_LISTs (UEFI specification, Signature Database).

    Each list has a type, its size, the sizes of a header and of each entry, and entries that begin with their owner.
    """
    start = 0
    while start < len(data):
        if len(data) - start < 28:
            raise ValueError("a list of the firmware's certificates ends after %d bytes" % (len(data) - start))
        kind, (size, header, entry) = data[start : start + 16], struct.unpack_from("<III", data, start + 16)
        first, end = start + 28 + header, start + size
        if entry <= 16 or first > end or end > len(data):
            raise ValueError("a list of the firmware's certificates has impossible sizes: %d, %d" % (size, entry))
        if kind == _X509:
            for place in range(first, end - entry + 1, entry):
                yield data[place + 16 : place + entry]
        start = end


def dkms_keys(root: str) -> list[SigningKey]:
    """Return the certificates with which DKMS signs modules, and whether the kernel trusts them (None: unreadable).

    That is the one in DKMS's settings, but for gpuhost's own; else the one that DKMS has generated.
    """
    trusted = trusted_certificates(root)
    configured = _configured_certificates(root, own=False)
    found = []
    for path in configured or DKMS_KEYS:
        certificate = files.read_bytes(root, path)
        if certificate:
            enrolled = None if trusted is None else hashlib.sha256(der(certificate)).hexdigest() in trusted
            found.append(SigningKey(path, enrolled))
    return found


def signing_certificates(root: str) -> list[tuple[str, bytes]]:
    """Return path and content of each certificate of a key with which DKMS may have signed modules, gpuhost's first."""
    paths = dict.fromkeys([*_configured_certificates(root), *_configured_certificates(root, own=False), *DKMS_KEYS])
    contents = [(path, files.read_bytes(root, path)) for path in paths]
    return [(path, der(content)) for path, content in contents if content]


def _configured_certificates(root: str, own: bool = True) -> list[str]:
    """Return the certificate that DKMS's settings name, if any; `own`: whether gpuhost's settings count."""
    settings = [DKMS_SETTINGS]
    directory = DKMS_SETTINGS + ".d"
    settings += ["%s/%s" % (directory, name) for name in files.names(root, directory) if name.endswith(".conf")]
    found: dict[str, str] = {}
    for path in settings:
        if own or os.path.basename(path) != OWN_SETTINGS:
            found.update(system.assignments(files.read_text(root, path) or ""))
    return [found["mok_certificate"]] if found.get("mok_certificate") else []


def der(certificate: bytes) -> bytes:
    """Return a certificate in DER, from PEM or DER. Raise ValueError if PEM is cut."""
    if certificate.startswith(b"-----BEGIN"):
        import ssl  # slow to load, and few hosts have a certificate in PEM

        return ssl.PEM_cert_to_DER_cert(certificate.decode("ascii", "replace"))
    return certificate
