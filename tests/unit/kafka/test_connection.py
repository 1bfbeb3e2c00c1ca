"""Client options, secrets and the meaning of the client's errors."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from retryapp.core.errors import BrokerUnreachableError, EnvironmentFault, InvalidSettingError, TopicMissingError
from retryapp.kafka import AccessDeniedError, KafkaConnection, KafkaRequestError
from retryapp.kafka.connection import client_log, named_error
from retryapp.kafka.errors import CertificateRefusedError, LoginRefusedError

SECRETS = {
    "sasl.password": "hunter2",
    "ssl.key.password": "hunter2",
    "ssl.keystore.password": "hunter2",
    "ssl.key.pem": "hunter2",
    "sasl.oauthbearer.client.secret": "hunter2",
    "sasl.oauthbearer.config": "hunter2",
}

HERE = KafkaConnection("b:9092")


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
        (KafkaError._MSG_TIMED_OUT, BrokerUnreachableError),
        (KafkaError._RESOLVE, BrokerUnreachableError),
        (KafkaError._SSL, BrokerUnreachableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, LoginRefusedError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AccessDeniedError),
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
        ("SASL authentication error: Authentication failed: Invalid username or password", LoginRefusedError),
        (
            "SASL SCRAM-SHA-256 mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported "
            "mechanisms: PLAIN",
            LoginRefusedError,
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


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissingError),
        (KafkaError.INVALID_CONFIG, KafkaRequestError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError),
    ],
)
@pytest.mark.parametrize("hint", ["SASL authentication error: no", "SSL handshake failed: certificate verify failed"])
def test_what_the_client_said_before_does_not_name_a_brokers_answer(code, expected, hint):
    """A broker that answers has taken the login."""
    error = named_error(KafkaError(code), HERE, doing="look", topic="orders", tried_s=5, hints=[hint])
    assert type(error) is expected
    assert hint not in str(error)


SECURED = KafkaConnection("b:9095", {"security.protocol": "SASL_SSL", "sasl.username": "ann", **SECRETS})


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (KafkaError.SASL_AUTHENTICATION_FAILED, "Correct the login: name, password and mechanism"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Needed: Alter. Grant the right: 'retryapp plan"),
    ],
)
def test_a_refusal_names_the_user_and_the_one_remedy(code, advice):
    """A wrong password is no matter of rights, and a missing right none of the password."""
    text = str(named_error(KafkaError(code, "no."), SECURED, doing="look", tried_s=5, right="Alter"))
    assert f"no (user 'ann'). {advice}" in text
    assert "hunter2" not in text
    assert str(named_error(KafkaError(code, "no."), HERE, doing="look", tried_s=5)).count(".. ") == 0


def test_a_broker_that_hangs_up_makes_the_protocol_the_suspect():
    """Another kind of listener says nothing; where the client knows why, it is not suspected."""
    silence = KafkaError(KafkaError._TRANSPORT)
    for connection, protocol in ((HERE, "PLAINTEXT"), (SECURED, "SASL_SSL")):
        hung_up = named_error(silence, connection, doing="look", tried_s=2, hints=["1/1 brokers are down"])
        assert f"a client of another kind: this one is {protocol}" in str(hung_up)
    refused = named_error(silence, HERE, doing="look", tried_s=2, hints=["Connection refused"])
    assert "PLAINTEXT" not in str(refused)


def test_suggested_commands_reach_the_cluster():
    """All of Kafka's tools in a text, once each; a name without words after it is no command."""
    text = "Set it: kafka-configs.sh --alter; or 'kafka-transactions.sh find-hanging'; see kafka-dump-log.sh. On"
    shown = SECURED.complete(text)
    assert "kafka-configs.sh --bootstrap-server b:9095 --command-config FILE --alter" in shown
    assert "kafka-transactions.sh --bootstrap-server b:9095 --command-config FILE find-hanging" in shown
    assert shown.endswith("see kafka-dump-log.sh. On")
    assert SECURED.complete(shown) == shown
    assert HERE.complete("kafka-configs.sh --alter") == "kafka-configs.sh --bootstrap-server b:9092 --alter"


def test_long_values_are_not_shown():
    """A bundle of certificates in a log line hides the rest."""
    shown = repr(KafkaConnection("b:9092", {"ssl.ca.pem": "x" * 200_000}))
    assert "(200000 characters)" in shown
    assert len(shown) < 200


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_the_clients_own_lines_are_for_those_who_debug(level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also a fatal one, as of a login that may not write: the call that it is about raises the same, with a remedy."""
    client_log.log(level, "FATAL [retryapp#producer-1]: Fatal error: Broker: Cluster authorization failed")
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, client_log.name):
        client_log.log(level, "the same")
    assert caplog.messages == ["the same"]
