"""The handlers of simulated workers: they do what the scripts of their records say, and tell the judges."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from functools import partial
from random import Random
from typing import NamedTuple

from retryapp.core.batch import Batch
from retryapp.core.holding import Holding
from retryapp.core.publication import TopicLook
from retryapp.engine.handler.handler import Delivery, Handler, Order
from retryapp.engine.handler.publish import Destinations
from retryapp.ports import TopicPartition
from simulation.bounds import IN_FLIGHT, binding
from simulation.broker import Broker
from simulation.judge import Judge
from simulation.lives import key_of
from simulation.loop import BEGAN_S
from simulation.modes import CONCURRENCY, instant_ms
from simulation.oracle import TIMED_OUT
from simulation.plan import Plan
from simulation.scripts import POLICIES, end
from simulation.services import circuits_of
from simulation.sessions import claimed, drains, is_owner, opening_of, session_of, taken_in
from simulation.story import FINE, Call, Going, Origin, must
from simulation.tries import LIST
from simulation.worker import SimWorker


class _Open(NamedTuple):
    """A call of a record that has begun."""

    origin: Origin
    attempt: int
    now: str
    """What its script says."""
    started_ms: float
    going: Going
    in_place: bool


class Handlers:
    """Makes them; `guard` takes what judges find, `note` what there is to see."""

    def __init__(
        self,
        plan: Plan,
        judges: dict[str, Judge],
        broker: Broker,
        *,
        random: Random,
        reached: Counter[str],
        now_ms: Callable[[], float],
        context: Context,
        guard: Callable[[Callable[[], None]], None],
        note: Callable[..., None],
    ) -> None:
        self._plan = plan
        self._judges = judges
        self._broker = broker
        self._random = random
        self._reached = reached
        self._now_ms = now_ms
        self._broker_context = context
        self._guard = guard
        self._note = note

    def of(self, worker: SimWorker, number: int) -> list[Handler]:
        return [self._handler(worker, judge, number % 2) for judge in self._judges.values()]

    def _handler(self, worker: SimWorker, judge: Judge, other: int) -> Handler:
        async def handle(_value: bytes, delivery: Delivery) -> None:
            await self._handle(worker, judge, delivery)

        async def handle_list(values: list[bytes], deliveries: list[Delivery]) -> None:
            await self._handle_list(worker, judge, values, deliveries)

        kept = not judge.plan.changes or other == 0
        order = judge.oracle.sequences.orders[worker.process.name] = judge.plan.order if kept else "none"
        policy = judge.oracle.waits.followed[worker.process.name] = other if judge.plan.changes else 0
        return Handler(
            function=handle_list if judge.plan.batch else handle,
            batch=Batch(LIST, "40ms") if judge.plan.batch else None,
            topology=judge.topologies[policy],
            policy=judge.policies[policy],
            concurrency=CONCURRENCY,
            max_in_flight=judge.plan.in_flight,
            max_in_flight_bytes=int(dict(judge.plan.bounds).get(IN_FLIGHT, 16 << 20)),
            order=Order(order),
            holding=self._holding(judge, order),
            by_reference=judge.plan.referred and kept,
            through_main=judge.plan.through and kept,
            **judge.options,
            destinations=Destinations(self, worker.clock, lambda: judge.topology.owned),
        )

    def _holding(self, judge: Judge, order: str) -> Holding:
        if order == "none" or judge.oracle.steering is None:
            return Holding()
        on_dead = "hold" if judge.plan.stops else "release"
        if judge.plan.caps is None:
            return Holding(on_dead=on_dead)
        sequences, size, overflow = judge.plan.caps
        return Holding(on_dead=on_dead, max_sequences=sequences, max_sequence_size=size, overflow=overflow)

    async def look(self, _topic: str) -> TopicLook:
        """Describe a topic that the handler publishes to; see `ports.DestinationReader`."""
        return TopicLook(self._plan.partitions + 1)

    async def _handle(self, worker: SimWorker, judge: Judge, delivery: Delivery) -> None:
        call = self._begin(worker, judge, delivery)
        now = call.now
        try:
            await self._run(worker, call)
        except asyncio.CancelledError:  # a time-out (also of a process that was stopped meanwhile), or it was given up
            self._stop(worker, judge, call)
            if now == "H":
                self._reached["a handler did not heed its cancellation"] += 1
                await asyncio.sleep(self._random.choice((0.5, 1.5, 4.0)))
            raise
        finally:
            judge.oracle.stories[call.origin].going.remove(call.going)
        self._end(worker, judge, call, fine=now in FINE)
        end(now, 1 if judge.letters is not None else call.origin[1], self._instant_s(judge, call))

    async def _handle_list(
        self, worker: SimWorker, judge: Judge, values: list[bytes], deliveries: list[Delivery]
    ) -> None:
        alone = any(delivery.last_error_type == TIMED_OUT for delivery in deliveries)
        self._guard(lambda: judge.tries.gathered(len(values), alone=alone))
        calls = [self._begin(worker, judge, delivery) for delivery in deliveries]
        try:
            for call in calls:
                await self._run(worker, call)
        except asyncio.CancelledError:
            for call in calls:
                self._stop(worker, judge, call)
            if any(call.now == "H" for call in calls):
                await asyncio.sleep(self._random.choice((0.5, 1.5, 4.0)))
            raise
        finally:
            for call in calls:
                judge.oracle.stories[call.origin].going.remove(call.going)
        raises = [call.origin[1] for call in calls if call.now == "Z"]
        for call, delivery in zip(calls, deliveries, strict=True):
            if raises and drains(worker, judge.topology.main, call.origin[0]):
                judge.oracle.given_back(call.origin, call.attempt, delivery.due_at_ms)
            self._end(worker, judge, call, fine=call.now in FINE and not raises)
            try:
                end(call.now, call.origin[1], self._instant_s(judge, call))
            except Exception as error:  # noqa: BLE001 - whatever the step says
                delivery.fail(error)
        if raises:  # each for a cause of its own, or all of them might be nobody's fault
            raise type(f"Poison{raises[0]}Error", (Exception,), {})

    @staticmethod
    def _instant_s(judge: Judge, call: _Open) -> float:
        return instant_ms(judge.oracle.stories[call.origin], call.attempt) / 1_000

    def _begin(self, worker: SimWorker, judge: Judge, delivery: Delivery) -> _Open:
        place, attempt = delivery.origin, delivery.attempt
        origin = key_of(place.topic_id, place.partition, place.offset)
        if self._broker.life[place.topic]:
            judge.named_rightly(origin, delivery.raw_value)
        number, oracle, main = delivery.hot_attempt, judge.oracle, judge.topology.main
        now = judge.step(origin, attempt, self._now_ms() / 1_000 - BEGAN_S)
        seen = (delivery.key, delivery.raw_value, delivery.headers, delivery.timestamp_ms)
        started_ms = self._now_ms()
        self._note("begun", worker.process.name, origin, attempt)
        if judge.plan.publishes:
            delivery.publish(judge.names.results, b"%d" % attempt, key=b"%d" % origin[1], partition=origin[0])
        opening, again = opening_of(worker, main, origin[0]), delivery.due_at_ms is not None
        going = Going(worker.process.name, again, judge.modes.service_of(origin, delivery.due_at_ms) if again else "")
        session = session_of(worker, main, origin[0])
        self._guard(lambda: judge.tries.begun(origin, attempt, number, now, session))
        if number == 1:
            self._guard(lambda: oracle.begun(origin, attempt, delivery.due_at_ms, seen, started_ms, opening))
            if opening is not None:
                owner, replays = is_owner(worker, main, origin[0]), oracle.sequences.replays
                self._guard(lambda: replays.begun(origin, opening, owner=owner))
        # a copy that the broker took back was there, for all that its session can know
        if (copies := oracle.copies) is not None and judge.through(worker) and not self._broker.taken_back[main]:
            self._guard(lambda: copies.begun(origin, delivery.number))
        if (letters := judge.letters) is not None:
            self._guard(partial(letters.begun, origin, delivery.letter, opening))
        self._guard(lambda: judge.services.begun(worker, origin, delivery.due_at_ms, started_ms))
        self._guard(lambda: oracle.check_key(origin, delivery.idempotency_key[36:]))
        self._guard(lambda: oracle.goes_on(origin, going, started_ms))
        due_at_ms, name = delivery.due_at_ms, worker.process.name
        circuits = circuits_of(worker, main, origin[0])
        self._guard(lambda: judge.modes.check_running(origin, name, started_ms))
        self._guard(lambda: judge.modes.check_places(origin, going, started_ms))
        self._guard(lambda: judge.modes.check_turn(circuits, origin, going, due_at_ms, started_ms))
        self._guard(lambda: judge.modes.check_late(origin, due_at_ms, started_ms))
        if number == 1 and due_at_ms is not None:
            self._guard(lambda: judge.modes.begun(origin, attempt, due_at_ms, started_ms, opening))
        silent_ms = started_ms - self._broker.heard_s.get(worker.consumer.member, 0.0) * 1000
        self._guard(lambda: judge.check_silence(origin, silent_ms))
        self._guard(lambda: judge.check_closed(origin))
        lacked = origin[0] >= self._broker.complete
        self._reached["a record of a new partition began"] += origin[0] >= self._plan.partitions
        self._guard(lambda: must(not lacked, "I29", origin, "begins, and our topics have no such partition"))
        self._guard(lambda: judge.check_bound(taken_in(worker, main, origin[0]), claimed(worker, main, origin[0])))
        if judge.plan.bounds and (placed := worker.ownership.placed.get((main, origin[0]))) is not None:
            self._reached.update(binding(placed.engine))
        if opening is not None:
            self._guard(partial(judge.fences.begun, origin, delivery.fence, opening))
            note = self._broker.notes.get(TopicPartition(main, origin[0]), "")
            self._guard(lambda: oracle.offsets.suspects(origin, attempt, delivery.due_at_ms, note, opening))
        if now == "G":
            now = "F" if number == 1 else "S"
        if now == "W" and oracle.steering is not None:
            now = "S" if delivery.released else "W"
            if now == "W":
                later = partial(asyncio.get_running_loop().call_later, context=self._broker_context)
                oracle.steering.release(origin, delivery.number, later=later)
        return _Open(origin, attempt, now, started_ms, going, in_place=number > 1)

    def _stop(self, worker: SimWorker, judge: Judge, call: _Open) -> None:
        # where its process was stopped, the pool may have cancelled it long before it hears of that
        call.going.cancelled_ms = min(self._now_ms(), call.started_ms + POLICIES[0].timeout_ms)
        told = Call(worker.process.name, call.started_ms, self._now_ms(), fine=False, in_place=call.in_place)
        judge.oracle.stopped(call.origin, call.attempt, told)

    def _end(self, worker: SimWorker, judge: Judge, call: _Open, *, fine: bool) -> None:
        self._note("ended", worker.process.name, call.origin, call.attempt)
        told = Call(worker.process.name, call.started_ms, self._now_ms(), fine=fine, in_place=call.in_place)
        judge.oracle.ended(call.origin, call.attempt, told)
        judge.ended(worker, call.origin, call.attempt, call.now)

    async def _run(self, worker: SimWorker, call: _Open) -> None:
        if call.now in "XK":
            await asyncio.sleep(self._random.uniform(0.0, 1.9) if call.now == "K" else 0)
            self._reached["a handler ended its worker"] += 1
            for main in (judge.oracle.main for judge in self._judges.values() if judge.oracle.main is not None):
                main.deaths_ms.append(self._now_ms())
            worker.process.kill()
        if call.now in "THXK":
            await asyncio.sleep(60)
        if call.now == "W":
            await asyncio.sleep(self._random.choice((0.0, 0.1, 0.6)))
        await asyncio.sleep(1.2 if call.now == "D" else (call.origin[1] * 7 + call.attempt * 3) % 5 * 0.01)
