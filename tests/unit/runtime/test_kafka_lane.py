"""A lane's transport and its local stores, on RocksDB and topics in memory; dead letters are read behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from kafka_fakes import CHANGELOG, DLQ, MAIN, MakeLane, Topics, until
from samples import dead, removal, waiting, waiting_row

from retryapp.core.deduplicate import IDENTITY_BYTES, Seen, encode_seen
from retryapp.core.errors import DiskFullError, StoreBrokenError
from retryapp.core.headers import encode_metadata
from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import StoreAheadError
from retryapp.core.record import Headers, failure_id
from retryapp.engine.lane import recovery
from retryapp.engine.lane.dead_keeper import DeadLetterKeeper
from retryapp.ports import DeadLetterTable, DeadRow, LaneBatch, LaneReceipt, TopicPartition
from retryapp.runtime.stores.deadletters import RocksDeadLetterTable
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.transport import KafkaTransport
from retryapp.testing import VirtualClock


def letter(origin_offset: int) -> Headers:
    return encode_metadata(dead(origin_offset))


def name(origin_offset: int) -> str:
    return failure_id("app", waiting(origin_offset).origin)


OpenLane = Callable[[], KafkaTransport]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def open_lane(
    make_lane: MakeLane, topics: Topics, clock: VirtualClock, only_noted: None
) -> AsyncIterator[OpenLane]:
    """Make lanes over one folder; each is closed at the end."""
    made: list[KafkaTransport] = []

    def make() -> KafkaTransport:
        made.append(make_lane(consumer=topics, reader=topics, clock=clock))
        return made[-1]

    yield make
    for lane in made:
        await lane.close()


async def opened(lane: KafkaTransport) -> KafkaTransport:
    await lane.committed()
    await lane.recover()
    await lane.release({})
    return lane


async def cut_off(recovery: Coroutine[Any, Any, object], topics: Topics) -> None:
    """End it where its reading hangs, as its deadline does, or wait for its end where it does not."""
    task = asyncio.create_task(recovery)
    await until(lambda: topics.stop_after == 0 or task.done())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("looks", [2, 99])
async def test_an_opening_waits_a_while_for_the_disk_and_lets_others_run(
    open_lane: OpenLane, topics: Topics, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """A disk that takes longer is left to the next write, which names what is wrong with it."""
    monkeypatch.setattr(recovery, "_FLUSH_LOOKS", 5)
    monkeypatch.setattr(recovery, "_FLUSH_LOOK_S", 0)
    asked: list[bool] = []

    def flushing(_table: RocksPendingTable) -> bool:
        asked.append(len(asked) < looks)
        return asked[-1]

    monkeypatch.setattr(RocksPendingTable, "flushing", property(flushing))
    row = waiting_row(1)
    topics.put(CHANGELOG, row.identity, row.value)
    lane = await opened(open_lane())
    assert asked == [*[True] * min(looks, 5), *[False] * (looks < 5)]
    assert lane.pending is not None
    assert lane.pending.find(row.identity) is not None


def publish_letter(topics: Topics, lane: KafkaTransport, origin_offset: int) -> int:
    """Commit a dead letter as the lane does: on the topic, then in the table; return its offset."""
    headers = letter(origin_offset)
    offset = topics.put(DLQ, headers=headers)
    lane.apply(LaneBatch(publishes=[Outgoing(*DLQ, None, None, headers)]), LaneReceipt([offset], None))
    return offset


async def test_a_recovery_that_ran_out_of_time_goes_on_where_it_was(open_lane: OpenLane, topics: Topics) -> None:
    """Otherwise a table that takes longer than one deadline could never be opened."""
    for n in range(50):
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    lane = open_lane()
    reached = []
    for _ in range(3):
        topics.stop_after = 2
        await cut_off(opened(lane), topics)
        assert lane.pending is not None
        reached.append((lane.pending.next_offset, dict(lane.pending.counts())))
        await lane.close()
    assert reached == [(20, {"1m": 20}), (40, {"1m": 40}), (50, {"1m": 50})]
    assert [start for tp, start, _ in topics.starts if tp == CHANGELOG] == [0, 20, 40]


async def test_a_store_that_missed_more_than_a_deadline_goes_on_where_it_was(
    open_lane: OpenLane, topics: Topics
) -> None:
    """It looks for its last written record first, once: reading on from there each time would never end."""
    lane = await opened(open_lane())
    lane.apply(LaneBatch(rows=[waiting_row(0)]), LaneReceipt([], topics.put(CHANGELOG, *waiting_row(0)[:2])))
    await lane.close()
    for n in range(1, 50):  # another worker had the partition
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    topics.starts.clear()
    for _ in range(3):
        topics.stop_after = 2
        await cut_off(lane.recover(), topics)
        assert lane.pending is not None
        counts = dict(lane.pending.counts())
        await lane.close()
    assert [start for tp, start, _ in topics.starts if tp == CHANGELOG] == [0, 20, 40]
    assert counts == {"1m": 50}


async def test_the_age_of_a_store_is_told_by_the_brokers_time(
    open_lane: OpenLane, topics: Topics, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is behind would keep rows whose removal the changelog has forgotten since."""
    commit = KafkaTransport.commit

    async def acknowledged(lane: KafkaTransport, batch: LaneBatch) -> LaneReceipt:
        if not clock.trusted:
            clock.jump_wall(30 * 3_600_000)
            clock.trusted = True
        return await commit(lane, batch)

    monkeypatch.setattr(KafkaTransport, "commit", acknowledged)
    for n in (1, 2):
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    await (await opened(open_lane())).close()
    del topics.records[CHANGELOG][0]  # its removal, too
    clock.trusted = False
    topics.bounds_of[MAIN] = 100, 120  # all is read: no mark is written that tells the time
    lane = await opened(open_lane())
    assert lane.pending is not None
    assert dict(lane.pending.counts()) == {"1m": 1}


async def test_a_store_that_knows_more_than_its_changelog_is_refused(open_lane: OpenLane, topics: Topics) -> None:
    """The topic was cut: rows whose removal is gone would be delivered again."""
    for n in range(3):
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    lane = await opened(open_lane())
    await lane.close()
    del topics.records[CHANGELOG][1:]
    with pytest.raises(StoreAheadError) as raised:
        await opened(lane)
    assert (raised.value.store, raised.value.end) == (3, 1)


@pytest.mark.parametrize(("there", "left"), [(True, {"1m": 1}), (False, {"1m": 2})])
async def test_a_commit_that_the_broker_has_rolled_back_rebuilds_the_store(
    open_lane: OpenLane, topics: Topics, there: bool, left: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The removal of a row was acknowledged, and is not in the changelog: the row would wait for ever."""
    for n in (1, 2):
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    lane = await opened(open_lane())
    await until(lambda: lane.dead)
    offset = topics.put(CHANGELOG, *removal(waiting_row(1))[:2])
    letter = Outgoing(*DLQ, None, b"", ())
    lane.apply(LaneBatch(rows=[removal(waiting_row(1))], publishes=[letter]), LaneReceipt([0], offset))
    topics.put(CHANGELOG, b"progress", b"{}")
    if not there:  # as a committed reader sees what was aborted
        del topics.records[CHANGELOG][offset]
    await lane.close()
    topics.starts.clear()
    again = await opened(open_lane())
    await until(lambda: again.dead)
    assert again.pending is not None
    assert (dict(again.pending.counts()), table(again).count()) == (left, int(there)), "nor does it tell of the letter"
    starts = [start for tp, start, _ in topics.starts if tp == CHANGELOG]
    assert starts == ([offset] if there else [offset, 0])
    assert ("has not kept what it wrote last" in caplog.text) is not there
    await again.close()
    topics.starts.clear()
    await opened(open_lane())
    assert [start for tp, start, _ in topics.starts if tp == CHANGELOG] == [4], "it was seen there"


async def test_a_letter_that_was_rolled_back_is_forgotten_also_if_its_table_does_not_open_at_once(
    open_lane: OpenLane, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may still read it, or the disk be full; the opening after that does not know of the roll-back."""
    topics.put(CHANGELOG, *waiting_row(1)[:2])
    lane = await opened(open_lane())
    await until(lambda: lane.dead)
    offset = topics.put(CHANGELOG, *removal(waiting_row(1))[:2])
    rolled_back = Outgoing(*DLQ, None, b"", ())
    lane.apply(LaneBatch(rows=[removal(waiting_row(1))], publishes=[rolled_back]), LaneReceipt([0], offset))
    topics.put(CHANGELOG, b"progress", b"{}")
    del topics.records[CHANGELOG][offset]
    await lane.close()

    def in_use(_lane: KafkaTransport, _dlq: TopicPartition) -> RocksDeadLetterTable:
        raise StoreBrokenError("/data/0", "this process has it open already")

    with monkeypatch.context() as patch, contextlib.suppress(StoreBrokenError):
        patch.setattr(KafkaTransport, "open_dead", in_use)
        await opened(lane)
    await lane.close()
    await opened(lane)
    await until(lambda: lane.dead)
    assert table(lane).count() == 0


async def test_a_rebuild_that_is_cut_off_leaves_no_event_of_what_was_rolled_back(
    open_lane: OpenLane, topics: Topics
) -> None:
    """The next opening does not know of the roll-back any more; a record would be skipped that nobody has handled."""
    seen = TopicPartition("app.orders.seen.changelog", 1)
    topics.records[seen] = []
    event = Seen(b"e" * IDENTITY_BYTES, 3, 10**15)
    lane = open_lane()
    lane.place.seen = seen
    for n in range(30):
        topics.put(CHANGELOG, *waiting_row(n)[:2])
    await opened(lane)
    sent = Outgoing(*seen, event.identity, encode_seen(event), ())
    lane.apply(LaneBatch(publishes=[sent], rows=[removal(waiting_row(1))]), LaneReceipt([0], 30))
    assert lane.seen is not None
    assert lane.seen.find(event.identity) is not None
    await lane.close()
    topics.put(CHANGELOG, b"progress", b"{}")
    topics.put(seen, b"later")
    topics.records[CHANGELOG][-1].offset, topics.records[seen][-1].offset = 32, 2  # 30 and 0 were aborted
    topics.stop_after = 2
    await cut_off(lane.recover(), topics)
    await lane.close()
    topics.stop_after = None
    await opened(lane)
    assert lane.pending is not None
    assert dict(lane.pending.counts()) == {"1m": 30}
    assert lane.seen is not None
    assert lane.seen.find(event.identity) is None


def keeper(lane: KafkaTransport) -> DeadLetterKeeper:
    (keeper,) = lane.dead_keepers.values()
    return keeper


def table(lane: KafkaTransport) -> DeadLetterTable:
    return lane.dead[DLQ.topic]


async def test_letters_written_while_the_table_is_filled_hide_no_unread_ones(
    open_lane: OpenLane, topics: Topics
) -> None:
    """The lane that is closed half-way reads on from the first letter that is not in the table."""
    for n in range(30):
        topics.put(DLQ, headers=letter(n))
    topics.stop_after = 1
    lane = await opened(open_lane())
    assert topics.starts == [(CHANGELOG, 0, False)], "the lane is open before its dead letters are read"
    await until(lambda: lane.dead and table(lane).next_offset == 10)
    publish_letter(topics, lane, 5)  # a record that was replayed and died again
    publish_letter(topics, lane, 30)
    assert (table(lane).next_offset, table(lane).count()) == (10, 12)
    await lane.close()
    topics.stop_after = None
    again = await opened(open_lane())
    await until(lambda: again.dead and table(again).next_offset == 32)
    assert table(again).count() == 32
    assert [found.offset for n in range(31) if (found := table(again).find(name(n)))] == [
        *range(5), 30, *range(6, 30), 31
    ]  # fmt: skip
    assert topics.starts[-1] == (DLQ, 10, True)


async def test_a_filling_that_failed_is_tried_again(open_lane: OpenLane, topics: Topics, clock: VirtualClock) -> None:
    """The lane stays open: this table only answers questions. How many letters there are is not known before."""
    for n in range(20):
        topics.put(DLQ, headers=letter(n))
    topics.error = ConnectionError("cut")
    lane = await opened(open_lane())
    await until(lambda: clock.sleeping)
    publish_letter(topics, lane, 20)
    assert not lane.letters_counted
    clock.advance(5_000)
    await until(lambda: keeper(lane).known.is_set())
    assert lane.letters_counted
    assert (table(lane).next_offset, table(lane).count()) == (21, 21)


@pytest.mark.parametrize("when", ["opening", "filling", "writing"])
async def test_a_fault_of_the_dead_letter_table_is_said_once_and_mended_behind_the_open_lane(
    open_lane: OpenLane,
    topics: Topics,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    """It only answers questions: the lane commits on, and the table is dropped and filled from its topic."""
    broken = True

    open_table, write = KafkaTransport.open_dead, RocksDeadLetterTable.write

    def open_or_fail(lane: KafkaTransport, dlq: TopicPartition) -> RocksDeadLetterTable:
        if broken and when == "opening":
            raise DiskFullError("/data/0", "no space left on device")
        return open_table(lane, dlq)

    def write_or_fail(table: RocksDeadLetterTable, rows: Sequence[DeadRow], next_offset: int | None) -> None:
        if broken and (when == "filling") == (next_offset is not None):
            raise StoreBrokenError("/data/0", "checksum mismatch")
        write(table, rows, next_offset)

    monkeypatch.setattr(KafkaTransport, "open_dead", open_or_fail)
    monkeypatch.setattr(RocksDeadLetterTable, "write", write_or_fail)
    for n in range(20):
        topics.put(DLQ, headers=letter(n))
    topics.stop_after = 0 if when == "writing" else None
    lane = await opened(open_lane())
    if when == "writing":
        await until(lambda: len(topics.starts) == 2)
    else:
        await until(lambda: "dead-letter table" in caplog.text)
    for n in range(3):
        publish_letter(topics, lane, 20 + n)
        clock.advance(5_000)
        for _ in range(20):
            await asyncio.sleep(0)
    lane.apply(LaneBatch(rows=[waiting_row(1)]), LaneReceipt([], 7))
    assert lane.dead == {}
    said = [record for record in caplog.records if "dead-letter table of lane app.orders.1 failed" in record.message]
    assert [record.levelname for record in said if record.levelno >= logging.WARNING] == ["WARNING"]
    broken, topics.stop_after = False, None
    clock.advance(5_000)
    await until(lambda: keeper(lane).known.is_set())
    assert (table(lane).next_offset, table(lane).count()) == (23, 23)
    publish_letter(topics, lane, 23)
    assert table(lane).next_offset == 24


async def test_letters_that_retention_deletes_are_forgotten_while_the_lane_is_open(
    open_lane: OpenLane, topics: Topics, clock: VirtualClock
) -> None:
    """Workers run for weeks."""
    for n in range(20):
        topics.put(DLQ, headers=letter(n))
    lane = await opened(open_lane())
    await until(lambda: clock.sleeping)
    assert table(lane).count() == 20
    topics.first = 15
    clock.advance(59 * 60_000)
    for _ in range(20):
        await asyncio.sleep(0)
    assert table(lane).count() == 20
    clock.advance(60_000)
    await until(lambda: lane.dead and table(lane).count() == 5)
    assert table(lane).find(name(14)) is None
    assert table(lane).find(name(15)) is not None


@pytest.mark.parametrize("open_lately", [False, True])
async def test_letters_of_a_topic_that_was_made_again_replace_the_former_ones(
    open_lane: OpenLane,
    topics: Topics,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    *,
    open_lately: bool,
) -> None:
    """Or that has lost its end: at the next opening, and by the hour. What it has now has the offsets of others."""
    for n in range(20):
        topics.put(DLQ, headers=letter(n))
    lane = await opened(open_lane())
    await until(lambda: keeper(lane).known.is_set())
    publish_letter(topics, lane, 20)
    topics.records[DLQ].clear()
    topics.put(DLQ, headers=letter(30))
    if open_lately:
        await lane.close()
        lane = await opened(open_lane())
    else:
        await until(lambda: clock.sleeping)
        clock.advance(3_600_000)
    await until(lambda: "app.orders.dlq was made again, or has lost its end" in caplog.text)
    assert (keeper(lane).known.is_set(), lane.letters_counted) == (False, False)
    await until(lambda: clock.sleeping)
    clock.advance(5_000)
    await until(lambda: keeper(lane).known.is_set())
    assert [row.offset for row in table(lane).page(None, 99)] == [0]
    assert (table(lane).find(name(0)), table(lane).find(name(20))) == (None, None)
    assert table(lane).find(name(30)) is not None


async def test_letters_behind_an_open_transaction_are_no_sign_of_a_topic_that_was_made_again(
    open_lane: OpenLane, topics: Topics, clock: VirtualClock
) -> None:
    """The lane has written them to the table at its commit; committed readers see them once the other has ended."""
    lane = await opened(open_lane())
    await until(lambda: keeper(lane).known.is_set())
    for n in range(3):
        publish_letter(topics, lane, n)
    topics.bounds_of[DLQ] = (0, 1)
    await until(lambda: clock.sleeping)
    clock.advance(3_600_000)
    for _ in range(20):
        await asyncio.sleep(0)
    assert keeper(lane).known.is_set()
    assert table(lane).count() == 3


async def test_each_dead_letter_topic_has_a_table(open_lane: OpenLane, topics: Topics) -> None:
    """The same offset on two topics is two letters, also for the next lane; each has a store of its own."""
    named = DLQ._replace(topic=f"{DLQ.topic}.invalid")
    topics.put(DLQ, headers=letter(1))
    topics.records[named] = []
    topics.put(named, headers=letter(2))
    for _ in range(2):
        lane = open_lane()
        lane.place.dlqs = [DLQ, named]
        await opened(lane)
        await until(lambda lane=lane: all(keeper.known.is_set() for keeper in lane.dead_keepers.values()))  # type: ignore[misc]
        found = {topic: [row.offset for row in each.page(None, 9)] for topic, each in lane.dead.items()}
        assert (lane.dead[DLQ.topic].find(name(2)), lane.dead[named.topic].find(name(1))) == (None, None)
        third = letter(3 + len(found[named.topic]))
        receipt = LaneReceipt([topics.put(named, headers=third)], None)
        lane.apply(LaneBatch(publishes=[Outgoing(*named, None, b"", third)]), receipt)
        await lane.close()
    assert found == {DLQ.topic: [0], named.topic: [1, 0]}


async def test_nothing_touches_the_tables_after_the_lane_has_closed(open_lane: OpenLane, topics: Topics) -> None:
    """The next owner opens the folder at once."""
    for n in range(20):
        topics.put(DLQ, headers=letter(n))
    topics.stop_after = 1
    lane = await opened(open_lane())
    await until(lambda: topics.stop_after == 0)
    before = {task for task in asyncio.all_tasks() if task.get_name().startswith("dead-")}
    assert len(before) == 1
    await lane.close()
    await lane.close()
    assert all(task.done() for task in before)
    topics.stop_after = None
    again = await opened(open_lane())
    await until(lambda: keeper(again).known.is_set())


async def test_a_store_that_does_not_close_is_given_up(
    open_lane: OpenLane, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next opening begins anew."""
    topics.put(CHANGELOG, *waiting_row(1)[:2])
    lane = await opened(open_lane())
    assert lane.pending is not None
    release = lane.pending.close

    def broken() -> None:
        release()
        raise OSError("input/output error")

    monkeypatch.setattr(lane.pending, "close", broken)
    await lane.close()
    assert (lane.pending, lane.dead) == (None, {})
    await opened(lane)
    assert lane.pending is not None
    assert dict(lane.pending.counts()) == {"1m": 1}
