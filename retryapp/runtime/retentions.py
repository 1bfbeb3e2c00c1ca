"""How long the topics that records wait in keep them: looked at while a worker runs, for its metrics.

A start refuses topics that keep records for too short. An operator may change them afterwards, and nothing would say so
before the next start, or before a record is gone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from retryapp.core.errors import RetryAppError
from retryapp.engine.placement import Served
from retryapp.engine.threads import NoThreadError, Threads
from retryapp.kafka import KafkaAdmin, KafkaConnection, Plan, TopicState
from retryapp.runtime.metrics import Retention

logger = logging.getLogger(__name__)

EVERY_S: Final = 300.0
"""How often the topics are looked at."""
SETTING: Final = "retention.ms"


class RetentionWatch:
    """Knows the retention of every retry and redelivery topic of a worker's handlers."""

    def __init__(self, served: Mapping[str, Served], connection: Callable[[], KafkaConnection]) -> None:
        """Begin knowing nothing.

        Args:
            served: the handlers, by main topic.
            connection: how to reach the cluster.
        """
        self._served = served
        self._connection = connection
        self._admin: KafkaAdmin | None = None
        self._needed_s: dict[str, float] = {}
        self._kept_s: dict[str, float] = {}
        self._threads = Threads(keep=1)  # daemons: a process that ends does not wait for a broker

    def learn(self, plan: Plan) -> None:
        """Take note of what a start has found, and of what it asked for."""
        for step in plan.steps:
            if SETTING in step.config and step.topic in self._names(step.main):
                self._needed_s[step.main] = _seconds(step.config[SETTING])
        self._see(plan.states)

    def told(self) -> dict[str, Retention]:
        """Return what is known, by main topic."""
        return {
            main: Retention(
                longest_wait_s=served.handler.policy.longest_wait_ms / 1_000,
                needed_s=self._needed_s[main],
                topics_s={name: self._kept_s[name] for name in self._names(main) if name in self._kept_s},
            )
            for main, served in self._served.items()
            if main in self._needed_s
        }

    async def run(self, every_s: float = EVERY_S) -> None:
        """Look again and again, until cancelled; what cannot be looked at stays as it was seen last."""
        while True:
            await asyncio.sleep(every_s)
            try:
                error = (await self._threads.run(self._look, name="look-at-retentions")).error
            except NoThreadError as exc:
                error = exc
            if error is not None:
                level = logging.INFO if isinstance(error, RetryAppError) else logging.WARNING
                logger.log(level, "The retention of our topics could not be looked at: %r", error)

    def _look(self) -> None:
        if self._admin is None:
            self._admin = KafkaAdmin(self._connection())
        self._see(self._admin.describe_topics(name for main in self._served for name in self._names(main)))

    def _see(self, states: Mapping[str, TopicState]) -> None:
        for main in self._served:
            for name in self._names(main):
                if name in states and SETTING in states[name].config:
                    self._kept_s[name] = _seconds(states[name].config[SETTING])
                else:
                    self._kept_s.pop(name, None)  # it is gone, or closed to us: an old number would be a lie

    def _names(self, main: str) -> tuple[str, ...]:
        if main not in self._served:
            return ()
        topology = self._served[main].handler.topology
        return (*topology.retry_topics, topology.redelivery)


def _seconds(retention_ms: str) -> float:
    """Return a retention in seconds.

    >>> _seconds("60000"), _seconds("-1")
    (60.0, inf)
    """
    return math.inf if int(retention_ms) < 0 else int(retention_ms) / 1_000
