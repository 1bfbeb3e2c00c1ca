"""One delivery on its way: what is known of it, and how it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Record
from retryapp.engine.handler import Delivery, Handler
from retryapp.engine.publish import Outbox
from retryapp.engine.turn import Turn
from retryapp.ports import Clock, Random

Outcome = Turn | int
"""What settles a record: a turn, or the offset behind a record that was fine at once and leaves nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What deliveries of one handler and partition share."""

    handler: Handler
    clock: Clock
    random: Random
    topic_id: str
    max_bytes: int
    """Largest record that our topics take."""
    life: str = "?"
    """Names this process among all that ever were; see `core.marks`."""
    lapsed: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Tells whether the group may have given the partition to another worker without this one having heard of it."""
    alone: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Held while a record runs that may have killed a worker; shared by all partitions of this one."""


class RunAbortedError(Exception):
    """The run was given up because its lane ended; its record will be read again by whoever owns it next."""


class GivenUpError(Exception):
    """The run ended after nobody waited for it any more; its runner has to end too."""


class RunOwner(Protocol):
    """Whose records are delivered: a partition."""

    def alive(self, run: Run) -> bool:
        """Tell whether its outcome would still count."""
        ...

    def begun(self, run: Run) -> None:
        """Take note that a runner has it: from here on `ended` will be called."""
        ...

    def ended(self, run: Run, outcome: Outcome | None, fault: Exception | None) -> None:
        """Take the outcome; None when there is none, with what went wrong where that is a fault of ours."""
        ...


class Watch(Protocol):
    """Who sees to it that runs end."""

    def begun(self, run: Run, timeout_s: float) -> None:
        """Watch a run from here on."""
        ...

    async def over(self, run: Run) -> None:
        """Watch a run no longer, and let no cancellation that it caused or was sent reach anything after it.

        Raises `GivenUpError` when it is too late, `RunAbortedError` when its outcome does not count.
        """
        ...

    def cancel(self, run: Run) -> None:
        """Tell a run to stop, and wait for that only so long."""
        ...


@dataclass(slots=True, eq=False)
class Run:
    """One delivery on its way: queued, begun, ended or given up."""

    owner: RunOwner
    context: DeliveryContext
    record: Record
    source: Any = None
    """For the owner: where it was read."""
    session: int = 0
    begun: bool = False
    """The handler was called; before that a delivery may be given up at no cost."""
    aborted: bool = False
    overdue: bool = False
    """It ran longer than the policy allows."""
    given_up: bool = False
    """It went on after it was told to stop; its outcome does not count any more."""
    on_end: Callable[[], None] | None = None
    """Called when its owner knows of its end."""
    watch: Watch | None = None
    task: asyncio.Task[Any] | None = None
    deadline_s: float = 0.0
    shown: Record = field(init=False)
    """What the handler sees; known once it has begun."""
    metadata: RetryMetadata | None = None
    delivery: Delivery | None = None
    outbox: Outbox | None = None
    """Where its handler publishes; None where the function does not take a delivery."""
    started_ms: int | None = None
    started_s: float = 0.0

    def __post_init__(self) -> None:
        self.shown = self.record

    def abort(self) -> None:
        """Cancel the handler; its outcome will be ignored."""
        if not self.aborted:
            self.aborted = True
            if self.task is not None and self.watch is not None:
                self.watch.cancel(self)
