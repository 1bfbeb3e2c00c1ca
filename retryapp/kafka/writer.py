"""Writes records and waits until all in-sync brokers have them, one by one or all together."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from retryapp.core.hops import Outgoing
from retryapp.kafka.admin import REQUEST_TIMED_OUT
from retryapp.kafka.connection import KafkaConnection, named_error
from retryapp.kafka.errors import KafkaRequestError

if TYPE_CHECKING:
    from confluent_kafka import Message

WRITE_TIMEOUT_S: Final = 15.0
_ABORT_S: Final = 5.0
_FULL_S: Final = 0.05
_PATIENCE_S: Final = 30.0
"""For how long a writer begins anew after others have ended its transaction."""
_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 3.0
FENCED: Final = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "CONCURRENT_TRANSACTIONS", "_FATAL"}
"""Errors of a writer whose transaction another one has ended; `_FATAL`: its client has found that out earlier."""
_IN_TURN: Final = threading.Lock()
"""Writers of this process: where many clients were fenced at once, the client library was seen to end the process."""


def produce(producer: Producer, topic: str, value: bytes | None, key: bytes | None = None, **more: Any) -> None:
    """Hand a record to a client, as its method `produce`; while the client's queue is full, wait."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
        except BufferError:
            producer.poll(_FULL_S)
        else:
            return


def write_records(connection: KafkaConnection, topic: str, records: Iterable[Outgoing]) -> list[int | None]:
    """Append records to a topic, those of a partition in order; return once all are durable.

    Returns:
        Their offsets; None: the broker has not said, because an earlier answer was lost.

    Raises:
        BrokerUnreachableError: no broker answered in time; some of the records may be there.
        TopicMissingError: there is no such topic.
        AccessDeniedError: we may not write there.
    """
    failures: list[KafkaError] = []
    offsets: list[int | None] = []

    def delivered(number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        elif (offset := message.offset()) is not None and offset >= 0:
            offsets[number] = offset

    producer = connection.client(
        Producer,
        acks="all",
        enable_idempotence=True,
        allow_auto_create_topics=False,
        delivery_timeout_ms=int(WRITE_TIMEOUT_S * 1000),
    )
    try:
        for number, record in enumerate(records):
            if failures:  # known early only where the queue was full
                break
            offsets.append(None)
            told = partial(delivered, number)
            produce(producer, topic, record.value, record.key, partition=record.partition, on_delivery=told)
    except (KafkaException, SystemError) as refused:  # the client knows the topic, or has ended
        failures.append(_reason(refused))
    unsent = 0
    try:
        unsent = producer.flush(WRITE_TIMEOUT_S + 1)
    except (KafkaException, SystemError) as fatal:  # the client raises it beneath our callback
        failures[:] = [_reason(fatal)]
    if failures or unsent:
        error = KafkaException(failures[0] if failures else KafkaError(REQUEST_TIMED_OUT))
        doing = f"write to topic {topic}"
        raise named_error(
            error, connection, doing=doing, topic=topic, tried_s=WRITE_TIMEOUT_S, right="Write"
        ) from error
    return offsets


def _reason(fatal: KafkaException | SystemError) -> KafkaError:
    """Return why a client has ended. A login that may write to no topic at all is refused a producer id."""
    cause = fatal if isinstance(fatal, KafkaException) else fatal.__cause__
    if not isinstance(cause, KafkaException):
        raise fatal
    error: KafkaError = cause.args[0]
    denied = error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if denied else error


def write_together(connection: KafkaConnection, topic: str, records: Sequence[Outgoing]) -> None:
    """Append records to a topic that exists, in one transaction: readers of committed records see all or none.

    Writers of a topic come one after the other. In one process they wait for each other; of several processes a later
    one ends the transaction of an earlier one, which begins anew. Random pauses before that, each longer than the last,
    keep several from ending each other's again and again.

    Raises:
        BrokerUnreachableError: no broker answered in time; the records are there, or not.
        AccessDeniedError: we may not write there, or not use the transactional id.
        KafkaRequestError: others write for too long, or the broker refuses.
    """
    doing = f"write to topic {topic}"
    if not _IN_TURN.acquire(timeout=_PATIENCE_S):  # others of this process wait for a broker that does not answer
        raise KafkaRequestError(
            doing, connection.bootstrap, f"others have written for {_PATIENCE_S:g} s: send it again"
        )
    try:
        began_s, pause_s = time.monotonic(), _PAUSE_S
        while (error := _try_transaction(connection, topic, records)) is not None:
            if error.args[0].name() not in FENCED or time.monotonic() - began_s >= _PATIENCE_S:
                raise named_error(error, connection, doing=doing, tried_s=WRITE_TIMEOUT_S, right="Write") from error
            time.sleep(random.SystemRandom().uniform(0, pause_s))
            pause_s = min(pause_s * 2, _MOST_PAUSE_S)
    finally:
        _IN_TURN.release()


def _try_transaction(connection: KafkaConnection, topic: str, records: Sequence[Outgoing]) -> KafkaException | None:
    producer = connection.client(
        Producer,
        transactional_id=topic,
        allow_auto_create_topics=False,
        transaction_timeout_ms=int(WRITE_TIMEOUT_S * 1000),
        delivery_timeout_ms=int(WRITE_TIMEOUT_S * 1000),
        socket_timeout_ms=int(WRITE_TIMEOUT_S * 1000),  # the client refuses to wait longer than a transaction may last
    )
    try:
        producer.init_transactions(WRITE_TIMEOUT_S)
        producer.begin_transaction()
        for record in records:
            produce(producer, topic, record.value, record.key, partition=record.partition)
        producer.commit_transaction(WRITE_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].name() not in FENCED:
            with suppress(KafkaException):  # it has not begun, or no broker answers: it ends by itself
                producer.abort_transaction(_ABORT_S)
        return error
    return None
