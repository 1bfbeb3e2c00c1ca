"""What the topics say, read as a committed reader, without asking any worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import LifecycleEvent, Succeeded, decode_event
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, fold_changelog, read_topic
from retryapp.kafka.admin import COORDINATOR_COMING
from retryapp.ledger import Balance, take_ledger
from retryapp.stage import wait_for

E = TypeVar("E", bound=LifecycleEvent)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The topics of one handler."""

    connection: KafkaConnection
    topology: HandlerTopology

    def records(self, topic: str) -> list[Record]:
        return list(read_topic(self.connection, topic))

    def copies(self, *topics: str) -> list[tuple[Record, RetryMetadata]]:
        return [(record, _metadata(record)) for topic in topics for record in self.records(topic)]

    def retries(self) -> list[tuple[Record, RetryMetadata]]:
        return self.copies(*self.topology.retry_topics)

    def dead(self) -> list[tuple[Record, RetryMetadata]]:
        return self.copies(*self.topology.dlqs)

    def events(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        events = (decode_event(record.value or b"") for record in self.records(self.topology.events))
        return [event for event in events if isinstance(event, kind)]

    def succeeded(self) -> list[Succeeded]:
        return self.events(Succeeded)

    def balance(self) -> Balance:
        """Return the ledger's count, which adds up."""
        ledger = take_ledger(self.connection, self.topology)
        assert ledger.problems == (), ledger.problems
        return ledger.total

    def waiting(self) -> int:
        """Return how many rows the pending table has by its changelog."""
        return len(fold_changelog(self.connection, self.topology.pending_changelog, lambda _k, _v: None))

    def committed(self, topic: str) -> dict[int, int]:
        """Return the group's committed offset by partition; the first kept one where there is none."""
        kept = KafkaAdmin(self.connection).offsets(topic)
        found = wait_for(lambda: self._committed([TopicPartition(topic, p) for p in kept]), "the coordinator answers")
        return {c.partition: c.offset if c.offset >= 0 else kept[c.partition].start for c in found}

    def _committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Ask once; nothing while a broker that was restarted has no coordinator yet."""
        consumer = self.connection.client(Consumer, group_id=self.topology.group, enable_auto_commit=False)
        try:
            return consumer.committed(places, timeout=10)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].name() not in {*COORDINATOR_COMING, "_TIMED_OUT"}:
                raise
            return []
        finally:
            consumer.close()

    def note(self, topic: str, partition: int = 0) -> str:
        """Return the metadata of the group's committed offset."""
        return self._committed([TopicPartition(topic, partition)])[0].metadata or ""

    def unsettled(self) -> int:
        """Count the records (not offsets: these include markers) that the group's offsets have not passed."""
        main = self.topology.main
        return sum(1 for _ in read_topic(self.connection, main, start=self.committed(main)))

    def wait_settled(self, timeout_s: float = 60.0) -> None:
        """Wait until nothing waits and every offset is committed."""
        # a record may fail between two looks: twice nothing, with what waits in between
        wait_for(
            lambda: (self.unsettled(), self.waiting(), self.unsettled()) == (0, 0, 0),
            f"{self.topology.main} is settled",
            timeout_s=timeout_s,
            every_s=0.2,
        )

    def handoffs(self) -> Counter[tuple[str, str, int]]:
        """Count the copies that a committed reader sees: (station, failure id, delivery) → how often."""
        counts: Counter[tuple[str, str, int]] = Counter()
        for station, copies in (("retry", self.retries()), ("dlq", self.dead())):
            counts.update((station, metadata.failure_id, metadata.delivery) for _, metadata in copies)
        counts.update(("succeeded", event.failure_id, event.delivery) for event in self.succeeded())
        return counts

    def repeated_handoffs(self) -> dict[tuple[str, str, int], int]:
        return {copy: n for copy, n in self.handoffs().items() if n > 1}

    def due_times(self) -> dict[tuple[str, int], int]:
        """Return when each later attempt was due: (failure id, attempt) → epoch milliseconds, by the retry topics."""
        return {(m.failure_id, m.attempt + 1): m.due_at_ms or 0 for _, m in self.retries()}


def _metadata(record: Record) -> RetryMetadata:
    metadata = decode_metadata(record.headers)
    assert metadata is not None, f"{record.coordinates} has no metadata"
    return metadata
