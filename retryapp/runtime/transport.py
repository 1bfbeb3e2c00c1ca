"""A lane's transport on aiokafka and RocksDB: the primitives of `engine.lane.transport.LaneProtocol`.

The heartbeat carries the generation and member id *of the assignment*, through the consumer's own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    IllegalOperation,
    KafkaError,
    NoError,
    NotCoordinatorError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.structs import OffsetAndMetadata
from typing_extensions import override

from retryapp.core.errors import EnvironmentFault
from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import CoordinatorAwayError, HandOffRefusedError, RightMissingError
from retryapp.core.topology import CHANGELOG_DELETE_RETENTION_MS
from retryapp.engine.lane.limits import within
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker.placement import Served
from retryapp.kafka import KafkaConnection
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS
from retryapp.ports import Committed, DestinationReader, LaneBatch, LaneReceipt, Standing, TopicPartition
from retryapp.runtime.clients.batches import Sent, denied, send_all
from retryapp.runtime.clients.lifecycle import (
    ClientSettings,
    begin_promptly,
    end,
    give_up_on_few_copies,
    reconnect_slowly,
    send_nothing_unannounced,
)
from retryapp.runtime.faust.consumer import RetryConsumer
from retryapp.runtime.machine.clock import counted_s
from retryapp.runtime.stores.deadletters import RocksDeadLetterTable
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.seen import RocksSeenTable
from retryapp.runtime.stores.store import StoreIdentity

REQUEST_TIMEOUT_MS = TRANSACTION_TIMEOUT_MS // 2  # at most: so that a lost request is repeated within its transaction
_RETRY_BACKOFF_MS = 10
"""Until a transaction's markers are written the broker refuses the next one (KIP-890): with the client's 100 ms each
hand-off would take that long."""
_MAX_AGE_MS = CHANGELOG_DELETE_RETENTION_MS // 2  # a store unused for longer may hold rows whose tombstones are gone


@dataclass(slots=True, kw_only=True)
class LanePlace(LaneSite):
    """Where a lane belongs, with its stores on this machine."""

    store_dir: Path
    """The partition's stores are `pending/{p}`, `dead/{p}`, `dead.{name}/{p}` of a rule, and `seen/{p}` below."""
    dlq_ids: Mapping[str, str] = field(default_factory=dict)
    seen_id: str = ""


def lane_place(app: faust.App, served: Served, engine: PartitionEngine) -> LanePlace:
    topology, partition = served.handler.topology, engine.partition
    return LanePlace(
        name=f"{topology.prefix}.{partition}",
        group=app.conf.id,
        partition=partition,
        sources=engine.sources,
        main=TopicPartition(topology.main, partition),
        changelog=TopicPartition(topology.pending_changelog, partition),
        dlqs=[TopicPartition(name, partition) for name in topology.dlqs],
        topic_id=served.topic_id,
        changelog_id=served.changelog_id,
        fences=served.handler.takes_delivery,
        dlq_ids=served.dlq_ids,
        control=TopicPartition(topology.control, partition),
        control_id=served.control_id,
        seen=TopicPartition(topology.seen_changelog, partition) if served.handler.deduplicate else None,
        seen_id=served.seen_id,
        store_dir=Path(app.conf.datadir) / "retryapp" / topology.prefix,
        start_at_end=app.conf.consumer_auto_offset_reset == "latest"
        and partition < served.known
        and topology.own_letters_of is None,  # another lane may write letters before this one opens
    )


@dataclass(slots=True, kw_only=True)
class KafkaTransport(LaneProtocol):
    """A lane's clients and stores."""

    place: LanePlace
    settings: ClientSettings
    consumer: RetryConsumer
    topics: DestinationReader
    _producer: AIOKafkaProducer | None = None

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
        try:
            standing = standing_of(await self.consumer.in_thread(beat))
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError) as exc:
            raise CoordinatorAwayError(self.place.group) from exc
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
            request_timeout_ms=min(settings.request_timeout_ms, REQUEST_TIMEOUT_MS),
            compression_type=settings.compression_type,
            linger_ms=0,
            **settings.connection,
        )
        reconnect_slowly(producer)
        begin_promptly(producer)
        give_up_on_few_copies(producer)
        send_nothing_unannounced(producer)
        self._producer = producer
        try:
            await producer.start()
        except TransactionalIdAuthorizationFailed as exc:
            raise RightMissingError(f"transactional id {self.place.name} may not be used", "WRITE on it") from exc

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
    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        try:
            return await LaneProtocol.commit(self, batch)
        except (KafkaError, IllegalOperation) as exc:
            over = self._open_producer()._txn_manager.wait_for_transaction_end()
            error = over.exception() if over is not None and over.done() else exc
            if isinstance(exc.__cause__, TopicAuthorizationFailedError):  # the client says only "unexpected"
                topics = ", ".join(sorted({place.topic for place in batch.offsets}))
                problem = f"group {self.place.group} may not commit offsets of {topics}"
                raise RightMissingError(problem, "READ there") from exc
            if not isinstance(error, TopicAuthorizationFailedError):
                raise
            raise denied(error, [*batch.publishes, Outgoing(*self.place.changelog, None, None, ())]) from exc

    @override
    async def send(self, records: Sequence[Outgoing]) -> Sent:
        producer = self._open_producer()
        return await send_all(producer, records, producer._txn_manager.wait_for_transaction_end())

    @override
    async def send_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        committed = {ClientTopicPartition(*tp): OffsetAndMetadata(*offset) for tp, offset in offsets.items()}
        await self._open_producer().send_offsets_to_transaction(committed, self.place.group)

    @override
    async def explain(self, error: HandOffRefusedError) -> HandOffRefusedError:
        if error.size is not None:
            with suppress(Exception):  # whatever it is, the refusal is worse
                if (look := await self.topics.look(error.topic)) is not None:
                    return HandOffRefusedError(error.topic, error.problem, error.size, look.max_bytes)
        return error

    @override
    async def main_id(self) -> str:
        look = await self.topics.look(self.place.main.topic)
        return "" if look is None else look.topic_id

    @override
    async def end_transaction(self) -> None:
        # asked once: a repeated request that arrives late could end the next transaction (KIP-890)
        timeout_ms = min(self.settings.request_timeout_ms, REQUEST_TIMEOUT_MS)
        async with within(timeout_ms / 1000, "the end of a transaction"):
            await self._open_producer().commit_transaction()

    @override
    async def fetch_committed(self) -> Mapping[TopicPartition, Committed]:
        client_tps = [ClientTopicPartition(*tp) for tp in self.place.sources]
        offsets: Mapping[Any, OffsetAndMetadata] = await self.consumer.in_thread(
            lambda client: client._coordinator.fetch_committed_offsets(client_tps)
        )
        return {
            TopicPartition(*tp): Committed(at.offset, at.metadata or "") for tp, at in offsets.items() if at.offset >= 0
        }

    @override
    async def committed(self) -> Mapping[TopicPartition, int]:
        with self._complete_commands():
            return await LaneProtocol.committed(self)

    @override
    async def recover(self) -> None:
        with self._complete_commands():
            await LaneProtocol.recover(self)

    @contextmanager
    def _complete_commands(self) -> Iterator[None]:
        """Have what an error suggests reach this cluster: who reads it runs it as it is printed."""
        try:
            yield
        except EnvironmentFault as error:
            given = self.settings.connection
            options = {"security.protocol": given.get("security_protocol", "PLAINTEXT")}
            error.args = (KafkaConnection(",".join(given["bootstrap_servers"]), options).complete(str(error)),)
            raise

    @override
    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        await self.consumer.reposition(starts)

    @override
    async def hold(self) -> None:
        await self.consumer.hold(self.place.sources)

    @override
    def open_pending(self) -> RocksPendingTable:
        where = self._store("pending", self.place.changelog, self.place.changelog_id)
        return RocksPendingTable(*where, now_ms=self.clock.wall_ms(), max_age_ms=_MAX_AGE_MS)

    @override
    def open_dead(self, dlq: TopicPartition) -> RocksDeadLetterTable:
        table = f"dead{dlq.topic.removeprefix(self.place.dlqs[0].topic)}"
        where = self._store(table, dlq, self.place.dlq_ids.get(dlq.topic, ""))
        return RocksDeadLetterTable(*where, now_ms=self.clock.wall_ms())

    @override
    def open_seen(self) -> RocksSeenTable:
        if self.place.seen is None:
            raise RuntimeError(f"lane {self.place.name} has no table of seen events")
        return RocksSeenTable(*self._store("seen", self.place.seen, self.place.seen_id), now_ms=self.clock.wall_ms())

    def _store(self, table: str, tp: TopicPartition, topic_id: str) -> tuple[Path, StoreIdentity]:
        identity = StoreIdentity(topic=tp.topic, topic_id=topic_id, partition=tp.partition)
        return self.place.store_dir / table / str(tp.partition), identity


def standing_of(error: type[BaseException]) -> Standing:
    """Return what the coordinator's answer means; raise any other error."""
    if error is NoError:
        return Standing.MEMBER
    if error is RebalanceInProgressError:
        return Standing.REBALANCING
    if error in (UnknownMemberIdError, IllegalGenerationError):
        return Standing.GONE
    raise error
