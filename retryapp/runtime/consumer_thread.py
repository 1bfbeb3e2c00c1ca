"""The consumer's thread: what the client library fetches, stamped with what it belongs to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiokafka
from aiokafka.errors import TopicAuthorizationFailedError
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP
from mode.utils.logging import get_logger

from retryapp.engine.intake import Stamped
from retryapp.ports import TopicPartition
from retryapp.runtime.clock import counted_s

logger = get_logger(__name__)
_DENIED_REST_S = 0.2
"""Between two looks at a topic that may not be read: the broker answers at once, again and again."""
_DENIED_AGAIN_S = 30.0
"""How often that is said."""
_POSITIONS_S = 1.0
"""How often a fetch carries positions; the sooner, the more its looks at all partitions cost."""


def listen(coordinator: Any, heard: Callable[[float], None]) -> None:
    """Have each heartbeat that the coordinator of a group answers with yes told, with when it was asked."""
    beat = coordinator._do_heartbeat
    if hasattr(beat, "told"):
        return

    async def heartbeat() -> bool:
        asked_s = counted_s()
        member: bool = await beat()
        if member:
            heard(asked_s)
        return member

    heartbeat.told = True  # type: ignore[attr-defined]
    coordinator._do_heartbeat = heartbeat


class RetryConsumerThread(AIOKafkaConsumerThread):
    """The consumer's thread: reads committed records only and stamps what it fetched."""

    consumer: Any  # the `RetryConsumer`, whose module imports this one
    _looked_s = float("-inf")
    _denied_told_s = float("-inf")

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust's assignor keeps the topics of a handler together; without tables Faust would fall back to round robin
        self._assignor = self.app.assignor
        consumer._partition_assignment_strategy = [self._assignor]
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = 100  # Faust's 1500 ms hold every other request of the thread up
        return consumer

    async def _fetch_records(self, *args: Any, **kwargs: Any) -> Any:
        seeks = self.consumer.seeks
        try:
            records = Stamped(await super()._fetch_records(*args, **kwargs) or {})
        except TopicAuthorizationFailedError as exc:
            self._tell_denied(exc)
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

    def _tell_denied(self, error: TopicAuthorizationFailedError) -> None:
        """Say that a topic may not be read. Its partitions stand still, the others go on, and the client asks again."""
        if time.monotonic() - self._denied_told_s < _DENIED_AGAIN_S:
            return
        self._denied_told_s = time.monotonic()
        logger.error(
            "The broker does not let this group read %s: those partitions stand still. Grant READ on the topic "
            "(retryapp plan --acls lists all rights); reading goes on by itself.",
            error.args[0] if error.args else "a topic",
        )

    def _give_back(self, records: Stamped) -> None:
        """Undo a fetch of the user's partitions that was under way while Faust sought them.

        It waits through a whole rebalance in the client library, and takes what comes behind the seek. The main loop,
        where the flow has not begun yet, would throw that away, and nothing would seek back again.
        """
        for tp in [tp for tp in records if not self.consumer.ours(tp)]:
            found = records.pop(tp)
            if found:
                self._ensure_consumer().seek(aiokafka.TopicPartition(*tp), found[0].offset)

    def _positions(self) -> dict[TopicPartition, int]:
        """Return the positions of our partitions that are not held: those of a held one belong to no session."""
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
        if ours:  # a plain commit beside lane transactions moves offsets back or past an open one
            raise RuntimeError(f"Faust tried to commit {ours}, which only lanes may")
        return await super()._commit(offsets)

    def close(self) -> None:
        """Leave the closing to the thread's own stop, which follows.

        A stopping app asks for it where a rebalance ends, and Faust's own way marks the client's consumer as closed and
        awaits its tasks from the main loop, which is not theirs. The thread's stop then takes it for done: the group is
        not left, its tasks go on, and the worker may wait for them for ever.
        """

    async def on_thread_stop(self) -> None:
        """Stop the client's consumer.

        Its `close` awaits the fetches that it has cancelled, and with the broker gone one answers with that very
        cancellation. Taken for ours, it would end this thread before it says so, and the worker would wait for ever.
        """
        try:
            await super().on_thread_stop()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._consumer is None or task is None or task.cancelling():
                raise
            await self._consumer._client.close()
