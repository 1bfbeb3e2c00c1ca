"""Kafka's clients, as the engine uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from retryapp.core.publication import TopicLook
from retryapp.core.record import Record
from retryapp.ports.flow import TopicPartition


class Standing(StrEnum):
    """The coordinator's answer to a heartbeat with the generation and member id of an assignment."""

    MEMBER = "member"
    REBALANCING = "rebalancing"
    """Still a member, but the assignment is ending."""
    GONE = "gone"


class Committed(NamedTuple):
    """A committed offset of the group."""

    offset: int
    note: str


class Acks(Protocol):
    """Records on their way to the broker."""

    async def offsets(self) -> Sequence[int]:
        """Wait until all are acknowledged and return their offsets, in order; raise what a broker refused one with."""

    def on_appended(self, tell: Callable[[int], None]) -> bool:
        """Have `tell` called with the broker's time when it appended the first of them; False when there are none."""


Sink = Callable[[list[Any], int], bool | None]
"""Takes `(records, next_offset)`; all records of the partition before `next_offset` have been given. True: enough."""


class TopicReader(Protocol):
    """Reads partitions up to their ends, committed records only, for all lanes of a worker."""

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and the end offset (after the last committed record) of partitions."""

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """Read from `start`, or the first offset, to the present end; return it, also when the sink had enough."""

    async def written_end(self, tp: TopicPartition) -> int:
        """Return the offset after the last record of a partition, committed or not."""

    async def records(
        self, tp: TopicPartition, offsets: Sequence[int], *, most_bytes: int | None = None
    ) -> Mapping[int, Record]:
        """Return what the partition has at some offsets, which rise: records, or damage at those that it covers.

        Uncommitted records, too: who asks knows that they were committed. With `most_bytes`, reading ends once they are
        that large; the last request may have brought some more.
        """


class Stuck(NamedTuple):
    """What a reader stops at: reading on could skip sound records."""

    topic: str
    partition: int
    offset: int
    problem: str
    """What is wrong, without payload."""


class Flow(Protocol):
    """Flow control of the consumer that fills the intake."""

    def on_buffer_full(self, tp: Any) -> None:
        """Stop fetching a partition."""

    def on_buffer_drop(self, tp: Any) -> None:
        """Fetch a partition again."""


class Way(Protocol):
    """Hands batches of one topic to their engine."""

    def put_now(self, batch: Any) -> bool:
        """Hand a batch on; False while it cannot be accepted."""


class DestinationReader(Protocol):
    """Reads the state of topics that handlers publish to."""

    async def look(self, topic: str) -> TopicLook | None:
        """Return a topic's state, or None if it does not exist. Never creates one; raises if the client fails."""
