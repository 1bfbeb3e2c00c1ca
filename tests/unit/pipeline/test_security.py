"""A connection's settings in the words of Java's client, and what of them is hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retryapp.core.errors import InvalidSettingError
from retryapp.kafka import KafkaConnection
from retryapp.kafka.connection import is_secret
from retryapp.pipeline.kafka_source import java_options, source_options
from retryapp.pipeline.session import REDACTED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login(mechanism: str) -> None:
    """Name and password become a login of Java's, with their quotes escaped."""
    login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": 'cor"rect\\horse'}
    options = java_options(KafkaConnection("b:9092", {"security.protocol": "sasl_ssl", **login}))
    assert (options["security.protocol"], options["sasl.mechanism"]) == ("SASL_SSL", mechanism)
    assert options["sasl.jaas.config"].endswith('LoginModule required username="alice" password="cor\\"rect\\\\horse";')


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    """Executors do not have the driver's files."""
    for name in ("ca", "certificate", "key"):
        (tmp_path / f"{name}.pem").write_text(f"-- {name} --")
    places = {f"ssl.{name}.location": str(tmp_path / f"{name}.pem") for name in ("ca", "certificate", "key")}
    others = {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}
    assert java_options(KafkaConnection("b:9092", places | others)) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-- ca --",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-- certificate --",
        "ssl.keystore.key": "-- key --",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize("password", [{}, {"ssl.keystore.password": "hush"}])
def test_a_keystore(tmp_path: Path, password: dict[str, str]) -> None:
    """The whole of a client certificate; librdkafka opens its key with the store's password, as Java does."""
    (place := tmp_path / "client.p12").write_bytes(b"\x30\x82")
    others = {"security.protocol": "ssl", "ssl.key.password": "of another key"}
    options = source_options(KafkaConnection("b:9092", {"ssl.keystore.location": str(place), **password, **others}))
    assert {name: value for name, value in options.items() if ".ssl." in name} == {
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": str(place),
        "kafka.ssl.keystore.password": password.get("ssl.keystore.password", ""),
    }


def test_javas_own_words_pass_and_win() -> None:
    """What begins with `kafka.` is for Java; librdkafka never sees it."""
    connection = KafkaConnection(
        "b:9092", {"kafka.sasl.jaas.config": "x", "kafka.client.id": "lake", "client.id": "mine", "linger.ms": "5"}
    )
    assert java_options(connection) == {"sasl.jaas.config": "x", "client.id": "lake"}
    assert not [name for name in connection.client_config() if name.startswith("kafka.")]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sasl.mechanism": "GSSAPI", "sasl.username": "a", "sasl.password": "b"}, "kafka.sasl.jaas.config"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location"),
        ({"ssl.keystore.location": "/nowhere/client.p12"}, "ssl.keystore.location"),
    ],
)
def test_what_cannot_be_said_in_java_is_named(options: dict[str, str], named: str) -> None:
    """Before Spark starts."""
    with pytest.raises(InvalidSettingError, match=re.escape(named)):
        java_options(KafkaConnection("b:9092", options))


def test_secrets_are_hidden_by_spark_and_by_us() -> None:
    """Spark hides the options whose names match; a connection hides them in what it says of itself."""
    ssl = "keystore.key keystore.certificate.chain truststore.certificates key.password truststore.password"
    for name in ("kafka.sasl.jaas.config", *(f"kafka.ssl.{name}" for name in ssl.split())):
        assert re.search(REDACTED, name), name
    assert not re.search(REDACTED, "kafka.bootstrap.servers")
    shown = repr(KafkaConnection("b", {"kafka.sasl.jaas.config": "hush", "kafka.ssl.keystore.key": "hush"}))
    assert "hush" not in shown
    assert is_secret("kafka.ssl.keystore.key")


def test_spark_does_not_wait_minutes_for_a_broker_that_is_gone() -> None:
    """As long as our own client, or as the user says."""
    options = source_options(KafkaConnection("b:9092"))
    assert options["kafka.default.api.timeout.ms"] == options["kafka.request.timeout.ms"] == "15000"
    attempts, poll_ms = int(options["fetchOffset.numRetries"]), int(options["kafkaConsumer.pollTimeoutMs"])
    assert max(attempts * 15_000, poll_ms) <= 30_000
    given = source_options(KafkaConnection("b:9092", {"request.timeout.ms": "40000", "security.protocol": "ssl"}))
    assert given["kafka.request.timeout.ms"] == "40000"
    assert "kafka.default.api.timeout.ms" not in given, "Java refuses one that is shorter"
    assert given["kafka.security.protocol"] == "SSL"
