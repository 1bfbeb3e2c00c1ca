"""This machine's clock, compared with the brokers'.

Kafka has no request for the time. So a record is written now: its append time (LogAppendTime) is between sending and
acknowledgement. Its transaction is aborted, so no committed reader sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from retryapp.core.durations import duration_text
from retryapp.core.errors import EnvironmentFault
from retryapp.doctor.findings import Finding, ok, warning
from retryapp.kafka import KafkaConnection
from retryapp.kafka.connection import named_error
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS
from retryapp.kafka.writer import FENCED

MOST_SKEW_MS: Final = 1_000
"""With a larger difference workers deliver no retries until they have measured it again."""
_ABORT_S: Final = 5.0
EXPECTED: Final = f"within {duration_text(MOST_SKEW_MS)}"
REMEDY: Final = "Run NTP (chrony, systemd-timesyncd) on brokers and workers, and check with 'chronyc tracking'"
WHY: Final = (
    "workers correct for it with the broker's acknowledgements, and deliver no retries while the two suddenly differ "
    "by more; logs and other programs on the machine with the wrong clock do not"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one record written for its append time."""

    ahead_ms: int
    """The broker's clock minus ours."""
    within_ms: int
    """How wrong that can be: half of the round trip."""


def judge_measured(measured: Measured) -> Finding:
    """Judge a measured difference; only what exceeds the uncertainty counts."""
    word = "ahead" if measured.ahead_ms >= 0 else "slow"
    ahead, within = duration_text(abs(measured.ahead_ms)), duration_text(measured.within_ms)
    seen = f"the broker is {ahead} {word}, give or take {within}"
    if abs(measured.ahead_ms) - measured.within_ms <= MOST_SKEW_MS:
        return ok("clock", seen, EXPECTED)
    return warning("clock", seen, expected=EXPECTED, why=WHY, remedy=REMEDY)


class FencedError(EnvironmentFault):
    """Another doctor of this group has written at the same time. Operator action: run this one again."""


@contextmanager
def _aborted(producer: Producer, timeout_s: float) -> Iterator[None]:
    """Begin a transaction and abort it, whatever ends it: committed readers wait for one that is left open."""
    producer.init_transactions(timeout_s)
    try:
        producer.begin_transaction()
        yield
    except BaseException:  # an interrupt, too
        with suppress(KafkaException):  # the error that has ended it says more
            producer.abort_transaction(_ABORT_S)
        raise
    producer.abort_transaction(timeout_s)


def measure(
    connection: KafkaConnection, group: str, topic: str, *, wall_ms: Callable[[], int], timeout_s: float
) -> Measured:
    """Write one record to a topic with LogAppendTime in a transaction, and abort it; each step may take `timeout_s`.

    The transactional id begins with the group, as the workers' do, so the same rights are tried.

    Raises:
        FencedError: another one of this group writes at the same time.
        AccessDeniedError: transactions or the topic are not allowed.
        BrokerUnreachableError, KafkaRequestError: it did not work.
    """
    acknowledged: list[tuple[Message, int]] = []
    refused: list[KafkaError] = []
    most_ms = min(int(timeout_s * 1000), TRANSACTION_TIMEOUT_MS)  # the client refuses to wait longer than that
    producer = connection.client(
        Producer,
        transactional_id=f"{group}.doctor",
        acks="all",
        linger_ms=0,
        allow_auto_create_topics=False,
        message_timeout_ms=most_ms,
        socket_timeout_ms=max(10, most_ms),
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    doing = f"write to topic {topic} in a transaction"
    try:
        with _aborted(producer, timeout_s):
            # the first one waits for metadata and connections
            producer.produce(
                topic, b"", partition=0, on_delivery=lambda error, _: refused.append(error) if error else None
            )
            producer.flush(timeout_s)
            if refused:
                producer.commit_transaction(timeout_s)  # it raises why; another record, that the transaction has failed
            sent_ms = wall_ms()
            producer.produce(
                topic,
                b"",
                partition=0,
                on_delivery=lambda error, message: None if error else acknowledged.append((message, wall_ms())),
            )
            producer.flush(timeout_s)
    except KafkaException as error:
        if error.args[0].name() in FENCED:
            raise FencedError(f"another doctor has ended our transaction: {error.args[0].str()}") from error
        raise named_error(error, connection, doing=doing, topic=topic, tried_s=timeout_s, right="Write") from error
    if not acknowledged or acknowledged[0][0].timestamp()[0] != TIMESTAMP_LOG_APPEND_TIME:
        silence = KafkaException("no acknowledgement with the broker's time")
        raise named_error(silence, connection, doing=doing, tried_s=timeout_s)
    message, acked_ms = acknowledged[0]
    middle_ms = (sent_ms + acked_ms) // 2
    return Measured(ahead_ms=message.timestamp()[1] - middle_ms, within_ms=max(1, (acked_ms - sent_ms + 1) // 2))
