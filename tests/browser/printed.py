"""Read the text of a PDF that Chromium has printed, page by page.

It is no reader of PDF in general: objects that are not in streams, text as glyphs of fonts that map them to Unicode.
"""

from __future__ import annotations

import re
import unicodedata
import zlib

_OBJECT = re.compile(rb"(?m)^(\d+) 0 obj\s(.*?)endobj", re.DOTALL)
_STREAM = re.compile(rb"stream\r?\n(.*)endstream", re.DOTALL)
_SHOWN = re.compile(rb"/(\w+) [\d.]+ Tf|<([0-9A-Fa-f]+)> Tj|/(\w+) Do")
_PAIR = re.compile(rb"<([0-9A-F]+)> <([0-9A-F]+)>")
_RANGE = re.compile(rb"<([0-9A-F]+)> <([0-9A-F]+)> <([0-9A-F]+)>")


def pages(document: bytes) -> list[str]:
    """Return the text of each page without its spaces, which a printer may replace by distances."""
    objects = {int(number): body for number, body in _OBJECT.findall(document)}
    leaves = [body for body in objects.values() if re.search(rb"/Type /Page\b(?!s)", body)]
    texts = (_text(objects, body, _reference(body, b"Contents")) for body in leaves)
    return ["".join(unicodedata.normalize("NFKC", text).split()) for text in texts]  # without ligatures


def _reference(body: bytes, name: bytes) -> int:
    found = re.search(rb"/" + name + rb" (\d+) 0 R", body)
    assert found, name
    return int(found[1])


def _named(objects: dict[int, bytes], owner: bytes, kind: bytes) -> dict[bytes, int]:
    found = re.search(rb"/" + kind + rb" <<(.*?)>>", owner, re.DOTALL)
    return {name: int(number) for name, number in re.findall(rb"/(\w+) (\d+) 0 R", found[1])} if found else {}


def _content(body: bytes) -> bytes:
    found = _STREAM.search(body)
    assert found
    return zlib.decompressobj().decompress(found[1]) if b"/FlateDecode" in body else found[1]


def _text(objects: dict[int, bytes], owner: bytes, content: int) -> str:
    """Return what a stream shows, and the forms in it; owner: the object with the names of its fonts and forms."""
    fonts, forms = (_named(objects, owner, kind) for kind in (b"Font", b"XObject"))
    glyphs: dict[int, str] = {}
    words = []
    for font, shown, form in _SHOWN.findall(_content(objects[content])):
        if font:
            glyphs = _glyphs(objects, objects[fonts[font]])
        elif form and b"/Subtype /Form" in objects[forms[form]]:
            words.append(_text(objects, objects[forms[form]], forms[form]))
        elif shown:
            codes = [int(shown[at : at + 4], 16) for at in range(0, len(shown), 4)]
            words.append("".join(glyphs.get(code, "?") for code in codes))
    return "".join(words)


def _glyphs(objects: dict[int, bytes], font: bytes) -> dict[int, str]:
    table = _content(objects[_reference(font, b"ToUnicode")])
    found = {}
    for part in re.findall(rb"beginbfchar(.*?)endbfchar", table, re.DOTALL):
        found |= {int(code, 16): _unicode(text) for code, text in _PAIR.findall(part)}
    for part in re.findall(rb"beginbfrange(.*?)endbfrange", table, re.DOTALL):
        for first, last, text in _RANGE.findall(part):
            start = int(text, 16) - int(first, 16)
            found |= {code: chr(code + start) for code in range(int(first, 16), int(last, 16) + 1)}
    return found


def _unicode(text: bytes) -> str:
    return bytes.fromhex(text.decode()).decode("utf-16-be")
