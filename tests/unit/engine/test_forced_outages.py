"""A circuit that somebody has forced open: nothing begins, no attempt is spent, and it stays so over restarts."""

from __future__ import annotations

import pytest
from doubles import BankDownError, Gate, pass_time, serving, tell
from test_pace import BREAKER, Service, outage, partition, state, told

from retryapp import Defer, RetryPolicy
from retryapp.core.circuit import CircuitBreaker, CircuitState
from retryapp.core.control import Refusal
from retryapp.core.jobs import HandlerVerb
from retryapp.engine.handler.handler import Delivery
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

OPEN, CLOSE = HandlerVerb.OPEN, HandlerVerb.CLOSE
FORCED, CLOSED = CircuitState.FORCED_OPEN, CircuitState.CLOSED


async def test_nothing_begins_until_it_is_let_go_and_then_a_few_try() -> None:
    """Neither first deliveries nor retries, however long it takes; what probes well ends it."""
    async with outage(b"one", policy="1s") as (orders, service):
        outcome = await tell(orders, OPEN, by="ann", why="ledger down")
        assert (outcome["before"], outcome["after"]) == ("closed", "forced open by ann: ledger down")
        await orders.send(*(b"%d" % n for n in range(20)))
        await pass_time(orders, 7_200_000, 600_000)
        assert len(service.calls) == 1
        service.down = None
        outcome = await tell(orders, CLOSE)
        assert (outcome["before"], outcome["after"]) == ("forced open by ann: ledger down", "half-open")
        assert orders.engine.context.pace.gates[""].circuit.cause == "was forced open by ann: ledger down"
        assert len(service.calls) == 1 + BREAKER.probes
        await orders.to_rest()
        assert (len(service.done), orders.dead_letters) == (21, [])
        assert told(orders)[:3] == ["forced-open", "half-open", "recovering"]


async def test_it_stays_forced_open_over_a_restart_and_says_since_when() -> None:
    """Of whichever worker, also one without the group's offsets."""
    service = Service()
    orders = partition(service)
    async with orders:
        await tell(orders, OPEN, by="ann")
        began_ms = orders.clock.wall_ms()
    for forget in (False, True):
        orders.clock.advance(60_000)
        if forget:
            orders.transport.broker.notes.clear()
        async with partition(service, transport=orders.transport) as orders:
            await orders.send(b"one")
            await pass_time(orders, 60_000, 10_000)
            commands = orders.engine.commands
            assert commands is not None
            assert (commands.levels.forced[""].since_ms, commands.levels.forced[""].revision) == (began_ms, 0)
            assert (state(orders), service.calls) == (FORCED, [])
    async with partition(service, transport=orders.transport) as orders:
        await tell(orders, CLOSE)
        await orders.to_rest()
        assert service.done == [b"one", b"one"]


async def test_a_failure_that_was_on_its_way_spends_no_attempt() -> None:
    """What runs goes on, and its service was down."""
    gate = Gate()
    async with partition(gate, "1s") as orders:
        await orders.send(b"one")
        await tell(orders, OPEN)
        gate.let(b"one", BankDownError())
        await pass_time(orders, 60_000, 10_000)
        assert (gate.started, orders.dead_letters) == ([b"one"], [])
        await tell(orders, CLOSE)
        await pass_time(orders, 4_000)
        await gate.end_all(orders)
        assert orders.dead_letters == []


async def test_its_end_has_to_be_durable_before_records_probe() -> None:
    """Else a crash would leave it forced open, with records that have run."""
    service = Service()
    orders = partition(service)
    async with orders:
        await tell(orders, OPEN)
        await orders.send(b"one")
        dying = orders.transport.pause(Step.COMMIT)
        with pytest.raises(AssertionError, match="no outcome"):
            await tell(orders, CLOSE)
        assert dying.reached
        assert service.calls == []


async def test_probes_that_fail_after_it_have_all_of_the_longest_time() -> None:
    """The hours of an outage that somebody knows of count for nothing: neither for `max_open` nor for a deadline."""
    service = Service(BankDownError())
    breaker = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="2s", max_open="1m")
    async with partition(service, RetryPolicy("1s 10s", max_elapsed="30s"), circuit=breaker) as orders:
        await orders.send(*(b"%d" % n for n in range(3)))
        await tell(orders, OPEN)
        await pass_time(orders, 3_600_000, 600_000)
        await tell(orders, CLOSE)
        await pass_time(orders, 20_000)
        assert state(orders) is not CLOSED
        service.down = None
        await pass_time(orders, 60_000)
        assert (sorted(service.done), orders.dead_letters) == ([b"0", b"1", b"2"], [])


async def test_time_of_a_forced_outage_counts_once_also_after_a_restart() -> None:
    """The circuit's own memory of it, the durable one, and a pause at the same time overlap; then it probes in vain."""
    service = Service(BankDownError())
    orders = partition(service)
    async with orders:
        since_ms = orders.clock.wall_ms()
        await tell(orders, OPEN)
        await tell(orders, HandlerVerb.PAUSE)
        await orders.advance(60_000)
        await tell(orders, HandlerVerb.RESUME)
        await orders.advance(60_000)
        await tell(orders, CLOSE)
        assert orders.engine.context.pace.away_ms(since_ms, orders.clock.wall_ms()) == 120_000
    async with partition(service, transport=orders.transport) as orders:
        await pass_time(orders, 60_000)
        away_ms = orders.engine.context.pace.away_ms(since_ms, orders.clock.wall_ms())
        assert (state(orders), away_ms) == (CLOSED, 120_000 + BREAKER.longest_break_ms)


async def test_an_open_circuit_can_be_let_probe_at_once() -> None:
    """Who knows that the service is back does not wait for the end of the break."""
    service = Service(BankDownError())
    async with partition(service, circuit=CircuitBreaker(minimum_calls=4, break_for="1h")) as orders:
        await orders.send(*(b"%d" % n for n in range(8)))
        assert state(orders) is CircuitState.OPEN
        service.down = None
        assert (await tell(orders, CLOSE))["after"] == "half-open"
        await pass_time(orders, 7_200_000, 30_000)
        assert len(service.done) == 8
        assert (await tell(orders, CLOSE))["text"] == "it is closed"


async def test_a_handler_without_a_circuit_is_paused_instead() -> None:
    """There is nothing that could be open; what was forced when it had one can be taken back."""
    orders = partition(Service())
    async with orders:
        await tell(orders, OPEN)
    async with MemoryPartition(Service(), transport=orders.transport) as orders:
        assert (await tell(orders, CLOSE))["refused"] is None
        for verb, instead in ((CLOSE, ""), (OPEN, ": pause it instead")):
            refused = await tell(orders, verb)
            assert refused["refused"] == Refusal.NO_CIRCUIT
            assert refused["text"] == f"this handler has no circuit of its own{instead}"


async def test_a_deadline_that_passes_in_an_outage_takes_the_place_of_no_probe() -> None:
    """Nothing calls the service then: each would have the others wait for a break."""
    calls: list[bytes] = []

    async def handle(value: bytes, delivery: Delivery) -> None:
        calls.append(value)
        if delivery.number == 1:
            raise Defer("1s")

    async with serving(handle, "1h", *(b"%d" % n for n in range(20)), circuit=BREAKER) as (orders, _):
        await tell(orders, OPEN)
        await pass_time(orders, 60_000, 10_000)
        await tell(orders, CLOSE)
        assert len(calls) == 20 + BREAKER.probes
