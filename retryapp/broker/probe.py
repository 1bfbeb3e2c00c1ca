"""Ports, and asking a broker whether it is ready, without a Kafka client.

A client library would log every refused connection of a broker that is still starting; one request over a plain socket
does not. Layouts of request and response: Kafka's protocol guide, "Metadata" version 4; integers are big-endian.
"""

from __future__ import annotations

import random
import socket
import struct

from retryapp.core.errors import PortTakenError

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Below the range that systems give to outgoing connections: a client that keeps connecting to a stopped broker's port
in that range can connect to itself and so keep the port taken."""

_METADATA_API = 3
_METADATA_VERSION = 4
_CLIENT = b"retryapp-probe"


def free_ports(count: int, rng: random.Random | None = None) -> list[int]:
    """Find ports on loopback that nothing listens on.

    They are free now; whoever uses them must be ready to find one taken.

    Args:
        count: how many.
        rng: where to begin; None for the system's own randomness.

    Returns:
        Distinct port numbers.

    Raises:
        PortTakenError: not enough of them are free.
    """
    found: list[int] = []
    for port in (rng or random.SystemRandom()).sample(_PORTS, 500):
        if port_is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise PortTakenError(LOOPBACK, _PORTS.start, "Hundreds of ports from there on are taken as well; stop something")


def port_is_free(port: int) -> bool:
    """Tell whether a server could listen on this port of loopback, and of all addresses, now."""
    for host in (LOOPBACK, "0.0.0.0"):  # noqa: S104 - bound for a moment, never listened on: it finds servers on any address
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: ports in TIME_WAIT are free
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def broker_count(port: int, *, timeout_s: float = 2.0) -> int:
    """Ask the broker on this loopback port which brokers serve clients.

    Returns:
        Number of unfenced brokers; 0 when nothing, or no Kafka, answers, or when it is not ready.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s) as connection:
            connection.sendall(_metadata_request())
            return _brokers_in(_read_response(connection))
    except (OSError, struct.error):
        return 0


def _metadata_request() -> bytes:
    header = struct.pack(">hhih", _METADATA_API, _METADATA_VERSION, 1, len(_CLIENT)) + _CLIENT
    body = struct.pack(">i?", 0, False)  # no topics; create none
    return struct.pack(">i", len(header) + len(body)) + header + body


def _read_response(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 0 < size < 1_000_000:
        raise OSError("not an answer of Kafka")
    return _read(connection, size)


def _brokers_in(response: bytes) -> int:
    """Read ``correlation id | throttle ms | number of brokers`` from the front of a response."""
    correlation, _throttle_ms, brokers = struct.unpack_from(">iii", response)
    return max(0, brokers) if correlation == 1 else 0


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise OSError("connection closed")
        data += chunk
    return data
