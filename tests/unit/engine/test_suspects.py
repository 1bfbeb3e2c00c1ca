"""Records that may have killed a worker run one at a time, each marked before it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import pytest
from doubles import MAIN, BankDownError, Gate

from retryapp.core.deduplicate import Deduplicate
from retryapp.core.marks import Suspected
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.ports import TopicPartition
from retryapp.testing import MemoryPartition, Step

Start = Callable[..., Awaitable[MemoryPartition]]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Start a partition whose first session finds suspects behind its main offset."""
    async with AsyncExitStack() as stack:

        async def begin(handler: Gate, crashes: int, upto: int = 100, **options: object) -> MemoryPartition:
            made = MemoryPartition(handler, "1s", **options)  # type: ignore[arg-type]
            begin_session = made.engine.begin

            def with_suspects(session: int, starts: Mapping[TopicPartition, int], transport: LaneProtocol) -> None:
                transport.suspected = Suspected(crashes, upto) if session == 1 else None
                begin_session(session, starts, transport)

            monkeypatch.setattr(made.engine, "begin", with_suspects)
            return await stack.enter_async_context(made)

        yield begin


def marks(orders: MemoryPartition) -> list[tuple[int, str]]:
    """Return offsets of the main topic and what was written beside them, of each transaction that has such a note."""
    return [
        (batch.offsets[MAIN], batch.notes[MAIN].partition(":")[0])
        for batch in orders.transport.batches
        if MAIN in batch.notes
    ]


async def test_suspects_run_one_at_a_time_in_order(start: Start) -> None:
    """Whatever the handler's concurrency; each is marked at its own offset, the first goes on counting."""
    gate = Gate()
    orders = await start(gate, 2, concurrency=4)
    marking = orders.transport.pause(Step.COMMIT)
    await orders.send(b"a", b"b", b"c")
    assert (marking.reached, list(gate.running)) == (True, []), "it starts when nobody can miss its mark"
    marking.set()
    await orders.settle()
    assert list(gate.running) == [b"a"]
    assert marks(orders) == [(0, "s3")]
    gate.let_all()
    await orders.advance(1_000)
    assert (gate.done, gate.most) == ([b"a", b"b", b"c"], 1)
    assert marks(orders) == [(0, "s3"), (1, "r0"), (1, "s1"), (2, "r0"), (2, "s1"), (3, "r0")]


async def test_suspect_rows_run_one_at_a_time_in_due_order() -> None:
    """Two lives ended with the same row first: those that could have been running run alone, and each is marked."""
    gate = Gate()
    async with MemoryPartition(gate, "1s 1h") as orders:
        for name in (b"a", b"b"):
            await orders.send(name)
            gate.let(name, BankDownError())
            await orders.advance(100)
    for _ in range(2):  # with the rows due at once when it opens
        orders.clock.advance(1_000)
        async with MemoryPartition(gate, "1s 1h", transport=orders.transport, concurrency=4) as orders:
            await orders.settle()
            assert list(gate.running) == [b"a", b"b"]
        gate.running.clear()
    async with MemoryPartition(gate, "1s 1h", transport=orders.transport, concurrency=4) as orders:
        await orders.settle()
        assert list(gate.running) == [b"a"]
        gate.let_all()
        await orders.to_rest()
        assert (gate.done, orders.waiting) == ([b"a", b"b"], {})
        notes = [batch.rows_note.partition(":")[0] for batch in orders.transport.batches if batch.rows_note]
        assert notes == ["wr0", "wr1", "wr2", "ws1", "wr0", "ws1", "wr0"]


async def test_a_row_that_ends_its_worker_each_time_is_dead() -> None:
    """After as many lives that it ended alone as the handler allows; no progress of others takes its marks back."""
    gate = Gate()
    async with MemoryPartition(gate, "1s 1h", max_crashes=2) as orders:
        await orders.send(b"poison")
        gate.let(b"poison", BankDownError())
        await orders.settle()
    for life in range(5):
        orders.clock.advance(1_000)
        async with MemoryPartition(gate, "1s 1h", transport=orders.transport, max_crashes=2) as orders:
            await orders.send(b"good %d" % life)
            if life < 4:
                assert b"poison" in gate.running
                gate.let(b"good %d" % life)
                await orders.settle()
                await orders.advance(1_000)
            else:
                (letter,) = orders.dead_letters
                assert (letter.reason, letter.attempt, letter.origin.offset) == ("crashed", 2, 0)
                assert b"poison" not in gate.running
        gate.running.clear()


async def test_behind_the_suspects_records_run_as_always(start: Start) -> None:
    """As many may have run before as are taken in at once."""
    gate = Gate()
    gate.let_all()
    orders = await start(gate, 0, concurrency=4, max_in_flight=2)
    await orders.send(b"a", b"b")
    await orders.advance(1_000)
    gate.open = False
    await orders.send(b"c", b"d")
    await orders.settle()
    assert list(gate.running) == [b"c", b"d"]
    assert [offset for offset, mark in marks(orders) if mark == "s1"] == [0, 1]


async def test_what_came_after_the_end_is_not_suspect_and_waits_for_those_that_are(start: Start) -> None:
    """Beside them it could end the worker in their stead; once their outcomes are durable it runs as ever."""
    gate = Gate()
    orders = await start(gate, 0, upto=2, concurrency=4)
    await orders.send(b"a", b"b", b"c", b"d")
    assert list(gate.running) == [b"a"]
    assert marks(orders) == [(0, "s1")]
    gate.let_all()
    await orders.to_rest()
    assert gate.done[:2] == [b"a", b"b"]
    assert sorted(gate.done[2:]) == [b"c", b"d"]
    assert marks(orders)[-1] == (2, "r0")


async def test_nothing_runs_before_the_burial_of_a_suspect_is_durable(start: Start) -> None:
    """It is not called again. What is behind it may be the one that ended its workers: the offset has to move first."""
    gate = Gate()
    orders = await start(gate, 3, upto=1, concurrency=4)
    burying = orders.transport.pause(Step.COMMIT)
    await orders.send(b"a", b"b")
    assert (burying.reached, list(gate.running)) == (True, [])
    burying.set()
    await orders.settle()
    await orders.advance(100)
    assert list(gate.running) == [b"b"]
    (letter,) = orders.dead_letters
    assert (letter.reason, letter.attempt, letter.origin.offset) == ("crashed", 1, 0)
    assert "3 workers ended while this record ran alone" in letter.error_message


async def test_a_skipped_duplicate_is_not_among_the_suspects(start: Start) -> None:
    """It does not run: the mark may have been its own, and those behind it may have run."""
    gate = Gate()
    gate.let_all()
    rule = Deduplicate("header:event-id", window="1h")
    async with MemoryPartition(gate, "1s", deduplicate=rule) as orders:
        await orders.send(b"first", headers=(("event-id", b"e"),))
        await orders.advance(1_000)
    gate.open = False
    orders.transport.append(MAIN, None, b"again", (("event-id", b"e"),))
    for value in (b"a", b"b"):
        orders.transport.append(MAIN, None, value)
    orders = await start(gate, 3, concurrency=2, max_in_flight=2, deduplicate=rule, transport=orders.transport)
    await orders.advance(1_000)
    assert list(gate.running) == [b"a"]
    gate.let_all()
    await orders.advance(1_000)
    assert (gate.most, gate.done) == (1, [b"first", b"a", b"b"])
    assert orders.dead_letters == []
