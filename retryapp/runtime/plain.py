"""The same lane without transactions (DESIGN section 4, rule 18); the order of its steps is in `engine.transport`.

The two modes must never meet in one group, where one's late commit would move offsets past the other's open
transaction. So they join it under different protocol names, and the broker itself refuses the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import for_code
from aiokafka.protocol.commit import OffsetCommitRequest
from faust.assignor.partition_assignor import PartitionAssignor

from retryapp.ports import Committed, Standing, TopicPartition
from retryapp.runtime.publisher import KafkaLane, standing_of

PROTOCOL = "faust-at-least-once"


class PlainAssignor(PartitionAssignor):
    """Faust's assignor under the name of the mode without transactions."""

    @property
    def name(self) -> str:
        """Name of the group protocol."""
        return PROTOCOL


class PlainLane(KafkaLane):
    """`KafkaLane` without transactions."""

    transactional: ClassVar[bool] = False

    def _new_producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(enable_idempotence=True, **self._producer_options())

    async def move_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> Standing:
        """See `LaneProtocol.move_offsets`."""
        by_topic: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for tp, each in offsets.items():
            by_topic[tp.topic].append((tp.partition, each.offset, each.note))

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

        answers = {standing_of(error) for error in await self.consumer.in_thread(commit)}
        return next((each for each in (Standing.GONE, Standing.REBALANCING) if each in answers), Standing.MEMBER)
