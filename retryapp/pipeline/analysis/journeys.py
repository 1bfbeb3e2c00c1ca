"""Journeys: of each record that failed every attempt, in order, and where it has come to rest.

Order is (failure id, delivery), within a delivery as in `STATIONS`; a timestamp decides nothing. A letter of what could
not be read, whose numbers are a guess, comes after all of these, and the marks of dead letters after that, by offset. A
record on a retry topic tells of the attempt that failed and of the wait that follows, so the tier and due time of an
attempt are found on the record before it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from retryapp.core.classify import DeadReason
from retryapp.core.control import MarkKind
from retryapp.core.hops import REPLAY
from retryapp.lookup.failures import NOT_RUN
from retryapp.pipeline.analysis.cuts import LIFE, Cut, is_present
from retryapp.pipeline.analysis.reading import DLQ, MARK, MOVED
from retryapp.pipeline.analysis.schemas import ATTEMPT, CUT, JOURNEYS, SAID
from retryapp.pipeline.schemas import to_frame

STATIONS: Final = ("held", "retry", "dlq", "succeeded", "skipped", "discarded", "failed", "superseded")
"""In the order of their ranks, which begin at 1."""
_ORDER: Final = ("late", "delivery", "rank")
_DEAD: Final = ("dlq", "discarded", "failed")
_OF_DEAD: Final = (MarkKind.RESTORED, MarkKind.HANDLED, MarkKind.SKIPPED, MarkKind.FAILED)
"""Marks of letters whose records are dead."""
_OF_MARK: Final = ("epoch", "found_offset", "topic", "station", "replays")
_FAILURE: Final = ("policy", "error_type", "error_message", "fingerprint")
_LAST: Final = (
    "station", "topic_id", "partition", "offset", "replays", "attempt", "ended_ms", "reason", "due_at_ms", "tier",
    "topic", "life", "epoch", "found_offset", "timestamp_ms",
)  # fmt: skip
_STEP: Final = (*_LAST, *_FAILURE, "started_ms", "lateness_ms", "origin_timestamp_ms", "key_hash")


def traces_of(readings: DataFrame) -> DataFrame:
    """Return one row for each readable record of a retry or dead-letter topic, and for each end that an event says.

    A duplicate that was skipped has no journey: it is in the workers' counts. Of an event of a newer version it is not
    known which record it is of.

    ``topic_id``, ``partition`` and ``offset`` are of the first delivery; ``topic``, ``epoch`` and ``found_offset``
    are of the record itself. ``rank`` is the order of ``station`` within a delivery; of deliveries those with a higher
    ``late`` come last.
    """
    is_duplicate = (F.col("said.kind") == "skipped") & (F.coalesce("said.delivery", F.lit(0)) == 0)
    kind = F.col("said.kind")
    is_mark = kind.startswith(MARK)
    traces = readings.where((kind.isin(*STATIONS) & ~is_duplicate) | is_mark)
    renamed = {name: F.col(f"said.{name}") for name in SAID.fieldNames() if name not in {"kind", "unreadable"}}
    rank = F.array_position(F.array(*map(F.lit, STATIONS)), kind)
    rank = F.when(is_mark, F.col("found_offset") + len(STATIONS) + 1).otherwise(rank)
    is_guess = (F.col("said.reason") == DeadReason.DAMAGED.value) & kind.isin(*_DEAD)
    late = F.when(is_mark & (kind != MOVED), 2).when(is_guess, 1).otherwise(0)
    own = ("cluster_id", "group", "main", "topic", "life", "epoch", "found_offset", "timestamp_ms", "key_hash")
    said = (column.alias(name) for name, column in renamed.items())
    return traces.select(*own, *said, kind.alias("station"), rank.alias("rank"), late.alias("late"))


def before_cut(traces: DataFrame, cut: Cut) -> DataFrame:
    """Leave out records that lie at or behind the cut; of a former life of the main topic all stays."""
    places = to_frame(traces.sparkSession, cut, CUT).select(*LIFE, "partition", "cut_offset")
    joined = traces.join(F.broadcast(places), on=[*LIFE, "partition"], how="left")
    inside = ~is_present(cut) | (F.col("offset") < F.coalesce("cut_offset", F.lit(0)))
    return joined.where(inside).select(*traces.columns)


def journeys_of(traces: DataFrame) -> DataFrame:
    """Return one row for each failure id, by one shuffle and one sort; functions over arrays would cost far more.

    A record that was skipped before it had failed or been held has none: it is in the workers' counts.
    """
    identity = ["cluster_id", "group", "main", "failure_id"]  # their long prefixes are the same in all rows:
    whose = ["mark", *identity]  # a sort compares the first eight bytes without reading the row
    copies = ("epoch", "found_offset", "topic")  # what they differ in: the first one counts
    steps = traces.repartition(*identity).select(
        F.xxhash64(*identity).alias("mark"), *identity, *_ORDER, *copies, F.struct(*_STEP).alias("step")
    )
    in_order = Window.partitionBy(*whose).orderBy(*_ORDER, *copies)
    before = F.struct(*_ORDER, *(f"step.{name}" for name in ("tier", "due_at_ms", "attempt", "replays")))
    is_moved = F.col("step.station") == F.lit(MOVED)  # of delivery 0, and so before all others
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    highest = F.max("delivery").over(earlier)  # not of the row before: a mark may have a lower one than rows before it
    was_moved = F.coalesce(F.max(is_moved).over(earlier), F.lit(False))
    in_turn = steps.withColumns({"before": F.lag(before).over(in_order), "highest": highest, "was_moved": was_moved})
    # the attempt before the sums: Spark compiles an expression of a row, but not the argument of collect_list
    return _columns(in_turn.withColumn("at", _attempt()).groupBy(*whose))


def _columns(steps: GroupedData) -> DataFrame:
    is_copy = F.struct(*_ORDER) == F.struct(*(f"before.{name}" for name in _ORDER))
    order = F.struct(*_ORDER, ~is_copy)
    has_failed = F.col("step.error_type").isNotNull()
    failure = F.struct(*(F.col(f"step.{name}") for name in _FAILURE))
    missing = F.col("delivery") - 1 - F.coalesce("highest", F.lit(0))

    def first_known(name: str) -> Column:
        value = F.col(f"step.{name}")
        return F.min_by(value, F.when(value.isNotNull(), F.struct(*_ORDER, is_copy))).alias(name)

    is_mark = F.col("step.station").startswith(MARK)
    sums = steps.agg(
        # a mark has no more than what it says of its letter: its facts count where retention took the letter first
        F.max_by(F.struct(*(f"step.{name}" for name in _LAST)), F.struct(~is_mark, order)).alias("last"),
        F.collect_list(F.when(is_mark, F.struct(*(f"step.{name}" for name in _OF_MARK)))).alias("marks"),
        F.max_by(failure, F.when(has_failed, order)).alias("failure"),
        first_known("origin_timestamp_ms"),
        first_known("key_hash"),
        F.sort_array(F.collect_list("at")).alias("attempts"),
        F.sum(F.greatest(F.lit(0).cast("long"), missing)).alias("missing"),
        F.count_if(is_copy).alias("copies"),
        F.min(F.when(has_failed, F.col("step.ended_ms"))).alias("first_failed_ms"),
        F.bool_or(F.col("delivery") != 1).alias("is_told"),  # 0: held; 2: it has failed before
    ).where(F.col("is_told") | (F.col("last.station") != F.lit("skipped")))
    said = F.when(F.col("last.station") == F.lit(DLQ), F.array_max(F.filter("marks", _is_of_last)))
    station = F.coalesce(said["station"], "last.station")
    # where its copies are gone a replay is known by its mark, whose letter's numbers are of before
    is_replayed = station == F.lit(_mark(MarkKind.REPLAYED))
    is_again = is_replayed | (station == F.lit(_mark(MarkKind.RECOVERED)))
    is_pending = station.isin("retry", MOVED) | is_replayed
    found = {
        **{name: F.col(f"last.{name}") for name in ("topic_id", "partition", "offset", "ended_ms")},
        "replays": F.coalesce(said["replays"], "last.replays"),
        "reason": F.when(~is_again, F.col("last.reason")),
        **{name: F.col(f"failure.{name}") for name in _FAILURE},
        "fate": F.when(is_pending, "pending")
        .when(station.isin("dlq", "failed", *map(_mark, _OF_DEAD)), "dead")
        .when(station.isin("held", "skipped", "discarded", "superseded"), station)
        .when(station == F.lit(_mark(MarkKind.DISCARDED)), "discarded")
        .otherwise("done"),
        "last_attempt": F.when(is_replayed, 0).when(~is_again, F.col("last.attempt")),
        **{name: F.when(is_pending, F.col(f"last.{name}")) for name in ("due_at_ms", "tier")},
        "last_topic": F.col("last.topic"),
        "last_life": F.col("last.life"),
        "last_offset": F.col("last.found_offset"),
        "last_timestamp_ms": F.col("last.timestamp_ms"),
    }
    columns = ((found.get(field.name, F.col(field.name)), field) for field in JOURNEYS)
    return sums.select(*(column.cast(field.dataType).alias(field.name) for column, field in columns))


def _is_of_last(mark: Column) -> Column:
    """Tell whether a mark is of the last letter: on its topic, behind it."""
    place = F.struct("last.epoch", "last.found_offset")
    return (mark["topic"] == F.col("last.topic")) & (F.struct(mark["epoch"], mark["found_offset"]) > place)


def _attempt() -> Column:
    """Return the attempt of a step; null where it has none, or is of the same delivery as the step before.

    A delivery that spent no attempt has the number of the step before; it is an attempt without a number. So is what
    could not be read after it had failed.
    """
    number, is_late = F.col("delivery"), F.col("late") > 0
    is_known = F.coalesce((F.col("before.late") == F.col("late")) & (F.col("before.delivery") == number), F.lit(False))
    is_counted = F.coalesce(F.col("before.attempt") == F.col("step.attempt"), F.lit(False))
    is_free = (F.col("step.attempt") == 0) | (is_counted & (F.col("before.replays") == F.col("step.replays")))
    is_free |= is_late & F.col("before.delivery").isNotNull()
    is_next = ~is_late & (F.col("before.delivery") == number - 1)
    station = F.col("step.station")
    late_ms = F.when(is_next & ~F.col("was_moved"), F.col("step.started_ms") - F.col("before.due_at_ms"))
    computed = {
        "delivery": F.when(is_late, F.greatest(number, F.col("before.delivery") + 1)).otherwise(number),
        "attempt": F.when(~is_free, F.col("step.attempt")),
        "tier": F.when(is_next, F.col("before.tier")),
        "lateness_ms": F.coalesce(F.col("step.lateness_ms"), late_ms),
        "outcome": F.when(station == F.lit("retry"), "retried").when(station.isin(*_DEAD), "dead").otherwise(station),
    }
    columns = (computed.get(name, F.col(f"step.{name}")).alias(name) for name in ATTEMPT.fieldNames())
    is_replay = is_free & (F.col("step.tier") == F.lit(REPLAY))
    was_not_run = F.col("step.reason").isin(*NOT_RUN) & F.col("step.started_ms").isNull()
    was_delivered = (number > 0) & ~station.startswith(MARK) & ~F.coalesce(is_replay | was_not_run, F.lit(False))
    return F.when(was_delivered & ~is_known, F.struct(*columns).cast(ATTEMPT))


def has_failed() -> Column:
    """Tell whether the record of a journey has failed: it may be known only because it was held behind others."""
    return F.col("first_failed_ms").isNotNull() | (F.col("missing") > 0)


def _mark(kind: MarkKind) -> str:
    return f"{MARK}{kind}"
