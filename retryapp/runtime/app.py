"""Wires a Faust app: topics, transport, agents, lanes, tables.

The sensor starts first and stops last of all services. Lanes open once a rebalance is over
(`engine.worker.ownership`); after a revoke or SIGTERM handlers get `drain` (`grace`) to finish, and others go on for
half of that at most; then lanes commit what is done and close.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka.errors import KafkaError
from faust.sensors import Sensor
from mode.utils.logging import get_logger
from mode.utils.times import want_seconds
from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

from retryapp.core.durations import format_duration_ms
from retryapp.core.errors import DuplicateHandlerError, InvalidSettingError
from retryapp.core.lane_errors import LaneError
from retryapp.core.metadata import MAX_METADATA_BYTES
from retryapp.engine.delivery.batches import make_pools
from retryapp.engine.handler.handler import Handler
from retryapp.engine.handler.orphans import HUNG_S
from retryapp.engine.lane.rounds import Rounds
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker.ownership import Ownership
from retryapp.engine.worker.placement import Membership, Placer, Served
from retryapp.kafka import KafkaConnection, Plan
from retryapp.ports import Event, Observation, TopicPartition
from retryapp.runtime.clients.destinations import KafkaDestinations
from retryapp.runtime.clients.lifecycle import COMPRESSION, ClientSettings
from retryapp.runtime.clients.security import addresses, admin_connection, client_options, prove_login
from retryapp.runtime.clients.tail import TailReader
from retryapp.runtime.clients.unreadable import TOPICS
from retryapp.runtime.faust.agents import register_agent
from retryapp.runtime.faust.consumer import RetryConsumer, RetryTransport
from retryapp.runtime.machine.clock import SystemClock
from retryapp.runtime.machine.heap import find_trim, give_back_memory
from retryapp.runtime.machine.held_loop import HeldLoop
from retryapp.runtime.observe import repeats
from retryapp.runtime.observe.contact import Contact
from retryapp.runtime.observe.metrics import MetricsObserver
from retryapp.runtime.observe.observers import CombinedObserver, FactsFormatter, LogObserver
from retryapp.runtime.observe.recent import Recent
from retryapp.runtime.options import HEARTBEAT_S, HEARTBEATS, SETTINGS, RuntimeOptions
from retryapp.runtime.preparation import prepare
from retryapp.runtime.transport import KafkaTransport, lane_place

logger = get_logger(__name__)

_CATCH_UP_S = 10.0  # how often offsets are set past transaction markers that no record follows
_OTHERS_S = 30.0  # how often it is looked whether main topics are still the same
_GROWTH_S = 5.0  # how often our topics are counted while they have fewer partitions than a main topic
# how often the control topics are looked at; an idle worker takes 0.97 s of CPU a minute with it, 0.82 s with 0.5 and
# 0.71 s without (4 partitions; with 64: 2.03, 1.69 and 1.43 s)
_COMMANDS_S = 0.2
# of one batch of a lane: the client sends those of a partition one after the other. A transaction of 250 copies and
# 250 rows of 1.7 KB each takes 54, 39, 31 and 26 us of CPU a record and 85, 66, 49 and 40 ms with 64 KiB, 128 KiB,
# 256 KiB and 1 MiB (in turn, 40 of each, busy machine); topics take no more than that by default
_BATCH_BYTES = 1_048_576
_ASK_TIME_S = 1.0  # how often a clock in doubt asks for the broker's time

_LOGIN_S = 2.0  # how long one address may take to answer a login that is tried while brokers are silent
_IDLE_S = 30.0  # how much longer than a session and a rebalance an idle lane waits for its next assignment


def end_process(why: str) -> None:
    """End this process with the exit code that asks for a restart."""
    logger.critical("%s: this process ends with exit code %s; restart it", why, LaneError.exit_code)
    logging.shutdown()
    os._exit(LaneError.exit_code)


def end_if_broken(task: asyncio.Task[None]) -> None:
    """End this process if a task that partitions depend on has an error: they would stand still, silently."""
    if (fault := tell_if_broken(task)) is not None:
        end_process(f"Task {task.get_name()} ended with an error that it could not handle ({fault!r})")


def tell_if_broken(task: asyncio.Task[None]) -> BaseException | None:
    """Log and return the error that ended a task. asyncio logs it only when the task is dropped."""
    fault = None if task.cancelled() else task.exception()
    if fault is not None:
        logger.error("Task %s ended with an error", task.get_name(), exc_info=fault)
    return fault


class RetrySensor(Sensor):
    """Starts before and stops after every other service, and times rebalances.

    Faust may not report the end of one that began while another ended.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    @override
    async def on_start(self) -> None:
        await self._runtime.start()

    @override
    async def on_stop(self) -> None:
        await self._runtime.stop()

    @override
    def on_rebalance_start(self, app: Any) -> dict[str, float]:
        return {"started_s": self._runtime.rebalance_begins()}

    @override
    def on_rebalance_end(self, app: Any, state: dict[str, float]) -> None:
        self._runtime.rebalanced(self._runtime.clock.monotonic_s() - state["started_s"])


class Runtime(Ownership):
    """The retry protocol inside one Faust app."""

    def __init__(self, app: faust.App, options: RuntimeOptions) -> None:
        self.clock: SystemClock = SystemClock()
        self._log = LogObserver()
        super().__init__(clock=self.clock, observer=self._log, drain_s=options.drain_ms / 1000)
        self.app = app
        self.options = options
        self.random = random.Random()  # noqa: S311 - spreads delays, keeps no secret; the system's own is a system call each
        prove = partial(prove_login, app, timeout_s=_LOGIN_S)
        self.contact = Contact(self.clock, lambda: addresses(app), self._answered_s, prove)
        self.gauges: Callable[[], Mapping[str, Any]] = dict
        """Partitions by main topic; the view sets it, and the two below."""
        self.remember: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        """Notes what is shown while no broker answers."""
        self.scrape: Callable[[], Awaitable[bytes]]
        """Returns the metrics as text."""
        self.topics = KafkaDestinations(lambda: self.connection)
        self.metrics = MetricsObserver()
        self.recent = Recent(self.metrics.counted, self.clock)
        self.observer = CombinedObserver(self.observer, self.metrics)
        self.plan: Plan | None = None
        self._rounds = Rounds()
        self._tasks: list[asyncio.Task[None]] = []
        self._rebalancing_since_s: float | None = None
        self._reader: TailReader | None = None
        self._held_loop: HeldLoop | None = None
        self._sensor = RetrySensor(self)
        self._change_settings()
        app._new_transport = self._new_transport  # type: ignore[method-assign]  # Faust's only way to give an app another transport
        self._stock_rebalance_end = app.on_rebalance_end
        app.on_rebalance_end = self._on_rebalance_end  # type: ignore[method-assign]  # its sensors miss some ends
        app.on_configured.connect(cast("Any", self._on_configured))
        app.on_after_configured.connect(cast("Any", self._on_after_configured))
        app.on_before_shutdown.connect(cast("Any", self._on_before_shutdown))

    def serve(self, handler: Handler) -> None:
        """Add a handler.

        Raises:
            DuplicateHandlerError: its main topic has one already.
            InvalidSettingError: the worker has begun, and this handler's topics were not made.
        """
        if self.plan is not None:
            expected = f"handler {handler.name} declared before the worker starts: import its module with the app's"
            raise InvalidSettingError("topic", handler.main, f"expected {expected}")
        known = self.served.get(handler.main)
        if known is not None:
            raise DuplicateHandlerError(handler.main, handler.group, known.handler.name, handler.name)
        self.served[handler.main] = Served(handler, *make_pools(handler, self._rounds))
        tiers = (format_duration_ms(delay_ms) for delay_ms in handler.policy.delays_ms)
        self.metrics.begin(handler.main, tiers, handler.circuits)
        handler.orphans.on_hung = lambda: self._tasks.append(asyncio.create_task(self._end_hung(handler)))
        self.intake.topics = self.intake.topics | {handler.main}
        TOPICS.add(handler.main)
        if self.app.configured:
            self._register_agents(handler)

    @property
    def connection(self) -> KafkaConnection:
        return admin_connection(self.app, self.options.admin_options)

    @property
    def consumer(self) -> RetryConsumer:
        """The app's consumer.

        Raises:
            RuntimeError: the app has not started it.
        """
        return cast("RetryConsumer", self.intake.flow)  # what `RetryTransport` made attaches itself

    def _answered_s(self) -> float:
        try:
            return self.consumer.answered_s()
        except RuntimeError:  # the app has not started it
            return -math.inf

    def _new_transport(self) -> RetryTransport:
        brokers = self.app.conf.broker_consumer
        return RetryTransport(brokers, self.app, intake=self.intake, on_denied=self.contact.refuse)

    def _on_rebalance_end(self) -> None:
        """End a rebalance for Faust, then let the lanes open unless another has begun."""
        try:
            self._stock_rebalance_end()
        finally:
            recovery = cast("Any", self.app.tables).recovery
            if not recovery.signal_recovery_start.is_set():
                self.consumer.rebalance_over(recovery._generation_id)
                if self.consumer.settled:
                    self._rebalancing_since_s = None

    def _on_configured(self, _app: Any, conf: Any, **_kwargs: Any) -> None:
        if str(conf.processing_guarantee.value) == "exactly_once":
            raise InvalidSettingError(
                "processing_guarantee",
                "exactly_once",
                "remove it, or set at_least_once: retryapp's own transactions make hand-offs exactly once, and Faust's "
                "would lose records",
            )
        if conf.broker_heartbeat_interval >= conf.broker_session_timeout:
            raise InvalidSettingError(
                "broker_heartbeat_interval",
                f"{conf.broker_heartbeat_interval:g} s",
                f"it must be well below broker_session_timeout, {conf.broker_session_timeout:g} s (a third is usual): "
                "else the group takes live workers for dead",
            )

    def _change_settings(self) -> None:
        options = cast("dict[str, Any]", self.app._default_options[1])
        for name, (ours, _) in SETTINGS.items():
            if name.removeprefix("broker_") not in options:  # Faust's older name, which it refuses beside this one
                options.setdefault(name, ours)
        session_s = want_seconds(options["broker_session_timeout"] or SETTINGS["broker_session_timeout"][0])
        if session_s < HEARTBEATS * HEARTBEAT_S:  # one may be lost
            options.setdefault("broker_heartbeat_interval", session_s / HEARTBEATS)

    def _on_after_configured(self, _app: Any, **_kwargs: Any) -> None:
        self.app.sensors.add(self._sensor)
        for served in self.served.values():
            self._register_agents(served.handler)

    def _register_agents(self, handler: Handler) -> None:
        for topic in (handler.main, handler.topology.retry_topics[0]):
            if topic not in self.feed.channels:
                self.feed.channels[topic] = register_agent(self.app, topic, self.feed.accept)

    def prepare(self) -> None:
        """Check handlers and topics, create what is missing; blocks. Safe to call twice.

        Raises:
            ConfigurationError: the program is wrong.
            EnvironmentFault: broker or topics are.
        """
        if self.plan is None and self.served:
            self.plan = prepare(self.app, self.served, self.connection, options=self.options, clock=self.clock)

    async def start(self) -> None:
        """Start pools and the shared reader; called by the sensor."""
        if not self.served:
            return
        self._stopping = False
        await asyncio.to_thread(self.prepare)
        for handler in logging.getLogger().handlers:
            if not isinstance(handler.formatter, FactsFormatter | JsonFormatter):
                handler.setFormatter(FactsFormatter(handler.formatter))
        repeats.install()
        self._settings = self._client_settings()
        self._reader = TailReader(self._settings)
        self.placer = Placer(
            make_transport=self._make_transport,
            settled=lambda: self.consumer.settled,
            lapsed=self.consumer.lapsed,
            end_process=end_process,
            patience_s=self.app.conf.broker_session_timeout + self.app.conf.broker_rebalance_timeout + _IDLE_S,
            life=secrets.token_hex(4),
            worker=f"{socket.gethostname()}/{Path(self.app.conf.datadir).name}",
            clock=self.clock,
            random=self.random,
            observer=self.observer,
            tick_s=max(0.25, sum(served.partitions for served in self.served.values()) / 64),
            emit=self.feed.emit,
            pump=self.feed.pump,
            forget=self.feed.forget,
        )
        for served in self.served.values():
            served.first.start()
            served.again.start()
        self._tasks = [
            asyncio.create_task(self._catch_up_regularly(), name="catch-up"),
            asyncio.create_task(self._look_for_commands(self._reader), name="commands"),
            asyncio.create_task(self._look_for_growth(), name="growth"),
            asyncio.create_task(self._look_for_other_topics(), name="topics"),
        ]
        for task in self._tasks:
            task.add_done_callback(end_if_broken)
        others = [
            asyncio.create_task(self.contact.run(lambda: self.remember()), name="contact"),
            asyncio.create_task(self.recent.run(), name="recent"),
        ]
        if (trim := find_trim()) is not None:
            others.append(asyncio.create_task(give_back_memory(self.clock, trim), name="memory"))
        for task in others:
            task.add_done_callback(tell_if_broken)
        self._tasks += others
        self._held_loop = HeldLoop()
        self._held_loop.start()

    def _make_transport(self, served: Served, engine: PartitionEngine, membership: Membership) -> KafkaTransport:
        return KafkaTransport(
            place=lane_place(self.app, served, engine),
            settings=self._settings,
            consumer=self.consumer,
            reader=cast("TailReader", self._reader),
            clock=self.clock,
            generation=membership.generation,
            member_id=membership.member_id,
            life=engine.context.life,
            topics=self.topics,
        )

    @override
    def _on_counted(self, counts: Mapping[str, int]) -> None:
        self.contact.counted(counts)
        super()._on_counted(counts)

    async def _catch_up_regularly(self) -> None:
        while True:
            doubted = self.catch_up()
            await asyncio.sleep(_ASK_TIME_S if doubted else _CATCH_UP_S)

    async def _look_for_commands(self, reader: TailReader) -> None:
        level = logging.WARNING
        while True:
            await asyncio.sleep(_COMMANDS_S)
            try:
                await self.look_for_commands(reader)
                level = logging.WARNING
            except (KafkaError, OSError, TimeoutError) as exc:  # the broker may be away
                logger.log(level, "Commands could not be read: %r", exc)
                level = logging.DEBUG  # until they can be
            except Exception:  # of the app's token provider, say, which lanes survive, too: no reason to end the worker
                logger.exception("Commands could not be read; trying again")

    async def _look_for_growth(self) -> None:
        while True:
            await asyncio.sleep(_GROWTH_S)
            for served in [*self.served.values()]:
                if served.lacking:
                    self.complete(served, await self._least_partitions(served.handler.topology.owned))

    async def _look_for_other_topics(self) -> None:
        while True:
            await asyncio.sleep(_OTHERS_S)
            try:
                looks = {main: await self.topics.look(main) for main in [*self.served]}
            except Exception as exc:  # noqa: BLE001 - asked again soon: no reason to end the worker
                logger.debug("Main topics could not be looked at: %r", exc)
                continue
            if why := self.made_again({main: look.topic_id for main, look in looks.items() if look and look.topic_id}):
                await self._end(why)

    async def _least_partitions(self, topics: Sequence[str]) -> int:
        try:
            looks = [await self.topics.look(topic) for topic in topics]
        except Exception as exc:  # noqa: BLE001 - asked again soon: no reason to end the worker
            logger.warning("Cannot count the partitions of our topics: %r", exc)
            return 0
        return min((0 if look is None else look.partitions for look in looks), default=0)

    def _client_settings(self) -> ClientSettings:
        conf = self.app.conf
        sizes = [served.max_bytes for served in self.served.values()]
        return ClientSettings(
            connection=client_options(self.app),
            client_id=conf.broker_client_id,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            max_batch_size=min(_BATCH_BYTES, *sizes),
            max_request_size=max(sizes) + MAX_METADATA_BYTES,
            compression_type=conf.producer_compression_type or COMPRESSION,
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.assigned = False
        await self.suspend(0.0)
        for served in self.served.values():
            await served.first.stop()
            await served.again.stop()
        if self._reader is not None:
            await self._reader.stop()
        if self._held_loop is not None:
            self._held_loop.end()
        self._log.summarize()

    async def _end_hung(self, handler: Handler) -> None:
        """End this process, as hung threads end with it only."""
        await self._end(
            f"Handler {handler.name} for {handler.main} is blocked by runs that have gone on for {HUNG_S:g} s after "
            f"their time-out: {handler.orphans.problem}"
        )

    async def _end(self, why: str) -> None:
        """End this process after a hand-over like that of a stop."""
        try:
            await self.leave(self.options.grace_ms / 1000)
        except Exception:  # the process ends all the same
            logger.exception("The partitions could not be handed over")
        end_process(why)

    async def _on_before_shutdown(self, _app: Any, **_kwargs: Any) -> None:
        await self.leave(self.options.grace_ms / 1000)

    def rebalance_begins(self) -> float:
        """Note that a rebalance begins, perhaps within another; return the monotonic time."""
        now_s = self.clock.monotonic_s()
        if self._rebalancing_since_s is None:
            self._rebalancing_since_s = now_s
        return now_s

    def rebalancing_s(self) -> float:
        """Return for how many seconds the group has been rebalancing; 0 when it is not."""
        since_s = self._rebalancing_since_s
        return 0.0 if since_s is None else self.clock.monotonic_s() - since_s

    def rebalanced(self, duration_s: float) -> None:
        if self.served:
            self.observer.observe(
                Observation(
                    event=Event.REBALANCED, handler=", ".join(self.served), duration_ms=round(duration_s * 1000)
                )
            )

    def behind(self, main: str, number: int) -> tuple[int, int]:
        """Return how many offsets the tables of a partition have yet to read: pending table, dead-letter tables."""
        topology, reader = self.served[main].handler.topology, self._reader
        if reader is None:
            return 0, 0
        changelog = TopicPartition(topology.pending_changelog, number)
        letters = sum(reader.behind(TopicPartition(name, number)) for name in topology.dlqs)
        return reader.behind(changelog), letters
