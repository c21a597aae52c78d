"""Sign the repository with a throw-away OpenPGP key, generated once per build directory. Needs gpg."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER_ID = "gpuhost simulated repository (throw-away key) <nobody@repository.lab>"


@dataclass(frozen=True)
class Signer:
    """A key in a temporary GnuPG directory; usable inside `with signer(...)` only."""

    home: str
    fingerprint: str

    def armoured_key(self) -> bytes:
        """Return the public key in ASCII armour."""
        return _gpg(self.home, "--armor", "--export", self.fingerprint)

    def binary_key(self) -> bytes:
        """Return the public key as apt's Signed-By expects it."""
        return _gpg(self.home, "--export", self.fingerprint)

    def clearsign(self, text: bytes) -> bytes:
        """Return the text with its signature around it (InRelease)."""
        return self._sign("--clearsign", text)

    def detached(self, text: bytes) -> bytes:
        """Return the text's signature alone (Release.gpg)."""
        return self._sign("--detach-sign", text)

    def _sign(self, kind: str, text: bytes) -> bytes:
        options = ("--local-user", self.fingerprint, "--digest-algo", "SHA512", "--armor")
        return _gpg(self.home, *options, kind, data=text)


@contextmanager
def signer(secret: Path) -> Iterator[Signer]:
    """Import the key in the file `secret`, or generate it. GnuPG's directory is temporary: sockets need short paths."""
    with tempfile.TemporaryDirectory(prefix="gpg-") as home:
        try:
            if secret.exists():
                _gpg(home, "--import", data=secret.read_bytes())
            else:
                _gpg(home, "--quick-generate-key", USER_ID, "rsa3072", "sign", "never")
                descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(_gpg(home, "--armor", "--export-secret-keys"))
            yield Signer(home, _fingerprint(home))
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True)


def _fingerprint(home: str) -> str:
    listing = _gpg(home, "--with-colons", "--list-secret-keys").decode()
    return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


def _gpg(home: str, *arguments: str, data: bytes | None = None) -> bytes:
    command = ["gpg", "--homedir", home, "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
    command += ["--passphrase", "", *arguments]
    try:
        result = subprocess.run(command, input=data, capture_output=True)
    except FileNotFoundError:
        raise SystemExit("gpg not found; run: apt-get install gpg gpg-agent") from None
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {result.returncode}: {result.stderr.decode().strip()}")
    return result.stdout
