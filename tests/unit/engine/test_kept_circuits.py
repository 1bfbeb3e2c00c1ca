"""What a circuit was is written down: a restart in an outage spends no attempts, and forgets no time of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from doubles import CHANGELOG, BankDownError, pass_time
from test_pace import BREAKER, Service, outage, partition, state, told

from retryapp import RetryPolicy, Unavailable
from retryapp.core.circuit import MOST_SPELLS, Circuit, CircuitBreaker, CircuitState, KeptCircuit
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import HandlerCommand, HandlerVerb, Steering, read_steering
from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.marks import PROGRESS, read_progress
from retryapp.engine.handler.handler import Delivery
from retryapp.ports import Event
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

OPEN, HALF_OPEN, CLOSED = CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED
FEW = tuple(b"%d" % n for n in range(12))
QUICK = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="2s")


def circuit_of(orders: MemoryPartition) -> Circuit:
    """Return the handler's own circuit."""
    return orders.engine.context.pace.gates[""].circuit


def steering(orders: MemoryPartition) -> Steering:
    """Return what is durable of what the partition remembers."""
    return read_steering(written(orders))


def written(orders: MemoryPartition) -> str:
    """Return that as text."""
    records = orders.transport.read(CHANGELOG)
    return read_progress([b"", *(record.value or b"" for record in records if record.key == PROGRESS)][-1]).steering


def kept(orders: MemoryPartition) -> KeptCircuit:
    """Return what is durable of the handler's own circuit."""
    return steering(orders).circuits[""]


def back(orders: MemoryPartition) -> MemoryPartition:
    """Return what the process that was killed last makes of it, had it lived: it has the partition once more."""
    again = partition(orders.handler.function, transport=orders.transport)
    again.handler.known_circuits.update(orders.handler.known_circuits)
    again.engine.context.pace.gates[""].circuit = circuit_of(orders)
    object.__setattr__(again.engine.context, "life", orders.engine.context.life)
    return again


def restarted(service: Any, orders: MemoryPartition, policy: Any = "1s 10s", **options: Any) -> MemoryPartition:
    """Return what a new process makes of it, where the former one was killed."""
    return partition(service, policy, transport=orders.transport, **options)


async def test_a_restart_in_an_outage_begins_half_open_and_says_why() -> None:
    """Pages tell since when it probes."""
    async with outage(*FEW[:4]) as (orders, service):
        cause = circuit_of(orders).cause
    assert cause == "4 of 4 records failed: doubles.BankDownError"
    orders.clock.advance(500)
    async with restarted(service, orders) as orders:
        assert (state(orders), circuit_of(orders).cause) == (HALF_OPEN, cause)
        assert (orders.engine.context.pace.age_ms(circuit_of(orders)), circuit_of(orders).opened) == (0, 1)
        seen = [each for each in orders.observer.seen if each.event is Event.CIRCUIT]
        assert [(each.state, each.message) for each in seen] == [("half-open", cause)]
        assert told(orders) == ["open", "half-open"]


async def test_nothing_is_told_of_a_circuit_that_cannot_be_written_down() -> None:
    """The changelog refuses it for a while: an owner that came then would know nothing of what was told."""
    async with partition(Service(BankDownError())) as orders:
        produce, refuses = orders.transport.broker.produce, [True]

        def refuse(name: str, epoch: int, records: Sequence[Outgoing]) -> list[int]:
            for out in records:
                if refuses and out.key == PROGRESS and read_steering(read_progress(out.value or b"").steering).circuits:
                    raise HandOffRefusedError(out.topic, "MessageSizeTooLargeError", len(out.value or b""))
            return produce(name, epoch, records)

        orders.transport.broker.produce = refuse  # type: ignore[method-assign]
        await orders.send(*FEW[:4])
        await orders.advance(10)
        assert (state(orders), told(orders), steering(orders).circuits) == (OPEN, [], {})
        refuses.clear()
        await orders.advance(1_500)
        assert (told(orders), kept(orders).state) == (["open"], OPEN)


async def test_restarts_in_an_outage_spend_no_attempt() -> None:
    """A few records probe after each, as they would have done without it, and all are done once the service is back."""
    async with outage(*FEW) as (orders, service):
        await pass_time(orders, 20_000)
    for _ in range(3):
        calls = len(service.calls)
        async with restarted(service, orders) as orders:
            assert len(service.calls) <= calls + BREAKER.probes
            await pass_time(orders, 20_000)
            assert state(orders) is not CLOSED
    async with restarted(service, orders) as orders:
        service.down = None
        await pass_time(orders, 30_000)
        assert (sorted(service.done), orders.dead_letters) == (sorted(FEW), [])
        assert told(orders)[-3:] == ["half-open", "recovering", "closed"]
        last = {value: attempt for _, value, attempt in service.calls}
        assert sum(last.values()) - len(last) == 3, "what had failed before it opened"


async def test_a_deadline_does_not_count_an_outage_that_goes_on_over_the_restart() -> None:
    """A record had failed before it, and fails once more after it: by the clock it would be expired."""
    assert await fate_over_a_restart(over=False) == ["exhausted"]


async def test_a_deadline_does_not_count_an_outage_that_was_over_before_the_restart() -> None:
    """The same, with a restart before its next attempt."""
    assert await fate_over_a_restart(over=True) == ["exhausted"]


async def fate_over_a_restart(*, over: bool) -> list[str | None]:
    """Return what a record dies of that fails before and after an outage, and a restart when that is `over` or not."""
    service, policy = Service(), RetryPolicy("20s 10s", max_elapsed="40s")
    async with partition(service, policy, circuit=QUICK) as orders:
        await orders.send(service.poison)
        service.down = BankDownError()
        await orders.advance(1_000)
        await orders.send(*FEW)
        assert state(orders) is OPEN
        await pass_time(orders, 60_000, 500)
        if over:
            service.down = None
            while state(orders) is not CLOSED:
                await orders.advance(100)
    async with restarted(service, orders, policy, circuit=QUICK) as orders:
        service.down = None
        await pass_time(orders, 60_000, 500)
        return [letter.reason for letter in orders.dead_letters]


async def test_the_longest_time_goes_on_over_a_restart_without_the_time_elsewhere() -> None:
    """Two thirds of it were over; while nobody had the partition, nobody has probed."""
    service, breaker = Service(), CircuitBreaker(minimum_calls=4, break_for="2s", ramp="2s", max_open="30s")
    service.down = BankDownError()
    async with partition(service, "1s", circuit=breaker) as orders:
        await orders.send(*FEW)
        await pass_time(orders, 20_000)
        used_ms = kept(orders).used_ms
        assert 10_000 <= used_ms <= 20_000
    orders.clock.advance(3_600_000)
    async with restarted(service, orders, "1s", circuit=breaker) as orders:
        await pass_time(orders, 30_000 - used_ms - 1_000)
        assert (state(orders) is not CLOSED, orders.dead_letters) == (True, [])
        while state(orders) is not CLOSED:
            await orders.advance(100)
        assert told(orders)[-1] == "closed"
        await orders.to_rest()
        assert len(orders.dead_letters) == len(FEW)


async def test_what_another_owner_has_made_of_it_counts() -> None:
    """One that it has let close is closed, also for an owner that remembers it open; one that it has opened probes."""
    async with outage(*FEW) as (first, service):
        assert state(first) is OPEN
    async with restarted(service, first) as other:
        service.down = None
        while state(other) is not CLOSED:
            await other.advance(100)
        closed_ms = other.clock.wall_ms()
    async with back(first) as orders:
        assert state(orders) is CLOSED
        assert orders.engine.context.pace.away_ms(closed_ms - 1_000, orders.clock.wall_ms()) == 1_000
        assert told(orders)[-1] == "closed"
    async with restarted(service, orders) as other:
        assert state(other) is CLOSED
        service.down = BankDownError()
        await other.send(*(b"new %d" % n for n in range(12)))
        assert state(other) is OPEN
    async with back(first) as orders:
        assert told(orders)[-3:] == ["open", "half-open", "open"]


async def test_a_process_goes_on_with_what_it_knows_where_nobody_has_written_since() -> None:
    """It knows the end of the break."""
    async with outage(*FEW) as (orders, service):
        await pass_time(orders, 10_000)
        while state(orders) is not OPEN:
            await orders.advance(100)
    calls = len(service.calls)
    async with back(orders) as again:
        assert (state(again), len(service.calls)) == (OPEN, calls)


async def test_what_was_read_once_is_no_news_when_the_lane_opens_again() -> None:
    """It has opened since, and that is not written."""
    service, breaker = Service(), CircuitBreaker(minimum_calls=4, break_for="1h")
    service.down = BankDownError()
    async with partition(service, circuit=breaker) as orders:
        await orders.send(*FEW)
    lost = orders.transport.pause(Step.COMMIT, after=2)
    async with restarted(service, orders, circuit=breaker) as orders:
        await orders.advance(100)
        calls = len(service.calls)
        assert (lost.reached, kept(orders).opened, circuit_of(orders).opened) == (True, 1, 2)
        while kept(orders).opened == 1:
            await orders.advance(100)
        assert [seen.event for seen in orders.observer.seen].count(Event.LANE_FAILED) == 1
        assert (state(orders), len(service.calls)) == (OPEN, calls)


@pytest.mark.parametrize("known", [False, True])
async def test_a_change_that_a_lane_drops_is_written_when_it_opens_again(known: bool) -> None:
    """By the process that knows it; to another one the former state counts: it probes."""
    async with outage(*FEW, circuit=QUICK) as (orders, service):
        service.down = None
        while state(orders) is not CircuitState.RECOVERING:
            await orders.advance(100)
        await orders.advance(1_700)
        await orders.advance(200)
        assert (len(service.done), orders.lane.busy, state(orders)) == (12, False, CircuitState.RECOVERING)
        if known:
            orders.transport.fail(Step.COMMIT, ConnectionError("cut"))
        else:
            orders.transport.pause(Step.COMMIT)
        while state(orders) is not CLOSED:
            await orders.advance(100)
        await pass_time(orders, 2_000)
        assert kept(orders).closed is known
        assert known is any(seen.event is Event.LANE_FAILED for seen in orders.observer.seen)
    async with restarted(service, orders, circuit=QUICK) as orders:
        assert state(orders) is (CLOSED if known else HALF_OPEN)


async def test_a_clock_that_is_behind_makes_no_time_of_an_outage() -> None:
    """It began in the future, so it begins now, less what is known to have passed."""
    async with outage(*FEW) as (orders, service):
        await pass_time(orders, 20_000)
        used_ms = kept(orders).used_ms
    orders.clock.jump_wall(-7_200_000)
    async with restarted(service, orders) as orders:
        now_ms = orders.clock.wall_ms()
        assert orders.engine.context.pace.away_ms(now_ms - 3_600_000, now_ms) == used_ms


async def test_only_circuits_that_have_opened_are_written_and_those_that_are_gone_go() -> None:
    """Each transaction has all of it."""
    service = Service()
    services = {"ledger": BREAKER, "mail": BREAKER}

    async def handler(value: bytes, delivery: Delivery) -> None:
        if service.down is not None:
            raise Unavailable(value.decode())
        await service(value, delivery)

    async with partition(handler, circuit=None, circuits=services) as orders:
        await orders.send(*FEW)
        assert written(orders) == ""
        service.down = BankDownError()
        await orders.send(*[b"ledger"] * 6, *[b"mail"] * 6)
        assert {name: each.state for name, each in steering(orders).circuits.items()} == dict.fromkeys(services, OPEN)
    async with partition(handler, circuit=None, circuits={"mail": BREAKER}, transport=orders.transport) as orders:
        await pass_time(orders, 10_000)
        assert [*steering(orders).circuits] == ["mail"]


async def test_the_last_outages_are_written_down_and_no_more() -> None:
    """Each transaction has all of it."""
    service = Service()
    async with partition(service, circuit=QUICK) as orders:
        for turn in range(MOST_SPELLS + 2):
            service.down = BankDownError()
            await orders.send(*(b"%d %d" % (turn, n) for n in range(4)))
            assert state(orders) is OPEN
            service.down = None
            while state(orders) is not CLOSED:
                await orders.advance(100)
        spells = kept(orders).spells
        assert (len(spells), spells == tuple(sorted(spells))) == (MOST_SPELLS, True)
        assert spells[-1][1] == orders.clock.wall_ms()
        assert len(written(orders)) < 700


async def test_the_time_before_somebody_forced_it_open_is_not_forgotten() -> None:
    """It had opened by itself; a restart comes when it is let go."""
    service = Service(BankDownError())
    async with partition(service) as orders:
        began_ms = orders.clock.wall_ms()
        await orders.send(*FEW)
        await pass_time(orders, 10_000)
        await orders.obey(HandlerCommand(id="open", verb=HandlerVerb.OPEN))
        await pass_time(orders, 10_000)
        await orders.obey(HandlerCommand(id="close", verb=HandlerVerb.CLOSE))
    async with restarted(service, orders) as orders:
        assert orders.engine.context.pace.away_ms(began_ms, orders.clock.wall_ms()) == 20_000
        assert told(orders)[-1] in ("half-open", "open")


def test_builds_that_do_not_know_each_other_read_what_they_know() -> None:
    """An older one has written nothing of circuits; a newer one may write more of them."""
    assert read_steering('{"v":1,"pauses":[[1,2]]}').circuits == {}
    text = '{"pauses":[[1,2]],"circuits":{"":{"state":"closed","by":"a","spells":[[3,4]],"more":1}},"more":2}'
    assert read_steering(text).all_pauses == {"": [(1, 2), (3, 4)]}
