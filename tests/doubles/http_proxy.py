"""An HTTP proxy in a process of its own: `python http_proxy.py LOG [STATUS]` prints its port.

It answers each request with the path of the URL that it was asked for, as it reaches no other machine, or with STATUS,
and writes the request line to LOG. RFC 9110: a request to a proxy has the absolute URL, one for HTTPS is CONNECT.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

STATUS = int(sys.argv[2]) if len(sys.argv) > 2 else 200


class Proxy(BaseHTTPRequestHandler):
    """Answers in place of the server."""

    def do_GET(self) -> None:
        """Answer a request for an absolute URL; any other is not one to a proxy."""
        body = urlsplit(self.path).path.encode()
        self.answer(STATUS if "://" in self.path else 400, body)

    def do_CONNECT(self) -> None:
        """Refuse a tunnel: nothing is at its other end."""
        self.answer(STATUS if STATUS != 200 else 502, b"")

    def answer(self, status: int, body: bytes) -> None:
        """Send a status and a body, and write the request line down."""
        with open(sys.argv[1], "a", encoding="utf-8") as log:
            log.write(f"{self.command} {self.path}\n")
        self.send_response(status)
        if status == 407:
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
print(server.server_port, flush=True)
server.serve_forever()
