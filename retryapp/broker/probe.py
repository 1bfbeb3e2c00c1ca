"""Ports, and whether a broker is ready."""

from __future__ import annotations

import random
import socket

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from retryapp.core.errors import PortTakenError

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Below the range that systems give to outgoing connections: a client that keeps connecting to a stopped broker's port
in that range can connect to itself and so keep the port taken."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports on loopback on which nothing listens now; they may be taken at any time.

    Raises:
        PortTakenError: not enough of them are free.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, 500):
        if port_is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise PortTakenError(LOOPBACK, _PORTS.start, "Hundreds of ports from there on are taken too; stop some programs")


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on this port of loopback, and of all addresses, now."""
    for host in (LOOPBACK, "0.0.0.0"):  # noqa: S104 - bound for a moment, never listened on: it finds servers on any address
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: ports in TIME_WAIT are free
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def broker_count(port: int, *, timeout_s: float = 2.0) -> int:
    """Return how many brokers the one on this loopback port lists; 0 when none, or no Kafka, answers in time."""
    backoff_ms = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 50}
    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0, **backoff_ms})
    try:
        return len(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return 0
