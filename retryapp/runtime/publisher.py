"""A lane's transport on aiokafka and RocksDB: the primitives of `engine.transport.LaneProtocol`.

The heartbeat carries the generation and member id *of the assignment*, through the consumer's own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import (
    IllegalGenerationError,
    NoError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.structs import OffsetAndMetadata
from typing_extensions import override

from retryapp.core.hops import Outgoing
from retryapp.core.topology import CHANGELOG_DELETE_RETENTION_MS
from retryapp.engine.partition import PartitionEngine
from retryapp.engine.placement import Served
from retryapp.engine.site import LaneSite
from retryapp.engine.transport import LaneProtocol
from retryapp.ports import Committed, Standing, TopicPartition
from retryapp.runtime.batches import Sent, send_all
from retryapp.runtime.clients import ClientSettings, end, reconnect_slowly
from retryapp.runtime.clock import counted_s
from retryapp.runtime.consumer import RetryConsumer
from retryapp.runtime.deadletters import RocksDeadLetterTable
from retryapp.runtime.pending import RocksPendingTable
from retryapp.runtime.seen import RocksSeenTable
from retryapp.runtime.store import StoreIdentity

TRANSACTION_TIMEOUT_MS = 15_000
"""The broker aborts a transaction that stays open for longer: how long committed readers wait if all workers are dead.
"""
_RETRY_BACKOFF_MS = 10
"""For a transaction that follows another at once: until the former's markers are written the broker answers "not enough
replicas" or "concurrent transactions" (KIP-890), and with the client's 100 ms each hand-off would take that long."""
_MAX_AGE_MS = CHANGELOG_DELETE_RETENTION_MS // 2
"""A store unused for longer may hold rows whose tombstones are gone."""


@dataclass(slots=True, kw_only=True)
class LanePlace(LaneSite):
    """Where a lane belongs, with its stores on this machine."""

    store_dir: Path
    """Folder of the handler's stores; the partition's are `pending/{p}`, `dead/{p}`, `seen/{p}` below it."""
    dlq_id: str = ""
    """Id of the dead-letter topic."""
    seen_id: str = ""
    """Id of the changelog of the table of seen events."""


def lane_place(app: faust.App, served: Served, engine: PartitionEngine) -> LanePlace:
    """Return where the lane of a handler's partition belongs."""
    topology, partition = served.handler.topology, engine.partition
    return LanePlace(
        name=f"{topology.prefix}.{partition}",
        group=app.conf.id,
        partition=partition,
        sources=engine.sources,
        main=TopicPartition(topology.main, partition),
        changelog=TopicPartition(topology.pending_changelog, partition),
        dlq=TopicPartition(topology.dlq, partition),
        delivering=engine.delivering,
        topic_id=served.topic_id,
        changelog_id=served.changelog_id,
        dlq_id=served.dlq_id,
        seen=TopicPartition(topology.seen_changelog, partition) if served.handler.deduplicate else None,
        seen_id=served.seen_id,
        store_dir=Path(app.conf.datadir) / "retryapp" / topology.prefix,
        start_at_end=app.conf.consumer_auto_offset_reset == "latest",
    )


@dataclass(slots=True, kw_only=True)
class KafkaTransport(LaneProtocol):
    """A lane's transport; see the module's text."""

    place: LanePlace
    settings: ClientSettings
    consumer: RetryConsumer
    _producer: AIOKafkaProducer | None = None
    _foreign: Sent | None = None
    """What was sent last to topics that are not ours."""

    @override
    async def standing(self) -> Standing:

        async def beat(client: AIOKafkaConsumer) -> type[BaseException]:
            coordinator = client._coordinator
            await coordinator.ensure_coordinator_known()
            response = await coordinator._send_req(
                HeartbeatRequest(coordinator.group_id, self.generation, self.member_id)
            )
            error: type[BaseException] = for_code(response.error_code)
            return error

        asked_s = counted_s()
        standing = standing_of(await self.consumer.in_thread(beat))
        if standing is not Standing.GONE:
            self.consumer.heard(asked_s)
        return standing

    @override
    async def start_producer(self) -> None:
        settings = self.settings
        producer = AIOKafkaProducer(
            transactional_id=self.place.name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            retry_backoff_ms=_RETRY_BACKOFF_MS,
            client_id=f"{settings.client_id}-{self.place.name}",
            max_batch_size=settings.max_batch_size,
            max_request_size=settings.max_request_size,
            request_timeout_ms=settings.request_timeout_ms,
            compression_type=settings.compression_type,
            linger_ms=0,
            **settings.connection,
        )
        reconnect_slowly(producer)
        self._producer = producer
        await producer.start()

    @override
    def end_producer(self) -> asyncio.Task[None] | None:
        producer, self._producer = self._producer, None
        return None if producer is None else end(producer, self.place.name)

    def _open_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise RuntimeError(f"lane {self.place.name} has no producer")
        return self._producer

    @override
    async def begin(self) -> None:
        await self._open_producer().begin_transaction()

    @override
    async def send(self, records: Sequence[Outgoing]) -> Sent:
        sent = await send_all(self._open_producer(), records)
        if sent.destinations:
            self._foreign = sent
        return sent

    @override
    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        found = {ClientTopicPartition(*tp): OffsetAndMetadata(*each) for tp, each in offsets.items()}
        try:
            await self._open_producer().send_offsets_to_transaction(found, self.place.group)
        except TopicAuthorizationFailedError as exc:  # the topics' batches get no answer
            if self._foreign is not None:
                self._foreign.denied(exc)
            raise

    @override
    async def end_transaction(self) -> None:
        await self._open_producer().commit_transaction()

    async def move_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """Refuse; goes with `LaneProtocol.move_offsets`."""
        raise NotImplementedError

    @override
    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        client_tps = [ClientTopicPartition(*tp) for tp in self.place.sources]
        got: Mapping[Any, OffsetAndMetadata] = await self.consumer.in_thread(
            lambda c: c._coordinator.fetch_committed_offsets(client_tps)
        )
        return {
            TopicPartition(*tp): Committed(found.offset, found.metadata or "")
            for tp, found in got.items()
            if found.offset >= 0
        }

    @override
    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        await self.consumer.reposition(starts)

    @override
    async def hold(self) -> None:
        await self.consumer.hold(self.place.sources)

    @override
    def open_stores(self) -> tuple[RocksPendingTable, RocksDeadLetterTable]:
        place, now_ms = self.place, self.clock.wall_ms()
        pending = RocksPendingTable(
            self._folder("pending"),
            StoreIdentity(topic=place.changelog.topic, topic_id=place.changelog_id, partition=place.partition),
            now_ms=now_ms,
            max_age_ms=_MAX_AGE_MS,
        )
        identity = StoreIdentity(topic=place.dlq.topic, topic_id=place.dlq_id, partition=place.partition)
        try:
            return pending, RocksDeadLetterTable(self._folder("dead"), identity, now_ms=now_ms)
        except BaseException:
            pending.close()  # or its folder would stay locked for the next try
            raise

    @override
    def open_seen(self) -> RocksSeenTable:
        place = self.place
        if place.seen is None:
            raise RuntimeError(f"lane {place.name} has no table of seen events")
        identity = StoreIdentity(topic=place.seen.topic, topic_id=place.seen_id, partition=place.partition)
        return RocksSeenTable(self._folder("seen"), identity, now_ms=self.clock.wall_ms())

    def _folder(self, table: str) -> Path:
        return self.place.store_dir / table / str(self.place.partition)


def standing_of(error: type[BaseException]) -> Standing:
    """Return what the coordinator's answer means; raise any other error."""
    if error is NoError:
        return Standing.MEMBER
    if error is RebalanceInProgressError:
        return Standing.REBALANCING
    if error in (UnknownMemberIdError, IllegalGenerationError):
        return Standing.GONE
    raise error
