"""Journeys: of each record that failed every attempt, in order, and where it has come to rest.

Order is (failure id, replays, attempt), and within an attempt retry, dlq, succeeded; a timestamp decides nothing. A
record on a retry topic tells of the attempt that failed and of the wait that follows, so the tier and due time of an
attempt are found on the record before it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.pipeline.analysis.schemas import JOURNEYS, TRACES

STATIONS: Final = ("retry", "dlq", "succeeded")
_ORIGIN: Final = r"^(.*)@([^/@]*)/(\d+)/(\d+)$"
_STEP: Final = (
    "replays", "attempt", "rank", "station", "started_ms", "ended_ms", "lateness_ms", "hot_attempts", "due_at_ms",
    "tier", "reason", "error_type", "error_message", "fingerprint", "policy", "topic", "found_offset", "timestamp_ms",
)  # fmt: skip


def traces_of(records: DataFrame) -> DataFrame:
    """Return what the archive says of records that failed.

    Args:
        records: the columns of the archive's ``records``.

    Returns:
        The columns of ``schemas.TRACES``, one row for each record of a retry or dead-letter topic that could be read,
        and for each event of success. Everything else is left out.
    """
    said = F.col("metadata").isNotNull()
    success = F.col("event.kind") == F.lit("succeeded")
    told = records.where(F.col("failure_id").isNotNull() & (said | success))
    both: dict[str, tuple[Column, Column]] = {
        "topic_id": (F.col("metadata.origin.topic_id"), F.regexp_extract("event.origin", _ORIGIN, 2)),
        "partition": (F.col("metadata.origin.partition"), F.regexp_extract("event.origin", _ORIGIN, 3)),
        "offset": (F.col("metadata.origin.offset"), F.regexp_extract("event.origin", _ORIGIN, 4)),
        "replays": (F.col("metadata.replays"), F.col("event.replays")),
        "attempt": (F.col("metadata.attempt"), F.col("event.attempt")),
        "rank": (F.when(F.col("station") == "retry", F.lit(0)).otherwise(F.lit(1)), F.lit(2)),
        "station": (F.col("station"), F.lit("succeeded")),
        "started_ms": (F.col("metadata.started_ms"), F.col("event.started_ms")),
        "ended_ms": (F.col("metadata.last_failed_ms"), F.col("event.ended_ms")),
        "lateness_ms": (F.lit(None), F.col("event.lateness_ms")),
        "key_hash": (F.col("key_hash"), F.lit(None)),  # of an event the key is the failure id
        "error_message": (F.col("metadata.error_message"), F.lit(None)),
    }
    plain = {"found_offset": F.col("offset")}
    from_headers = ("origin_timestamp_ms", "hot_attempts", "due_at_ms", "tier", "reason", "error_type", "fingerprint")
    columns = []
    for field in TRACES:
        name = field.name
        if name in both:
            column = F.when(said, both[name][0]).otherwise(both[name][1])
        elif name in plain:
            column = plain[name]
        elif name in from_headers or name == "policy":
            column = F.col(f"metadata.{name}")
        else:
            column = F.col(name)
        columns.append(column.cast(field.dataType).alias(name))
    return told.select(*columns)


def before_cut(traces: DataFrame, cut: DataFrame) -> DataFrame:
    """Leave out records that lie at or behind the cut.

    Args:
        traces: at least cluster_id, group, main, topic_id, partition, offset.
        cut: the columns of ``schemas.CUT``. Of a main topic that has another id now nothing is received any more, so
            all of it is kept; of a partition that is not in it nothing had been received.

    Returns:
        The columns of ``traces``.
    """
    return _marked(traces, cut, "inside").where("inside").select(*traces.columns)


_LIFE: Final = ("cluster_id", "group", "main", "topic_id")


def _marked(traces: DataFrame, cut: DataFrame, name: str) -> DataFrame:
    """Add a truth: does the record lie before the cut?"""
    known = cut.select(*_LIFE, F.lit(True).alias("is_known")).distinct()
    places = cut.select(*_LIFE, "partition", "cut_offset")
    joined = traces.join(F.broadcast(known), on=list(_LIFE), how="left").join(
        F.broadcast(places), on=[*_LIFE, "partition"], how="left"
    )
    before = F.col("is_known").isNull() | (F.col("offset") < F.coalesce("cut_offset", F.lit(0)))
    return joined.select(*traces.columns, before.alias(name))


def journeys_of(traces: DataFrame) -> DataFrame:
    """Return one row for each failure id.

    Args:
        traces: the columns of ``schemas.TRACES``; all of each failure id that is in it, in any order.

    Returns:
        The columns of ``schemas.JOURNEYS``.
    """
    whose = ["cluster_id", "group", "main", "failure_id"]
    first = F.struct("epoch", "found_offset", "topic")
    kept = F.struct(*_STEP, "topic_id", "partition", "offset", "origin_timestamp_ms", "key_hash")
    steps = (
        traces.repartition(*whose)
        .groupBy(*whose, "replays", "attempt", "rank")
        .agg(F.min_by(kept, first).alias("step"), F.count(F.lit(1)).alias("times"))
    )
    whole = steps.groupBy(*whose).agg(
        F.array_sort(F.collect_list("step")).alias("steps"), F.sum(F.col("times") - 1).alias("copies")
    )
    return _columns(whole.withColumn("last", F.element_at("steps", -1)).withColumn("paired", F.expr(_PAIRED)))


_PAIRED: Final = "transform(steps, (s, i) -> struct(s as now, if(i = 0, null, element_at(steps, i)) as before))"
_SAME: Final = "p.before.replays = p.now.replays"
_ATTEMPTS: Final = f"""
transform(
  filter(paired, p -> p.now.attempt >= 1 and not coalesce({_SAME} and p.before.attempt = p.now.attempt, false)),
  p -> named_struct(
    'replays', p.now.replays, 'attempt', p.now.attempt, 'started_ms', p.now.started_ms, 'ended_ms', p.now.ended_ms,
    'tier', if({_SAME} and p.before.attempt = p.now.attempt - 1, p.before.tier, null),
    'lateness_ms', coalesce(p.now.lateness_ms,
        if({_SAME} and p.before.attempt = p.now.attempt - 1, p.now.started_ms - p.before.due_at_ms, null)),
    'hot_attempts', p.now.hot_attempts,
    'outcome', case p.now.station when 'retry' then 'retried' when 'dlq' then 'dead' else 'succeeded' end,
    'error_type', p.now.error_type, 'error_message', p.now.error_message, 'fingerprint', p.now.fingerprint))
"""
_MISSING: Final = f"""
aggregate(paired, 0L, (n, p) -> n + greatest(0L,
    p.now.attempt - 1 - if(coalesce({_SAME}, false), p.before.attempt, 0L)))
"""


def _columns(whole: DataFrame) -> DataFrame:
    """Say what the steps of each record come to."""
    failed = "element_at(filter(steps, s -> s.error_type is not null), -1)"
    told = "element_at(filter(steps, s -> s.{0} is not null), 1).{0}"
    pending = "if(last.station = 'retry', last.{0}, null)"
    expressions = {
        **{name: f"last.{name}" for name in ("topic_id", "partition", "offset", "replays", "ended_ms", "reason")},
        "origin_timestamp_ms": f"try_{told.format('origin_timestamp_ms')}",
        "key_hash": f"try_{told.format('key_hash')}",
        "policy": f"try_{failed}.policy",
        "fate": "case last.station when 'retry' then 'pending' when 'dlq' then 'dead' else 'done' end",
        "attempts": _ATTEMPTS,
        "last_attempt": "last.attempt",
        "missing": _MISSING,
        "first_failed_ms": "array_min(transform(filter(steps, s -> s.error_type is not null), s -> s.ended_ms))",
        "due_at_ms": pending.format("due_at_ms"),
        "tier": pending.format("tier"),
        **{name: f"try_{failed}.{name}" for name in ("error_type", "error_message", "fingerprint")},
        "last_topic": "last.topic",
        "last_offset": "last.found_offset",
        "last_timestamp_ms": "last.timestamp_ms",
    }
    return whole.select(
        *(
            (F.expr(expressions[field.name]) if field.name in expressions else F.col(field.name))
            .cast(field.dataType)
            .alias(field.name)
            for field in JOURNEYS
        )
    )


def touched_ids(traces: DataFrame, fresh: DataFrame, *, cut: DataFrame, former: DataFrame) -> DataFrame:
    """Return the failure ids whose journeys may differ from those of the run before.

    Args:
        traces: the columns of ``schemas.TRACES``, all of them.
        fresh: those of them that the run before has not seen.
        cut: of this run; nowhere less than the former one.
        former: of the run before.

    Returns:
        failure_id string, each once.
    """
    marked = _marked(_marked(traces, cut, "inside"), former, "was_inside")
    released = marked.where(F.col("inside") & ~F.col("was_inside")).select("failure_id")
    return released.unionByName(before_cut(fresh, cut).select("failure_id")).distinct()


def merged(old: DataFrame, new: DataFrame) -> DataFrame:
    """Return journeys with those that were made anew in place of the former ones.

    Args:
        old: the columns of ``schemas.JOURNEYS``.
        new: the same.
    """
    kept = old.join(new.select("failure_id"), on="failure_id", how="left_anti")
    return kept.select(*JOURNEYS.fieldNames()).unionByName(new)


def attempts_of(journeys: DataFrame) -> DataFrame:
    """Return one row for each attempt of each journey: the journey's columns, a struct ``at`` for ``attempts``."""
    return journeys.withColumn("at", F.explode("attempts")).drop("attempts")
