"""A broker's certificate that is refused: the error says what is wrong with it."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import faust
import pytest
import trustme

from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.kafka.errors import CertificateRefusedError, ContextRefusedError
from retryapp.runtime.clients.security import prove_login
from retryapp.runtime.machine.clock import SystemClock

LOOPBACK = "127.0.0.1"
NOW = datetime.datetime.fromtimestamp(SystemClock().wall_ms() / 1000, datetime.UTC)
DAY = datetime.timedelta(days=1)
CERTIFICATES: dict[str, tuple[Callable[[trustme.CA], trustme.LeafCert], str]] = {
    "expired": (
        lambda ca: ca.issue_cert(LOOPBACK, not_before=NOW - 9 * DAY, not_after=NOW - DAY), "certificate has expired"
    ),
    "of another name": (lambda ca: ca.issue_cert("kafka.example.org"), f"is not valid for '{LOOPBACK}'"),
    "of an unknown authority": (lambda _ca: trustme.CA().issue_cert(LOOPBACK), "unable to get local issuer"),
}  # fmt: skip


@contextmanager
def listening(certificate: trustme.LeafCert) -> Iterator[int]:
    """Serve TLS and nothing else on a port of loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    server = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = server.accept()
                with suppress(OSError), context.wrap_socket(client, server_side=True) as secured:
                    secured.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


@pytest.mark.parametrize("name", CERTIFICATES)
def test_what_is_wrong_with_a_certificate_is_named(tmp_path: Path, name: str) -> None:
    """The client library says of each that the authorities may be wrong, which sends an operator the wrong way."""
    issue, expected = CERTIFICATES[name]
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with listening(issue(authority)) as port:
        trusted = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.endpoint.identification.algorithm": "https",
        }
        admin = KafkaAdmin(KafkaConnection(f"{LOOPBACK}:{port}", trusted), timeout_s=2)
        with pytest.raises(CertificateRefusedError) as raised:
            admin.topic_names()
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        app = faust.App("billing", broker=f"kafka://{LOOPBACK}:{port}", broker_credentials=context)
        with pytest.raises(ContextRefusedError) as worker:
            prove_login(app, timeout_s=2)
    text = str(raised.value)
    assert f"certificate verify failed for {LOOPBACK}:{port}: " in text
    for said in (text, str(worker.value)):
        assert expected in said
        assert "Correct the certificates. The broker's must be valid today, name this address" in said
