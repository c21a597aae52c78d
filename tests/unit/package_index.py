"""Small package indexes (simple repository API) with wheels of one file, served over HTTP on this machine.

As PyPI has it (JSON, PEP 691), or as PyTorch's own index has it: pages of links (PEP 503) below a path as /whl/cu126.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import urllib.parse
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.unit import web_server


@dataclass
class PackageIndex:
    """The files of an index by project; url: of its root, as UV_DEFAULT_INDEX takes it."""

    url: str = ""
    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)

    def add(
        self,
        name: str,
        version: str,
        tag: str,
        requires: tuple[str, ...] = (),
        python: str = "",
        at: str | None = None,
        size: int | None = None,
    ) -> str:
        """Add a wheel and return its hash. at: when it was uploaded, size: in bytes; None: the index does not say."""
        file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Requires-Python: {python}\n" if python else ""
        metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            folder = f"{name.replace('-', '_')}-{version}.dist-info"
            archive.writestr(f"{folder}/METADATA", metadata)
            archive.writestr(f"{folder}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{folder}/RECORD", "")
        self.contents[file] = stream.getvalue()
        more: dict[str, Any] = {"requires-python": python} if python else {}
        return self._list(name, file, {**more, "size": size} if size is not None else more, at)

    def add_source(self, name: str, version: str, at: str | None = None) -> None:
        """Add a release that has no wheel."""
        file = f"{name}-{version}.tar.gz"
        self.contents[file] = b""
        self._list(name, file, {}, at)

    def _list(self, name: str, file: str, more: dict[str, Any], at: str | None) -> str:
        digest = hashlib.sha256(self.contents[file]).hexdigest()
        entry = {"filename": file, "url": f"/files/{file}", "hashes": {"sha256": digest}, **more}
        self.files.setdefault(name, []).append({**entry, "upload-time": at} if at else entry)
        return digest


def _link(file: dict[str, Any]) -> str:
    href = f"{urllib.parse.quote(file['url'])}#sha256={file['hashes']['sha256']}"
    return f'<a href="{href}">{file["filename"]}</a><br/>\n'


@contextlib.contextmanager
def serve(links: str = "") -> Iterator[PackageIndex]:
    """Serve an empty index on a free port. links: the path below which it has pages of links."""
    index = PackageIndex()

    class Handler(web_server.Handler):
        def do_GET(self) -> None:
            name = urllib.parse.unquote(self.path.strip("/").split("/")[-1])
            if links and self.path == f"{links}/{name}/" and name in index.files:
                self.page("".join(map(_link, index.files[name])).encode(), "text/html")
            elif not links and self.path.startswith("/simple/") and name in index.files:
                page = {"meta": {"api-version": "1.1"}, "name": name, "files": index.files[name]}
                self.page(json.dumps(page).encode(), "application/vnd.pypi.simple.v1+json")
            elif name in index.contents:
                self.page(index.contents[name], "application/octet-stream")
            else:
                self.send_error(404)

        def page(self, content: bytes, kind: str) -> None:
            self.reply(200, content, {"Content-Type": kind})

        do_HEAD = do_GET

    with web_server.serve(Handler) as port:
        index.url = f"http://127.0.0.1:{port}{links or '/simple'}"
        yield index
