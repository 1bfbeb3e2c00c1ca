"""How to reach a cluster: address, client options, and what a failed call means.

Every client of this package is made from one :class:`KafkaConnection`, so the app's security settings reach all of
them, and secrets never reach a log line.
"""

from __future__ import annotations

import logging
import re
import shlex
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from retryapp.core.errors import BrokerUnreachableError, InvalidSettingError, RetryAppError, TopicMissingError
from retryapp.kafka.errors import (
    AccessDeniedError,
    CertificateRefusedError,
    GroupUnknownError,
    KafkaRequestError,
    LoginRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

C = TypeVar("C")

client_log: Final = logging.getLogger("retryapp.kafka.client")
"""Logger of librdkafka's own lines, hundreds a minute while a broker is down: shown at level DEBUG only.

That goes for fatal ones, too: the call that they are about raises the same.
"""
client_log.addFilter(lambda _line: client_log.isEnabledFor(logging.DEBUG))

SECRET_WORDS: Final = ("password", "secret", "ssl.key.pem", "oauthbearer.config", "sasl.jaas", "token", "keystore.key")
"""An option whose name has one of these is never shown."""

JAVA_PREFIX: Final = "kafka."  # options whose names begin so are for Java's client

_SHOWN_CHARS: Final = 80

UNREACHABLE: Final = frozenset(
    {
        "_TRANSPORT",
        "_TIMED_OUT",
        "_MSG_TIMED_OUT",
        "_ALL_BROKERS_DOWN",
        "_RESOLVE",
        "_SSL",
        "_AUTHENTICATION",
        "_TIMED_OUT_QUEUE",
    }
)
"""Error names that mean: no broker answered."""

DENIED: Final = frozenset(f"{what}_AUTHORIZATION_FAILED" for what in ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"))
"""Error names that mean: the broker answered, and this login may not do that."""

LOGIN_REFUSED: Final = ("SASL authentication error", "Unsupported SASL mechanism")
"""Words of the client that mean: a broker answered and refused our login. Its error code says only "no answer"."""

CERTIFICATE_REFUSED: Final = ("certificate verify failed", "SSL alert number")
"""Words of the client that mean: one side refused the other's certificate; waiting mends it no more than a login."""

_ADDRESS: Final = re.compile(r"ssl://(?P<host>[^\s/]+):(?P<port>\d+)/")
_CERTIFICATE_S: Final = 2.0
"""How long a broker may take to show its certificate."""
_WHEN: Final = re.compile(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)$")
_VAGUE: Final = re.compile(r"^\d+/\d+ brokers are down$")
_TOOL: Final = re.compile(r"\bkafka-[a-z-]+\.sh(?= (?:--(?!bootstrap-server)|find-))")

UNKNOWN_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
"""Error names that mean: there is no such topic (or partition)."""


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Address and client options of one cluster; the representation hides the values of secret options."""

    bootstrap: str
    """Comma-separated ``host:port`` list, as Kafka clients take it."""

    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    """librdkafka configuration properties (``security.protocol``, ``sasl.username``, …). Default: none, plain text.

    Those that begin with ``kafka.`` are for Java's client, in the pipeline; librdkafka does not see them.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def __repr__(self) -> str:
        shown = {name: _shown(name, value) for name, value in sorted(self.options.items())}
        return f"KafkaConnection(bootstrap={self.bootstrap!r}, options={shown!r})"

    @property
    def protocol(self) -> str:
        """How it speaks to brokers: ``PLAINTEXT``, ``SSL``, ``SASL_PLAINTEXT`` or ``SASL_SSL``."""
        return self.options.get("security.protocol", "PLAINTEXT").upper()

    @property
    def user(self) -> str:
        """Name of the login; empty where it has none, or one that only the broker knows (a certificate, a token)."""
        return self.options.get("sasl.username", "") if self.protocol.startswith("SASL") else ""

    def complete(self, text: str) -> str:
        """Have the commands of Kafka's own tools in a text reach this cluster: they can be run as they are printed.

        ``FILE`` has the properties of a login that may do so; this login may not, as a rule.

        >>> KafkaConnection("b:9095", {"security.protocol": "SSL"}).complete("kafka-topics.sh --alter --topic orders")
        'kafka-topics.sh --bootstrap-server b:9095 --command-config FILE --alter --topic orders'
        """
        where = f" --bootstrap-server {shlex.quote(self.bootstrap)}"
        where += "" if self.protocol == "PLAINTEXT" else " --command-config FILE"
        return _TOOL.sub(lambda tool: tool[0] + where, text)

    def client_config(self, **extra: Any) -> dict[str, Any]:
        """Return librdkafka properties of one client; ``extra`` (with ``_`` for ``.``) wins over ``options``."""
        ours = {name: value for name, value in self.options.items() if not name.startswith(JAVA_PREFIX)}
        config: dict[str, Any] = {"client.id": "retryapp", "log.connection.close": False, **ours}
        config["bootstrap.servers"] = self.bootstrap
        for name, value in extra.items():
            config[name if name.endswith("_cb") else name.replace("_", ".")] = value
        return config

    def client(self, kind: Callable[..., C], **extra: Any) -> C:
        """Make one client with :meth:`client_config`; its log lines go to our logger.

        Raises:
            InvalidSettingError: an option is unknown or has a wrong value; the message names it.
        """
        try:
            return kind(self.client_config(**extra), logger=client_log)
        except KafkaException as error:
            raise InvalidSettingError("Kafka client options", ", ".join(self.options), error.args[0].str()) from error


def is_secret(option: str) -> bool:
    """Return whether the value of a client option must never be shown."""
    lowered = option.lower()
    return any(word in lowered for word in SECRET_WORDS)


def _shown(option: str, value: str) -> str:
    if is_secret(option):
        return "***"
    return value if len(value) <= _SHOWN_CHARS else f"({len(value)} characters)"


def named_error(
    error: KafkaError | KafkaException,
    connection: KafkaConnection,
    *,
    doing: str,
    topic: str | None = None,
    tried_s: float,
    hints: Iterable[str] = (),
    right: str = "",
) -> RetryAppError:
    """Return our error for a client library's error, to be raised ``from`` it.

    ``doing`` is the rest of "could not …"; ``hints`` are what the client logged meanwhile ("Connection refused"), used
    where no broker answered. ``right`` is what a login needs to be allowed to.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return KafkaRequestError(doing, connection.bootstrap, str(cause))
    code = cause.name()
    hints = [*hints] if code in UNREACHABLE else []
    reason = _reason([*hints, cause.str()]).removesuffix(".")
    as_user = f" (user {connection.user!r})" if connection.user else ""
    if code == "SASL_AUTHENTICATION_FAILED" or any(words in reason for words in LOGIN_REFUSED):
        return LoginRefusedError(doing, connection.bootstrap, f"{reason}{as_user}")
    if code in DENIED:
        needed = f". Needed: {right}" if right else ""
        return AccessDeniedError(doing, connection.bootstrap, f"{reason}{as_user}{needed}")
    if any(words in reason for words in CERTIFICATE_REFUSED):
        return CertificateRefusedError(doing, connection.bootstrap, _refusal(reason, connection.options) or reason)
    if code in UNREACHABLE:
        problem = f"could not {doing} within {round(tried_s, 1):g} s: {reason}"
        if all(_VAGUE.match(hint) for hint in hints):  # it took the connection and hung up, or does not answer at all
            problem += (
                f". A broker hangs up without a word on a client of another kind: this one is {connection.protocol}"
            )
        return BrokerUnreachableError(connection.bootstrap, problem)
    if code in UNKNOWN_TOPIC and topic is not None:
        return TopicMissingError(topic, connection.bootstrap)
    if code == "GROUP_ID_NOT_FOUND":
        return GroupUnknownError(doing, connection.bootstrap, reason)
    return KafkaRequestError(doing, connection.bootstrap, reason)


def _refusal(reason: str, options: Mapping[str, str]) -> str | None:
    """Return why a certificate is refused: expired, of another name, of an unknown authority.

    The client says the same of each, so the broker whose address is in its words is asked once more, with Python's TLS.
    None: no address is named, or there is no answer, or nothing is wrong with the certificate.
    """
    found = _ADDRESS.search(reason)
    if found is None:
        return None
    host, port = found["host"].strip("[]"), int(found["port"])
    with suppress(OSError, ValueError):  # an authority's file that cannot be read, too
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") == "https"
        try:
            with socket.create_connection((host, port), _CERTIFICATE_S) as raw:
                context.wrap_socket(raw, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            return f"certificate verify failed for {host}:{port}: {error.verify_message}"
    return None


def _reason(hints: Iterable[str]) -> str:
    """Join the client's words without repeats and durations; "brokers are down" only if it is all."""
    lines = list(dict.fromkeys(_WHEN.sub("", line) for line in hints))
    return "; ".join([line for line in lines if not _VAGUE.match(line)] or lines)
