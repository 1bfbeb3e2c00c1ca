"""What a partition has counted is said once, in ranges that join, whatever becomes of its workers."""

from __future__ import annotations

import pytest
from doubles import MAIN, Rig, events_of

from retryapp import Defer
from retryapp.core.lifecycle import Progress
from retryapp.engine.lane.turn import Turn
from retryapp.ports import TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition

Said = tuple[int, int, int, int, int]
"""From and to offset, received, fine, failed."""


async def picky(value: bytes) -> None:
    if value == b"bad":
        raise ConnectionError("503")
    if value == b"later":
        raise Defer("1h")


def make(transport: MemoryLaneTransport | None = None) -> MemoryPartition:
    """Return a partition whose records wait for long once they have failed."""
    return MemoryPartition(picky, "1h", transport=transport)


def said(orders: MemoryPartition) -> list[Said]:
    return [
        (each.from_offset, each.to_offset, each.received, each.first_try_ok, each.failed)
        for each in events_of(orders, Progress)
    ]


async def feed(orders: MemoryPartition, *values: bytes) -> None:
    """Send records, and let the lane commit them."""
    await orders.send(*values)
    await orders.advance(1_000)
    assert orders.transport.offsets[MAIN] == orders.transport.read(MAIN)[-1].offset + 1


@pytest.mark.parametrize("offset", [1, 4])
async def test_an_offset_that_was_moved_by_hand_drops_what_was_counted_before_it(offset: int) -> None:
    """It belongs to another one: what was counted would be counted twice, or what was passed not at all."""
    async with make() as orders:
        await feed(orders, b"good", b"good", b"bad", b"good", b"good")
    orders.transport.offsets[MAIN] = offset
    async with make(orders.transport) as orders:
        await orders.advance(1_000)
        await orders.finish()
        (only,) = said(orders)
        assert only[:3] == (offset, 5, 5 - offset)


async def test_a_session_that_passes_nothing_but_the_mark_of_a_transaction_leaves_no_hole() -> None:
    """The ranges join although the offset has moved."""
    async with make() as orders:
        await feed(orders, b"good")
        await orders.finish()
    async with make(orders.transport) as orders:
        orders.transport.broker.logs[MAIN].end += 1
        orders.lane.submit(orders.lane.session, Turn(source=MAIN, next_offset=2))
        await orders.advance(1_000)
        assert orders.transport.offsets[MAIN] == 2
    async with make(orders.transport) as orders:
        await feed(orders, b"good")
        await orders.finish()
        assert [each[:2] for each in said(orders)] == [(0, 1), (1, 3)]


async def test_what_its_handler_has_wait_has_not_failed() -> None:
    """It has neither succeeded."""
    async with make() as orders:
        await feed(orders, b"good", b"later", b"bad")
        await orders.finish()
    only = events_of(orders, Progress)[-1]
    assert (only.received, only.first_try_ok, only.failed, only.held) == (3, 1, 1, 1)


@pytest.mark.parametrize(("then", "notes"), [(4, {MAIN: "s1:life"}), (6, {MAIN: "r0:life"})])
async def test_a_mark_ends_with_its_offset(rig: Rig, then: int, notes: dict[TopicPartition, str]) -> None:
    """A record that runs alone is known by it, and an event may go in the same transaction; the next one is another."""
    rig.lane.submit(1, Turn(source=MAIN, next_offset=5, note="s1:life"))
    rig.lane.submit(1, Turn(source=MAIN, next_offset=then))
    await rig.settle()
    batch = rig.transport.batches[-1]
    assert (batch.offsets, batch.notes) == ({MAIN: max(5, then)}, notes)
