"""Links of the campaign of real faults: what they do to the traffic between a client and a server."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from chaos.proxy import Link

from retryapp.broker.probe import free_ports


class Echo(socketserver.BaseRequestHandler):
    """Sends back what it gets, until the link is rude."""

    def handle(self) -> None:
        with suppress(OSError):
            while chunk := self.request.recv(65_536):
                self.request.sendall(chunk)


@pytest.fixture
def link() -> Iterator[Link]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with Link(free_ports(1)[0], server.server_address[1]) as made:
            yield made
        server.shutdown()


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as made:
        yield made


def ask(client: socket.socket, text: bytes = b"hello") -> float:
    """Send and wait for the answer; return the seconds that it took."""
    began_s = time.monotonic()
    client.sendall(text)
    got = b""
    while len(got) < len(text):
        chunk = client.recv(65_536)
        if not chunk:
            raise ConnectionAbortedError
        got += chunk
    assert got == text
    return time.monotonic() - began_s


def test_latency_and_bandwidth(link: Link, client: socket.socket) -> None:
    """Each way takes its time; else everything passes in order, also much of it."""
    much = bytes(range(256)) * 4_000
    ask(client, much)
    link.change(latency_s=0.1)
    assert ask(client) >= 0.2
    link.change(latency_s=0.0, bytes_per_s=1_000)
    assert ask(client, bytes(200)) >= 0.4
    link.heal()
    ask(client, much)  # minutes, were it still narrow


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_closed_way_holds_what_comes(link: Link, client: socket.socket, way: str) -> None:
    """And passes it on when it opens, as a network does that was lost for a while."""
    ask(client)
    link.change(**{way: False})
    client.sendall(b"late")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(10)
    link.heal()
    client.settimeout(10)
    assert client.recv(10) == b"late"


def test_resets_and_refusals(link: Link, client: socket.socket) -> None:
    """Both ends are told by a reset; while it refuses, new connections are reset too."""
    ask(client)
    link.change(refuse=True)
    assert link.reset() == 2
    with pytest.raises(ConnectionError):
        ask(client)
    with (  # by then, or before the connection is there
        pytest.raises(ConnectionError),
        socket.create_connection(("127.0.0.1", link.port), timeout=10) as another,
    ):
        ask(another)
    link.heal()
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as another:
        ask(another)
