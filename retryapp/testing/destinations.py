"""Topics that handlers publish to, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from retryapp.core.publication import Seen


class MemoryDestinations:
    """`ports.destinations.DestinationReader` that knows the topics which a test names."""

    def __init__(self, topics: Mapping[str, int | Seen] | None = None) -> None:
        """Take the topics.

        Args:
            topics: how many partitions each has, or all that is seen of it. None: every topic is there, with one.
        """
        self.topics = None if topics is None else dict(topics)
        self.looked: list[str] = []
        """Topics that were looked at, in order."""
        self.error: Exception | None = None
        """What a look raises."""

    async def look(self, topic: str) -> Seen | None:
        """See `ports.destinations.DestinationReader.look`."""
        self.looked.append(topic)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        found = 1 if self.topics is None else self.topics.get(topic)
        return Seen(found) if isinstance(found, int) else found
