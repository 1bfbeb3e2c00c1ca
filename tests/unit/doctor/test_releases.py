"""Which release a broker is: the answer's bytes, and what is said about it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from retryapp.doctor.findings import Severity
from retryapp.doctor.releases import Features, ask_features, judge_release, parse, request
from retryapp.kafka import KafkaConnection


def varint(value: int) -> bytes:
    """Encode as Kafka's unsigned varint."""
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def levels(features: dict[str, tuple[int, int]]) -> bytes:
    """Encode feature levels, in the order given."""
    rows = [varint(len(n) + 1) + n.encode() + struct.pack(">hh", *pair) + b"\0" for n, pair in features.items()]
    return varint(len(rows) + 1) + b"".join(rows)


def answer(
    supported: dict[str, tuple[int, int]], agreed: dict[str, tuple[int, int]], *, apis: int = 3, error: int = 0
) -> bytes:
    """Encode an answer: supported as (least, most), agreed as (most, least)."""
    keys = b"".join(struct.pack(">hhh", key, 0, 9) + b"\1\0\2ab" for key in range(apis))  # with a tag to be skipped
    tags = {0: levels(supported), 1: struct.pack(">q", 5), 2: levels(agreed), 9: b"unknown"}
    told = b"".join(varint(tag) + varint(len(body)) + body for tag, body in tags.items())
    return struct.pack(">ih", 1, error) + varint(apis + 1) + keys + struct.pack(">i", 0) + varint(len(tags)) + told


KAFKA = answer(
    {"kraft.version": (0, 1), "metadata.version": (7, 30)},
    {"transaction.version": (2, 2), "metadata.version": (29, 29)},
)


@pytest.mark.parametrize("apis", [0, 3, 200])
def test_an_answer_is_read(apis: int) -> None:
    """Supported and agreed levels are the highest; what is between and after them is skipped."""
    features = parse(answer({"metadata.version": (7, 30)}, {"metadata.version": (29, 7)}, apis=apis))
    assert features == Features(supported={"metadata.version": 30}, agreed={"metadata.version": 29})
    assert features.release == "4.3"


@pytest.mark.parametrize("wrong", [b"", KAFKA[:30], answer({}, {}, error=35), b"\0\0\0\2" + KAFKA[4:]])
def test_what_is_no_answer_is_refused(wrong: bytes) -> None:
    """An error, another correlation, or bytes that end too soon."""
    with pytest.raises((ValueError, struct.error, IndexError)):
        parse(wrong)


@pytest.mark.parametrize(
    ("level", "release"),
    [(31, "4.3"), (30, "4.3"), (28, "4.1"), (25, "4.0"), (14, "3.6"), (13, "3.5"), (5, "before 3.3")],
)
def test_a_level_tells_the_release(level: int, release: str) -> None:
    """The newest release whose level is not above; a level between two is a preview of the later one."""
    assert Features(supported={"metadata.version": level}, agreed={}).release == release


def test_what_is_said() -> None:
    """New enough is ok; too old, or with verification off, is a warning; nothing told is a note."""

    def said(level: int | None, verification: str | None = "true") -> tuple[Severity, str]:
        features = None if level is None else Features(supported={"metadata.version": level}, agreed={})
        (finding,) = judge_release(features, verification)
        return finding.severity, finding.seen

    assert said(30) == (Severity.OK, "Kafka 4.3 (metadata.version 30)")
    assert said(14, None)[0] is Severity.OK
    assert said(13)[0] is Severity.WARNING
    assert said(30, "false")[0] is Severity.WARNING
    assert said(None) == (Severity.NOTE, "not told")
    (other,) = judge_release(Features(supported={}, agreed={}), None)
    assert other.severity is Severity.NOTE


def test_a_cluster_that_uses_less_than_its_brokers_can_is_told() -> None:
    """After an upgrade the agreed level stays behind until somebody raises it."""
    (finding,) = judge_release(parse(KAFKA), None)
    assert finding.seen == "Kafka 4.3 (metadata.version 30, the cluster uses metadata.version 29)"


@pytest.fixture
def served() -> Iterator[Callable[[bytes], int]]:
    """Listen on a port and answer one request with these bytes."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []
    asked: list[bytes] = []

    def serve(reply: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer_once() -> None:
            channel, _ = listener.accept()
            with channel:
                asked.append(channel.recv(1000))
                channel.sendall(reply)

        thread = threading.Thread(target=answer_once)
        thread.start()
        threads.append(thread)
        port: int = listener.getsockname()[1]
        return port

    yield serve
    for thread in threads:
        thread.join(5)
    for listener in listeners:
        listener.close()
    assert asked == [request()] * len(listeners)


def test_the_first_broker_that_answers_is_asked(served: Callable[[bytes], int]) -> None:
    """One that is down, or answers something else, is passed over."""
    good = served(struct.pack(">i", len(KAFKA)) + KAFKA)
    strange = served(b"HTTP/1.1 400 Bad Request")
    connection = KafkaConnection(f"127.0.0.1:1,127.0.0.1:{strange},127.0.0.1:{good}")
    features = ask_features(connection, timeout_s=5)
    assert features is not None
    assert features.release == "4.3"
    assert ask_features(KafkaConnection("127.0.0.1:1,nonsense"), timeout_s=5) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ssl.ca.location": "{ca}"}, True),
        ({"enable.ssl.certificate.verification": "false"}, True),
        ({"ssl.ca.location": "{ca}", "ssl.endpoint.identification.algorithm": "none"}, True),
        ({}, False),
        ({"ssl.ca.location": "nowhere.pem"}, False),
    ],
)
def test_tls_is_spoken_where_the_options_say_so(tmp_path: Path, options: dict[str, str], told: bool) -> None:
    """With the files and checks that librdkafka is told; a certificate that nobody vouches for ends it."""
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_once() -> None:
        channel, _ = listener.accept()
        with channel, contextlib.suppress(OSError), context.wrap_socket(channel, server_side=True) as secured:
            if secured.recv(1000) == request():
                secured.sendall(struct.pack(">i", len(KAFKA)) + KAFKA)

    thread = threading.Thread(target=answer_once)
    thread.start()
    chosen = {name: value.format(ca=ca) for name, value in options.items()}
    connection = KafkaConnection(f"127.0.0.1:{listener.getsockname()[1]}", {"security.protocol": "sasl_ssl", **chosen})
    try:
        assert (ask_features(connection, timeout_s=5) is not None) is told
    finally:
        thread.join(5)
        listener.close()
