"""Topics that handlers publish to, as the cluster tells of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names, which it does not list
    AdminClient,
    ConfigResource,
    ResourceType,
)

from retryapp.core.errors import BrokerUnreachableError, RetryAppError, TopicMissingError
from retryapp.core.publication import Seen
from retryapp.engine.threads import Threads
from retryapp.kafka import AccessDeniedError, KafkaConnection
from retryapp.kafka.connection import named_error

TIMEOUT_S: Final = 10.0
"""Longest wait for one answer: a handler's attempt waits for it."""


class KafkaDestinations:
    """`ports.destinations.DestinationReader` on the cluster. Asks; never makes a topic."""

    def __init__(self, connection: Callable[[], KafkaConnection]) -> None:
        """Args: connection: how to reach the cluster; asked at the first look."""
        self._connection = connection
        self._client: AdminClient | None = None  # it must outlive its futures
        self._threads = Threads(keep=1)  # daemons: a process that ends does not wait for a broker

    async def look(self, topic: str) -> Seen | None:
        """See `ports.destinations.DestinationReader.look`.

        Raises:
            BrokerUnreachableError: no broker answered.
            KafkaRequestError: one answered with an error.
        """
        ended = await self._threads.run(self._look, topic, name=f"look-at-{topic}")
        if ended.error is not None:
            raise ended.error
        seen: Seen | None = ended.result
        return seen

    def _look(self, topic: str) -> Seen | None:
        client = self._made()
        described = client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=TIMEOUT_S
        )
        try:
            found: Any = self._answer(described[topic], topic, f"describe topic {topic}")
        except TopicMissingError:
            return None
        except AccessDeniedError:
            return Seen(0, problem="this login may not describe it; it needs DESCRIBE and WRITE")
        settings = self._settings(client, topic)
        limit = settings.get("max.message.bytes")
        return Seen(
            partitions=len(found.partitions),
            max_bytes=None if limit is None else int(limit),
            compacted="compact" in settings.get("cleanup.policy", ""),
            problem=_problem(found),
        )

    def _made(self) -> AdminClient:
        if self._client is None:
            self._client = self._connection().client(
                AdminClient, socket_timeout_ms=int(TIMEOUT_S * 1000), allow_auto_create_topics=False
            )
        return self._client

    def _settings(self, client: AdminClient, topic: str) -> dict[str, str]:
        """Return a topic's settings; none where we may not read them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = client.describe_configs([resource], request_timeout=TIMEOUT_S)
        try:
            entries: Any = self._answer(answers[resource], topic, f"read the settings of topic {topic}")
        except BrokerUnreachableError:
            raise
        except RetryAppError:
            return {}
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def _answer(self, future: Future[Any], topic: str, doing: str) -> Any:
        try:
            return future.result(TIMEOUT_S * 2)
        except (KafkaException, TimeoutError) as error:
            connection = self._connection()
            if isinstance(error, TimeoutError):
                raise BrokerUnreachableError(
                    connection.bootstrap, f"could not {doing} in {TIMEOUT_S * 2:g} s"
                ) from error
            raise named_error(error, connection, doing=doing, topic=topic, tried_s=TIMEOUT_S) from error


def _problem(described: Any) -> str | None:
    """Return why nobody here can publish to a topic, or None."""
    if described.is_internal:
        return "it is Kafka's own"
    allowed = described.authorized_operations  # brokers without an authorizer tell all, and some tell nothing
    if allowed and "WRITE" not in {operation.name for operation in allowed}:
        return "this login may not write to it; it needs WRITE"
    return None if described.partitions else "it has no partitions yet"
