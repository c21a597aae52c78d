# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read OpenPGP public keys (RFC 4880, RFC 9580): armour, packets, version 4 fingerprints. Runs on the managed host.

It decides whether a downloaded file is the expected key: minimal hosts have no gpg, only gpgv or sqv, which do not
print fingerprints. No I/O.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"
TAG_SECRET_KEY, TAG_PUBLIC_KEY, TAG_SECRET_SUBKEY = 5, 6, 7
_BLOCK = re.compile(re.escape(BEGIN) + r"[ \t]*\r?\n(.*?)" + re.escape(END), re.DOTALL)


class BadKey(ValueError):
    """The data is not a public key block; the message says where it is invalid."""


@dataclass(frozen=True)
class Packet:
    """An OpenPGP packet; `raw` is its header and body."""

    tag: int
    body: bytes
    raw: bytes


@dataclass(frozen=True)
class PublicKey:
    """A primary key; `raw` has all packets up to the next primary key."""

    fingerprint: str
    raw: bytes


def crc24(data: bytes) -> int:
    """Return the checksum of armoured data (RFC 4880, 6.1)."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _unused in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def is_armoured(data: bytes) -> bool:
    """Return whether the data has an armoured public key block."""
    return BEGIN.encode() in data


def trailing_data(data: bytes) -> str:
    """Return the text after the last armoured block, which no checksum covers."""
    return data.decode("utf-8", "replace").rpartition(END)[2].strip() if is_armoured(data) else ""


def dearmour(data: bytes) -> bytes:
    """Return the packets of all public key blocks in an armoured text."""
    blocks = _BLOCK.findall(data.decode("utf-8", "replace"))
    if not blocks:
        raise BadKey("there is no complete block from %r to %r" % (BEGIN, END))
    return b"".join(_block(block.replace("\r\n", "\n")) for block in blocks)


def _block(text: str) -> bytes:
    lines = text.split("\n")
    while lines and ":" in lines[0]:  # "Version: ...", "Comment: ..."
        lines.pop(0)
    body = [line.strip() for line in lines if line.strip()]
    checksum = body.pop() if body and re.match(r"^=[A-Za-z0-9+/]{4}$", body[-1]) else None
    try:
        data = base64.b64decode("".join(body), validate=True)
    except binascii.Error as error:
        raise BadKey("the armoured text is not base64: %s" % error) from error
    if checksum is not None and int.from_bytes(base64.b64decode(checksum[1:]), "big") != crc24(data):
        raise BadKey("the armour's checksum %s is wrong: the text is truncated or changed" % checksum)
    return data


def armour(data: bytes) -> bytes:
    """Return binary keys as an armoured block, as gpg exports it."""
    encoded = base64.b64encode(data).decode()
    lines = [encoded[i : i + 64] for i in range(0, len(encoded), 64)]
    checksum = base64.b64encode(crc24(data).to_bytes(3, "big")).decode()
    return "\n".join([BEGIN, ""] + lines + ["=" + checksum, END, ""]).encode()


def packets(data: bytes) -> list[Packet]:
    """Split binary OpenPGP data into packets, of the old and the new header format."""
    found = []
    at = 0
    while at < len(data):
        if not data[at] & 0x80:
            raise BadKey("byte %d (0x%02x) does not begin an OpenPGP packet" % (at, data[at]))
        tag, start, length = _new_header(data, at) if data[at] & 0x40 else _old_header(data, at)
        end = start + length
        if end > len(data):
            raise BadKey("the packet at byte %d ends at %d, after the data's end at %d" % (at, end, len(data)))
        found.append(Packet(tag, data[start:end], data[at:end]))
        at = end
    return found


def _number(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise BadKey("the data ends within the packet header at byte %d" % at)
    return int.from_bytes(data[at : at + size], "big")


def _old_header(data: bytes, at: int) -> tuple[int, int, int]:
    tag, kind = (data[at] >> 2) & 0x0F, data[at] & 0x03
    if kind == 3:  # indeterminate: up to the end
        return tag, at + 1, len(data) - at - 1
    size = 1 << kind
    return tag, at + 1 + size, _number(data, at + 1, size)


def _new_header(data: bytes, at: int) -> tuple[int, int, int]:
    tag, first = data[at] & 0x3F, _number(data, at + 1, 1)
    if first < 192:
        return tag, at + 2, first
    if first < 224:
        return tag, at + 3, ((first - 192) << 8) + _number(data, at + 2, 1) + 192
    if first == 255:
        return tag, at + 6, _number(data, at + 2, 4)
    raise BadKey("the packet at byte %d has a partial length, which is not allowed in keys" % at)


def fingerprint(packet: Packet) -> str:
    """Return the 40 hexadecimal digits of a version 4 key. Raise BadKey for others, which apt does not accept."""
    version = packet.body[0] if packet.body else 0
    if version != 4:
        raise BadKey("the key has version %d; only version 4 keys are supported" % version)
    digest = hashlib.sha1(b"\x99" + len(packet.body).to_bytes(2, "big") + packet.body)
    return digest.hexdigest().upper()


def public_keys(data: bytes) -> list[PublicKey]:
    """Return the primary keys in armoured or binary data, in order. Raise BadKey where there is none."""
    keys: list[PublicKey] = []
    if b"-----BEGIN PGP PRIVATE KEY BLOCK" in data:
        raise BadKey("it contains a secret key; only public keys belong on a host")
    for packet in packets(dearmour(data) if is_armoured(data) else data):
        if packet.tag in (TAG_SECRET_KEY, TAG_SECRET_SUBKEY):
            raise BadKey("it contains a secret key; only public keys belong on a host")
        if packet.tag == TAG_PUBLIC_KEY:
            keys.append(PublicKey(fingerprint(packet), packet.raw))
        elif keys:
            keys[-1] = PublicKey(keys[-1].fingerprint, keys[-1].raw + packet.raw)
    if not keys:
        raise BadKey("it contains no public key")
    return keys


def extract(data: bytes, wanted: str, binary: bool) -> bytes:
    """Return the key with the fingerprint `wanted`, binary or armoured; the data itself if it is just that."""
    keys = public_keys(data)
    if len(keys) == 1 and is_armoured(data) != binary:
        return data
    raw = next(key.raw for key in keys if key.fingerprint == wanted)
    return raw if binary else armour(raw)
