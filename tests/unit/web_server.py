"""An HTTP server on this machine, for tests of what downloads."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Handler(http.server.BaseHTTPRequestHandler):
    """Answer requests, and print nothing."""

    def reply(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_unused: object) -> None:
        return


class Files(Handler, http.server.SimpleHTTPRequestHandler):
    """Serve the files of `directory`."""


@contextmanager
def serve(handler: Callable[..., Handler], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve on a free port of this machine; yield the port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
