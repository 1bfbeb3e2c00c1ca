"""A circuit holds deliveries back; nothing is lost, or spent in an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from doubles import BankDownError, Gate, events_of, pass_time, reopen, tell
from multidict import CIMultiDict

from retryapp.core.circuit import CircuitBreaker, CircuitState
from retryapp.core.headers import decode_metadata
from retryapp.core.http import http_errors
from retryapp.core.jobs import HandlerVerb
from retryapp.core.lifecycle import CircuitChanged
from retryapp.core.policy import RetryPolicy
from retryapp.core.verdicts import Reject, RetryLater
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.handler.handler import Delivery
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, ScriptedRandom
from retryapp.testing.lane import Step

BREAKER = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="10s", max_open="10m")


class Service:
    """What the handler calls: down or not, and who called."""

    def __init__(self, down: BaseException | None = None) -> None:
        self.down = down
        self.calls: list[tuple[float, bytes, int]] = []
        self.done: list[bytes] = []
        self.poison = b"poison"

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        """Fail while it is down, and at the poison always."""
        self.calls.append((asyncio.get_running_loop().time(), value, delivery.attempt))
        if self.down is not None:
            raise self.down
        if value == self.poison:
            raise BankDownError
        self.done.append(value)


def partition(service: Any, policy: RetryPolicy | str = "1s 10s", **options: Any) -> MemoryPartition:
    return MemoryPartition(service, policy, **{"circuit": BREAKER, "concurrency": 4, **options})


@asynccontextmanager
async def outage(
    *values: bytes, policy: RetryPolicy | str = "1s 10s", **options: Any
) -> AsyncIterator[tuple[MemoryPartition, Service]]:
    """Run such a partition whose service is down, with records on it."""
    service = Service(BankDownError())
    async with partition(service, policy, **options) as orders:
        await orders.send(*values)
        yield orders, service


def state(orders: MemoryPartition) -> CircuitState:
    circuit = orders.engine.context.pace.circuit
    assert circuit is not None
    return circuit.state


def told(orders: MemoryPartition) -> list[str]:
    return [event.to_state for event in events_of(orders, CircuitChanged)]


async def test_an_outage_spends_no_attempts_and_everything_is_done_after_it() -> None:
    """Longer than all attempts and the deadline: none is dead, and few calls are made."""
    service = Service()
    async with partition(service, RetryPolicy("5s 5s", max_elapsed="20s")) as orders:
        await orders.send(*(b"before %d" % n for n in range(20)))
        service.down = BankDownError()
        for n in range(300):
            await orders.send(b"%03d" % n)
            await orders.advance(200)
        calls = len(service.calls) - 20
        assert state(orders) is not CircuitState.CLOSED
        assert orders.engine.context.pace.holds_due == "circuit"
        assert calls < 100, "300 records, and 3 attempts each"
        service.down, healed_ms = None, orders.clock.wall_ms()
        await pass_time(orders, 40_000)
        assert state(orders) is CircuitState.CLOSED
        assert orders.engine.context.pace.holds_due is None
        assert len(service.done) == 320
        assert orders.clock.wall_ms() - healed_ms <= 40_000
        assert orders.waiting == {}
        assert not [seen for seen in orders.observer.seen if seen.event is Event.DEAD]
        last = {value: attempt for _, value, attempt in service.calls}
        assert sum(last.values()) - len(last) <= 25, "what had failed before it opened, and no more"
        assert told(orders)[0] == "open"
        assert told(orders)[-3:] == ["half-open", "recovering", "closed"]
        seen = [each.state for each in orders.observer.seen if each.event is Event.CIRCUIT]
        assert seen == told(orders)


async def test_first_deliveries_wait_too_and_the_partition_is_not_paused() -> None:
    """They stay unread but for those that probe; nothing runs in the break."""
    async with outage(*(b"%02d" % n for n in range(40))) as (orders, service):
        assert len(service.calls) <= 8
        assert orders.engine.room(orders.engine.sources[0]) == 0
        before = len(service.calls)
        await pass_time(orders, 1_900)
        assert len(service.calls) == before
        service.down = None
        await pass_time(orders, 20_000)
        assert sorted(service.done) == [b"%02d" % n for n in range(40)]
        assert not orders.engine.context.pace.gates[""].admitted, "what has ended is forgotten"


async def test_a_row_of_an_outage_keeps_its_attempt_and_counts_its_deliveries() -> None:
    """Also at the last attempt, and at the first, where none is spent yet."""
    async with outage(*(b"%02d" % n for n in range(8)), policy="1s") as (orders, service):
        await pass_time(orders, 30_000)
        rows = [decode_metadata(record.headers) for record in orders.transport.read(orders.engine.rows)]
        found = {(row.attempt, row.delivery) for row in rows if row is not None}
        waits_ms = {(row.due_at_ms or 0) - row.last_failed_ms for row in rows if row is not None}
        assert min(waits_ms - {1_000}) >= 2_000, "until the circuit may probe again"
        assert (0, 1) in found
        assert any(delivery > attempt + 1 for attempt, delivery in found)
        assert {attempt for attempt, _ in found} == {0, 1}
        service.down = None
        await pass_time(orders, 30_000)
        assert len(service.done) == 8
        assert max(attempt for *_, attempt in service.calls) == 2


async def test_a_poison_record_keeps_nobody_waiting() -> None:
    """Its repeats do not open the circuit, its probe does not keep it open, and its attempts end it."""
    service = Service()
    async with partition(service, "100ms 100ms") as orders:
        await orders.send(service.poison)
        for n in range(50):
            await orders.send(b"%d" % n)
            await orders.advance(100)
        assert told(orders) == []
        await orders.advance(11_000)
        service.down = BankDownError()
        await orders.send(service.poison, *(b"out %d" % n for n in range(6)))
        await orders.advance(100)
        assert state(orders) is CircuitState.OPEN
        service.down = None
        await pass_time(orders, 30_000)
        assert len(service.done) == 56
        assert [seen.reason for seen in orders.observer.seen if seen.event is Event.DEAD] == ["exhausted"] * 2


async def test_verdicts_open_no_circuit() -> None:
    """A record that is wrong, and a time that the handler names, say nothing of an outage."""
    for error in (Reject("no"), RetryLater(60)):
        service = Service()
        service.down = error
        async with partition(service) as orders:
            await orders.send(*(b"%d" % n for n in range(30)))
            assert (len(service.calls), told(orders)) == (30, [])


async def test_an_answer_with_retry_after_counts_as_one_without() -> None:
    """An outage may say how long it takes: in it no attempt is spent, and no record is back before that."""
    info: Any = SimpleNamespace(real_url="http://ledger")
    service = Service(aiohttp.ClientResponseError(info, (), status=503, headers=CIMultiDict({"Retry-After": "60"})))
    async with partition(service, RetryPolicy("1s 10s", on=[http_errors()])) as orders:
        await orders.send(*(b"%d" % n for n in range(8)))
        assert (told(orders), len(service.calls)) == (["open"], 4)
        await pass_time(orders, 59_000)
        rows = [decode_metadata(record.headers) for record in orders.transport.read(orders.engine.rows)]
        assert {row.attempt for row in rows if row is not None} == {0, 1}
        service.down = None
        await pass_time(orders, 120_000)
        assert (len(service.done), orders.dead_letters) == (8, [])


async def test_a_hung_probe_holds_up_nothing() -> None:
    """Others probe meanwhile, and end the outage."""
    gate = Gate()
    async with partition(gate, circuit=CircuitBreaker(minimum_calls=4, break_for="2s", ramp="1s", probes=1)) as orders:
        await orders.send(*(b"%d" % n for n in range(4)))
        for n in range(4):
            gate.let(b"%d" % n, BankDownError())
        await orders.settle()
        gate.started.clear()
        await pass_time(orders, 3_000)
        (hangs,) = gate.running
        await pass_time(orders, 2_000)
        assert len(gate.running) == 2
        (other,) = gate.running.keys() - {hangs}
        gate.let(other)
        await pass_time(orders, 2_000)
        assert state(orders) is CircuitState.CLOSED
        await gate.end_all(orders)


async def test_first_deliveries_do_not_wait_for_rows_that_hang_as_probes() -> None:
    """Rows have taken all places, and none of them ends: others take theirs after a break, by time alone."""
    service, hang = Service(), asyncio.Event()

    async def handler(value: bytes, delivery: Delivery) -> None:
        if delivery.attempt > 1 and not hang.is_set():
            await hang.wait()
        await service(value, delivery)

    service.down = BankDownError()
    async with partition(handler, RetryPolicy("1s", timeout="5m"), concurrency=8) as orders:
        await orders.send(*(b"%d" % n for n in range(4)))
        service.down = None
        while len(orders.engine._running) < 3:
            await orders.advance(100)
        await orders.send(*(b"new %d" % n for n in range(6)))
        assert service.done == []
        assert len(orders.engine.context.pace._held) == 3, "what is held takes the room of what may probe next"
        await pass_time(orders, 2_000)
        assert service.done[:2] == [b"new 0", b"new 1"]
        hang.set()
        await orders.to_rest()


async def test_what_comes_in_a_recovery_waits_for_its_turn_and_not_for_the_end_of_the_ramp() -> None:
    """Also where none of the runs before it ends."""
    service, gate = Service(), Gate()
    service.down = BankDownError()

    async def handler(value: bytes, delivery: Delivery) -> None:
        await (gate(value) if value.startswith(b"slow") else service(value, delivery))

    async with partition(handler, "1s", concurrency=8, circuit=CircuitBreaker(minimum_calls=4, ramp="30s")) as orders:
        await orders.send(*(b"%d" % n for n in range(4)))
        service.down = None
        while state(orders) is not CircuitState.RECOVERING:
            await orders.advance(100)
        await pass_time(orders, 5_000)
        await orders.send(*(b"slow %d" % n for n in range(4)))
        assert len(gate.running) == 1
        await pass_time(orders, 1_000)
        assert len(gate.running) == 4
        gate.open = True
        await gate.end_all(orders)


async def test_a_circuit_outlives_its_session_and_its_assignment() -> None:
    """A lane that opens again, here, does not spend attempts to find out once more."""
    async with outage(*(b"%d" % n for n in range(12))) as (orders, service):
        await reopen(orders)
        assert state(orders) is CircuitState.OPEN
        service.down = None
        await pass_time(orders, 30_000)
        assert len(service.done) == 12
    again = Pace.of(orders.handler, 0, clock=orders.clock, random=ScriptedRandom(0.5), shares=1)
    assert again.circuit is orders.engine.context.pace.circuit


async def test_probes_of_a_session_that_is_over_are_forgotten() -> None:
    """Their end is not told to the next one: each would be kept, with its record, as long as the worker lives."""
    service, gate = Service(), Gate()
    service.down = BankDownError()

    async def handler(value: bytes, delivery: Delivery) -> None:
        await (gate(value) if delivery.attempt > 1 else service(value, delivery))

    async with partition(handler, "1s") as orders:
        await orders.send(*(b"%d" % n for n in range(4)))
        while len(gate.running) < 3:
            await orders.advance(100)
        gate_of = orders.engine.context.pace.gates[""]
        probes = set(gate_of.admitted)
        assert len(probes) == 3
        await reopen(orders)
        assert not probes & gate_of.admitted
        gate.open = True
        await gate.end_all(orders)


async def test_a_drain_leaves_what_waits_for_the_circuit() -> None:
    """It has not begun: the next owner reads it again."""
    async with outage(*(b"%d" % n for n in range(12))) as (orders, service):
        calls = len(service.calls)
        await orders.engine.drain(1.0)
        assert len(service.calls) == calls
        pace = orders.engine.context.pace
        assert pace._held
        assert pace.gates[""].timer is not None
        orders.lane.finish()
        await orders.settle()
        assert not pace._held
        assert pace.gates[""].timer is None, "another worker may have the partition"
    service.down = None
    async with partition(service, transport=orders.transport) as orders:
        await pass_time(orders, 30_000)
        assert len(service.done) == 12


async def test_a_bad_deploy_is_dead_in_the_end() -> None:
    """After `max_open` its failures spend attempts again."""
    service = Service(BankDownError())
    breaker = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="2s", max_open="30s")
    async with partition(service, "1s", circuit=breaker) as orders:
        await orders.send(*(b"%d" % n for n in range(20)))
        await pass_time(orders, 29_000, 500)
        assert orders.dead_letters == []
        await pass_time(orders, 60_000, 500)
        assert [letter.reason for letter in orders.dead_letters] == ["exhausted"] * 20
        assert {letter.attempt for letter in orders.dead_letters} == {2}


@pytest.mark.parametrize("more", [False, True])
async def test_a_circuit_that_nothing_waits_for_closes(more: bool) -> None:
    """Half-open for hours on a topic without records it had no free attempt left for its next outage."""
    service = Service()
    async with partition(service) as orders:
        pace = orders.engine.context.pace
        pace.force("to see")
        pace.release()
        await orders.send(b"1")
        assert (service.done, state(orders)) == ([b"1"], CircuitState.HALF_OPEN)
        if more:
            pace.pause()
            await orders.send(b"2")
        await pass_time(orders, 3_600_000, 1_200_000)
        assert state(orders) is (CircuitState.HALF_OPEN if more else CircuitState.CLOSED)
        pace.go_on()
        await orders.to_rest()
        assert len(service.done) == 1 + more


async def test_a_circuit_that_records_wait_for_does_not_close_when_its_process_has_slept() -> None:
    """All times are over at once then: its probes told nothing, and those behind them are still to probe."""

    async def busy(value: bytes) -> None:
        calls.append(value)
        raise RetryLater("1d")

    calls: list[bytes] = []
    async with partition(busy) as orders:
        pace = orders.engine.context.pace
        pace.force("to see")
        pace.release()
        await orders.send(*(b"%d" % n for n in range(3 * BREAKER.probes)))
        assert (len(calls), bool(pace._held)) == (BREAKER.probes, True)
        orders.clock.advance(2 * BREAKER.longest_break_ms)
        pace._look(pace.gates[""])
        assert state(orders) is CircuitState.HALF_OPEN


async def test_one_that_was_let_go_at_another_worker_probes_when_its_partition_is_back() -> None:
    """This worker still has it forced open. Without its release here, it would hold all records back for ever."""
    async with partition(Service()) as orders:
        orders.engine.context.pace.force("to see")
        await reopen(orders)
        assert (state(orders), orders.engine.context.pace.going.is_set()) == (CircuitState.HALF_OPEN, True)


@pytest.mark.parametrize("how", ["elsewhere", "paused", "paused over sessions"])
async def test_an_outage_in_which_its_partition_does_not_probe_costs_no_attempt(how: str) -> None:
    """It was elsewhere, or paused, for longer than `max_open`; also where a session begins and ends in the pause."""
    service = Service(BankDownError())
    breaker = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="2s", max_open="30s")
    async with partition(service, "1s", circuit=breaker) as orders:
        await orders.send(*(b"%d" % n for n in range(20)))
        await pass_time(orders, 5_000)
        if how == "elsewhere":
            away = orders.transport.pause(Step.PROVE)
            await reopen(orders)
            assert away.reached
            orders.clock.advance(600_000)
            away.set()
        else:
            await tell(orders, HandlerVerb.PAUSE)
            for _ in range(2):
                await pass_time(orders, 600_000, 600_000)
                if how == "paused over sessions":
                    await reopen(orders)
            await tell(orders, HandlerVerb.RESUME)
        await pass_time(orders, 15_000)
        assert state(orders) is not CircuitState.CLOSED
        service.down = None
        await orders.to_rest()
        assert (len(service.done), orders.dead_letters) == (20, [])


async def test_a_fault_of_ours_reopens_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the circuit holds would wait for ever."""
    async with outage(*(b"%d" % n for n in range(12))) as (orders, service):
        release, broken = Pace._release, [True]

        def fail_once(pace: Pace) -> None:
            if broken and broken.pop():
                raise RuntimeError("so that it is called")
            release(pace)

        monkeypatch.setattr(Pace, "_release", fail_once)
        service.down = None
        await pass_time(orders, 30_000)
        assert [seen.event for seen in orders.observer.seen].count(Event.LANE_FAILED) == 1
        assert len(service.done) == 12


@pytest.mark.parametrize(
    ("held", "counts_s"),
    [((40, 45), 28), ((25, 45), 23), ((5, 7), 28), ((3, 55), 8), ((58, 60), 28), ((70, 50), 30)],
    ids=("after the pauses", "over one", "before them", "over all", "now", "by another clock"),
)
def test_a_hold_and_pauses_count_once_in_a_deadline(held: tuple[int, int], counts_s: int) -> None:
    """Before a hold, in it, and after it; a record failed at 0 s, and it is 60 s now."""
    pace = Pace()
    pace.pauses = {"": [(10_000, 20_000), (30_000, 40_000), (42_000, 52_000)]}
    since_ms, until_ms = (each * 1_000 for each in held)
    counted_ms = pace.later_ms(0, since_ms, until_ms, 60_000, "")
    assert 60_000 - counted_ms - pace.away_ms(counted_ms, 60_000) == counts_s * 1_000
