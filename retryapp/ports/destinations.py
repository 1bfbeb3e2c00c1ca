"""What the engine needs to know of topics that are not ours and that handlers publish to."""

from __future__ import annotations

from typing import Protocol

from retryapp.core.publication import Seen


class DestinationReader(Protocol):
    """Looks at topics."""

    async def look(self, topic: str) -> Seen | None:
        """Return how a topic is now; None: there is none. Never creates one.

        Raises:
            Exception: nobody could tell.
        """
        ...
