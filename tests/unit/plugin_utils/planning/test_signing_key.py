"""The key that is to sign kernel modules, with keys and certificates made by openssl."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import signing_key
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningKeyError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two keys (one.key, two.key), and the certificate of the first (one.pem, one.der)."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    for name in ("one", "two"):
        subject = ["-subj", f"/CN=Example {name}", "-days", "3650"]
        openssl(
            "req",
            "-new",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            *subject,
        )
        openssl("x509", "-in", f"{name}.pem", "-outform", "DER", "-out", f"{name}.der")
    openssl("pkey", "-in", "one.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    openssl("pkey", "-in", "one.key", "-outform", "DER", "-out", "one-key.der")
    return folder


@pytest.mark.parametrize("name", ["one.pem", "one.der"])
def test_the_certificate_of_a_key_has_the_digest_of_its_der_form(made: Path, name: str) -> None:
    found = signing_key.read((made / "one.key").read_bytes(), (made / name).read_bytes(), f"/keys/{name}")
    assert found.path == f"/keys/{name}"
    words = ["openssl", "x509", "-in", "one.pem", "-noout", "-ext", "subjectKeyIdentifier"]
    printed = subprocess.run(words, cwd=made, check=True, capture_output=True, text=True, timeout=60).stdout
    assert int(found.key_id, 16) == int(printed.split()[-1].replace(":", ""), 16)
    assert found.sha256 == hashlib.sha256((made / "one.der").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("key", "certificate", "message"),
    [
        ("two.key", "one.pem", r"the certificate /keys/c \(CN=Example one\) belongs to another key"),
        ("locked.key", "one.pem", "the key has a passphrase"),
        ("one-key.der", "one.pem", "the key is not a private key in PEM"),
        ("one.pem", "one.pem", "the key is not a private key in PEM"),
        ("one.key", "one.key", "/keys/c is not an X.509 certificate"),
        ("one.key", "one-key.der", "/keys/c is not an X.509 certificate"),
    ],
)
def test_what_cannot_sign_unattended_is_refused(made: Path, key: str, certificate: str, message: str) -> None:
    with pytest.raises(SigningKeyError, match=message) as error:
        signing_key.read((made / key).read_bytes(), (made / certificate).read_bytes(), "/keys/c")
    secret = "".join((made / "one.key").read_text().splitlines()[1:-1])
    assert secret[:40] not in str(error.value)
