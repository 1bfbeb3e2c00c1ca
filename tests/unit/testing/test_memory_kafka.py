"""The memory transports at a crash: what waits, what arrives late, what is left for the next worker."""

from __future__ import annotations

import asyncio

import pytest

from retryapp.core.hops import Outgoing
from retryapp.engine.handler import Delivery
from retryapp.ports import LaneBatch, LaneReceipt, Row, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, MemoryPlainTransport, Step

MAIN = TopicPartition("orders", 0)
RETRY = TopicPartition("app.orders.retry", 0)
ROW = Row(b"\0" * 20, b"v", "1m")


def batch(offset: int) -> LaneBatch:
    """Return a batch with a bit of everything."""
    return LaneBatch({MAIN: offset}, [Outgoing(RETRY.topic, 0, None, b"v", ())], [ROW])


async def begun(transport: MemoryLaneTransport, offset: int = 1) -> asyncio.Task[LaneReceipt]:
    """Return a commit that has got as far as it gets."""
    task = asyncio.create_task(transport.commit(batch(offset)))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def down(_value: bytes) -> None:
    """Fail."""
    raise TimeoutError


async def test_a_pause_is_for_one_call_after_others_and_says_when_it_is_reached() -> None:
    """Calls before and after it go well; several are for calls one after the other."""
    transport = MemoryLaneTransport([MAIN])
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


@pytest.mark.parametrize("kind", [MemoryLaneTransport, MemoryPlainTransport])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_commit_that_waits_has_taken_effect_if_it_is_durable(
    kind: type[MemoryLaneTransport], durable: bool
) -> None:
    """Its acknowledgement comes when it is let go."""
    transport = kind([MAIN])
    pause = transport.pause(Step.COMMIT, durable=durable)
    commit = await begun(transport)
    assert (transport.offsets[MAIN], len(transport.read(RETRY)), len(transport.changelog)) == (durable,) * 3
    pause.set()
    assert await commit == LaneReceipt([0], 0)
    assert (transport.offsets[MAIN], len(transport.read(RETRY)), len(transport.changelog)) == (1, 1, 1)


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_commit_of_a_dead_worker_arrives_late_unless_it_is_fenced(fenced: bool) -> None:
    """What is on its way does not need its sender."""
    transport = MemoryLaneTransport([MAIN])
    pause = transport.pause(Step.COMMIT)
    (await begun(transport)).cancel()
    await asyncio.sleep(0)
    if fenced:
        await transport.fence()
    pause.set()
    assert transport.offsets[MAIN] == (0 if fenced else 1)


async def test_a_fenced_commit_is_told_so() -> None:
    """As a producer is."""
    transport = MemoryLaneTransport([MAIN])
    pause = transport.pause(Step.COMMIT)
    commit = await begun(transport)
    await transport.fence()
    pause.set()
    with pytest.raises(RuntimeError, match="another producer"):
        await commit


@pytest.mark.parametrize(
    ("step", "left"), [(Step.PUBLISH, (0, 0, 0)), (Step.LOG, (1, 0, 0)), (Step.MOVE, (1, 1, 0))], ids=str
)
async def test_without_transactions_each_step_stands_alone(step: Step, left: tuple[int, int, int]) -> None:
    """Records, changelog, offsets: what comes before the death stays, what comes behind it never happens."""
    transport = MemoryPlainTransport([MAIN])
    pause = transport.pause(step)
    (await begun(transport)).cancel()
    await asyncio.sleep(0)
    pause.set()
    assert (len(transport.read(RETRY)), len(transport.changelog), transport.offsets[MAIN]) == left


def test_a_step_that_cannot_wait_cannot_be_paused() -> None:
    """It would wait for ever, or not at all."""
    with pytest.raises(ValueError, match="durable=True"):
        MemoryLaneTransport([MAIN]).pause(Step.APPLY)


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
    assert kafka.store is not None
    assert kafka.store.next_offset == 1
    if lost:
        kafka.lose_store()
    async with MemoryPartition(down, "5m", transport=kafka) as second:
        assert (second.transport, second.clock, second.waiting) == (kafka, first.clock, {"5m": 1})
        await second.advance(239_999)
        assert second.records("app.orders.redelivery") == []
        await second.advance(1)
        assert len(second.records("app.orders.redelivery")) == 1


async def test_a_store_that_is_kept_is_read_on_from_where_it_was() -> None:
    """So what was written to it and is not in the changelog shows, as on a real disk."""
    transport = MemoryLaneTransport([MAIN])
    await transport.recover()
    await transport.commit(batch(1))
    assert transport.pending is not None
    transport.pending.write([Row(b"\1" * 20, b"never committed", "1m")], (), None)
    await transport.close()
    await transport.recover()
    assert transport.pending.counts() == {"1m": 2}
    transport.lose_store()
    await transport.recover()
    assert transport.pending.counts() == {"1m": 1}


async def test_a_transport_serves_one_worker_at_a_time() -> None:
    """Two that live would not be the two workers of a group."""
    async with MemoryPartition(down) as first:
        with pytest.raises(RuntimeError, match="leave that one first"):
            async with MemoryPartition(down, transport=first.transport):
                pass
