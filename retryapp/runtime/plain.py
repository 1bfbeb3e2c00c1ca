"""The same lane without transactions: publish, await, changelog, await, offsets (DESIGN section 4, rule 18).

Every crash in between repeats, none loses: what a record becomes is durable before the row that said it waits is gone,
and both before its offset moves. There is no fence: what keeps a former owner from moving offsets back is that a commit
carries the generation and member id of its assignment. What it still publishes are copies.

The two modes must never meet in one group, where one's late commit would move offsets past the other's open
transaction. So they join it under different protocol names, and the broker itself refuses the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import for_code
from aiokafka.protocol.commit import OffsetCommitRequest
from faust.assignor.partition_assignor import PartitionAssignor

from retryapp.ports import LaneBatch, LaneReceipt, TopicPartition
from retryapp.runtime.publisher import KafkaLane

PROTOCOL = "faust-at-least-once"


class PlainAssignor(PartitionAssignor):
    """Faust's assignor under the name of the mode without transactions."""

    @property
    def name(self) -> str:
        """Name of the group protocol."""
        return PROTOCOL


class PlainLane(KafkaLane):
    """`ports.LaneTransport` without transactions. See the module's text."""

    def _new_producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(enable_idempotence=True, **self._producer_options())

    async def commit(self, batch: LaneBatch) -> LaneReceipt:
        """See `ports.LaneTransport.commit`; the steps of the module's text."""
        producer = self._open_producer()
        sent_ms = self.clock.counted_ms()
        sent = await self._publish(producer, batch)
        self._anchor(sent_ms, sent)
        published = await sent.offsets()
        sent_ms = self.clock.counted_ms()
        logged = await self._log(producer, batch)
        self._anchor(sent_ms, logged)
        written = await logged.offsets()
        if batch.offsets:
            await self._commit_offsets(batch.offsets)
        return LaneReceipt(published, max(written, default=None))

    async def _commit_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        by_topic: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for tp, offset in offsets.items():
            by_topic[tp.topic].append((tp.partition, offset, ""))

        async def commit(client: AIOKafkaConsumer) -> set[type[BaseException]]:
            coordinator = client._coordinator
            await coordinator.ensure_coordinator_known()
            response: Any = await coordinator._send_req(
                OffsetCommitRequest(
                    coordinator.group_id,
                    self.generation,
                    self.member_id,
                    OffsetCommitRequest.DEFAULT_RETENTION_TIME,
                    list(by_topic.items()),
                )
            )
            return {for_code(code) for _, partitions in response.topics for _, code in partitions}

        for error in await self.consumer.in_thread(commit):
            self._check_membership(error)
