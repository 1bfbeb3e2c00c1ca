"""A Kafka broker in memory: what of it the retry protocol can notice.

The test kit's broker, and on top of it: time, transactions that time out, compaction and deletion, a group with
generations and sessions, and a broker that takes back what it has acknowledged. Every method is one atomic request. Its
clock is the true time of the simulation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from typing_extensions import override

from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.record import Record
from retryapp.ports import Committed, Standing, TopicPartition
from retryapp.testing.broker import FencedError, Log, MemoryBroker, Producer, Txn
from simulation.lives import id_of

SESSION_S = 10.0
REBALANCE_S = 30.0
TRANSACTION_S = 15.0
FORGOTTEN_S = 680.0
"""An id that no transaction has used for so long is forgotten (`transactional.id.expiration.ms`)."""
_TICK_S = 1.0


@dataclass(slots=True)
class _Member:
    seen_s: float
    join: asyncio.Future[tuple[int, frozenset[int]]] | None = None


class Broker(MemoryBroker):
    """See the module's text."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partitions: int) -> None:
        super().__init__(lambda: int(loop.time() * 1000 + self.step_ms))
        self.step_ms = 0.0
        """By so much somebody has set its clock."""
        self._loop = loop
        self.partitions = self.complete = partitions
        """Of the main topics, and as many as all topics have."""
        self.generation = 0
        self.preparing = False
        self._members: dict[str, _Member] = {}
        self._prepared_s = 0.0
        self._waiters: list[asyncio.Future[None]] = []
        self.on_visible: Callable[[TopicPartition, list[Record]], None] = lambda _tp, _records: None
        """Called when records become visible to committed readers."""
        self.stopping = False
        """It ends in good order, as a single Kafka 4.3.1 may: it acknowledges one more commit without writing the
        markers, and that transaction is aborted when it is there again."""
        self.on_stopped: Callable[[], None] = lambda: None
        """Called when it has."""
        self._unwritten: set[Txn] = set()
        """Transactions that were acknowledged so."""
        self.taken_back: Counter[str] = Counter()
        """Records of acknowledged transactions that were aborted after all, by topic."""
        self.leaving: Collection[str] = ()
        """Topics on which the next commit gets no end (`_leave`)."""
        self.on_left: Callable[[str], None] = lambda _name: None
        """Called with its transactional id."""
        self._left: dict[str, Txn] = {}
        """What has none, by transactional id."""
        self.moved_in_vain: dict[TopicPartition, int] = {}
        """Offsets that such transactions were to move; the lane goes on from there, and says so with the next one."""
        self.on_moved: Callable[[Mapping[TopicPartition, Committed]], None] = lambda _offsets: None
        """Called before committed offsets of the group change."""
        self.heard_s: dict[str, float] = {}
        """When members gave their last sign of life."""
        self.made_again: set[str] = set()
        """Topics that have another id now."""
        self.life: Counter[str] = Counter()
        """How often main topics were made again."""
        self.forgets_s: float | None = None
        """How long tombstones stay (`delete.retention.ms`); None: longer than a history."""
        self._compacted_s: dict[tuple[TopicPartition, int], float] = {}
        """When a compaction has met a tombstone first."""
        self._used_s: dict[str, float] = {}
        """When transactional ids were last used."""
        self._refusal: tuple[Collection[str], int, float] = (), 0, 0.0
        self.tick()

    def true_ms(self) -> int:
        """Return the true time, whatever its clock was set to."""
        return int(self._loop.time() * 1000)

    def tick(self) -> None:
        """End what has timed out, and look again in a while."""
        now_s = self._loop.time()
        for producer in self._producers.values():
            if producer.txn is not None and self.now_ms() - producer.txn.began_ms >= TRANSACTION_S * 1000:
                self._abort(producer)
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

    @override
    def _show(self, tp: TopicPartition, records: list[Record]) -> None:
        self.on_visible(tp, records)
        self._wake()

    def visible(self, tp: TopicPartition) -> list[Record]:
        return self.read(tp, self.logs[tp].start)[0]

    def acknowledged_in_vain(self, tp: TopicPartition) -> list[Record]:
        """Return the records of transactions that it has acknowledged, and that never were or will not be."""
        return [entry.record for entry in self.logs[tp].entries if entry.txn in self._unwritten]

    def compact(self, tp: TopicPartition) -> int:
        """Leave the last record of each key; those of aborted transactions go. Return how many tombstones expired.

        One expires `forgets_s` after the first compaction that has left it; never if that is None.
        """
        log, (_, stable) = self.logs[tp], self.bounds([tp])[tp]
        old = [entry for entry in log.entries if entry.record.offset < stable and entry.visible]
        last = {entry.record.key: entry for entry in old}
        young = [entry for entry in log.entries if entry.record.offset >= stable]
        kept = [entry for entry in old if last[entry.record.key] is entry]
        expired = set[int]()
        for offset in (entry.record.offset for entry in kept if entry.record.value is None):
            first_s = self._compacted_s.setdefault((tp, offset), self._loop.time())
            if self.forgets_s is not None and self._loop.time() - first_s >= self.forgets_s:
                expired.add(offset)
        log.entries = [entry for entry in kept if entry.record.offset not in expired] + young
        return len(expired)

    def make_again(self, tp: TopicPartition) -> None:
        """Delete a partition with its topic, and make it again: with another id, and without records."""
        for producer in self._producers.values():
            if producer.txn is not None and tp in producer.txn.first:
                self._abort(producer)
        self.logs[tp] = Log()
        self.made_again.add(tp.topic)
        for offsets in (self.committed, self.moved_in_vain):  # Kafka deletes them with the topic
            offsets.pop(tp, None)
        self.notes.pop(tp, None)

    def id_of(self, topic: str) -> str:
        """Return the id of a main topic."""
        return id_of(self.life[topic])

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

    def refuse(self, topics: Collection[str], part: int, seconds: float) -> None:
        """Have topics refuse a third of their records for some time; their transactions do not happen."""
        self._refusal = topics, part, self._loop.time() + seconds

    @override
    def init_producer(self, name: str) -> int:
        self._used_s[name] = self._loop.time()
        return super().init_producer(name)

    def is_fenced(self, name: str, epoch: int) -> bool:
        """Tell whether a producer can do nothing any more."""
        return self._producers[name].epoch != epoch

    @override
    def _txn(self, name: str, epoch: int) -> Txn:
        if self._loop.time() - self._used_s.get(name, 0.0) > FORGOTTEN_S:
            raise FencedError(f"{name}: nobody knows this transactional id")
        self._used_s[name] = self._loop.time()
        return super()._txn(name, epoch)

    @override
    def produce(self, name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
        for out in records:
            topics, part, until_s = self._refusal
            if self._loop.time() < until_s and out.topic in topics and crc32(out.value or b"") % 3 == part:
                raise HandOffRefusedError(out.topic, "refused", len(out.value or b""))
        return super().produce(name, epoch, records)

    @override
    def end_transaction(self, name: str, epoch: int) -> None:
        producer = self._checked(name, epoch)
        if self.stopping and producer.txn is not None:
            self.stopping = False
            self._unwritten.add(producer.txn)
            self.on_stopped()
            return
        txn, left = producer.txn, self._left.get(name)
        self._end(producer, commit=True)
        if txn is not None and left is not None and not left.first.keys().isdisjoint(txn.first):
            self._finish(self._left.pop(name))
        if txn is not None and not self._left:
            for tp in [tp for tp in txn.first if tp.topic in self.leaving][:1]:
                self._leave(name, txn, tp)

    def _leave(self, name: str, txn: Txn, tp: TopicPartition) -> None:
        """Take a transaction's end from a partition: its records there are committed, but committed readers miss them.

        Its coordinator takes it for complete, so a fence does not end it; the next commit of its id there does. On
        Kafka an abort does, too, and takes it back: no client can prevent that, so here it decides nothing.
        """
        self.leaving, log = (), self.logs[tp]
        left = self._left[name] = Txn(txn.began_ms, first={tp: txn.first[tp]})
        log.entries = [entry._replace(txn=left) if entry.txn is txn else entry for entry in log.entries]
        log.open.append(left)
        log.end -= 1
        self.on_left(name)

    def finish_left(self) -> None:
        """Have all of them end, as the next hand-off of a lane does that goes on."""
        while self._left:
            self._finish(self._left.popitem()[1])

    def _finish(self, left: Txn) -> None:
        left.committed = True
        for tp in left.first:
            self.logs[tp].open.remove(left)
        self._wake()

    def restart(self) -> None:
        """Be there again after a stop: what was acknowledged meanwhile never was."""
        self.stopping = False
        for producer in self._producers.values():
            if producer.txn in self._unwritten:
                self._abort(producer)

    def _abort(self, producer: Producer) -> None:
        producer.epoch += 1
        self._end(producer, commit=False)

    @override
    def _end(self, producer: Producer, *, commit: bool) -> None:
        txn = producer.txn
        super()._end(producer, commit=commit)
        if txn is None:
            return
        if txn in self._unwritten and not commit:
            self.moved_in_vain |= {tp: moved.offset for tp, moved in txn.offsets.items()}
            for tp in txn.first:
                self.taken_back[tp.topic] += sum(entry.txn is txn for entry in self.logs[tp].entries)
        self._wake()

    # -- the group ----------------------------------------------------------------------------------------------

    @override
    def _move(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self.on_moved(offsets)
        super()._move(offsets)

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

    def grow(self) -> None:
        """Give the main topics one more partition; all members join again."""
        self.partitions += 1
        self._prepare()

    def leave(self, member: str) -> None:
        if self._members.pop(member, None) is not None:
            self._prepare()
            if self._members and all(each.join is not None for each in self._members.values()):
                self._complete()

    @override
    def heartbeat(self, member: str, generation: int) -> Standing:
        known = self._members.get(member)
        if known is None or generation != self.generation:
            return Standing.GONE
        known.seen_s = self.heard_s[member] = self._loop.time()
        return Standing.REBALANCING if self.preparing else Standing.MEMBER

    def commit_offsets(self, member: str, generation: int, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """Move group offsets, for a member of the present generation."""
        if member not in self._members or generation != self.generation:
            return Standing.GONE
        self._move(offsets)
        return Standing.MEMBER

    def forget_members(self) -> None:
        """Forget who is in the group, as a coordinator that has just taken it over may; joins have no answer."""
        for name, member in list(self._members.items()):
            joining = member.join
            self.leave(name)
            if joining is not None and not joining.done():
                joining.cancel()

    def forget_group(self) -> None:
        """Forget the group, as when nobody was in it for a week (`offsets.retention.minutes`)."""
        self.forget_members()
        self.committed.clear()
        self.notes.clear()
