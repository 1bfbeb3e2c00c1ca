"""This machine's clock against the brokers'.

Kafka has no question for the time. Two things tell it:

* the append time of the newest record in our topics, which is the broker's (LogAppendTime): that moment has passed, so
  a broker whose newest record lies in this machine's future is ahead by at least so much. It bounds the difference on
  one side only, and closely only while records flow;
* a record that is written now (:func:`measure`): its append time lies between sending and acknowledgement. The record
  is in a transaction that is aborted, so no committed reader ever sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message, Producer

from retryapp.doctor.findings import Finding, Severity, note, ok
from retryapp.kafka import KafkaConnection
from retryapp.kafka.connection import named_error

MOST_SKEW_MS: Final = 1_000
"""Beyond it a record comes early by somebody's clock (DESIGN's bound for firing)."""

EXPECTED: Final = f"within {MOST_SKEW_MS} ms"
REMEDY: Final = "Run NTP (chrony, systemd-timesyncd) on brokers and workers, and look with 'chronyc tracking'"
WHY: Final = (
    "workers correct for it by the broker's acknowledgements, and fire nothing while the two suddenly disagree by "
    "more; logs and other programs on the machine that is wrong do not"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One record written for its append time."""

    ahead_ms: int
    """The broker's clock minus ours; negative: it is behind."""
    within_ms: int
    """How wrong that can be: half of the round trip."""


def judge_newest(newest_ms: int | None, now_ms: int) -> Iterator[Finding]:
    """Say what the newest record's append time tells.

    Args:
        newest_ms: epoch milliseconds by the broker's clock; None: our topics are empty.
        now_ms: epoch milliseconds by this machine's, read after the question was answered.
    """
    how = "--write measures it"
    if newest_ms is None:
        yield note("clock", "not compared: our topics have no record yet", expected=EXPECTED, remedy=how)
    elif newest_ms - now_ms > MOST_SKEW_MS:
        yield Finding(
            name="clock",
            severity=Severity.WARNING,
            seen=f"the broker is ahead by {newest_ms - now_ms} ms at least",
            expected=EXPECTED,
            why=WHY,
            remedy=REMEDY,
        )
    else:
        age_ms = max(0, now_ms - newest_ms)
        yield note(
            "clock",
            f"the broker is not ahead, and behind by {age_ms} ms at most (age of the newest record)",
            expected=EXPECTED,
            remedy="" if age_ms <= MOST_SKEW_MS else how,
        )


def judge_measured(measured: Measured) -> Iterator[Finding]:
    """Say what a written record told."""
    words = "ahead" if measured.ahead_ms >= 0 else "behind"
    seen = f"the broker is {words} by {abs(measured.ahead_ms)} ms, give or take {measured.within_ms} ms"
    if abs(measured.ahead_ms) - measured.within_ms <= MOST_SKEW_MS:
        yield ok("clock", seen, EXPECTED)
    else:
        yield Finding(name="clock", severity=Severity.WARNING, seen=seen, expected=EXPECTED, why=WHY, remedy=REMEDY)


def measure(
    connection: KafkaConnection, *, group: str, topic: str, wall_ms: Callable[[], int], timeout_s: float
) -> Measured:
    """Write one record to a topic of ours in a transaction, and abort it.

    Args:
        connection: the cluster.
        group: its transactional id begins with it, as the workers' do.
        topic: a topic with LogAppendTime, partition 0.
        wall_ms: this machine's clock.
        timeout_s: for each step.

    Raises:
        AccessDeniedError: transactions or the topic are not allowed.
        BrokerUnreachableError, KafkaRequestError: it did not work.
    """
    acknowledged: list[tuple[Message, int]] = []
    producer = connection.client(
        Producer,
        transactional_id=f"{group}.doctor",
        acks="all",
        linger_ms=0,
        allow_auto_create_topics=False,
        message_timeout_ms=int(timeout_s * 1000),
    )
    doing = "write a record in a transaction"
    try:
        producer.init_transactions(timeout_s)
        producer.begin_transaction()
        producer.produce(topic, b"", partition=0)  # the first one waits for metadata and connections
        producer.flush(timeout_s)
        sent_ms = wall_ms()
        producer.produce(
            topic,
            b"",
            partition=0,
            on_delivery=lambda error, message: None if error else acknowledged.append((message, wall_ms())),
        )
        producer.flush(timeout_s)
        producer.abort_transaction(timeout_s)
    except KafkaException as error:
        raise named_error(error, connection, doing=doing, topic=topic, tried_s=timeout_s) from error
    if not acknowledged or acknowledged[0][0].timestamp()[0] != TIMESTAMP_LOG_APPEND_TIME:
        raise named_error(
            KafkaException("no acknowledgement with the broker's time"), connection, doing=doing, tried_s=timeout_s
        )
    message, acked_ms = acknowledged[0]
    middle_ms = (sent_ms + acked_ms) // 2
    return Measured(ahead_ms=message.timestamp()[1] - middle_ms, within_ms=max(1, (acked_ms - sent_ms + 1) // 2))
