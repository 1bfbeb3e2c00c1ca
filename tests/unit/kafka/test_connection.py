"""Client options, secrets and the meaning of the client's errors."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from retryapp.core.errors import BrokerUnreachableError, EnvironmentFault, InvalidSettingError, TopicMissingError
from retryapp.kafka import AccessDeniedError, KafkaConnection, KafkaRequestError
from retryapp.kafka.connection import named_error
from retryapp.kafka.errors import CertificateRefusedError

SECRETS = {
    "sasl.password": "hunter2",
    "ssl.key.password": "hunter2",
    "ssl.keystore.password": "hunter2",
    "ssl.key.pem": "hunter2",
    "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.config": "hunter2",
}


def test_secrets_are_never_shown():
    """Names stay, values go; what is no secret stays readable."""
    shown = repr(KafkaConnection("b:9092", {**SECRETS, "sasl.username": "alice"}))
    assert "hunter2" not in shown
    assert "alice" in shown
    assert all(name in shown for name in SECRETS)


def test_options_cannot_be_changed_afterwards():
    """Neither through the mapping that was given nor through the attribute."""
    given = {"sasl.username": "alice"}
    connection = KafkaConnection("b:9092", given)
    given["sasl.username"] = "mallory"
    assert connection.options == {"sasl.username": "alice"}
    with pytest.raises(TypeError):
        connection.options["sasl.username"] = "mallory"  # type: ignore[index]
    assert connection == KafkaConnection("b:9092", {"sasl.username": "alice"})


def test_the_address_wins_over_the_options():
    """And a client's own needs over both."""
    config = KafkaConnection("b:9092", {"bootstrap.servers": "x", "client.id": "me"}).client_config(group_id="g")
    assert (config["bootstrap.servers"], config["client.id"], config["group.id"]) == ("b:9092", "me", "g")


def test_a_wrong_option_is_named_and_its_secret_neighbour_not_shown():
    """The client library's refusal becomes a configuration error."""
    connection = KafkaConnection("b:9092", {"no.such.option": "1", **SECRETS})
    with pytest.raises(InvalidSettingError, match=r"no\.such\.option") as caught:
        connection.client(Consumer, group_id="g")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TRANSPORT, BrokerUnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnreachableError),
        (KafkaError._TIMED_OUT, BrokerUnreachableError),
        (KafkaError._RESOLVE, BrokerUnreachableError),
        (KafkaError._SSL, BrokerUnreachableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, AccessDeniedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissingError),
        (KafkaError.INVALID_REPLICATION_FACTOR, KafkaRequestError),
    ],
)
def test_every_client_error_gets_a_name(code, expected):
    """Address and topic are in it, and it ends a command with 3."""
    error = named_error(
        KafkaException(KafkaError(code)), KafkaConnection("b:9092"), doing="look", topic="orders", tried_s=5
    )
    assert type(error) is expected
    assert isinstance(error, EnvironmentFault)
    assert error.exit_code == 3
    assert "b:9092" in str(error)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("SASL authentication error: Authentication failed: Invalid username or password", AccessDeniedError),
        (
            "SASL SCRAM-SHA-256 mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported "
            "mechanisms: PLAIN",
            AccessDeniedError,
        ),
        (
            "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker",
            CertificateRefusedError,
        ),
        (
            "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42",
            CertificateRefusedError,
        ),
        ("SSL handshake failed: Disconnected: SSL connection closed by peer", BrokerUnreachableError),
        ("Connect to ipv4#127.0.0.1:1 failed: Connection refused", BrokerUnreachableError),
    ],
)
def test_a_refusal_is_told_from_silence(hint, expected):
    """The client library reports both as "no answer"; waiting mends only one of them. It is told once."""
    hints = tuple(f"{hint} (after {ms}ms in state X)" for ms in (5, 301, 302))
    error = named_error(
        KafkaError(KafkaError._TRANSPORT),
        KafkaConnection("b:9092"),
        doing="list topics",
        tried_s=1.99999,
        hints=(*hints, "1/1 brokers are down"),
    )
    assert type(error) is expected
    assert str(error).count(hint) == 1
    assert expected is not BrokerUnreachableError or "could not list topics within 2 s" in str(error)
    assert "brokers are down" not in str(error)
    assert "ms in state" not in str(error)


def test_long_values_are_not_shown():
    """A bundle of certificates in a log line hides the rest."""
    shown = repr(KafkaConnection("b:9092", {"ssl.ca.pem": "x" * 200_000}))
    assert "(200000 characters)" in shown
    assert len(shown) < 200
