"""Place a handler's partition on this worker: its engine, its lane and the lane's task.

The task waits for the end of the rebalance, then runs the lane. A dead task, or a lane that idles although no
assignment comes, would silently block its partition, so the process exits with the restart code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.lifecycle import PolicyUsed
from retryapp.engine.delivery.alone import AloneLock
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.handler.handler import Handler, Order
from retryapp.engine.lane.lane import Lane, LaneState
from retryapp.engine.lane.limits import LaneLimits
from retryapp.engine.lane.shared_letters import SharedLetters
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn, to_event
from retryapp.engine.partition.given_up import GivenUp
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.partition.session import PROGRESS_MS, Delivered
from retryapp.ports import Clock, Observer, Random, TopicPartition

logger = logging.getLogger(__name__)

_REBALANCE_POLL_S = 0.01
_UNSETTLED_S = 60.0
"""Interval of warnings while a lane waits for the end of a rebalance."""


@dataclass(slots=True)
class Served:
    """A handler at run time."""

    handler: Handler
    first: DeliveryPool
    again: DeliveryPool
    partitions: int = 0
    """Partitions of the main topic, which may grow."""
    known: int = 0
    """The same when this worker started: a later one is read from its beginning."""
    complete: int = 0
    """Partitions that all topics of the handler have."""
    topic_id: str = ""
    max_bytes: int = 0
    kept_ms: int | None = None
    """How long the main topic keeps a record at least; None: no limit."""
    deletes_after_ms: int | None = None
    """After how long it deletes one, unread or not; None: never by time."""
    changelog_id: str = ""
    control_id: str = ""
    dlq_ids: Mapping[str, str] = field(default_factory=dict)
    """Ids of the dead-letter topics, by name."""
    seen_id: str = ""
    given_up: dict[int, GivenUp] = field(default_factory=dict)
    """Runs that go on, by partition: some of an assignment that has ended."""

    @property
    def lacking(self) -> range:
        """Partitions of the main topic that one of our topics lacks: nothing reads them."""
        return range(self.complete, self.partitions)


@dataclass(slots=True)
class Placed:
    """A partition of a handler on this worker."""

    engine: PartitionEngine
    lane: Lane
    transport: LaneProtocol
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This worker's place in the group, which lanes prove before they touch anything."""

    generation: int
    member_id: str


MakeTransport = Callable[[Served, PartitionEngine, Membership], LaneProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placer:
    """Makes engine and lane of a partition, and starts the lane's task. Holds what all lanes share."""

    make_transport: MakeTransport
    settled: Callable[[], bool]
    """Whether the rebalance of the last assignment is over."""
    lapsed: Callable[[], bool]
    """Whether the coordinator was silent so long that it may have reassigned our partitions."""
    end_process: Callable[[str], None]
    """Ends the process with a reason; it must be started again."""
    patience_s: float
    """How long an idle lane waits for its next assignment."""
    clock: Clock
    random: Random
    observer: Observer
    tick_s: float
    """`LaneLimits.tick_s`; the more lanes, the longer."""
    life: str
    worker: str = ""
    """Name of this worker for people."""
    progress_ms: int = PROGRESS_MS
    alone: AloneLock = field(default_factory=AloneLock)
    emit: Callable[[TopicPartition, int, list[Delivered]], None]
    """Hands due rows to their agent."""
    pump: Callable[[TopicPartition], None]
    """Called when an engine has room for records of a partition."""
    forget: Callable[[TopicPartition], None]
    """Called when a lane has opened: batches in transit are of an older session."""

    def place(
        self, served: Served, partition: int, membership: Membership, shared: Mapping[str, SharedLetters]
    ) -> Placed:
        """Make what a partition needs, and start it; `shared`: of its dead-letter topics, or of its main topic."""
        pace = Pace.of(served.handler, partition, clock=self.clock, random=self.random, shares=served.partitions)
        engine = PartitionEngine(
            context=DeliveryContext(
                handler=served.handler,
                clock=self.clock,
                random=self.random,
                topic_id=served.topic_id,
                max_bytes=served.max_bytes,
                kept_ms=served.kept_ms,
                life=self.life,
                worker=self.worker,
                pace=pace,
                alone=self.alone,
                rounds=served.again.rounds,
                lapsed=self.lapsed,
                letters=shared.get(served.handler.main),
            ),
            partition=partition,
            first=served.first,
            again=served.again,
            wanted=self.pump,
            emit=self.emit,
            given_up=served.given_up.setdefault(partition, GivenUp()),
            progress_ms=self.progress_ms,
        )
        transport = self.make_transport(served, engine, membership)
        transport.rounds = served.again.rounds
        transport.letters = shared.get(served.handler.main)
        transport.shared = {topic: each for topic, each in shared.items() if topic != served.handler.main}
        lane = engine.lane = self._lane(served.handler, engine, transport)
        task = asyncio.create_task(self._run(lane), name=f"lane-{lane.name}")
        task.add_done_callback(lambda task: self._end_if_broken(lane, task))
        return Placed(engine, lane, transport, task)

    def _lane(self, handler: Handler, engine: PartitionEngine, transport: LaneProtocol) -> Lane:
        def begin(session: int, starts: Mapping[TopicPartition, int]) -> None:
            engine.begin(session, starts, transport)
            for tp in engine.sources:
                self.forget(tp)
            self._note_policy(handler, transport.place.partition, engine, session)

        return Lane(
            name=transport.place.name,
            handler=handler.main,
            partition=transport.place.partition,
            transport=transport,
            clock=self.clock,
            observer=self.observer,
            on_open=begin,
            on_close=engine.end,
            on_applied=engine.settled,
            limits=LaneLimits(tick_s=self.tick_s),
            ordered=handler.order is not Order.NONE,
        )

    def _note_policy(self, handler: Handler, partition: int, engine: PartitionEngine, session: int) -> None:
        """Publish the policy's text once per start of a lane: headers carry its digest only."""
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

    async def _run(self, lane: Lane) -> None:
        await self._wait_settled(lane)
        await lane.run()
        if lane.state is LaneState.IDLE:
            await asyncio.sleep(self.patience_s)  # the next assignment cancels this task
            self.end_process(
                f"Lane {lane.name} lost its membership ({lane.last_error}) and no assignment came in "
                f"{self.patience_s:.0f} s"
            )

    async def _wait_settled(self, lane: Lane) -> None:
        began_s = told_s = self.clock.monotonic_s()
        while not self.settled():  # Faust has no signal after which positions are really settled
            await asyncio.sleep(_REBALANCE_POLL_S)
            now_s = self.clock.monotonic_s()
            if now_s - told_s > _UNSETTLED_S:
                told_s = now_s
                logger.warning(
                    "Lane %s still waits for the end of the rebalance, after %.0f s", lane.name, now_s - began_s
                )

    def _end_if_broken(self, lane: Lane, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.error("Lane %s ended with an error", lane.name, exc_info=exc)
            self.end_process(f"Lane {lane.name} ended with an error that it could not handle ({exc!r})")
