"""Where topics end and how far a group has come, for many partitions in one question.

Ends are asked for in two ways, and what lies between them is open: `committed` ends are as far as a committed reader
gets, the others include what transactions have written that are not over yet. A group's offsets are *stable* when no
transaction that moves them is under way; the broker is asked again until they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its public names, which it does not list
    AdminClient,
    OffsetSpec,
)

from retryapp.core.errors import BrokerUnreachableError, EnvironmentFault
from retryapp.kafka.admin import EARLIEST, LATEST, PASSING, PAUSE_S
from retryapp.kafka.connection import KafkaConnection, named_error
from retryapp.kafka.coordinator import COORDINATOR_COMING, describe_group

Place = tuple[str, int]
"""Topic and partition number."""

UNSTABLE: Final = "UNSTABLE_OFFSET_COMMIT"
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.25


class OpenTransactionError(EnvironmentFault):
    """A transaction does not end, so nobody can say what is there. Operator action: find the producer that hangs."""

    def __init__(self, what: str, waited_s: float) -> None:
        """Args: what: what waits for its end. waited_s: how long was waited, in seconds."""
        self.what = what
        super().__init__(
            f"{what}: a transaction is open for more than {waited_s:g} s. The broker ends those of killed workers "
            f"after 15 s; 'kafka-transactions.sh find-hanging' names one that nobody ends. Try again"
        )


class _Patience:
    """Waits for the end of transactions, longer each time."""

    def __init__(self, longest_s: float, on_wait: Callable[[str], None] | None) -> None:
        self._longest_s = longest_s
        self._on_wait = on_wait
        self._waited_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def wait(self, what: str) -> None:
        """Wait once more for what is named, unless it has been too long."""
        if self._waited_s > self._longest_s:
            raise OpenTransactionError(what, self._longest_s)
        if self._on_wait is not None and self._waited_s > 1:
            self._on_wait(f"waiting for the end of a transaction: {what}")
        threading.Event().wait(self._pause_s)
        self._waited_s += self._pause_s
        self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)


class Positions:
    """Asks one cluster; every question ends in about ``timeout_s``, or raises a named error."""

    def __init__(self, connection: KafkaConnection, *, timeout_s: float = 15.0, transaction_s: float = 60.0) -> None:
        """Make the client.

        Args:
            connection: the cluster.
            timeout_s: longest wait for an answer.
            transaction_s: longest wait for the end of a transaction.
        """
        self.connection = connection
        self.timeout_s = timeout_s
        self.transaction_s = transaction_s
        # The client object must outlive its futures, so it lives as long as we do.
        self._client = connection.client(
            AdminClient, socket_timeout_ms=max(10, int(timeout_s * 1000)), allow_auto_create_topics=False
        )

    def begins(self, places: Collection[Place]) -> dict[Place, int]:
        """Return the first offset that is kept, by partition."""
        return self._offsets(dict.fromkeys(places, EARLIEST), IsolationLevel.READ_COMMITTED)

    def ends(self, places: Collection[Place], *, committed: bool = True) -> dict[Place, int]:
        """Return the offset behind the last record, by partition.

        Args:
            places: which partitions.
            committed: leave out what lies behind the beginning of an open transaction.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(dict.fromkeys(places, LATEST), level)

    def settled_ends(self, places: Collection[Place], on_wait: Callable[[str], None] | None = None) -> dict[Place, int]:
        """Return where partitions end now, once every transaction before these ends is over.

        Args:
            places: which partitions.
            on_wait: told what is waited for, when it takes longer.

        Raises:
            OpenTransactionError: one is not over in time.
        """
        ends = self.ends(places, committed=False)
        patience = _Patience(self.transaction_s, on_wait)
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
        found = self._offsets(dict.fromkeys(places, spec), IsolationLevel.READ_COMMITTED)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def group_offsets(
        self, group: str, rows: Iterable[Collection[Place]], on_wait: Callable[[str], None] | None = None
    ) -> dict[Place, int | None]:
        """Return a group's committed offsets, each row's as of one moment at which no transaction was moving them.

        Args:
            group: its name.
            rows: partitions that belong together.
            on_wait: told what is waited for, when it takes longer.

        Returns:
            Partition → committed offset; None where there is none.

        Raises:
            OpenTransactionError: a transaction that moves them is not over in time.
        """
        todo = [list(row) for row in rows]
        found: dict[Place, int | None] = {}
        patience = _Patience(self.transaction_s, on_wait)
        while todo:
            self._await_coordinator(group)
            asked = [(row, self._ask_group(group, row)) for row in todo]
            todo = [row for row, future in asked if not self._take(group, future, found)]
            if not todo:
                break
            patience.wait(f"offset of group {group} in {todo[0][0][0]}[{todo[0][0][1]}]")
        return found

    def _await_coordinator(self, group: str) -> None:
        doing = f"read the offsets of group {group}"
        try:
            with self._answering(doing):
                describe_group(self._client, group, timeout_s=self.timeout_s)
        except KafkaException as error:
            raise named_error(error, self.connection, doing=doing, tried_s=self.timeout_s) from error

    def _ask_group(self, group: str, row: Collection[Place]) -> Future[Any]:
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in row])
        answers = self._client.list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=self.timeout_s
        )
        future: Future[Any] = answers[group]
        return future

    def _take(self, group: str, future: Future[Any], found: dict[Place, int | None]) -> bool:
        """Take an answer in; False where it has to be asked for again."""
        doing = f"read the offsets of group {group}"
        try:
            places = self._result(future, doing=doing).topic_partitions
        except KafkaException as error:
            if error.args[0].name() in COORDINATOR_COMING | {UNSTABLE}:
                return False
            raise named_error(error, self.connection, doing=doing, tried_s=self.timeout_s) from error
        if any(place.error is not None and place.error.name() == UNSTABLE for place in places):
            return False
        for place in places:
            if place.error is not None:
                raise named_error(place.error, self.connection, doing=doing, topic=place.topic, tried_s=0.0)
            found[place.topic, place.partition] = place.offset if place.offset >= 0 else None
        return True

    def _offsets(self, wanted: Mapping[Place, OffsetSpec], level: IsolationLevel) -> dict[Place, int]:
        """Ask for offsets; while a leader is being elected, ask again."""
        todo, found, budget_s = dict(wanted), dict[Place, int](), self.timeout_s
        while todo:
            futures = self._client.list_offsets(
                {TopicPartition(*place): spec for place, spec in todo.items()},
                isolation_level=level,
                request_timeout=self.timeout_s,
            )
            for place, future in futures.items():
                doing = f"read offsets of topic {place.topic}"
                try:
                    found[place.topic, place.partition] = int(self._result(future, doing=doing).offset)
                except KafkaException as error:
                    if error.args[0].name() not in PASSING or budget_s <= 0:
                        raise named_error(
                            error, self.connection, doing=doing, topic=place.topic, tried_s=self.timeout_s
                        ) from error
            todo = {place: spec for place, spec in todo.items() if place not in found}
            if todo:
                threading.Event().wait(PAUSE_S)
                budget_s -= PAUSE_S
        return found

    def _result(self, future: Future[Any], *, doing: str) -> Any:
        with self._answering(doing):
            return future.result(self.timeout_s * 2)

    @contextmanager
    def _answering(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FutureTimeoutError as error:
            raise BrokerUnreachableError(
                self.connection.bootstrap, f"could not {doing} within {self.timeout_s * 2:g} s"
            ) from error
