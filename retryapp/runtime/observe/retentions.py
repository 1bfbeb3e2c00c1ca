"""Watches the retention of the topics that records wait in, for the metrics: it may change after the start."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

from retryapp.core.errors import RetryAppError
from retryapp.engine.handler.threads import NoThreadError, Threads
from retryapp.engine.worker.placement import Served
from retryapp.kafka import KafkaAdmin, KafkaConnection, Plan, TopicState
from retryapp.runtime.observe.metrics import Retention

logger = logging.getLogger(__name__)

EVERY_S: Final = 300.0  # between two looks at the topics
SETTING: Final = "retention.ms"


class RetentionWatch:
    """The retention of every retry and redelivery topic of a worker's handlers."""

    def __init__(self, served: Mapping[str, Served], connection: Callable[[], KafkaConnection]) -> None:
        self._served = served
        self._connection = connection
        self._admin: KafkaAdmin | None = None
        self._needed_s: dict[str, float] = {}
        self._topics_s: dict[str, float] = {}
        self._threads = Threads(keep=1)  # daemons: a process that ends does not wait for a broker

    def learn(self, plan: Plan) -> None:
        """Take what a start found."""
        for step in plan.steps:
            if SETTING in step.config and step.topic in self._names(step.main):
                self._needed_s[step.main] = _seconds(step.config[SETTING])
        self._update(plan.states)

    def retentions(self) -> dict[str, Retention]:
        """Return what is known, by main topic."""
        return {
            main: Retention(
                longest_wait_s=self._served[main].handler.policy.longest_wait_ms / 1_000,
                needed_s=needed_s,
                topics_s={name: self._topics_s[name] for name in self._names(main) if name in self._topics_s},
            )
            for main, needed_s in self._needed_s.items()
        }

    async def run(self, every_s: float = EVERY_S) -> None:
        """Look periodically until cancelled; what cannot be looked at keeps its last value."""
        while True:
            await asyncio.sleep(every_s)
            try:
                error = (await self._threads.run(self._look, name="look-at-retentions")).error
            except NoThreadError as exc:
                error = exc
            if error is not None:
                level = logging.INFO if isinstance(error, RetryAppError) else logging.WARNING
                logger.log(level, "The retention of our topics could not be read: %r", error)

    def _look(self) -> None:
        if self._admin is None:
            self._admin = KafkaAdmin(self._connection())
        self._update(self._admin.describe_topics(name for main in self._served for name in self._names(main)))

    def _update(self, states: Mapping[str, TopicState]) -> None:
        """Replace what is known; a topic that is gone, or may not be described, has no value."""
        names = (name for main in self._served for name in self._names(main) if name in states)
        self._topics_s = {
            name: _seconds(states[name].config[SETTING]) for name in names if SETTING in states[name].config
        }

    def _names(self, main: str) -> tuple[str, ...]:
        served = self._served.get(main)
        return (*served.handler.topology.retry_topics, served.handler.topology.redelivery) if served else ()


def _seconds(retention_ms: str) -> float:
    return math.inf if int(retention_ms) < 0 else int(retention_ms) / 1_000
