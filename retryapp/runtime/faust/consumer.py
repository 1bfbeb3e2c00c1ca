"""The Faust consumer with our topics taken out of Faust's hands.

Records of our topics leave the fetcher as batches into an `Intake`. Faust neither seeks, resumes, nor commits these
partitions; lanes do (`runtime.transport`). The user's topics go the stock way, with three of Faust's faults fixed:

* only a fully acknowledged prefix of *delivered* offsets is committed (Faust can commit past an unacknowledged one);
* partitions stay paused until a rebalance is over (Faust resumes them before it seeks, and loses what comes between);
* records that a fetch returned although Faust sought meanwhile are fetched again (Faust drops them).

Positions, pauses and the coordinator belong to the consumer's thread; buffers and lanes to the main loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar, cast

import aiokafka
from aiokafka.errors import KafkaError
from faust.exceptions import ConsumerNotStarted
from faust.transport.conductor import Conductor
from faust.transport.drivers.aiokafka import Consumer, Transport
from faust.types import TP
from mode import Service
from mode.utils.logging import get_logger

from retryapp.engine.worker.intake import Intake
from retryapp.ports import TopicPartition
from retryapp.runtime.clients import unreadable
from retryapp.runtime.clients.lifecycle import survive_failed_logins
from retryapp.runtime.faust.consumer_thread import RetryConsumerThread, listen, look_for_topics, refuse_no_answer
from retryapp.runtime.machine.clock import counted_s

logger = get_logger(__name__)
_IDLE_POLL_S = 0.02
_TOPICS_AGAIN_S = 1.0  # between two looks for topics that the client does not know
_WATCH_S = 1.0  # between two looks for errors of the group


class RetryConsumer(Consumer):
    """Faust's consumer."""

    _thread: RetryConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.intake: Intake = cast("RetryTransport", self.transport).intake
        self.intake.attach(self)
        self._delivered: dict[TP, deque[int]] = defaultdict(deque)
        self._deferred: set[TP] = set()
        self._spill: dict[TP, deque[Any]] = {}
        self._assigned_generation: int | None = None
        self.seeks = 0  # how often Faust has sought: a fetch from before is stale
        self.settled = False  # whether the rebalance of the last assignment is over
        self._answered_s = -inf
        self._session_s: float = self.app.conf.broker_session_timeout  # a look at a setting of Faust's takes 4 us
        self._asked_s = -inf  # when the last heartbeat that the coordinator accepted was sent

    def _new_consumer_thread(self) -> RetryConsumerThread:
        return RetryConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def ours(self, tp: Any) -> bool:
        return tp.topic in self.intake.topics

    async def in_thread(self, function: Callable[[aiokafka.AIOKafkaConsumer], Any]) -> Any:
        """Run a function (plain or async) in the consumer's thread; past its queue, which an idle poll blocks."""

        async def run() -> Any:
            result = function(self._thread._ensure_consumer())
            return await result if inspect.isawaitable(result) else result

        loop = self._thread.thread_loop
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Hold our partitions, let Faust do its part, then have the lanes opened."""
        self._assigned_generation = generation_id
        await self.hold(TopicPartition(*tp) for tp in assigned if self.ours(tp))

        def member(consumer: aiokafka.AIOKafkaConsumer) -> tuple[int, str]:
            coordinator = consumer._coordinator
            listen(coordinator, self.heard)
            refuse_no_answer(coordinator)
            self.heard(counted_s())
            return coordinator.generation, coordinator.member_id

        generation, member_id = await self.in_thread(member)
        await super().on_partitions_assigned(assigned, generation_id)
        actives = {TopicPartition(*tp) for tp in self.app.assignor.assigned_actives()}
        if self.intake.on_assigned is not None:
            await self.intake.on_assigned(generation, member_id, actives & {TopicPartition(*tp) for tp in assigned})
        self.add_future(self._see_topics(generation_id))

    def heard(self, asked_s: float) -> None:
        """Note that the coordinator took this worker for a member when it was asked, on our own clock."""
        self._asked_s = max(self._asked_s, asked_s)

    def answered_s(self) -> float:
        """Return when a broker answered this consumer last, by the monotonic clock; -inf: not yet."""
        client = self._thread._consumer
        if client is not None:
            at_s = (connection._last_action for connection in list(client._client._conns.values()))
            self._answered_s = max(self._answered_s, *at_s, -inf)
        return self._answered_s

    def lapsed(self) -> bool:
        """Return whether the coordinator was silent for a whole session: others may have our partitions by now.

        Counted from when it was asked; it counts from when the request arrives, which is no earlier.
        """
        return counted_s() - self._asked_s > self._session_s

    @Service.task
    async def _watch_group(self) -> None:
        """Have a broker asked if none has answered for a while; end the worker on an error of the group or the client.

        The client reports such an error only when asked. Until then it neither heartbeats nor joins. Faust bypasses
        the client's own check, so it learns of such an error only while a fetch waits: not in a rebalance, and not
        between two fetches.
        """

        def watch(consumer: aiokafka.AIOKafkaConsumer) -> None:
            if time.monotonic() - self.answered_s() > _WATCH_S:  # it fetches nothing: a rebalance, or all is paused
                consumer._client.force_metadata_update()
            consumer._coordinator.check_errors()
            for task in (consumer._fetcher.error_future, consumer._client._sync_task):
                if task is not None and task.done() and not consumer._closed:
                    if not task.cancelled():
                        task.result()
                    raise KafkaError("a task of the Kafka client has ended")

        while not self.should_stop:
            await self.sleep(_WATCH_S)
            if not self.should_stop:
                with contextlib.suppress(ConsumerNotStarted):
                    await self.in_thread(watch)

    async def _see_topics(self, generation_id: int) -> None:
        """Have the client ask for topics that it does not know until it does."""
        while self._assigned_generation == generation_id and not self.should_stop:
            missing = await self.in_thread(look_for_topics)
            if not missing:
                return
            logger.warning("The broker does not know %s yet; asking again", ", ".join(missing))
            await asyncio.sleep(_TOPICS_AGAIN_S)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Let the engine finish what runs, commit the user's topics, then let Faust do its part."""
        self.settled = False
        self._assigned_generation = None
        self._deferred.clear()
        if self.intake.on_revoked is not None:
            await self.intake.on_revoked()
        if revoked and not self.app.should_stop:
            try:
                await self.commit()
            except KafkaError as exc:  # what was not committed is processed again; the rebalance must go on
                logger.warning("Commit before a rebalance failed, records will be processed again: %r", exc)
        self.intake.clear(TopicPartition(*tp) for tp in revoked if self.ours(tp))
        await super().on_partitions_revoked(revoked)
        self._spill.clear()  # not before the flow has stopped: until then fetches add to it
        for tp in revoked:
            self._delivered.pop(tp, None)

    def rebalance_over(self, generation_id: int) -> None:
        """Note that Faust has finished a rebalance, unless another has begun."""
        if generation_id == self._assigned_generation:
            self.settled = True

    async def hold(self, tps: Iterable[TopicPartition]) -> None:
        """Stop fetching, and make everything fetched so far stale."""
        held = list(tps)

        def pause(consumer: aiokafka.AIOKafkaConsumer) -> None:
            assigned = consumer.assignment()
            for tp in held:
                if tp in assigned:
                    consumer.pause(aiokafka.TopicPartition(*tp))
                self.intake.epoch[tp] += 1

        try:
            await self.in_thread(pause)
        finally:
            self.intake.clear(held)

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """Set positions and let records flow; the partitions must be held.

        From then on a position out of range is reported to the intake. By itself the client library would continue at
        one end of the partition and silently skip what lies between.
        """
        loop = asyncio.get_running_loop()

        def report(tp: TopicPartition, state: Any, _strategy: Any) -> None:
            state.pause()
            loop.call_soon_threadsafe(self.intake.on_out_of_range, tp, state.position)

        def seek(consumer: aiokafka.AIOKafkaConsumer) -> None:
            assigned = consumer.assignment()
            for tp, offset in starts.items():
                if tp not in assigned:
                    raise RuntimeError(f"{tp} is not assigned any more")
                client_tp = aiokafka.TopicPartition(*tp)
                consumer.seek(client_tp, offset)
                state = consumer._subscription.subscription.assignment.state_value(client_tp)
                state.await_reset = partial(report, tp, state)  # the state is of this assignment only
            consumer.resume(*(aiokafka.TopicPartition(*tp) for tp in starts))

        self.intake.begin(starts)
        await self.in_thread(seek)

    async def perform_seek(self) -> None:
        """Seek the user's own partitions to their committed offsets; never ours."""
        self.seeks += 1
        self._delivered.clear()
        self._spill.clear()
        others = [aiokafka.TopicPartition(*tp) for tp in self.assignment() if not self.ours(tp)]
        if not others:  # an empty list would seek every partition
            return
        committed = await self.in_thread(lambda consumer: consumer.seek_to_committed(*others))
        for tp, offset in committed.items():
            known = offset is not None and offset >= 0
            self._read_offset[TP(*tp)] = offset if known else None
            if known and offset:
                self._committed_offset[TP(*tp)] = offset

    async def seek_wait(self, partitions: Mapping[TP, int]) -> None:
        self.seeks += 1
        await super().seek_wait(partitions)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume; during a rebalance only changelogs: other records would be lost before the seek."""
        tps = set(tps)
        if not self.settled:
            changelogs = self.app.tables.changelog_topics
            self._deferred |= {tp for tp in tps if tp.topic not in changelogs}
            tps = {tp for tp in tps if tp.topic in changelogs}
        super().resume_partitions(tps)

    def _resume_deferred(self) -> None:
        if self._deferred and self.settled:
            deferred, self._deferred = self._deferred, set()
            super().resume_partitions(deferred & set(self.assignment()))

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Any:
        return (tp for tp in super()._filter_tps_with_pending_acks(topics) if not self.ours(tp))

    def _new_offset(self, tp: TP) -> int | None:
        delivered, acked, upto = self._delivered.get(tp), self._acked_index[tp], None
        while delivered and delivered[0] in acked:
            offset = delivered.popleft()
            acked.discard(offset)
            upto = offset + 1
        self._acked[tp].clear()
        return upto

    async def _add_gap(self, *_args: Any) -> None:
        """Do nothing: the prefix is counted in delivered records."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Skip ours: Faust's livelock warnings read its own acknowledgements."""
        if not self.ours(tp):
            super().verify_event_path(now, tp)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Fetch; hand ours to the intake, yield the user's."""
        self._resume_deferred()
        for tp, message in self._unspill():
            yield tp, message
        if self.flow_active and not self._get_active_partitions():
            await self._stay_awake()
            return
        records, active = await self._wait_next_records(min(timeout, 0.2) if self.busy else timeout)
        generation = self.app.consumer_generation_id
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            return  # a rebalance: Faust seeks before it resumes, and asking for offsets now may meet no assignment
        self.take_in(records)
        others = {tp: found for tp, found in records.items() if not self.ours(tp)}
        for fetched_tp, record in self.scheduler.iterate(others):
            tp = TP(*fetched_tp)  # the client's tuples are equal, but Faust refuses them among its active partitions
            if self.suspend_flow.is_set() or self.app.consumer_generation_id != generation:
                return
            if not active or tp in active or tp in self._buffered_partitions:
                message = self._to_message(tp, record)
                self._note_delivered(tp, message)
                self.app.monitor.track_tp_end_offset(tp, self.highwater(tp))
                if tp in self._spill or self._agent_room(tp) <= 0:
                    self._spill.setdefault(tp, deque()).append(message)
                    self.on_buffer_full(tp)
                else:
                    yield tp, message

    @property
    def busy(self) -> bool:
        """Whether the fetch loop has more to do than to fetch."""
        return bool(self._deferred) or bool(self._spill) or not self.settled

    @property
    def active(self) -> frozenset[TP]:
        """What may be fetched now. Thread-safe: Faust's own set changes meanwhile."""
        return frozenset(self._active_partitions or ())

    def take_in(self, records: Any) -> None:
        """Hand the records of ours in a fetch to the intake, unless a rebalance has begun."""
        if self.flow_active and not self.should_stop:
            ours = {tp: found for tp, found in records.items() if self.ours(tp)}
            self.intake.put(ours, getattr(records, "stamp", {}), getattr(records, "positions", None))

    def _agent_room(self, tp: TP) -> float:
        """Return how many records the user's agents of a partition take before they would block this loop."""
        queues = [channel.queue for channel in cast("Any", self.app.topics)._tp_index.get(tp, ())]
        return min((queue.maxsize - queue.qsize() if queue.maxsize else inf for queue in queues), default=inf)

    def _unspill(self) -> Iterator[tuple[TP, Any]]:
        """Yield what was fetched while the user's agents were full, as far as they have room now.

        A rebalance may come between two records: with the flow stopped, queues that Faust has emptied are no room, and
        after the seek everything is read again.
        """
        for tp, spilled in list(self._spill.items()):
            while spilled and self.flow_active and self._spill.get(tp) is spilled and self._agent_room(tp) > 0:
                yield tp, spilled.popleft()
            if not spilled and self._spill.get(tp) is spilled:
                del self._spill[tp]
                self.on_buffer_drop(tp)

    def on_buffer_full(self, tp: TP) -> None:
        """Stop fetching a partition; Faust refuses tuples that are not its own, though they are equal."""
        super().on_buffer_full(TP(*tp))

    def on_buffer_drop(self, tp: TP) -> None:
        """Fetch a partition again unless its spill has records."""
        if not self._spill.get(tp):
            super().on_buffer_drop(TP(*tp))

    def _note_delivered(self, tp: TP, message: Any) -> None:
        delivered = self._delivered[tp]
        if self.app.topics.acks_enabled_for(message.topic) and (not delivered or message.offset > delivered[-1]):
            delivered.append(message.offset)

    async def _stay_awake(self) -> None:
        """Wait with nothing to fetch, without looking idle to `max_poll_interval`."""

        def touch(consumer: aiokafka.AIOKafkaConsumer) -> None:
            consumer._subscription._last_fetch_ended = time.monotonic()

        await self.in_thread(touch)
        await asyncio.sleep(_IDLE_POLL_S)


class RetryConductor(Conductor):
    """Faust's conductor, which also subscribes to the engine's topics."""

    async def _update_indices(self) -> Iterable[str]:
        topics = await super()._update_indices()
        return set(topics) | cast("RetryTransport", self.app.transport).intake.topics


class RetryTransport(Transport):
    """Faust's transport with our consumer and conductor."""

    Consumer: ClassVar[Any] = RetryConsumer
    Conductor: ClassVar[Any] = RetryConductor

    def __init__(self, *args: Any, intake: Intake, on_denied: Callable[[str], None], **kwargs: Any) -> None:
        unreadable.install()
        survive_failed_logins()
        super().__init__(*args, **kwargs)
        self.intake = intake
        self.on_denied = on_denied
        """Called in the consumer's thread with a topic that a broker does not let this group read."""
