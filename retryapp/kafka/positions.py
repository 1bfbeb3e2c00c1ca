"""Where topics end and how far a group has come, for many partitions in one question.

A group's offsets are *stable* when no open transaction moves them; the broker is asked again until they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its public name, which it does not list

from retryapp.core.errors import EnvironmentFault
from retryapp.kafka.admin import COORDINATOR_COMING, DEFAULT_TIMEOUT_S, EARLIEST, LATEST, KafkaAdmin, Place
from retryapp.kafka.connection import KafkaConnection, named_error

TRANSACTION_TIMEOUT_MS: Final = 15_000
"""How long committed readers wait if all workers die in a transaction: timeout of a lane's transactions."""
UNSTABLE: Final = "UNSTABLE_OFFSET_COMMIT"
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.25


class OpenTransactionError(EnvironmentFault):
    """A transaction does not end, so its records are undecided. Operator action: find the producer that hangs."""


class _Patience:
    """Waits for the end of transactions, longer each time."""

    def __init__(self, longest_s: float, on_wait: Callable[[str], None] | None, connection: KafkaConnection) -> None:
        self._command = connection.complete("'kafka-transactions.sh find-hanging --broker-id N'")
        self._longest_s = longest_s
        self._on_wait = on_wait
        self._waited_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def wait(self, what: str) -> None:
        if self._waited_s > self._longest_s:
            raise OpenTransactionError(
                f"{what}: a transaction is open for more than {self._longest_s:g} s. The broker ends those of killed "
                f"workers after {TRANSACTION_TIMEOUT_MS // 1000} s; {self._command} names one that is never ended. Try "
                f"again"
            )
        if self._on_wait is not None and self._waited_s > 1:
            self._on_wait(f"waiting for the end of a transaction: {what}")
        threading.Event().wait(self._pause_s)
        self._waited_s += self._pause_s
        self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)


class Positions(KafkaAdmin):
    """Asks one cluster; waits at most about ``transaction_s`` for the end of transactions."""

    def __init__(
        self, connection: KafkaConnection, *, timeout_s: float = DEFAULT_TIMEOUT_S, transaction_s: float = 60.0
    ) -> None:
        super().__init__(connection, timeout_s=timeout_s)
        self.transaction_s = transaction_s

    def begins(self, places: Collection[Place]) -> dict[Place, int]:
        """Return the first offset that is kept, by partition."""
        return self.list_offsets(dict.fromkeys(places, EARLIEST))

    def ends(self, places: Collection[Place], *, committed: bool = True) -> dict[Place, int]:
        """Return the offset after the last record, by partition; `committed`: before the first open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self.list_offsets(dict.fromkeys(places, LATEST), level)

    def settled_ends(self, places: Collection[Place], on_wait: Callable[[str], None] | None = None) -> dict[Place, int]:
        """Return where partitions end now, once every transaction before these ends is over.

        `on_wait` gets what is waited for, when it takes longer.

        Raises:
            OpenTransactionError: one is not over in time.
        """
        ends = self.ends(places, committed=False)
        patience = _Patience(self.transaction_s, on_wait, self.connection)
        late = list(places)
        while True:
            reached = self.ends(late)
            late = [place for place in late if reached[place] < ends[place]]
            if not late:
                return ends
            patience.wait(f"topic {late[0][0]}[{late[0][1]}]")

    def at_time(self, places: Collection[Place], instant_ms: int) -> dict[Place, int | None]:
        """Return the first offset whose timestamp is not before an instant, by partition; None where there is none."""
        spec = OffsetSpec.for_timestamp(instant_ms)
        found = self.list_offsets(dict.fromkeys(places, spec))
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def group_offsets(
        self, group: str, places: Collection[Place], on_wait: Callable[[str], None] | None = None
    ) -> dict[Place, int | None]:
        """Return a group's committed offsets by partition, None where it has none.

        Each is of a moment without a transaction; `on_wait` gets what is waited for, when it takes longer.

        Raises:
            OpenTransactionError: a transaction that moves them is not over in time.
        """
        todo = list(places)
        found: dict[Place, int | None] = {}
        patience = _Patience(self.transaction_s, on_wait, self.connection)
        while todo:
            self.describe_group(group)
            asked = [(place, self._ask_group(group, place)) for place in todo]
            todo = [place for place, future in asked if not self._take(group, future, found)]
            if not todo:
                break
            patience.wait(f"offset of group {group} in {todo[0][0]}[{todo[0][1]}]")
        return found

    def _ask_group(self, group: str, place: Place) -> Future[Any]:
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(*place)])
        ask = self._client.list_consumer_group_offsets
        future: Future[Any] = ask([request], require_stable=True, request_timeout=self.timeout_s)[group]
        return future

    def _take(self, group: str, future: Future[Any], found: dict[Place, int | None]) -> bool:  # False: ask again
        doing = f"read the offsets of group {group}"
        with self._naming(doing, right="Describe"):
            try:
                places = future.result(self.timeout_s * 2).topic_partitions
            except KafkaException as error:
                if error.args[0].name() in COORDINATOR_COMING | {UNSTABLE}:
                    return False
                raise
        if any(place.error is not None and place.error.name() == UNSTABLE for place in places):
            return False
        for place in places:
            if place.error is not None:
                raise named_error(
                    place.error, self.connection, doing=doing, topic=place.topic, tried_s=0.0, right="Describe"
                )
            found[place.topic, place.partition] = place.offset if place.offset >= 0 else None
        return True
