"""What the analysis makes of simulated histories with kills, order, named circuits, commands: the oracle's fates."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pytest
from lives import CLUSTER
from lives import Archive as Rows
from simulation.drawing import draw_plan
from simulation.history import History
from simulation.judge import Judge
from simulation.plan import COMMANDED, HELD, SERVED, STOPS
from simulation.story import Story
from simulation.worker import TOPIC_ID

from retryapp.pipeline.analysis import checks
from retryapp.pipeline.analysis.counts import ledger, progress_of
from retryapp.pipeline.analysis.journeys import before_cut, journeys_of, traces_of
from retryapp.pipeline.analysis.reading import readings_of
from retryapp.pipeline.sources import stations_of
from retryapp.ports import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
SEEDS: Final = (*range(12), *(first + n for first in (COMMANDED, HELD, STOPS, SERVED) for n in range(14)))


def archived(history: History, judge: Judge, group: str) -> Iterator[dict[str, Any]]:
    """Yield what a handler's topics have, as rows of the archive; each history is a group of its own."""
    logs, main = history.broker.logs, judge.topology.main
    for name, (_, role) in stations_of([judge.topology], {tp.topic for tp in logs}).items():
        for tp in (tp for tp in logs if tp.topic == name):
            for record in history.broker.visible(tp):
                yield {
                    "cluster_id": CLUSTER, "topic_id": f"{group} {name}", "epoch": 1, "topic": f"{group} {name}",
                    "partition": tp.partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms,
                    "date": date(2030, 3, 17), "key": record.key, "value": record.value,
                    "headers": list(record.headers), "group": group, "main": main, "station": role.value,
                }  # fmt: skip


def fates_of(story: Story) -> set[str | None]:
    """Return what may be said of a record; None: nothing, it left no trace."""
    (fate,) = story.fates or [None]
    if fate is None:
        return {"done"} if story.held else {None}
    if fate == "skipped":
        return {fate} if story.copies or story.held else {None}
    return {fate, "discarded"} if fate == "dead" else {fate}  # the oracle has a discarded letter among the dead


def test_each_record_has_the_fate_that_the_oracle_saw(spark: SparkSession) -> None:
    """Every check holds, save of what retention took; and all that workers counted is there."""
    rows, cuts, kept = Rows(), list[tuple[Any, ...]](), list[str]()
    stories: dict[tuple[str, str, int, int], Story] = {}
    for plan in map(draw_plan, SEEDS):
        history, group = History(plan), str(plan.seed)
        assert history.run().violation is None
        kept += [] if any(log.start for log in history.broker.logs.values()) else [group]
        for main, judge in history.judges.items():
            rows.rows += archived(history, judge, group)
            places = [TopicPartition(main, number) for number in range(history.broker.partitions)]
            ends = {tp: history.broker.committed.get(tp, history.broker.logs[tp].end) for tp in places}
            cuts += [(CLUSTER, group, main, TOPIC_ID, tp.partition, end) for tp, end in ends.items()]
            stories |= {(group, main, *place): story for place, story in judge.oracle.stories.items()}
    readings = readings_of(rows.frame(spark)).cache()
    journeys = journeys_of(before_cut(traces_of(readings), cuts)).cache()
    found = {(row["group"], row["main"], row["partition"], row["offset"]): row for row in journeys.collect()}
    fates = {place: row["fate"] for place, row in found.items()}
    wrong = {
        place: (fates.get(place), story.fates)
        for place, story in stories.items()
        if fates.get(place) not in fates_of(story)
    }
    assert (wrong, found.keys() - stories.keys()) == ({}, set())
    assert {*fates.values()} == {"done", "dead", "discarded", "superseded", "skipped"}
    for place, row in found.items():
        story = stories[place]
        if place[0] in kept and not story.replays and not story.again:
            retried = [attempt["delivery"] for attempt in row["attempts"] if attempt["outcome"] == "retried"]
            assert (retried, row["missing"]) == (sorted(story.copies), 0), place
    whole = journeys.where(journeys["group"].isin(kept))
    verdicts = [*checks.of_readings(readings)[0], *checks.of_journeys(whole)[0]]
    counted = ledger(journeys, progress_of(readings, cuts), cuts)
    verdicts += checks.of_ledger(row for row in counted if row["group"] in kept)
    assert [(each.name, each.examples) for each in verdicts if each.is_error and each.failures] == []
