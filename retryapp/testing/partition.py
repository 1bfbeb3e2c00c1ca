"""One partition of one handler: the engine's own code on memory topics, in virtual time.

`of` takes the handler from its declaration. `send` puts records on the main topic; the partition delivers, retries and
dead-letters them exactly as a worker would; `advance` lets time pass.

Leaving the block kills the worker. What is in Kafka and on its disk is in the transport, and a new worker can continue
with that::

    async with MemoryPartition.of(retries, "orders") as orders:
        dying = orders.transport.pause(Step.COMMIT)
        await orders.send(b"order 1")
        assert dying.reached
    async with MemoryPartition.of(retries, "orders", transport=orders.transport) as orders:
        assert orders.waiting == {"5m": 1}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from pydantic import ValidationError

from retryapp.core.checks import check_word, problem_text
from retryapp.core.control import Command, Verb, is_mark, named_by
from retryapp.core.durations import duration_text
from retryapp.core.errors import InvalidSettingError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import AnyCommand
from retryapp.core.metadata import STOPPED_TIER, RetryMetadata
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery.batches import make_pools
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.handler.declared import check_value, handler_fields, topology_fields
from retryapp.engine.handler.handler import Handler, HandlerFunction, Order
from retryapp.engine.handler.publish import Destinations
from retryapp.engine.lane.lane import Lane, LaneLimits, LaneState
from retryapp.engine.lane.site import LaneSite
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.ports import Random, TopicPartition
from retryapp.testing.clock import ScriptedRandom, VirtualClock, only_time_wakes
from retryapp.testing.declared import Declares, check_place, declared_handler
from retryapp.testing.destinations import BesideMain, MemoryDestinations
from retryapp.testing.endless import Endless
from retryapp.testing.lane import MemoryLaneTransport, check_sendable
from retryapp.testing.observer import RecordingObserver
from retryapp.testing.script import Script
from retryapp.testing.tables import MemoryPendingTable

_ROUNDS = 200
_IDLE_ROUNDS = 3
_LOOK_MS = 1_000
_REAL_LOOKS: Final = 50
_REAL_LOOK_S: Final = 0.01
"""Half a second in all, without what the loop takes."""
_VAIN_LOOKS: Final = 4 * _REAL_LOOKS
"""After so many of which nothing has come, few are made: beside an idle thread, coroutines may only sleep."""
_FEW_LOOKS: Final = 2
_MAX_BYTES = 1_048_576
_TOPIC_ID: Final = "kq8G0bTz"
_LIVES = count(1)
_COMMANDS = count(1)
_OF_TOPICS: Final = ("tiers", "publishes", "dead_letters")
"""Arguments of a declaration that are about topics; `of` has them from there."""


class MemoryPartition:
    """A handler's partition in memory, as an asynchronous context manager.

    Args:
        function: the handler.
        policy: its policy, or the policy's text.
        group: the consumer group.
        main: the main topic.
        partition: the partition's number.
        clock: shared by partitions of one test; default: that of `transport`.
        random: for jitter; default: always 0.5.
        limits: of the lane.
        transport: Kafka and the local store as a worker has left them; default: new ones.
        pools: for first deliveries and retries, shared by partitions of one handler; default: its own.
        destinations: topics that the handler publishes to; default: every name, with one partition.
        kept_ms: how long the main topic keeps records, for a handler with `payload="reference"`; default: no limit.
        options: more of what a handler is declared with, as `value`, `concurrency`, `order` and `dead_letters`; and
            further fields of `Handler`.

    Raises:
        InvalidSettingError, InvalidPolicyError: an argument is out of range, as in a declaration.
    """

    @classmethod
    def of(cls, retries: Declares, main: str, *, function: HandlerFunction | None = None, **more: Any) -> Self:
        """Make the partition of a declared handler, with all that its declaration says.

        Args:
            retries: the app's `Retries`; no broker is asked.
            main: the handler's main topic.
            function: called in place of the declared one, as a `Script` that fails first; default: that one.
            more: further arguments, as for the class: `transport`, `clock`, `partition`, and others.

        Raises:
            LookupError: no handler of this topic is declared.
            InvalidSettingError: an argument is out of range, or has its place in the declaration.
        """
        handler, options = declared_handler(retries, main, more)
        made = cls(function or handler.function, handler.policy, **options)
        made._owned.update(name for each in retries.handlers for name in each.topology.owned)
        return made

    def __init__(
        self,
        function: HandlerFunction,
        policy: RetryPolicy | str = "1s 10s",
        *,
        group: str = "app",
        main: str = "orders",
        partition: int = 0,
        clock: VirtualClock | None = None,
        random: Random | None = None,
        limits: LaneLimits | None = None,
        transport: MemoryLaneTransport | None = None,
        pools: tuple[DeliveryPool, DeliveryPool] | None = None,
        destinations: MemoryDestinations | None = None,
        kept_ms: int | None = None,
        **options: Any,
    ) -> None:
        check_place(partition, random)
        chosen = policy if isinstance(policy, RetryPolicy) else RetryPolicy.parse(policy)
        names = {name: options.pop(name) for name in _OF_TOPICS if name in options}
        if names and "topology" in options:
            raise InvalidSettingError(*names.popitem(), "expected in the declaration: it is about topics")
        if isinstance(function, Script) and options.get("batch") is not None:
            raise InvalidSettingError("batch", options["batch"], "expected None: a Script takes one record at a time")
        options = handler_fields(**options)
        topics = topology_fields(chosen, options, **names)
        topology: HandlerTopology = options.pop("topology", None) or HandlerTopology(group, main, **topics)
        rule = options.get("deduplicate")
        self.transport = transport or MemoryLaneTransport(clock)
        self.clock = clock or self.transport.clock
        self.observer = RecordingObserver()
        self.destinations = destinations or MemoryDestinations()
        self._owned = {*topology.owned}
        self.handler = Handler(
            function=function,
            topology=topology,
            policy=chosen,
            destinations=Destinations(BesideMain(self.destinations, main), self.clock, lambda: self._owned),
            **options,
        )
        self.handler.values.check()
        check_value(self.handler)
        self._hung = False
        self.handler.orphans.on_hung = self._note_hung
        self._pools = pools or make_pools(self.handler)
        self._own_pools = pools is None
        self.transport.rounds = self._pools[1].rounds
        drawn = random or ScriptedRandom(0.5)
        self.engine = PartitionEngine(
            context=DeliveryContext(
                handler=self.handler,
                clock=self.clock,
                random=drawn,
                pace=Pace.of(self.handler, partition, clock=self.clock, random=drawn, shares=1),
                rounds=self._pools[1].rounds,
                topic_id=_TOPIC_ID,
                max_bytes=_MAX_BYTES,
                kept_ms=kept_ms,
                life=f"worker-{next(_LIVES)}",
            ),
            partition=partition,
            first=self._pools[0],
            again=self._pools[1],
            wanted=self._pump,
        )
        self._site = LaneSite(
            name=f"{topology.prefix}.{partition}",
            group=topology.group,
            partition=partition,
            sources=self.engine.sources,
            main=TopicPartition(topology.main, partition),
            changelog=TopicPartition(topology.pending_changelog, partition),
            dlqs=[TopicPartition(name, partition) for name in topology.dlqs],
            control=TopicPartition(topology.control, partition),
            fences=self.handler.takes_delivery,
            seen=None if rule is None else TopicPartition(topology.seen_changelog, partition),
            topic_id=_TOPIC_ID,
        )
        self.lane = Lane(
            name=self._site.name,
            handler=topology.main,
            partition=partition,
            transport=self.transport,
            clock=self.clock,
            observer=self.observer,
            on_open=self._begin,
            on_close=self.engine.end,
            on_applied=self._on_applied,
            limits=limits,
            ordered=self.handler.order is not Order.NONE,
        )
        self.engine.lane = self.lane
        self._next: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._real_time: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        """Start it.

        Raises:
            RuntimeError: its transport belongs to a partition that still runs, or another clock drives the event loop.
        """
        self.transport.attach(self._site, self.engine.context.life)
        try:
            self._real_time = self.clock.drive(asyncio.get_running_loop())
            if self._own_pools:
                for pool in self._pools:
                    pool.start()
            self._task = asyncio.create_task(self.lane.run(), name=f"lane-{self.lane.name}")
            await self.settle()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Kill it: nothing is flushed, committed or released. The event loop follows real time again."""
        self.transport.detach()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._own_pools:
            for pool in self._pools:
                await pool.stop(0.0)
        end, self._real_time = self._real_time, lambda: None
        end()

    # -- what a test does -----------------------------------------------------------------------------------------

    async def send(
        self, *values: bytes | None, key: bytes | None = None, headers: Iterable[tuple[str, bytes | None]] = ()
    ) -> None:
        """Put records on the main topic and process what is due.

        Raises:
            TypeError: something is not bytes: a handler under test would see what no topic can hold.
            RuntimeError: the partition was not started, so nothing would be processed.
        """
        sendable = check_sendable(values, key, headers)
        self._check_started()
        for value in values:
            self.transport.append(self._site.main, key, value, sendable)
        await self.settle()

    async def command(self, verb: str, record: int | str, **more: Any) -> dict[str, Any]:
        """Send a command about the record at an offset, or with a failure id, as `retryapp` does; return its outcome.

        Args:
            verb: `retry-now`, `reschedule`, `hold`, `release`, `cancel`, `replay`, `discard` or `restore`.
            record: its offset on the main topic, or its failure id; of `release`, `Delivery.token` as well.
            more: further fields of `core.control.Command`.

        Raises:
            AssertionError: there is no outcome, as while the partition does not run.
            InvalidSettingError: there is no such verb, or it takes no such field.
        """
        check_word("verb", verb, Verb)
        if others := more.keys() - Command.model_fields:
            raise InvalidSettingError(others.pop(), more, f"expected only {', '.join(Command.model_fields)}")
        topology, number = self.handler.topology, next(_COMMANDS)
        place = topology.main, self.engine.context.topic_id, self._site.partition
        name = record if isinstance(record, str) else failure_id(topology.group, Origin(*place, record))
        try:
            command = Command(id=f"test-{number}", verb=Verb(verb), **named_by(name), **more)
        except ValidationError as error:
            raise InvalidSettingError("command", f"{verb} {name}", problem_text(error)) from error
        return await self.obey(command)

    async def obey(self, command: AnyCommand) -> dict[str, Any]:
        """Send a command, also one about a job or the handler; return its outcome, as `command` does."""
        topology = self.handler.topology
        sent = command.to_record(topology.control, self._site.partition)
        self.transport.append(TopicPartition(sent.topic, sent.partition), sent.key, sent.value)
        await self.settle()
        outcomes = (json.loads(event.value or b"{}") for event in self.records(topology.events))
        found: list[dict[str, Any]] = [each for each in outcomes if each.get("command") == command.id]
        if not found:
            raise AssertionError(f"no outcome of {command.verb}")
        return found[-1]

    async def advance(self, ms: int) -> None:
        """Let time pass in one step, and process what is due; TypeError for a part of a millisecond."""
        if not isinstance(ms, int):  # rows and headers hold whole ones: what fails then would be dead as `damaged`
            raise TypeError(f"ms: expected whole milliseconds, got {ms!r}")
        self._check_started()
        self.clock.advance(ms)
        await self.settle()

    async def to_rest(self, longest_ms: int = 366 * 86_400_000) -> int:
        """Let time pass until all is read, nothing waits and no handler runs; return the milliseconds that it took.

        Raises:
            AssertionError: that takes more than `longest_ms`, as where a pause, a hold or a stopped sequence waits for
                a command; the handler publishes to its own main topic, or fails, without end; the partition does not
                run; or a worker would have ended, as runs of the handler hang.
        """
        began_ms = changed_ms = self.clock.wall_ms()
        before: tuple[int, int, int] | None = None
        looks = _VAIN_LOOKS
        endless = Endless(self.handler, self.observer)
        while not self._at_rest():
            now_ms = self.clock.wall_ms()
            if self._task is None or self._task.done():
                raise AssertionError(f"{self._left()}: the partition does not run")
            if self._hung and (problem := self.handler.orphans.problem) is not None:
                raise AssertionError(f"{self._left()}; a worker would have ended: {problem}")
            if now_ms - began_ms > longest_ms:
                raise AssertionError(f"{self._left()} after {duration_text(longest_ms)}")
            if (problem := endless.problem()) is not None:
                raise AssertionError(f"{self._left()}; {problem}")
            if (state := self._state()) != before:
                before, changed_ms = state, now_ms
                vain = await self._vain_looks(max(_FEW_LOOKS, min(looks, _REAL_LOOKS)))
                if vain is None:
                    looks = _VAIN_LOOKS
                    continue
                looks -= vain
            step_ms = self._step_ms(now_ms, quiet_ms=now_ms - changed_ms)
            await self.advance(min(step_ms, began_ms + longest_ms + 1 - now_ms))
        return self.clock.wall_ms() - began_ms

    def _check_started(self) -> None:
        if self._task is None:
            raise RuntimeError("nothing runs yet: use it as `async with MemoryPartition(...) as orders:`")

    def _at_rest(self) -> bool:
        if self.lane.state is not LaneState.OPEN or self.lane.busy:
            return False
        return not (self.engine.in_flight or self.waiting or self._unread())

    def _unread(self) -> int:
        main = self._site.main
        start = self._next[main] if self.lane.state is LaneState.OPEN else self.transport.offsets.get(main, 0)
        return len(self.transport.read(main, start))

    def _state(self) -> tuple[int, int, int]:
        return len(self.observer.seen), self.engine.in_flight, self.engine.running

    async def _vain_looks(self, most: int) -> int | None:
        """Give handlers real time, which threads and sockets take; return after how many looks in vain it ended.

        None: something has come of it.
        """
        before = self._state()
        for looked in range(most):
            if not self.engine.running or only_time_wakes(asyncio.get_running_loop()):
                return looked
            time.sleep(_REAL_LOOK_S)  # noqa: ASYNC251 - the loop's own timers follow the virtual clock
            await self.settle()
            if self._state() != before:
                return None
        return most

    def _step_ms(self, now_ms: int, *, quiet_ms: int) -> int:
        """Return how far the next look is: the longer nothing has happened, the further."""
        if self.engine.running:
            return _LOOK_MS  # it sleeps, or its time-out ends it
        pending, due_at_ms = self.transport.pending, None
        if pending is not None and not self.engine.in_flight:
            _, due_at_ms = pending.due(0, 0)
        if due_at_ms is not None and due_at_ms > now_ms:
            return due_at_ms - now_ms
        # what is due is held back, by a rate, a circuit or a pause; or a commit is due
        least_ms = 1 if due_at_ms is not None or self.lane.busy else _LOOK_MS
        return max(least_ms, quiet_ms // 10)

    def _left(self) -> str:
        """Return what has not come to rest, and what it may wait for."""
        pace, waiting = self.engine.context.pace, dict(self.waiting)
        parts = [f"still {self._unread()} unread, {self.engine.in_flight} in flight, {waiting} waiting"]
        if self.lane.state is not LaneState.OPEN:
            parts.append(f"the lane is {self.lane.state} ({self.lane.last_error})")
        parts += ["the partition is paused"] * pace.paused
        parts += [f"the circuit {name!r} is forced open" for name, gate in pace.gates.items() if gate.forced]
        parts += ["a sequence has stopped behind a dead record"] * (STOPPED_TIER in waiting)
        return "; ".join(parts)

    async def settle(self) -> None:
        """Run tasks until all wait, a little longer while handlers run (what takes real time: use `until`)."""
        ready = getattr(asyncio.get_running_loop(), "_ready", True)  # asyncio's own; other loops show no queue
        idle = 0
        for _ in range(_ROUNDS):
            self._feed()
            await asyncio.sleep(0)
            idle = 0 if ready or self.engine.running else idle + 1
            if idle == _IDLE_ROUNDS:
                return

    async def until(self, condition: Callable[[], object], *, rounds: int = 100_000) -> None:
        """Let tasks and threads run until the condition holds, or raise AssertionError."""
        for _ in range(rounds):
            if condition():
                return
            self._feed()
            await asyncio.sleep(0)
        raise AssertionError(f"still not so after {rounds} rounds of the event loop: {condition}")

    async def finish(self, drain_s: float = 10.0, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """End it as a rebalance does: drain for `drain_s` at most, during which `meanwhile` runs; commit; close."""
        draining = asyncio.create_task(self.engine.drain(drain_s))
        await self.settle()
        if meanwhile is not None:
            await meanwhile()
        await draining
        self.lane.finish()
        if self._task is not None:
            await self._task
        self.engine.end()

    # -- what a test looks at ---------------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> list[RetryMetadata]:
        """Metadata of the dead letters, in order."""
        topics = self.handler.topology.dlqs
        records = (record for topic in topics for record in self.records(topic) if not is_mark(record.headers))
        letters = (decode_metadata(record.headers) for record in records)
        return [metadata for metadata in letters if metadata is not None]

    @property
    def waiting(self) -> Mapping[str, int]:
        """Number of waiting records by tier; what the changelog says of them while the lane is not open."""
        table = self.transport.pending
        if table is None:
            table = MemoryPendingTable()
            rows = self.records(self.handler.topology.pending_changelog)
            table.recover([(row.key or b"", row.value) for row in rows], 0)
        return dict(table.counts())

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the committed records of a topic's partition; default: this one's number."""
        return self.transport.read(TopicPartition(topic, self._site.partition if partition is None else partition))

    def _note_hung(self) -> None:
        self._hung = True

    def _begin(self, session: int, starts: Mapping[TopicPartition, int]) -> None:
        self._next = dict(starts)
        self.engine.begin(session, starts, self.transport)

    def _on_applied(self, turns: list[Turn]) -> None:
        self.engine.settled(turns)
        self._feed()

    def _feed(self) -> None:
        for tp in self.engine.sources:
            self._pump(tp)
        commands, control = self.engine.commands, self._site.control
        if commands is not None and control is not None:
            commands.queue.come(self.transport.broker.bounds([control])[control][1])

    def _pump(self, tp: TopicPartition) -> None:
        room = self.engine.room(tp) if self.transport.released is not None else 0
        if room <= 0:
            return
        room_bytes, records = self.engine.room_bytes(tp), list[Record]()
        found, position = self.transport.broker.read(tp, self._next[tp], room)
        for record in found:
            if room_bytes <= 0:
                break
            room_bytes -= len(record.key or b"") + len(record.value or b"")
            records.append(record)
        if records:
            self._next[tp] = records[-1].offset + 1
            try:
                self.engine.accept(tp, self.lane.session, records)
            except Exception as exc:  # noqa: BLE001 - as at the edge of a worker's agents: the lane reads them again
                self.lane.fail(exc)
        elif not found:
            self.engine.reach(tp, position)  # past the marks of transactions
