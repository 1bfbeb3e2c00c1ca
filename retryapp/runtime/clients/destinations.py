"""Topics that handlers publish to, as the cluster describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from retryapp.core.errors import BrokerUnreachableError, RetryAppError, TopicMissingError
from retryapp.core.publication import TopicLook
from retryapp.core.record import short_topic_id
from retryapp.engine.handler.threads import Threads
from retryapp.kafka import AccessDeniedError, KafkaAdmin, KafkaConnection
from retryapp.kafka.admin import url_safe_topic_id
from retryapp.ports import DestinationReader
from retryapp.runtime.clients.batches import DENIED

TIMEOUT_S: Final = 10.0  # longest wait for one answer: a handler's attempt waits for it


class KafkaDestinations(DestinationReader):
    """Looks at topics of the cluster; connects at the first look."""

    def __init__(self, connection: Callable[[], KafkaConnection]) -> None:
        self._connection = connection
        self._admin: KafkaAdmin | None = None
        self._threads = Threads(keep=1)  # daemons: a process that ends does not wait for a broker

    @override
    async def look(self, topic: str) -> TopicLook | None:
        ended = await self._threads.run(self._look, topic, name=f"look-at-{topic}")
        if ended.error is not None:
            raise ended.error
        seen: TopicLook | None = ended.result
        return seen

    def _look(self, topic: str) -> TopicLook | None:
        admin = self._admin = self._admin or KafkaAdmin(self._connection(), timeout_s=TIMEOUT_S)
        try:
            return _look(admin, topic)
        except BrokerUnreachableError:
            # it waits for the controller that it knows, until that one is back; a new client learns of the next
            self._admin = None
            raise


def _look(admin: KafkaAdmin, topic: str) -> TopicLook | None:
    try:
        description = admin.describe(topic)
    except TopicMissingError:
        return None
    except AccessDeniedError:
        return TopicLook(0, problem="this login may not describe it; it needs DESCRIBE and WRITE")
    try:
        settings = admin.settings([topic]).get(topic, {})
    except BrokerUnreachableError:
        raise
    except RetryAppError:  # a login may publish without the right to read settings
        settings = {}
    limit = settings.get("max.message.bytes")
    return TopicLook(
        partitions=len(description.partitions),
        max_bytes=None if limit is None else int(limit),
        compacted="compact" in settings.get("cleanup.policy", ""),
        problem=_problem(description),
        closed=_closed(description, int(settings.get("min.insync.replicas", 1))),
        topic_id=short_topic_id(url_safe_topic_id(description.topic_id)),
    )


def _problem(description: Any) -> str | None:
    """Return why this login cannot publish to a topic, or None."""
    if description.is_internal:
        return "it is Kafka's own"
    allowed = description.authorized_operations  # brokers without an authorizer list all, and some none
    if allowed and "WRITE" not in {operation.name for operation in allowed}:
        return DENIED
    return None if description.partitions else "it has no partitions yet"


def _closed(description: Any, least: int) -> dict[int, str]:
    """Return the partitions that take no records now, and why; `least`: the topic's min.insync.replicas.

    Since Kafka 3.7 brokers ask for no more copies than there are replicas. What an older one refuses closes a partition
    then (`Destination.refuse`).
    """
    closed = {}
    for partition in description.partitions:
        copies = len(partition.isr)
        if partition.leader is None or partition.leader.id < 0:
            closed[partition.id] = "it has no leader"
        elif copies < min(least, len(partition.replicas)):
            closed[partition.id] = f"copies in sync: {copies}, min.insync.replicas: {least}"
    return closed
