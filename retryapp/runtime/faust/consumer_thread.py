"""The consumer's thread: what the client library fetches, stamped with what it belongs to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import aiokafka
from aiokafka.errors import NoError, NotCoordinatorForGroupError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP
from mode.utils.logging import get_logger

from retryapp.engine.worker.intake import Stamped
from retryapp.ports import TopicPartition
from retryapp.runtime.clients.unreadable import as_records
from retryapp.runtime.machine.clock import counted_s

logger = get_logger(__name__)
_FETCH_REST_S = 0.005
"""Pause before the next fetch while fetches are small: each costs a request and a round of the event loop. At 1,000
retries a second it saves 10 % of a core."""
_SMALL_FETCH_RECORDS = 200  # a fetch of at least so many is followed by the next at once
_DENIED_REST_S = 0.2  # between two fetches of a topic that may not be read: the broker answers at once
_POSITIONS_S = 1.0  # how often a fetch carries positions: each reads those of all partitions


def listen(coordinator: Any, heard: Callable[[float], None]) -> None:
    """Report each heartbeat that a group's coordinator accepts, with the time when it was sent."""
    beat = coordinator._do_heartbeat
    if hasattr(beat, "reported"):
        return

    async def heartbeat() -> bool:
        asked_s = counted_s()
        member: bool = await beat()
        if member:
            heard(asked_s)
        return member

    heartbeat.reported = True  # type: ignore[attr-defined]
    coordinator._do_heartbeat = heartbeat


def refuse_no_answer(coordinator: Any) -> None:
    """Raise the error of a broker that does not tell a group's offsets, as while the coordinator moves.

    The client library overlooks it, and takes the answer for that of a group without offsets.
    """
    send = coordinator._send_req
    if hasattr(send, "refusing"):
        return

    async def ask(request: Any) -> Any:
        response = await send(request)
        if isinstance(request, OffsetFetchRequest) and (error := for_code(response.error_code)) is not NoError:
            if error is NotCoordinatorForGroupError:
                coordinator.coordinator_dead()  # the next question goes to another broker
            raise error
        return response

    ask.refusing = True  # type: ignore[attr-defined]
    coordinator._send_req = ask


async def look_for_topics(consumer: aiokafka.AIOKafkaConsumer) -> list[str]:
    """Return the subscribed topics that the client does not know, and have it ask the broker for them.

    A broker that has just started answers before it knows its topics; the client would ask again after 5 minutes.
    """
    cluster = consumer._client.cluster
    missing = sorted(topic for topic in consumer.subscription() if not cluster.partitions_for_topic(topic))
    if missing:
        await consumer._client.force_metadata_update()
    return missing


class RetryConsumerThread(AIOKafkaConsumerThread):
    """Reads committed records only, and stamps what it fetched."""

    consumer: Any  # the `RetryConsumer`, whose module imports this one
    _looked_s = _next_fetch_s = float("-inf")

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust's assignor keeps the topics of a handler together; without tables Faust would fall back to round robin
        self._assignor = self.app.assignor
        consumer._partition_assignment_strategy = [self._assignor]
        consumer._client.cluster.add_listener(self._count_partitions)
        consumer._isolation_level = "read_committed"
        consumer._key_deserializer = as_records
        consumer._fetch_max_wait_ms = 100  # Faust's 1500 ms hold every other request of the thread up
        return consumer

    def _count_partitions(self, cluster: Any) -> None:
        intake = self.consumer.intake
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in intake.topics}
        self.consumer.loop.call_soon_threadsafe(intake.on_counted, counts)

    async def getmany(self, _active_partitions: Any, timeout: float) -> Any:
        """Fetch for `timeout` seconds, or until the user's topics have records; hand ours over as they come.

        Were each fetch asked for and answered through the main loop, one that has much to do would take several of its
        rounds for it, and fetched records would wait meanwhile.
        """
        return await self.call_thread(self._fetch_on, timeout)

    async def _fetch_on(self, timeout_s: float) -> Any:
        consumer, ends_s = self.consumer, time.monotonic() + timeout_s
        while active := consumer.active:  # a partition may be full by now, and none would mean all
            await asyncio.sleep(self._next_fetch_s - time.monotonic())
            client = self._ensure_consumer()
            left_s = max(0.0, ends_s - time.monotonic())
            records = await self._fetch_records(client, active, timeout=left_s, max_records=client._max_poll_records)
            now_s = time.monotonic()
            if sum(map(len, records.values())) < _SMALL_FETCH_RECORDS:
                self._next_fetch_s = now_s + _FETCH_REST_S
            goes_on = now_s < ends_s and consumer.flow_active and not consumer.busy and not self.should_stop
            if not goes_on or not all(map(consumer.ours, records)):
                return records
            await self._hand_over(records)
        return Stamped()

    async def _hand_over(self, records: Stamped) -> None:
        """Have the main loop take records of ours, and wait for that; a fault of its own is raised here."""
        handed: Future[None] = Future()

        def take() -> None:
            if handed.set_running_or_notify_cancel():
                try:
                    handed.set_result(self.consumer.take_in(records))
                except Exception as exc:  # noqa: BLE001 - it ends the fetch loop, and with it the worker
                    handed.set_exception(exc)

        self.consumer.loop.call_soon_threadsafe(take)
        await asyncio.wrap_future(handed)

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Any:
        seeks = self.consumer.seeks
        try:
            records = Stamped(await super()._fetch_records(*args, **kwargs) or {})
        except TopicAuthorizationFailedError as exc:
            topic = str(exc.args[0]) if exc.args else "a topic"
            self.consumer.transport.on_denied(topic)
            logger.error(  # noqa: TRY400 - no traceback; repeats are filtered (`runtime.observe.repeats`)
                "The broker does not let this group read %s: those partitions stand still. Grant READ on the topic "
                "('retryapp plan -A MODULE --acls' lists all rights); reading goes on by itself.",
                topic,
            )
            subscription = self._ensure_consumer()._subscription
            subscription._fetch_count -= 1  # else the client would never again count as idle (`max_poll_interval`)
            subscription._last_fetch_ended = time.monotonic()
            await asyncio.sleep(_DENIED_REST_S)
            records = Stamped()
        if self.consumer.seeks != seeks:
            self._give_back(records)
        records.stamp = dict(self.consumer.intake.epoch)
        records.positions = {}
        if time.monotonic() - self._looked_s >= _POSITIONS_S:
            self._looked_s = time.monotonic()
            records.positions = self._positions()
        return records

    def _give_back(self, records: Stamped) -> None:
        """Undo a fetch of the user's partitions during which Faust sought them: its records are from after the seek.

        The main loop, whose flow has not begun yet, would drop them, and nothing would seek back.
        """
        for tp in [tp for tp in records if not self.consumer.ours(tp)]:
            found = records.pop(tp)
            if found:
                self._ensure_consumer().seek(aiokafka.TopicPartition(*tp), found[0].offset)

    def _positions(self) -> dict[TopicPartition, int]:
        # without held ones: their positions belong to no session
        subscription = self._ensure_consumer()._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None:
            return {}
        states = {tp: assignment.state_value(tp) for tp in assignment.tps if self.consumer.ours(tp)}
        return {
            TopicPartition(*tp): state.position
            for tp, state in states.items()
            if state.has_valid_position and not state.paused
        }

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        ours = [tp for tp in offsets if tp.topic in self.consumer.intake.topics]
        if ours:  # it could move offsets back, or past an open transaction
            raise RuntimeError(f"Faust tried to commit {ours}, which only lanes may")
        return await super()._commit(offsets)

    def close(self) -> None:
        """Do nothing: the thread's own stop follows.

        In a rebalance of a stopping app Faust marks the client's consumer as closed and awaits its tasks from another
        loop than theirs. The thread's stop then takes it for done: the group is not left, and the worker may hang.
        """

    async def on_thread_stop(self) -> None:
        """Stop the client's consumer.

        Its `close` may raise the cancellation of a fetch of its own: taken for ours, it would end this thread without
        notice, and the worker would hang.
        """
        try:
            await super().on_thread_stop()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._consumer is None or task is None or task.cancelling():
                raise
            await self._consumer._client.close()
