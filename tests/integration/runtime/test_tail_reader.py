"""Reading tails from a real broker: transactions and their markers, turns of several readers, a consumer that died."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import LeaderNotAvailableError
from harness.operator import Operator

from retryapp.ports import TopicPartition
from retryapp.runtime.clients import tail
from retryapp.runtime.clients.lifecycle import ClientSettings
from retryapp.runtime.clients.tail import TailReader


@pytest.fixture
async def reader(settings: ClientSettings) -> AsyncIterator[TailReader]:
    made = TailReader(settings)
    yield made
    await made.stop()


async def fill(bootstrap: str, tps: list[TopicPartition], count: int, *, abort: bool = False) -> None:
    """Write numbered records into each partition, in one transaction, and wait until its end stands in all of them."""
    name = uuid.uuid4().hex
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, linger_ms=5)
    await producer.start()
    await producer.begin_transaction()
    for tp in tps:
        for n in range(count):
            await producer.send(tp.topic, b"%d" % n, partition=tp.partition)
    await (producer.abort_transaction() if abort else producer.commit_transaction())
    await producer.stop()
    successor = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await successor.start()  # the broker lets it in when the markers are written, which is behind the answer
    await successor.stop()


class _Taken:
    """What a sink was given."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.next_offset = 0

    def __call__(self, records: list[Any], next_offset: int) -> None:
        assert all(self.next_offset <= record.offset < next_offset for record in records)
        self.values += [record.value for record in records]
        self.next_offset = next_offset


async def test_a_tail_ends_behind_markers_and_aborted_records(
    bootstrap: str, topic: TopicPartition, reader: TailReader
) -> None:
    """The position reaches the end although no record stands there."""
    await fill(bootstrap, [topic], 600)
    await fill(bootstrap, [topic], 100, abort=True)
    taken = _Taken()
    assert await reader.read(topic, 0, taken) == 702
    assert taken.values == [b"%d" % n for n in range(600)]
    assert taken.next_offset == 702
    assert (await reader.bounds([topic]))[topic] == (0, 702)
    again = _Taken()
    await reader.read(topic, 595, again)
    assert again.values == [b"%d" % n for n in range(595, 600)]


async def test_single_records_are_read_by_their_offsets(
    bootstrap: str, topic: TopicPartition, reader: TailReader
) -> None:
    """Far apart, near each other and across batches; nothing at a marker, past the end, or where all is deleted."""
    for _ in range(3):
        await fill(bootstrap, [topic], 400)  # each with a marker behind it
    found = await reader.records(topic, [0, 1, 7, 399, 400, 401, 800, 801, 802, 1_201, 1_202, 1_203, 9_999])
    assert {offset: record.value for offset, record in found.items()} == {
        0: b"0", 1: b"1", 7: b"7", 399: b"399", 401: b"0", 800: b"399", 802: b"0", 1_201: b"399"
    }  # fmt: skip
    assert 1 < len(await reader.records(topic, [*range(400), *range(802, 1_202)], most_bytes=1)) <= 400
    assert {(record.topic, record.partition, record.headers) for record in found.values()} == {(*topic, ())}
    Operator(bootstrap).delete_records(*topic, 401)
    assert (await reader.records(topic, [0, 400, 401])).keys() == {401}


async def test_readers_of_several_partitions_take_turns_and_miss_nothing(
    bootstrap: str, make_topic: Callable[[int], str], reader: TailReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn assigns and seeks again, wherever the fetched batches begin."""
    monkeypatch.setattr(tail, "TURN_S", 0.0)
    monkeypatch.setattr(tail, "SLICE_RECORDS", 97)
    name = make_topic(3)
    tps = [TopicPartition(name, n) for n in range(3)]
    await fill(bootstrap, tps, 400)
    taken = [_Taken() for _ in tps]
    await asyncio.gather(
        *(reader.read(tp, 0, sink, background=tp.partition == 2) for tp, sink in zip(tps, taken, strict=True))
    )
    assert [sink.values for sink in taken] == [[b"%d" % n for n in range(400)]] * 3


async def test_what_is_not_committed_is_past_the_end(bootstrap: str, topic: TopicPartition, reader: TailReader) -> None:
    """And it is there: no cut topic has it."""
    await fill(bootstrap, [topic], 3)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(topic.topic, b"open", partition=topic.partition)
        assert ((await reader.bounds([topic]))[topic][1], await reader.written_end(topic)) == (4, 5)
        await producer.abort_transaction()
    finally:
        await producer.stop()


async def test_topics_that_are_new_to_the_client_are_asked_about_together(
    make_topic: Callable[[int], str], reader: TailReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it tries and rests for 100 ms, once for each: four times before the first lane of a worker could open."""
    tries: list[dict[Any, int]] = []
    ask = Fetcher._proc_offset_requests

    async def noted(fetcher: Any, timestamps: dict[Any, int]) -> Any:
        tries.append(timestamps)
        return await ask(fetcher, timestamps)

    monkeypatch.setattr(Fetcher, "_proc_offset_requests", noted)
    tps = [TopicPartition(make_topic(1), 0) for _ in range(3)]
    assert await reader.bounds(tps) == dict.fromkeys(tps, (0, 0))
    assert await reader.written_end(tps[0]) == 0
    assert len(tries) == 3, "where they begin, where they end, and what is written"


async def test_a_topic_that_is_gone_keeps_nobody_waiting(
    bootstrap: str, make_topic: Callable[[int], str], reader: TailReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted while the client knows its leader, and later: it would ask on for as long as an opening may take."""
    monkeypatch.setattr(tail, "ANSWER_S", 1.0)
    there, gone = (TopicPartition(make_topic(1), 0) for _ in range(2))
    assert await reader.bounds([there, gone]) == {there: (0, 0), gone: (0, 0)}
    Operator(bootstrap).delete_topic(gone.topic)
    for _ in range(5):
        both = asyncio.gather(*(reader.bounds([tp]) for tp in (there, gone)), return_exceptions=True)
        answer, fault = await asyncio.wait_for(both, 5.0)
        assert answer == {there: (0, 0)}
        assert isinstance(fault, LeaderNotAvailableError)
        assert f"{gone.topic}[0] has no leader, is not there" in str(fault)


async def test_who_has_read_asks_for_no_other_topics(
    bootstrap: str, topic: TopicPartition, reader: TailReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may have thousands, and all lanes stand still while the answer is decoded."""
    await fill(bootstrap, [topic], 3)
    asked: list[set[str]] = []
    update = AIOKafkaClient._metadata_update

    async def noted(client: Any, cluster: Any, topics: set[str]) -> Any:
        asked.append(set(topics))
        return await update(client, cluster, topics)

    monkeypatch.setattr(AIOKafkaClient, "_metadata_update", noted)
    for _ in range(2):
        taken = _Taken()
        await reader.read(topic, 0, taken)
        assert taken.values == [b"0", b"1", b"2"]
        assert (await reader.records(topic, [1])).keys() == {1}
    assert asked == [{topic.topic}] * 3, "each of the consumers once"
