"""Reads partitions up to their ends, and single records, for all lanes of a worker, without a group.

* Of three shared consumers one answers where partitions begin and end, for all that wait together; one reads up to the
  end, and one single records.
* Readers take turns: a reader lets go after a slice if others wait. Background readings queue among themselves first:
  an opening lane waits for one slice of them at most.
* A consumer is dropped after any error, time-out or cancellation: its state is unknown. The next use makes a new one.
  The one for questions has no position: it is kept as long as it answers any of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from math import inf
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import LeaderNotAvailableError, OffsetOutOfRangeError
from typing_extensions import override

from retryapp.core.errors import UnreadableTopicError
from retryapp.core.record import Record, held_bytes
from retryapp.engine.lane.limits import within
from retryapp.ports import Sink, Stuck, TopicPartition, TopicReader
from retryapp.runtime.clients.lifecycle import ClientSettings, end
from retryapp.runtime.clients.unreadable import bare, install, to_record

TURN_S = 0.25  # how long a reading goes on while others wait; every turn makes some progress
ANSWER_S = 3.0  # the client itself asks for as long as an opening may take, and others wait for their turn
STALL_S = 10.0  # a reading that gets nothing for so long raises `TimeoutError`
SLICE_RECORDS = 250  # records that are applied at once; other tasks run between slices (about 1 ms each on RocksDB)
SLICE_BYTES = 1 << 20
PICK_BYTES = 256 << 10  # of one request for single records


class _SharedConsumer:
    def __init__(self, settings: ClientSettings, role: str, **options: Any) -> None:
        self.waiting = 0  # how many tasks wait for their turn
        self._options = {
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": max(4 << 20, settings.max_request_size),
            **options,
        }
        self._settings = settings
        self._name = f"{settings.client_id}-{role}"
        self._consumer: AIOKafkaConsumer | None = None
        self._lock = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Hold the consumer, first come first served."""
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        try:
            try:
                async with asyncio.timeout(STALL_S):
                    consumer = await self._started()
                yield consumer
            except BaseException:
                self.drop()
                raise
        finally:
            self._lock.release()

    def drop(self) -> None:
        """Have the next turn make a new consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            task = end(consumer, self._name)
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def stop(self) -> None:
        """Drop the consumer; wait until all dropped ones have ended."""
        self.drop()
        if self._ends:
            await asyncio.wait(self._ends)

    async def _started(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            install()  # gives the lists of `bare`
            self._consumer = AIOKafkaConsumer(
                client_id=self._name,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                request_timeout_ms=self._settings.request_timeout_ms,
                fetch_max_wait_ms=50,
                key_deserializer=bare,
                **self._options,
                **self._settings.connection,
            )
            await self._consumer.start()
        return self._consumer


class _Question(NamedTuple):
    tps: Sequence[TopicPartition]
    answer: asyncio.Future[dict[TopicPartition, tuple[int, int]]]


def _learn(consumer: AIOKafkaConsumer, tps: Sequence[ClientTopicPartition]) -> None:
    """Have the next request wait until the client knows the leaders of all these partitions.

    Else it finds one topic after the other that it does not know, and rests for 100 ms each time.
    """
    for tp in tps:
        consumer._client.add_topic(tp.topic)


def _rest(consumer: AIOKafkaConsumer) -> None:
    """Fetch nothing. The client's `assign([])` also asks for all topics and partitions of the cluster."""
    consumer._subscription.assign_from_user([])


async def _unled(consumer: AIOKafkaConsumer, tps: Sequence[ClientTopicPartition]) -> set[ClientTopicPartition]:
    """Return the partitions without a leader; the client may know less than the brokers, so they are asked once."""
    client = consumer._client
    _learn(consumer, tps)
    await client._maybe_wait_metadata()
    if unled := {tp for tp in tps if client.cluster.leader_for_partition(tp) in (None, -1)}:
        await client.force_metadata_update()
    return {tp for tp in unled if client.cluster.leader_for_partition(tp) in (None, -1)}


async def _ask(consumer: AIOKafkaConsumer, questions: Sequence[_Question]) -> None:
    """Ask about the partitions of all these questions at once; one about a partition without a leader fails at once.

    The client would ask again until that has one, and the others would wait with it.
    """
    async with within(ANSWER_S, "finding where partitions begin and end"):
        unled = await _unled(consumer, [ClientTopicPartition(*tp) for each in questions for tp in each.tps])
        for question in _open(questions):
            if (tp := next((tp for tp in question.tps if tp in unled), None)) is not None:
                text = f"{tp.topic}[{tp.partition}] has no leader, is not there, or may not be described"
                question.answer.set_exception(LeaderNotAvailableError(text))
        client_tps = [ClientTopicPartition(*tp) for tp in {tp for each in _open(questions) for tp in each.tps}]
        first = await consumer.beginning_offsets(client_tps)
        end_ = await consumer.end_offsets(client_tps)
    for question in _open(questions):
        question.answer.set_result({tp: (int(first[tp]), int(end_[tp])) for tp in question.tps})


async def _answer(consumer: AIOKafkaConsumer, questions: Sequence[_Question]) -> bool:
    """Ask all questions together, and if that fails each alone, at the same time; return whether to keep the consumer.

    So one that fails spoils no other, and however many fail, the others wait for one time-out more.
    """
    try:
        await _ask(consumer, questions)
    except Exception as exc:  # noqa: BLE001 - each question gets its own error
        left = _open(questions)
        if len(left) == 1:
            left[0].answer.set_exception(exc)
            return False
        alone = await asyncio.gather(*(_ask(consumer, [each]) for each in left), return_exceptions=True)
        for question, fault in zip(left, alone, strict=True):
            if fault is not None and not question.answer.done():
                question.answer.set_exception(fault)
        return None in alone
    return True


def _open(questions: Sequence[_Question]) -> list[_Question]:
    """Return those that wait for an answer."""
    return [each for each in questions if not each.answer.done()]


class TailReader(TopicReader):
    """Reads partitions up to their ends, committed records only; connects at the first use."""

    def __init__(self, settings: ClientSettings) -> None:
        self._asker = _SharedConsumer(settings, "bounds")
        self._reader = _SharedConsumer(settings, "tail")
        # a lone record costs about its batch; one that is larger than the limit comes all the same
        uncommitted = {"isolation_level": "read_uncommitted", "max_partition_fetch_bytes": PICK_BYTES}
        self._picker = _SharedConsumer(settings, "records", **uncommitted)
        self._questions: list[_Question] = []
        self._asking: asyncio.Task[None] | None = None
        self._background = asyncio.Lock()
        self._behind: dict[TopicPartition, int] = {}
        self._bounds: dict[TopicPartition, range] = {}
        """Offsets that partitions had when single records were read last."""

    def behind(self, tp: TopicPartition) -> int:
        """Return how many offsets the current or last failed reading of a partition has left."""
        return self._behind.get(tp, 0)

    @override
    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        question = _Question(tps, asyncio.get_running_loop().create_future())
        question.answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # its asker may be gone
        self._questions.append(question)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_on(), name="bounds")
        try:
            return await question.answer
        finally:
            self._questions.remove(question)

    async def _ask_on(self) -> None:
        """Answer questions until none is left."""
        while _open(self._questions):
            try:
                async with self._asker.turn() as consumer:
                    if not await _answer(consumer, _open(self._questions)):
                        self._asker.drop()
            except Exception as exc:  # noqa: BLE001 - no broker lets it in: each question gets that error
                for each in _open(self._questions):
                    each.answer.set_exception(exc)

    @override
    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        first, end_ = (await self.bounds([tp]))[tp]
        position = max(start, first)
        while position < end_:
            self._behind[tp] = end_ - position
            async with self._background if background else nullcontext(), self._reader.turn() as consumer:
                position = await self._turn(consumer, tp, position, end_, sink)
            end_ = max(end_, position)  # the markers of a transaction may have come meanwhile
        self._behind.pop(tp, None)
        return end_

    @override
    async def written_end(self, tp: TopicPartition) -> int:
        async with self._picker.turn() as consumer, asyncio.timeout(STALL_S):
            _learn(consumer, [ClientTopicPartition(*tp)])
            ends = await consumer.end_offsets([ClientTopicPartition(*tp)])
        return int(ends[ClientTopicPartition(*tp)])

    @override
    async def records(
        self, tp: TopicPartition, offsets: Sequence[int], *, most_bytes: int | None = None
    ) -> Mapping[int, Record]:
        bounds = self._bounds.pop(tp, range(0))  # after any error they are asked for again
        if all(offset in bounds for offset in offsets):
            with suppress(OffsetOutOfRangeError):  # the broker has deleted more since
                return await self._picked(tp, offsets, bounds, most_bytes)
        first, end_ = (await self.bounds([tp]))[tp]
        if any(offset >= end_ for offset in offsets):  # committed all the same, if its marker is lost (reliability, F4)
            end_ = max(end_, await self.written_end(tp))
        return await self._picked(tp, offsets, range(first, end_), most_bytes)

    async def _picked(
        self, tp: TopicPartition, offsets: Sequence[int], bounds: range, most_bytes: int | None
    ) -> Mapping[int, Record]:
        wanted = deque(offset for offset in offsets if offset in bounds)
        found: dict[int, Record] = {}
        while wanted:
            async with self._picker.turn() as consumer, asyncio.timeout(STALL_S):
                await _pick(consumer, tp, wanted, found, inf if most_bytes is None else most_bytes)
        self._bounds[tp] = bounds
        return found

    async def stop(self) -> None:
        """End the consumers; bounded, never raises."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        for question in _open(self._questions):
            question.answer.cancel()
        await asyncio.gather(*(each.stop() for each in (self._asker, self._reader, self._picker)))

    async def _turn(self, consumer: AIOKafkaConsumer, tp: TopicPartition, start: int, end_: int, sink: Sink) -> int:
        """Read until the end, or until others have waited long enough; return the position."""
        loop = asyncio.get_running_loop()
        client_tp = ClientTopicPartition(*tp)
        consumer.assign([client_tp])
        consumer.seek(client_tp, start)
        position, began_s, moved_s = start, loop.time(), loop.time()
        while position < end_:
            found = await consumer.getmany(client_tp, timeout_ms=10, max_records=1)  # one list of records (`bare`)
            reached = int(await consumer.position(client_tp))
            if reached > position:
                for records, next_offset in _slices(next(iter(found.get(client_tp, ())), []), reached):
                    if sink(records, next_offset):
                        reached = end_
                        break
                    await asyncio.sleep(0)
                position, moved_s = reached, loop.time()
                self._behind[tp] = max(0, end_ - position)
                if self._reader.waiting and moved_s - began_s > TURN_S:
                    break
            elif loop.time() - moved_s > STALL_S:
                raise TimeoutError(
                    f"{tp.topic}[{tp.partition}]: nothing came from offset {position} on for {STALL_S:g} s, and its "
                    f"end is {end_}"
                )
        _rest(consumer)
        return position


async def _pick(
    consumer: AIOKafkaConsumer, tp: TopicPartition, wanted: deque[int], found: dict[int, Record], most_bytes: float
) -> None:
    """Read on from the first offset that is wanted while the next one is near; take what is there out of `wanted`.

    Once `most_bytes` are found, nothing is wanted any more.
    """
    client_tp, position, near = ClientTopicPartition(*tp), wanted[0], 1
    consumer.assign([client_tp])
    consumer.seek(client_tp, position)
    while wanted and wanted[0] < position + near:
        lists = await consumer.getmany(client_tp, timeout_ms=10, max_records=1)  # one list of records (`bare`)
        fetched: list[Any] = next(iter(lists.get(client_tp, ())), [])
        for each in fetched:
            if isinstance(each, Stuck):
                while wanted and wanted[0] < each.offset:
                    wanted.popleft()
                if not wanted:
                    break
                raise UnreadableTopicError(tp.topic, tp.partition, each.offset, each.problem)
            record = each if isinstance(each, Record) else to_record(tp, each)
            while wanted and wanted[0] < record.next_offset:
                if record.offset <= (offset := wanted.popleft()):
                    found[offset] = record
        reached = int(await consumer.position(client_tp))
        while wanted and wanted[0] < reached:
            wanted.popleft()  # nothing is there any more
        if sum(held_bytes(each.key, each.value, each.headers) for each in found.values()) >= most_bytes:
            wanted.clear()
        position, near = reached, max(1, len(fetched))
    _rest(consumer)


def _slices(records: list[Any], position: int) -> Iterator[tuple[list[Any], int]]:
    """Yield slices, bounded in number and bytes, with the offset after each; the last ends at `position`."""
    start, count = 0, len(records)
    while True:
        end = min(start + SLICE_RECORDS, count)
        while end - start > 1 and sum([len(record.value or b"") for record in records[start:end]]) > SLICE_BYTES:
            end = (start + end) // 2
        if end == count:
            yield records[start:], position
            return
        yield records[start:end], records[end].offset
        start = end
