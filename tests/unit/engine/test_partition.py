"""A partition whole, on memory topics in virtual time: each record comes back when due, and never early."""

from __future__ import annotations

from doubles import CHANGELOG, EVENTS, BankDownError, down, events_of, pass_time, serving

from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of, is_identity
from retryapp.core.rows import row_due_ms
from retryapp.engine.handler.handler import Delivery
from retryapp.ports import Event
from retryapp.testing import MemoryPartition, Script, VirtualClock

# -- what is told -----------------------------------------------------------------------------------------------------


async def test_progress_is_told_once_a_minute_and_at_the_end() -> None:
    """Counts by record, ranges without gaps; one whose handler published was fine at once like the others."""

    async def handler(value: bytes, record: Delivery) -> None:
        if value != b"silent":
            record.publish("payments", value)
        if value == b"bad":
            raise BankDownError

    async with serving(handler, "1h", b"good", b"bad") as (orders, _):
        await orders.advance(59_999)
        await orders.send(b"silent")
        assert orders.records(EVENTS) == []
        await orders.advance(1)
        await orders.send(b"good")
        await orders.send(b"bad")
        await orders.finish()
        told = events_of(orders, object)
        assert [(t.from_offset, t.to_offset, t.received, t.first_try_ok, t.failed) for t in told] == [
            (0, 4, 4, 3, 1),
            (4, 5, 1, 0, 1),
        ]
        assert sum(o.count for o in orders.observer.of(Event.SUCCEEDED)) == 3


async def test_a_retry_costs_the_broker_four_records_in_two_transactions() -> None:
    """Copy and row of the failure, event and removal of the success; each transaction has a progress record besides."""
    async with MemoryPartition(Script("fail", "ok"), "1s") as orders:
        transport, began = orders.transport, len(orders.transport.batches)
        opened = {tp: len(log.entries) for tp, log in transport.broker.logs.items()}
        await orders.send(b"a")
        await orders.advance(1_000)
        await orders.to_rest()
        assert len(transport.batches) == began + 2
        written = {tp.topic: log.entries[opened.get(tp, 0) :] for tp, log in transport.broker.logs.items()}
        progress = [row.record.key == b"progress" for row in written[CHANGELOG.topic]]
        assert progress == [False, True] * 2
        assert {topic: len(some) for topic, some in written.items() if some} == {
            "orders": 1, "app.orders.retry": 1, CHANGELOG.topic: 4, EVENTS: 1,
        }  # fmt: skip


async def test_observers_hear_of_each_step_with_its_facts() -> None:
    """In the order of a record's life."""
    async with serving(down, "1s", b"a") as (orders, _):
        await orders.advance(1_250)
        told = [(o.event, o.attempt, o.tier, o.reason) for o in orders.observer.seen if o.failure_id is not None]
        assert told == [
            (Event.FAILED, 1, None, None),
            (Event.SCHEDULED, 1, "1s", None),
            (Event.FAILED, 2, None, None),
            (Event.DEAD, 2, None, "exhausted"),
        ]
        scheduled, dead = orders.observer.of(Event.SCHEDULED)[0], orders.observer.of(Event.DEAD)[0]
        assert dead.lateness_ms == 250
        assert {(o.topic, o.partition, o.offset) for o in (scheduled, dead)} == {("orders", 0, 0)}
        rows = [r for r in orders.records("app.orders.pending.changelog") if is_identity(r.key)]
        assert [None if r.value is None else row_due_ms(r.value) for r in rows] == [scheduled.due_at_ms, None]
        assert {r.key for r in rows} == {identity_of(Origin("orders", "kq8G0bTz", 0, 0))}


async def test_nothing_fires_by_a_clock_that_is_doubted() -> None:
    """Late is better than early; it goes on by itself once the clock is trusted."""
    clock = VirtualClock()
    async with serving(down, "1s", b"a", clock=clock) as (orders, _):
        clock.trusted = False
        await orders.advance(500)
        clock.jump_wall(7_200_000)
        await pass_time(orders, 2_000, 250)
        assert not orders.dead_letters
        clock.jump_wall(-7_200_000)
        clock.trusted = True
        await orders.advance(250)
        assert len(orders.dead_letters) == 1
