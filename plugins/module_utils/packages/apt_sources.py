# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read apt's sources and trusted keys, as far as they concern NVIDIA's software. Runs on the managed host.

sources.list(5): one-line entries in *.list, deb822 stanzas in *.sources.
"""

from __future__ import annotations

import binascii
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import deb822, openpgp

ONE_LINE = "/etc/apt/sources.list"
DIRECTORY = "/etc/apt/sources.list.d"
KEYRINGS = ("/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d")
NVIDIA_URI_WORDS = ("nvidia", "graphics-drivers")
NVIDIA_KEY_OWNERS = (b"nvidia", b"cudatools")  # in the user ids of NVIDIA's keys
_LINE = re.compile(r"^(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)")


def read(root: str, repository_url: str | None) -> dict[str, Any]:
    """Return the probe's `repository_files`.

    entries: {"file", "uri", "suite", "signed_by"} of each source of NVIDIA's software; keys: {file: [fingerprint]} of
    NVIDIA's keys that apt trusts for every repository; mixed: those files that also contain other repositories or keys.
    """
    entries = parse_list(files.read_text(root, ONE_LINE) or "", ONE_LINE)
    for name in files.names(root, DIRECTORY):
        path = "%s/%s" % (DIRECTORY, name)
        if name.endswith(".list"):
            entries += parse_list(files.read_text(root, path) or "", path)
        elif name.endswith(".sources"):
            entries += parse_sources(files.read_text(root, path) or "", path)
    own = (repository_url or "").rstrip("/")
    wanted = [
        e
        for e in entries
        if any(word in e["uri"] for word in NVIDIA_URI_WORDS) or (own and e["uri"].rstrip("/") == own)
    ]
    keys, mixed = _keys(root)
    mixed += [entry["file"] for entry in entries if entry not in wanted]
    concerned = {entry["file"] for entry in wanted} | set(keys)
    return {"entries": wanted, "keys": keys, "mixed": sorted(concerned & set(mixed))}


def parse_list(text: str, path: str) -> list[dict[str, Any]]:
    """Return the entries of a one-line file: `deb [signed-by=/key arch=amd64] URI SUITE ...`."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match and match.group(1) == "deb":
            found.append(_entry(path, match.group(3), match.group(4), _options(match).get("signed-by")))
    return found


def parse_sources(text: str, path: str) -> list[dict[str, Any]]:
    """Return the entries of a deb822 file, whose Signed-By is a path, fingerprints, or a whole key."""
    found = []
    for fields in deb822.paragraphs(text):
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                found.append(_entry(path, uri, suite, fields.get("signed-by")))
    return found


def signed_by(text: str, path: str, position: int) -> str | None:
    """Return the Signed-By of entry number `position` (from 1) in a source file as it is there; None without one."""
    if path.endswith(".sources"):
        return deb822.paragraphs(text)[position - 1].get("signed-by", "").strip() or None
    match = _LINE.match(text.splitlines()[position - 1].strip())
    return _options(match).get("signed-by", "").replace(",", " ") or None if match else None


def _options(match: re.Match[str]) -> dict[str, str]:
    options = dict(option.split("=", 1) for option in (match.group(2) or "").split() if "=" in option)
    return {name.lower(): value for name, value in options.items()}


def _entry(path: str, uri: str, suite: str, signed_by: str | None) -> dict[str, Any]:
    if signed_by and "BEGIN PGP" in signed_by:
        signed_by = "a key within the file"
    return {"file": path, "uri": uri, "suite": suite, "signed_by": signed_by or None}


def _keys(root: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return NVIDIA's keys by file, and the files that contain other keys too."""
    keyring, directory = KEYRINGS
    paths = [keyring] + ["%s/%s" % (directory, name) for name in files.names(root, directory)]
    found, mixed = {}, []
    for path in paths:
        try:
            data = files.read_bytes(root, path) if path.endswith((".gpg", ".asc")) else None
            if not data or not _names_nvidia(_plain(data)):
                continue
            all_keys = openpgp.public_keys(data)
            keys = [key.fingerprint for key in all_keys if _names_nvidia(key.raw)]
        except (ValueError, OSError):
            continue  # apt ignores such a file too, with a warning
        if keys:
            found[path] = keys
            mixed += [path] if len(keys) < len(all_keys) else []
    return found, mixed


def _plain(data: bytes) -> bytes:
    """Return the packets for a search: parsing Debian's own keys with openpgp.py, checksums included, takes 40 ms."""
    if not openpgp.is_armoured(data):
        return data
    body = data.replace(b"\r", b"").partition(b"\n\n")[2]
    return binascii.a2b_base64(body.partition(b"\n=")[0].partition(b"\n-----END")[0])


def _names_nvidia(packets: bytes) -> bool:
    return any(owner in packets.lower() for owner in NVIDIA_KEY_OWNERS)
