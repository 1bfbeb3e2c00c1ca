"""One Faust agent per topic, which takes batches of records from a channel in memory; the runtime fills it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import faust
from faust.channels import Channel
from mode.utils.queues import FlowControlEvent, ThrowableQueue
from typing_extensions import override

from retryapp.engine.worker.feed import Batch


class IntakeChannel(Channel[Any]):
    """An in-memory channel of one topic's batches; `faust agents` lists it by that topic."""

    def __init__(self, app: faust.App, topic: str, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._topic = topic

    @property
    @override
    def queue(self) -> ThrowableQueue[Any]:  # without Faust's flow control, which clears queues at every resume
        if self._queue is None:
            self._queue = ThrowableQueue(maxsize=0, flow_control=FlowControlEvent(initially_suspended=False))
        return self._queue

    @override
    def get_topic_name(self) -> str:
        return self._topic

    def _clone_args(self) -> Mapping[str, Any]:
        return {**super()._clone_args(), "topic": self._topic}

    def put_now(self, batch: Batch) -> bool:
        """Hand a batch to the agent; False while the agent is being restarted."""
        for subscriber in self._subscribers:
            subscriber.queue.put_nowait(batch)
        return bool(self._subscribers)


def register_agent(app: faust.App, topic: str, accept: Callable[[Batch], None]) -> IntakeChannel:
    """Attach the agent of a topic, and return its channel.

    `accept` gets each batch; it must not raise, or Faust would acknowledge and skip the batch.
    """
    channel = IntakeChannel(app, topic, maxsize=0)

    async def take(stream: Any) -> None:
        waiting: ThrowableQueue[Any] = stream.channel.queue
        async for batch in stream:
            accept(batch)
            for _ in range(waiting.qsize()):  # Faust takes one at each turn of the event loop: partitions would queue
                accept(waiting.get_nowait())

    take.__name__ = take.__qualname__ = f"take_{topic}"
    take.__doc__ = f"Takes records of {topic} for retryapp."
    app.agent(channel, name=f"retryapp.{topic}")(take)
    return channel
