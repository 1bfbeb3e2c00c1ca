"""Reads what topics have from an instant on, for as long as whoever asks goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from retryapp.core.record import Record
from retryapp.kafka import KafkaConnection, Positions, read_topic

_ASK_EVERY: Final = 500
_SKEW_MS: Final = 60_000
"""How far the clocks of brokers and of those who write may differ."""


class Reading:
    """Counts what it has looked at, and asks `go_on` now and then: False ends it."""

    def __init__(self, connection: KafkaConnection, go_on: Callable[[], bool]) -> None:
        self._connection = connection
        self._go_on = go_on
        self.looked = 0
        self.complete = True
        """Whether all was read that was asked for."""

    def since(self, topic: str, partitions: Collection[int], instant_ms: int) -> Iterator[Record]:
        """Yield the records of a topic that were written at an instant or later, and some before.

        Raises:
            TopicMissingError: no such topic or partition.
            BrokerUnreachableError: no broker answered.
        """
        places = [(topic, number) for number in partitions]
        found = Positions(self._connection).at_time(places, max(0, instant_ms - _SKEW_MS))
        start = {number: offset for (_, number), offset in found.items() if offset is not None}
        if not start:  # all is older
            return
        for record in read_topic(self._connection, topic, partitions=list(start), start=start):
            self.looked += 1
            if self.looked % _ASK_EVERY == 0 and not self._go_on():
                self.complete = False
                return
            yield record
