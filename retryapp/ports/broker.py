"""What the engine needs of Kafka's clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from retryapp.core.publication import TopicLook
from retryapp.ports.flow import TopicPartition


class Standing(StrEnum):
    """What the group's coordinator answers a heartbeat with the generation and member id of an assignment."""

    MEMBER = "member"
    REBALANCING = "rebalancing"
    """Still a member, but the assignment is ending."""
    GONE = "gone"
    """No member of that generation any more."""


class Committed(NamedTuple):
    """A committed offset of the group."""

    offset: int
    note: str


class Acks(Protocol):
    """Records on their way to the broker."""

    async def offsets(self) -> Sequence[int]:
        """Wait until all are acknowledged and return their offsets, in order; raise what a broker refused one with."""
        ...

    def on_appended(self, tell: Callable[[int], None]) -> bool:
        """Have `tell` called with the broker's time when it appended the first of them; False when there are none."""
        ...


Sink = Callable[[list[Any], int], bool | None]
"""Takes `(records, next_offset)`; all records of the partition before `next_offset` have been given. True: enough."""


class TopicReader(Protocol):
    """Reads partitions up to their ends, committed records only, for all lanes of a worker."""

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and the end offset (of committed records) of partitions."""
        ...

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """Read from `start`, or the first offset, to the present end; return it, also when the sink had enough.

        What the sink has taken stays taken, also when the reading ends with an error. `background`: without haste.
        """
        ...


class Passage(Protocol):
    """What stands for offsets that cannot be passed: the reader of a partition stops at it."""

    @property
    def offset(self) -> int:
        """The first of them."""
        ...

    @property
    def problem(self) -> str:
        """What is wrong, without payload."""
        ...


class Flow(Protocol):
    """What the intake asks of the consumer that fills it."""

    def on_buffer_full(self, tp: Any) -> None:
        """Stop fetching a partition."""
        ...

    def on_buffer_drop(self, tp: Any) -> None:
        """Fetch a partition again."""
        ...


class Way(Protocol):
    """The way of batches of one topic to their engine."""

    def put_now(self, batch: Any) -> bool:
        """Send a batch on; False while nobody would take it."""
        ...


class DestinationReader(Protocol):
    """Looks at topics that are not ours and that handlers publish to."""

    async def look(self, topic: str) -> TopicLook | None:
        """Return how a topic is now; None: there is none. Never creates one; raises when the client cannot tell."""
        ...
