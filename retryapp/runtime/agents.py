"""One Faust agent per topic, which takes records in batches from a channel in memory.

Faust supervises the agents and lists them by their topics, but brings them nothing: the runtime puts into their
channels what the engine has room for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import faust
from faust.channels import Channel
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from retryapp.core.record import Damage, Record
from retryapp.engine.feed import Batch
from retryapp.runtime.unreadable import Unreadable


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

    def put_now(self, batch: Batch) -> bool:
        """Hand a batch to the agent; False while the agent is being restarted."""
        for subscriber in self._subscribers:
            subscriber.queue.put_nowait(batch)
        return bool(self._subscribers)


def register_agent(app: faust.App, topic: str, accept: Callable[[Batch], None]) -> IntakeChannel:
    """Attach the agent of a topic.

    Args:
        app: gets the agent.
        topic: its name.
        accept: given each batch; must not raise, or Faust would acknowledge and skip it.

    Returns:
        The channel that leads to the agent.
    """
    channel = IntakeChannel(app, topic, maxsize=0)

    async def take(stream: Any) -> None:
        async for batch in stream:
            accept(batch)

    take.__name__ = take.__qualname__ = f"take_{topic}"
    take.__doc__ = f"Takes records of {topic} for retryapp."
    app.agent(channel, name=f"retryapp.{topic}")(take)
    return channel


def to_record(found: Any) -> Record:
    """Return what the client fetched, or could not read, as the engine's record."""
    if isinstance(found, Unreadable):  # empty, not null: null would be a tombstone for whoever copies the dead letter
        damage = Damage(found.last_offset, found.problem)
        return Record(found.topic, found.partition, found.offset, found.timestamp, None, b"", (), damage)
    return Record(
        found.topic, found.partition, found.offset, found.timestamp, found.key, found.value, tuple(found.headers)
    )
