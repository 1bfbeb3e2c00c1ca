"""The ledger at scale: the workers' counts against the journeys; and the retention of dead letters.

Offsets have gaps, so they are never counted. What was received and done at first try comes from the workers' progress
events, what failed from the journeys; both must agree in each range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from retryapp.pipeline.analysis.cuts import Cut, is_present
from retryapp.pipeline.analysis.journeys import has_failed
from retryapp.pipeline.analysis.schemas import CUT, PROGRESS
from retryapp.pipeline.schemas import struct, to_frame

DAY_MS: Final = 86_400_000
_PLACE: Final = ("cluster_id", "group", "main", "partition")
RANGE: Final = T.StructType(PROGRESS.fields[:-2])  # without the gaps and overlaps, which others decide
_ENDS: Final = ("from_offset", "to_offset", "from_ms", "to_ms")
_FATES: Final = ("recovered", "superseded", "pending", "held", "dead", "discarded")
OF_FAILED: Final = (*_FATES, "lost")
OF_ALL: Final = ("received", "done")

Row = Mapping[str, Any]


def progress_of(readings: DataFrame, cut: Cut, tallies: Cut = ()) -> DataFrame:
    """Return the ranges that workers counted before the cut; a later one from 0 on is of a re-created main topic.

    The last ones are the ``tallies`` of the cut, unless an event has told the same since: of an idle worker, before the
    archive was at its end.

    The first one that is there is left out where it begins later: of what failed in it a part may have expired, on the
    topics before the first archive run or in the archive, although its event has not.
    """
    handler = ("cluster_id", "group", "main")
    said = (F.col(f"said.{name}") for name in RANGE.fieldNames() if name not in handler)
    counted_ranges = readings.where(F.col("said.kind") == "progress").select(
        *handler, "epoch", F.col("found_offset").alias("found"), *said
    )
    last_ranges = to_frame(readings.sparkSession, tallies, RANGE)
    counted_ranges = counted_ranges.unionByName(last_ranges, allowMissingColumns=True)
    ends = to_frame(readings.sparkSession, cut, CUT).select(*_PLACE, "cut_offset")
    counted_ranges = counted_ranges.join(F.broadcast(ends), on=list(_PLACE), how="inner")
    arrival = Window.partitionBy(*_PLACE).orderBy(F.asc_nulls_last("epoch"), "found")
    again = (F.col("from_offset") == 0) & (F.lag("to_offset").over(arrival) > 0)
    lives = counted_ranges.withColumn("life", F.sum(F.coalesce(again, F.lit(False)).cast("int")).over(arrival))
    last = F.max("life").over(Window.partitionBy(*_PLACE))
    is_present = (F.col("life") == F.col("last")) & (F.col("to_offset") <= F.col("cut_offset"))
    in_order = Window.partitionBy(*_PLACE).orderBy("from_offset", "to_offset", "from_ms", "found")  # a tally first
    told = F.struct("from_offset", "to_offset", "from_ms")
    is_told = F.col("found").isNull() & F.lead(told).over(in_order).eqNullSafe(told)
    present = lives.withColumn("last", last).where(is_present).withColumn("is_told", is_told).where(~F.col("is_told"))
    before = F.max("to_offset").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    nothing, begin = F.lit(0), F.col("from_offset")
    overlap = F.greatest(nothing, F.col("before") - begin, F.col("to_offset") - F.col("after"))
    return (
        present.withColumns({"before": before, "after": F.lead("from_offset").over(in_order)})
        .where((begin == 0) | F.col("before").isNotNull())
        .withColumns({"gap_offsets": F.greatest(nothing, begin - F.col("before")), "overlap_offsets": overlap})
        .select(*(F.col(field.name).cast(field.dataType).alias(field.name) for field in PROGRESS))
    )


def ledger(journeys: DataFrame, progress: DataFrame, cut: Cut, *, erased_ms: int = -1) -> list[dict[str, Any]]:
    """Return what has become of every record, partition by partition; ``received`` and ``failed`` by workers' counts.

    A row goes from the first to the last offset, and time, that they counted. ``done`` are ``first_try_ok``,
    ``skipped`` and ``recovered``. ``lost`` failed and have no journey, ``extra`` have one and did not fail,
    ``uncounted`` ones lie where no worker has counted yet. ``gaps`` and ``overlaps`` are of the ranges. Nothing is
    called lost of a range that had begun when a key was erased last: what was erased has failed, and has no journey.
    Nothing is lost or extra where offsets were counted twice: what failed twice has one journey.
    """
    is_once = F.col("overlap_offsets") == 0
    is_whole = is_once & (F.col("from_ms") > erased_ms)
    sums = {
        "from_offset": F.min("from_offset"),
        "to_offset": F.max("to_offset"),
        "from_ms": F.min("from_ms"),
        "to_ms": F.max("to_ms"),
        "first_try_ok": F.sum(F.col("first_try_ok") + F.col("held_ok")),
        "skipped": F.sum(F.col("skipped") + F.col("skipped_later")),
        **{name: F.sum(name) for name in ("received", "failed", *_FATES, "uncounted")},
        "lost": F.sum(F.when(is_whole, F.greatest(F.lit(0), F.col("failed") - F.col("traced"))).otherwise(0)),
        "extra": F.sum(F.when(is_once, F.greatest(F.lit(0), F.col("traced") - F.col("failed"))).otherwise(0)),
        "gaps": F.count_if(F.col("gap_offsets") > 0),
        "overlaps": F.count_if(F.col("overlap_offsets") > 0),
    }
    of_ranges = _matched(journeys, progress, cut).groupBy(*_PLACE)
    counted = of_ranges.agg(*(column.alias(name) for name, column in sums.items())).collect()
    known = {tuple(row[name] for name in _PLACE): {name: row[name] for name in sums} for row in counted}
    nothing = dict.fromkeys(sums, 0) | dict.fromkeys(_ENDS)
    rows = []
    for cluster_id, group, main, _, partition, cut_offset in sorted(cut):
        row = known.get((cluster_id, group, main, partition), nothing)
        place = {"group": group, "main": main, "partition": partition, "cut_offset": cut_offset}
        rows.append({**place, **row, "done": row["first_try_ok"] + row["skipped"] + row["recovered"]})
    return rows


def _matched(journeys: DataFrame, progress: DataFrame, cut: Cut) -> DataFrame:
    """Return one row for each range, and one for the journeys of each partition that no range covers."""
    place = [*_PLACE]
    done = F.when(has_failed(), "recovered").otherwise("held_ok")
    fate = F.when(F.col("fate") == "done", done).when(F.col("fate") == "skipped", "skipped_later")
    ours = journeys.where(is_present(cut)).select(
        *place,
        F.col("offset").alias("at"),
        fate.otherwise(F.col("fate")).alias("fate"),
        F.lit(None).cast(progress.schema).alias("range"),
    )
    ranges = progress.select(
        *place, F.col("from_offset").alias("at"), F.lit(None).cast("string").alias("fate"), F.struct("*").alias("range")
    )
    in_order = Window.partitionBy(*place).orderBy("at", F.col("range").isNull(), F.col("range.to_offset"))
    # a journey belongs to the last range that begins before it: one sort, where a join by range would pair all
    last = F.last("range", ignorenulls=True).over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    both = ranges.unionByName(ours).withColumn("of", last)
    inside = F.col("of").isNotNull() & (F.col("at") < F.col("of.to_offset"))
    kept = F.when(inside | F.col("range").isNotNull(), F.col("of.from_offset"))
    is_journey = F.col("fate").isNotNull()
    number = ["received", "first_try_ok", "skipped", "failed", "gap_offsets", "overlap_offsets"]
    return (
        both.withColumn("begin", kept)
        .withColumn("end", F.when(F.col("begin").isNotNull(), F.col("of.to_offset")))
        .groupBy(*place, "begin", "end")
        .agg(
            *(F.max(f"range.{name}").alias(name) for name in _ENDS),
            *(F.coalesce(F.sum(f"range.{name}"), F.lit(0)).alias(name) for name in number),
            F.count_if(is_journey & F.col("begin").isNotNull()).alias("traced"),
            F.count_if(is_journey & F.col("begin").isNull()).alias("uncounted"),
            *(F.count_if(F.col("fate") == name).alias(name) for name in (*_FATES, "skipped_later", "held_ok")),
        )
    )


def is_covered(row: Row) -> bool:
    """Tell whether workers' counts cover a partition from offset 0 to the cut."""
    if row["cut_offset"] == 0:
        return True
    return row["from_offset"] == 0 and row["to_offset"] == row["cut_offset"] and not row["gaps"] and not row["overlaps"]


def compare(row: Row, counted: Mapping[str, int]) -> list[Row]:
    """Return the numbers of a partition in which ``retryapp ledger`` differs, which shares no code but core's codecs.

    What they say of records that failed must be equal at rest, and the rest where workers' counts reach up to the cut.
    The topics no longer say what became of some records (``unknown``, ``expired_offsets``), but the archive may: the
    ledger may count so many fewer.

    >>> row = dict.fromkeys(OF_FAILED, 0) | dict(group="g", main="m", partition=0, cut_offset=0)
    >>> row |= dict(pending=2, received=5, done=3, recovered=2)
    >>> ledger = row | dict(skipped=0, unknown=0, expired_offsets=0)
    >>> compare(row, ledger | dict(done=1, skipped=2))
    []
    >>> [each["name"] for each in compare(row, ledger | dict(dead=1))]
    ['dead']
    >>> compare(row, ledger | dict(done=1, recovered=0, unknown=2))
    []
    """
    theirs = {**counted, "done": counted["done"] + counted["skipped"]}
    names = OF_FAILED + (OF_ALL if is_covered(row) else ())
    forgotten = counted["unknown"] + counted["expired_offsets"]
    place = {name: row[name] for name in ("group", "main", "partition")}
    found = ({**place, "name": name, "analysis": row[name], "ledger": theirs[name]} for name in names)
    return [each for each in found if not 0 <= each["analysis"] - each["ledger"] <= forgotten]


def retention(
    journeys: DataFrame, kept_ms: Mapping[str, int | None], lives: Mapping[str, str], *, now_ms: int
) -> list[dict[str, Any]]:
    """Return what dead-letter topics will forget, the next loss first.

    ``kept_ms`` is how long topics keep records (None: no limit), ``lives`` has their ids. One that is not there, or has
    another id, ``was_deleted``: its letters have a row of their own. Of the ``dead`` records of each row, ``gone`` are
    past that time, or went with the topic, ``within_day`` and ``within_week`` will be; ``next_loss_ms`` is when the
    next one is.
    """
    topics = [(topic, lives.get(topic), length_ms) for topic, length_ms in kept_ms.items()]
    columns = struct("last_topic string, last_life string, retention_ms long")
    present = to_frame(journeys.sparkSession, topics, columns).withColumn("was_deleted", F.lit(False))
    letters = (F.col("fate") == "dead") & ~F.col("last_topic").endswith(".events")
    dead = journeys.where(letters).join(F.broadcast(present), on=["last_topic", "last_life"], how="left")
    dead = dead.withColumn("was_deleted", F.coalesce("was_deleted", F.lit(True)))
    left = F.col("last_timestamp_ms") + F.col("retention_ms") - F.lit(now_ms)

    def within(most_ms: int) -> Column:
        return F.count_if((left > 0) & (left <= most_ms))

    found = dead.groupBy("group", "main", F.col("last_topic").alias("topic"), "was_deleted").agg(
        F.max("retention_ms").alias("retention_ms"),
        F.count(F.lit(1)).alias("dead"),
        F.count_if(F.col("was_deleted") | (left <= 0)).alias("gone"),
        within(DAY_MS).alias("within_day"),
        within(7 * DAY_MS).alias("within_week"),
        F.min(F.when(left > 0, left + F.lit(now_ms))).alias("next_loss_ms"),
    )
    rows = [row.asDict() for row in found.collect()]
    return sorted(rows, key=lambda row: (row["next_loss_ms"] is None, row["next_loss_ms"], row["topic"]))
