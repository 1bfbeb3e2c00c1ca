"""The broker and the local store in memory at a crash: what waits, what arrives late, what the next worker finds."""

from __future__ import annotations

import asyncio

import pytest
from samples import waiting_row

from retryapp.core.hops import Outgoing
from retryapp.core.record import Record
from retryapp.core.row_keys import IDENTITY_AT
from retryapp.core.rows import decode_row
from retryapp.engine.delivery.run import Claim
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import LaneBatch, LaneReceipt, TopicPartition
from retryapp.testing import MemoryLaneTransport, MemoryPartition, Step

MAIN, RETRY = TopicPartition("orders", 0), TopicPartition("app.orders.retry", 0)
CHANGELOG, DLQ = TopicPartition("app.orders.pending.changelog", 0), TopicPartition("app.orders.dlq", 0)
SITE = LaneSite(
    name="app.orders.0", group="app", partition=0, sources=(MAIN,), main=MAIN, changelog=CHANGELOG, dlqs=[DLQ]
)
ROW = waiting_row(0, due_at_ms=1_000)


@pytest.fixture
async def transport() -> MemoryLaneTransport:
    made = MemoryLaneTransport()
    made.attach(SITE, "life")
    made.append(MAIN, None, b"v")
    await made.fence()
    return made


def batch(offset: int) -> LaneBatch:
    return LaneBatch({MAIN: offset}, [Outgoing(RETRY.topic, 0, None, b"v", ())], [ROW])


async def begun(transport: MemoryLaneTransport, offset: int = 1) -> asyncio.Task[LaneReceipt]:
    task = asyncio.create_task(transport.commit(batch(offset)))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def reopen(transport: MemoryLaneTransport) -> None:
    """Close it, and open it as a lane does."""
    await transport.close()
    await transport.fence()
    await transport.committed()
    await transport.recover()


def visible(transport: MemoryLaneTransport) -> tuple[int, int, int]:
    """Return the committed offset, and how many records can be read of the retry topic and of the changelog."""
    return transport.offsets[MAIN], len(transport.read(RETRY)), len(transport.read(CHANGELOG))


async def down(_value: bytes) -> None:
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


def test_a_step_that_is_none_is_refused() -> None:
    """Nothing ever failed at it, so a test with it proved nothing."""
    with pytest.raises(ValueError, match="'comit' is not a valid Step"):
        MemoryLaneTransport().fail("comit", OSError())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'comit' is not a valid Step"):
        MemoryLaneTransport().pause("comit")  # type: ignore[arg-type]


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
        assert second.dead_letters == []
        await second.advance(1)
        assert [letter.attempt for letter in second.dead_letters] == [2], "it was due, and failed again"


async def test_a_due_row_of_an_older_assignment_is_not_delivered() -> None:
    """Sessions of lanes begin at 1 with each assignment; the row may have been settled elsewhere since."""
    calls: list[int] = []

    async def fail(_value: bytes, delivery: Delivery) -> None:
        calls.append(delivery.attempt)
        raise TimeoutError

    async with MemoryPartition(fail, "5m*2") as worker:
        await worker.send(b"v")
        assert worker.transport.pending is not None
        ((key, value),) = worker.transport.pending.page(None, 2)
        engine, row = worker.engine, decode_row(value)
        stale = Claim(key=key, identity=key[IDENTITY_AT:], due_at_ms=0, size=len(value))
        record = Record("app.orders.pending.changelog", 0, 0, 0, row.key, row.value, row.headers)
        engine.accept(engine.rows, worker.lane.session, [(stale, record)])
        await worker.settle()
        assert calls == [1]
        await worker.advance(300_000)
        assert calls == [1, 2]


async def test_a_store_that_is_kept_is_read_on_from_where_it_was(transport: MemoryLaneTransport) -> None:
    """So what was written to it and is not in the changelog shows, as on a real disk."""
    await transport.commit(batch(1))
    await reopen(transport)
    assert transport.pending is not None
    transport.pending.write([waiting_row(1, value=b"never committed")], None)
    await reopen(transport)
    assert len(transport.pending.page(None, 9)) == 2
    await transport.close()
    transport.lose_store()
    await reopen(transport)
    assert len(transport.pending.page(None, 9)) == 1


async def test_what_comes_while_a_partition_is_read_counts(transport: MemoryLaneTransport) -> None:
    """As with a broker; a reader that was past the end it was told took its offset for one that is gone."""
    tp, positions = TopicPartition("letters", 0), list[int]()
    transport.append(tp, None, b"1")
    answer = transport.pause("tail")  # type: ignore[arg-type]
    reading = asyncio.create_task(transport.reader.read(tp, 0, lambda _, position: positions.append(position)))
    await asyncio.sleep(0)
    assert answer.reached
    transport.append(tp, None, b"2")
    answer.set()
    assert (await reading, positions) == (2, [2])


async def test_a_transport_serves_one_worker_at_a_time() -> None:
    """Two at once would be two workers of a group."""
    async with MemoryPartition(down) as first:
        with pytest.raises(RuntimeError, match="leave that one first"):
            async with MemoryPartition(down, transport=first.transport):
                pass
