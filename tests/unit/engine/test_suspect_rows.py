"""Due rows that may have killed a worker: in groups as first deliveries, and whatever else makes progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles import MAIN, BankDownError, pass_time, serving
from suspected import ENDS, GATHER_MS, Killer, disk_rows, found, names, rows_marks, with_rows

from retryapp import Unavailable
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.marks import place_of
from retryapp.core.rates import parse_rate
from retryapp.core.rows import decode_row
from retryapp.engine.handler.handler import Delivery, Order
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step


async def test_suspect_rows_run_in_groups_in_due_order() -> None:
    """Two lives ended while the same rows were due."""
    gate, transport = await with_rows(8)
    for _ in range(ENDS):
        async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=8):
            assert list(gate.running) == names(8)
        gate.running.clear()
    del transport.batches[:]
    gate.most = 0
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=8, max_in_flight=8) as orders:
        assert list(gate.running) == names(4)
        gate.let_all()
        await orders.advance(100)
        assert (gate.most, gate.done, orders.waiting) == (4, names(8), {})
        assert rows_marks(transport) == ["wr2", "wg4", "wg4", "wr0"]


@pytest.mark.parametrize("at", range(8))
async def test_a_row_that_kills_is_found_with_traffic_on_the_main_topic(at: int) -> None:
    """No progress of first deliveries or of other rows takes its marks back; others are done, each in its time."""
    killer = Killer(b"%d" % at, fails=1)
    transport = found("", *names(8))
    ends = 0
    while ends < 20 and await killer.ends_a_life(transport, ends, concurrency=8, max_in_flight=8, max_crashes=2):
        ends += 1
    # without a mark, for the table was empty; two that make suspect; groups of 4 and 2; alone
    assert ends <= 1 + ENDS + 2 + 2
    assert {name for name in killer.done if not name.startswith(b"main")} == {*names(8)} - {killer.poison}
    async with MemoryPartition(killer, "1s 1h", transport=transport) as orders:
        (letter,) = orders.dead_letters
        assert (letter.reason, letter.attempt, letter.origin.offset) == ("crashed", 2, at)
        assert orders.waiting == {}


async def test_other_rows_that_are_done_do_not_take_unclean_ends_back() -> None:
    """A row that is due in each life counts, whichever was due first."""
    gate, transport = await with_rows(4)
    for name in (b"0", b"1"):
        async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=8) as orders:
            await gate.end(orders, name)
        gate.running.clear()
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=2, max_in_flight=2) as orders:
        await orders.settle()
        assert list(gate.running) == [b"2"]
        assert rows_marks(transport)[-1] == "ws1"


async def test_no_row_begins_beside_a_first_delivery_that_one_more_death_gives_up() -> None:
    """A row that is no suspect yet could end the worker in its place, and it would be dead for that."""
    gate, transport = await with_rows(1)
    transport.append(MAIN, None, b"blamed")
    transport.broker.committed[MAIN], transport.broker.notes[MAIN] = 1, "s1:old@1"
    async with MemoryPartition(gate, "1s 1h", transport=transport, max_crashes=2) as orders:
        await orders.advance(GATHER_MS)
        assert list(gate.running) == [b"blamed"]
        await gate.end(orders, b"blamed")
        assert list(gate.running) == [b"0"]
        await gate.end(orders, b"0")
        assert (orders.waiting, orders.dead_letters) == ({}, [])


async def test_no_first_delivery_begins_beside_a_row_that_one_more_death_gives_up() -> None:
    """The same the other way round."""
    gate, transport = await with_rows(1)
    ((key, _),) = disk_rows(transport)
    due_ms, offset = place_of(key)
    transport.broker.notes[MAIN] = f"r0:old ws1:old@{due_ms}.{offset}"
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=8, max_crashes=2) as orders:
        await orders.advance(GATHER_MS)
        await orders.send(b"new")
        assert list(gate.running) == [b"0"]
        await gate.end(orders, b"0")
        assert list(gate.running) == [b"new"]
        gate.let_all()


async def test_a_row_that_was_alone_before_waits_for_no_copy_behind_first_deliveries() -> None:
    """They fill the room of the partition, so the copy of another row is not read before they have ended."""
    gate, transport = await with_rows(2)
    ((key, _), _) = disk_rows(transport)
    due_ms, offset = place_of(key)
    async with MemoryPartition(gate, "1s 1h", transport=transport, through_main=True, max_in_flight=1) as orders:
        await orders.settle()
        assert list(gate.running) == [b"0"], "its copy is on the main topic"
    gate.running.clear()
    for value in (b"new", b"newer"):
        transport.append(MAIN, None, value)
    transport.broker.notes[MAIN] = f"r0:old ws1:old@{due_ms}.{offset}"
    async with MemoryPartition(gate, "1s 1h", transport=transport, through_main=True, max_in_flight=2) as orders:
        await orders.advance(GATHER_MS)
        assert sorted(gate.running) == [b"0", b"new"]
        gate.let_all()
        await orders.advance(GATHER_MS)
        assert sorted(gate.done) == [b"0", b"1", b"new", b"newer"]


async def test_a_row_that_was_not_due_after_all_keeps_its_count() -> None:
    """It is claimed again later; what it was held responsible for is not forgotten."""
    gate, transport = await with_rows(1)
    (key, _), *_ = disk_rows(transport)
    due_ms = int.from_bytes(key[:8], "big")
    transport.broker.notes[MAIN] = f"r0:old ws2:old@{due_ms}.0"
    marking = transport.pause(Step.COMMIT)
    async with MemoryPartition(gate, "1s 1h", transport=transport) as orders:
        assert marking.reached
        orders.clock.trusted = False
        marking.set()
        await orders.settle()
        assert gate.running == {}
        orders.clock.trusted = True
        await orders.advance(1_000)
        assert list(gate.running) == [b"0"]
        assert rows_marks(transport)[-1] == "ws3"


async def test_suspects_that_are_settled_hold_nothing_up() -> None:
    """Their worker died before it had taken the mark back; that is done before another record runs."""
    gate, transport = await with_rows(2)
    due_ms = int.from_bytes(disk_rows(transport)[0][0][:8], "big")
    transport.broker.notes[MAIN] = f"r0:old wg3:old@{due_ms + 1}.0-{due_ms + 1}.9"
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=2) as orders:
        assert list(gate.running) == []
        await orders.advance(GATHER_MS)
        assert list(gate.running) == names(2)
        assert rows_marks(transport)[-1] == "wr0"


async def test_a_row_that_has_come_between_suspects_takes_no_place_of_theirs() -> None:
    """Two of three ran when their worker died; the third was read again, or is due at once by a command."""
    gate, transport = await with_rows(3)
    due_ms = int.from_bytes(disk_rows(transport)[0][0][:8], "big")
    transport.broker.notes[MAIN] = f"r0:old wg2:old@{due_ms}.0-{due_ms}.3"
    del transport.batches[:]
    async with MemoryPartition(gate, "1s 1h", transport=transport, concurrency=3) as orders:
        await orders.advance(GATHER_MS)
        assert list(gate.running) == names(2)
        gate.let_all()
        await orders.settle()
        assert gate.done == names(3)
        assert rows_marks(transport)[:2] == ["wg2", "ws1"], "the last one is named, too"


async def test_a_suspect_that_comes_late_runs_alone() -> None:
    """A rate holds its claim back while held records, which are no suspects, run."""
    running: list[bytes] = []
    beside: list[list[bytes]] = []
    first = True

    async def handle(value: bytes) -> None:
        if first and value != b"slow":
            raise BankDownError
        if value == b"kill":
            beside.append([*running])
        running.append(value)
        await asyncio.sleep(3 if value == b"slow" else 0)
        running.remove(value)

    transport = MemoryLaneTransport()
    options: dict[str, Any] = {"order": Order.KEY, "concurrency": 8, "transport": transport}
    async with serving(handle, "1s 1h", b"fail", b"slow", b"slow", key=b"a", **options) as (orders, _):
        await orders.advance(500)
        await orders.send(b"kill", key=b"b")
        first = False
        await orders.advance(501)
        assert (running, orders.waiting) == ([b"slow"], {"1s": 1, "held": 2})
    running.clear()
    key = next(key for key, value in disk_rows(transport) if decode_row(value).value == b"kill")
    transport.broker.notes[MAIN] = f"r0:old ws2:old@{int.from_bytes(key[:8], 'big')}.3"
    async with MemoryPartition(handle, "1s 1h", rate_limit=parse_rate("1/s"), **options) as orders:
        await orders.advance(GATHER_MS)
        assert running == [b"slow"]
        await pass_time(orders, 10_000, 100)
        assert (beside, orders.waiting) == ([[]], {})


class Marked:
    """Notes the mark that is there when a row runs; a first delivery fails, and in the first life rows hang."""

    def __init__(self) -> None:
        self.transport = MemoryLaneTransport()
        self.marks: dict[bytes, str] = {}
        self.hangs = True

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        """Fail, hang, or be done."""
        if delivery.number == 1 and self.hangs:
            raise Unavailable("ledger") if value == b"kill" else BankDownError
        if self.hangs:
            await asyncio.Event().wait()
        self.marks[value] = rows_marks(self.transport)[-1]

    async def lives(self, *sent: tuple[bytes, bytes], **options: Any) -> None:
        """Have two rows in flight, once when a worker has died beside them twice."""
        options |= {"transport": self.transport, "concurrency": 2}
        async with MemoryPartition(self, "1s 1h", **options) as orders:
            for key, value in sent:
                await orders.send(value, key=key)
            await orders.advance(1_500)
            end_ms = orders.clock.wall_ms()
        self.hangs = False
        self.transport.broker.notes[MAIN] = f"r0:old wr1:old<{end_ms}.0"
        async with MemoryPartition(self, "1s 1h", max_in_flight=2, **options) as orders:
            await pass_time(orders, 5_000, 100)
            assert orders.waiting == {}


async def test_a_row_that_its_circuit_lets_go_after_others_is_a_suspect() -> None:
    """A bucket is empty at first, so in each life others filled the places of suspects, and it killed once more."""
    handler = Marked()
    limited = CircuitBreaker(minimum_calls=1_000, rate_limit="1/s")
    sent = [(b"k%d" % n, value) for n, value in enumerate((b"kill", *names(4)))]
    await handler.lives(*sent, circuits={"ledger": limited})
    assert list(handler.marks)[-1] == b"kill"
    assert handler.marks[b"kill"] == "ws1"


async def test_a_row_that_follows_a_suspect_takes_no_place_of_others() -> None:
    """Where an order is kept, the next of a sequence may go before rows that have waited for longer."""
    handler = Marked()
    await handler.lives((b"a", b"a1"), (b"a", b"a2"), (b"b", b"b"), (b"c", b"kill"), order=Order.KEY)
    assert handler.marks[b"kill"] == "ws1"
