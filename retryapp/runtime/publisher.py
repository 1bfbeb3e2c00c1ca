"""The protocol of a lane on aiokafka and RocksDB.

`KafkaTransport` gives `engine.transport.LaneProtocol` its primitives; the order of the steps is there. Of the client
library's traps it steps round these:

* the heartbeat goes out with the generation and member id *of the assignment*, through the consumer's own connection;
* a transaction that follows another at once is often told to wait, and the library's own pause would be the longest
  part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

from retryapp.core.hops import Outgoing
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
"""The broker aborts a transaction that stays open for longer; with all workers dead, committed readers wait this
long."""
_RETRY_BACKOFF_MS = 10
"""A transaction that follows another at once is often told to wait for the former's markers (the broker says "not
enough replicas" or "concurrent transactions" for it, KIP-890); with the client's 100 ms each hand-off would take that
long."""


@dataclass(slots=True, kw_only=True)
class LanePlace(LaneSite):
    """Where a lane belongs, with its stores on this machine."""

    pending_identity: StoreIdentity
    dead_identity: StoreIdentity
    store_dir: Any
    """Folder of the handler's stores; the partition's lie in `pending/{p}`, `dead/{p}`, `seen/{p}` below it."""
    max_store_age_ms: int
    seen_identity: StoreIdentity | None = None
    """Of the table of seen events; None where there is none."""


@dataclass(slots=True, kw_only=True)
class KafkaTransport(LaneProtocol):
    """See the module's text."""

    place: LanePlace
    settings: ClientSettings
    consumer: RetryConsumer
    _producer: AIOKafkaProducer | None = None
    _foreign: Sent | None = None
    """What was sent last to topics that are not ours."""

    async def standing(self) -> Standing:
        """See `LaneProtocol.standing`."""

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

    async def start_producer(self) -> None:
        """See `LaneProtocol.start_producer`."""
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

    def end_producer(self) -> asyncio.Task[None] | None:
        """See `LaneProtocol.end_producer`."""
        producer, self._producer = self._producer, None
        return None if producer is None else end(producer, self.place.name)

    def _open_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise RuntimeError(f"lane {self.place.name} has no producer")
        return self._producer

    async def begin(self) -> None:
        """See `LaneProtocol.begin`."""
        await self._open_producer().begin_transaction()

    async def send(self, records: Sequence[Outgoing]) -> Sent:
        """See `LaneProtocol.send`."""
        sent = await send_all(self._open_producer(), records)
        if sent.destinations:
            self._foreign = sent
        return sent

    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """See `LaneProtocol.send_offsets`."""
        told = {ClientTopicPartition(*tp): OffsetAndMetadata(*each) for tp, each in offsets.items()}
        try:
            await self._open_producer().send_offsets_to_transaction(told, self.place.group)
        except TopicAuthorizationFailedError as exc:  # of the transaction's topics; their batches are told nothing
            if self._foreign is not None:
                self._foreign.denied(exc)
            raise

    async def end_transaction(self) -> None:
        """See `LaneProtocol.end_transaction`."""
        await self._open_producer().commit_transaction()

    async def move_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """Refuse; goes with `LaneProtocol.move_offsets`."""
        raise NotImplementedError

    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        """See `LaneProtocol.fetch_committed`."""
        client_tps = [ClientTopicPartition(*tp) for tp in self.place.sources]
        got: Mapping[Any, OffsetAndMetadata] = await self.consumer.in_thread(
            lambda c: c._coordinator.fetch_committed_offsets(client_tps)
        )
        return {
            TopicPartition(*tp): Committed(found.offset, found.metadata or "")
            for tp, found in got.items()
            if found.offset >= 0
        }

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `LaneProtocol.reposition`."""
        await self.consumer.reposition(starts)

    async def hold(self) -> None:
        """See `ports.LaneTransport.hold`."""
        await self.consumer.hold(self.place.sources)

    def open_stores(self) -> tuple[RocksPendingTable, RocksDeadLetterTable]:
        """See `LaneProtocol.open_stores`."""
        place, now_ms = self.place, self.clock.wall_ms()
        number = str(place.partition)
        pending = RocksPendingTable(
            place.store_dir / "pending" / number,
            place.pending_identity,
            now_ms=now_ms,
            max_age_ms=place.max_store_age_ms,
        )
        try:
            dead = RocksDeadLetterTable(place.store_dir / "dead" / number, place.dead_identity, now_ms=now_ms)
        except BaseException:
            pending.close()  # or its folder would stay locked for the next try
            raise
        return pending, dead

    def open_seen(self) -> RocksSeenTable:
        """See `LaneProtocol.open_seen`."""
        place = self.place
        if place.seen_identity is None:
            raise RuntimeError(f"lane {place.name} has no table of seen events")
        path = place.store_dir / "seen" / str(place.partition)
        return RocksSeenTable(path, place.seen_identity, now_ms=self.clock.wall_ms())


def standing_of(error: type[BaseException]) -> Standing:
    """Return what the coordinator's answer says.

    Raises:
        aiokafka.errors.KafkaError: it says something else.
    """
    if error is NoError:
        return Standing.MEMBER
    if error is RebalanceInProgressError:
        return Standing.REBALANCING
    if error in (UnknownMemberIdError, IllegalGenerationError):
        return Standing.GONE
    raise error
