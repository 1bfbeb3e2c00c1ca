"""The app's credentials in the words of each client library: what is carried over, and what has to be said again."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiokafka.client
import faust
import pytest
import trustme
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import BrokerMetadata

from retryapp.core.errors import InvalidSettingError
from retryapp.runtime.clients.lifecycle import survive_failed_logins
from retryapp.runtime.clients.security import admin_connection, client_options

AUTHORITY = trustme.CA()
OTHER = trustme.CA()


def app(**options: Any) -> faust.App:
    return faust.App("billing", broker="kafka://a:9093;kafka://b:9093", **options)


def trusting(*authorities: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for authority in authorities:
        authority.configure_trust(context)
    return context


def login(**more: Any) -> faust.SASLCredentials:
    return faust.SASLCredentials(username="alice", password="hunter2", **more)  # noqa: S106 - of nobody


class _Tokens(AbstractTokenProvider):
    """A provider as users write them."""

    async def token(self) -> str:
        return "t"


def test_nothing_to_carry_over() -> None:
    """A plain app has an address and a client id, by which brokers know their clients' quotas."""
    connection = admin_connection(app(broker_client_id="shop"))
    assert connection.bootstrap == "a:9093,b:9093"
    assert connection.options == {"client.id": "shop"}
    assert client_options(app()) == {"bootstrap_servers": ["a:9093", "b:9093"], "security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_login(mechanism: str) -> None:
    """Both libraries get name, password and mechanism."""
    secured = app(broker_credentials=login(mechanism=mechanism))
    ours, derived = client_options(secured), admin_connection(secured).options
    assert (derived["security.protocol"], derived["sasl.mechanism"]) == ("SASL_PLAINTEXT", mechanism)
    assert (derived["sasl.username"], derived["sasl.password"]) == ("alice", "hunter2")
    assert (ours["security_protocol"], ours["sasl_mechanism"]) == ("SASL_PLAINTEXT", mechanism)
    assert (ours["sasl_plain_username"], ours["sasl_plain_password"]) == ("alice", "hunter2")


@pytest.mark.parametrize("how", ["credentials", "context as credentials", "ssl_context"])
def test_a_private_authority_is_read_from_the_context(how: str) -> None:
    """All that it trusts and nothing else, so that librdkafka needs no file."""
    context = trusting(AUTHORITY, OTHER)
    options: dict[str, Any] = {
        "credentials": {"broker_credentials": faust.SSLCredentials(context)},
        "context as credentials": {"broker_credentials": context},
        "ssl_context": {"ssl_context": context},
    }[how]
    derived = admin_connection(app(**options)).options
    assert derived["security.protocol"] == "SSL"
    assert derived["enable.ssl.certificate.verification"] == "true"
    assert derived["ssl.endpoint.identification.algorithm"] == "https"
    pems = derived["ssl.ca.pem"].split("-----END CERTIFICATE-----\n")
    wanted = {authority.cert_pem.bytes().decode().strip() for authority in (AUTHORITY, OTHER)}
    assert {f"{pem}-----END CERTIFICATE-----" for pem in pems if pem} == wanted
    assert client_options(app(**options))["ssl_context"] is context


def test_a_login_over_tls() -> None:
    """Both parts are carried over."""
    derived = admin_connection(app(broker_credentials=login(ssl_context=trusting(AUTHORITY)))).options
    assert derived["security.protocol"] == "SASL_SSL"
    assert derived["sasl.password"] == "hunter2"
    assert derived["ssl.ca.pem"] == AUTHORITY.cert_pem.bytes().decode()


def test_what_a_context_does_not_check_is_not_checked() -> None:
    """A worker that starts where its own administration client is refused would help nobody."""
    context = trusting(AUTHORITY)
    context.check_hostname = False
    derived = admin_connection(app(broker_credentials=context)).options
    assert derived["ssl.endpoint.identification.algorithm"] == "none"
    assert derived["enable.ssl.certificate.verification"] == "true"
    context.verify_mode = ssl.CERT_NONE
    assert admin_connection(app(broker_credentials=context)).options["enable.ssl.certificate.verification"] == "false"


def test_a_context_that_trusts_nobody_by_name_leaves_it_to_the_system() -> None:
    """Only a folder, or the system's own: librdkafka looks there itself."""
    derived = admin_connection(app(broker_credentials=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))).options
    assert not [name for name in derived if name.startswith("ssl.ca")]


def test_options_win() -> None:
    """Said files take the place of what was read, and never meet it: librdkafka refuses both at once."""
    said = {"ssl.ca.location": "ca.pem", "ssl.certificate.location": "me.pem", "sasl.mechanisms": "GSSAPI"}
    connection = admin_connection(app(broker_credentials=login(ssl_context=trusting(AUTHORITY))), said)
    assert "ssl.ca.pem" not in connection.options
    assert said.items() <= connection.options.items()


def self_signed() -> ssl.SSLContext:
    """Return a context that trusts one server's certificate, which is no authority's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.issue_cert("b").cert_chain_pems[0].bytes().decode())
    return context


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"broker_credentials": login(), "ssl_context": trusting(AUTHORITY)}, "SASLCredentials(…, ssl_context=…)"),
        ({"broker_credentials": self_signed()}, "ssl.ca.location"),
        ({"broker_credentials": faust.OAuthCredentials(oauth_cb=_Tokens())}, "sasl.mechanism=OAUTHBEARER"),
    ],
)
def test_what_cannot_be_carried_over_is_said(options: dict[str, Any], wanted: str) -> None:
    """With what to write instead; no secret is shown."""
    with pytest.raises(InvalidSettingError) as caught:
        admin_connection(app(**options))
    assert wanted in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_kerberos() -> None:
    """Its service name."""
    derived = admin_connection(app(broker_credentials=faust.GSSAPICredentials(kerberos_service_name="k"))).options
    assert (derived["sasl.mechanism"], derived["sasl.kerberos.service.name"]) == ("GSSAPI", "k")


async def test_a_token_provider_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error ended the task that refreshes metadata, silently: a partition whose leader moved was read no more."""
    asked = []

    async def connect(connection: AIOKafkaConnection) -> None:
        asked.append(await connection._sasl_oauth_token_provider.token())

    class Failing(AbstractTokenProvider):
        async def token(self) -> str:
            asked.append("")
            raise ValueError("the identity server answered 503")

    monkeypatch.setattr(AIOKafkaConnection, "connect", connect)
    monkeypatch.setattr("aiokafka.client.create_conn", create_conn)  # put back afterwards
    survive_failed_logins()
    options = client_options(app(broker_credentials=faust.OAuthCredentials(oauth_cb=Failing())))
    client = AIOKafkaClient(**options)
    client.cluster._brokers = {1: BrokerMetadata(1, "a", 9093, None)}
    refreshing = asyncio.create_task(client._md_synchronizer())
    for times in (1, 2):
        refresh = client.force_metadata_update()
        await asyncio.wait({refresh, refreshing}, return_when=asyncio.FIRST_COMPLETED)
        assert not refreshing.done()
        assert (await refresh, asked) == (False, [""] * times)
    refreshing.cancel()


async def test_what_is_no_failed_login_is_not_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of the wrong kind fails at each attempt; a host name may be none."""
    monkeypatch.setattr("aiokafka.client.create_conn", create_conn)  # put back afterwards
    survive_failed_logins()
    wrong = client_options(app(broker_credentials=faust.OAuthCredentials(oauth_cb=object())))
    with pytest.raises(ValueError, match="AbstractTokenProvider"):
        await AIOKafkaClient(**wrong).bootstrap()
    with pytest.raises(KafkaConnectionError, match="could not connect: UnicodeE"):
        await aiokafka.client.create_conn("a" * 64, 9092)
