"""A group as its topics tell it, for when no worker answers: what waits, and what is dead and why.

The changelog and the dead-letter topic are read once from their beginning, later only what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retryapp.core.headers import RETRY_REASON
from retryapp.core.record import Record
from retryapp.core.rows import ROW_KEY_BYTES, parse_row_key
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.terminal import Group, HandlerFigures

_MINUTE_MS = 60_000


@dataclass(slots=True)
class _Known:
    """What was read of one handler's topics."""

    topology: HandlerTopology
    waiting: set[bytes] = field(default_factory=set)
    """Row keys: 20 bytes each, and some 100 with Python's share."""
    dead: Counter[str] = field(default_factory=Counter)
    places: dict[str, dict[int, int]] = field(default_factory=dict)


class Stations:
    """Reads the topics of a group, again and again."""

    def __init__(self, connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> None:
        """Args: connection: the cluster. topologies: the handlers."""
        self._connection = connection
        self._known = [_Known(topology) for topology in topologies]
        self._before_ms: int | None = None

    def ask(self, now_ms: int) -> Group:
        """Return how the group stands.

        Raises:
            BrokerUnreachableError, TopicMissingError: the topics cannot be read.
        """
        elapsed_s = None if self._before_ms is None else max(0.001, (now_ms - self._before_ms) / 1_000)
        figures = []
        for known in self._known:
            failed = self._read(known)
            dues = [parse_row_key(key).due_at_ms for key in known.waiting]
            figures.append(
                HandlerFigures(
                    main=known.topology.main,
                    pending=len(dues),
                    next_due_ms=min(dues, default=None),
                    due_next_minute=sum(now_ms <= due_ms < now_ms + _MINUTE_MS for due_ms in dues),
                    dead=known.dead.total(),
                    dead_by_reason=dict(known.dead),
                    failures_per_s=None if elapsed_s is None else failed / elapsed_s,
                )
            )
        self._before_ms = now_ms
        return Group(
            group=self._known[0].topology.group if self._known else "?",
            now_ms=now_ms,
            source="topics",
            workers=(),
            handlers=figures,
            lanes=(),
        )

    def _read(self, known: _Known) -> int:
        """Take in what is new; return how many failures that is."""
        failed = 0
        changelog, dlq = known.topology.pending_changelog, known.topology.dlq
        for record in self._new(known, changelog):
            if record.key is None or len(record.key) != ROW_KEY_BYTES:
                continue
            if record.value is None:
                known.waiting.discard(record.key)
            else:
                known.waiting.add(record.key)
                failed += 1
        for record in self._new(known, dlq):
            reasons = [value for name, value in record.headers if name == RETRY_REASON]
            known.dead[(reasons[0] or b"").decode(errors="replace") if reasons else "unknown"] += 1
            failed += 1
        return failed

    def _new(self, known: _Known, topic: str) -> Iterator[Record]:
        """Yield what was not read yet."""
        places = known.places.setdefault(topic, {})
        for record in read_topic(self._connection, topic, start=dict(places)):
            places[record.partition] = record.offset + 1
            yield record
