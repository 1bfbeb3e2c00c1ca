"""Many records to few partitions at once, as the batches in which they travel.

The client library's `send` takes one record: it looks up the topic, makes a future and resolves it, for each. A lane
knows all records of a transaction beforehand, so it fills the batches itself and waits for one answer a batch.

Records that a handler publishes go to topics whose limits are others than ours: a batch for such a topic holds no more
than it takes, and what its broker refuses is noted where the next publish looks (`core.publication`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
)

from retryapp.core.hops import Outgoing
from retryapp.core.publication import Destination, Publication

_APPEND_TIME = 1
"""Timestamp type of a topic with `message.timestamp.type=LogAppendTime`, as all of ours are."""
_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
_DENIED: Final = "this login may not write to it; it needs WRITE"
_REFUSALS: Final = (
    InvalidTopicError,
    PolicyViolationError,
    InvalidTimestampError,
    CorruptRecordException,
    UnknownError,  # also the code of newer brokers for records that break a rule of the topic
)
"""What a broker answers that will answer the same to the same batch."""


class Sent:
    """Records on their way, and where they come to lie."""

    def __init__(self, count: int) -> None:
        """Args: count: how many they are."""
        self.first: asyncio.Future[Any] | None = None
        """The answer to the first batch for a topic of ours."""
        self.destinations: dict[str, Destination] = {}
        """Topics that are not ours."""
        self._count = count
        self._batches: list[tuple[asyncio.Future[Any], list[int]]] = []

    def add(self, answer: asyncio.Future[Any], batch: Sequence[tuple[int, Outgoing]]) -> None:
        """Take note of a batch and of which records it holds, with their numbers, in order."""
        answer.add_done_callback(_look)
        if isinstance(first := batch[0][1], Publication):
            self.destinations[first.topic] = first.destination
            sizes = [record.size for _, record in batch if isinstance(record, Publication)]
            answer.add_done_callback(partial(_note_refusal, first.destination, sizes))
        elif self.first is None:
            self.first = answer
        self._batches.append((answer, [number for number, _ in batch]))

    def denied(self, error: TopicAuthorizationFailedError) -> None:
        """Take note of the topics to which the broker lets nobody here write."""
        for topic in [error.args[0]] if isinstance(error.args[0], str) else error.args[0]:
            if topic in self.destinations:
                self.destinations[topic].refuse(_DENIED)

    def on_appended(self, tell: Callable[[int], None]) -> bool:
        """See `ports.Acks.on_appended`; a time that we sent ourselves tells nothing."""

        def acknowledged(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().timestamp_type == _APPEND_TIME:
                tell(done.result().timestamp)

        if self.first is None:
            return False
        self.first.add_done_callback(acknowledged)
        return True

    async def offsets(self) -> list[int]:
        """Wait until all are acknowledged; return the offset of each, in the order in which they were given.

        Raises:
            aiokafka.errors.KafkaError: a batch was refused or nobody answered.
        """
        offsets = [-1] * self._count
        for answer, numbers in self._batches:
            base = (await answer).offset
            for at, number in enumerate(numbers):
                offsets[number] = base + at
        return offsets


async def send_all(producer: AIOKafkaProducer, records: Iterable[Outgoing]) -> Sent:
    """Hand records to a producer; those of one partition keep their order.

    Args:
        producer: started, and in a transaction where it has them.
        records: no larger than the producer's limits, each.

    Raises:
        aiokafka.errors.KafkaError: the producer takes no more.
    """
    groups: defaultdict[tuple[str, int], list[tuple[int, Outgoing]]] = defaultdict(list)
    count = 0
    for count, record in enumerate(records, 1):
        groups[record.topic, record.partition].append((count - 1, record))
    sent = Sent(count)
    for (topic, partition), group in groups.items():
        if isinstance(group[0][1], Publication):
            await _learn(producer, topic, partition)
        for batch, held in _batches(producer, group):
            sent.add(await producer.send_batch(batch, topic, partition=partition), held)
    return sent


async def _learn(producer: AIOKafkaProducer, topic: str, partition: int) -> None:
    """Have a producer know a partition: a topic of others may have grown since it has looked."""
    if partition not in await producer.partitions_for(topic):
        await producer.client.force_metadata_update()


def _batches(
    producer: AIOKafkaProducer, group: Iterable[tuple[int, Outgoing]]
) -> Iterator[tuple[Any, list[tuple[int, Outgoing]]]]:
    """Yield batches for one partition with the records that each holds, in order."""
    batch, held, size = producer.create_batch(), list[tuple[int, Outgoing]](), 0
    for number, record in group:
        full = False
        if isinstance(record, Publication):
            size += record.size
            full = bool(held) and size > record.destination.batch_bytes
        if full or not _take(batch, record):
            yield batch, held
            batch, held = producer.create_batch(), []
            size = record.size if isinstance(record, Publication) else 0
            _take(batch, record)  # the first one always fits
        held.append((number, record))
    yield batch, held


def _take(batch: Any, record: Outgoing) -> bool:
    taken = batch.append(timestamp=None, key=record.key, value=record.value, headers=list(record.headers))
    return taken is not None


def _look(answer: asyncio.Future[Any]) -> None:
    """Look at an outcome, also where its transaction has failed before anybody asks for it."""
    if not answer.cancelled():
        answer.exception()


def _note_refusal(destination: Destination, sizes: list[int], answer: asyncio.Future[Any]) -> None:
    """Take note of what a broker refuses for good."""
    error = None if answer.cancelled() else answer.exception()
    if isinstance(error, _TOO_LARGE):
        destination.refuse_size(sizes)
    elif isinstance(error, TopicAuthorizationFailedError):
        destination.refuse(_DENIED)
    elif isinstance(error, _REFUSALS):
        destination.refuse(f"its broker refuses records for it ({type(error).__name__})")
