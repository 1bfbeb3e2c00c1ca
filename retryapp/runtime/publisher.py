"""Kafka as one lane sees it: membership, a fencing producer, committed offsets, the changelog's tail, transactions.

`KafkaLane` is `ports.LaneTransport` on aiokafka and RocksDB. What it does at each step and why stands in DESIGN section
4, rules 1 to 4 and 10; the traps that it steps round:

* a heartbeat with the generation and member id *of the assignment* proves membership; the client's own heartbeat would
  send those of the moment, and a zombie may have rejoined;
* the producer is new at every opening: InitProducerId ends and fences what the former owner had open, and offsets read
  after it are stable; a producer that saw an error is never used again;
* the changelog is read to its end by *position*: its last record is usually a transaction marker; what was read before
  a deadline or a fault stays in the local store, and the next opening goes on from there;
* the dead-letter table only answers questions, so it is filled behind an open lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import IllegalGenerationError, NoError, RebalanceInProgressError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.structs import OffsetAndMetadata
from mode.utils.logging import get_logger

from retryapp.core.errors import DiskFullError, StoreBrokenError
from retryapp.core.hops import Outgoing
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.engine.lane import NotMemberError, RebalancingError
from retryapp.ports import Clock, DeadRow, LaneBatch, LaneReceipt, TopicPartition
from retryapp.runtime.batches import Sent, send_all
from retryapp.runtime.clients import ClientSettings, end, reconnect_slowly
from retryapp.runtime.consumer import RetryConsumer
from retryapp.runtime.deadletters import RocksDeadLetterTable
from retryapp.runtime.errors import OffsetsGoneError, OffsetsMissingError, StoreAheadError
from retryapp.runtime.pending import RocksPendingTable
from retryapp.runtime.store import StoreIdentity
from retryapp.runtime.tail import TailReader

logger = get_logger(__name__)

TRANSACTION_TIMEOUT_MS = 15_000
"""The broker aborts a transaction that stays open for longer; with all workers dead, committed readers wait this
long."""
CLOCK_MARK = b"clock"
"""Key of a changelog record that is no row: its acknowledgement tells the broker's time, compaction leaves one."""
_APPEND_TIME = 1
"""Timestamp type of a topic with `message.timestamp.type=LogAppendTime`, as all of ours are."""
_RETRY_BACKOFF_MS = 10
"""A transaction that follows another at once is often told to wait for the former's markers (the broker says "not
enough replicas" or "concurrent transactions" for it, KIP-890); with the client's 100 ms each hand-off would take that
long."""
_CLOSE_S = 3.0
"""Longest wait for what a closing lane gives up; a client ends within two seconds or is left to its own end."""
_FORGET_S = 3600.0
"""How often the dead-letter table forgets what retention has deleted from its topic."""
_REFILL_S = 5.0
"""Pause before the dead-letter table is read again after an error."""


@dataclass(slots=True, kw_only=True)
class LanePlace:
    """Where a lane belongs and what it writes to."""

    name: str
    group: str
    partition: int
    sources: Sequence[TopicPartition]
    main: TopicPartition
    changelog: TopicPartition
    dlq: TopicPartition
    pending_identity: StoreIdentity
    dead_identity: StoreIdentity
    store_dir: Any
    """Folder of the handler's stores; the partition's lie in `pending/{p}` and `dead/{p}` below it."""
    max_store_age_ms: int
    start_at_end: bool = False
    """Where a main topic without committed offsets begins: the app's `consumer_auto_offset_reset`."""


@dataclass(slots=True)
class KafkaLane:
    """`ports.LaneTransport` on aiokafka and RocksDB. See the module's text."""

    place: LanePlace
    settings: ClientSettings
    consumer: RetryConsumer
    reader: TailReader
    clock: Clock
    generation: int
    member_id: str
    pending: RocksPendingTable | None = None
    dead: RocksDeadLetterTable | None = None
    _producer: AIOKafkaProducer | None = None
    _doubted: bool = False
    _dead_keeper: asyncio.Task[None] | None = None
    _dead_filled: bool = False
    """The dead-letter table has all letters of its topic up to its `next_offset` and those applied since."""
    _dead_fault: DiskFullError | StoreBrokenError | None = None
    _bounds: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    async def prove(self) -> None:
        """See `ports.LaneTransport.prove`."""

        async def beat(client: AIOKafkaConsumer) -> type[BaseException]:
            coordinator = client._coordinator
            await coordinator.ensure_coordinator_known()
            response = await coordinator._send_req(
                HeartbeatRequest(coordinator.group_id, self.generation, self.member_id)
            )
            error: type[BaseException] = for_code(response.error_code)
            return error

        self._check_membership(await self.consumer.in_thread(beat))

    def _check_membership(self, error: type[BaseException]) -> None:
        """Raise what the coordinator's answer means for this lane; nothing when all is well."""
        if error is NoError:
            return
        if error is RebalanceInProgressError:
            raise RebalancingError(f"lane {self.place.name}: the group is rebalancing")
        if error in (UnknownMemberIdError, IllegalGenerationError):
            raise NotMemberError(f"lane {self.place.name}: not a member of generation {self.generation} any more")
        raise error

    async def fence(self) -> None:
        """See `ports.LaneTransport.fence`."""
        producer = self._new_producer()
        reconnect_slowly(producer)
        self._producer = producer
        await producer.start()

    def _new_producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            transactional_id=self.place.name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
            **self._producer_options(),
        )

    def _producer_options(self) -> dict[str, Any]:
        return {
            "client_id": f"{self.settings.client_id}-{self.place.name}",
            "max_batch_size": self.settings.max_batch_size,
            "max_request_size": self.settings.max_request_size,
            "request_timeout_ms": self.settings.request_timeout_ms,
            "compression_type": self.settings.compression_type,
            "linger_ms": 0,
            **self.settings.connection,
        }

    async def committed(self) -> Mapping[TopicPartition, int]:
        """See `ports.LaneTransport.committed`."""
        client_tps = [ClientTopicPartition(*tp) for tp in self.place.sources]
        got: Mapping[Any, OffsetAndMetadata] = await self.consumer.in_thread(
            lambda c: c._coordinator.fetch_committed_offsets(client_tps)
        )
        bounds = await self.reader.bounds(self.place.sources)
        starts: dict[TopicPartition, int] = {}
        for tp in self.place.sources:
            found = got.get(ClientTopicPartition(*tp))
            committed = -1 if found is None else found.offset
            first, end = bounds[tp]
            if committed < 0:
                starts[tp] = end if tp == self.place.main and self.place.start_at_end else first
            elif not first <= committed <= end:
                raise OffsetsGoneError(*tp, committed, first, end)
            else:
                starts[tp] = committed
        missing = [
            tp
            for tp in self.place.sources
            if ClientTopicPartition(*tp) not in got or got[ClientTopicPartition(*tp)].offset < 0
        ]
        if len(missing) == len(self.place.sources) and (rows := await self._rows_ever()):
            raise OffsetsMissingError(self.place.name, rows, [tp.topic for tp in missing])
        if missing:  # a start that is not written down would be decided anew after a crash
            await self.commit(LaneBatch(offsets={tp: starts[tp] for tp in missing}))
        return starts

    async def _rows_ever(self) -> int:
        """Count rows on the changelog, the first few; its offsets count owner marks and transactions too."""
        rows = 0

        def count(records: list[Any], _position: int) -> bool:
            nonlocal rows
            rows += sum(len(record.key or b"") == ROW_KEY_BYTES for record in records)
            return rows > 0

        await self.reader.read(self.place.changelog, 0, count)
        return rows

    async def recover(self) -> None:
        """See `ports.LaneTransport.recover`."""
        now_ms = self.clock.wall_ms()
        place = self.place
        pending = RocksPendingTable(
            place.store_dir / "pending" / str(place.partition),
            place.pending_identity,
            now_ms=now_ms,
            max_age_ms=place.max_store_age_ms,
        )
        self.pending = pending
        self.dead = dead = RocksDeadLetterTable(
            place.store_dir / "dead" / str(place.partition), place.dead_identity, now_ms=now_ms
        )
        for table in (pending, dead):
            if table.dropped:
                logger.warning("Local store of lane %s dropped and rebuilt: %s", place.name, table.dropped)

        def into_pending(records: list[Any], position: int) -> None:
            pending.recover(((r.key or b"", r.value) for r in records), position)

        reached = await self.reader.read(place.changelog, pending.next_offset, into_pending)
        if pending.next_offset > reached:
            raise StoreAheadError(place.name, pending.next_offset, reached)
        pending.recovered()

    async def release(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `ports.LaneTransport.release`.

        The first lane of a worker learns the broker's time before records flow: due times begin with it.
        """
        if not self.clock.trusted:
            await self.commit(LaneBatch(publishes=[clock_probe(self.place.changelog)]))
        await self.consumer.reposition(starts)
        if self.dead is not None:
            self._dead_keeper = asyncio.create_task(self._keep_dead(self.dead), name=f"dead-{self.place.name}")

    async def _keep_dead(self, dead: RocksDeadLetterTable) -> None:
        """Fill the dead-letter table from its topic and forget what retention deletes, as long as the lane is open.

        Letters that the lane publishes meanwhile are written at once but do not move `next_offset` before the table is
        filled: it would pass letters that are not read yet. Those behind the end that the reading aimed at are in the
        table by then, since nobody else publishes here.
        """
        dlq = self.place.dlq

        def take(records: list[Any], position: int) -> None:
            dead.write([DeadRow(r.offset, tuple(r.headers)) for r in records], position)

        while True:
            wait_s = _FORGET_S
            try:
                first, _ = (await self.reader.bounds([dlq]))[dlq]
                await _forget(dead, first)
                if not self._dead_filled:
                    await self.reader.read(dlq, dead.next_offset, take, background=True)
                    self._dead_filled = True
            except (DiskFullError, StoreBrokenError) as exc:
                self._dead_fault = exc
                return
            except Exception as exc:  # noqa: BLE001 - the broker may be away; this table only answers questions
                logger.info("Dead letters of lane %s could not be read: %r", self.place.name, exc)
                wait_s = _REFILL_S
            await self.clock.sleep(wait_s)

    async def hold(self) -> None:
        """See `ports.LaneTransport.hold`."""
        await self.consumer.hold(self.place.sources)

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """See `ports.LaneTransport.commit`.

        In order: begin, publish hand-offs and changelog, offsets into the transaction, await every acknowledgement,
        commit.
        """
        producer = self._open_producer()
        await producer.begin_transaction()
        sent_ms = self.clock.counted_ms()
        sent, logged = await self._publish(producer, batch), await self._log(producer, batch)
        self._anchor(sent_ms, sent, logged)
        if batch.offsets:
            offsets = {ClientTopicPartition(*tp): OffsetAndMetadata(offset, "") for tp, offset in batch.offsets.items()}
            await producer.send_offsets_to_transaction(offsets, self.place.group)
        published, written = await sent.offsets(), await logged.offsets()
        await producer.commit_transaction()
        return LaneReceipt(published, max(written, default=None))

    def _anchor(self, sent_ms: float, *several: Sent) -> None:
        """Learn the broker's time from the first acknowledgement of several, the moment it comes."""

        def acknowledged(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().timestamp_type == _APPEND_TIME:
                acked_ms = self.clock.counted_ms()
                self.clock.anchor(sent_ms=sent_ms, acked_ms=acked_ms, appended_ms=done.result().timestamp)

        for sent in several:
            if sent.first is not None:
                sent.first.add_done_callback(acknowledged)
                return

    def _open_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise RuntimeError(f"lane {self.place.name} has no producer")
        return self._producer

    async def _publish(self, producer: AIOKafkaProducer, batch: LaneBatch) -> Sent:
        return await send_all(producer, batch.publishes)

    async def _log(self, producer: AIOKafkaProducer, batch: LaneBatch) -> Sent:
        topic, partition = self.place.changelog
        changes = [*((row.key, row.value) for row in batch.puts), *((removal.key, None) for removal in batch.removes)]
        return await send_all(producer, [Outgoing(topic, partition, key, value, ()) for key, value in changes])

    def apply(self, batch: LaneBatch, receipt: LaneReceipt) -> None:
        """See `ports.LaneTransport.apply`."""
        if self.pending is None or self.dead is None:
            raise RuntimeError(f"lane {self.place.name} has no local store")
        if self._dead_fault is not None:
            raise self._dead_fault
        self._doubted = True
        self.pending.touch(self.clock.wall_ms())
        if batch.puts or batch.removes:
            self.pending.write(batch.puts, batch.removes, receipt.changelog_offset)
        dead = [
            DeadRow(offset, outgoing.headers)
            for outgoing, offset in zip(batch.publishes, receipt.published_offsets, strict=True)
            if outgoing.topic == self.place.dlq.topic
        ]
        if dead:
            self.dead.write(dead, dead[-1].offset + 1 if self._dead_filled else None)
        self._doubted = False

    async def close(self) -> None:
        """See `ports.LaneTransport.close`. A store that failed while written is dropped: nothing may scan it again."""
        producer, self._producer = self._producer, None
        pending, self.pending = self.pending, None
        dead, self.dead = self.dead, None
        keeper, self._dead_keeper = self._dead_keeper, None
        ends: set[asyncio.Task[None]] = set()
        if keeper is not None:
            keeper.cancel()  # it does not use the table again
            ends.add(keeper)
        for table in (pending, dead):
            try:
                if table is not None:
                    (table.drop if self._doubted else table.close)()
            except Exception:  # whatever a disk may do: the rest has to be given up as well
                logger.exception("A local store of lane %s did not close", self.place.name)
        self._doubted = self._dead_filled = False
        self._dead_fault = None
        if producer is not None:  # without waiting for what it cannot deliver: the next owner ends its transaction
            ends.add(end(producer, self.place.name))
        if ends:
            await asyncio.wait(ends, timeout=_CLOSE_S)


def clock_probe(changelog: TopicPartition) -> Outgoing:
    """Return a record whose acknowledgement tells the broker's time."""
    return Outgoing(changelog.topic, changelog.partition, CLOCK_MARK, b"", ())


async def _forget(dead: RocksDeadLetterTable, first_offset: int) -> None:
    """Forget all dead letters before an offset, a few at a time."""
    gone = True
    while gone:
        gone = dead.forget_before(first_offset) > 0
        await asyncio.sleep(0)
