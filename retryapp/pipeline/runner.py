"""Drives one streaming query to its end: tells how far it is, stops it politely, names what it died of."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from retryapp.pipeline.failures import named_failure

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
STOP_S: Final = 30.0
STOP_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run has come."""

    rows: int
    """Rows read so far."""
    rows_per_s: float
    """Rate of the last batch."""
    batches: int
    behind: int | None
    """Offsets between the last batch and the ends of the topics; None where not known yet."""


@dataclass(slots=True)
class Driven:
    """What a query has done."""

    rows: int = 0
    batches: int = 0
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Next offset of each partition that was read."""
    interrupted: bool = False


OnProgress = Callable[[RunProgress], None]


def drive(
    query: StreamingQuery,
    *,
    job: str,
    resumed: bool = False,
    on_progress: OnProgress | None = None,
    stopped: threading.Event | None = None,
    lost: Sequence[threading.Event] = (),
) -> Driven:
    """Wait for a query that ends by itself, or stop it when told to."""
    from pyspark.errors import PySparkException

    seen, done, at_once = -1, Driven(), False
    try:
        while True:
            ended = query.awaitTermination(POLL_S)  # type: ignore[arg-type]  # takes parts of a second
            seen = _take(query, seen, done, on_progress)
            if ended:
                return done
            at_once = any(event.is_set() for event in lost)
            if at_once or (stopped is not None and stopped.is_set()):
                break
    except PySparkException as error:
        _take(query, seen, done, on_progress)
        if stopped is not None and stopped.is_set():
            done.interrupted = True
            return done
        raise named_failure(error, job=job, stuck=resumed and not done.batches) from error
    except KeyboardInterrupt:
        pass
    if at_once:
        query.stop()
    else:
        _stop(query)
    _take(query, seen, done, on_progress)
    done.interrupted = True
    return done


def _stop(query: StreamingQuery) -> None:
    """Stop between two batches where that does not take long: stopped in one, Spark prints pages of noise."""
    waited_s, batch = 0.0, _last_batch(query)
    # while much is behind one batch follows the other, and the trigger never rests
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == batch and waited_s < STOP_S:
        threading.Event().wait(STOP_POLL_S)
        waited_s += STOP_POLL_S
    query.stop()


def _last_batch(query: StreamingQuery) -> int:
    """Return the number of the last batch that is over; -1 before the first."""
    last = query.lastProgress
    return -1 if last is None else int(json.loads(last.json)["batchId"])


def _take(query: StreamingQuery, seen: int, done: Driven, on_progress: OnProgress | None) -> int:
    """Take in the batches that are new; return the number of the last one."""
    for raw in query.recentProgress:
        progress: Mapping[str, Any] = json.loads(raw.json)
        number = int(progress["batchId"])
        if number <= seen:
            continue
        seen = number
        source = progress["sources"][0]
        rows = int(progress["numInputRows"])
        done.rows += rows
        done.batches += 1
        done.ends.update(offsets_of(source.get("endOffset")))
        if on_progress is not None:
            behind = (source.get("metrics") or {}).get("avgOffsetsBehindLatest")
            partitions = len(done.ends)
            left = None if behind is None else round(float(behind) * partitions)
            rate = float(progress.get("processedRowsPerSecond") or 0.0)
            on_progress(RunProgress(done.rows, rate, done.batches, left))
    return seen


def query_name(task: str, group: str) -> str:
    """Return the name of a query, by which its batches are told apart.

    >>> query_name("archive", "billing")
    'archive:billing'
    """
    return f"{task}:{group}"


def read_query_name(name: str) -> tuple[str, str]:
    """Return task and group of a query; the group is empty for one that is not ours."""
    task, _, group = name.partition(":")
    return task, group


def offsets_of(end: Any) -> dict[tuple[str, int], int]:
    """Return offsets by topic and partition from what Spark says of a Kafka source."""
    nested = json.loads(end) if isinstance(end, str) else end or {}
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }
