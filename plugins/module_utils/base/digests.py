# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compute digests of files, also where a FIPS mode refuses some. Runs on the managed host."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

BLOCK = 1 << 20


def check_md5() -> None:
    """Raise ValueError where MD5 cannot be computed, and the content of packages is not compared."""
    if _new("md5") is None:
        raise ValueError(
            "not compared, as %s computes no MD5, with which dpkg records it (FIPS mode; Python 3.9 or newer compares "
            "it there, too)" % sys.executable
        )


def _new(algorithm: str) -> Any:
    """Return a new hash; None if the algorithm is known and refused. Raise ValueError if it is unknown.

    OpenSSL refuses MD5 in FIPS mode (ansible/ansible#76522) unless it is not for security, which Python 3.9 can say.
    """
    options: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
    try:
        return hashlib.new(algorithm, **options)
    except ValueError:
        if algorithm in hashlib.algorithms_guaranteed:
            return None
        raise


def of_file(path: str, algorithm: str) -> bytes | None:
    """Return the digest of a file, which is empty where it is none or the algorithm is unknown; None if refused."""
    if not os.path.isfile(path):
        return b""
    try:
        digest = _new(algorithm)
    except ValueError:
        return b""
    if digest is None:
        return None
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return bytes(digest.digest())
