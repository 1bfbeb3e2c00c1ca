"""Wires a Faust app: topics, transport, agents, lanes, tables, the scheduler's life.

The life of a worker:

1. `prepare` (once, before anything is consumed): check the handlers, find or create topics, learn partition counts and
   ids;
2. the sensor starts first of all services: delivery pools, tail reader;
3. an assignment comes: one partition engine and one lane for each number of which this worker owns *all* the handler's
   topics; lanes open once the rebalance is over;
4. a revoke or SIGTERM comes: handlers get `drain` (`grace`) to finish, lanes commit what is done and close;
5. the sensor stops last of all services.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import faust
from faust.channels import Channel
from faust.sensors import Sensor
from mode.utils.logging import get_logger
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from retryapp.core.errors import (
    BrokerUnreachableError,
    DeliveryModeError,
    DuplicateHandlerError,
    InvalidSettingError,
    LaneClosedError,
    LaneError,
    UnreadableTopicError,
)
from retryapp.core.guarantees import DeliveryMode
from retryapp.core.lifecycle import PolicyUsed
from retryapp.core.metadata import MAX_METADATA_BYTES
from retryapp.core.record import Damage, Record, short_topic_id
from retryapp.engine.deliver import Station
from retryapp.engine.handler import Handler
from retryapp.engine.lane import Lane, LaneLimits, LaneState
from retryapp.engine.partition import DeliveryPool, PartitionEngine
from retryapp.engine.turn import Turn, to_event
from retryapp.kafka import KafkaAdmin, KafkaConnection, Plan, PlanOptions, ensure_topics, read_changelog
from retryapp.ports import Event, Observation, TopicPartition
from retryapp.runtime.clients import ClientSettings
from retryapp.runtime.clock import SystemClock
from retryapp.runtime.consumer import RetryConsumer, RetryTransport
from retryapp.runtime.intake import Intake
from retryapp.runtime.observers import CombinedObserver, FactsFormatter, LogObserver, MetricsObserver
from retryapp.runtime.plain import PROTOCOL, PlainAssignor, PlainLane
from retryapp.runtime.publisher import KafkaLane, LanePlace
from retryapp.runtime.security import admin_connection, client_options
from retryapp.runtime.store import StoreIdentity
from retryapp.runtime.tail import TailReader
from retryapp.runtime.unreadable import TOPICS, Unreadable, refuse_missing_codecs

logger = get_logger(__name__)

BATCH = 500
"""Records that one Faust event carries to an agent."""
_HALF_DAY_MS = 12 * 3600 * 1000
"""Half of `delete.retention.ms` of our changelogs: a store unused for longer may hold rows whose tombstones are gone.
"""
_REBALANCE_POLL_S = 0.01
_PROBE_S = 2.0
"""Longest wait for one answer while no broker is there."""
_PROBE_PAUSE_S = 1.0
"""Wait between two questions: a broker that hangs up on us answers none, and does so at once."""

SETTINGS: Mapping[str, tuple[Any, str]] = {
    "stream_wait_empty": (False, "Faust's wait has no bound; ours has"),
    "broker_commit_every": (10**9, "commits in the middle of fetching stall it"),
    "broker_commit_interval": (0.25, "fewer repeats after a crash"),
    "broker_session_timeout": (15.0, "seconds until a killed worker's partitions move"),
    "broker_request_timeout": (30.0, "a request to a dead broker must not take minutes"),
    "broker_rebalance_timeout": (30.0, "a rebalance must not wait minutes for a hanging worker"),
    "topic_disable_leader": (True, "the leader topic is not used"),
    "web_bind": ("127.0.0.1", "the pages have no login"),
    "web_tables_enabled": (False, "shows table contents without a login"),
    "web_router_enabled": (False, "not used"),
}
"""Faust settings that we change where the user has not decided: ours and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """What the user decides about the runtime."""

    grace_ms: int = 25_000
    """How long handlers may run on after SIGTERM."""
    drain_ms: int = 5_000
    """How long handlers may run on when a rebalance takes their partition."""
    start_timeout_ms: int = 60_000
    """How long a start waits for a broker."""
    delivery: DeliveryMode = DeliveryMode.EXACTLY_ONCE
    """Whether lanes use transactions."""
    plan: PlanOptions = field(default_factory=PlanOptions)
    admin_options: Mapping[str, str] = field(default_factory=dict)
    """librdkafka properties for the administration client, beside what the app's credentials say."""


@dataclass(slots=True)
class _Batch:
    """What one Faust event carries."""

    tp: TopicPartition
    session: int
    records: list[Record]


class IntakeChannel(Channel[Any]):
    """The in-memory channel that brings batches of one topic to its agent; `faust agents` lists it by that topic."""

    def __init__(self, app: faust.App, topic: str, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._topic = topic

    @property
    def queue(self) -> ThrowableQueue[Any]:
        """The agent's queue. Not managed by Faust's flow control, which clears queues at every resume."""
        if self._queue is None:
            self._queue = ThrowableQueue(maxsize=0, flow_control=FlowControlEvent(initially_suspended=False))
        return self._queue

    def get_topic_name(self) -> str:
        """Return the topic whose records come through here."""
        return self._topic

    def _clone_args(self) -> Mapping[str, Any]:
        return {**super()._clone_args(), "topic": self._topic}

    def put_now(self, batch: _Batch) -> bool:
        """Hand a batch to the agent; False while the agent is being restarted."""
        for subscriber in self._subscribers:
            subscriber.queue.put_nowait(batch)
        return bool(self._subscribers)


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
    task: asyncio.Task[None] | None = None


class RetrySensor(Sensor):
    """Starts before and stops after every other service of the app, and sees rebalances."""

    def __init__(self, runtime: Runtime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._runtime = runtime

    async def on_start(self) -> None:
        """Start the runtime."""
        await self._runtime.start()

    async def on_stop(self) -> None:
        """Stop the runtime."""
        await self._runtime.stop()

    def on_rebalance_start(self, app: Any) -> dict[str, float]:
        """Note when it began."""
        return {"started_s": self._runtime.clock.monotonic_s()}

    def on_rebalance_end(self, app: Any, state: dict[str, float]) -> None:
        """Tell how long it took."""
        self._runtime.consumer.rebalance_over(app.tables.recovery._generation_id)
        self._runtime.rebalanced(self._runtime.clock.monotonic_s() - state["started_s"])


class Runtime:
    """The retry protocol inside one Faust app. See the module's text."""

    def __init__(self, app: faust.App, options: RuntimeOptions) -> None:
        self.app = app
        self.options = options
        self.clock = SystemClock()
        self.random = random.SystemRandom()
        self.intake = Intake()
        self.served: dict[str, Served] = {}
        self.placed: dict[tuple[str, int], Placed] = {}
        self.assigned = False
        """Whether the group has said what belongs to this worker; may be nothing."""
        self.gauges: Callable[[], Mapping[str, Any]] = dict
        """Asked at each scrape of the metrics; the view sets it."""
        self.metrics = MetricsObserver(lambda: self.gauges())
        self.observer = CombinedObserver(LogObserver(), self.metrics)
        self.plan: Plan | None = None
        self._by_tp: dict[TopicPartition, Placed] = {}
        self._channels: dict[str, IntakeChannel] = {}
        self._handing: set[TopicPartition] = set()
        self._reader: TailReader | None = None
        self._clients: ClientSettings | None = None
        self._suspending = asyncio.Lock()
        self._sensor = RetrySensor(self)
        self.intake.on_records = self.pump
        self.intake.on_assigned = self._on_assigned
        self.intake.on_revoked = self._on_revoked
        self._change_settings()
        app._new_transport = self._new_transport  # type: ignore[method-assign]  # Faust's only way to give an app another transport
        app.on_configured.connect(cast("Any", self._on_configured))
        app.on_after_configured.connect(cast("Any", self._on_after_configured))
        app.on_before_shutdown.connect(cast("Any", self._on_before_shutdown))

    # -- declaring ----------------------------------------------------------------------------------------------

    def serve(self, handler: Handler) -> None:
        """Add a handler.

        Raises:
            DuplicateHandlerError: its main topic has one already.
        """
        known = self.served.get(handler.main)
        if known is not None:
            raise DuplicateHandlerError(handler.main, handler.group, known.handler.name, handler.name)
        self.served[handler.main] = Served(
            handler,
            DeliveryPool(handler.concurrency, f"deliver-{handler.main}"),
            DeliveryPool(handler.concurrency, f"redeliver-{handler.main}"),
        )
        self.intake.topics = self.intake.topics | frozenset(handler.topology.consumed)
        TOPICS.update(handler.topology.consumed)
        if self.app.configured:
            self._register_agents(handler)

    @property
    def connection(self) -> KafkaConnection:
        """Address and security for the administration client."""
        return admin_connection(self.app, self.options.admin_options)

    @property
    def consumer(self) -> RetryConsumer:
        """The app's consumer.

        Raises:
            RuntimeError: the app has not started it.
        """
        return cast("RetryConsumer", self.intake.flow)  # what `RetryTransport` made attaches itself

    def _new_transport(self) -> RetryTransport:
        return RetryTransport(self.app.conf.broker_consumer, self.app, intake=self.intake)

    def _on_configured(self, _app: Any, conf: Any, **_kwargs: Any) -> None:
        if str(conf.processing_guarantee.value) == "exactly_once":
            raise InvalidSettingError(
                "processing_guarantee",
                "exactly_once",
                "leave Faust's at at_least_once: hand-offs are exactly once by retryapp's own "
                "transactions, and Faust's lose records",
            )

    def _change_settings(self) -> None:
        """Change Faust's defaults where the user has not decided; said once in the log."""
        _, given = self.app._default_options
        options = cast("dict[str, Any]", given)
        changed = {name: (ours, why) for name, (ours, why) in SETTINGS.items() if name not in given}
        if self.options.delivery is DeliveryMode.AT_LEAST_ONCE:
            changed["PartitionAssignor"] = (PlainAssignor, "the two delivery modes must not meet in a group")
        options.update({name: ours for name, (ours, _) in changed.items()})
        self._changed = "; ".join(f"{name}={ours} ({why})" for name, (ours, why) in changed.items())

    def _on_after_configured(self, _app: Any, **_kwargs: Any) -> None:
        self.app.sensors.add(self._sensor)
        for served in self.served.values():
            self._register_agents(served.handler)

    def _register_agents(self, handler: Handler) -> None:
        """One supervised Faust agent per topic; each event carries a batch."""
        for topic in handler.topology.consumed:
            if topic in self._channels:
                continue
            channel = IntakeChannel(self.app, topic, maxsize=0)
            self._channels[topic] = channel
            self.app.agent(channel, name=f"retryapp.{topic}")(self._agent_body(topic))

    def _agent_body(self, topic: str) -> Any:
        async def take(stream: Any) -> None:
            async for batch in stream:
                self._accept(batch)

        take.__name__ = take.__qualname__ = f"take_{topic}"
        take.__doc__ = f"Takes records of {topic} for retryapp."
        return take

    # -- starting and stopping ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check handlers and topics, create what is missing; blocks. Safe to call twice.

        Raises:
            ConfigurationError: the program is wrong.
            EnvironmentFault: broker or topics are.
        """
        if self.plan is not None or not self.served:
            return
        self._refuse_second_readers()
        refuse_missing_codecs()
        topologies = [served.handler.topology for served in self.served.values()]
        admin = KafkaAdmin(self.connection)
        plan = self._plan_patiently(admin, topologies)
        for served in self.served.values():
            topology = served.handler.topology
            main = plan.states[topology.main]
            served.partitions = main.partitions
            served.topic_id = short_topic_id(main.topic_id)
            served.changelog_id = plan.states[topology.pending_changelog].topic_id
            served.dlq_id = plan.states[topology.dlq].topic_id
            # the smallest: a record goes through all of them, and an operator may have raised one
            served.max_bytes = min(int(plan.states[name].config["max.message.bytes"]) for name in topology.owned)
        self.plan = plan

    def _plan_patiently(self, admin: KafkaAdmin, topologies: list[Any]) -> Plan:
        deadline_s = self.clock.monotonic_s() + self.options.start_timeout_ms / 1000
        while True:
            try:
                self._wait_for_broker(deadline_s)
                self._refuse_stranding()
                self._refuse_other_mode()
                return ensure_topics(admin, topologies, self.options.plan)
            except BrokerUnreachableError as exc:
                left_s = deadline_s - self.clock.monotonic_s()
                if left_s <= 0:
                    raise
                logger.warning("Waiting for a broker, up to %.0f s more: %s", left_s, exc)
                time.sleep(min(_PROBE_PAUSE_S, left_s))  # `prepare` blocks: no event loop runs in this thread

    def _wait_for_broker(self, deadline_s: float) -> None:
        """Ask once, shortly: a request of the planning has a time-out of its own, which may be longer than is left."""
        left_s = deadline_s - self.clock.monotonic_s()
        KafkaAdmin(self.connection, timeout_s=max(0.5, min(_PROBE_S, left_s))).topic_names()

    def _refuse_second_readers(self) -> None:
        for agent in self.app.agents.values():
            channel = agent.channel  # not `_channel`: Faust makes that when it is first asked for
            for topic in channel.topics if isinstance(channel, faust.Topic) else ():
                if topic in self.intake.topics:
                    main = next((s.handler for s in self.served.values() if topic in s.handler.topology.consumed), None)
                    name = main.name if main else "retryapp"
                    raise DuplicateHandlerError(
                        topic, self.app.conf.id, f"the handler {name}", f"the agent {agent.name}"
                    )

    def _refuse_stranding(self) -> None:
        """Refuse Faust's `version=` while records of an older version wait: it renames the group, so all our topics.

        Raises:
            InvalidSettingError: names the records that would be left behind.
        """
        conf = self.app.conf
        name = conf.id.removesuffix(f"-v{conf.version}")
        admin = KafkaAdmin(self.connection)
        for version in range(1, conf.version):
            group = name if version == 1 else f"{name}-v{version}"
            for served in self.served.values():
                changelog = replace(served.handler.topology, group=group).pending_changelog
                if changelog not in admin.describe_topics([changelog]):
                    continue
                waiting = len(read_changelog(self.connection, changelog))
                if waiting:
                    raise InvalidSettingError(
                        "version",
                        conf.version,
                        f"{waiting} records of version {version} still wait in {changelog}, and this version would "
                        f"never see them: run version {version} until nothing waits",
                    )

    def _refuse_other_mode(self) -> None:
        """Refuse to join workers of the other delivery mode; the broker would refuse too, without saying why.

        Raises:
            DeliveryModeError: some of them run.
        """
        running = KafkaAdmin(self.connection).group_protocol(self.app.conf.id)
        plain = self.options.delivery is DeliveryMode.AT_LEAST_ONCE
        if running is not None and (running == PROTOCOL) is not plain:
            raise DeliveryModeError(self.app.conf.id, self.options.delivery.value)

    async def start(self) -> None:
        """Start pools and the shared reader; called by the sensor."""
        if not self.served:
            return
        await asyncio.to_thread(self.prepare)
        for handler in logging.getLogger().handlers:
            if not isinstance(handler.formatter, FactsFormatter):
                handler.setFormatter(FactsFormatter(handler.formatter))
        logger.info("Faust settings changed by retryapp: %s", self._changed)
        conf = self.app.conf
        largest = max(served.max_bytes for served in self.served.values())
        self._clients = ClientSettings(
            connection=client_options(self.app),
            client_id=conf.broker_client_id,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            max_batch_size=min(262_144, *(served.max_bytes for served in self.served.values())),
            max_request_size=largest + MAX_METADATA_BYTES,
        )
        self._reader = TailReader(self._clients)
        for served in self.served.values():
            served.first.start()
            served.again.start()

    async def stop(self) -> None:
        """Stop what `start` started."""
        await self.suspend(0.0)
        for served in self.served.values():
            await served.first.stop()
            await served.again.stop()
        if self._reader is not None:
            await self._reader.stop()

    async def _on_before_shutdown(self, _app: Any, **_kwargs: Any) -> None:
        await self.suspend(self.options.grace_ms / 1000)

    # -- ownership ----------------------------------------------------------------------------------------------

    async def _on_assigned(self, generation: int, member_id: str, actives: set[TopicPartition]) -> None:
        for served in self.served.values():
            consumed = set(served.handler.topology.consumed)
            numbers = {tp.partition for tp in actives if tp.topic in consumed}
            for partition in sorted(numbers):
                wanted = {TopicPartition(topic, partition) for topic in served.handler.topology.consumed}
                mine = wanted & actives
                if mine == wanted:
                    self._place(served, partition, generation, member_id)
                elif mine:
                    missing = ", ".join(sorted(tp.topic for tp in wanted - mine))
                    self.observer.observe(
                        Observation(
                            event=Event.LANE_INCOMPLETE,
                            handler=served.handler.main,
                            partition=partition,
                            message=(
                                f"stays paused: another worker has this number of {missing}"
                                if partition < served.partitions
                                else f"stays paused: the main topic has grown; add partitions to {missing} and restart"
                            ),
                        )
                    )
        self.assigned = True

    def _place(self, served: Served, partition: int, generation: int, member_id: str) -> None:
        handler = served.handler
        if self._clients is None or self._reader is None:
            raise RuntimeError("an assignment came before the runtime was started")
        station = Station(
            handler=handler, clock=self.clock, random=self.random, topic_id=served.topic_id, max_bytes=served.max_bytes
        )
        engine = PartitionEngine(
            station=station, partition=partition, first=served.first, again=served.again, source=_Pump(self)
        )
        lane_type = KafkaLane if self.options.delivery is DeliveryMode.EXACTLY_ONCE else PlainLane
        transport = lane_type(
            place=self._lane_place(served, partition, engine),
            settings=self._clients,
            consumer=self.consumer,
            reader=self._reader,
            clock=self.clock,
            generation=generation,
            member_id=member_id,
        )
        limits = LaneLimits(tick_s=max(0.25, sum(s.partitions for s in self.served.values()) / 64))
        key = (handler.main, partition)

        def begin(session: int, starts: Mapping[TopicPartition, int]) -> None:
            if transport.pending is None:
                raise RuntimeError(f"lane {transport.place.name} opened without its table")
            engine.begin(session, starts, transport.pending)
            for tp in engine.sources:
                self._handing.discard(tp)
            self._note_policy(served, partition, engine, session)

        def room() -> None:
            engine.on_room()
            for tp in engine.sources:
                self.pump(tp)

        lane = Lane(
            name=transport.place.name,
            handler=handler.main,
            partition=partition,
            transport=transport,
            clock=self.clock,
            observer=self.observer,
            on_open=begin,
            on_close=engine.end,
            on_room=room,
            limits=limits,
        )
        engine.lane = lane
        placed = Placed(engine, lane, transport)
        self.placed[key] = placed
        for tp in engine.sources:
            self._by_tp[tp] = placed
        placed.task = asyncio.create_task(self._run_lane(lane), name=f"lane-{lane.name}")
        placed.task.add_done_callback(lambda task: _end_if_broken(lane, task))

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

    def _note_policy(self, served: Served, partition: int, engine: PartitionEngine, session: int) -> None:
        """Write the policy's text down once per start of a lane: headers carry its digest only."""
        handler = served.handler
        event = PolicyUsed(
            group=handler.group,
            handler=handler.name,
            main=handler.main,
            text=handler.policy.text,
            digest=handler.policy.digest,
            at_ms=self.clock.wall_ms(),
        )
        try:
            engine.lane.submit(
                session, Turn(publishes=(to_event(event, topology=handler.topology, partition=partition),))
            )
        except LaneClosedError:
            logger.debug("Lane %s closed before its policy was noted", engine.lane.name)

    async def _run_lane(self, lane: Lane) -> None:
        while not self.consumer.settled:  # noqa: ASYNC110 - Faust has no signal after which positions are really settled
            await asyncio.sleep(_REBALANCE_POLL_S)
        await lane.run()
        if lane.state is LaneState.IDLE:
            await self._await_assignment(lane)

    async def _await_assignment(self, lane: Lane) -> None:
        """Wait for the next assignment, which cancels this task; end the process when none comes."""
        conf = self.app.conf
        patience_s = conf.broker_session_timeout + conf.broker_rebalance_timeout + _IDLE_S
        await asyncio.sleep(patience_s)
        _end_process(
            f"Lane {lane.name} lost its membership ({lane.last_error}) and no assignment came in {patience_s:.0f} s"
        )

    async def _on_revoked(self) -> None:
        self.assigned = False
        await self.suspend(self.options.drain_ms / 1000)

    async def suspend(self, deadline_s: float) -> None:
        """Let handlers finish, commit what is done, close every lane. Bounded by the deadline and a few seconds.

        Args:
            deadline_s: how long running handlers may go on.
        """
        async with self._suspending:
            placed = list(self.placed.values())
            if not placed:
                return
            await asyncio.gather(*(each.engine.drain(deadline_s) for each in placed))
            tasks = []
            for each in placed:
                each.lane.finish()
                if each.task is not None:
                    tasks.append(each.task)
                    if each.lane.state is not LaneState.OPEN:  # opening, or waiting to: it has nothing to commit
                        each.task.cancel()
            finish_s = min(_FINISH_S, max(_LEAST_FINISH_S, deadline_s))
            _, late = await asyncio.wait(tasks, timeout=finish_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=finish_s)
            for each in placed:
                each.engine.end()
            self.placed.clear()
            self._by_tp.clear()
            self._handing.clear()

    # -- records ------------------------------------------------------------------------------------------------

    def pump(self, tp: TopicPartition) -> None:
        """Hand records of a partition to its agent, as many as the engine has room for."""
        placed = self._by_tp.get(tp)
        if placed is None or tp in self._handing or not self.intake.waiting(tp):
            return
        room = placed.engine.room(tp)
        if room <= 0:
            return
        found = self.intake.take(tp, min(room, BATCH), placed.engine.room_bytes(tp))
        for each in found:
            if isinstance(each, Unreadable) and each.stuck:
                placed.lane.fail(UnreadableTopicError(tp.topic, tp.partition, each.offset, each.problem))
                return
        records = [_record(each) for each in found]
        batch = _Batch(tp, placed.lane.session, records)
        self._handing.add(tp)
        if not self._channels[tp.topic].put_now(batch):  # the agent is being restarted: nothing may be skipped
            self._handing.discard(tp)
            placed.lane.fail(RuntimeError(f"the agent of {tp.topic} is not running"))

    def _accept(self, batch: _Batch) -> None:
        self._handing.discard(batch.tp)
        placed = self._by_tp.get(batch.tp)
        if placed is None:
            return
        try:
            placed.engine.accept(batch.tp, batch.session, batch.records)
        except Exception as exc:  # the edge of an agent: a crash would skip the batch; the lane reads it again instead
            logger.exception("Records of %s could not be taken in", batch.tp)
            placed.lane.fail(exc)
            return
        self.pump(batch.tp)

    def rebalanced(self, duration_s: float) -> None:
        """Tell observers of a rebalance."""
        for main in self.served:
            self.observer.observe(
                Observation(event=Event.REBALANCED, handler=main, duration_ms=round(duration_s * 1000))
            )


_FINISH_S = 5.0
"""Longest wait for the last transactions; a short grace shortens it: without a broker they never end."""
_LEAST_FINISH_S = 0.5
_IDLE_S = 30.0


def _end_if_broken(lane: Lane, task: asyncio.Task[None]) -> None:
    """A lane whose task has died would hold its partition and do nothing, in silence."""
    if not task.cancelled() and (exc := task.exception()) is not None:
        logger.error("Lane %s ended with an error", lane.name, exc_info=exc)
        _end_process(f"Lane {lane.name} ended with an error that it could not handle ({exc!r})")


def _end_process(why: str) -> None:
    logger.critical("%s: this process ends with exit code %s and has to be started again", why, LaneError.exit_code)
    logging.shutdown()
    os._exit(LaneError.exit_code)


@dataclass(frozen=True, slots=True)
class _Pump:
    """`ports.Source` on the runtime."""

    runtime: Runtime

    def wanted(self, tp: TopicPartition) -> None:
        """See `ports.Source.wanted`."""
        self.runtime.pump(tp)


def _record(found: Any) -> Record:
    if isinstance(found, Unreadable):  # empty, not null: null would be a tombstone for whoever copies the dead letter
        damage = Damage(found.last_offset, found.problem)
        return Record(found.topic, found.partition, found.offset, found.timestamp, None, b"", (), damage)
    return Record(
        found.topic, found.partition, found.offset, found.timestamp, found.key, found.value, tuple(found.headers)
    )


def owners(app: faust.App, topic: str) -> Mapping[int, str]:
    """Return the page address of the worker that has each partition of a topic."""
    out: dict[int, str] = defaultdict(str)
    for url, topics in cast("Any", app.assignor).external_topics_metadata().items():
        for partition in topics.get(topic, ()):
            out[int(partition)] = str(url)
    return out
