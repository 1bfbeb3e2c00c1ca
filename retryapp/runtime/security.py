"""The Faust app's address and security settings, for every other client that we open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faust
from faust.auth import GSSAPICredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list

from retryapp.core.errors import InvalidSettingError
from retryapp.kafka import KafkaConnection

_DEFAULT_PORT = 9092


def client_options(app: faust.App) -> dict[str, Any]:
    """Return address and security as keyword arguments of aiokafka's clients."""
    conf = app.conf
    return {
        "bootstrap_servers": server_list(conf.broker_consumer, _DEFAULT_PORT),
        **credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
    }


def admin_connection(app: faust.App, options: Mapping[str, str] | None = None) -> KafkaConnection:
    """Return address and security for the administration client.

    Args:
        app: a configured app.
        options: librdkafka properties that win over what can be derived from the app.

    Raises:
        InvalidSettingError: the app uses security settings that cannot be derived (an SSL context does not tell its
            files) and `options` does not say them.
    """
    bootstrap = ",".join(server_list(app.conf.broker_consumer, _DEFAULT_PORT))
    return KafkaConnection(bootstrap, {**_derived(app, options or {}), **(options or {})})


def _derived(app: faust.App, options: Mapping[str, str]) -> dict[str, str]:
    credentials = app.conf.broker_credentials
    if credentials is None and app.conf.ssl_context is None:
        return {}
    derived: dict[str, str] = {}
    uses_tls = app.conf.ssl_context is not None or isinstance(credentials, SSLCredentials)
    if credentials is not None:
        derived["security.protocol"] = str(credentials.protocol.value)
        uses_tls = uses_tls or "SSL" in str(credentials.protocol.value).split("_")
    elif uses_tls:
        derived["security.protocol"] = "SSL"
    if isinstance(credentials, SASLCredentials):
        derived["sasl.mechanism"] = str(credentials.mechanism.value)
        derived["sasl.username"] = credentials.username or ""
        derived["sasl.password"] = credentials.password or ""
    elif isinstance(credentials, GSSAPICredentials):
        derived["sasl.mechanism"] = str(credentials.mechanism.value)
        derived["sasl.kerberos.service.name"] = credentials.kerberos_service_name
    elif credentials is not None and not isinstance(credentials, SSLCredentials) and "sasl.mechanism" not in options:
        raise InvalidSettingError(
            "Retries(admin_options=…)", type(credentials).__name__, "say the librdkafka properties of these credentials"
        )
    if uses_tls and not any(name.startswith("ssl.") for name in options):
        raise InvalidSettingError(
            "Retries(admin_options=…)",
            sorted(options),
            "the app uses TLS, and an SSL context does not tell its files: give librdkafka's ssl.ca.location "
            "(and ssl.certificate.location, ssl.key.location)",
        )
    return derived
