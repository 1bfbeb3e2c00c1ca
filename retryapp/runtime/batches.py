"""Many records to few partitions at once, as the batches in which they travel.

The client library's `send` takes one record: it looks up the topic, makes a future and resolves it, for each. A lane
knows all records of a transaction beforehand, so it fills the batches itself and waits for one answer a batch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import AIOKafkaProducer

from retryapp.core.hops import Outgoing

_APPEND_TIME = 1
"""Timestamp type of a topic with `message.timestamp.type=LogAppendTime`, as all of ours are."""


class Sent:
    """Records on their way, and where they come to lie."""

    def __init__(self, count: int) -> None:
        """Args: count: how many they are."""
        self.first: asyncio.Future[Any] | None = None
        """The answer to the first batch."""
        self._count = count
        self._batches: list[tuple[asyncio.Future[Any], list[int]]] = []

    def add(self, answer: asyncio.Future[Any], numbers: list[int]) -> None:
        """Take note of a batch and of which records it holds, in order."""
        answer.add_done_callback(_look)
        if self.first is None:
            self.first = answer
        self._batches.append((answer, numbers))

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
        batch, numbers = producer.create_batch(), list[int]()
        for number, record in group:
            if not _take(batch, record):
                sent.add(await producer.send_batch(batch, topic, partition=partition), numbers)
                batch, numbers = producer.create_batch(), []
                _take(batch, record)  # the first one always fits
            numbers.append(number)
        sent.add(await producer.send_batch(batch, topic, partition=partition), numbers)
    return sent


def _take(batch: Any, record: Outgoing) -> bool:
    taken = batch.append(timestamp=None, key=record.key, value=record.value, headers=list(record.headers))
    return taken is not None


def _look(answer: asyncio.Future[Any]) -> None:
    """Look at an outcome, also where its transaction has failed before anybody asks for it."""
    if not answer.cancelled():
        answer.exception()
