"""Reading a partition's tail over shared consumers: turns, slices, and consumers that saw an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka_fakes import Found, stuck

from retryapp.core.errors import UnreadableTopicError
from retryapp.ports import TopicPartition
from retryapp.runtime.clients import tail
from retryapp.runtime.clients.lifecycle import ClientSettings
from retryapp.runtime.clients.tail import TailReader

SETTINGS = ClientSettings(
    connection={"bootstrap_servers": "kafka:9092"},
    client_id="app",
    request_timeout_ms=1_000,
    max_batch_size=1,
    max_request_size=1,
)


class _Cluster:
    """Partitions, their reader, and every consumer that was made; a test may make one step hang or fail."""

    def __init__(self) -> None:
        self.reader = TailReader(SETTINGS)
        self.partitions: dict[TopicPartition, list[Found]] = {}
        self.consumers: list[_Consumer] = []
        self.hang_at: int | None = None
        """The reading of this partition hangs once."""
        self.error: Exception | None = None
        """Raised by the next reading."""
        self.silent = False
        """Nothing comes any more."""
        self.list_records = 1_000
        """Length of the lists that consumers give."""
        self.unled: set[int] = set()
        """Partitions without a leader."""
        self.leaders: dict[int, int | None] = {}
        """Leaders that consumers know, if they are not right."""
        self.mute: set[int] = set()
        """Partitions about which no leader answers."""
        self.asked = self.most_asked = 0
        """Questions about those that wait for an answer, and the most that did so at the same time."""
        self.away = False
        """No broker is there."""

    def fill(self, partition: int, count: int) -> TopicPartition:
        tp = TopicPartition("log", partition)
        self.partitions[tp] = [Found(n, b"%d" % n, b"v") for n in range(count)]
        return tp

    async def ask_again(self) -> None:
        """Wait without an end, as the client does: for longer than an opening may take."""
        self.asked += 1
        self.most_asked = max(self.most_asked, self.asked)
        try:
            await asyncio.Event().wait()
        finally:
            self.asked -= 1

    @property
    def readers(self) -> list[_Consumer]:
        return [consumer for consumer in self.consumers if consumer.client_id == "app-tail"]


class _Consumer:
    """As much of the client library's consumer as a tail reader uses."""

    def __init__(self, cluster: _Cluster, client_id: str, **options: Any) -> None:
        self.client_id = client_id
        self.options = options
        self.assigned: list[Any] = []
        self.stopped = False
        self._client = SimpleNamespace(
            add_topic=lambda _topic: None,
            cluster=SimpleNamespace(leader_for_partition=self._leader),
            force_metadata_update=self._refresh,
            _maybe_wait_metadata=self.start,
        )
        self._subscription = SimpleNamespace(assign_from_user=self.assign)
        self._cluster = cluster
        self._at = 0
        cluster.consumers.append(self)

    async def start(self) -> None:
        if self._cluster.away:
            raise ConnectionError("no broker is there")

    def _leader(self, tp: Any) -> int | None:
        return self._cluster.leaders.get(tp.partition, 1)

    async def _refresh(self) -> None:
        self._cluster.leaders = dict.fromkeys(self._cluster.unled, -1)

    async def stop(self) -> None:
        self.stopped = True

    async def beginning_offsets(self, tps: Sequence[Any]) -> dict[Any, int]:
        if any(tp.partition in self._cluster.unled | self._cluster.mute for tp in tps):
            await self._refresh()
            await self._cluster.ask_again()
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: Sequence[Any]) -> dict[Any, int]:
        return {tp: len(self._cluster.partitions[TopicPartition(*tp)]) for tp in tps}

    def assign(self, tps: list[Any]) -> None:
        self.assigned = tps

    def seek(self, _tp: Any, offset: int) -> None:
        self._at = offset

    async def getmany(self, tp: Any, *, timeout_ms: int, max_records: int) -> dict[Any, list[list[Found]]]:
        assert self.assigned == [tp], "somebody else reads with this consumer"
        assert max_records == 1, "a list at a time"
        cluster = self._cluster
        await asyncio.sleep(0.001)
        if cluster.hang_at == tp.partition:
            cluster.hang_at = None
            await asyncio.Event().wait()
        if cluster.error is not None:
            error, cluster.error = cluster.error, None
            raise error
        if cluster.silent:
            return {}
        found = cluster.partitions[TopicPartition(*tp)][self._at : self._at + cluster.list_records]
        self._at += len(found)
        return {tp: [found]}

    async def position(self, _tp: Any) -> int:
        return self._at


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Cluster]:
    """Partitions in memory; their reader is stopped at the end."""
    made = _Cluster()
    monkeypatch.setattr(tail, "AIOKafkaConsumer", lambda client_id, **options: _Consumer(made, client_id, **options))
    yield made
    await made.reader.stop()
    assert all(consumer.stopped for consumer in made.consumers)


async def test_an_end_that_moves_while_it_is_read_is_the_one_returned(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The markers of the lane's own transaction come after its acknowledgement; a store is not ahead of them."""
    tp = cluster.fill(0, 3)
    reached: list[int] = []

    async def before_the_markers(_self: _Consumer, tps: Sequence[Any]) -> dict[Any, int]:
        return dict.fromkeys(tps, 1)

    monkeypatch.setattr(_Consumer, "end_offsets", before_the_markers)
    reader = cluster.reader
    assert await reader.read(tp, 0, lambda _records, position: reached.append(position)) == 3
    assert reached == [3]
    assert await reader.read(tp, 2, lambda _records, _position: None) == 1, "what a store has is no end"


async def test_a_partition_is_read_to_its_end_in_slices(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the offset after it, and other tasks run in between."""
    monkeypatch.setattr(tail, "SLICE_RECORDS", 4)
    tp = cluster.fill(0, 10)
    slices: list[tuple[list[int], int]] = []
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(len(slices))
            await asyncio.sleep(0)

    def sink(records: list[Found], next_offset: int) -> None:
        slices.append(([record.offset for record in records], next_offset))

    watching = asyncio.create_task(others())
    assert await cluster.reader.read(tp, 1, sink) == 10
    watching.cancel()
    assert slices == [([1, 2, 3, 4], 5), ([5, 6, 7, 8], 9), ([9], 10)]
    assert {0, 1, 2} <= set(turns)
    assert await cluster.reader.read(tp, 10, sink) == 10
    assert len(slices) == 3
    options = cluster.readers[0].options
    assert (options["isolation_level"], options["auto_offset_reset"]) == ("read_committed", "none")


async def test_slices_are_bounded_in_bytes(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is larger than a slice may be comes alone."""
    monkeypatch.setattr(tail, "SLICE_BYTES", 10)
    sizes = [3, 3, 3, 3, 30, 0, 0, 9, 1, 5]
    tp = cluster.fill(0, 0)
    cluster.partitions[tp] = [Found(n, b"k", b"v" * size or None) for n, size in enumerate(sizes)]
    slices: list[tuple[list[int], int]] = []

    def sink(records: list[Found], next_offset: int) -> None:
        slices.append(([record.offset for record in records], next_offset))

    assert await cluster.reader.read(tp, 0, sink) == 10
    assert [n for records, _ in slices for n in records] == list(range(10))
    assert [next_offset for _, next_offset in slices] == [records[-1] + 1 for records, _ in slices]
    assert all(len(records) == 1 or sum(sizes[n] for n in records) <= 10 for records, _ in slices)
    assert len(slices) < 8


async def test_a_sink_that_has_enough_ends_the_reading(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is not read."""
    monkeypatch.setattr(tail, "SLICE_RECORDS", 1)
    tp = cluster.fill(0, 10)
    seen: list[int] = []

    def sink(records: list[Found], _next_offset: int) -> bool:
        seen.extend(record.offset for record in records)
        return len(seen) == 2

    assert await cluster.reader.read(tp, 0, sink) == 10
    assert seen == [0, 1]


@pytest.mark.parametrize("how", ["error", "cancelled", "timeout", "sink"])
async def test_a_consumer_that_saw_an_error_is_not_used_again(cluster: _Cluster, how: str) -> None:
    """Nobody knows what it has fetched and where it stands; the next reading has a new one."""
    tp = cluster.fill(0, 10)
    if how == "error":
        cluster.error = ConnectionError("cut")
    elif how != "sink":
        cluster.hang_at = 0

    def full(_records: list[Found], _next_offset: int) -> None:
        raise OSError("no space left")

    task = asyncio.create_task(cluster.reader.read(tp, 0, full if how == "sink" else lambda *_: None))
    if how == "cancelled":
        await asyncio.sleep(0.05)
        task.cancel()
    with pytest.raises((ConnectionError, asyncio.CancelledError, TimeoutError, OSError)):
        await asyncio.wait_for(task, 0.1)
    got: list[int] = []
    await cluster.reader.read(tp, 0, lambda records, _: got.extend(record.offset for record in records))
    assert got == list(range(10))
    assert len(cluster.readers) == 2
    assert cluster.readers[0].stopped
    assert not cluster.readers[1].stopped


async def test_long_readings_take_turns(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane with a large table must not use up the deadlines of all others; each goes on from where it was."""
    monkeypatch.setattr(tail, "TURN_S", 0.0)
    cluster.list_records = 10
    big, small = cluster.fill(0, 1_000), cluster.fill(1, 20)
    order: list[tuple[int, int]] = []

    async def read(tp: TopicPartition) -> None:
        await cluster.reader.read(
            tp, 0, lambda records, _: order.extend((tp.partition, record.offset) for record in records)
        )

    await asyncio.gather(read(big), read(small))
    done_at = order.index((1, 19))
    assert done_at < 100, f"the short reading had to wait for {done_at} records of the long one"
    for partition, count in ((0, 1_000), (1, 20)):
        assert [offset for number, offset in order if number == partition] == list(range(count))


async def test_background_readings_take_one_turn_among_them(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: a lane that opens waits for one of them."""
    monkeypatch.setattr(tail, "TURN_S", 0.0)
    cluster.list_records = 10
    fills = [cluster.fill(n, 200) for n in range(8)]
    opening = cluster.fill(9, 50)
    order: list[int] = []

    async def read(tp: TopicPartition, background: bool) -> None:
        await cluster.reader.read(tp, 0, lambda *_: order.append(tp.partition), background=background)

    tasks = [asyncio.create_task(read(tp, True)) for tp in fills]
    await asyncio.sleep(0.005)
    before = len(order)
    await read(opening, False)
    between = [partition for partition in order[before:] if partition != 9]
    assert len(between) <= 6, f"{len(between)} turns of background readings during 5 of an opening"
    await asyncio.gather(*tasks)


async def test_a_reading_to_which_nothing_comes_is_given_up(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where it stood; whoever waits has a new consumer."""
    monkeypatch.setattr(tail, "STALL_S", 0.05)
    tp = cluster.fill(3, 5)
    cluster.silent = True
    with pytest.raises(TimeoutError, match=r"log\[3\]: nothing came from offset 2 on .* end is 5"):
        await cluster.reader.read(tp, 2, lambda *_: None)
    cluster.silent = False
    assert await cluster.reader.read(tp, 2, lambda *_: None) == 5
    assert len(cluster.readers) == 2


async def test_questions_that_wait_go_to_the_broker_together(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of lanes open at once, and each asks twice; an answer is never older than its question."""
    tps = [cluster.fill(number, number) for number in range(9)]
    asked: list[set[int]] = []
    under_way, go = asyncio.Event(), asyncio.Event()
    first_of = _Consumer.beginning_offsets

    async def slow(consumer: _Consumer, client_tps: Sequence[Any]) -> dict[Any, int]:
        asked.append({tp.partition for tp in client_tps})
        under_way.set()
        await go.wait()
        return await first_of(consumer, client_tps)

    monkeypatch.setattr(_Consumer, "beginning_offsets", slow)
    first = asyncio.create_task(cluster.reader.bounds(tps[:1]))
    await under_way.wait()
    others = [asyncio.create_task(cluster.reader.bounds([tps[0], tp])) for tp in tps[1:]]
    given_up = others.pop()
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    go.set()
    assert await first == {tps[0]: (0, 0)}
    assert await asyncio.gather(*others) == [{tps[0]: (0, 0), tp: (0, tp.partition)} for tp in tps[1:8]]
    assert asked == [{0}, {*range(8)}]


async def test_a_question_that_fails_spoils_no_other(cluster: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that one lane may not read is that lane's matter, also where another asks for both."""
    tps = [cluster.fill(number, number) for number in range(5)]
    end_of = _Consumer.end_offsets

    async def refused(consumer: _Consumer, client_tps: Sequence[Any]) -> dict[Any, int]:
        if any(tp.partition == 3 for tp in client_tps):
            raise PermissionError("partition 3")
        return await end_of(consumer, client_tps)

    monkeypatch.setattr(_Consumer, "end_offsets", refused)
    found = await asyncio.gather(*(cluster.reader.bounds([tp]) for tp in tps), return_exceptions=True)
    assert isinstance(found.pop(3), PermissionError)
    assert found == [{tp: (0, tp.partition)} for tp in tps if tp.partition != 3]


@pytest.mark.parametrize("known", [-1, None, 1])
async def test_a_partition_without_a_leader_keeps_nobody_waiting(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch, known: int | None
) -> None:
    """Nor one that is gone: lanes that open have a deadline. `known` is the leader that the client takes it to have."""
    monkeypatch.setattr(tail, "ANSWER_S", 0.05 if known == 1 else 3_600.0)
    tps = [cluster.fill(number, number) for number in range(9)]
    assert await cluster.reader.bounds([tps[8]]) == {tps[8]: (0, 8)}
    cluster.unled, cluster.leaders = {3, 5}, {3: known, 5: known}
    for _ in range(20):
        found = await asyncio.gather(*(cluster.reader.bounds([tps[0], tp]) for tp in tps), return_exceptions=True)
        for number in (5, 3):
            fault = found.pop(number)
            assert "log[3] has no leader" in str(fault) or "log[5] has no leader" in str(fault)
        assert found == [{tps[0]: (0, 0), tp: (0, tp.partition)} for tp in tps if tp.partition not in cluster.unled]
    assert len(cluster.consumers) == 1


async def test_a_leader_that_the_client_does_not_know_yet_is_found(cluster: _Cluster) -> None:
    """One had none when the client heard of it last, and has one since."""
    tp = cluster.fill(0, 7)
    cluster.leaders = {0: -1}
    assert await cluster.reader.bounds([tp]) == {tp: (0, 7)}


async def test_a_leader_that_does_not_answer_keeps_nobody_waiting_for_long(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions it has, others wait for them once together and once for each alone, at the same time."""
    monkeypatch.setattr(tail, "ANSWER_S", 0.05)
    tps = [cluster.fill(number, number) for number in range(50)]
    cluster.mute = {*range(1, 40)}
    found = await asyncio.gather(*(cluster.reader.bounds([tp]) for tp in tps), return_exceptions=True)
    assert cluster.most_asked == len(cluster.mute), "all that are alone wait at the same time"
    assert [each for each in found if not isinstance(each, TimeoutError)] == [
        {tp: (0, tp.partition)} for tp in (tps[0], *tps[40:])
    ]
    assert len(cluster.consumers) == 1, "it has answered somebody"
    with pytest.raises(TimeoutError, match="where partitions begin and end took longer than 0"):
        await cluster.reader.bounds([tps[1]])
    assert await cluster.reader.bounds([tps[0]]) == {tps[0]: (0, 0)}
    assert len(cluster.consumers) == 2


async def test_who_cannot_connect_asks_for_nobody_in_turn(cluster: _Cluster) -> None:
    """One tries for all that wait: each attempt may take seconds."""
    tps = [cluster.fill(number, number) for number in range(9)]
    cluster.away = True
    found = await asyncio.gather(*(cluster.reader.bounds([tp]) for tp in tps), return_exceptions=True)
    assert {type(each) for each in found} == {ConnectionError}
    assert len(cluster.consumers) < 3
    cluster.away = False
    assert await cluster.reader.bounds(tps[:2]) == {tps[0]: (0, 0), tps[1]: (0, 1)}


async def test_a_record_is_found_behind_the_end_that_committed_readers_see(
    cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed when it was read first. A broker that lost the marker behind it must not make it look gone."""
    tp, end_of = cluster.fill(0, 3), _Consumer.end_offsets

    async def marker_is_lost(consumer: _Consumer, tps: Sequence[Any]) -> dict[Any, int]:
        return (
            dict.fromkeys(tps, 1)
            if consumer.options["isolation_level"] == "read_committed"
            else await end_of(consumer, tps)
        )

    monkeypatch.setattr(_Consumer, "end_offsets", marker_is_lost)
    for _ in range(2):
        assert [*await cluster.reader.records(tp, [0, 2, 3])] == [0, 2]


async def test_what_cannot_be_read_hides_no_record_before_it(cluster: _Cluster) -> None:
    """It comes in one list with them."""
    tp = cluster.fill(0, 3)
    records: list[Any] = cluster.partitions[tp]
    records.append(stuck(3))
    assert [*await cluster.reader.records(tp, [0, 2])] == [0, 2]
    with pytest.raises(UnreadableTopicError, match="stays at offset 3"):
        await cluster.reader.records(tp, [2, 3])
