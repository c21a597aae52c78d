"""Check the key that is to sign kernel modules: that it can be used unattended, and that the certificate is its own.

Runs on the controller, where the user has both files. No message has any of the key. cryptography, which ansible-core
requires, is imported where it is used: ansible-test imports plugins in an environment without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from ansible_collections.gpuhost.stack.plugins.module_utils.host import module_keys

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


class SigningKeyError(ValueError):
    """The key or its certificate cannot be used."""


@dataclasses.dataclass(frozen=True)
class SigningCertificate:
    """A certificate for kernel modules: its path on the controller, and the SHA-256 of its DER form.

    key_id: by which a kernel knows the key (module_keys.py).
    """

    path: str
    sha256: str
    key_id: str = ""


def read(key: bytes, certificate: bytes, path: str) -> SigningCertificate:
    """Return the certificate; raises SigningKeyError if the key cannot be used, or the certificate is not the key's.

    key: a private key in PEM without a passphrase. certificate: PEM or DER. path: the certificate's, for messages.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    found = _certificate(certificate, path)
    try:
        own = load_pem_private_key(key, password=None).public_key()
    except TypeError as error:
        raise SigningKeyError(
            "the key has a passphrase, which nobody types when DKMS signs a module after a kernel update; remove it "
            "(openssl pkey -in KEY -out NEW), and encrypt the file with ansible-vault instead"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SigningKeyError("the key is not a private key in PEM (-----BEGIN PRIVATE KEY-----)") from error
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if own.public_bytes(*encoding) != found.public_key().public_bytes(*encoding):
        raise SigningKeyError(
            f"the certificate {path} ({found.subject.rfc4514_string()}) belongs to another key; expected the one that "
            "was made with this key"
        )
    der = found.public_bytes(Encoding.DER)
    return SigningCertificate(path, hashlib.sha256(der).hexdigest(), module_keys.key_id(der) or "")


def _certificate(content: bytes, path: str) -> Certificate:
    from cryptography import x509

    is_pem = b"-----BEGIN" in content
    try:
        return x509.load_pem_x509_certificate(content) if is_pem else x509.load_der_x509_certificate(content)
    except ValueError as error:
        raise SigningKeyError(f"{path} is not an X.509 certificate in PEM or DER") from error
