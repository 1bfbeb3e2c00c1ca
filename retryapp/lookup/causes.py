"""Why records wait or are dead: failures grouped by cause, read from the group's topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from retryapp.core.causes import CauseCount
from retryapp.core.control import is_mark, is_open, mark_of
from retryapp.core.failed import failed_of, row_failed_of
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, fold_changelog, read_topic, with_dead_letters


def list_causes(connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> list[dict[str, Any]]:
    """Return the causes of what waits and of open dead letters, the most frequent first.

    Memory is some 300 bytes for each letter. What is damaged has no cause, and is left out.
    """
    causes: dict[tuple[str, str], dict[str, Any]] = {}
    for topology in topologies:
        rows = fold_changelog(connection, topology.pending_changelog, lambda _, value: value)
        for value in rows.values():
            _count(causes, topology.main, row_failed_of(value), "waiting")
        for failure in _lying(connection, topology):
            _count(causes, topology.main, failure, "dead")
    return sorted(causes.values(), key=lambda each: (-each["waiting"] - each["dead"], each["cause_id"]))


def _lying(connection: KafkaConnection, topology: HandlerTopology) -> Iterator[CauseCount | None]:
    for topic in with_dead_letters(topology, KafkaAdmin(connection).topic_names()).dlqs:
        letters: dict[tuple[int, int], CauseCount | None] = {}
        gone: dict[tuple[int, int], bool] = {}
        for record in read_topic(connection, topic):
            if not is_mark(record.headers):
                letters[record.partition, record.offset] = failed_of(record.headers)
            elif (mark := mark_of(record.headers, record.value)) is not None:
                gone[record.partition, mark.letter] = not is_open(mark.mark)
        yield from (failure for place, failure in letters.items() if not gone.get(place))


def _count(causes: dict[tuple[str, str], dict[str, Any]], main: str, failure: CauseCount | None, state: str) -> None:
    if failure is None:
        return
    new = {
        "main": main, "cause_id": failure.cause_id, "cause": failure.name, "attempts": 0,
        "first_failed_ms": failure.first_ms, "last_failed_ms": failure.last_ms, "waiting": 0, "dead": 0,
    }  # fmt: skip
    cause = causes.setdefault((main, failure.cause_id), new)
    cause[state] += 1
    cause["attempts"] += failure.attempts
    cause["first_failed_ms"] = min(cause["first_failed_ms"], failure.first_ms)
    cause["last_failed_ms"] = max(cause["last_failed_ms"], failure.last_ms)
    cause["sample"] = failure.sample
