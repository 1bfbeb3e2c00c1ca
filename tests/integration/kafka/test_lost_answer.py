"""An answer of the broker that is lost: what was written is there once, so no command is obeyed twice."""

from __future__ import annotations

import select
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from retryapp.core.control import Command, Verb
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.kafka.commands import send_commands

_PRODUCE: Final = b"\0\0"
"""Key of the request, after its size."""


class _Rude(socketserver.ThreadingTCPServer):
    """A way to the broker that loses the answer to the first request that writes records, and the connection."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Way)
        self.target = target
        self.lost = 0

    def advertised(self, answer: bytes) -> bytes:
        """Return an answer of the broker's with the port of this way in place of its own."""
        host, port = self.target
        return answer.replace(host.encode() + struct.pack(">i", port), host.encode() + struct.pack(">i", self.port))

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Way(socketserver.BaseRequestHandler):
    server: _Rude

    def handle(self) -> None:
        near, waited = self.request, None
        with socket.create_connection(self.server.target) as far:
            while True:
                for side in select.select([near, far], [], [])[0]:
                    if not (data := side.recv(1 << 16)):
                        return
                    if side is near:
                        if data[4:6] == _PRODUCE and not self.server.lost:
                            waited = data[8:12]  # the number that its answer begins with
                        far.sendall(data)
                    elif data[4:8] == waited:
                        self.server.lost += 1
                        return
                    else:
                        near.sendall(self.server.advertised(data))


@pytest.fixture
def rude(bootstrap: str) -> Iterator[_Rude]:
    host, _, port = bootstrap.rpartition(":")
    with _Rude((host, int(port))) as way:
        threading.Thread(target=way.serve_forever, daemon=True).start()
        yield way
        way.shutdown()


def test_a_command_whose_answer_is_lost_is_written_once(rude, connection, make_topic, topology: HandlerTopology):
    """The client sends it again; written twice, a forced replay would be obeyed twice."""
    make_topic(1, topology.control)
    make_topic(1, topology.events)
    command = Command(id="c", verb=Verb.REPLAY, failure_id=f"{topology.group}/orders@x/0/1", force=True)
    told = send_commands(KafkaConnection(f"127.0.0.1:{rude.port}"), topology, [command], wait_s=0)
    assert (told, rude.lost) == ({}, 1)
    assert [record.key for record in read_topic(connection, topology.control)] == [command.failure_id.encode()]
