"""Why records wait or are dead: failures grouped by cause, read from the group's topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from sys import intern
from typing import Any, NamedTuple

from retryapp.core.causes import CauseCount, cause_id, cause_name, summed
from retryapp.core.control import is_mark, is_open, mark_of
from retryapp.core.errors import DamagedMetadataError, DamagedRowError, NewerRowError
from retryapp.core.headers import decode_metadata
from retryapp.core.record import Headers
from retryapp.core.rows import decode_row
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, fold_changelog, read_topic, with_dead_letters


class _Failure(NamedTuple):
    """What a record has failed of."""

    cause_id: str
    cause: str
    attempts: int
    first_failed_ms: int
    last_failed_ms: int
    sample: str


def list_causes(connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> list[dict[str, Any]]:
    """Return the causes of what waits and of open dead letters, the most frequent first.

    Memory is some 300 bytes for each letter. What is damaged has no cause, and is left out.
    """
    causes: dict[tuple[str, str], dict[str, Any]] = {}
    for topology in topologies:
        rows = fold_changelog(connection, topology.pending_changelog, lambda _, value: value)
        for value in rows.values():
            with suppress(DamagedRowError, NewerRowError):
                _count(causes, topology.main, _read(decode_row(value).headers), "waiting")
        for failure in _lying(connection, topology):
            _count(causes, topology.main, failure, "dead")
    return sorted(causes.values(), key=lambda each: (-each["waiting"] - each["dead"], each["cause_id"]))


def causes_of(values: Iterable[bytes]) -> list[CauseCount]:
    """Return the causes of rows, the most frequent first."""
    found: list[_Failure] = []
    for value in values:
        with suppress(DamagedRowError, NewerRowError):
            if (failure := _read(decode_row(value).headers)) is not None:
                found.append(failure)
    return summed(
        CauseCount(
            cause_id=each.cause_id, name=each.cause, records=1, attempts=each.attempts, first_ms=each.first_failed_ms,
            last_ms=each.last_failed_ms, sample=each.sample,
        )
        for each in found
    )  # fmt: skip


def _lying(connection: KafkaConnection, topology: HandlerTopology) -> Iterator[_Failure | None]:
    for topic in with_dead_letters(topology, KafkaAdmin(connection).topic_names()).dlqs:
        letters: dict[tuple[int, int], _Failure | None] = {}
        gone: dict[tuple[int, int], bool] = {}
        for record in read_topic(connection, topic):
            if not is_mark(record.headers):
                letters[record.partition, record.offset] = _read(record.headers)
            elif (mark := mark_of(record.headers, record.value)) is not None:
                gone[record.partition, mark.letter] = not is_open(mark.mark)
        yield from (failure for place, failure in letters.items() if not gone.get(place))


def _read(headers: Headers) -> _Failure | None:
    with suppress(DamagedMetadataError):
        read = decode_metadata(headers)
        if read is not None and not read.held:  # else nothing has failed
            named = cause_id(read.error_type, read.fingerprint, read.error_message)
            name = intern(cause_name(read.error_type, None, read.error_message))
            return _Failure(named, name, read.attempt, read.first_failed_ms, read.last_failed_ms, read.failure_id)
    return None


def _count(causes: dict[tuple[str, str], dict[str, Any]], main: str, failure: _Failure | None, state: str) -> None:
    if failure is None:
        return
    new = {"main": main, **failure._asdict(), "attempts": 0, "waiting": 0, "dead": 0}
    cause = causes.setdefault((main, failure.cause_id), new)
    cause[state] += 1
    cause["attempts"] += failure.attempts
    cause["first_failed_ms"] = min(cause["first_failed_ms"], failure.first_failed_ms)
    cause["last_failed_ms"] = max(cause["last_failed_ms"], failure.last_failed_ms)
    cause["sample"] = failure.sample
