"""The Faust app's address and security settings, for every other client that we open.

aiokafka clients (lanes, tail reader) take the app's credentials as they are. librdkafka's (administration, readers)
take files and PEM text but no ``SSLContext``: its trusted authorities and its checks of certificate and host name are
copied. The rest (a client certificate, authorities in a folder, ciphers) has to be in `Retries(admin_options=...)`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

import faust
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError
from faust.auth import GSSAPICredentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list

from retryapp.core.errors import BrokerUnreachableError, InvalidSettingError
from retryapp.kafka import ContextRefusedError, KafkaConnection, LoginRefusedError

_DEFAULT_PORT = 9092
_OPTIONS: Final = "Retries(admin_options=…)"
_NO_VALUE: Final = "nothing"


def addresses(app: faust.App) -> str:
    """Return the brokers' addresses, ``host:port,host:port``."""
    return ",".join(server_list(app.conf.broker_consumer, _DEFAULT_PORT))


def client_options(app: faust.App) -> dict[str, Any]:
    """Return address and security as keyword arguments of aiokafka's clients."""
    conf = app.conf
    return {
        "bootstrap_servers": server_list(conf.broker_consumer, _DEFAULT_PORT),
        **credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
    }


def admin_connection(app: faust.App, options: Mapping[str, str] | None = None) -> KafkaConnection:
    """Return address, client id and security for the administration client; `options` (librdkafka's) win.

    Raises:
        InvalidSettingError: security settings of the app cannot be derived and are not in `options`, or Faust does not
            use them.
    """
    given = options or {}
    known = {"client.id": app.conf.broker_client_id}  # quotas and the broker's log go by it
    return KafkaConnection(addresses(app), {**known, **_derived(app, given), **given})


def user_of(app: faust.App) -> str:
    """Return the name of the workers' login; empty where it has none, or one that only the broker knows."""
    credentials: Any = app.conf.broker_credentials
    return credentials.username or "" if isinstance(credentials, SASLCredentials) else ""


def prove_login(app: faust.App, *, timeout_s: float) -> None:
    """Log in once with the app's own credentials, as Faust's clients will; blocks at most `timeout_s` per address.

    The administration client may have others, and Faust's clients report a refusal as "unable to bootstrap". Skipped
    without credentials, and with tokens (their provider belongs to the app's event loop).

    Raises:
        LoginRefusedError: name, password or mechanism were refused.
        ContextRefusedError: one side refused the other's certificate.
        BrokerUnreachableError: no address answered.
    """
    options = client_options(app)
    if options["security_protocol"] == "PLAINTEXT" or isinstance(app.conf.broker_credentials, OAuthCredentials):
        return
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:  # leaves the thread's own loop as it is
        runner.run(_log_in(options, app.conf.broker_client_id, timeout_s))


async def _log_in(options: dict[str, Any], client_id: str, timeout_s: float) -> None:
    addresses = options.pop("bootstrap_servers")
    doing, where, reason = "log in with the credentials of faust.App(...)", ",".join(addresses), ""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            connection = await create_conn(
                host.strip("[]"), int(port), client_id=client_id, request_timeout_ms=int(timeout_s * 1000), **options
            )
        except (SaslAuthenticationFailed, UnsupportedSaslMechanismError) as error:
            user = options.get("sasl_plain_username")
            raise LoginRefusedError(doing, where, f"{error}{f' (user {user!r})' if user else ''}") from error
        except ssl.SSLError as error:
            raise ContextRefusedError(doing, where, str(error)) from error
        except (OSError, TimeoutError, KafkaError) as error:  # try the next address
            if isinstance(error.__cause__, ssl.SSLError):
                raise ContextRefusedError(doing, where, str(error.__cause__)) from error
            reason = str(error) or type(error).__name__
            continue
        connection.close()
        return
    raise BrokerUnreachableError(where, f"could not {doing}: {reason}")


def _derived(app: faust.App, given: Mapping[str, str]) -> dict[str, str]:
    credentials: Any = app.conf.broker_credentials
    if credentials is None:
        context = app.conf.ssl_context
        return {} if context is None else {"security.protocol": "SSL", **_tls(context, given)}
    protocol = str(credentials.protocol.value)
    if app.conf.ssl_context is not None and not protocol.endswith("SSL"):
        raise InvalidSettingError(
            "ssl_context",
            "a context",
            f"Faust ignores it next to broker_credentials, and {protocol} would send them in clear: give it to the "
            f"credentials, {type(credentials).__name__}(…, ssl_context=…)",
        )
    context = credentials.context if isinstance(credentials, SSLCredentials) else credentials.ssl_context
    tls = {} if context is None else _tls(context, given)
    return {"security.protocol": protocol, **_login(credentials, given), **tls}


def _login(credentials: Any, given: Mapping[str, str]) -> dict[str, str]:
    if isinstance(credentials, SSLCredentials):
        return {}
    mechanism = str(credentials.mechanism.value)
    if isinstance(credentials, SASLCredentials):
        return {
            "sasl.mechanism": mechanism,
            "sasl.username": credentials.username or "",
            "sasl.password": credentials.password or "",
        }
    if isinstance(credentials, GSSAPICredentials):
        return {"sasl.mechanism": mechanism, "sasl.kerberos.service.name": credentials.kerberos_service_name}
    if "sasl.mechanism" not in given and "sasl.mechanisms" not in given:
        raise InvalidSettingError(
            _OPTIONS,
            ", ".join(sorted(given)) or _NO_VALUE,
            f"{type(credentials).__name__} is a Python object that librdkafka cannot ask: say the same in its "
            f"properties, sasl.mechanism={mechanism} and those that the mechanism needs (sasl.oauthbearer.…)",
        )
    return {}


def _tls(context: ssl.SSLContext, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a context trusts and checks; it does not hand out a client's certificate."""
    derived = {
        "enable.ssl.certificate.verification": str(context.verify_mode != ssl.CERT_NONE).lower(),
        "ssl.endpoint.identification.algorithm": "https" if context.check_hostname else "none",
    }
    if any(name.startswith("ssl.ca.") for name in given):
        return derived
    kept = context.cert_store_stats()
    if kept["x509"] > kept["x509_ca"]:
        raise InvalidSettingError(
            _OPTIONS,
            ", ".join(sorted(given)) or _NO_VALUE,
            "the app's SSL context trusts a certificate that is no authority's, and a context does not hand out such a "
            "one: say its file as ssl.ca.location",
        )
    authorities = context.get_ca_certs(binary_form=True)
    if authorities:  # else none or a folder; librdkafka uses the system's
        derived["ssl.ca.pem"] = "".join(ssl.DER_cert_to_PEM_cert(authority) for authority in authorities)
    return derived
