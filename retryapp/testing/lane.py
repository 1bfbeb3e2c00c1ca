"""Kafka as one lane sees it, in memory: transactions that take effect whole or not at all, and can be made to fail.

Like the broker, it puts a marker behind every transaction, so offsets have gaps, and refuses the transactions of a
producer that another one has fenced. Like that of the real transport, its table is a copy of a changelog: it stays on
"disk" when the lane closes or its worker dies, an opening reads only what it lacks, and it is dropped when a write to
it fails.

What a worker that was killed has sent and not heard of is still on its way: see `MemoryLaneTransport.pause`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.core.tally import Tally, parse_tally
from retryapp.engine.site import LaneSite
from retryapp.ports import LaneBatch, LaneReceipt, Removal, Row, TopicPartition
from retryapp.testing.clock import VirtualClock
from retryapp.testing.tables import MemoryPendingTable, MemorySeenTable


class Step(StrEnum):
    """What a lane asks of its transport."""

    PROVE = "prove"
    FENCE = "fence"
    COMMITTED = "committed"
    RECOVER = "recover"
    RELEASE = "release"
    COMMIT = "commit"
    APPLY = "apply"
    HOLD = "hold"
    CLOSE = "close"
    PUBLISH = "publish"
    """Each record of a commit; in `MemoryPlainTransport` only, as the two that follow."""
    LOG = "log"
    """Each record of the changelog."""
    MOVE = "move"
    """The offsets of a commit."""


class FencedError(RuntimeError):
    """A transaction was refused: its producer was fenced by a later one."""


class Pause(asyncio.Event):
    """A call of a step that waits until this is set."""

    def __init__(self) -> None:
        """Begin as not reached."""
        super().__init__()
        self.reached = False
        """The call has come."""
        self.arrive: Callable[[], None] | None = None
        """What the call has sent; it arrives when this is set."""

    def set(self) -> None:
        """Let the call go on. What it has sent takes effect now, also when the caller does not wait any more."""
        arrive, self.arrive = self.arrive, None
        if arrive is not None:
            arrive()
        super().set()


@dataclass(frozen=True, slots=True)
class _Fault:
    error: BaseException | None = None
    durable: bool = False
    pause: Pause | None = None


@dataclass(slots=True)
class _Topic:
    records: list[Record] = field(default_factory=list)
    end: int = 0


class MemoryLaneTransport:
    """`ports.LaneTransport` in memory. `fail` and `pause` say what goes wrong, `calls` and `batches` what was done."""

    def __init__(self, sources: Sequence[TopicPartition], clock: VirtualClock | None = None) -> None:
        """Take the partitions whose offsets the lane moves.

        Args:
            sources: they begin at offset 0.
            clock: stamps what is published.
        """
        self.calls: list[Step] = []
        """Every step that was asked for, in order, failed ones included."""
        self.batches: list[LaneBatch] = []
        """What was committed."""
        self.offsets: dict[TopicPartition, int] = dict.fromkeys(sources, 0)
        """Committed offsets."""
        self.changelog: list[Row | Removal] = []
        self.store: MemoryPendingTable | None = None
        """The local store as it lies on disk: None when there is none."""
        self.pending: MemoryPendingTable | None = None
        """The table while the lane is open."""
        self.seen_changelog: TopicPartition | None = None
        """Where rows of seen events go; None where the handler does not deduplicate."""
        self.seen: MemorySeenTable | None = None
        """The table of seen events while the lane is open; each opening reads it anew."""
        self.tally: Tally | None = None
        """What was counted of the main topic at the opening, and is in no event; None where nothing says it."""
        self.counted = ""
        """What stands beside the main topic's offset of that, as text."""
        self.site: LaneSite | None = None
        """The topics, for who looks at them when it opens."""
        self.released: dict[TopicPartition, int] | None = None
        """Where records flow from; None while they are held."""
        self.clock = clock or VirtualClock()
        self._topics: defaultdict[TopicPartition, _Topic] = defaultdict(_Topic)
        self._faults: defaultdict[Step, deque[_Fault | None]] = defaultdict(deque)
        self._epoch = 0
        self._attached: bool | None = None

    # -- what a test says -----------------------------------------------------------------------------------------

    def fail(self, step: Step, error: BaseException, *, after: int = 0, times: int = 1, durable: bool = False) -> None:
        """Make a step fail.

        Args:
            step: which.
            error: what it raises.
            after: so many calls of the step go well before.
            times: so many calls fail.
            durable: `COMMIT` only: the transaction took effect, its acknowledgement was lost.
        """
        self._faults[step].extend([None] * after + [_Fault(error, durable)] * times)

    def pause(self, step: Step, *, after: int = 0, durable: bool = False) -> Pause:
        """Make a call of a step wait until what is returned is set: the moment to look at things, or to end the worker.

        A `COMMIT` that waits is on its way to the broker. It takes effect when it is let go, also if the worker that
        sent it is dead by then, unless the lane's next owner has fenced it. To have it never arrive, never let it go.

        Args:
            step: which; `APPLY` is not asynchronous and cannot wait (a commit that is `durable` waits just before it).
            after: so many calls of the step go well before.
            durable: `COMMIT` only: it has taken effect, its acknowledgement waits.

        Raises:
            ValueError: the step cannot wait.
        """
        if step is Step.APPLY:
            raise ValueError("apply is not asynchronous; pause a commit with durable=True: it waits just before")
        pause = Pause()
        self._faults[step].extend([None] * after + [_Fault(None, durable, pause)])
        return pause

    def lose_store(self) -> None:
        """Throw the local store away, as a worker that starts on another machine."""
        self.store = None

    def append(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> Record:
        """Put a record at the end of a partition, as a producer of the user would; return it."""
        topic = self._topics[tp]
        record = Record(tp.topic, tp.partition, topic.end, self.clock.wall_ms(), key, value, headers)
        topic.records.append(record)
        topic.end += 1
        return record

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the first offset and the end of a partition."""
        return 0, self._topics[tp].end

    def read(self, tp: TopicPartition, start: int = 0) -> list[Record]:
        """Return the committed records of a partition from an offset on."""
        records = self._topics[tp].records
        return records[bisect_left(records, start, key=lambda record: record.offset) :]

    # -- whose it is ------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Begin to serve a worker.

        Raises:
            RuntimeError: it serves one; that one has to end first.
        """
        if self._attached:
            raise RuntimeError("this transport belongs to a partition that still runs: leave that one first")
        self._attached = True

    def detach(self) -> None:
        """Serve the worker no longer: it is dead, and whatever it still tries has no effect."""
        self._attached = False
        self.pending = self.released = self.seen = None

    # -- what the lane asks -----------------------------------------------------------------------------------------

    async def prove(self) -> None:
        """See `ports.LaneTransport.prove`."""
        await self._step(Step.PROVE)

    async def fence(self) -> None:
        """See `ports.LaneTransport.fence`."""
        await self._step(Step.FENCE)
        self._epoch += 1

    async def committed(self) -> Mapping[TopicPartition, int]:
        """See `ports.LaneTransport.committed`."""
        await self._step(Step.COMMITTED)
        if self.site is not None:
            self.tally = parse_tally(self.counted, self.offsets[self.site.main])
        return dict(self.offsets)

    async def recover(self) -> None:
        """See `ports.LaneTransport.recover`."""
        await self._step(Step.RECOVER)
        table = MemoryPendingTable() if self.store is None else self.store.reopened()
        self.store = self.pending = table
        for at in range(table.next_offset, len(self.changelog)):
            entry = self.changelog[at]
            put, removed = ([entry], []) if isinstance(entry, Row) else ([], [entry])
            table.write(put, removed, at)
        if self.seen_changelog is not None:
            self.seen = MemorySeenTable()
            rows = self.read(self.seen_changelog)
            self.seen.recover(((row.key or b"", row.value) for row in rows), len(rows), self.clock.wall_ms())

    async def release(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `ports.LaneTransport.release`."""
        await self._step(Step.RELEASE)
        self.released = dict(starts)

    async def hold(self) -> None:
        """See `ports.LaneTransport.hold`."""
        await self._step(Step.HOLD)
        self.released = None

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """See `ports.LaneTransport.commit`."""
        fault = self._begin(Step.COMMIT)
        if fault is None:
            return self._take_effect(batch)
        if fault.durable:
            receipt = self._take_effect(batch)
            await self._carry_out(fault)
            return receipt
        if fault.pause is not None:
            return await self._sent(batch, fault.pause)
        await self._carry_out(fault)
        return self._take_effect(batch)

    async def _sent(self, batch: LaneBatch, pause: Pause) -> LaneReceipt:
        """Have a batch take effect when the pause is over, unless it is fenced by then."""
        receipts: list[LaneReceipt] = []
        epoch = self._epoch

        def arrive() -> None:
            if epoch == self._epoch:
                receipts.append(self._take_effect(batch))

        pause.arrive = arrive
        await pause.wait()
        if not receipts:
            raise FencedError("another producer has taken the lane's transactional id")
        return receipts[0]

    async def rest(self) -> None:
        """See `ports.LaneTransport.rest`; here nobody looks for marks."""

    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        """See `ports.LaneTransport.apply`."""
        fault = self._begin(Step.APPLY)
        if fault is not None and fault.error is not None:
            self.store = None
            raise fault.error
        if self.pending is None:
            raise RuntimeError("the lane applies a batch to a table that it gave up")
        self.pending.write(batch.puts, batch.removes, receipt.changelog_offset)
        if self.seen is not None and self.seen_changelog is not None:
            topic = self.seen_changelog.topic
            rows = [(out.key or b"", out.value) for out in batch.publishes if out.topic == topic]
            self.seen.recover(rows, self.seen.next_offset + len(rows), self.clock.wall_ms())

    async def close(self) -> None:
        """See `ports.LaneTransport.close`."""
        if self._attached is not False:
            await self._step(Step.CLOSE)
        self.pending = self.released = self.seen = None

    def _begin(self, step: Step) -> _Fault | None:
        if self._attached is False:
            raise ConnectionError(f"{step}: the worker is dead")
        self.calls.append(step)
        faults = self._faults[step]
        fault = faults.popleft() if faults else None
        if fault is not None and fault.pause is not None:
            fault.pause.reached = True
        return fault

    async def _step(self, step: Step) -> None:
        fault = self._begin(step)
        if fault is not None:
            await self._carry_out(fault)

    async def _carry_out(self, fault: _Fault) -> None:
        if fault.pause is not None:
            await fault.pause.wait()
        if fault.error is not None:
            raise fault.error

    def _take_effect(self, batch: LaneBatch) -> LaneReceipt:
        self.batches.append(batch)
        self._move(batch)
        published = [self._publish(out) for out in batch.publishes]
        for tp in {TopicPartition(out.topic, out.partition) for out in batch.publishes}:
            self._topics[tp].end += 1  # the transaction's marker
        self.changelog += [*batch.puts, *batch.removes]
        return self._receipt(batch, published)

    def _move(self, batch: LaneBatch) -> None:
        """Move offsets, and what stands beside them."""
        self.offsets.update(batch.offsets)
        self.tally = batch.tally or self.tally
        if self.site is not None and self.tally is not None and self.site.main in batch.offsets:
            self.counted = self.tally.text(batch.offsets[self.site.main])

    def _publish(self, out: Outgoing) -> int:
        return self.append(TopicPartition(out.topic, out.partition), out.key, out.value, out.headers).offset

    def _receipt(self, batch: LaneBatch, published: list[int]) -> LaneReceipt:
        written = bool(batch.puts or batch.removes)
        return LaneReceipt(published, len(self.changelog) - 1 if written else None)
