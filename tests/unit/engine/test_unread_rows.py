"""A damaged row of an ordered handler: its record is dead, others go on, and no sequence runs that was to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from doubles import (
    MAIN,
    BankDownError,
    Gate,
    damage,
    events_of,
    failures,
    pass_time,
    post,
    reopen,
    resumed_before,
    serving,
)

from retryapp import RetryPolicy, non_retryable, pausing
from retryapp.core.control import is_mark
from retryapp.core.holding import Holding
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import Damage, Record
from retryapp.core.verdicts import Reject
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step

HOLD = Holding(on_dead="hold")


class Bank:
    """Is down for some values, and rejects others."""

    def __init__(self, *down: bytes, bad: bytes = b"") -> None:
        self.down = {*down}
        self.bad = bad
        self.fault: Exception = BankDownError()
        self.seen: list[bytes] = []

    async def __call__(self, value: bytes) -> None:
        self.seen.append(value)
        if value == self.bad:
            raise Reject("wrong")
        if value in self.down:
            raise self.fault


def partition(bank: Any, order: Order = Order.KEY, **more: Any) -> MemoryPartition:
    return MemoryPartition(bank, "1h*3", order=order, **more)


def dead(orders: MemoryPartition) -> list[tuple[int, str]]:
    return [(letter.origin.offset, letter.reason or "") for letter in orders.dead_letters]


def _outcome(orders: MemoryPartition, command: str) -> Commanded:
    (outcome,) = [each for each in events_of(orders, Commanded) if each.command == command]
    return outcome


async def resume(orders: MemoryPartition, name: str) -> dict[str, Any]:
    return await orders.obey(HandlerCommand(id=name, verb=HandlerVerb.RESUME))


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("session", ["the next one", "this one"])
async def test_a_damaged_row_is_dead_and_its_sequence_goes_on(order: Order, offset: int, session: str) -> None:
    """One that has failed, and one that is held, of which no scan would ever find that it is due."""
    async with serving(Bank(b"0"), "1h*3", b"0", b"1", b"2", key=b"a", order=Order.KEY) as (orders, bank):
        damage(orders, offset)
        if session == "this one":
            await orders.advance(3_600_000)
            bank.down.clear()
            await orders.advance(3_600_000)
            assert (dead(orders), failures(orders), orders.waiting) == ([(offset, "damaged")], [], {})
            assert bank.seen[-1] == b"2"
            return
    bank.down.clear()
    async with partition(bank, order, transport=orders.transport) as orders:
        await orders.advance(3_600_000)
        assert (dead(orders), failures(orders), orders.waiting) == ([(offset, "damaged")], [], {})
        assert [value for value in bank.seen if value != b"%d" % offset][-1] == b"2"


@pytest.mark.parametrize("order", [Order.NONE, Order.LATEST])
async def test_a_held_row_that_is_damaged_is_dead_when_its_handler_has_no_order_any_more(order: Order) -> None:
    """A damaged row has no readable tier: the count of held rows was 0, and no scan looked for it."""
    async with serving(Bank(b"0"), "1h*3", b"0", b"1", key=b"a", order=Order.KEY) as (orders, bank):
        damage(orders, 1)
    async with partition(bank, order, transport=orders.transport) as orders:
        await orders.settle()
        assert (dead(orders), failures(orders), bank.seen) == ([(1, "damaged")], [], [b"0"])


async def test_a_damaged_row_that_is_due_is_claimed_once() -> None:
    """A second claim was never given back: a circuit that lets one record probe let nothing begin any more."""
    async with serving(Bank(b"0"), "1h*3", b"0", key=b"a", order=Order.KEY) as (orders, bank):
        damage(orders, 0)
    orders.clock.advance(3_600_000)
    async with partition(bank, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert orders.engine.session is not None
        scheduler = orders.engine.session.scheduler
        assert (dead(orders), scheduler.waiting, scheduler.claimed_bytes) == ([(0, "damaged")], 0, 0)


async def test_of_latest_a_damaged_row_is_dead_when_a_newer_record_replaces_it() -> None:
    """It cannot tell who it was; its lane goes on, and the newer one's outcome counts once."""
    gate = Gate()
    async with partition(gate, Order.LATEST) as orders:
        await orders.send(b"1", key=b"a")
        await gate.end(orders, b"1", BankDownError())
        await orders.send(b"2", key=b"a")
        damage(orders, 0)
        await gate.end(orders, b"2")
        assert (dead(orders), failures(orders), orders.waiting) == ([(0, "damaged")], [], {})
        assert gate.started == [b"1", b"2"]
        await reopen(orders)
        assert gate.started == [b"1", b"2"]


@pytest.mark.parametrize("offset", [0, 1])
async def test_where_sequences_stop_a_damaged_row_pauses_the_partition(offset: int) -> None:
    """Nobody knows what to stop behind the record that is dead now; all waits until somebody resumes the handler."""
    async with serving(Bank(b"0"), "1h*3", b"0", b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, bank):
        damage(orders, offset)
    bank.down.clear()
    for life in range(2):
        async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
            await orders.send(b"b", key=b"b%d" % life)
            await orders.advance(3_600_000)
            assert (dead(orders), bank.seen) == ([(offset, "damaged")], [b"0"])
            (pause,) = events_of(orders, Commanded)
            assert (pause.verb, pause.failure_id) == ("handler-pause", f"app/orders@kq8G0bTz/0/{offset}")
            assert "a damaged record" in pause.text
    async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
        await resume(orders, "r")
        await orders.advance(3_600_000)
        assert bank.seen[-1] == b"2"
        assert orders.waiting == {}


def _without_first(record: Record) -> Record:
    if record.topic != "orders" or record.offset:
        return record
    return replace(record, key=None, value=b"", headers=(), damage=Damage(0, "a bad checksum"))


async def test_where_sequences_stop_a_damaged_batch_pauses_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a damaged row does: it has lost its keys, too."""
    async with serving(Bank(), "1h*3", order=Order.KEY, holding=HOLD) as (orders, bank):
        read = orders.transport.broker.read

        def damaged(*arguments: Any, **options: Any) -> tuple[list[Record], int]:
            records, position = read(*arguments, **options)
            return [_without_first(each) for each in records], position

        monkeypatch.setattr(orders.transport.broker, "read", damaged)
        await orders.send(b"1", b"2", key=b"a")
        await orders.advance(1_000)
        assert (dead(orders), bank.seen) == ([(0, "damaged")], [])
        await resume(orders, "r")
        assert bank.seen == [b"2"]


async def test_a_damaged_stop_pauses_its_partition_until_somebody_decides() -> None:
    """At each opening, until its letter is replayed or set aside."""
    async with serving(Bank(bad=b"1"), "1h*3", b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, bank):
        damage(orders, 0)
    for life in range(2):
        async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
            await orders.advance(1_000)
            assert (bank.seen, orders.waiting) == ([b"1"], {"?": 1, "held": 1})
            assert "a damaged record" in orders.engine.commands.levels.paused.text  # type: ignore[union-attr]
            if life == 1:
                assert (await orders.command("discard", 0))["refused"] is None
                await resume(orders, "r")
                assert (bank.seen, orders.waiting) == ([b"1", b"2"], {})
    async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
        await orders.send(b"3", key=b"a")
        assert bank.seen == [b"1", b"2", b"3"]


@pytest.mark.parametrize("verb", ["discard", "replay"])
async def test_a_partition_goes_on_once_its_damaged_stop_is_set_aside(verb: str) -> None:
    """There the sequence of a row is known, whatever is damaged of it; it stood until the next opening."""
    async with serving(Bank(bad=b"1"), "1h*3", b"1", b"2", order=Order.PARTITION, holding=HOLD) as (orders, bank):
        damage(orders, 0)
    bank.bad = b""
    async with partition(bank, Order.PARTITION, holding=HOLD, transport=orders.transport) as orders:
        assert (await orders.command(verb, 0))["refused"] is None
        await resume(orders, "r")
        assert (bank.seen, orders.waiting) == ([b"1", *[b"1"] * (verb == "replay"), b"2"], {})


async def test_each_damaged_stop_is_told_before_what_waits_behind_it_runs() -> None:
    """Damage seldom comes alone; who has the partition go on knows of the one that is named."""
    async with serving(Bank(), "1h*3", order=Order.KEY, holding=HOLD) as (orders, bank):
        for number in range(3):
            bank.bad = b"%d" % number
            await orders.send(bank.bad, b"%d+" % number, key=bank.bad)
            damage(orders, 2 * number)
    bank.seen.clear()
    async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
        for number in range(3):
            paused = orders.engine.commands.levels.paused  # type: ignore[union-attr]
            assert (paused.record, bank.seen) == (f"app/orders@kq8G0bTz/0/{2 * number}", [])  # type: ignore[union-attr]
            again = (await resume(orders, f"r{number}"))["text"]
            assert ("paused again" in again) is (number < 2)
        assert bank.seen == [b"0+", b"1+", b"2+"]


async def test_a_kill_between_a_resume_and_the_pause_for_the_next_damaged_stop_forgets_none() -> None:
    """The resume is durable first: the opening finds them all again, and nothing has run that they hold."""
    last = list[str]()
    for commit in range(2):
        async with serving(Bank(), "1h*3", order=Order.KEY, holding=HOLD) as (orders, bank):
            for number in range(2):
                bank.bad = b"%d" % number
                await orders.send(bank.bad, b"%d+" % number, key=bank.bad)
                damage(orders, 2 * number)
        bank.seen.clear()
        async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
            kill = orders.transport.pause(Step.COMMIT, after=commit, durable=True)
            post(orders, HandlerCommand(id="r", verb=HandlerVerb.RESUME))
            await orders.settle()
            assert kill.reached
            last.append(events_of(orders, Commanded)[-1].verb)
        async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
            for number in range(2):
                assert orders.engine.commands.levels.paused.record.endswith(f"/{2 * number}")  # type: ignore[union-attr]
                assert bank.seen == []
                await resume(orders, f"again{number}")
            assert bank.seen == [b"0+", b"1+"]
    assert last == ["handler-resume", "handler-pause"]


@pytest.mark.parametrize("paused", [False, True])
async def test_a_resume_that_was_sent_before_a_damaged_stop_was_found_does_not_end_that_pause(*, paused: bool) -> None:
    """Whoever sent it did not know; also where somebody has paused the partition, and the resume is for that."""
    async with serving(Bank(bad=b"1"), "1h*3", b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, bank):
        if paused:
            await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="ann"))
        damage(orders, 0)
    post(orders, HandlerCommand(id="early", verb=HandlerVerb.RESUME))
    async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
        await orders.advance(1_000)
        outcome = _outcome(orders, "early")
        assert (outcome.refused, bank.seen) == ("changed", [b"1"])
        assert "a damaged record" in outcome.text
        assert ("paused by ann" in orders.engine.commands.levels.paused.text) is paused  # type: ignore[union-attr]
        await resume(orders, "late")
        assert bank.seen == [b"1", b"2"]


async def test_a_resume_for_the_pause_of_a_rule_does_not_end_that_for_a_damaged_stop() -> None:
    """It was there when the damage was found, and said nothing of it."""
    bank = Bank(b"closed", bad=b"1")
    policy = RetryPolicy("1h*3", on=[pausing(BankDownError)])
    async with serving(bank, policy, b"1", b"2", key=b"a", order=Order.KEY, holding=HOLD) as (orders, _):
        await orders.send(b"closed", key=b"b")
        damage(orders, 0)
    bank.down.clear()
    post(orders, HandlerCommand(id="early", verb=HandlerVerb.RESUME))
    for _ in range(2):
        async with MemoryPartition(bank, policy, order=Order.KEY, holding=HOLD, transport=orders.transport) as orders:
            await orders.advance(1_000)
            assert bank.seen == [b"1", b"closed"]
            (found,) = [each for each in events_of(orders, Commanded) if "a damaged record" in (each.after or "")]
            assert "by rule" in found.before


async def test_the_letter_of_a_damaged_row_is_newer_than_one_on_another_dead_letter_topic() -> None:
    """Nothing replays it, so there is none after it; its delivery may not be known, and was taken for the first."""
    bank, policy = Bank(b"0"), RetryPolicy("1h*3", on=non_retryable(ValueError, dead_letters="invalid"))
    async with serving(bank, policy, b"0") as (orders, _):
        bank.fault = ValueError()
        await orders.advance(3_600_000)
        bank.fault = BankDownError()
        assert (await orders.command("replay", 0))["refused"] is None
        damage(orders, 0, version=True)
        await orders.advance(3_600_000)
        assert dead(orders) == [(0, "damaged"), (0, "non-retryable")]
        told = await orders.command("discard", 0)
        assert (told["refused"], told["after"]) == (None, "discarded")
        assert [is_mark(each.headers) for each in orders.records(orders.handler.topology.dlq)] == [False, True]


@pytest.mark.parametrize("damaged", [True, False])
async def test_the_letter_of_an_offset_that_was_set_back_is_newer_than_that_of_an_earlier_run(*, damaged: bool) -> None:
    """Whatever the numbers of the earlier one say, on another dead-letter topic: its deliveries were counted anew."""
    bank, policy = Bank(b"0"), RetryPolicy("1h*3", on=non_retryable(ValueError, dead_letters="invalid"))
    async with serving(bank, policy, b"0") as (orders, _):
        if damaged:
            damage(orders, 0, version=True)
        await pass_time(orders, 18_000_000, 3_600_000)
        assert dead(orders) == [(0, "damaged" if damaged else "exhausted")]
        bank.fault = ValueError()
        orders.transport.offsets[orders.engine.sources[0]] = 0
        await reopen(orders)
        await orders.to_rest()
        told = await orders.command("replay", 0)
        assert (told["refused"], told["text"].split(";")[0]) == (None, "due at once, with new attempts")
        assert [is_mark(each.headers) for each in orders.records(orders.handler.topology.dlq)] == [False]


@pytest.mark.parametrize("killed", ["", "at the look", "after the pause", "after the look", "after its place"])
async def test_a_resume_that_came_since_the_topic_was_looked_at_does_not_end_a_pause_for_damage(
    monkeypatch: pytest.MonkeyPatch, *, killed: str
) -> None:
    """A worker looks every 0.2 s; its death before it has looked once more is no reason to obey it, either.

    Nor is one between that look and the turn that writes down what it has shown.
    """
    bank, pause = Bank(b"0"), Pace.pause
    async with partition(bank, holding=HOLD) as orders:
        await orders.send(b"0", b"1", key=b"a")
        damage(orders, 0)

        def pause_later(pace: Pace) -> None:
            monkeypatch.undo()
            kills.extend(resumed_before(orders, killed))
            pause(pace)

        kills: list[Any] = []
        monkeypatch.setattr(Pace, "pause", pause_later)
        await orders.advance(3_600_000)
        assert all(kill.reached for kill in kills)
        if not killed:
            assert _outcome(orders, "early").refused == "changed"
    bank.down.clear()
    async with partition(bank, holding=HOLD, transport=orders.transport) as orders:
        await orders.advance(3_600_000)
        assert bank.seen == [b"0"]
        assert _outcome(orders, "early").refused == "changed"
        if not dead(orders):  # its letter was not durable: it is found once more, and pauses the partition again
            await resume(orders, "late")
        assert (dead(orders), bank.seen) == ([(0, "damaged")], [b"0"])
        await resume(orders, "later")
        assert bank.seen == [b"0", b"1"]


async def test_where_a_pause_has_its_place_is_asked_again_after_a_fault_of_the_broker() -> None:
    """Until then a resume is taken for one that was sent before."""
    async with serving(Bank(b"0"), "1h*3", b"0", b"1", key=b"a", order=Order.KEY, holding=HOLD) as (orders, bank):
        damage(orders, 0)
        orders.transport.fail("bounds", ConnectionError())  # type: ignore[arg-type]
        await orders.advance(3_600_000)
        bank.down.clear()
        await resume(orders, "late")
        assert (dead(orders), failures(orders), bank.seen) == ([(0, "damaged")], [], [b"0", b"1"])


async def test_a_pause_of_a_control_topic_that_was_made_again_can_be_ended() -> None:
    """Its place among the commands of the former one says nothing."""
    async with serving(Bank(), "1h*3", order=Order.KEY) as (orders, bank):
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE))
        orders.engine.commands.levels.paused.revision = 99  # type: ignore[union-attr]
        await resume(orders, "r")
        await orders.send(b"1")
        assert bank.seen == [b"1"]


async def test_a_first_delivery_leaves_the_damaged_row_of_its_record_to_its_own_end() -> None:
    """The offset was set back, so the record comes again; its row is dead with its own bytes all the same."""
    async with serving(Gate(), "1h", b"0", b"1", key=b"a", concurrency=9, order=Order.KEY) as (orders, gate):
        await gate.end(orders, b"0", BankDownError())
        await orders.advance(500)
        damage(orders, 1)
    transport = orders.transport
    transport.broker.notes[MAIN], transport.offsets[MAIN] = "", 1
    transport.append(MAIN, b"b", b"other")
    async with serving(Gate(), "1h", max_in_flight=1, order=Order.LATEST, transport=transport) as (orders, gate):
        await orders.advance(100)
        assert gate.started == [b"1"]
        gate.let_all()
        await pass_time(orders, 120_000, 60_000)
        assert orders.waiting == {}
        assert [letter.reason for letter in orders.dead_letters] == ["damaged"]
