"""A handler's partition on this worker: its engine, its lane, and the watch over the lane's task.

A lane's task waits for the end of the rebalance, then runs the lane. A lane without a task, or one that idles although
no assignment comes, would hold its partition and do nothing, in silence: then the whole process ends, with the exit
code that asks for a new start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faust
from mode.utils.logging import get_logger

from retryapp.core.errors import LaneClosedError, LaneError
from retryapp.core.guarantees import DeliveryMode
from retryapp.core.lifecycle import PolicyUsed
from retryapp.engine.handler import Handler
from retryapp.engine.lane import Lane, LaneLimits, LaneState
from retryapp.engine.partition import PartitionEngine
from retryapp.engine.pool import DeliveryPool
from retryapp.engine.run import Station
from retryapp.engine.turn import Turn, to_event
from retryapp.ports import Clock, Observer, Random, TopicPartition
from retryapp.runtime.clients import ClientSettings
from retryapp.runtime.consumer import RetryConsumer
from retryapp.runtime.plain import PlainLane
from retryapp.runtime.publisher import KafkaLane, LanePlace
from retryapp.runtime.store import StoreIdentity
from retryapp.runtime.tail import TailReader

logger = get_logger(__name__)

_HALF_DAY_MS = 12 * 3600 * 1000
"""Half of `delete.retention.ms` of our changelogs: a store unused for longer may hold rows whose tombstones are gone.
"""
_REBALANCE_POLL_S = 0.01
_UNSETTLED_S = 60.0
"""A lane that has waited so long for the end of a rebalance says so, and again after as long."""
_IDLE_S = 30.0
"""How much longer than a rebalance may take an idle lane waits for its next assignment."""


@dataclass(slots=True)
class Served:
    """A handler at run time."""

    handler: Handler
    first: DeliveryPool
    again: DeliveryPool
    partitions: int = 0
    topic_id: str = ""
    max_bytes: int = 0
    changelog_id: str = ""
    dlq_id: str = ""


@dataclass(slots=True)
class Placed:
    """A partition of a handler on this worker."""

    engine: PartitionEngine
    lane: Lane
    transport: KafkaLane
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What an assignment makes of this worker: lanes prove it before they touch anything."""

    consumer: RetryConsumer
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placer:
    """Places partitions: makes engine and lane of one, and starts the lane's task. Holds what all lanes share."""

    app: faust.App
    delivery: DeliveryMode
    settings: ClientSettings
    reader: TailReader
    clock: Clock
    random: Random
    observer: Observer
    tick_s: float
    """Longest wait of an offset that comes with nothing else; the more lanes, the longer."""
    pump: Callable[[TopicPartition], None]
    """Called when an engine has room for records of a partition."""
    forget: Callable[[TopicPartition], None]
    """Called when a lane has opened: batches that were on their way to its engine are of an older session."""

    def place(self, served: Served, partition: int, membership: Membership) -> Placed:
        """Make what a partition needs, and start it.

        Args:
            served: its handler.
            partition: its number.
            membership: that of the assignment which gave it to us.
        """
        engine = PartitionEngine(
            station=Station(
                handler=served.handler,
                clock=self.clock,
                random=self.random,
                topic_id=served.topic_id,
                max_bytes=served.max_bytes,
            ),
            partition=partition,
            first=served.first,
            again=served.again,
            source=_Pump(self.pump),
        )
        lane_type = KafkaLane if self.delivery is DeliveryMode.EXACTLY_ONCE else PlainLane
        transport = lane_type(
            place=self._lane_place(served, partition, engine),
            settings=self.settings,
            consumer=membership.consumer,
            reader=self.reader,
            clock=self.clock,
            generation=membership.generation,
            member_id=membership.member_id,
        )
        lane = engine.lane = self._lane(served.handler, engine, transport)
        task = asyncio.create_task(self._run(lane, membership.consumer), name=f"lane-{lane.name}")
        task.add_done_callback(lambda task: _end_if_broken(lane, task))
        return Placed(engine, lane, transport, task)

    def _lane(self, handler: Handler, engine: PartitionEngine, transport: KafkaLane) -> Lane:
        def begin(session: int, starts: Mapping[TopicPartition, int]) -> None:
            if transport.pending is None:
                raise RuntimeError(f"lane {transport.place.name} opened without its table")
            engine.begin(session, starts, transport.pending)
            for tp in engine.sources:
                self.forget(tp)
            self._note_policy(handler, transport.place.partition, engine, session)

        def room() -> None:
            engine.on_room()
            for tp in engine.sources:
                self.pump(tp)

        return Lane(
            name=transport.place.name,
            handler=handler.main,
            partition=transport.place.partition,
            transport=transport,
            clock=self.clock,
            observer=self.observer,
            on_open=begin,
            on_close=engine.end,
            on_room=room,
            limits=LaneLimits(tick_s=self.tick_s),
        )

    def _lane_place(self, served: Served, partition: int, engine: PartitionEngine) -> LanePlace:
        topology = served.handler.topology
        return LanePlace(
            name=f"{topology.prefix}.{partition}",
            group=self.app.conf.id,
            partition=partition,
            sources=engine.sources,
            main=TopicPartition(topology.main, partition),
            changelog=TopicPartition(topology.pending_changelog, partition),
            dlq=TopicPartition(topology.dlq, partition),
            pending_identity=StoreIdentity(
                topic=topology.pending_changelog, topic_id=served.changelog_id, partition=partition
            ),
            dead_identity=StoreIdentity(topic=topology.dlq, topic_id=served.dlq_id, partition=partition),
            store_dir=Path(self.app.conf.datadir) / "retryapp" / topology.prefix,
            max_store_age_ms=_HALF_DAY_MS,
            start_at_end=self.app.conf.consumer_auto_offset_reset == "latest",
        )

    def _note_policy(self, handler: Handler, partition: int, engine: PartitionEngine, session: int) -> None:
        """Write the policy's text down once per start of a lane: headers carry its digest only."""
        event = PolicyUsed(
            group=handler.group,
            handler=handler.name,
            main=handler.main,
            text=handler.policy.text,
            digest=handler.policy.digest,
            at_ms=self.clock.wall_ms(),
        )
        noted = to_event(event, topology=handler.topology, partition=partition)
        try:
            engine.lane.submit(session, Turn(publishes=(noted,)))
        except LaneClosedError:
            logger.debug("Lane %s closed before its policy was noted", engine.lane.name)

    async def _run(self, lane: Lane, consumer: RetryConsumer) -> None:
        await self._settled(lane, consumer)
        await lane.run()
        if lane.state is LaneState.IDLE:
            conf = self.app.conf
            await _await_assignment(lane, conf.broker_session_timeout + conf.broker_rebalance_timeout + _IDLE_S)

    async def _settled(self, lane: Lane, consumer: RetryConsumer) -> None:
        began_s = told_s = self.clock.monotonic_s()
        while not consumer.settled:  # Faust has no signal after which positions are really settled
            await asyncio.sleep(_REBALANCE_POLL_S)
            now_s = self.clock.monotonic_s()
            if now_s - told_s > _UNSETTLED_S:
                told_s = now_s
                logger.warning(
                    "Lane %s still waits for the end of the rebalance, after %.0f s", lane.name, now_s - began_s
                )


@dataclass(frozen=True, slots=True)
class _Pump:
    """`ports.Source` on the runtime."""

    pump: Callable[[TopicPartition], None]

    def wanted(self, tp: TopicPartition) -> None:
        """See `ports.Source.wanted`."""
        self.pump(tp)


async def _await_assignment(lane: Lane, patience_s: float) -> None:
    """Wait for the next assignment, which cancels this task; end the process when none comes."""
    await asyncio.sleep(patience_s)
    _end_process(
        f"Lane {lane.name} lost its membership ({lane.last_error}) and no assignment came in {patience_s:.0f} s"
    )


def _end_if_broken(lane: Lane, task: asyncio.Task[None]) -> None:
    """End the process when a lane's task has died."""
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger.error("Lane %s ended with an error", lane.name, exc_info=exc)
        _end_process(f"Lane {lane.name} ended with an error that it could not handle ({exc!r})")


def _end_process(why: str) -> None:
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
