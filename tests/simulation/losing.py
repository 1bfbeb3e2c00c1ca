"""Histories in which main topics lose their end, as where a replica becomes leader that lacks the last records (I34).

Others come to be at the offsets of those that are gone, and have their names, by which other histories know records: so
here a record is known by its value, and less is judged. What is still on its topic ends as its script says, and
so does what is gone and had a row by then. Nothing begins early, beside itself, or again once its offset has
passed it. With an order nothing begins before the end of what is before it in its sequence, and with `latest` the
newest of a key is not superseded.

In the place of one that was noted as settled, and has no row any more, a new record is passed (docs/protocol.md, rule
14): it is left out here.

Where a changelog has lost its end, and the store of its partition has more, nothing begins any more, and nothing is
written, until an operator decides: it could not be known what else is gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final

from typing_extensions import override

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.core.row_keys import is_identity
from retryapp.core.rows import decode_row
from retryapp.core.topology import HandlerTopology
from retryapp.engine.handler.handler import Delivery, Handler, Order
from retryapp.ports import Committed, Observation, TopicPartition
from retryapp.testing import MemoryPendingTable
from simulation.beyond import read_note
from simulation.broker import Broker
from simulation.disk import SimDisk
from simulation.loop import BEGAN_S, Stalled, VirtualLoop
from simulation.network import Network
from simulation.newest import SUPERSEDED
from simulation.scripts import POLICIES, WAITS_MS, end
from simulation.sessions import opening_of
from simulation.story import FINE, step
from simulation.worker import CONCURRENCY, TOPIC_ID, SimWorker

FEED_S: Final = 6.0
FAULTS_S: Final = 12.0
REST_S: Final = 240
_SCRIPTS: Final = ("S", "S", "D", "FS", "FFS", "FDS", "F", "F", "R", "FR", "LS", "FFFS", "FFFS", "TS")
_FAULTS: Final = ("kill", "kill at step", "kill at step", "store lost", "terminate", "pause", "lossy", "slow")
_ORDERS: Final = ("none", "none", "key", "key", "latest", "latest", "partition")


@dataclass(slots=True, eq=False, kw_only=True)
class Sent:
    """A record, and what is known of it."""

    number: int
    offset: int
    key: bytes | None
    value: bytes
    script: str
    sent_ms: int
    gone: bool = False
    owed: bool = True
    """It is to end: it is there, or had a row when it was lost."""
    failed_ms: dict[int, float] = field(default_factory=dict)
    """When attempts had failed."""
    begun_ms: float = inf
    """When it has begun, or has replaced another one."""
    passed_ms: float = inf
    """When the offset had passed it."""
    fine: bool = False
    letters: int = 0
    going: Counter[str] = field(default_factory=Counter)
    """Calls that go on, by worker."""

    @property
    def may_be_dead(self) -> bool:
        return any(step(self.script, attempt) == "R" or attempt > len(WAITS_MS[0]) for attempt in self.failed_ms)

    @property
    def has_ended(self) -> bool:
        return self.fine or self.may_be_dead


class Losing:
    """One history; its seed decides everything."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.order = random.choice(_ORDERS)
        self.partitions, self.workers = random.randint(1, 2), random.choice((1, 1, 2))
        self.in_flight, self.keys = random.choice((1, 2, 4, 8)), random.choice((2, 3, 5))
        self.through = self.order == "none" and random.random() < 0.3
        self.loop = VirtualLoop()
        self.reached: Counter[str] = Counter()
        self.network = Network(self.loop, random, self.reached)
        self.broker = Broker(self.loop, self.partitions)
        self.broker.on_visible, self.broker.on_moved = self._appeared, self._moved
        self.disks = [SimDisk() for _ in range(self.workers)]
        self.slots: list[SimWorker | None] = [None] * self.workers
        self.down_until_s = [0.0] * self.workers
        self.topology = HandlerTopology("sim", "orders", delays_ms=POLICIES[0].delays_ms)
        self.sent: dict[bytes, Sent] = {}
        self.noted: dict[int, set[int]] = {}
        """Offsets at which new records may be passed, by partition."""
        self.violation: str | None = None
        self._started = self._events = 0

    # -- what is judged -----------------------------------------------------------------------------------------

    def _must(self, invariant: str, record: Sent, what: str, *, holds: bool) -> None:
        if not holds and self.violation is None:
            name = f"{record.number}/{record.offset} {record.script!r}"
            self.violation = f"{invariant} {name}: {what} (at {self.loop.time() - BEGAN_S:.3f} s)"

    def _appeared(self, tp: TopicPartition, records: list[Record]) -> None:
        for value in [record.value for record in records] if tp.topic in self.topology.dlqs else ():
            if (record := self.sent.get(value or b"")) is not None:
                record.letters += 1
                self._must("I2", record, "two letters", holds=record.letters == 1)
                self._must("I1", record, "is dead", holds=record.may_be_dead)

        for event in [json.loads(record.value or b"{}") for record in records if tp.topic == self.topology.events]:
            for record in self.sent.values() if event["kind"] == SUPERSEDED else ():
                if (record.number, record.offset, record.gone) == (tp.partition, event["by_offset"], False):
                    record.begun_ms = min(record.begun_ms, self.loop.time() * 1_000)

    def _moved(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        for tp, moved in offsets.items():
            for record in self.sent.values():
                is_passed = record.number == tp.partition and record.offset < moved.offset and not record.gone
                if is_passed and record.passed_ms == inf:
                    record.passed_ms = self.loop.time() * 1_000
                    ended = record.has_ended or record.failed_ms or self.order in {"key", "latest"}
                    self._must("I6", record, "passed without a fate", holds=bool(ended))

    def _waiting(self, number: int) -> set[bytes]:
        """Return the values of records that have rows."""
        rows: dict[bytes, bytes | None] = {}
        for record in self.broker.visible(TopicPartition(self.topology.pending_changelog, number)):
            if record.key is not None and is_identity(record.key):
                rows[record.key] = record.value
        return {decode_row(row).value or b"" for row in rows.values() if row is not None}

    def _begins(self, worker: str, record: Sent, delivery: Delivery, fenced_ms: float) -> None:
        now_ms, attempt = self.loop.time() * 1_000, delivery.attempt
        named = delivery.origin.offset, delivery.key, delivery.timestamp_ms
        self._must("I8", record, f"has {named}", holds=named == (record.offset, record.key, record.sent_ms))
        self._must("I10", record, "runs beside a run of itself", holds=not record.going[worker])
        if attempt > 1:
            waits_ms = 1 if step(record.script, attempt - 1) == "L" else WAITS_MS[0][attempt - 2] / 2  # by its jitter
            due_ms = record.failed_ms.get(attempt - 1, inf) + waits_ms
            self._must("I3", record, f"attempt {attempt} is early", holds=now_ms >= due_ms - 1)
        if record.passed_ms < fenced_ms and not record.gone:
            held = delivery.due_at_ms is not None or record.value in self._waiting(record.number)
            self._must("I5", record, "again, and its offset has passed it", holds=held)
        for other in self.sent.values():
            if other.number != record.number or other.gone or other is record:
                continue
            same = self.order == "partition" or (record.key is not None and other.key == record.key)
            if self.order in {"key", "partition"} and same and other.offset < record.offset and not record.gone:
                self._must("I16", record, f"begins before the end of {other.offset}", holds=other.has_ended)
            if self.order == "latest" and same and other.sent_ms > record.sent_ms and delivery.due_at_ms is not None:
                self._must("I20", record, f"begins after {other.offset}", holds=other.begun_ms >= fenced_ms)
        record.begun_ms = min(record.begun_ms, now_ms)

    def _at_rest(self) -> bool:
        for number in range(self.partitions):
            tp = TopicPartition("orders", number)
            records = self.broker.visible(tp)
            if self._waiting(number) or (records and self.broker.committed.get(tp, 0) <= records[-1].offset):
                return False
        return not any(log.open for log in self.broker.logs.values())

    def _judge(self) -> None:
        for record in self.sent.values() if self.order != "latest" else map(self._newest, self.sent.values()):
            ended = record.fine or record.letters
            self._must("I1", record, "lost", holds=not record.owed or bool(ended))

    def _newest(self, record: Sent) -> Sent:
        """Return the record that may have replaced another one, the newest of its key that has begun or is to end."""
        same = [each for each in self.sent.values() if (each.number, each.key) == (record.number, record.key)]
        known = [each for each in same if each.owed or each.begun_ms < inf]
        return record if record.key is None else max(known, key=lambda each: each.sent_ms, default=record)

    # -- what happens -------------------------------------------------------------------------------------------

    def _send(self, number: int, script: str) -> None:
        tp, self._events = TopicPartition("orders", number), self._events + 1
        key = None if self._events % 7 == 6 else b"k%d" % (self._events % self.keys)
        value = b"%d:%s" % (self._events, script.encode())
        offset = self.broker.append(tp, Outgoing(*tp, key, value, ()))
        if offset not in self.noted.get(number, ()):
            sent_ms = self.broker.logs[tp].entries[-1].record.timestamp_ms
            self.sent[value] = Sent(number=number, offset=offset, key=key, value=value, script=script, sent_ms=sent_ms)

    def _lose(self) -> None:
        """Cut off what the group has not passed, or a little more: then its offset is set to the end."""
        for number in range(self.partitions):
            tp, random = TopicPartition("orders", number), self.random
            log, committed, note = self.broker.logs[tp], self.broker.committed.get(tp, 0), self.broker.notes.get(tp, "")
            first = max(0, committed - random.choice((1, 2, 5))) if random.random() < 0.3 else committed
            cut = random.randint(first, max(first, log.end))
            waiting, lost = self._waiting(number), set(self.noted.get(number, ()))
            for record in self.sent.values():
                if record.number == number and not record.gone and record.offset >= cut:
                    record.gone, record.owed = True, record.value in waiting
                    lost |= set() if record.owed else {record.offset}
                    self.reached[f"a record is gone{' that waits' * record.owed}"] += 1
            log.entries = [entry for entry in log.entries if entry.record.offset < cut]
            log.end = cut
            self.noted[number] = lost & read_note(note, committed).keys()
            if cut < committed:
                self.broker.committed[tp], self.broker.notes[tp] = cut, ""
                self.noted[number].clear()
                self.reached["an offset was set to the end"] += 1

    def _strike(self, kind: str, slot: int, size: float) -> None:
        worker, now_s = self.slots[slot], self.loop.time()
        match kind:
            case "lossy":
                self.network.lossy_until_s = now_s + 1 + 8 * size
            case "slow":
                self.network.slow_until_s = now_s + 1 + 4 * size
            case "lose":
                for each in self.slots:
                    if each is not None and each.alive:
                        each.process.kill()
                self.down_until_s = [now_s + 0.5 + 3 * size * size] * self.workers
                self.loop.call_later(0.3, self._lose_once_all_arrived, context=self.network.context)
            case _ if worker is None or not worker.alive:
                return
            case "kill at step":
                worker.process.kill_at_step = worker.process.steps + 1 + int(size * size * 400)
            case "terminate":
                worker.terminate()
            case "pause":
                worker.process.stopped = True
                self.loop.call_later(0.2 + 24 * size * size, self._continue, worker, context=self.network.context)
            case _:
                worker.process.kill()
                if kind == "store lost":
                    self.disks[slot].lose()

    def _lose_once_all_arrived(self) -> None:
        if self.network.last_s > self.loop.time():
            self.down_until_s = [at_s + 0.5 for at_s in self.down_until_s]
            self.loop.call_later(0.5, self._lose_once_all_arrived, context=self.network.context)
        else:
            self._lose()

    def _continue(self, worker: SimWorker) -> None:
        if worker.alive:
            worker.process.cont()

    # -- machines -----------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        for slot, worker in enumerate(self.slots):
            if (worker is None or not worker.alive) and self.loop.time() >= self.down_until_s[slot]:
                self._started += 1
                self.slots[slot] = SimWorker(
                    f"worker-{slot}.{self._started}", broker=self.broker, network=self.network, disk=self.disks[slot],
                    make_handlers=self._handlers, offset_ms=0.0, random=self.random, observe=_pass_by,
                )  # fmt: skip
                self.slots[slot].start()  # type: ignore[union-attr]
        self.loop.call_later(0.5, self._supervise, context=self.network.context)

    def _handlers(self, worker: SimWorker) -> list[Handler]:
        return [
            Handler(
                function=self._handle_in(worker), topology=self.topology, policy=POLICIES[0], concurrency=CONCURRENCY,
                max_in_flight=self.in_flight, order=Order(self.order), through_main=self.through,
            )
        ]  # fmt: skip

    def _handle_in(self, worker: SimWorker) -> Callable[[bytes, Delivery], Coroutine[None, None, None]]:
        name = worker.process.name

        async def handle(_value: bytes, delivery: Delivery) -> None:
            if (record := self.sent.get(delivery.raw_value or b"")) is None:
                return
            attempt, opening = delivery.attempt, opening_of(worker, "orders", record.number)
            self._begins(name, record, delivery, -inf if opening is None else opening.fenced_ms)
            now = step(record.script, attempt)
            record.going[name] += 1
            try:
                await asyncio.sleep(60 if now == "T" else 1.2 if now == "D" else (record.offset + attempt) % 5 * 0.01)
            except asyncio.CancelledError:
                record.failed_ms.setdefault(attempt, self.loop.time() * 1_000)
                raise
            finally:
                record.going[name] -= 1
            record.fine = record.fine or now in FINE
            if now not in FINE:
                record.failed_ms.setdefault(attempt, self.loop.time() * 1_000)
            end(now, record.offset, 0.0)

        return handle

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Run it; return what does not hold."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _told: None
        try:
            self.loop.run_until_complete(self._live())
        except Stalled:
            self.violation = self.violation or "I1: no record goes on"
        finally:
            self.loop.abandon()
            sys.unraisablehook = hook
        return self.violation

    async def _live(self) -> None:
        loop, context, random, began_s = self.loop, self.network.context, self.random, self.loop.time()
        lost_s = [random.uniform(1.0, FEED_S) for _ in range(random.choice((1, 1, 2)))]
        at_s = [random.uniform(0.06, FEED_S) for _ in range(random.randint(4, 12))]
        at_s += [each + random.uniform(0.06, 4.0) for each in lost_s for _ in range(random.randint(3, 9))]
        for when_s in at_s:
            number, script = random.randrange(self.partitions), random.choice(_SCRIPTS)
            loop.call_at(began_s + when_s, self._send, number, script, context=context)
        struck = [(each, "lose") for each in lost_s]
        struck += [
            (random.uniform(0.5, FAULTS_S), random.choice(_FAULTS)) for _ in range(random.choice((0, 0, 1, 2, 3)))
        ]
        for when_s, kind in struck:
            slot, size = random.randrange(self.workers), random.random()
            loop.call_at(began_s + when_s, self._strike, kind, slot, size, context=context)
        self._supervise()
        await asyncio.sleep(FAULTS_S + 2)
        self.network.lossy_until_s = self.network.slow_until_s = 0.0
        for worker in self.slots:
            if worker is not None:
                worker.process.kill_at_step = None
                if worker.process.stopped:
                    self._continue(worker)
        for _ in range(REST_S):
            await asyncio.sleep(1.0)
            if self.violation is not None or self._at_rest():
                break
        else:
            self.violation = "I4: not at rest in time"
        await asyncio.sleep(2.0)
        self._judge()


class LosingChangelogs(Losing):
    """The same of changelogs, with one worker that keeps its stores."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.workers, self.disks, self.slots, self.down_until_s = 1, self.disks[:1], [None], [0.0]
        self._cut: dict[int, int] = {}
        """Where changelogs end since, by partition."""

    @override
    def _strike(self, kind: str, slot: int, size: float) -> None:
        super()._strike("kill" if kind == "store lost" else kind, slot, size)

    @override
    def _lose(self) -> None:
        for number in range(self.partitions):
            log = self.broker.logs[tp := TopicPartition(self.topology.pending_changelog, number)]
            last = [entry.record.offset for entry in log.entries if entry.visible][-6:]
            has = MemoryPendingTable(self.disks[0], f"{self.topology.prefix}.{number} of {TOPIC_ID}").next_offset
            if number in self._cut or not last or (cut := self.random.choice(last)) >= has:
                continue
            log.entries = [entry for entry in log.entries if entry.record.offset < cut]
            for txn in log.open:
                del txn.first[tp]
            log.open.clear()
            log.end = self._cut[number] = cut
            self.reached["a changelog has lost its end"] += 1

    @override
    def _begins(self, worker: str, record: Sent, delivery: Delivery, fenced_ms: float) -> None:
        self._must("I34", record, "begins, and its changelog has lost its end", holds=record.number not in self._cut)

    @override
    def _at_rest(self) -> bool:
        return True  # lanes that stay closed never are; others are judged elsewhere

    @override
    def _judge(self) -> None:
        for number, cut in self._cut.items():
            end_offset = self.broker.logs[TopicPartition(self.topology.pending_changelog, number)].end
            if end_offset != cut and self.violation is None:
                self.violation = f"I34 {number}: its changelog is written from {cut} on, and ends at {end_offset}"


def _pass_by(_worker: SimWorker, _seen: Observation) -> None:
    """What a worker observes is judged in other histories."""
