"""A group as its topics show it, for when no worker answers: what waits, and what is dead and why.

The changelog and the dead-letter topic are read once from their beginning, later only what is new.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from retryapp.core.headers import RETRY_REASON
from retryapp.core.record import Record
from retryapp.core.rows import is_identity, row_due_ms
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.terminal import Group, HandlerFigures

_MINUTE_MS = 60_000


class Stations:
    """Reads the topics of a group repeatedly. Memory: some 200 bytes for each waiting record."""

    def __init__(self, connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> None:
        self._connection = connection
        self._topologies = topologies
        self._waiting: dict[str, dict[bytes, int]] = defaultdict(dict)
        """When each waiting record is due, by identity."""
        self._dead: dict[str, Counter[str]] = defaultdict(Counter)
        self._starts: dict[str, dict[int, int]] = defaultdict(dict)
        self._before_ms: int | None = None

    def ask(self, now_ms: int) -> Group:
        """Return the group's figures, with rates since the last call.

        Raises:
            BrokerUnreachableError, TopicMissingError: the topics cannot be read.
        """
        elapsed_s = None if self._before_ms is None else max(0.001, (now_ms - self._before_ms) / 1_000)
        figures = []
        for topology in self._topologies:
            failures, dead = self._read(topology), self._dead[topology.main]
            dues = self._waiting[topology.main].values()
            figures.append(
                HandlerFigures(
                    main=topology.main,
                    pending=len(dues),
                    next_due_ms=min(dues, default=None),
                    due_next_minute=sum(now_ms <= due_ms < now_ms + _MINUTE_MS for due_ms in dues),
                    dead=dead.total(),
                    dead_by_reason=dict(dead),
                    failures_per_s=None if elapsed_s is None else failures / elapsed_s,
                )
            )
        self._before_ms = now_ms
        group = self._topologies[0].group
        return Group(group=group, now_ms=now_ms, source="topics", workers=(), handlers=figures, lanes=())

    def _read(self, topology: HandlerTopology) -> int:
        """Read what is new; return how many failures that is."""
        failures, waiting = 0, self._waiting[topology.main]
        for record in self._new(topology.pending_changelog):
            if record.key is None or not is_identity(record.key):
                continue
            if record.value is None:
                waiting.pop(record.key, None)
            else:
                waiting[record.key] = row_due_ms(record.value)
                failures += 1
        for record in self._new(topology.dlq):
            reason = dict(record.headers).get(RETRY_REASON) or b"unknown"
            self._dead[topology.main][reason.decode(errors="replace")] += 1
            failures += 1
        return failures

    def _new(self, topic: str) -> Iterator[Record]:
        starts = self._starts[topic]
        for record in read_topic(self._connection, topic, start=dict(starts)):
            starts[record.partition] = record.offset + 1
            yield record
