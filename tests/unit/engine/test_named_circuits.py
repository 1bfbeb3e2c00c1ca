"""A circuit of a service that the handler names holds back the records that need it, and no others."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from doubles import BankDownError, Gate, events_of, pass_time, rows, scheduler_of

from retryapp import RetryLater, RetryPolicy, Unavailable, retryable
from retryapp.core.circuit import CircuitBreaker, CircuitState
from retryapp.core.control import Refusal
from retryapp.core.holding import Holding
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import CircuitChanged
from retryapp.core.row_keys import IDENTITY_AT, queue_in, queue_of
from retryapp.core.rows import OPERATOR, decode_row, encode_row
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.ports import Event, Row
from retryapp.testing import MemoryPartition

BREAKER = CircuitBreaker(minimum_calls=4, break_for="2s", ramp="10s", max_open="10m")
CIRCUITS = {"ledger": BREAKER, "mail": BREAKER}
OPEN, CLOSED, FORCED = CircuitState.OPEN, CircuitState.CLOSED, CircuitState.FORCED_OPEN
COMMANDS = count(1)


class Services:
    """What the handler calls: a record's value begins with the service that it needs."""

    def __init__(self, *down: bytes) -> None:
        self.down = {*down}
        self.calls: list[tuple[bytes, int]] = []
        self.done: list[bytes] = []

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        """Need the service."""
        self.calls.append((value, delivery.attempt))
        service = value.split()[0]
        if service in self.down:
            raise Unavailable(service.decode())
        if service == b"once" and delivery.attempt == 1:
            raise BankDownError
        self.done.append(value)

    def calls_of(self, service: bytes) -> int:
        """Return how many calls needed a service."""
        return sum(value.startswith(service) for value, _ in self.calls)


def partition(service: Any, policy: RetryPolicy | str = "1s 10s", **options: Any) -> MemoryPartition:
    """Make one with two circuits."""
    return MemoryPartition(service, policy, **{"circuits": CIRCUITS, "concurrency": 4, **options})


def state(orders: MemoryPartition, name: str = "ledger") -> CircuitState:
    """Return the state of a circuit."""
    return orders.engine.context.pace.gates[name].circuit.state


async def tell(orders: MemoryPartition, verb: HandlerVerb, circuit: str = "ledger", **words: Any) -> dict[str, Any]:
    """Force one open, or let it go."""
    return await orders.obey(HandlerCommand(id=f"n{next(COMMANDS)}", verb=verb, circuit=circuit, **words))


async def test_records_of_others_flow_while_one_service_is_down() -> None:
    """Those that need it wait without an attempt spent, a few probe; others, also retries, are on time."""
    services = Services(b"ledger")
    async with partition(services) as orders:
        for n in range(200):
            await orders.send(b"ledger %d" % n, b"fine %d" % n, b"once %d" % n)
            await orders.advance(200)
        assert state(orders) is not CLOSED
        assert state(orders, "mail") is CLOSED
        assert sum(value.startswith(b"fine") for value in services.done) == 200
        assert sum(value.startswith(b"once") for value in services.done) >= 195, "those of the last second wait"
        late = [seen.lateness_ms for seen in orders.observer.seen if seen.event is Event.SUCCEEDED and seen.lateness_ms]
        assert max(late, default=0) < 250, "no step of time is longer"
        probes = services.calls_of(b"ledger") - 200
        assert probes < 60, "few try again, of 200 that wait"
        services.down.clear()
        await pass_time(orders, 5_000, 1_000)
        assert services.calls_of(b"ledger") - 200 - probes < 60, "not all at once"
        await pass_time(orders, 40_000)
        assert state(orders) is CLOSED
        assert len(services.done) == 600
        spent = {value: attempt for value, attempt in services.calls if value.startswith(b"ledger")}
        assert sum(spent.values()) - 200 <= 4, "what had failed before it opened"
        assert not [seen for seen in orders.observer.seen if seen.event is Event.DEAD]
        told = [(event.circuit, event.to_state) for event in events_of(orders, CircuitChanged)]
        assert told[0] == ("ledger", "open")
        assert told[-1] == ("ledger", "closed")
        assert {name for name, _ in told} == {"ledger"}


async def test_rows_that_were_claimed_go_back_to_the_table() -> None:
    """Else the claims of a circuit that has opened would take all the room."""
    gate, calls = Gate(), list[bytes]()

    async def handler(value: bytes, delivery: Delivery) -> None:
        calls.append(value)
        if delivery.attempt == 1:
            raise Unavailable("ledger") if value.startswith(b"ledger") else BankDownError
        await gate(value)

    never = {"ledger": CircuitBreaker(minimum_calls=1_000)}
    async with partition(handler, "10s", concurrency=1, circuits=never) as orders:
        await orders.send(*(b"ledger %d" % n for n in range(200)))
        await orders.advance(9_000)
        await orders.send(b"other")
        await orders.advance(1_100)
        assert (gate.started, scheduler_of(orders).waiting > 60) == ([b"ledger 0"], True)
        await tell(orders, HandlerVerb.OPEN)
        gate.let_all()
        await orders.advance(9_000)
        assert gate.started == [b"ledger 0", b"other"]
        assert scheduler_of(orders).claimed == {}
        await tell(orders, HandlerVerb.CLOSE)
        await pass_time(orders, 60_000)
        assert len(gate.started) == 201


async def test_a_rate_of_a_circuit_is_for_what_comes_back_to_its_service() -> None:
    """A burst that comes due at once goes one by one, also while the circuit is closed; others are not limited."""
    services = Services(b"ledger")
    limited = {"ledger": CircuitBreaker(minimum_calls=1_000, rate_limit="10/s"), "mail": BREAKER}
    async with partition(services, "2s", circuits=limited) as orders:
        await orders.send(*(b"ledger %d" % n for n in range(30)), *(b"once %d" % n for n in range(30)))
        services.down.clear()
        await orders.advance(2_000)
        assert (sum(value.startswith(b"once") for value in services.done), len(services.done)) == (30, 31)
        done = []
        for _ in range(30):
            await orders.advance(100)
            done.append(len(services.done) - 31)
        assert all(n <= count <= n + 2 for n, count in enumerate(done[:28])), done
        assert len(services.done) == 60


async def test_a_rate_of_a_circuit_is_for_heads_of_sequences_too() -> None:
    """Rows that came due before the head of their key: each began as soon as the one before it was done."""
    done: list[bytes] = []

    async def service(value: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise RetryLater("5s") if value == b"first" else Unavailable("ledger")
        done.append(value)

    limited = {"ledger": CircuitBreaker(minimum_calls=1_000, rate_limit="10/s"), "mail": BREAKER}
    async with partition(service, "2s", circuits=limited) as orders:  # it had no order when they failed
        await orders.send(b"first", *(b"ledger %d" % n for n in range(20)), key=b"a")
    options: dict[str, Any] = {"circuits": limited, "order": Order.KEY, "clock": orders.clock}
    async with partition(service, "2s", transport=orders.transport, **options) as orders:
        await orders.advance(4_900)
        assert done == []
        counts = []
        for _ in range(20):
            await orders.advance(100)
            counts.append(len(done) - 1)
        assert all(n <= count <= n + 2 for n, count in enumerate(counts[:18])), counts
        await orders.to_rest()
        assert done == [b"first", *(b"ledger %d" % n for n in range(20))]


async def test_one_that_is_forced_open_holds_its_records_alone_and_over_restarts() -> None:
    """Another worker knows since when; deadlines do not count it; nobody else's circuit is touched."""
    services = Services(b"ledger")
    policy = RetryPolicy("1s 10s", max_elapsed="1m")
    orders = partition(services, policy)
    async with orders:
        for verb, name, none in ((HandlerVerb.OPEN, "other", "other"), (HandlerVerb.CLOSE, "", "of its own")):
            refused = await tell(orders, verb, name)
            assert refused["refused"] == Refusal.NO_CIRCUIT
            assert refused["text"] == f"this handler has no circuit {none}; it has: ledger, mail"
        outcome = await tell(orders, HandlerVerb.OPEN, by="ann", why="migrates")
        assert (outcome["circuit"], outcome["after"]) == ("ledger", "forced open by ann: migrates")
        began_ms = orders.clock.wall_ms()
        await orders.send(b"ledger 1", b"mail 1", b"once 1")
        await pass_time(orders, 20_000)
        assert services.calls_of(b"ledger") == 1
        assert services.done == [b"mail 1", b"once 1"]
    async with partition(services, policy, transport=orders.transport) as orders:
        await pass_time(orders, 600_000, 60_000)
        commands = orders.engine.commands
        assert commands is not None
        assert commands.levels.forced["ledger"].since_ms == began_ms
        assert (state(orders), state(orders, "mail"), services.calls_of(b"ledger")) == (FORCED, CLOSED, 1)
        await tell(orders, HandlerVerb.CLOSE)
        assert services.calls_of(b"ledger") == 2, "it probes"
    async with partition(services, policy, transport=orders.transport) as orders:
        services.down.clear()
        await pass_time(orders, 60_000)
        assert (services.done[-1], orders.dead_letters) == (b"ledger 1", [])
        assert commands.levels.forced == {}


async def test_a_deadline_does_not_count_the_outage_of_what_a_record_waits_for() -> None:
    """Also if it fails for another reason then."""
    errors: list[Exception] = [BankDownError(), Unavailable("ledger")]

    async def handler(_value: bytes) -> None:
        if errors:
            raise errors.pop()

    async with partition(handler, RetryPolicy("1s 10s", max_elapsed="1m")) as orders:
        await orders.send(b"one")
        await tell(orders, HandlerVerb.OPEN)
        await pass_time(orders, 600_000, 60_000)
        await tell(orders, HandlerVerb.CLOSE)
        assert errors == []
        await pass_time(orders, 30_000)
        assert (orders.waiting, orders.dead_letters) == ({}, [])


@pytest.mark.parametrize("name", ["other", ["mail"]])
async def test_a_rule_names_a_circuit_and_a_name_that_nobody_has_declared_names_none(
    caplog: pytest.LogCaptureFixture, name: Any
) -> None:
    """Such a failure is as any other, and logged once."""

    async def handler(value: bytes) -> None:
        raise BankDownError if value.startswith(b"rule") else Unavailable(name)

    policy = RetryPolicy("1s", on=[retryable(BankDownError, circuit="ledger")])
    async with partition(handler, policy) as orders:
        await orders.send(*(b"rule %d" % n for n in range(4)), *(b"other %d" % n for n in range(4)))
        assert (state(orders), state(orders, "mail")) == (OPEN, CLOSED)
        await orders.advance(1_000)
        letters = [(letter.origin.offset, letter.error_type) for letter in orders.dead_letters]
        assert letters == [(n, "retryapp.Unavailable") for n in (4, 5, 6, 7)]
    assert [each.message for each in caplog.records if "circuit_unknown" in each.message] == [
        "retryapp.circuit_unknown"
    ]


async def test_names_that_are_others_each_time_take_no_room(caplog: pytest.LogCaptureFixture) -> None:
    """Nor do they fill the log."""

    async def handler(value: bytes) -> None:
        raise Unavailable(f"order-{value.decode()}")

    async with partition(handler) as orders:
        await orders.send(*(b"%d" % n for n in range(300)))
        assert len(orders.engine.context.handler.warned_of) == 100
        assert sum("circuit_unknown" in each.message for each in caplog.records) == 100
        assert orders.waiting == {"1s": 300}


async def test_a_hold_ends_although_the_circuit_of_its_record_is_open() -> None:
    """A held row is in no circuit's queue: its deadline would never come."""
    services = Services(b"ledger")
    async with partition(services) as orders:
        await orders.send(b"ledger 1")
        await tell(orders, HandlerVerb.OPEN)
        await orders.command("hold", 0, hold_ms=60_000)
        await orders.advance(60_000)
        assert orders.transport.pending is not None
        ((key, value),) = orders.transport.pending.page(None, 2)
        assert (decode_row(value).hold, queue_in(key)) == (0, queue_of("ledger"))
        assert services.calls_of(b"ledger") == 1


async def test_an_ordered_handler_holds_the_followers_of_what_waits_and_no_other_keys() -> None:
    """In the order of the topic, once the circuit lets them."""
    services = Services(b"ledger")
    async with partition(services, order=Order.KEY) as orders:
        for n in range(8):
            await orders.send(b"ledger %d" % n, b"mail %d" % n, key=b"k%d" % n)
        await pass_time(orders, 20_000)
        assert state(orders) is not CLOSED
        assert not services.done, "each key's head needs the ledger"
        await orders.send(*(b"mail 9%d" % n for n in range(5)), key=b"free")
        assert services.done == [b"mail 9%d" % n for n in range(5)]
        services.down.clear()
        await pass_time(orders, 40_000)
        done = services.done[5:]
        assert len(done) == 16
        assert all(done.index(b"ledger %d" % n) < done.index(b"mail %d" % n) for n in range(8))


async def test_a_circuit_that_nothing_waits_for_closes_and_its_next_outage_is_a_new_one() -> None:
    """Half-open for hours it had spent `max_open`, and the next outage cost all its attempts at once."""
    services = Services(b"ledger")
    async with partition(services, "1s*9") as orders:
        await tell(orders, HandlerVerb.OPEN)
        await orders.send(b"ledger 1")
        services.down.clear()
        await tell(orders, HandlerVerb.CLOSE)
        await pass_time(orders, 15_000, 1_000)
        assert (state(orders), services.done) == (CircuitState.HALF_OPEN, [b"ledger 1"])
        await pass_time(orders, 3_600_000, 60_000)
        assert state(orders) is CLOSED
        (end,) = [each for each in events_of(orders, CircuitChanged) if each.to_state == "closed"]
        assert end.cause == "nothing waits for it"
        services.down = {b"ledger"}
        await orders.send(*(b"ledger %d" % n for n in range(30)))
        await pass_time(orders, 300_000)
        assert state(orders) is not CLOSED
        services.down.clear()
        await pass_time(orders, 120_000)
        spent = {value: attempt - 1 for value, attempt in services.calls}
        assert sum(spent.values()) <= 4, "until it is found"
        assert (state(orders), len(services.done), orders.dead_letters) == (CLOSED, 31, [])


async def test_a_row_that_waits_for_long_keeps_no_circuit_half_open() -> None:
    """It is no probe before its time, and hours of waiting had spent `max_open`."""
    services = Services(b"ledger")
    async with partition(services, "6h*9") as orders:
        await orders.send(b"ledger 1")
        await tell(orders, HandlerVerb.OPEN)
        await tell(orders, HandlerVerb.CLOSE)
        assert state(orders) is CircuitState.HALF_OPEN
        await pass_time(orders, 3_600_000, 60_000)
        assert (state(orders), services.calls_of(b"ledger")) == (CLOSED, 1)


async def test_a_circuit_that_something_waits_for_does_not_close_by_time() -> None:
    """However long nothing begins: in a pause, or behind a rate."""
    services = Services(b"ledger")
    async with partition(services, "1s*9") as orders:
        await tell(orders, HandlerVerb.OPEN)
        await orders.send(b"ledger 1")
        await tell(orders, HandlerVerb.PAUSE, "")
        await tell(orders, HandlerVerb.CLOSE)
        await pass_time(orders, 300_000, 1_000)
        assert (state(orders), services.calls_of(b"ledger")) == (CircuitState.HALF_OPEN, 1)
        services.down.clear()
        await tell(orders, HandlerVerb.RESUME, "")
        await orders.settle()
        assert services.done == [b"ledger 1"]
        await pass_time(orders, 60_000, 1_000)
        assert state(orders) is CLOSED


@pytest.mark.parametrize("first", ["damaged", "held", "later"])
async def test_a_row_that_does_not_run_takes_the_place_of_no_probe(first: str) -> None:
    """No end of it is told to the circuit: those behind it would wait for ever."""
    services, order = Services(b"ledger"), Order.KEY if first == "later" else Order.NONE
    options: dict[str, Any] = {"circuits": {"ledger": CircuitBreaker(probes=1)}}
    async with partition(services, "10s*9", **options) as orders:
        await tell(orders, HandlerVerb.OPEN)
        await orders.send(b"ledger 1", b"ledger 2", key=b"a")
        now_ms = orders.clock.wall_ms()
        await orders.command("reschedule", 1, due_at_ms=now_ms + 20_000)
        if first == "later":  # the handler had no order
            await orders.command("reschedule", 0, due_at_ms=now_ms + 30_000)
        else:
            assert orders.transport.pending is not None
            ((key, value), _) = orders.transport.pending.page(None, 2)
            damaged = value[:-40] + value[-39:]
            held = encode_row(decode_row(value).held_next(now_ms + 3_600_000))  # a crash has ended its run
            value = damaged if first == "damaged" else held
            orders.transport.pending.write([Row(key[IDENTITY_AT:], value, "10s")], None)
    async with partition(services, "10s*9", **options, order=order, transport=orders.transport) as orders:
        await orders.advance(60_000)
        assert services.calls_of(b"ledger") == 2
        services.down.clear()
        await tell(orders, HandlerVerb.CLOSE)
        await orders.settle()
        assert services.done == ([b"ledger 1", b"ledger 2"] if first == "later" else [b"ledger 2"])


async def test_what_too_many_wait_for_is_dead_also_while_its_circuit_is_open() -> None:
    """It is not run for that; else it would be claimed again and again until the circuit closes."""
    services = Services(b"ledger")
    holding = Holding(max_sequence_size=2, overflow="release")
    async with partition(services, "1h*9", order=Order.KEY, holding=holding) as orders:
        await orders.send(b"ledger 1", key=b"a")
        await tell(orders, HandlerVerb.OPEN)
        await orders.send(b"mail 1", b"mail 2", key=b"a")
        await orders.advance(1_000)
        assert services.done == [b"mail 1", b"mail 2"]
        assert [letter.reason for letter in orders.dead_letters] == ["overflow"]


@pytest.mark.parametrize(("verb", "waits"), [("cancel", False), ("hold", True)])
async def test_what_somebody_says_of_a_claimed_record_counts_although_its_circuit_opens(verb: str, waits: bool) -> None:
    """A cancel makes it dead at once, a hold holds it: neither calls the service."""
    gate = Gate()

    async def handler(value: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise Unavailable("ledger")
        await gate(value)

    async with partition(handler, concurrency=1) as orders:
        await orders.send(b"1", b"2")
        await orders.advance(2_000)
        assert gate.started == [b"1"]
        await tell(orders, HandlerVerb.OPEN)
        assert (await orders.command(verb, 1))["refused"] is None
        gate.let_all()
        await orders.settle()
        assert (gate.started, len(orders.dead_letters)) == ([b"1"], int(not waits))
        assert [row.hold for row in rows(orders)] == [OPERATOR] * waits
