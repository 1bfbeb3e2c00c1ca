"""A Kafka broker in memory: partitions with transactions, and a group's committed offsets. Every call is one request.

A transaction takes effect whole or not at all, and its marker takes an offset. Committed readers see nothing past the
first record of an open transaction. A new producer of a transactional id fences the one before it. The group has one
member and no rebalance: `tests/simulation/broker.py` adds those, time and faults.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.ports import Committed, Standing, TopicPartition


class FencedError(RuntimeError):
    """The producer has an old epoch."""


class OutOfRangeError(LookupError):
    """The partition does not have this offset."""


@dataclass(slots=True, eq=False)
class Txn:
    """A transaction."""

    began_ms: int
    committed: bool | None = None
    """None: it is open."""
    first: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)


class Entry(NamedTuple):
    """A record on a partition, and its transaction."""

    record: Record
    txn: Txn | None

    @property
    def visible(self) -> bool:
        return self.txn is None or self.txn.committed is True


@dataclass(slots=True)
class Log:
    """A partition."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    open: list[Txn] = field(default_factory=list)


@dataclass(slots=True)
class Producer:
    """The state of a transactional id."""

    epoch: int = 0
    txn: Txn | None = None


class MemoryBroker:
    """The broker; `now_ms` is its clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.logs: defaultdict[TopicPartition, Log] = defaultdict(Log)
        self.committed: dict[TopicPartition, int] = {}
        self.notes: dict[TopicPartition, str] = {}
        self._producers: defaultdict[str, Producer] = defaultdict(Producer)

    # -- partitions ---------------------------------------------------------------------------------------------

    def append(self, tp: TopicPartition, out: Outgoing, txn: Txn | None = None) -> int:
        """Append a record; return its offset."""
        log = self.logs[tp]
        record = Record(tp.topic, tp.partition, log.end, self.now_ms(), out.key, out.value, out.headers)
        log.entries.append(Entry(record, txn))
        log.end += 1
        if txn is None:
            self._show(tp, [record])
        elif tp not in txn.first:
            txn.first[tp] = record.offset
            log.open.append(txn)
        return record.offset

    def bounds(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and the last stable offsets."""
        return {tp: (self.logs[tp].start, self._stable(tp)) for tp in tps}

    def read(
        self, tp: TopicPartition, start: int, limit: int = 1 << 30, *, committed: bool = True
    ) -> tuple[list[Record], int]:
        """Return records from an offset on, and the position after them, or raise `OutOfRangeError`."""
        log = self.logs[tp]
        if not log.start <= start <= log.end:
            raise OutOfRangeError(f"{tp} has {log.start} to {log.end}, not {start}")
        end = self._stable(tp) if committed else log.end
        records: list[Record] = []
        for at in range(bisect_left(log.entries, start, key=_offset), bisect_left(log.entries, end, key=_offset)):
            entry = log.entries[at]
            if len(records) == limit:
                return records, entry.record.offset
            if not committed or entry.visible:
                records.append(entry.record)
        return records, max(start, end)

    def pick(self, tp: TopicPartition, offsets: Iterable[int]) -> dict[int, Record]:
        """Return the records at some offsets, uncommitted ones too, of those that are there."""
        entries = self.logs[tp].entries
        found = ((offset, bisect_left(entries, offset, key=_offset)) for offset in offsets)
        picked = {offset: entries[at].record for offset, at in found if at < len(entries)}
        return {offset: record for offset, record in picked.items() if record.offset == offset}

    def _stable(self, tp: TopicPartition) -> int:
        return min((txn.first[tp] for txn in self.logs[tp].open), default=self.logs[tp].end)

    def _show(self, tp: TopicPartition, records: list[Record]) -> None:
        """Called when records become visible."""

    # -- producers; each call raises FencedError once a later one has the transactional id -------------------------

    def init_producer(self, name: str) -> int:
        """Start a producer under a transactional id; return its epoch."""
        producer = self._producers[name]
        producer.epoch += 1
        self._end(producer, commit=False)
        return producer.epoch

    def produce(self, name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        """Append records in a producer's transaction; return their offsets."""
        txn = self._txn(name, epoch)
        return [self.append(TopicPartition(out.topic, out.partition), out, txn) for out in records]

    def add_offsets(self, name: str, epoch: int, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._txn(name, epoch).offsets.update(offsets)

    def end_transaction(self, name: str, epoch: int) -> None:
        self._end(self._checked(name, epoch), commit=True)

    def _checked(self, name: str, epoch: int) -> Producer:
        producer = self._producers[name]
        if producer.epoch != epoch:
            raise FencedError(f"{name}: another producer has fenced epoch {epoch} with {producer.epoch}")
        return producer

    def _txn(self, name: str, epoch: int) -> Txn:
        producer = self._checked(name, epoch)
        if producer.txn is None:
            producer.txn = Txn(self.now_ms())
        return producer.txn

    def _end(self, producer: Producer, *, commit: bool) -> None:
        txn, producer.txn = producer.txn, None
        if txn is None:
            return
        txn.committed = commit
        for tp in txn.first:
            self.logs[tp].open.remove(txn)
            self.logs[tp].end += 1  # the marker
        if commit:
            for tp, first in txn.first.items():
                entries = self.logs[tp].entries
                new = entries[bisect_left(entries, first, key=_offset) :]
                self._show(tp, [entry.record for entry in new if entry.txn is txn])
            self._move(txn.offsets)

    # -- the group ----------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, generation: int) -> Standing:
        return Standing.MEMBER

    def offsets_of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        return {tp: Committed(self.committed[tp], self.notes.get(tp, "")) for tp in tps if tp in self.committed}

    def _move(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self.committed.update({tp: moved.offset for tp, moved in offsets.items()})
        self.notes.update({tp: moved.note for tp, moved in offsets.items()})


def _offset(entry: Entry) -> int:
    return entry.record.offset
