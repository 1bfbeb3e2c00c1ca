"""Drives one streaming query to its end: reports progress, stops it between batches, names its failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from retryapp.pipeline.failures import named_failure

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.2
STOP_S: Final = 30.0
STOP_POLL_S: Final = 0.02


@dataclass(slots=True)
class Driven:
    """What a query has done so far."""

    rows: int = 0
    batches: int = 0
    rows_per_s: float = 0.0  # rate of the last batch
    behind: int | None = None  # offsets between the last batch and the topics' ends, where known
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    interrupted: bool = False


OnProgress = Callable[[Driven], None]


def drive(
    query: StreamingQuery,
    *,
    job: str,
    resumed: bool = False,
    on_progress: OnProgress | None = None,
    stopped: threading.Event | None = None,
) -> Driven:
    """Wait for a query that ends by itself, or stop it.

    After ``stopped`` a quick batch is finished, and a failure counts as a stop: a supervisor ends Python workers too.
    """
    from pyspark.errors import PySparkException

    seen, done = -1, Driven()
    try:
        while True:
            ended = query.awaitTermination(POLL_S)  # type: ignore[arg-type]  # takes parts of a second
            seen = _take(query, seen, done, on_progress)
            if ended:
                return done
            if stopped is not None and stopped.is_set():
                break
    except PySparkException as error:
        _take(query, seen, done, on_progress)
        if stopped is not None and stopped.is_set():
            done.interrupted = True
            return done
        raise named_failure(error, job=job, stuck=resumed and not done.batches) from error
    except KeyboardInterrupt:
        pass
    _stop(query)
    _take(query, seen, done, on_progress)
    done.interrupted = True
    return done


def _stop(query: StreamingQuery) -> None:
    """Stop between two batches where that does not take long: stopped in one, Spark prints pages of noise."""

    def last_batch() -> int:
        last = query.lastProgress
        return -1 if last is None else int(json.loads(last.json)["batchId"])

    waited_s, batch = 0.0, last_batch()
    # while much is behind one batch follows the other, and the trigger never rests
    while query.isActive and query.status["isTriggerActive"] and last_batch() == batch and waited_s < STOP_S:
        threading.Event().wait(STOP_POLL_S)
        waited_s += STOP_POLL_S
    query.stop()


def _take(query: StreamingQuery, seen: int, done: Driven, on_progress: OnProgress | None) -> int:
    """Add the batches after ``seen``; return the number of the last one."""
    for raw in query.recentProgress:
        progress: Mapping[str, Any] = json.loads(raw.json)
        if int(progress["batchId"]) <= seen:
            continue
        seen = int(progress["batchId"])
        source = progress["sources"][0]
        done.rows += int(progress["numInputRows"])
        done.batches += 1
        done.rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
        done.ends.update(_offsets_of(source.get("endOffset")))
        behind = (source.get("metrics") or {}).get("avgOffsetsBehindLatest")
        done.behind = None if behind is None else round(float(behind) * len(done.ends))
        if on_progress is not None:
            on_progress(done)
    return seen


def _offsets_of(end: Any) -> dict[tuple[str, int], int]:
    """Return offsets by topic and partition, from the JSON of a Kafka source."""
    nested = json.loads(end) if isinstance(end, str) else end or {}
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }
