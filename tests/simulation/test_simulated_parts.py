"""The parts of the simulation behave as what they stand for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from retryapp.core.hops import Outgoing
from retryapp.core.record import Origin
from retryapp.core.row_keys import IDENTITY_AT, identity_of
from retryapp.ports import Committed, Row, Standing, TopicPartition
from retryapp.testing import MemoryPendingTable
from retryapp.testing.broker import FencedError, OutOfRangeError
from simulation.broker import Broker
from simulation.campaign import of_all_ranges
from simulation.disk import SimDisk
from simulation.loop import Process, Stalled, VirtualLoop
from simulation.network import REQUEST_S, Network, Wire
from simulation.plan import RANGES

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def in_virtual_time(story: Callable[[VirtualLoop], Awaitable[Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story(loop))
    finally:
        loop.abandon()


def out(value: bytes, tp: TopicPartition = A, key: bytes | None = None) -> Outgoing:
    return Outgoing(tp.topic, tp.partition, key, value, ())


# -- time and processes -----------------------------------------------------------------------------------------------


def test_time_passes_at_once() -> None:
    """A week takes no longer than it takes to say so, and timers ring in order."""

    async def story(loop: VirtualLoop) -> list[str]:
        rang: list[str] = []
        began_s = loop.time()
        loop.call_later(5, rang.append, "second")
        loop.call_later(2, rang.append, "first")
        await asyncio.sleep(7 * 86_400)
        assert loop.time() - began_s == pytest.approx(7 * 86_400)
        return rang

    assert in_virtual_time(story) == ["first", "second"]


def test_who_waits_for_nothing_is_told() -> None:
    """A simulation must not hang."""

    async def story(_loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled):
        in_virtual_time(story)


def test_an_abandoned_loop_leaves_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a running loop asyncio makes one for whoever asks, and it would be some later test's warning."""
    policy, made = asyncio.DefaultEventLoopPolicy(), []
    monkeypatch.setattr(asyncio.events, "_event_loop_policy", policy)
    monkeypatch.setattr(policy, "new_event_loop", lambda: made.append(VirtualLoop()) or made[0])
    late = asyncio.sleep(1)

    async def go_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(late)

    async def story(_loop: VirtualLoop) -> None:
        asyncio.ensure_future(go_on())  # noqa: RUF006 - it is abandoned
        await asyncio.sleep(1)

    in_virtual_time(story)
    late.close()
    for loop in made:
        loop.abandon()
    assert made == []


def counting(process: Process, steps: list[int]) -> None:
    """Have a process take a step each second, and note its end."""

    async def go_on() -> None:
        try:
            while True:
                steps.append(len(steps))
                await asyncio.sleep(1)
        finally:
            steps.append(-1)

    process.context.run(lambda: asyncio.ensure_future(go_on()))


def test_a_killed_process_runs_nothing_more() -> None:
    """Not even what it would do at its end."""

    async def story(_loop: VirtualLoop) -> list[int]:
        process, steps = Process("p"), list[int]()
        counting(process, steps)
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)
        return list(steps)

    assert in_virtual_time(story) == [0, 1, 2]


def test_a_process_can_be_killed_after_any_step() -> None:

    async def story(_loop: VirtualLoop) -> list[int]:
        process, steps = Process("p"), list[int]()
        process.kill_at_step = 4
        counting(process, steps)
        await asyncio.sleep(60)
        return list(steps)

    few = in_virtual_time(story)
    assert 0 < len(few) < 4


def test_a_stopped_process_goes_on_where_it_was() -> None:
    """What came meanwhile waits for it; the world does not."""

    async def story(_loop: VirtualLoop) -> list[int]:
        process, steps = Process("p"), list[int]()
        counting(process, steps)
        await asyncio.sleep(0.5)
        process.stopped = True
        await asyncio.sleep(100)
        seen = [len(steps)]
        process.cont()
        await asyncio.sleep(1.5)
        return [*seen, len(steps)]

    assert in_virtual_time(story) == [1, 3]


# -- the broker -------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker whose time stands still."""
    loop = VirtualLoop()
    yield Broker(loop, 2)
    loop.abandon()


def test_a_transaction_is_seen_whole_or_not_at_all(broker: Broker) -> None:
    """Its marker takes an offset, and group offsets move with it."""
    epoch = broker.init_producer("p")
    broker.produce("p", epoch, [out(b"1"), out(b"2", B)])
    broker.add_offsets("p", epoch, {A: Committed(7, "note")})
    assert (broker.visible(A), broker.bounds([A])[A], broker.committed) == ([], (0, 0), {})
    broker.end_transaction("p", epoch)
    assert [record.value for record in broker.visible(A) + broker.visible(B)] == [b"1", b"2"]
    assert (broker.bounds([A])[A], broker.committed) == ((0, 2), {A: 7})


def test_a_broker_that_stops_takes_back_what_it_has_acknowledged(broker: Broker) -> None:
    """One commit: it is never seen, moves nothing, and fences its producer when the broker is there again."""
    stopped: list[bool] = []
    broker.stopping, broker.on_stopped = True, lambda: stopped.append(True)
    epoch = broker.init_producer("p")
    broker.end_transaction("p", epoch)
    assert not stopped, "there was nothing to commit"
    broker.produce("p", epoch, [out(b"gone"), out(b"too", B)])
    broker.add_offsets("p", epoch, {A: Committed(7, "")})
    broker.end_transaction("p", epoch)
    assert (stopped, broker.bounds([A])[A], broker.committed) == ([True], (0, 0), {})
    broker.restart()
    assert (broker.visible(A), broker.visible(B), broker.committed) == ([], [], {})
    assert (dict(broker.taken_back), broker.moved_in_vain) == ({"a": 1, "b": 1}, {A: 7})
    with pytest.raises(FencedError):
        broker.produce("p", epoch, [out(b"more")])
    broker.produce("p", broker.init_producer("p"), [out(b"again")])
    broker.end_transaction("p", epoch + 2)
    assert [record.value for record in broker.visible(A)] == [b"again"]


def test_a_new_producer_ends_and_fences_the_former_one(broker: Broker) -> None:
    """What was open is aborted, and nobody ever sees it."""
    old = broker.init_producer("p")
    broker.produce("p", old, [out(b"torn")])
    new = broker.init_producer("p")
    for attempt in (
        lambda: broker.produce("p", old, [out(b"late")]),
        lambda: broker.add_offsets("p", old, {A: Committed(1, "")}),
        lambda: broker.end_transaction("p", old),
    ):
        with pytest.raises(FencedError):
            attempt()
    broker.produce("p", new, [out(b"whole")])
    broker.end_transaction("p", new)
    assert [record.value for record in broker.visible(A)] == [b"whole"]
    assert [record.value for record in broker.read(A, 0, 10, committed=False)[0]] == [b"torn", b"whole"]


def test_a_committed_reader_waits_behind_an_open_transaction(broker: Broker) -> None:
    """Also for records that came later and are committed."""
    slow, quick = broker.init_producer("slow"), broker.init_producer("quick")
    broker.append(A, out(b"0"))
    broker.produce("slow", slow, [out(b"1")])
    broker.produce("quick", quick, [out(b"2")])
    broker.end_transaction("quick", quick)
    assert [record.value for record in broker.visible(A)] == [b"0"]
    broker.end_transaction("slow", slow)
    assert [record.value for record in broker.visible(A)] == [b"0", b"1", b"2"]


def test_a_transaction_that_nobody_ends_is_aborted() -> None:
    """And its producer is fenced."""

    async def story(loop: VirtualLoop) -> None:
        broker = Broker(loop, 1)
        epoch = broker.init_producer("p")
        broker.produce("p", epoch, [out(b"1")])
        await asyncio.sleep(17)
        assert broker.bounds([A])[A] == (0, 2)
        with pytest.raises(FencedError):
            broker.end_transaction("p", epoch)

    in_virtual_time(story)


def test_compaction_leaves_the_last_of_each_key(broker: Broker) -> None:
    """Offsets stay as they are."""
    for value in (b"1", b"2"):
        broker.append(A, out(value, key=b"k"))
    broker.append(A, out(b"3", key=b"other"))
    broker.compact(A)
    assert [(record.offset, record.value) for record in broker.visible(A)] == [(1, b"2"), (2, b"3")]
    assert broker.read(A, 0, 10)[1] == 3


def test_what_was_deleted_cannot_be_read(broker: Broker) -> None:
    """And neither can what is not there yet."""
    for value in (b"1", b"2"):
        broker.append(A, out(value))
    broker.delete_before(A, 1)
    assert broker.bounds([A])[A] == (1, 2)
    for start in (0, 3):
        with pytest.raises(OutOfRangeError):
            broker.read(A, start, 10)


def test_a_group_gives_each_partition_to_one_member() -> None:
    """A member that does not come back is left out; one of an older generation has no say."""

    async def story(loop: VirtualLoop) -> None:
        broker = Broker(loop, 2)
        alone = await broker.join("one")
        assert alone == (1, {0, 1})
        joining = broker.join("two")
        assert broker.heartbeat("one", 1) is Standing.REBALANCING
        (first, mine), (second, others) = await asyncio.gather(broker.join("one"), joining)
        assert (first, second) == (2, 2)
        assert (mine | others, mine & others) == ({0, 1}, set())
        assert broker.heartbeat("one", 1) is Standing.GONE
        for _ in range(12):
            await asyncio.sleep(1)
            standing = broker.heartbeat("one", 2)
        assert standing is Standing.REBALANCING  # the other one was silent
        assert await broker.join("one") == (3, {0, 1})

    in_virtual_time(story)


# -- disk and network -------------------------------------------------------------------------------------------------


def rows_of(table: MemoryPendingTable) -> dict[bytes, bytes]:
    """Return all rows of a table, by identity."""
    return {key[IDENTITY_AT:]: row for key, row in table.page(None, 100)}


def test_a_power_cut_leaves_a_beginning_of_what_was_written() -> None:
    """A process that dies leaves all of it."""
    rows = [Row(identity_of(Origin("orders", "id", 0, n)), b"v", "1m") for n in range(6)]
    for seed in range(30):
        disk = SimDisk()
        store = MemoryPendingTable(disk, "s")
        for n, row in enumerate(rows):
            store.write([row], n)
            if n == 2:
                store.close()
        assert rows_of(MemoryPendingTable(disk, "s")).keys() == {row.identity for row in rows}
        disk.lose_power(Random(seed))
        left = MemoryPendingTable(disk, "s")
        assert 3 <= len(rows_of(left)) == left.next_offset
        assert rows_of(left).keys() == {row.identity for row in rows[: left.next_offset]}


def test_requests_arrive_in_order_and_outlive_their_sender() -> None:
    """As on one connection; who sent them may be dead when they arrive."""

    async def story(loop: VirtualLoop) -> list[int]:
        network, arrived, process = Network(loop, Random(1), Counter()), list[int](), Process("p")
        wire = Wire(network)

        def send() -> None:
            for number in range(20):
                wire.request("n", lambda number=number: arrived.append(number))  # type: ignore[misc]

        process.context.run(send)
        process.kill()
        await asyncio.sleep(1)
        return arrived

    assert in_virtual_time(story) == list(range(20))


def test_nobody_can_tell_a_lost_request_from_a_lost_answer() -> None:
    """Both end in a time-out; one of them took effect."""

    async def story(loop: VirtualLoop) -> set[bool]:
        reached: Counter[str] = Counter()
        network = Network(loop, Random(2), reached)
        network.lossy_until_s = loop.time() + 1e6
        wire, effects = Wire(network), set[bool]()
        for _ in range(60):
            done: list[bool] = []
            began_s = loop.time()
            try:
                await wire.request("n", lambda done=done: done.append(True))  # type: ignore[misc]
            except TimeoutError:
                assert loop.time() - began_s >= REQUEST_S - 0.1
                effects.add(bool(done))
        assert min(reached["request lost: n"], reached["answer lost: n"]) > 0
        return effects

    assert in_virtual_time(story) == {True, False}


@pytest.mark.parametrize("count", [3, 300, 10_000])
def test_a_campaign_has_seeds_of_all_ranges(count: int) -> None:
    """Drawn from all numbers, nearly every seed would be of the last range."""
    seeds = [seed for chunk in of_all_ranges(999_990, count) for seed in chunk]
    assert len(seeds) == len(set(seeds)) == count
    begun = {max(first for first in RANGES if first <= seed) for seed in seeds}
    assert len(begun) == min(count, len(RANGES))
