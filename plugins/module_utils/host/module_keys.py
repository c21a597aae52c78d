# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell whether the kernel trusts the key that signed a module. Runs on the managed host.

A module's signature names its key by the issuer and the serial number of a certificate (scripts/sign-file.c), which
modinfo prints as `signer` (the issuer's common name) and `sig_key`. The certificates of the firmware have both. Of the
keys in the kernel's keyrings, /proc/keys has the subject and the subject key identifier; a certificate without that
one shows its serial number instead (crypto/asymmetric_keys/x509_public_key.c).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host import secure_boot
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import SigningKey

KEYS = "/proc/keys"
# Serial, flags, usage, timeout, permissions, owner, group, type (its first nine characters), description:
# proc_keys_show in security/keys/proc.c.
_LINE = re.compile(r"^[0-9a-f]{8} \S{7} +-?\d+ +\w+ [0-9a-f]{8} +-?\d+ +-?\d+ (\S+) +(.*)$")
# Subject, identifier, algorithm, last four bytes of a subject key identifier: asymmetric_key_describe.
_X509 = re.compile(r"^(.*): ([0-9a-f]+): X509\.\S+(?: [0-9a-f]{2,8})? \[.*\]$", re.IGNORECASE)
_BUILT_IN = ".builtin_trusted_keys"
_KEYRINGS = (_BUILT_IN, ".platform", ".machine")  # each key is in one of them; .secondary_trusted_keys links to these
_SUBJECT_KEY_ID, _COMMON_NAME = b"\x55\x1d\x0e", b"\x55\x04\x03"  # 2.5.29.14, 2.5.4.3
_INTEGER, _OCTETS, _OID, _SEQUENCE, _VERSION, _EXTENSIONS = 0x02, 0x04, 0x06, 0x30, 0xA0, 0xA3


class Key(NamedTuple):
    """A key of the kernel: its subject, and its subject key identifier or, without one, its serial number."""

    subject: str
    identifier: int


class Certificate(NamedTuple):
    """What names a key in a module's signature, and in the kernel (None without a subject key identifier)."""

    issuer: str
    serial: int
    subject_key_id: int | None


def trusted(root: str, signer: str, sig_key: str) -> bool:
    """Return whether firmware or kernel trust the key of a module, by modinfo's `signer` and `sig_key`.

    Raise OSError or ValueError where that is unknown, as in a container, which does not see the kernel's keys.
    """
    serial = _serial(sig_key)
    firmware, problem = _firmware(root)
    if any((key.issuer, key.serial) == (signer, serial) for key in firmware or ()):
        return True
    keys = kernel_keys(root)
    if any(key.identifier == serial for key in keys):
        return True
    local = [key for _path, key in _local(root)]
    own = [key.subject_key_id for key in local if (key.issuer, key.serial) == (signer, serial)]
    if any(own):
        return any(key.identifier in own for key in keys)
    # A key that is compiled into the kernel has no certificate on the host: its name must do.
    named = {key.identifier for key in keys if key.subject == signer or key.subject.endswith(": " + signer)}
    if named and firmware is None:
        raise ValueError("%s, to which the kernel's keys named %r may belong" % (problem, signer))
    return bool(named - {key.subject_key_id for key in [*local, *(firmware or ())]})


def signed_with(root: str, signer: str, sig_key: str) -> str | None:
    """Return the path of the certificate of the key that signed a module, if it is one of DKMS's."""
    named = (signer, _serial(sig_key))
    return next((path for path, key in _local(root) if (key.issuer, key.serial) == named), None)


def _local(root: str) -> list[tuple[str, Certificate]]:
    found = []
    for path, content in secure_boot.signing_certificates(root):
        try:
            found.append((path, certificate(content)))
        except ValueError as error:
            raise ValueError("%s: %s" % (path, error)) from error
    return found


def _serial(sig_key: str) -> int:
    digits = re.sub(r"[:\s]", "", sig_key)
    if not re.match(r"^[0-9A-Fa-f]+$", digits):
        raise ValueError("modinfo -F sig_key: %r is no serial number" % sig_key)
    return int(digits, 16)


def _firmware(root: str) -> tuple[list[Certificate] | None, str]:
    """Return the certificates of the firmware, or None with the reason."""
    try:
        found = secure_boot.certificates(root)
        if found is not None:
            return [certificate(content) for content in found], ""
        problem = "the firmware's certificates are missing below %s" % secure_boot.EFI
    except (OSError, ValueError) as error:
        problem = "the firmware's certificates cannot be read: %s" % error
    return None, problem


def key_ids(root: str) -> tuple[str, ...] | None:
    """Return the identifiers of the kernel's keys in hexadecimal digits; None where not all of them are seen."""
    try:
        return tuple(sorted({"%x" % key.identifier for key in kernel_keys(root)}))
    except (OSError, ValueError):
        return None


def dkms_keys(root: str) -> tuple[SigningKey, ...]:
    """Return secure_boot.dkms_keys() with the `key_id` by which the kernel would know each; None: unknown."""
    keys = secure_boot.dkms_keys(root)
    return tuple(replace(key, key_id=key_id(files.read_bytes(root, key.path) or b"")) for key in keys)


def key_id(content: bytes) -> str | None:
    """Return the identifier that a kernel has for a certificate's key, in hexadecimal digits; None for none."""
    try:
        found = certificate(secure_boot.der(content))
    except ValueError:
        return None
    return "%x" % (found.serial if found.subject_key_id is None else found.subject_key_id)


def kernel_keys(root: str) -> list[Key]:
    """Return the X.509 keys in the kernel's keyrings.

    Raise OSError or ValueError if /proc/keys is missing, is no list of keys, or hides some: a process sees the keys
    that it may view and that belong to users of its user namespace.
    """
    text = files.read_text(root, KEYS)
    if text is None:
        raise ValueError("%s is missing" % KEYS)
    keys, sizes = [], {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            raise ValueError("%s: %r is no key" % (KEYS, line))
        kind, description = match.groups()
        name, _colon, count = description.rpartition(": ")
        if kind == "keyring" and name in _KEYRINGS:
            sizes[name] = 0 if count == "empty" else int(count)
        described = _X509.match(description) if kind == "asymmetri" else None
        if described:
            keys.append(Key(described.group(1), int(described.group(2), 16)))
    if _BUILT_IN not in sizes:
        raise ValueError("%s hides the keyring %s: this process may not see the kernel's keys" % (KEYS, _BUILT_IN))
    if len(keys) < sum(sizes.values()):
        raise ValueError("%s shows %d of the %d keys in %s" % (KEYS, len(keys), sum(sizes.values()), ", ".join(sizes)))
    return keys


def certificate(data: bytes) -> Certificate:
    """Return the identity of an X.509 certificate in DER (RFC 5280). Raise ValueError if it is none."""
    try:
        return _certificate(data)
    except IndexError as error:
        raise ValueError("a certificate lacks a part that each one has") from error


def _certificate(data: bytes) -> Certificate:
    parts = _items(_items(_items(data)[0][1])[0][1])
    if parts[0][0] == _VERSION:
        parts = parts[1:]
    if [tag for tag, _content in parts[:3]] != [_INTEGER, _SEQUENCE, _SEQUENCE]:
        raise ValueError("a certificate begins with neither version nor serial number")
    identifier = None
    for tag, content in parts[3:]:
        for _sequence, extension in _items(_items(content)[0][1]) if tag == _EXTENSIONS else []:
            fields = _items(extension)
            if fields[0] == (_OID, _SUBJECT_KEY_ID):
                identifier = int.from_bytes(_items(fields[-1][1])[0][1], "big")
    return Certificate(_common_name(parts[2][1]), int.from_bytes(parts[0][1], "big"), identifier)


def _common_name(name: bytes) -> str:
    """Return the common name of a distinguished name, or its last attribute, as kmod does."""
    attributes = [_items(attribute) for _set, content in _items(name) for _sequence, attribute in _items(content)]
    named = [value for kind, value in attributes if kind[1] == _COMMON_NAME] or [pair[1] for pair in attributes[-1:]]
    return named[0][1].decode("utf-8", "replace") if named else ""


def _items(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element of DER. Raise ValueError if one is cut."""
    found, start = [], 0
    while start < len(data):
        header = data[start + 1 : start + 2]
        size, first = (header[0] if header else 0), start + 2
        if size & 0x80:
            first, size = first + (size & 0x7F), int.from_bytes(data[first : first + (size & 0x7F)], "big")
        if not header or first + size > len(data):
            raise ValueError("a certificate is cut after %d bytes" % len(data))
        found.append((data[start], data[first : first + size]))
        start = first + size
    return found
