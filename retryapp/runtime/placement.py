"""What a lane of this worker needs of Faust, Kafka and the disk, and how the process ends that cannot go on."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faust
from mode.utils.logging import get_logger

from retryapp.core.errors import LaneError
from retryapp.engine.partition import PartitionEngine
from retryapp.engine.placement import Membership, Served
from retryapp.ports import Clock, TopicPartition
from retryapp.runtime.clients import ClientSettings
from retryapp.runtime.consumer import RetryConsumer
from retryapp.runtime.publisher import KafkaTransport, LanePlace
from retryapp.runtime.store import StoreIdentity
from retryapp.runtime.tail import TailReader

logger = get_logger(__name__)

_HALF_DAY_MS = 12 * 3600 * 1000
"""Half of `delete.retention.ms` of our changelogs: a store unused for longer may hold rows whose tombstones are gone.
"""
_IDLE_S = 30.0
"""How much longer than a rebalance may take an idle lane waits for its next assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMaker:
    """Makes the transports of lanes on Kafka and RocksDB."""

    app: faust.App
    settings: ClientSettings
    reader: TailReader
    clock: Clock
    consumer: Callable[[], RetryConsumer]

    def __call__(self, served: Served, engine: PartitionEngine, membership: Membership) -> KafkaTransport:
        """See `engine.placement.MakeTransport`."""
        return KafkaTransport(
            place=self._place(served, engine),
            settings=self.settings,
            consumer=self.consumer(),
            reader=self.reader,
            clock=self.clock,
            generation=membership.generation,
            member_id=membership.member_id,
            life=engine.station.life,
        )

    def _place(self, served: Served, engine: PartitionEngine) -> LanePlace:
        topology, partition = served.handler.topology, engine.partition
        return LanePlace(
            name=f"{topology.prefix}.{partition}",
            group=self.app.conf.id,
            partition=partition,
            sources=engine.sources,
            main=TopicPartition(topology.main, partition),
            changelog=TopicPartition(topology.pending_changelog, partition),
            dlq=TopicPartition(topology.dlq, partition),
            events=TopicPartition(topology.events, partition),
            delivering=engine.delivering,
            topic_id=served.topic_id,
            changelog_id=served.changelog_id,
            pending_identity=StoreIdentity(
                topic=topology.pending_changelog, topic_id=served.changelog_id, partition=partition
            ),
            dead_identity=StoreIdentity(topic=topology.dlq, topic_id=served.dlq_id, partition=partition),
            seen=TopicPartition(topology.seen_changelog, partition) if served.handler.deduplicate else None,
            seen_identity=StoreIdentity(topic=topology.seen_changelog, topic_id=served.seen_id, partition=partition),
            store_dir=Path(self.app.conf.datadir) / "retryapp" / topology.prefix,
            max_store_age_ms=_HALF_DAY_MS,
            start_at_end=self.app.conf.consumer_auto_offset_reset == "latest",
        )


def patience_s(app: faust.App) -> float:
    """Return how long a lane that idles waits for its next assignment."""
    return float(app.conf.broker_session_timeout + app.conf.broker_rebalance_timeout + _IDLE_S)


def end_process(why: str) -> None:
    """End this process with the exit code that asks for a new start."""
    logger.critical("%s: this process ends with exit code %s and has to be started again", why, LaneError.exit_code)
    logging.shutdown()
    os._exit(LaneError.exit_code)


def owners(app: faust.App, topic: str) -> Mapping[int, str]:
    """Return the page address of the worker that has each partition of a topic."""
    out: dict[int, str] = defaultdict(str)
    for url, topics in cast("Any", app.assignor).external_topics_metadata().items():
        for partition in topics.get(topic, ()):
            out[int(partition)] = str(url)
    return out
