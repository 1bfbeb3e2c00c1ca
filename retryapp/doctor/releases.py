"""Which Kafka a broker is, asked in the one request that every broker answers before a login.

Request and response are ``ApiVersions`` version 3 of Kafka's protocol guide, written by hand because no client library
tells what it contains: the feature levels that a broker supports and those that the cluster has agreed on. Layout of
the response, integers big-endian, *compact* lengths are varints of length + 1::

    correlation id (4) | error (2) | compact array of (key 2, least 2, most 2, tags) | throttle ms (4) | tags
    tag 0: compact array of (name, least 2, most 2, tags)      supported features
    tag 2: compact array of (name, most 2, least 2, tags)      agreed features

The level of ``metadata.version`` tells the release (``kafka-storage.sh version-mapping`` prints the pairs).
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from retryapp.doctor.findings import Finding, Severity, note, ok
from retryapp.kafka import KafkaConnection

T = TypeVar("T")

API_VERSIONS: Final = 18
REQUEST_VERSION: Final = 3
_CLIENT: Final = b"retryapp-doctor"
_MOST_BYTES: Final = 1_000_000
_SUPPORTED: Final = 0
_AGREED: Final = 2

RELEASES: Final = (
    (30, "4.3"),
    (29, "4.2"),
    (27, "4.1"),
    (25, "4.0"),
    (21, "3.9"),
    (20, "3.8"),
    (19, "3.7"),
    (14, "3.6"),
    (11, "3.5"),
    (8, "3.4"),
    (7, "3.3"),
)
"""Level of ``metadata.version`` → first release that has it, the newest first."""

FIRST_VERIFIED_LEVEL: Final = 14
"""Kafka 3.6 is the first that verifies a partition's part in a transaction (KIP-890)."""

METADATA_VERSION: Final = "metadata.version"
_WHY: Final = "a late write of a worker that was fenced can leave a transaction open, and committed readers stand still"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a broker says of itself."""

    supported: Mapping[str, int]
    """Feature → highest level that this broker can do."""
    agreed: Mapping[str, int]
    """Feature → level that the cluster uses."""

    @property
    def release(self) -> str | None:
        """Release of the broker's program by its feature levels, as ``4.3``; None: it names none."""
        level = self.supported.get(METADATA_VERSION)
        if level is None:
            return None
        return next((name for least, name in RELEASES if level >= least), "before 3.3")


def ask_features(connection: KafkaConnection, *, timeout_s: float) -> Features | None:
    """Ask the first broker of the bootstrap list that answers.

    No login is sent: brokers answer this request before one.

    Returns:
        Its features; None when none could be asked in this way.
    """
    for address in connection.bootstrap.split(","):
        host, _, port = address.strip().rpartition("://")[2].rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
            with _secured(plain, host, connection.options) as channel:
                channel.sendall(request())
                return parse(_read_response(channel))
        except (OSError, ValueError, struct.error, IndexError):
            continue  # also an answer that is none of Kafka's; librdkafka has told by now who is unreachable, and why
    return None


def judge_release(features: Features | None, verification: str | None) -> Iterator[Finding]:
    """Say which release the broker is, and whether it keeps fenced workers out of later transactions.

    Args:
        features: what it says of itself.
        verification: its setting ``transaction.partition.verification.enable``; None: not told.
    """
    least = "Kafka 3.6 or newer (KIP-890)"
    level = None if features is None else features.supported.get(METADATA_VERSION)
    if features is None or level is None:
        yield note(
            "version",
            "not told",
            expected=least,
            why="it did not answer, or is not Apache Kafka: docs/operating.md says what is known of others",
        )
        return
    agreed = features.agreed.get(METADATA_VERSION)
    behind = "" if agreed is None or agreed == level else f", the cluster uses metadata.version {agreed}"
    seen = f"Kafka {features.release} (metadata.version {level}{behind})"
    if level < FIRST_VERIFIED_LEVEL:
        yield Finding(
            name="version",
            severity=Severity.WARNING,
            seen=seen,
            expected=least,
            why=_WHY,
            remedy="Upgrade the brokers; until then find such transactions with kafka-transactions.sh find-hanging",
        )
    elif verification is not None and verification.lower() != "true":
        yield Finding(
            name="version",
            severity=Severity.WARNING,
            seen=f"{seen}, transaction.partition.verification.enable={verification}",
            expected="transaction.partition.verification.enable=true",
            why=_WHY,
            remedy="Set it: kafka-configs.sh --alter --entity-type brokers --entity-default "
            "--add-config transaction.partition.verification.enable=true",
        )
    else:
        yield ok("version", seen, least)


def request() -> bytes:
    """Return the request, with its length."""
    header = struct.pack(">hhih", API_VERSIONS, REQUEST_VERSION, 1, len(_CLIENT)) + _CLIENT + b"\0"
    body = _compact(_CLIENT) + _compact(b"0") + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def parse(response: bytes) -> Features:
    """Read a response, without its length.

    Raises:
        ValueError, struct.error, IndexError: it is no such response.
    """
    reader = _Reader(response)
    correlation, error = reader.take(">ih")
    if correlation != 1 or error:
        raise ValueError(f"correlation {correlation}, error {error}")
    reader.array(reader.skip_api)
    reader.take(">i")
    supported: dict[str, int] = {}
    agreed: dict[str, int] = {}
    for _ in range(reader.varint()):
        tag, size = reader.varint(), reader.varint()
        end = reader.at + size
        if tag == _SUPPORTED:
            supported = dict(reader.array(lambda: reader.feature(most_first=False)))
        elif tag == _AGREED:
            agreed = dict(reader.array(lambda: reader.feature(most_first=True)))
        reader.at = end
    return Features(supported=supported, agreed=agreed)


class _Reader:
    """Walks over the bytes of a flexible response."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return found

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def array(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.varint() - 1)]

    def skip_api(self) -> None:
        self.take(">hhh")
        self.skip_tags()

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            size = self.varint()
            self.at += size

    def feature(self, *, most_first: bool) -> tuple[str, int]:
        size = self.varint() - 1
        name = self.data[self.at : self.at + size].decode()
        self.at += size
        first, second = self.take(">hh")
        self.skip_tags()
        return name, first if most_first else second


def _compact(text: bytes) -> bytes:
    return bytes([len(text) + 1]) + text


def _secured(plain: socket.socket, host: str, options: Mapping[str, str]) -> socket.socket:
    """Wrap a connection in TLS where the options say so, with the files that they name."""
    if "SSL" not in options.get("security.protocol", "PLAINTEXT").upper().split("_"):
        return plain
    try:
        context = ssl.create_default_context(
            cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem") or None
        )
        if options.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # the user's own choice for every client
        if "ssl.certificate.location" in options:
            context.load_cert_chain(
                options["ssl.certificate.location"],
                options.get("ssl.key.location"),
                options.get("ssl.key.password"),
            )
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _read_response(channel: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _read(channel, 4))
    if not 0 < size < _MOST_BYTES:
        raise ValueError("not an answer of Kafka")
    return _read(channel, size)


def _read(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise OSError("connection closed")
        data += chunk
    return data
