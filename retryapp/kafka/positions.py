"""Where topics end and how far a group has come, for many partitions in one question.

A group's offsets are *stable* when no open transaction moves them; the broker is asked again until they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
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
from retryapp.kafka.connection import KafkaConnection, named_error

Place = tuple[str, int]  # topic and partition number

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

PASSING: Final = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PART",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
    }
)
"""Names of errors of an existing partition that mean: no leader knows of it yet, ask again."""
PAUSE_S: Final = 0.1
COORDINATOR_COMING: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Names of errors that mean: the group's coordinator is being chosen or loads (on a new broker too)."""
UNSTABLE: Final = "UNSTABLE_OFFSET_COMMIT"
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.25


class OpenTransactionError(EnvironmentFault):
    """A transaction does not end, so its records are undecided. Operator action: find the producer that hangs."""

    def __init__(self, what: str, waited_s: float) -> None:
        self.what = what
        super().__init__(
            f"{what}: a transaction is open for more than {waited_s:g} s. The broker ends those of killed workers "
            f"after 15 s; 'kafka-transactions.sh find-hanging' names one that is never ended. Try again"
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
        """Return the offset after the last record, by partition; `committed`: before the first open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(dict.fromkeys(places, LATEST), level)

    def settled_ends(self, places: Collection[Place], on_wait: Callable[[str], None] | None = None) -> dict[Place, int]:
        """Return where partitions end now, once every transaction before these ends is over.

        `on_wait` gets what is waited for, when it takes longer.

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
        self, group: str, places: Collection[Place], on_wait: Callable[[str], None] | None = None
    ) -> dict[Place, int | None]:
        """Return a group's committed offsets by partition, None where it has none.

        Each is of a moment without a transaction; `on_wait` gets what is waited for, when it takes longer.

        Raises:
            OpenTransactionError: a transaction that moves them is not over in time.
        """
        todo = list(places)
        found: dict[Place, int | None] = {}
        patience = _Patience(self.transaction_s, on_wait)
        while todo:
            with self._answering(f"read the offsets of group {group}"):
                describe_group(self._client, group, timeout_s=self.timeout_s)
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
        with self._answering(doing):
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
                raise named_error(place.error, self.connection, doing=doing, topic=place.topic, tried_s=0.0)
            found[place.topic, place.partition] = place.offset if place.offset >= 0 else None
        return True

    def _offsets(self, wanted: Mapping[Place, OffsetSpec], level: IsolationLevel) -> dict[Place, int]:
        return list_offsets(self._client, self.connection, wanted, level, timeout_s=self.timeout_s)

    @contextmanager
    def _answering(self, doing: str) -> Iterator[None]:
        """Name the errors of a question."""
        try:
            yield
        except FutureTimeoutError as error:
            problem = f"could not {doing} within {self.timeout_s * 2:g} s"
            raise BrokerUnreachableError(self.connection.bootstrap, problem) from error
        except KafkaException as error:
            raise named_error(error, self.connection, doing=doing, tried_s=self.timeout_s) from error


def describe_group(client: AdminClient, group: str, *, timeout_s: float) -> Any:
    """Return a group as its coordinator describes it, once there is one: waits at most about `timeout_s`.

    Call it before asking for a group's offsets: if the coordinator is not known yet, the client library crashes the
    process on that question (a null pointer in librdkafka 2.16, its issue 5040), but not on this one.

    Raises:
        KafkaException: the broker refuses.
        concurrent.futures.TimeoutError: there is no answer.
    """
    budget_s = timeout_s
    while True:
        (future,) = client.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=timeout_s
        ).values()
        try:
            return future.result(timeout_s * 2)
        except KafkaException as error:
            if error.args[0].name() not in COORDINATOR_COMING or budget_s <= 0:
                raise
        threading.Event().wait(PAUSE_S)
        budget_s -= PAUSE_S


def list_offsets(
    client: AdminClient,
    connection: KafkaConnection,
    wanted: Mapping[Place, OffsetSpec],
    level: IsolationLevel,
    *,
    timeout_s: float,
) -> dict[Place, int]:
    """Return offsets of partitions; while a leader is being elected (a new topic, a broker restarts), ask again.

    Raises:
        BrokerUnreachableError: a broker did not answer.
        TopicMissingError: no such topic or partition.
    """
    todo, offsets, budget_s = dict(wanted), dict[Place, int](), timeout_s
    while todo:
        futures = client.list_offsets(
            {TopicPartition(*place): spec for place, spec in todo.items()},
            isolation_level=level,
            request_timeout=timeout_s,
        )
        for place, future in futures.items():
            doing = f"read offsets of topic {place.topic}"
            try:
                offsets[place.topic, place.partition] = int(future.result(timeout_s * 2).offset)
            except FutureTimeoutError as error:
                problem = f"could not {doing} within {timeout_s * 2:g} s"
                raise BrokerUnreachableError(connection.bootstrap, problem) from error
            except KafkaException as error:
                if error.args[0].name() not in PASSING or budget_s <= 0:
                    raise named_error(error, connection, doing=doing, topic=place.topic, tried_s=timeout_s) from error
        todo = {place: spec for place, spec in todo.items() if place not in offsets}
        if todo:
            threading.Event().wait(PAUSE_S)
            budget_s -= PAUSE_S
    return offsets
