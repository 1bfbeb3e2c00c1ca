"""One history: what is sent, what goes wrong and when, all drawn from one number; and the run of it.

Records come in during the first seconds, faults meanwhile and after; then everything heals, and the system gets time to
come to rest. Each history is small: faults meet when little else is going on, and thousands run in a minute.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final

from retryapp.core.deduplicate import Deduplicate, encode_seen
from retryapp.core.hops import Outgoing
from retryapp.core.policy import RetryPolicy
from retryapp.core.publication import TopicLook
from retryapp.core.record import Headers, Record
from retryapp.core.topology import HandlerTopology
from retryapp.core.verdicts import Reject, RetryLater
from retryapp.engine.handler.handler import Delivery, Handler
from retryapp.engine.handler.publish import Destinations
from retryapp.ports import Committed, Event, Observation, TopicPartition
from simulation.beyond import Notes
from simulation.broker import Broker
from simulation.counts import check_counts
from simulation.disk import SimDisk
from simulation.loop import BEGAN_S, Stalled, VirtualLoop
from simulation.network import Network
from simulation.oracle import Oracle, Topics, step
from simulation.plan import FEED_S, Fault, Plan
from simulation.quiet import check_quiet
from simulation.sessions import opening_of, seen_stores
from simulation.story import Call, Result, Violation
from simulation.worker import SimWorker

POLICY: Final = RetryPolicy("300ms 1s 3s", timeout="2s")
EVENTS: Final = Deduplicate("header:event-id", window="1h")
WAITS_MS: Final = (300, 1_000, 3_000)
LATER_MS: Final = 700
REST_S: Final = 240.0
"""Longest time to come to rest after everything has healed."""
SKEW_MS: Final = 20.0
"""What two workers may differ by whose clocks are wrong: an acknowledgement's way."""


class History:
    """Runs a plan. See the module's text."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.random = Random(plan.seed ^ 0x5EED)
        self.reached: Counter[str] = Counter()
        self.network = Network(self.loop, self.random, self.reached)
        self.rule = EVENTS if plan.repeats else None
        self.topology = HandlerTopology(
            "sim",
            "orders",
            delays_ms=POLICY.schedule.nominal_delays_ms,
            seen_window_ms=None if self.rule is None else self.rule.window_ms,
        )
        self.names = Topics.of(self.topology, results="results" if plan.publishes else "")
        jumps = any(fault.kind == "clock jump" for fault in plan.faults)
        self.oracle = Oracle(
            self.names,
            WAITS_MS,
            later_ms=LATER_MS,
            skew_ms=SKEW_MS if jumps or any(plan.offsets_ms) else 0.0,
            timeout_ms=POLICY.timeout_ms,
            max_kills=plan.max_kills,
        )
        self.notes = Notes(self.oracle.stories)
        self.broker = Broker(self.loop, plan.partitions)
        self.broker.on_visible = self._appeared
        self.broker.on_moved = self._moved
        self.disks = [SimDisk() for _ in range(3)]
        self.clocks_ms = list(plan.offsets_ms)
        self.slots: list[SimWorker | None] = [None] * 3
        self.down_until_s = [0.0] * 3
        self.violation: str | None = None
        self.observed: Counter[Event] = Counter()
        self._trace = hashlib.blake2b(digest_size=8)
        self._started = 0

    # -- what it is told ----------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self.loop.time() * 1000

    def _note(self, *what: object) -> None:
        self._trace.update(repr((round(self.loop.time(), 6), *what)).encode())

    def _guard(self, judge: Callable[[], None]) -> None:
        try:
            judge()
        except Violation as exc:
            if self.violation is None:
                self.violation = f"{exc} (at {self.loop.time() - BEGAN_S:.3f} s)"

    def _appeared(self, tp: TopicPartition, records: list[Record]) -> None:
        self._note("visible", tp, [record.offset for record in records])
        self._guard(lambda: self.oracle.appeared(tp, records, self._now_ms()))

    def _moved(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._guard(lambda: self.oracle.moved({tp: moved.offset for tp, moved in offsets.items()}))
        for tp, moved in offsets.items():
            self._guard(partial(self.notes.committed, tp.partition, *moved, self._now_ms()))

    def _observe(self, worker: SimWorker, seen: Observation) -> None:
        self.observed[seen.event] += seen.count
        self.reached[seen.event.value] += 1
        if seen.event is Event.LANE_OPENED and seen.partition is not None:
            placed = worker.ownership.placed.get((self.topology.main, seen.partition))
            store = placed.transport.pending if placed else None
            if store is not None:
                number = seen.partition
                self._guard(lambda: self.oracle.recovered(number, dict(store.page(None, 1 << 30))))

    # -- handlers -----------------------------------------------------------------------------------------------

    def _handler(self, worker: SimWorker) -> Handler:
        async def handle(value: bytes, delivery: Delivery) -> None:
            await self._handle(worker, value, delivery)

        return Handler(
            function=handle,
            topology=self.topology,
            policy=POLICY,
            concurrency=2,
            max_in_flight=self.plan.in_flight,
            deduplicate=self.rule,
            destinations=Destinations(self, worker.clock, lambda: self.topology.owned),
        )

    async def look(self, _topic: str) -> TopicLook:
        """Describe a topic that the handler publishes to; see `ports.DestinationReader`."""
        return TopicLook(self.plan.partitions)

    async def _handle(self, worker: SimWorker, value: bytes, delivery: Delivery) -> None:
        origin, attempt = (delivery.origin.partition, delivery.origin.offset), delivery.attempt
        script = value.decode().split(":")[1]
        seen = (delivery.key, delivery.raw_value, delivery.headers, delivery.timestamp_ms)
        started_ms = self._now_ms()
        self._note("begun", worker.process.name, origin, attempt)
        if self.plan.publishes:
            delivery.publish(self.names.results, b"%d" % attempt, key=b"%d" % origin[1], partition=origin[0])
        opening = opening_of(worker, self.topology.main, origin[0])
        self._guard(lambda: self.oracle.begun(origin, attempt, delivery.due_at_ms, seen, started_ms, opening))
        if opening is not None:
            note = self.broker.notes.get(TopicPartition(self.topology.main, origin[0]), "")
            self._guard(lambda: self.oracle.suspects(origin, attempt, delivery.due_at_ms, note, opening))
        now = step(script, attempt)
        try:
            if now in "XK":
                await asyncio.sleep(self.random.uniform(0.0, 1.9) if now == "K" else 0)
                self.reached["a handler ended its worker"] += 1
                worker.process.kill()
            if now in "TXK":
                await asyncio.sleep(60)
            await asyncio.sleep(1.2 if now == "D" else (delivery.origin.offset * 7 + attempt * 3) % 5 * 0.01)
        except asyncio.CancelledError:  # a time-out (also of a process that was stopped meanwhile), or it was given up
            self.oracle.stopped(origin, attempt, Call(worker.process.name, started_ms, self._now_ms(), fine=False))
            raise
        self._note("ended", worker.process.name, origin, attempt)
        self.oracle.ended(origin, attempt, Call(worker.process.name, started_ms, self._now_ms(), fine=now in "SD"))
        if now == "F":
            raise ConnectionError("service answered 503")
        if now == "R":
            raise Reject("the script says so")
        if now == "L":
            raise RetryLater(after=f"{LATER_MS}ms")

    # -- machines -----------------------------------------------------------------------------------------------

    def _start(self, slot: int) -> None:
        worker = self.slots[slot]
        if worker is not None and worker.alive:
            return
        self._started += 1
        worker = SimWorker(
            f"worker-{slot}.{self._started}",
            broker=self.broker,
            network=self.network,
            disk=self.disks[slot],
            make_handler=self._handler,
            offset_ms=self.clocks_ms[slot],
            random=self.random,
            observe=self._observe,
        )
        self.slots[slot] = worker
        worker.start()

    def _supervise(self) -> None:
        """Start again what has died; the machines that are meant to run are the first ones."""
        for slot in range(self.plan.workers):
            worker = self.slots[slot]
            if (worker is None or not worker.alive) and self.loop.time() >= self.down_until_s[slot]:
                self._start(slot)
        self.loop.call_later(0.5, self._supervise, context=self.network.context)

    def _strike(self, fault: Fault) -> None:
        """Have a fault happen."""
        loop, slot, size = self.loop, fault.slot % self.plan.workers, fault.size
        worker, now_s = self.slots[slot], self.loop.time()
        alive = worker is not None and worker.alive
        self._note("fault", fault.kind, slot)
        self.reached[f"fault: {fault.kind}"] += 1
        match fault.kind:
            case "kill" | "kill, store lost" | "power cut" if alive and worker:
                worker.process.kill()
                self.down_until_s[slot] = now_s + 12 * size * size
                if fault.kind == "kill, store lost":
                    self.disks[slot].lose()
                elif fault.kind == "power cut":
                    self.disks[slot].lose_power(self.random)
            case "kill at step" if alive and worker:
                worker.process.kill_at_step = worker.process.steps + 1 + int(size * size * 400)
            case "pause" if alive and worker:
                worker.process.stopped = True
                loop.call_later(0.2 + 24 * size * size, self._continue, worker, context=self.network.context)
            case "pause at step" if alive and worker:  # long enough for another to take its lanes over
                worker.process.stop_at_step = worker.process.steps + 1 + int(size * size * 400)
                loop.call_later(8 + 16 * size, self._continue, worker, context=self.network.context)
            case "terminate" if alive and worker:
                worker.terminate()
                self.down_until_s[slot] = now_s + 5 * size
            case "broker down":
                self.network.down_until_s = now_s + 0.2 + 15 * size * size
            case "broker stopped":  # at the next commit; that one is acknowledged, and never was
                self.broker.stopping = True
                self.broker.on_stopped = lambda: self._stop_broker(0.2 + 8 * size)
                loop.call_later(3, setattr, self.broker, "stopping", False, context=self.network.context)
            case "lossy":
                self.network.lossy_until_s = now_s + 1 + 8 * size
            case "slow":
                self.network.slow_until_s = now_s + 1 + 8 * size
            case "slow handover" if alive and worker:  # what the former owner has sent arrives when the next one opens
                self.network.slow_until_s = now_s + 2 + 8 * size
                worker.terminate()
            case "late" if alive and worker:  # the next owner opens while what it has sent is still on its way
                self.network.late_until_s[worker.process.name] = now_s + 1 + 3 * size
                self.network.slow_until_s = now_s + 12
            case "clock jump":
                # a process counts time by the monotonic clock; the next one begins with the wrong time
                self.clocks_ms[slot] += (size - 0.5) * 7_200_000
            case "compact":
                for number in range(self.plan.partitions):
                    self.broker.compact(TopicPartition(self.topology.pending_changelog, number))
            case "retention":
                for topic in self.topology.retry_topics:  # history: nobody needs it
                    for number in range(self.plan.partitions):
                        tp = TopicPartition(topic, number)
                        for last in self.broker.visible(tp)[-1:]:
                            self.broker.delete_before(tp, last.offset + 1)
            case "disk full":
                self.disks[slot].full = 1 + int(size * 2)
            case "offsets expire":  # all workers away for longer than the broker remembers a group
                for each in self.slots:
                    if each is not None and each.alive:
                        each.process.kill()
                self.broker.forget_group()
            case "refused":
                self.broker.refuse(self.names[1:4], fault.slot, 0.5 + 6 * size)
            case "start":
                self._start(fault.slot)  # one more, also where that machine was not meant to run
            case _:
                self.reached[f"fault in vain: {fault.kind}"] += 1

    def _continue(self, worker: SimWorker) -> None:
        if worker.alive:
            worker.process.stop_at_step = None
            worker.process.cont()

    def _stop_broker(self, seconds: float) -> None:
        self.reached["a commit was taken back"] += 1
        self.network.down_until_s = self.loop.time() + seconds
        self.loop.call_later(seconds, self.broker.restart, context=self.network.context)

    def _heal(self) -> None:
        self.broker.refuse((), 0, 0.0)
        self.network.down_until_s = self.network.lossy_until_s = self.network.slow_until_s = 0.0
        self.network.late_until_s.clear()
        self.down_until_s = [0.0] * 3
        for slot, worker in enumerate(self.slots):
            self.disks[slot].full = 0
            if worker is not None:
                worker.process.kill_at_step = worker.process.stop_at_step = None
                if worker.process.stopped:
                    self._continue(worker)

    def _send(self, number: int, script: str, event: int) -> None:
        tp = TopicPartition(self.topology.main, number)
        offset = self.broker.logs[tp].end
        value = f"{number}.{offset}:{script}".encode()
        headers: Headers = (("trace", b"\xff%d" % offset),)
        if self.rule is not None:
            headers = (*headers, ("event-id", b"e%d" % event))
        out = Outgoing(tp.topic, number, b"k%d" % offset, value, headers)
        self.broker.append(tp, out)
        self.oracle.add(self.broker.logs[tp].entries[-1].record, script, None if self.rule is None else f"e{event}")

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run the plan to its end."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _told: None
        try:
            self.loop.run_until_complete(self._live())
        except Stalled:
            self.violation = self.violation or "I1: everybody waits for ever"
        finally:
            self.loop.abandon()  # its tasks end here: in dead processes, which have no say any more
            sys.unraisablehook = hook
        return Result(
            self.plan,
            self.violation,
            self._trace.hexdigest(),
            self.reached + self.oracle.named,
            self.loop.steps,
            self.oracle.repeated,
        )

    async def _live(self) -> None:
        loop, context, began_s = self.loop, self.network.context, self.loop.time()
        records = self.plan.records
        for event, (at_s, number, script) in enumerate(records):
            loop.call_at(began_s + at_s, self._send, number, script, event, context=context)
        for at_s, event in self.plan.repeats:
            loop.call_at(began_s + at_s, self._send, *records[event][1:], event, context=context)
        for fault in self.plan.faults:
            loop.call_at(began_s + fault.at_s, self._strike, fault, context=context)
        self._supervise()
        last_s = max(
            [
                FEED_S,
                *(each[0] for each in records),
                *(at_s + 0.1 for at_s, _ in self.plan.repeats),
                *(fault.at_s + 1 for fault in self.plan.faults),
            ]
        )
        await asyncio.sleep(last_s + self.random.uniform(0, 10) * bool(self.plan.faults))
        self._heal()
        until_s = loop.time() + REST_S
        while self.violation is None and loop.time() < until_s:
            await asyncio.sleep(0.5)
            if self._at_rest():
                await asyncio.sleep(2.0)
                self._guard(self._judge)
                return
        if self.violation is None:
            self._guard(self._judge_restless)

    def _judge_restless(self) -> None:
        self.oracle.at_rest()
        raise Violation("I4: not at rest in time")

    def _at_rest(self) -> bool:
        if self.oracle.open_ends() or any(self.oracle.waiting(number) for number in range(self.plan.partitions)):
            return False
        if any(log.open for log in self.broker.logs.values()):
            return False
        for number in range(self.plan.partitions):
            for topic in self.topology.consumed:
                tp = TopicPartition(topic, number)
                records = self.broker.visible(tp)
                reached = max(each.get(tp, 0) for each in (self.broker.committed, self.broker.moved_in_vain))
                if records and reached <= records[-1].offset:
                    return False
        return True

    def _judge(self) -> None:
        self.oracle.at_rest()
        said = check_counts(self.broker, self.oracle, self.names)
        self.reached["a progress event"] += said
        self.reached["settled beyond the offset"] += self.notes.named
        for number, store in seen_stores(self.slots, self.broker.generation):
            taken_back = self.broker.taken_back[self.topology.seen_changelog] > 0
            rows = {identity: encode_seen(row) for identity, row in store.rows.items()}
            self.oracle.remembered(number, rows, taken_back=taken_back)
        visible, quiet = self.oracle.visible, self.plan.quiet
        for event, topic in ((Event.SCHEDULED, self.topology.retry_topics[0]), (Event.DEAD, self.topology.dlq)):
            if self.observed[event] > visible[topic] + self.broker.taken_back[topic] or (
                quiet and self.observed[event] != visible[topic]
            ):
                raise Violation(f"I12: {self.observed[event]} observed as {event.value}, {visible[topic]} are visible")
        if self.observed[Event.SKIPPED] > self.oracle.skips + self.broker.taken_back[self.topology.events]:
            raise Violation(f"I12: {self.observed[Event.SKIPPED]} observed as skipped, {self.oracle.skips} are visible")
        if quiet:
            check_quiet(self.oracle)


def simulate(seed: int) -> Result:
    """Run the history of a seed."""
    return History(Plan.of(seed)).run()
