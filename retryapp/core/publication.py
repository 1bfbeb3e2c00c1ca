"""The records that a handler publishes, and the known state of the topics that it publishes to.

A destination is not our topic: at any time it may be deleted, shrink its limits, deny access or lose its brokers, and a
record that it does not take would fail the transaction of its lane and all later ones. So the known state is checked
before a record joins a turn, and a refusal is remembered (``refuse``): the next publish there fails in the handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from retryapp.core.hops import Outgoing, record_size
from retryapp.core.values import value_type

DEFAULT_MAX_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``: assumed for a topic that is not there yet, or that we may not read."""
FRESH_S: Final = 300.0
"""How long the state of a destination is trusted; aiokafka's ``metadata_max_age_ms``."""
PROBLEM_S: Final = 5.0
"""The same for an unusable destination."""
REFUSED_S: Final = 30.0
"""How long a destination is not tried again after its broker refused a record."""
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class TopicLook:
    """The state of a topic."""

    partitions: int
    max_bytes: int | None = None
    """Its ``max.message.bytes``; None: we may not read its settings."""
    compacted: bool = False
    problem: str | None = None
    """Why it exists and cannot be published to."""
    closed: Mapping[int, str] = field(default_factory=dict)
    """Partitions that take no records now, and why."""
    topic_id: str = ""
    """Start of its id (`core.record.short_topic_id`); empty: we may not describe it."""


@dataclass(slots=True, eq=False)
class Destination:
    """A topic that handlers publish to; one object for each in a worker."""

    topic: str
    partitions: int = 0
    """0: unknown."""
    max_bytes: int = DEFAULT_MAX_BYTES
    batch_bytes: int = DEFAULT_MAX_BYTES
    """Largest batch that it takes; 0: each record alone."""
    compacted: bool = False
    problem: str | None = None
    closed: Mapping[int, str] = field(default_factory=dict)
    """Partitions that take no records now, and why: as a look has it, and as `refused`."""
    refused: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Those whose broker has refused records: why, and until when that counts, whatever a look says."""
    until_s: float = float("-inf")
    """Expiry of all this, in monotonic seconds."""
    doubted: bool = False
    """A transaction with records for it has failed: it is checked again before it is used."""
    refusals: dict[int | None, str] = field(default_factory=dict)
    """Why its brokers refused records, by partition (None: all of them), until `fresh` applies it."""

    def see(self, look: TopicLook | None, now_s: float) -> None:
        """Store its state; None: there is no such topic."""
        self.doubted = False
        if look is None:
            self.problem, self.until_s = "there is no such topic; create it first", now_s + PROBLEM_S
            return
        self.partitions, self.compacted = look.partitions, look.compacted
        self.refused = {number: each for number, each in self.refused.items() if now_s < each[1]}
        self.problem, self.closed = look.problem, {**look.closed, **{n: why for n, (why, _) in self.refused.items()}}
        if look.max_bytes is not None:
            self.max_bytes = self.batch_bytes = look.max_bytes
        until_s = now_s + (FRESH_S if look.problem is None and not look.closed else PROBLEM_S)
        self.until_s = min([until_s, *(refused_s for _, refused_s in self.refused.values())])

    def deny(self, problem: str, now_s: float) -> None:
        """Store why its state could not be read."""
        self.problem, self.until_s = problem, now_s

    def prolong(self, now_s: float) -> None:
        """Trust the last state a little longer: it cannot be read now."""
        self.problem, self.until_s = None, now_s + PROBLEM_S

    def fresh(self, now_s: float) -> bool:
        """Apply what its brokers have refused, then tell whether its state is known."""
        refusals, self.refusals, expiry_s = self.refusals, {}, now_s + REFUSED_S
        for number, why in refusals.items():
            if number is None:
                self.problem, self.until_s, self.doubted = why, expiry_s, False
            else:
                self.closed, self.refused[number] = {**self.closed, number: why}, (why, expiry_s)
                self.until_s = min(self.until_s, expiry_s)
        return now_s < self.until_s and not self.doubted

    def doubt(self, partition: int) -> None:
        """Have it checked before it is used again, unless it is known why this partition takes nothing."""
        if self.problem is None and partition not in self.closed and not self.refuses(partition):
            self.doubted = True

    def refuse(self, problem: str, partition: int | None = None) -> None:
        """Store that its brokers refuse records for good, or those for one partition for now."""
        self.refusals[partition] = problem

    def refuses(self, partition: int) -> bool:
        """Tell whether its brokers have just refused what was for a partition."""
        return None in self.refusals or partition in self.refusals

    def refuse_size(self, sizes: list[int]) -> None:
        """Store that its broker refuses a batch of records of these sizes (``record_size``)."""
        if len(sizes) > 1:
            self.batch_bytes = 0
        else:
            self.max_bytes = min(self.max_bytes, sizes[0] - 1)

    def objection(self, key: bytes | None, partition: int | None, size: int) -> str | None:
        """Return why it cannot take a record, or None."""
        if partition is not None and not 0 <= partition < self.partitions:
            return f"partition {partition} of {self.partitions} (they begin with 0)"
        if size > self.max_bytes:
            return f"the record takes {size} bytes, the topic at most {self.max_bytes} (max.message.bytes)"
        if key is None and self.compacted:
            return "the topic is compacted, so its records need a key"
        return None

    def partition_for(self, key: bytes | None, drawn: float) -> int:
        """Return the partition of a record: that of its key, or one that takes records, drawn from 0 to 1."""
        if key is not None:
            return partition_of(key, self.partitions)
        numbers = range(self.partitions)
        takes = [number for number in numbers if number not in self.closed] if self.closed else numbers
        takes = takes or numbers
        return takes[int(drawn * len(takes))]


@value_type
class Publication(Outgoing):
    """A record for a destination."""

    destination: Destination

    @property
    def size(self) -> int:
        """An upper bound for its bytes, alone in a batch."""
        return record_size(self.key, self.value, self.headers)


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of bytes, with the seed that Kafka's clients use (Java: ``Utils.murmur2``)."""
    length = len(data)
    whole = length & ~3
    digest = _SEED ^ length
    for at in range(0, whole, 4):
        k = (int.from_bytes(data[at : at + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        digest = ((digest * _M) & _MASK) ^ k
    if whole < length:
        digest = ((digest ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    digest = ((digest ^ (digest >> 13)) * _M) & _MASK
    return digest ^ (digest >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key by Kafka's default partitioner (``BuiltInPartitioner``)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
