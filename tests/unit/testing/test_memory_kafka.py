"""The broker and the local store in memory at a crash: what waits, what arrives late, what the next worker finds."""

from __future__ import annotations

import asyncio

import pytest

from retryapp.core.hops import Outgoing
from retryapp.core.rows import row_key
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import LaneBatch, LaneReceipt, Row, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

MAIN, RETRY = TopicPartition("orders", 0), TopicPartition("app.orders.retry", 0)
CHANGELOG, DLQ = TopicPartition("app.orders.pending.changelog", 0), TopicPartition("app.orders.dlq", 0)
SITE = LaneSite(name="app.orders.0", group="app", partition=0, sources=(MAIN,), main=MAIN, changelog=CHANGELOG, dlq=DLQ)
ROW = Row(row_key(1_000, 0, 0), b"v", "1m")


@pytest.fixture
async def transport() -> MemoryLaneTransport:
    """A transport whose lane has a producer."""
    made = MemoryLaneTransport()
    made.attach(SITE, "life")
    made.append(MAIN, None, b"v")
    await made.fence()
    return made


def batch(offset: int) -> LaneBatch:
    """Return a batch with a bit of everything."""
    return LaneBatch({MAIN: offset}, [Outgoing(RETRY.topic, 0, None, b"v", ())], [ROW])


async def begun(transport: MemoryLaneTransport, offset: int = 1) -> asyncio.Task[LaneReceipt]:
    """Return a commit that has got as far as it gets."""
    task = asyncio.create_task(transport.commit(batch(offset)))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def visible(transport: MemoryLaneTransport) -> tuple[int, int, int]:
    """Return the committed offset, and how many records can be read of the retry topic and of the changelog."""
    return transport.offsets[MAIN], len(transport.read(RETRY)), len(transport.read(CHANGELOG))


async def down(_value: bytes) -> None:
    """Fail."""
    raise TimeoutError


async def test_a_pause_is_for_one_call_after_others_and_says_when_it_is_reached(transport: MemoryLaneTransport) -> None:
    """Calls before and after it go well; several are for calls one after the other."""
    first, second = transport.pause(Step.PROVE, after=1), transport.pause(Step.PROVE)
    await transport.prove()
    assert not first.reached
    for pause in (first, second):
        waiting = asyncio.create_task(transport.prove())
        await asyncio.sleep(0)
        assert (pause.reached, waiting.done()) == (True, False)
        pause.set()
        await waiting
    await transport.prove()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_commit_that_waits_has_taken_effect_if_it_is_durable(
    transport: MemoryLaneTransport, durable: bool
) -> None:
    """Its acknowledgement comes when it is let go; the row and the place of the lane are in the changelog."""
    pause = transport.pause(Step.COMMIT, durable=durable)
    commit = await begun(transport)
    assert visible(transport) == ((1, 1, 2) if durable else (0, 0, 0))
    pause.set()
    assert await commit == LaneReceipt([0], 1)
    assert visible(transport) == (1, 1, 2)


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_commit_of_a_dead_worker_arrives_late_unless_it_is_fenced(
    transport: MemoryLaneTransport, fenced: bool
) -> None:
    """What is on its way does not need its sender."""
    pause = transport.pause(Step.COMMIT)
    (await begun(transport)).cancel()
    await asyncio.sleep(0)
    if fenced:
        await transport.fence()
    pause.set()
    assert visible(transport) == ((0, 0, 0) if fenced else (1, 1, 2))


def test_a_step_that_cannot_wait_cannot_be_paused() -> None:
    """It would block the event loop, or not wait at all."""
    with pytest.raises(ValueError, match="durable=True"):
        MemoryLaneTransport().pause(Step.APPLY)


async def test_a_worker_whose_block_is_left_does_nothing_more() -> None:
    """Not even what its tasks try when they are cancelled; no step is noted."""

    async def stubborn(_value: bytes, _delivery: Delivery) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            worker.lane.fail(RuntimeError("on its last legs"))

    async with MemoryPartition(stubborn, "5m") as worker:
        await worker.send(b"v")
        calls = list(worker.transport.calls)
    assert worker.transport.calls == calls
    with pytest.raises(ConnectionError, match="dead"):
        await worker.transport.commit(batch(1))
    assert worker.transport.offsets[MAIN] == 0


@pytest.mark.parametrize("lost", [False, True], ids=["store kept", "store lost"])
async def test_the_next_worker_finds_what_the_dead_one_left(lost: bool) -> None:
    """Topics, offsets, the time, and the local store unless that is lost."""
    async with MemoryPartition(down, "5m") as first:
        await first.send(b"v")
        await first.advance(60_000)
    kafka = first.transport
    if lost:
        kafka.lose_store()
    async with MemoryPartition(down, "5m", transport=kafka) as second:
        assert (second.transport, second.clock, second.waiting) == (kafka, first.clock, {"5m": 1})
        await second.advance(239_999)
        assert second.records("app.orders.redelivery") == []
        await second.advance(1)
        assert len(second.records("app.orders.redelivery")) == 1


async def test_a_store_that_is_kept_is_read_on_from_where_it_was(transport: MemoryLaneTransport) -> None:
    """So what was written to it and is not in the changelog shows, as on a real disk."""
    await transport.commit(batch(1))
    await transport.recover()
    assert transport.pending is not None
    transport.pending.write([Row(row_key(2_000, 0, 1), b"never committed", "1m")], (), None)
    await transport.close()
    await transport.recover()
    assert len(transport.pending.page(None, 9)) == 2
    transport.lose_store()
    await transport.recover()
    assert len(transport.pending.page(None, 9)) == 1


async def test_a_transport_serves_one_worker_at_a_time() -> None:
    """Two at once would be two workers of a group."""
    async with MemoryPartition(down) as first:
        with pytest.raises(RuntimeError, match="leave that one first"):
            async with MemoryPartition(down, transport=first.transport):
                pass
