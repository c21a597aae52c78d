"""A simulated line between Ansible and a host's sshd: a TCP proxy that drops connections as bad lines do.

Source: ssh_config(5) on ServerAliveInterval and TCPKeepAlive, and what users of bastions and NAT routers report: a
connection without traffic is gone after a time.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable

# With this, close() sends RST at once, as a firewall does.
RESET = struct.pack("ii", 1, 0)
BUFFER = 65536


class SimulatedLine:
    """A line to (address, port), which connections to 127.0.0.1 at `port` take.

    idle: seconds of silence in both directions after which a connection is cut; None: never.
    """

    def __init__(self, target: tuple[str, int], idle: float | None = None) -> None:
        self.target, self.idle = target, idle
        self.cuts = 0  # connections that were cut
        self.connections = 0  # that were made
        self._broken = threading.Event()  # no connection is accepted or kept
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread(self._accept)

    def cut(self, seconds: float) -> None:
        """Cut all connections and refuse new ones for a time."""
        self._broken.set()
        timer = threading.Timer(seconds, self._broken.clear)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Cut all connections and accept no more."""
        self._closed.set()
        self._listener.close()

    def _thread(self, function: Callable[..., None], *arguments: socket.socket) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            if self._broken.is_set():
                self._reset(near)
                continue
            self.connections += 1
            self._thread(self._carry, near)

    def _carry(self, near: socket.socket) -> None:
        far = socket.create_connection(self.target)
        other = {near: far, far: near}
        last = time.monotonic()
        try:
            while True:
                ready, _, _ = select.select([near, far], [], [], 0.1)
                silent = time.monotonic() - last
                if self._broken.is_set() or self._closed.is_set() or (self.idle is not None and silent > self.idle):
                    self.cuts += 1
                    return
                for end in ready:
                    data = end.recv(BUFFER)
                    if not data:
                        return
                    other[end].sendall(data)
                    last = time.monotonic()
        except OSError:  # one of the ends is gone
            return
        finally:
            self._reset(near)
            self._reset(far)

    @staticmethod
    def _reset(end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.close()
