"""Topics that handlers publish to, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from typing_extensions import override

from retryapp.core.publication import TopicLook
from retryapp.ports import DestinationReader


class MemoryDestinations(DestinationReader):
    """`ports.DestinationReader` over topics that a test names.

    Args:
        topics: number of partitions of each, or all that is seen of it. None: every topic exists, with one partition.
    """

    def __init__(self, topics: Mapping[str, int | TopicLook] | None = None) -> None:
        self.topics = None if topics is None else dict(topics)
        self.looked: list[str] = []
        self.error: Exception | None = None

    @override
    async def look(self, topic: str) -> TopicLook | None:
        self.looked.append(topic)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        seen = 1 if self.topics is None else self.topics.get(topic)
        return TopicLook(seen) if isinstance(seen, int) else seen


class BesideMain(DestinationReader):
    """The same, and a partition's own main topic, which exists where a test does not name it."""

    def __init__(self, others: DestinationReader, main: str) -> None:
        self._others = others
        self._main = main

    @override
    async def look(self, topic: str) -> TopicLook | None:
        seen = await self._others.look(topic)
        return TopicLook(1) if seen is None and topic == self._main else seen
