"""One history: what is sent, what goes wrong and when, all drawn from one number; and the run of it.

Records come in during the first seconds, faults meanwhile and after; then everything heals, and the system gets time to
come to rest. Each history is small: faults meet when little else is going on, and thousands run in a minute.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import Final

from retryapp.core.hops import Outgoing
from retryapp.core.record import Headers, Record
from retryapp.ports import Committed, Event, Observation, TopicPartition
from retryapp.testing.broker import Entry
from simulation.before import leave_replayed
from simulation.bounds import SLICE, bind
from simulation.broker import Broker
from simulation.disk import SimDisk
from simulation.drawing import draw_plan
from simulation.faults import REBORN, Fault, step_ms
from simulation.growing import grow
from simulation.handlers import Handlers
from simulation.judge import CLOSED, Judge
from simulation.letters import LETTERS, NAMED
from simulation.lives import SPAN, life_in
from simulation.loop import BEGAN_S, Stalled, VirtualLoop
from simulation.network import Network
from simulation.odd_letters import append_odd
from simulation.ours import break_letters, break_one
from simulation.plan import FEED_S, Plan
from simulation.referring import KEPT_MS, age_ms, lose, retain
from simulation.sessions import opened_store
from simulation.steering import Steering
from simulation.story import Result, Violation
from simulation.through import scatter
from simulation.worker import SimWorker

REST_S: Final = 240.0
"""Longest time to come to rest after everything has healed, or the last record has come to its end."""
IDLE_S: Final = 60.0
"""After so much of it a lane that has nothing to do gets something."""


class History:
    """Runs a plan. See the module's text."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.random = Random(plan.seed ^ 0x5EED)
        self.reached: Counter[str] = Counter()
        self.network = Network(self.loop, self.random, self.reached)
        mains = ("orders", "refunds") if plan.others else ("orders",)
        self.judges = {main: Judge(plan, main) for main in mains}
        if plan.named:  # first: the names of its topics begin like those of the other one
            self.judges[NAMED] = Judge(replace(plan.of_letters, letters=plan.named, named=plan.letters), NAMED)
        if plan.letters:
            self.judges[LETTERS] = Judge(plan.of_letters, LETTERS)
        self.first = self.judges["orders"]
        for judge in self.judges.values():
            judge.oracle.kills.all_stories = [each.oracle.stories for each in self.judges.values()]
        self.broker = Broker(self.loop, plan.partitions)
        self.broker.on_visible = self._appeared
        self.broker.on_moved = self._moved
        self.broker.forgets_s = plan.forgets_s
        self.disks = [SimDisk() for _ in range(3)]
        self.clocks_ms = list(plan.offsets_ms)
        self.slots: list[SimWorker | None] = [None] * 3
        self.down_until_s = [0.0] * 3
        self.violation: str | None = None
        self._trace = hashlib.blake2b(digest_size=8)
        self._started = 0
        self._handlers = Handlers(
            plan, self.judges, self.broker,
            random=self.random, reached=self.reached, now_ms=self._now_ms, guard=self._guard, note=self._note,
            context=self.network.context,
        )  # fmt: skip

    # -- what it is told ----------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return self.loop.time() * 1000

    def _note(self, *what: object) -> None:
        self._trace.update(repr((round(self.loop.time(), 6), *what)).encode())

    def _guard(self, judge: Callable[[], None]) -> None:
        try:
            judge()
        except Violation as exc:
            self._violated(str(exc))
        except Exception as exc:  # noqa: BLE001 - the engine would take it for a fault of the broker
            self._violated(f"judge: {exc!r}")

    def _violated(self, what: str) -> None:
        if self.violation is None:
            self.violation = f"{what} (at {self.loop.time() - BEGAN_S:.3f} s)"

    def _appeared(self, tp: TopicPartition, records: list[Record]) -> None:
        self._note("visible", tp, [record.offset for record in records])
        owner = next(judge for judge in self.judges.values() if judge.owns(tp.topic))
        self._guard(lambda: owner.oracle.appeared(tp, records, self._now_ms()))
        if (judge := self.judges.get(tp.topic)) is not None and judge.letters is not None:
            self._guard(partial(judge.letters.appeared, records, self._now_ms()))

    def _moved(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        for tp, moved in offsets.items():
            judge = self.judges[tp.topic]
            life = life_in(moved.note, self.broker.life[tp.topic])
            self._guard(partial(judge.oracle.offsets.moved, {tp: moved.offset}, life))
            over = life < self.broker.life[tp.topic]
            self._guard(partial(judge.notes.committed, tp.partition, *moved, self._now_ms(), life, over=over))

    def _observe(self, worker: SimWorker, seen: Observation) -> None:
        judge = self.judges[seen.handler]
        judge.observed[seen.event] += seen.count
        self.reached[seen.event.value] += 1
        if seen.event is Event.CIRCUIT and seen.partition is not None:
            judge.kept.told.add((seen.partition, seen.circuit or ""))
        if seen.event is Event.LANE_INCOMPLETE:
            worker.told_lacking = self.broker.partitions
        if seen.event is Event.LANE_FAILED:
            self.reached["an opening ran out of time"] += (seen.message or "").startswith("opening it took longer")
            self.reached["a changelog was made again, and its lane is closed"] += seen.error_type == CLOSED
            self._guard(lambda: judge.failed(seen.partition, self.loop.time()))
        if seen.event is Event.LANE_OPENED and seen.partition is not None:
            number = seen.partition
            if (store := opened_store(worker, seen.handler, number)) is not None:
                self._guard(lambda: judge.oracle.stores.recovered(number, dict(store.page(None, 1 << 30))))
                self._guard(lambda: judge.kept.opened(worker, self.broker, number))

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
            make_handlers=lambda made: self._handlers.of(made, self._started),
            offset_ms=self.clocks_ms[slot],
            random=self.random,
            observe=self._observe,
            commanded=bool(self.plan.commands),
            looks=any(each.kind == REBORN for each in self.plan.faults),
            slow_letters=self.plan.slow_letters,
            kept_ms=KEPT_MS if self.plan.referred else None,
            slice_size=int(dict(self.plan.bounds).get(SLICE, 20)),
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
                for tp in self._partitions(judge.topology.pending_changelog for judge in self.judges.values()):
                    self.reached["a tombstone has expired"] += self.broker.compact(tp)
            case "retention":
                # history: nobody needs it
                for tp in self._partitions(topic for judge in self.judges.values() for topic in judge.retry_topics):
                    for last in self.broker.visible(tp)[-1:]:
                        self.broker.delete_before(tp, last.offset + 1)
            case "disk full":
                self.disks[slot].full = 1 + int(size * 2)
            case "offsets expire":  # all workers away for longer than the broker remembers a group
                self._kill_all()
                self.broker.forget_group()
            case "members forgotten":  # all join again at once, and get back what they had
                self.broker.forget_members()
            case "refused":
                topics = [topic for judge in self.judges.values() for topic in judge.refusing]
                self.broker.refuse(topics, fault.slot, 0.5 + 6 * size)
            case "fault of ours" if alive and worker and (what := break_one(worker, size)):
                self.reached[f"fault of ours: {what}"] += 1
            case "letters unknown" if alive and worker:
                break_letters(worker)
            case "unread records deleted":
                self._kill_all()
                for judge in self.judges.values():  # once what they have sent has arrived
                    loop.call_later(0.05, judge.lose_unread, self.broker, context=self.network.context)
            case "long way" if alive and worker:
                self.network.longer_s[worker.process.name] = 0.1 + 0.7 * size
            case "wrong time" if alive and worker and worker.clock.known:
                worker.clock.wrong_ms = int((size - 0.5) * 7_200_000)
            case "no end":  # many workers die before they know that it is committed, or just after
                self.broker.leaving = {judge.topology.pending_changelog for judge in self.judges.values()}
                self.broker.on_left = partial(self._unended, size)
                loop.call_later(3, setattr, self.broker, "leaving", (), context=self.network.context)
            case "rows damaged":
                self._kill_all()
                for disk in self.disks:
                    disk.lose()
                for judge in self.judges.values():
                    for number in range(self.plan.partitions):
                        judge.damage(self.broker, number, self.random)
            case "offsets set back":
                self._shut_down(lambda judge: judge.set_back(self.broker, self.random))
            case "changelogs made again":
                self._shut_down(lambda judge: judge.make_again(self.broker))
            case "settled letters deleted":
                for judge in self.judges.values():
                    if judge.letters is not None:
                        judge.letters.retain(self.broker)
            case "main topics made again":
                if size > 0.6:  # else they run on
                    self._kill_all()
                for judge in self.judges.values():
                    loop.call_later(0.05, judge.bear_again, self.broker, context=self.network.context)
            case "broker's clock set":
                self.broker.step_ms += step_ms(fault)
            case "main topic grows":
                complete = grow(self.broker, self.slots, self._guard)
                loop.call_later(4 + 16 * size, complete, context=self.network.context)
            case "start":
                self._start(fault.slot)  # one more, also where that machine was not meant to run
            case _:
                self.reached[f"fault in vain: {fault.kind}"] += 1

    def _kill_all(self) -> None:
        for each in self.slots:
            if each is not None and each.alive:
                each.process.kill()

    def _shut_down(self, decide: Callable[[Judge], None]) -> None:
        """Have somebody stop all workers and do something, once nothing that they have sent is on its way."""
        self._kill_all()
        self.loop.call_later(0.05, self._decide, decide, context=self.network.context)

    def _decide(self, decide: Callable[[Judge], None]) -> None:
        self._kill_all()
        if self.network.last_s > self.loop.time():
            self.reached["somebody did not wait until all had arrived"] += 1
            return
        for judge in self.judges.values():
            decide(judge)

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in topics for number in range(self.plan.partitions)]

    def _continue(self, worker: SimWorker) -> None:
        if worker.alive:
            worker.process.stop_at_step = None
            worker.process.cont()

    def _stop_broker(self, seconds: float) -> None:
        self.reached["a commit was taken back"] += 1
        self.network.down_until_s = self.loop.time() + seconds
        self.loop.call_later(seconds, self.broker.restart, context=self.network.context)

    def _unended(self, size: float, name: str) -> None:
        """Maybe end the worker whose transaction has no end; every other time its machine is lost, too."""
        self.reached["a transaction has no end"] += 1
        for slot, worker in enumerate(self.slots):
            if worker is None or not worker.alive or size > 0.75:
                continue
            if any(placed.transport.place.name == name for placed in worker.ownership.placed.values()):
                after_s = 0.0 if size < 0.4 else 0.03
                self.loop.call_later(after_s, worker.process.kill, context=self.network.context)
                if int(size * 100) % 2:
                    self.loop.call_later(after_s, self.disks[slot].lose, context=self.network.context)

    def _heal(self) -> None:
        self.broker.refuse((), 0, 0.0)
        if any(judge.closed for judge in self.judges.values()):
            self._kill_all()
        for judge in self.judges.values():
            judge.decide(self.broker)
            judge.modes.healed_ms = self._now_ms()
        self.network.down_until_s = self.network.lossy_until_s = self.network.slow_until_s = 0.0
        self.network.late_until_s.clear()
        self.down_until_s = [0.0] * 3
        for slot, worker in enumerate(self.slots):
            self.disks[slot].full = 0
            if worker is not None:
                worker.process.kill_at_step = worker.process.stop_at_step = None
                if worker.process.stopped:
                    self._continue(worker)

    def _send(self, judge: Judge, number: int, script: str, event: int) -> None:
        tp = TopicPartition(judge.topology.main, number)
        offset = self.broker.logs[tp].end + SPAN * self.broker.life[tp.topic]
        value = f"{number}.{offset}:{script}".encode()
        headers: Headers = (("trace", b"\xff%d" % offset),)
        if judge.rule is not None:
            headers = (*headers, ("event-id", b"e%d" % event))
        out = Outgoing(tp.topic, number, self.plan.key(event, offset), value, headers)
        self.broker.append(tp, out)
        entries = self.broker.logs[tp].entries
        if (old_ms := age_ms(event) if self.plan.referred else 0) > 0:
            record = entries[-1].record
            entries[-1] = Entry(replace(record, timestamp_ms=record.timestamp_ms - old_ms), None)
        name = None if judge.rule is None else f"e{event}"
        judge.oracle.add(replace(entries[-1].record, offset=offset), script, name, age_ms=old_ms)

    def _retain(self) -> None:
        retain(self.broker, self.judges.values())
        self.loop.call_later(1.0, self._retain, context=self.network.context)

    def _ask(self) -> None:
        steered = self._steered
        others = steered[1:] if len(steered) < 3 else [self.random.choice(steered[1:])]
        which = steered[0] if not others or self.random.random() < 0.7 else others[0]
        which.send(self._now_ms())

    @property
    def _steered(self) -> list[Steering]:
        return [judge.oracle.steering for judge in self.judges.values() if judge.oracle.steering is not None]

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        hook, sys.unraisablehook = sys.unraisablehook, lambda _told: None
        try:
            with bind(self.plan):
                self.loop.run_until_complete(self._live())
        except Stalled:
            self.violation = self.violation or "I1: everybody waits for ever, or nobody ever waits"
        finally:
            self.loop.abandon()  # its tasks end here: in dead processes, which have no say any more
            sys.unraisablehook = hook
        return Result(
            self.plan,
            self.violation,
            self._trace.hexdigest(),
            sum((judge.reached for judge in self.judges.values()), self.reached),
            self.loop.steps,
            sum(judge.oracle.repeated for judge in self.judges.values()),
        )

    async def _live(self) -> None:
        loop, context, began_s = self.loop, self.network.context, self.loop.time()
        records, first = self.plan.records, self.first
        self.reached["there is no dead-letter topic"] += self.plan.drop
        self.reached.update(f"handlers of letters: {kind}" for kind in self.plan.letters_policy)
        if self.plan.replayed:
            leave_replayed(self.broker, first, lambda: self._send(first, 0, self.plan.replayed, -1))
        sent = [(each, first) for each in enumerate(records)]
        sent += [(each, self.judges["refunds"]) for each in enumerate(self.plan.others)]
        for (event, (at_s, number, script)), judge in sent:
            loop.call_at(began_s + at_s, self._send, judge, number, script, event, context=context)
        for at_s, event in self.plan.repeats:
            loop.call_at(began_s + at_s, self._send, first, *records[event][1:], event, context=context)
        if self.plan.commands:
            self.reached["commands where the newest counts"] += self.plan.order == "latest"
            self.reached["commands beside a delay without end"] += self.plan.endless
            for judge in self.judges.values():
                if judge is first or judge.letters is not None:
                    judge.steer(self.broker, self.random)
                if judge.letters is not None:
                    judge.letters.steering = first.oracle.steering
        for at_s, number, which in self.plan.strays:
            loop.call_at(began_s + at_s, scatter, self.broker, self.judges.values(), number, which, context=context)
        for at_s, number, kind in self.plan.odd_letters:
            loop.call_at(began_s + at_s, append_odd, self.broker, first.topology, number, kind, context=context)
        for at_s in self.plan.commands:
            loop.call_at(began_s + at_s, self._ask, context=context)
        for loss in self.plan.losses:
            self.reached[f"loss: {loss.kind}"] += 1
            loop.call_at(began_s + loss.at_s, lose, self.broker, self.judges.values(), loss, context=context)
        if self.plan.referred:
            self._retain()
        for fault in self.plan.faults:
            loop.call_at(began_s + fault.at_s, self._strike, fault, context=context)
        self._supervise()
        last_s = max(
            [
                FEED_S,
                *(each[0] for each in records),
                *(at_s + 0.1 for at_s, _ in self.plan.repeats),
                *(fault.at_s + 1 for fault in self.plan.faults + self.plan.losses),
                *(odd[0] for odd in self.plan.odd_letters),
                *self.plan.commands,
            ]
        )
        await asyncio.sleep(last_s + self.random.uniform(0, 10) * bool(self.plan.faults))
        self._heal()
        for steering in self._steered:
            steering.send_to_handler("handler-resume", "last")
        until_s, before = loop.time() + REST_S, inf
        while self.violation is None and loop.time() < until_s:
            await asyncio.sleep(0.5)
            self._have_go_on()
            left = sum(len(judge.oracle.open_ends()) for judge in self.judges.values())
            if left < before:  # not "fewer than ever": a job may still replay letters, whose records end once more
                until_s = loop.time() + REST_S
            before = left
            if loop.time() > until_s - REST_S + IDLE_S:
                self.broker.finish_left()
            if self._at_rest():
                await asyncio.sleep(2.0)
                self._guard(self._judge)
                return
        if self.violation is None:
            self._guard(self._judge_restless)

    def _have_go_on(self) -> None:
        """Do what somebody does who finds a partition paused by a rule, or a circuit forced open."""
        steering, stops = self.first.oracle.steering, self.first.oracle.sequences.stops
        if steering is not None and stops is not None and not steering.waiting:  # a job may wait for what is stopped
            for origin in stops.now:
                steering.decide(origin)
        for judge in self.judges.values():
            own = judge.oracle.steering
            if judge.letters is not None and judge.plan.ruled and own is not None and not own.waiting and judge.waits():
                own.send_to_handler("handler-resume", f"handler-resume-{self.loop.time():.1f}")
        pauses = self.plan.levels or (self.plan.stops and bool(self.first.oracle.damages.ever))
        if steering is not None and pauses and not steering.waiting and self.first.waits():
            for verb in ("outage-close", "handler-resume"):
                steering.send_to_handler(verb, f"{verb}-{self.loop.time():.1f}")
            for circuit, *_ in self.plan.services:
                name = f"close-{circuit}-{self.loop.time():.1f}"
                steering.send_to_handler("outage-close", name, circuit)

    def _judge_restless(self) -> None:
        for judge in self.judges.values():
            judge.oracle.at_rest()
        raise Violation("I4: not at rest in time")

    def _at_rest(self) -> bool:
        if any(judge.waits() for judge in self.judges.values()) or any(log.open for log in self.broker.logs.values()):
            return False
        return not any(judge.is_behind(self.broker) for judge in self.judges.values())

    def _judge(self) -> None:
        for judge in self.judges.values():
            self.reached["a progress event"] += judge.judge(self.broker, self.slots)
            self.reached["settled beyond the offset"] += judge.notes.named


def simulate(seed: int) -> Result:
    return History(draw_plan(seed)).run()
