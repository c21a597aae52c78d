"""Fingerprints against `gpg --show-keys` (2.2.40), on keys made by gpg and on Debian's archive keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import openpgp
from syrupy.assertion import SnapshotAssertion

FIXTURES = Path(__file__).parents[3] / "fixtures/openpgp"


def captured() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FIXTURES / "gpg-show-keys.txt").read_text().splitlines():
        name, fingerprint = line.split()
        found.setdefault(name, []).append(fingerprint)
    return found


RSA = captured()["rsa.asc"][0]


@pytest.mark.parametrize(("name", "fingerprints"), captured().items(), ids=list(captured()))
def test_fingerprints_are_those_of_gpg(name: str, fingerprints: list[str]) -> None:
    keys = openpgp.public_keys((FIXTURES / name).read_bytes())
    assert [key.fingerprint for key in keys] == fingerprints


def test_armour_is_that_of_gpg() -> None:
    assert openpgp.armour((FIXTURES / "rsa.gpg").read_bytes()) == (FIXTURES / "rsa.asc").read_bytes()


def test_a_key_of_a_ring_is_its_packets() -> None:
    keys = openpgp.public_keys((FIXTURES / "both.asc").read_bytes())
    assert [key.raw for key in keys] == [(FIXTURES / "rsa.gpg").read_bytes(), (FIXTURES / "ed.gpg").read_bytes()]


def new_format(packet: openpgp.Packet, form: str) -> bytes:
    size = len(packet.body)
    lengths = {
        "two": bytes([((size - 192) >> 8) + 192, (size - 192) & 0xFF]),
        "five": b"\xff" + size.to_bytes(4, "big"),
    }
    return bytes([0xC0 | packet.tag]) + lengths[form] + packet.body


@pytest.mark.parametrize("form", ["two", "five"])
def test_new_packet_headers_carry_the_same_key(form: str) -> None:
    first, *rest = openpgp.packets((FIXTURES / "rsa.gpg").read_bytes())
    data = new_format(first, form) + b"".join(packet.raw for packet in rest)
    assert [key.fingerprint for key in openpgp.public_keys(data)] == [RSA]


def changed(old: str, new: str) -> bytes:
    text = (FIXTURES / "rsa.asc").read_text()
    assert old in text
    return text.replace(old, new, 1).encode()


ARMOURED = (FIXTURES / "rsa.asc").read_text()
BODY_LINE = ARMOURED.splitlines()[3]
BINARY = (FIXTURES / "rsa.gpg").read_bytes()
PRIVATE = "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n\n"


@pytest.mark.parametrize(
    "data",
    [
        b"<html><title>502 Bad Gateway</title></html>",
        b"",
        changed(BODY_LINE, BODY_LINE[::-1]),
        changed(BODY_LINE + "\n", ""),
        changed(BODY_LINE, "!" + BODY_LINE[1:]),
        ARMOURED[: len(ARMOURED) // 2].encode(),
        BINARY[:-1],
        BINARY[:2],
        b"\x95" + BINARY[1:],
        PRIVATE.encode(),
        b"\x99\x00\x03\x03ab",
        b"\xc6\xe1",
    ],
    ids=[
        "html",
        "empty",
        "changed",
        "line lost",
        "not base64",
        "cut text",
        "cut",
        "cut header",
        "secret",
        "private",
        "v3",
        "partial",
    ],
)
def test_data_without_a_public_key_is_refused(data: bytes, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(openpgp.BadKey) as error:
        openpgp.public_keys(data)
    assert str(error.value) == snapshot


@pytest.mark.parametrize(
    "text",
    [
        ARMOURED.replace("\n", "\r\n"),
        ARMOURED.replace("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v1\nComment: x\n", 1),
        "pub  rsa2048\n\n" + ARMOURED + "\nthe end\n",
        "\n".join(line for line in ARMOURED.splitlines() if not line.startswith("=")),
    ],
    ids=["CRLF", "headers", "text around", "no checksum"],
)
def test_armour_in_the_forms_that_servers_send_is_read(text: str) -> None:
    assert [key.fingerprint for key in openpgp.public_keys(text.encode())] == [RSA]
