"""Keep the rows of an ordered handler that cannot be read: nobody knows their sequences, so none of these has them.

Each is claimed at once, and whoever claims it says what is wrong: it is dead, or a newer build has written it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from retryapp.ports import PendingTable


class Unread:
    """Those of one session of a partition."""

    def __init__(self) -> None:
        self._identities: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self._identities)

    def add(self, identity: bytes) -> None:
        self._identities[identity] = None

    def end(self, identity: bytes) -> bool:
        """Note that a row has ended; tell whether it was the last one of these."""
        was_here = identity in self._identities
        self._identities.pop(identity, None)
        return was_here and not self._identities

    def claimable(self, table: PendingTable, claimed: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield those that have no claim, with their keys."""
        for identity in list(self._identities):
            key = table.find(identity)
            value = None if key is None else table.get(key)
            if key is not None and value is not None and key not in claimed:
                yield key, value
