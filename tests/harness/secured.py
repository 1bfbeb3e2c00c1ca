"""A broker with listeners that want a login, a certificate, or both; and the certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates

from harness.brokers import running_broker
from harness.operator import Operator, answered
from retryapp.broker.config import NODE_ID
from retryapp.broker.probe import LOOPBACK, free_ports

USER, PASSWORD = "alice", "correct horse; battery=staple"
"""A password with characters that a properties file or a URL would mistake."""

_JAAS = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for clients, in PEM."""

    folder: Path
    ca: Path
    """The private authority that signed the broker's certificate."""
    other_ca: Path
    """An authority that has signed nothing."""
    client: Path
    """Key and certificate of a client."""


@dataclass(frozen=True, slots=True)
class SecuredBroker:
    """Addresses of one broker, by what they want of a client."""

    plain: str
    """Nothing; for the test's own looks."""
    sasl: str
    """A login: PLAIN or SCRAM-SHA-512."""
    sasl_tls: str
    """A login, over TLS."""
    tls: str
    """A client certificate, over TLS."""
    certificates: Certificates


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and certificates for a broker on loopback and for a client."""
    made = Certificates(folder, folder / "ca.pem", folder / "other-ca.pem", folder / "client.pem")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(made.ca)
    other.cert_pem.write_to_path(made.other_ca)
    authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(made.client)
    server = authority.issue_cert(LOOPBACK, "localhost")
    key = load_pem_private_key(server.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the only form that Kafka reads
    chain = b"".join(part.bytes() for part in server.cert_chain_pems)
    (folder / "broker.pem").write_bytes(pem + chain)
    certificate, *others = load_pem_x509_certificates(chain)
    protection = BestAvailableEncryption(PASSWORD.encode())
    store = serialize_key_and_certificates(b"it", key, certificate, others, protection)  # type: ignore[arg-type]
    (folder / "broker.p12").write_bytes(store)
    return made


@contextmanager
def secured_broker(cache_dir: Path, folder: Path, more: Mapping[str, str] | None = None) -> Iterator[SecuredBroker]:
    """Run a broker with four listeners on loopback and more settings; the certificates go to `folder`."""
    certificates = make_certificates(folder)
    plain, controller, sasl, sasl_tls, tls = free_ports(5)
    settings = _settings(certificates, controller, plain=plain, sasl=sasl, sasl_tls=sasl_tls, tls=tls)
    with running_broker(cache_dir, port=plain, settings={**settings, **(more or {})}) as broker:
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
        operator = Operator(broker.bootstrap)
        answered(operator.admin.alter_user_scram_credentials([user]))
        yield SecuredBroker(*(f"{LOOPBACK}:{port}" for port in (plain, sasl, sasl_tls, tls)), certificates=certificates)


def _settings(certificates: Certificates, controller: int, **ports: int) -> dict[str, str]:
    protocols = {"plain": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "sasl_tls": "SASL_SSL", "tls": "SSL"}
    shown = [f"{protocols[name]}://{LOOPBACK}:{port}" for name, port in ports.items()]
    jaas = {
        "plain": f'{_JAAS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "scram-sha-512": f"{_JAAS}.scram.ScramLoginModule required;",
    }
    return {
        "listeners": ",".join([*shown, f"CONTROLLER://{LOOPBACK}:{controller}"]),
        "advertised.listeners": ",".join(shown),
        "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller}",
        "listener.security.protocol.map": ",".join(
            [*(f"{name}:{name}" for name in protocols.values()), "CONTROLLER:PLAINTEXT"]
        ),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        **{
            f"listener.name.{name}.{mechanism}.sasl.jaas.config": text
            for name in ("sasl_plaintext", "sasl_ssl")
            for mechanism, text in jaas.items()
        },
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        "listener.name.ssl.ssl.client.auth": "required",
    }
