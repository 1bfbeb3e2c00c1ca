"""Journeys that are made batch by batch are those that are made at once, whatever comes late."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from lives import CLUSTER, GROUP, MAIN, TOPIC_ID, Archive

from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, touched_ids, traces_of
from retryapp.pipeline.analysis.schemas import CUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORIES, RECORDS, BATCHES, PARTITIONS = 80, 6, 3, 2


def life(random: Random, archive: Archive, offset: int, partition: int) -> None:
    """One record's way: attempts that fail, then success, death, a replay, or nothing yet."""
    replays, attempt, delivery = 0, 1, 1
    for _ in range(random.randrange(1, 6)):
        end = random.choice(("retry", "retry", "retry", "dead", "done"))
        if end == "done" and attempt > 1:
            return archive.succeeded(offset, attempt, partition=partition, replays=replays, delivery=delivery)
        facts = {"partition": partition, "replays": replays, "delivery": delivery}
        if end == "dead":
            archive.failed(offset, attempt, reason="exhausted", **facts)
            if random.random() < 0.5:
                return None
            replays, attempt, delivery = replays + 1, 0, delivery + 1
            facts |= {"replays": replays, "delivery": delivery}
        archive.failed(offset, attempt, **facts)
        if random.random() < 0.1:  # a hand-off twice, as workers without transactions leave
            archive.failed(offset, attempt, **facts)
        attempt, delivery = attempt + 1, delivery + 1
    return None


def history(random: Random, group: str) -> tuple[list[list[dict[str, Any]]], list[list[tuple[Any, ...]]]]:
    """Return a group's records by batch, in an order in which nothing is certain, and its cuts by batch."""
    archive = Archive()
    for number in range(RECORDS):
        life(random, archive, number, number % PARTITIONS)
    rows = [
        {**row, "group": group, "failure_id": row["failure_id"].replace(f"{GROUP}/", f"{group}/", 1)}
        for row in archive.rows
    ]
    random.shuffle(rows)
    batches: list[list[dict[str, Any]]] = [[] for _ in range(BATCHES)]
    for row in rows:
        batches[random.randrange(BATCHES)].append(row)
    ends = [sorted(random.randrange(RECORDS + 1) for _ in range(BATCHES)) for _ in range(PARTITIONS)]
    cuts = [
        [(CLUSTER, group, MAIN, TOPIC_ID, partition, ends[partition][batch]) for partition in range(PARTITIONS)]
        for batch in range(BATCHES)
    ]
    return batches, cuts


def difference(left: DataFrame, right: DataFrame) -> list[Any]:
    """Return the rows that only one of them has."""
    return [*left.exceptAll(right).collect(), *right.exceptAll(left).collect()]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_batch_by_batch_is_all_at_once(spark: SparkSession) -> None:
    """Many random histories side by side, each a group of its own: late records, cuts that move by different steps."""
    random = Random(20300317)
    made = [history(random, f"g{number}") for number in range(HISTORIES)]
    archive = Archive()

    def rows(*numbers: int) -> DataFrame:
        return archive.frame(spark, [row for batches, _ in made for number in numbers for row in batches[number]])

    def cut(number: int) -> DataFrame:
        return spark.createDataFrame([row for _, cuts in made for row in cuts[number]], CUT)

    step_by_step = journeys_of(before_cut(traces_of(rows(0)), cut(0))).localCheckpoint()
    for number in range(1, BATCHES):
        traces = traces_of(rows(*range(number + 1))).localCheckpoint()
        fresh = traces_of(rows(number))
        touched = touched_ids(traces, fresh, cut=cut(number), former=cut(number - 1)).localCheckpoint()
        chosen = traces.join(touched, on="failure_id", how="left_semi").select(*traces.columns)
        remade = journeys_of(before_cut(chosen, cut(number)))
        kept = step_by_step.join(remade.select("failure_id"), on="failure_id", how="left_anti").select(*remade.columns)
        step_by_step = kept.unionByName(remade).localCheckpoint()
        at_once = journeys_of(before_cut(traces, cut(number))).localCheckpoint()
        assert difference(step_by_step, at_once) == []
        assert 0 < touched.count() < at_once.count(), "some are left as they were"
    fates = {row["fate"] for row in step_by_step.select("fate").distinct().collect()}
    assert fates == {"done", "dead", "pending"}
