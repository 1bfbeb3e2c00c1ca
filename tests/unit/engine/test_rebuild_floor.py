"""A lane without a store reads its changelog from where the oldest row of the last worker was written."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import CHANGELOG, MAIN, BankDownError, Refusing, serving

from retryapp.core import marks
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.lane import recovery
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.ports import Sink, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, MemoryPendingTable
from retryapp.testing.lane import MemoryReader

TAIL = 12
"""Where the floor is looked for: a few transactions."""


class FailsOnce:
    """A handler that fails at each first attempt, and at all of some values."""

    def __init__(self, *stubborn: bytes) -> None:
        self.done: list[bytes] = []
        self._stubborn = stubborn

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        if delivery.attempt == 1 or value in self._stubborn:
            raise BankDownError
        self.done.append(value)


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where readings of the changelog began that went to its end."""
    monkeypatch.setattr(recovery, "TAIL_OFFSETS", TAIL)
    found: list[int] = []
    read = MemoryReader.read

    async def noted(self: MemoryReader, tp: TopicPartition, start: int, sink: Sink, **how: Any) -> int:
        if tp == CHANGELOG:
            found.append(start)
        return await read(self, tp, start, sink, **how)

    monkeypatch.setattr(MemoryReader, "read", noted)
    return found


async def come_and_go(orders: MemoryPartition, count: int) -> None:
    """Have records fail and succeed after their wait of a second, one after the other."""
    for number in range(count):
        await orders.send(b"passing %d" % number)
        await orders.advance(1_500)


async def rebuilt(orders: MemoryPartition, starts: list[int], handler: Any, **more: Any) -> tuple[int, int]:
    """Start a worker without a store; return where it begins to read, and the end of the changelog then."""
    transport = orders.transport
    transport.lose_store()
    del starts[:]
    end = transport.broker.bounds([CHANGELOG])[CHANGELOG][1]
    async with MemoryPartition(handler, "1s 1h", transport=transport, **more) as again:
        table = transport.pending
        assert isinstance(table, MemoryPendingTable)
        whole = MemoryPendingTable()
        rows = transport.read(CHANGELOG)
        whole.recover([(row.key or b"", row.value) for row in rows], 0)
        assert table.page(None, 1_000) == whole.page(None, 1_000), "the rows are those of the whole changelog"
        assert again.lane.last_error is None
    return starts[-1], end


async def test_a_rebuild_does_not_read_what_has_come_and_gone(starts: list[int]) -> None:
    """It begins where the oldest row was written, or a generation before; and the next one no earlier."""
    async with serving(FailsOnce(), "1s 1h") as (orders, handler):
        await come_and_go(orders, 50)
        await orders.send(b"one", b"two")
    start, end = await rebuilt(orders, starts, handler)
    assert end - 25 < start < end
    again, _ = await rebuilt(orders, starts, handler)
    assert again >= start
    async with MemoryPartition(handler, "1s 1h", transport=orders.transport) as orders:
        await orders.to_rest()
        assert handler.done[-2:] == [b"one", b"two"]


@pytest.mark.parametrize("kind", ["waits", "is held", "is written anew"])
async def test_a_row_from_before_stays_within_the_rebuild(starts: list[int], kind: str) -> None:
    """However many come and go behind it; a row that is written anew counts from there."""
    async with serving(FailsOnce(b"stays"), "1s 1h") as (orders, handler):
        await come_and_go(orders, 20)
        await orders.send(b"stays")
        if kind == "is held":
            await orders.command("hold", 20)
        await orders.advance(1_500)
        written = max(row.offset for row in orders.transport.read(CHANGELOG) if row.key != marks.PROGRESS)
        await come_and_go(orders, 50)
        if kind == "is written anew":
            await orders.command("hold", 20)
            await come_and_go(orders, 5)
            await orders.command("release", 20)
            await come_and_go(orders, 5)
        assert sum(orders.waiting.values()) == 1
    start, end = await rebuilt(orders, starts, handler)
    assert (end - 120 < start < end) if kind == "is written anew" else (written - 25 < start <= written < end - 300)


async def test_what_a_refused_transaction_removes_keeps_the_floor(starts: list[int]) -> None:
    """It is not removed: the record is delivered by the next worker, whatever others have done meanwhile."""
    async with serving(FailsOnce(b"refused"), "1s 1h") as (orders, handler):
        await come_and_go(orders, 20)
        await orders.send(b"refused")
        refusing = Refusing(orders.transport, b"refused")
        await orders.advance(1_500)
        assert refusing.tries, "its next copy is refused"
        await come_and_go(orders, 50)
    refusing.prefixes = ()
    start, end = await rebuilt(orders, starts, handler)
    assert start < end - 100


async def test_a_lane_without_a_floor_reads_all(starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an older build, whose progress records name none."""
    handler, log = FailsOnce(), LaneProtocol._log

    async def unnamed(self: LaneProtocol, batch: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryPendingTable, "floor", 0)
            if self.pending is not None:
                vars(self.pending).pop("floor", None)
            return await log(self, batch)

    monkeypatch.setattr(LaneProtocol, "_log", unnamed)
    async with MemoryPartition(handler, "1s 1h") as orders:
        await come_and_go(orders, 50)
        await orders.send(b"one", b"two")
    start, end = await rebuilt(orders, starts, handler)
    assert (start, end > TAIL) == (0, True)


SITE = LaneSite(
    name="app.orders.0",
    group="app",
    partition=0,
    sources=(),
    main=MAIN,
    changelog=CHANGELOG,
    dlqs=(),
    changelog_id="kq2",
)


@pytest.mark.parametrize(
    ("said", "floor"),
    [
        ((), 0),
        ((("kq2", 3), ("kq2", 7)), 7),
        ((("kq2", 7), ("kq2", 0)), 7),  # an older build has written the last one: what was before 7 is settled for good
        ((("kq2", 3), ("other", 7)), 3),  # copied from another changelog, where the offsets mean other records
        ((("", 7),), 0),
    ],
)
async def test_the_floor_is_the_highest_that_is_named_for_this_changelog(
    said: tuple[tuple[str, int], ...], floor: int
) -> None:
    """In the tail; 0 where there is none."""
    transport = MemoryLaneTransport()
    for number in range(TAIL):
        transport.append(CHANGELOG, b"%d" % number, b"")
    for changelog_id, named in said:
        value = marks.progress_value({}, "", changelog_id=changelog_id, floor=named)
        transport.append(CHANGELOG, marks.PROGRESS, value)
    reader = transport.reader
    assert await recovery.floor_of(SITE, reader) == floor
