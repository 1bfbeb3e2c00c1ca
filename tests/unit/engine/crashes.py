"""Workers of one partition that die where a test says, the lives that they lead, and the books that outlive them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from doubles import MAIN, REDELIVERY, RETRY

from retryapp.core.classify import non_retryable
from retryapp.core.headers import decode_metadata
from retryapp.core.lifecycle import Progress, Succeeded, decode_event
from retryapp.core.metadata import RetryMetadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Record
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.engine.handler import Delivery
from retryapp.engine.lane import LaneLimits
from retryapp.ports import LaneBatch, LaneReceipt, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Pause, Step, VirtualClock

DLQ, EVENTS = TopicPartition("app.orders.dlq", 0), TopicPartition("app.orders.events", 0)
CHANGELOG = TopicPartition("app.orders.pending.changelog", 0)
OUT = TopicPartition("payments", 0)
"""Every attempt publishes there, before it does anything else."""
Copy = tuple[str, bytes, int]
"""What a record leaves behind: station, value, number of the attempt that ended."""


class BankDownError(Exception):
    """A failure that goes away."""


class WrongForGoodError(Exception):
    """One that does not."""


DELAYS_MS = (500, 1_000)
POLICY = RetryPolicy("500ms 1s", on=(non_retryable(WrongForGoodError),))
SLOW_MS = 300
TICK_MS = 100
WAY_S = 0.05
"""To a broker that is far away, and back."""
DRAIN_S = 0.1
"""Too short for what has just begun."""
MANY_TURNS = 20_000
"""More than a life takes, by far."""
REOPENED_AT = 12
"""The moment at which a fault outside makes the first worker's lane open anew."""
DOWN_MS = 700
"""From a worker's death to the start of the next."""
ROUNDS = 15
"""Turns of the event loop in one tick."""

SENT = (b"fine 0", b"slow 1", b"once 2", b"hopeless 3", b"fine 4", b"fatal 5", b"slow-once 6", b"fine 7", b"once 8")
_ONCE = (("retry", 1), ("redelivery", 1), ("succeeded", 2), ("published", 2))
_FINE = (("published", 1),)
_LEFT = {
    b"fine": _FINE,
    b"slow": _FINE,
    b"once": _ONCE,
    b"slow-once": _ONCE,
    b"hopeless": (("retry", 1), ("redelivery", 1), ("retry", 2), ("redelivery", 2), ("exhausted", 3)),
    b"fatal": (("non-retryable", 1),),
}
EXPECTED = Counter[Copy]((station, v, n) for v in SENT for station, n in _LEFT.get(v.split()[0], ()))
"""What the records leave behind, whoever dies on the way."""
HOPELESS = {v for v in SENT if v.split()[0] in {b"hopeless", b"fatal"}}


@dataclass(frozen=True, slots=True)
class Point:
    """A call of a step in a worker's life: after so many others."""

    step: Step
    after: int = 0
    durable: bool = False
    """Of a commit: it has taken effect, but the worker does not know."""


class _Distant(MemoryLaneTransport):
    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        await self.clock.sleep(WAY_S)
        receipt = await super().commit(batch)
        await self.clock.sleep(WAY_S)
        return receipt


@dataclass(slots=True)
class World:
    """Kafka, the disk, the clock and the user's side of one partition: what outlives its workers."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    transport: MemoryLaneTransport | None = None
    unsent: deque[bytes] = field(default_factory=lambda: deque(SENT))
    runs: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    """Handler runs: value, attempt, when it began, when it was due (0 at the first attempt)."""
    finished: set[bytes] = field(default_factory=set)
    """Values whose handler ended well."""
    stopped_at: int | None = None
    """The moment at which the first worker is told to stop, whatever runs."""
    lives: int = 0

    async def handle(self, value: bytes, delivery: Delivery) -> None:
        """Do what the value says, the same at each repetition of an attempt."""
        kind = value.split()[0]
        self.runs.append((value, delivery.attempt, self.clock.wall_ms(), delivery.due_at_ms or 0))
        delivery.publish(OUT.topic, value, key=b"%d" % delivery.attempt)
        if kind.startswith(b"slow"):
            await self.clock.sleep(SLOW_MS / 1000)
        if kind == b"fatal":
            raise WrongForGoodError
        if kind == b"hopeless" or (kind.endswith(b"once") and delivery.attempt == 1):
            raise BankDownError
        self.finished.add(value)

    @property
    def kafka(self) -> MemoryLaneTransport:
        """Kafka, and the disk."""
        assert self.transport is not None
        return self.transport

    def move_away(self) -> None:
        """Let every transaction take time on its way there and back, after which the lane rests."""
        self.transport = _Distant(self.clock)

    def worker(self) -> MemoryPartition:
        """Return the next worker: small transactions, so that there are many, and several handlers at once."""
        self.lives += 1
        worker = MemoryPartition(
            self.handle,
            POLICY,
            clock=self.clock,
            concurrency=3,
            limits=LaneLimits(turns=2),
            transport=self.transport,
        )
        self.transport = worker.transport
        return worker

    # -- lives --------------------------------------------------------------------------------------------------

    async def live(self, worker: MemoryPartition) -> None:
        """Lead a life: records come, the first worker's lane opens anew twice, and at rest the worker is stopped."""
        if self.lives == 1:
            self.kafka.fail(Step.APPLY, OSError("the disk"), after=4)
        for moment in range(200):
            if moment % 2 == 0 and self.unsent:
                self.kafka.append(MAIN, b"k", self.unsent.popleft(), (("trace", b"1"),))
            if self.lives == 1 and moment == REOPENED_AT:
                worker.lane.fail(RuntimeError("a fault outside"))
            if self.lives == 1 and moment == self.stopped_at:
                break
            await self._tick(worker)
            if self.at_rest():
                break
        stopping = asyncio.create_task(worker.finish(DRAIN_S))
        try:
            while not stopping.done():
                await self._tick(worker)
            await stopping
        finally:
            stopping.cancel()

    async def _tick(self, worker: MemoryPartition) -> None:
        self.clock.advance(TICK_MS)
        await worker.settle(ROUNDS)

    async def die_at(self, point: Point) -> Pause:
        """Lead a life up to a point, and die there; or to its end, where the point is not reached."""
        worker = self.worker()
        pause = self.kafka.pause(point.step, after=point.after, durable=point.durable)
        await self.die_when(lambda _worker: pause.reached, worker)
        return pause

    async def die_when(self, now: Callable[[MemoryPartition], object], worker: MemoryPartition | None = None) -> bool:
        """Lead a life up to a moment, and die then; tell whether it came. It is asked for at each turn of the loop."""
        worker = worker or self.worker()
        async with worker:
            life = asyncio.create_task(self.live(worker))
            for _ in range(MANY_TURNS):
                if (died := bool(now(worker))) or life.done():
                    break
                await asyncio.sleep(0)
            else:
                raise AssertionError(f"the life does not end: {worker.lane.state}, {worker.lane.last_error}")
        life.cancel()  # not before the worker is dead: it would stop it in good order
        (ended,) = await asyncio.gather(life, return_exceptions=True)
        assert died or ended is None, ended
        self.clock.advance(DOWN_MS)
        return died

    async def survive(self) -> None:
        """Have a worker do the rest."""
        assert not await self.die_when(lambda _worker: False)
        assert self.at_rest()

    def at_rest(self) -> bool:
        """Tell whether every record is sent, every offset committed, and nothing waits."""
        kafka = self.kafka
        return not (self.unsent or self.waiting() or any(kafka.read(tp, at) for tp, at in kafka.offsets.items()))

    def waiting(self) -> set[bytes]:
        """Return the keys of the rows that wait, by the changelog."""
        rows = {record.key or b"": record.value is not None for record in self.kafka.read(CHANGELOG)}
        return {key for key, waits in rows.items() if waits and len(key) == ROW_KEY_BYTES}

    # -- books --------------------------------------------------------------------------------------------------

    def check(self, where: object) -> None:
        """Find one fate for every record in what is committed, and nothing early, repeated or changed on the way."""
        copies, events = self._copies(), [decode_event(record.value or b"") for record in self.kafka.read(EVENTS)]
        successes = [event for event in events if isinstance(event, Succeeded)]
        left = Counter[Copy](
            (m.reason or tp.topic.rsplit(".", 1)[-1], r.value or b"", m.attempt) for tp, r, m in copies
        )
        left.update(("published", r.value or b"", int(r.key or b"")) for r in self.kafka.read(OUT))
        left.update(("succeeded", self._value(event.failure_id), event.attempt) for event in successes)
        assert left == EXPECTED, where
        assert self.finished == set(SENT) - HOPELESS, where
        due = Counter[tuple[bytes, int]]()
        for tp, record, m in copies:
            attempt = (record.value or b"", m.attempt + 1)
            if tp == RETRY:
                assert (m.due_at_ms or 0) - m.last_failed_ms == DELAYS_MS[m.attempt - 1], where
                due[attempt] = m.due_at_ms or 0
            if tp == REDELIVERY:
                assert record.timestamp_ms >= (m.due_at_ms or 0) >= due[attempt] > 0, where
        started = [(r.value or b"", m.attempt, m.started_ms or 0) for tp, r, m in copies if tp in {RETRY, DLQ}]
        started += [(self._value(event.failure_id), event.attempt, event.started_ms) for event in successes]
        assert all(at >= due[value, attempt] for value, attempt, at in started), where
        assert all(began >= due_at >= due[value, attempt] for value, attempt, began, due_at in self.runs), where
        runs = Counter((value, attempt) for value, attempt, _, _ in self.runs)
        assert max(runs.values()) <= self.lives + 2, where  # two: how often the first worker's lane opens anew
        self._check_progress([event for event in events if isinstance(event, Progress)], where)

    def _copies(self) -> list[tuple[TopicPartition, Record, RetryMetadata]]:
        sent = {record.offset: record for record in self.kafka.read(MAIN)}
        assert tuple(record.value for record in sent.values()) == SENT
        found = []
        for tp in (RETRY, REDELIVERY, DLQ):
            for record in self.kafka.read(tp):
                metadata = decode_metadata(record.headers)
                assert metadata is not None
                origin = sent[metadata.origin.offset]
                assert (record.key, record.value, record.headers[:1]) == (origin.key, origin.value, origin.headers)
                assert metadata.origin_timestamp_ms == origin.timestamp_ms
                found.append((tp, record, metadata))
        return found

    def _value(self, failure_id: str) -> bytes:
        return self.kafka.read(MAIN, int(failure_id.rsplit("/", 1)[-1]))[0].value or b""

    def _check_progress(self, told: list[Progress], where: object) -> None:
        """No record is counted twice; what a dead worker had counted and not told is not counted."""
        assert all(one.to_offset <= other.from_offset for one, other in pairwise(told)), where
