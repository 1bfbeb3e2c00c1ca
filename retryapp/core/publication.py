"""What a handler publishes, and what is known of the topics that it publishes to.

A destination is no topic of ours: it may be deleted, shrink its limits or be closed to us at any time, and a record
that its broker refuses would fail the transaction of its lane, and every one after it, for ever. So what is known of a
destination is checked before a record joins a turn, and what a broker refuses is remembered (``refuse``): the next
publish to that topic fails in the handler, which is a failure like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retryapp.core.hops import Outgoing, record_size
from retryapp.core.values import value_type

DEFAULT_MAX_BYTES: Final = 1_048_588
"""Kafka's default of ``message.max.bytes``: taken for the limit of a topic whose settings we may not read."""
FRESH_S: Final = 300.0
"""How long what was seen of a destination is believed; aiokafka's ``metadata_max_age_ms``."""
PROBLEM_S: Final = 5.0
"""The same for a destination that was not usable."""
REFUSED_S: Final = 30.0
"""How long what a broker has refused is not tried again."""


@dataclass(frozen=True, slots=True)
class TopicLook:
    """A topic as it was just seen."""

    partitions: int
    max_bytes: int | None = None
    """Its ``max.message.bytes``; None: we may not read its settings."""
    compacted: bool = False
    problem: str | None = None
    """Why nothing can be published to it all the same."""


@dataclass(slots=True, eq=False)
class Destination:
    """A topic that handlers publish to, as it was last seen; one object for each, as long as its worker lives."""

    topic: str
    partitions: int = 0
    """How many it has; 0: not seen yet."""
    max_bytes: int = DEFAULT_MAX_BYTES
    batch_bytes: int = DEFAULT_MAX_BYTES
    """Largest batch that it takes; 0: each record alone."""
    compacted: bool = False
    problem: str | None = None
    until_s: float = float("-inf")
    """Until when all this is believed, in monotonic seconds."""
    doubted: bool = False
    """A transaction with records for it has failed: it is looked at again before it is used."""
    refusal: str | None = None
    """What its broker refused, until the next look at the clock takes note of it."""

    def see(self, seen: TopicLook | None, now_s: float) -> None:
        """Take note of how it was just seen; None: there is no such topic."""
        self.doubted = False
        if seen is None:
            self.problem, self.until_s = "there is no such topic; create it, nothing here does", now_s + PROBLEM_S
            return
        self.partitions, self.compacted, self.problem = seen.partitions, seen.compacted, seen.problem
        if seen.max_bytes is not None:
            self.max_bytes = self.batch_bytes = seen.max_bytes
        self.until_s = now_s + (FRESH_S if seen.problem is None else PROBLEM_S)

    def deny(self, problem: str, now_s: float) -> None:
        """Remember that it could not be looked at."""
        self.problem, self.until_s = problem, now_s

    def prolong(self, now_s: float) -> None:
        """Believe the last look a little longer: it cannot be looked at now."""
        self.problem, self.until_s = None, now_s + PROBLEM_S

    def fresh(self, now_s: float) -> bool:
        """Tell whether what is known of it may be believed now."""
        if self.refusal is not None:
            self.problem, self.refusal = self.refusal, None
            self.until_s, self.doubted = now_s + REFUSED_S, False
        return now_s < self.until_s and not self.doubted

    def doubt(self) -> None:
        """Have it looked at before it is used again, unless we know already what its broker refused."""
        if self.problem is None:
            self.doubted = True

    def refuse(self, problem: str) -> None:
        """Take note that its broker refuses records for good."""
        self.refusal = problem

    def refuse_size(self, sizes: list[int]) -> None:
        """Take note that its broker refuses a batch of records of these sizes (``record_size``)."""
        if len(sizes) > 1:
            self.batch_bytes = 0
        else:
            self.max_bytes = min(self.max_bytes, sizes[0] - 1)

    def objection(self, key: bytes | None, partition: int | None, size: int) -> str | None:
        """Return why it does not take a record, or None."""
        if partition is not None and not 0 <= partition < self.partitions:
            return f"partition {partition} of {self.partitions} (they begin with 0)"
        if size > self.max_bytes:
            return f"the record takes {size} bytes, the topic at most {self.max_bytes} (max.message.bytes)"
        if key is None and self.compacted:
            return "the topic is compacted, so its records need a key"
        return None


@value_type
class Publication(Outgoing):
    """A record for a topic that is not ours."""

    destination: Destination

    @property
    def size(self) -> int:
        """An upper bound for its bytes, alone in a batch."""
        return record_size(self.key, self.value, self.headers)
