"""Sends the records of a transaction in batches: aiokafka's `send` has a look-up and a future for each record.

A batch for a topic that handlers publish to holds no more than the topic takes; a refusal of its broker is noted where
the next publish looks (`core.publication`). A refusal that names a topic is a `HandOffRefusedError`.
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
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from typing_extensions import override

from retryapp.core.hops import Outgoing, record_size
from retryapp.core.lane_errors import HandOffRefusedError, NoLeaderError, TooFewCopiesError, TopicGoneError
from retryapp.core.publication import Publication
from retryapp.ports import Acks
from retryapp.runtime.clients.lifecycle import TOO_FEW_COPIES

_APPEND_TIME = 1  # timestamp type of a topic with `message.timestamp.type=LogAppendTime`, as all of ours are
_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
DENIED: Final = "this login may not write to it; it needs WRITE: 'retryapp plan -A MODULE --acls' prints the right"
"""Why a topic takes nothing from this login."""
_REFUSALS: Final = (
    InvalidTopicError,
    PolicyViolationError,
    InvalidTimestampError,
    CorruptRecordException,
    UnknownError,  # also the code of newer brokers for records that break a rule of the topic
)
"""Permanent refusals of a batch."""


class Sent(Acks):
    """Records that were sent, and their offsets once acknowledged."""

    def __init__(self, count: int, over: asyncio.Future[Any]) -> None:
        self.first: asyncio.Future[Any] | None = None  # the answer to the first batch for a topic of ours
        self._count = count
        self._over = over  # the end of the transaction
        self._batches: list[tuple[asyncio.Future[Any], Sequence[tuple[int, Outgoing]]]] = []

    def add(self, answer: asyncio.Future[Any], batch: Sequence[tuple[int, Outgoing]]) -> None:
        """Add the answer to a batch, and its records with their numbers, in order."""
        answer.add_done_callback(_look)
        if isinstance(first := batch[0][1], Publication):
            sizes = [record.size for _, record in batch if isinstance(record, Publication)]
            answer.add_done_callback(partial(_note_refusal, first, sizes))
        elif self.first is None:
            self.first = answer
        self._batches.append((answer, batch))

    @override
    def on_appended(self, tell: Callable[[int], None]) -> bool:
        # only a time of the broker's: with another timestamp type it is what we sent

        def acknowledged(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().timestamp_type == _APPEND_TIME:
                tell(done.result().timestamp)

        if self.first is None:
            return False
        self.first.add_done_callback(acknowledged)
        return True

    @override
    async def offsets(self) -> list[int]:
        offsets = [-1] * self._count
        for answer, batch in self._batches:
            if not answer.done():  # it never will be if the transaction has failed, as where a topic is denied
                await asyncio.wait({answer, self._over}, return_when=asyncio.FIRST_COMPLETED)
            try:
                base = (answer if answer.done() else self._over).result().offset
            except (*_TOO_LARGE, *_REFUSALS) as exc:
                size = max(record_size(record.key, record.value, record.headers) for _, record in batch)
                raise HandOffRefusedError(batch[0][1].topic, type(exc).__name__, size) from exc
            except TOO_FEW_COPIES as exc:
                raise TooFewCopiesError(batch[0][1].topic, batch[0][1].partition) from exc
            except LeaderNotAvailableError as exc:  # it found none until it was too old
                raise NoLeaderError(batch[0][1].topic, batch[0][1].partition) from exc
            except NotLeaderForPartitionError as exc:  # the same, and the client knows of no such partition
                raise TopicGoneError(batch[0][1].topic) from exc
            for at, (number, _) in enumerate(batch):
                offsets[number] = base + at
        return offsets


def denied(error: TopicAuthorizationFailedError, batch: Sequence[Outgoing]) -> HandOffRefusedError:
    """Return a transaction's error as a refusal, and note it where handlers publish."""
    topics = [error.args[0]] if isinstance(error.args[0], str) else sorted(error.args[0])
    for record in batch:
        if isinstance(record, Publication) and record.topic in topics:
            record.destination.refuse(DENIED)
    return HandOffRefusedError(topics[0], DENIED)


async def send_all(producer: AIOKafkaProducer, records: Iterable[Outgoing], over: asyncio.Future[Any]) -> Sent:
    """Hand records to a producer in a transaction, whose end is `over`; those of one partition keep their order.

    Raises:
        TopicGoneError: there is no such topic.
        aiokafka.errors.KafkaError: the producer takes no more.
    """
    groups: defaultdict[tuple[str, int], list[tuple[int, Outgoing]]] = defaultdict(list)
    count = 0
    for count, record in enumerate(records, 1):
        groups[record.topic, record.partition].append((count - 1, record))
    sent = Sent(count, over)
    for (topic, partition), group in groups.items():
        others = isinstance(group[0][1], Publication)
        try:
            if others and partition not in await producer.partitions_for(topic):  # the topic may have grown
                await producer.client.force_metadata_update()
            for batch, held in _batches(producer, group):
                sent.add(await producer.send_batch(batch, topic, partition=partition), held)
        except UnknownTopicOrPartitionError as exc:  # the client does not say which
            raise TopicGoneError(topic) from exc
    return sent


def _batches(
    producer: AIOKafkaProducer, group: Iterable[tuple[int, Outgoing]]
) -> Iterator[tuple[Any, list[tuple[int, Outgoing]]]]:
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
    """Retrieve the outcome: its transaction may have failed before anything awaits it."""
    if not answer.cancelled():
        answer.exception()


def _note_refusal(first: Publication, sizes: list[int], answer: asyncio.Future[Any]) -> None:
    destination, error = first.destination, None if answer.cancelled() else answer.exception()
    if isinstance(error, _TOO_LARGE):
        destination.refuse_size(sizes)
    elif isinstance(error, TopicAuthorizationFailedError):
        destination.refuse(DENIED)
    elif isinstance(error, _REFUSALS):
        destination.refuse(f"its broker refuses records for it ({type(error).__name__})")
    elif isinstance(error, TOO_FEW_COPIES):
        destination.refuse("fewer copies are in sync than its min.insync.replicas asks for", first.partition)
    elif isinstance(error, LeaderNotAvailableError):
        destination.refuse("it has no leader", first.partition)
