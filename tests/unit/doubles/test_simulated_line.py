"""The simulated line carries bytes, and cuts what it says it cuts, in front of a server that echoes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.doubles.lab.simulated_line import SimulatedLine


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(end,), daemon=True).start()

    def echo(end: socket.socket) -> None:
        try:
            while data := end.recv(1024):
                end.sendall(data)
        except OSError:
            return

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.close()


def connect(line: SimulatedLine) -> socket.socket:
    end = socket.create_connection(("127.0.0.1", line.port), timeout=10)
    end.sendall(b"hello")
    assert end.recv(1024) == b"hello"
    return end


def assert_cut(end: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        end.recv(1024)


def test_a_silent_connection_is_cut_and_one_with_traffic_is_not(server: tuple[str, int]) -> None:
    line = SimulatedLine(server, idle=1)
    silent, busy = connect(line), connect(line)
    for _ in range(6):
        time.sleep(0.3)
        busy.sendall(b"alive")
        assert busy.recv(1024) == b"alive"
    assert_cut(silent)
    assert (line.cuts, line.connections) == (1, 2)
    line.close()


def test_all_connections_are_cut_and_new_ones_refused_for_a_time(server: tuple[str, int]) -> None:
    line = SimulatedLine(server)
    ends = [connect(line), connect(line)]
    line.cut(1)
    for end in ends:
        assert_cut(end)
    with pytest.raises(OSError, match="reset"):
        connect(line)
    time.sleep(1.2)
    connect(line)
    assert line.cuts == 2
    line.close()
