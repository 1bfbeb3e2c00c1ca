"""A Kafka broker in memory: what of it the retry protocol can notice.

Partitions with transactions, markers that take offsets, a last stable offset, compaction and deletion; transactional
ids with epochs, fencing and a time-out; one consumer group with generations, sessions and committed offsets. Every
method is one atomic request. Its clock is the true time of the simulation.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.ports import Committed, Standing, TopicPartition

SESSION_S = 10.0
REBALANCE_S = 30.0
TRANSACTION_S = 15.0
_TICK_S = 1.0


class FencedError(Exception):
    """A producer with an old epoch, or one whose transaction the broker has aborted."""


class OutOfRangeError(Exception):
    """The partition has not what was asked for."""


class Txn:
    """A transaction: open until it is committed or aborted."""

    __slots__ = ("acknowledged", "began_s", "first", "offsets", "outcome")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.acknowledged = False
        """Its producer was told that it is committed, and nothing was done: see `Broker.stopping`."""
        self.outcome: bool | None = None
        """True: committed; False: aborted."""
        self.first: dict[TopicPartition, int] = {}
        """First offset on each partition."""
        self.offsets: dict[TopicPartition, Committed] = {}
        """Group offsets that move with it."""


class Entry(NamedTuple):
    """A record on a partition, and the transaction that it came in."""

    record: Record
    txn: Txn | None


@dataclass(slots=True)
class Log:
    """A partition."""

    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    open: dict[int, Txn] = field(default_factory=dict)
    """Open transactions by identity, in the order in which they came."""


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    txn: Txn | None = None


@dataclass(slots=True)
class _Member:
    seen_s: float
    join: asyncio.Future[tuple[int, frozenset[int]]] | None = None


class Broker:
    """See the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: Iterable[str], partitions: int) -> None:
        self._loop = loop
        self.partitions = partitions
        self.logs: dict[TopicPartition, Log] = {}
        for topic in topics:
            for number in range(partitions):
                tp = TopicPartition(topic, number)
                self.logs[tp] = Log()
        self.committed: dict[TopicPartition, int] = {}
        self.notes: dict[TopicPartition, str] = {}
        """What stands beside the committed offsets."""
        self.generation = 0
        self.preparing = False
        self._members: dict[str, _Member] = {}
        self._prepared_s = 0.0
        self._producers: dict[str, _Producer] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self.on_visible: Callable[[TopicPartition, list[Record]], None] = lambda _tp, _records: None
        """Called when records become visible to committed readers."""
        self.stopping = False
        """It ends in good order, as a single Kafka 4.3.1 may: it acknowledges one more commit without writing the
        markers, and that transaction is aborted when it is there again."""
        self.on_stopped: Callable[[], None] = lambda: None
        """Called when it has."""
        self.taken_back: Counter[str] = Counter()
        """Records of acknowledged transactions that were aborted after all, by topic."""
        self.moved_in_vain: dict[TopicPartition, int] = {}
        """Offsets that such transactions were to move; the lane goes on behind them, and says so with the next one."""
        self.on_moved: Callable[[Mapping[TopicPartition, int]], None] = lambda _offsets: None
        """Called before committed offsets of the group change."""
        self.tick()

    def now_ms(self) -> int:
        """Return the broker's time."""
        return int(self._loop.time() * 1000)

    def tick(self) -> None:
        """End what has timed out, and look again in a while."""
        now_s = self._loop.time()
        for producer in self._producers.values():
            if producer.txn is not None and now_s - producer.txn.began_s >= TRANSACTION_S:
                producer.epoch += 1
                self._end(producer, commit=False)
        gone = [name for name, member in self._members.items() if now_s - member.seen_s >= SESSION_S]
        gone = [name for name in gone if self._members[name].join is None]
        for name in gone:
            self.leave(name)
        if self.preparing and now_s - self._prepared_s >= REBALANCE_S:
            for name in [name for name, member in self._members.items() if member.join is None]:
                del self._members[name]
            self._complete()
        self._loop.call_later(_TICK_S, self.tick)

    # -- partitions ---------------------------------------------------------------------------------------------

    def append(self, tp: TopicPartition, out: Outgoing, txn: Txn | None = None) -> int:
        """Put a record at the end of a partition; return its offset."""
        log = self.logs[tp]
        record = Record(tp.topic, tp.partition, log.end, self.now_ms(), out.key, out.value, out.headers)
        log.entries.append(Entry(record, txn))
        log.end += 1
        if txn is None:
            self.on_visible(tp, [record])
            self._wake()
        elif tp not in txn.first:
            txn.first[tp] = record.offset
            log.open[id(txn)] = txn
        return record.offset

    def stable(self, tp: TopicPartition) -> int:
        """Return the last stable offset."""
        log = self.logs[tp]
        return min((txn.first[tp] for txn in log.open.values()), default=log.end)

    def bounds(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the last stable one of partitions."""
        return {tp: (self.logs[tp].start, self.stable(tp)) for tp in tps}

    def read(self, tp: TopicPartition, start: int, limit: int, *, committed: bool = True) -> tuple[list[Record], int]:
        """Return records from an offset on, and the position behind what was looked at.

        Raises:
            OutOfRangeError: the partition does not have this offset.
        """
        log = self.logs[tp]
        if not log.start <= start <= log.end:
            raise OutOfRangeError(f"{tp} has {log.start} to {log.end}, not {start}")
        upto = self.stable(tp) if committed else log.end
        found: list[Record] = []
        for entry in log.entries[bisect_left(log.entries, start, key=lambda entry: entry.record.offset) :]:
            if entry.record.offset >= upto:
                break
            if len(found) == limit:
                return found, entry.record.offset
            if not committed or entry.txn is None or entry.txn.outcome:
                found.append(entry.record)
        return found, max(start, upto)

    def visible(self, tp: TopicPartition) -> list[Record]:
        """Return all records of a partition that a committed reader sees."""
        return self.read(tp, self.logs[tp].start, 1 << 30)[0]

    def compact(self, tp: TopicPartition) -> None:
        """Leave the last record of each key; those of aborted transactions go, tombstones stay (they are young)."""
        log, upto = self.logs[tp], self.stable(tp)
        last = {e.record.key: e.record.offset for e in log.entries if e.record.offset < upto and _sound(e)}
        log.entries = [
            e for e in log.entries if e.record.offset >= upto or (_sound(e) and last[e.record.key] == e.record.offset)
        ]

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete the beginning of a partition, as retention does."""
        log = self.logs[tp]
        log.start = max(log.start, offset)
        log.entries = [entry for entry in log.entries if entry.record.offset >= log.start]

    def changed(self) -> asyncio.Future[None]:
        """Return what is done once a partition has something new to read."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- producers ----------------------------------------------------------------------------------------------

    def init_producer(self, name: str) -> int:
        """Start a producer under a transactional id: abort what the former one had open, and fence it."""
        producer = self._producers.setdefault(name, _Producer())
        producer.epoch += 1
        self._end(producer, commit=False)
        return producer.epoch

    def produce(self, name: str, epoch: int, records: Iterable[Outgoing]) -> list[int]:
        """Append records in the transaction of a producer, beginning it when there is none.

        Raises:
            FencedError: the producer is not the last one of its id.
        """
        txn = self._txn(name, epoch)
        return [self.append(TopicPartition(out.topic, out.partition), out, txn) for out in records]

    def add_offsets(self, name: str, epoch: int, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Have group offsets move with a transaction.

        Raises:
            FencedError: see `produce`.
        """
        self._txn(name, epoch).offsets.update(offsets)

    def end_transaction(self, name: str, epoch: int) -> None:
        """Commit.

        Raises:
            FencedError: see `produce`.
        """
        producer = self._check(name, epoch)
        if self.stopping and producer.txn is not None:
            self.stopping, producer.txn.acknowledged = False, True
            self.on_stopped()
            return
        self._end(producer, commit=True)

    def restart(self) -> None:
        """Be there again after a stop: what was acknowledged meanwhile never was."""
        self.stopping = False
        for producer in self._producers.values():
            if producer.txn is not None and producer.txn.acknowledged:
                producer.epoch += 1
                self._end(producer, commit=False)

    def _check(self, name: str, epoch: int) -> _Producer:
        producer = self._producers[name]
        if producer.epoch != epoch:
            raise FencedError(f"{name}: epoch {epoch} was fenced by {producer.epoch}")
        return producer

    def _txn(self, name: str, epoch: int) -> Txn:
        producer = self._check(name, epoch)
        if producer.txn is None:
            producer.txn = Txn(self._loop.time())
        return producer.txn

    def _end(self, producer: _Producer, *, commit: bool) -> None:
        txn, producer.txn = producer.txn, None
        if txn is None:
            return
        txn.outcome = commit
        if txn.acknowledged and not commit:
            self.moved_in_vain |= {tp: told.offset for tp, told in txn.offsets.items()}
        shown: list[tuple[TopicPartition, list[Record]]] = []
        for tp, first in txn.first.items():
            log = self.logs[tp]
            del log.open[id(txn)]
            log.end += 1  # the marker
            if txn.acknowledged and not commit:
                self.taken_back[tp.topic] += sum(e.txn is txn for e in log.entries)
            if commit:
                shown.append((tp, [e.record for e in log.entries if e.txn is txn and e.record.offset >= first]))
        for tp, records in shown:
            self.on_visible(tp, records)
        if commit and txn.offsets:
            self._move(txn.offsets)
        self._wake()

    # -- the group ----------------------------------------------------------------------------------------------

    def _move(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        told = {tp: each.offset for tp, each in offsets.items()}
        self.on_moved(told)
        self.committed.update(told)
        self.notes.update({tp: each.note for tp, each in offsets.items()})

    def join(self, member: str) -> asyncio.Future[tuple[int, frozenset[int]]]:
        """Join the group; what is returned is done when the rebalance is, with the generation and partition numbers."""
        joining: asyncio.Future[tuple[int, frozenset[int]]] = self._loop.create_future()
        known = self._members.setdefault(member, _Member(0.0))
        known.seen_s, known.join = self._loop.time(), joining
        self._prepare()
        if all(each.join is not None for each in self._members.values()):
            # the coordinator waits a little for others (group.initial.rebalance.delay.ms)
            self._loop.call_later(0.1, self._complete_if_all, self.generation)
        return joining

    def _complete_if_all(self, generation: int) -> None:
        if self.preparing and self.generation == generation and all(m.join is not None for m in self._members.values()):
            self._complete()

    def _prepare(self) -> None:
        if not self.preparing:
            self.preparing, self._prepared_s = True, self._loop.time()

    def _complete(self) -> None:
        self.preparing = False
        self.generation += 1
        names = list(self._members)
        for at, member in enumerate(self._members.values()):
            joining, member.join, member.seen_s = member.join, None, self._loop.time()
            numbers = frozenset(range(at, self.partitions, len(names)))
            if joining is not None and not joining.done():
                joining.set_result((self.generation, numbers))

    def leave(self, member: str) -> None:
        """Take a member out of the group."""
        if self._members.pop(member, None) is not None:
            self._prepare()
            if self._members and all(each.join is not None for each in self._members.values()):
                self._complete()

    def heartbeat(self, member: str, generation: int) -> Standing:
        """Take a sign of life."""
        known = self._members.get(member)
        if known is None or generation != self.generation:
            return Standing.GONE
        known.seen_s = self._loop.time()
        return Standing.REBALANCING if self.preparing else Standing.MEMBER

    def commit_offsets(self, member: str, generation: int, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """Move group offsets, for a member of the present generation."""
        if member not in self._members or generation != self.generation:
            return Standing.GONE
        self._move(offsets)
        return Standing.MEMBER

    def forget_group(self) -> None:
        """Forget the group, as when nobody was in it for a week (`offsets.retention.minutes`)."""
        for name in list(self._members):
            self.leave(name)
        self.committed.clear()
        self.notes.clear()

    def offsets_of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the committed offsets that there are."""
        return {tp: Committed(self.committed[tp], self.notes[tp]) for tp in tps if tp in self.committed}


def _sound(entry: Entry) -> bool:
    return entry.txn is None or bool(entry.txn.outcome)
