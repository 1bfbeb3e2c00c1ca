"""The job on a lake that is there already: what a run makes anew, and what it leaves as it was."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from lives import CLUSTER, GROUP, MAIN, NOON_MS, TOPIC_ID, Archive

from retryapp.kafka import KafkaConnection
from retryapp.pipeline.analysis.cuts import TakenCut
from retryapp.pipeline.analysis.derived import SIDE_BY_SIDE, Derived
from retryapp.pipeline.analysis.job import Analysed, Analysis
from retryapp.pipeline.analysis.schemas import DERIVED_TABLES
from retryapp.pipeline.errors import TableMissingError
from retryapp.pipeline.lake import Lake, open_lake
from retryapp.pipeline.report import collect
from retryapp.pipeline.sources import Source, Sources
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = KafkaConnection("localhost:1")
"""A run asks no broker: its cuts were taken before."""


def cut_at(offset: int) -> TakenCut:
    """Return a cut of one partition."""
    main = Source(topic=MAIN, topic_id=TOPIC_ID, group=GROUP, main=MAIN, station="main", partitions=1)
    mains = Sources(cluster_id=CLUSTER, group=GROUP, topics=(main,))
    return TakenCut(mains, {(MAIN, 0): offset}, {}, {f"{GROUP}.{MAIN}.dlq": None})


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return open_lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def analyse(spark: SparkSession, lake: Lake) -> Callable[[int], Analysed]:
    """Run the job up to an offset."""
    job = Analysis(spark, NOBODY, lake, now_ms=lambda: NOON_MS)
    return lambda offset: job.run([cut_at(offset)])


def test_a_table_that_cannot_be_made_ends_the_others(spark: SparkSession, lake: Lake) -> None:
    """The error is told once what was begun has ended; what had not begun by then is not made."""
    derived, begun = Derived(spark, lake), []
    names = sorted(set(DERIVED_TABLES) - {"journeys", "checks"})
    assert len(names) > SIDE_BY_SIDE
    slow, failing = names[:2]
    has_failed = threading.Event()

    def make(name: str) -> DataFrame:
        begun.append(name)
        if name == slow:
            assert has_failed.wait(60.0)
        if name != failing:
            return spark.createDataFrame([], DERIVED_TABLES[name])
        has_failed.set()
        raise ValueError(name)

    with pytest.raises(ValueError, match=failing):
        derived.put_all({name: functools.partial(make, name) for name in names})
    assert {slow, failing} <= set(begun) < set(names)
    assert derived.read(slow).count() == 0, "it had not ended"
    with pytest.raises(TableMissingError):
        derived.read(names[-1])


@pytest.mark.parametrize("given", [None, "true"])
def test_what_is_set_for_journeys_is_set_for_them_alone(spark: SparkSession, lake: Lake, given: str | None) -> None:
    """Whether the user has set it or not, and also where they cannot be written."""
    name = "spark.sql.execution.useObjectHashAggregateExec"
    if given is not None:
        spark.conf.set(name, given)
    seen: list[str | None] = []

    def look(*columns: object) -> DataFrame:
        seen.append(spark.conf.get(name, None))
        raise ValueError(columns)

    unwritable = Mock(select=look)
    try:
        with pytest.raises(ValueError, match="failure_id"):
            Derived(spark, lake).put_journeys(unwritable, whole=True)
        assert (seen, spark.conf.get(name, None)) == (["false"], given)
    finally:
        spark.conf.unset(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_run_makes_anew(spark: SparkSession, lake: Lake, analyse: Callable[[int], Analysed]) -> None:
    """Late records: theirs alone. Rows deleted from the archive, or a cut that moved back: everything."""
    tables, archive = Tables(spark, lake), Archive()
    with pytest.raises(TableMissingError, match="pipeline archive"):
        analyse(5)
    tables.ensure_records()

    def append() -> None:
        archive.frame(spark).write.format("delta").mode("append").save(lake.table(RECORDS_TABLE))
        archive.rows.clear()

    def fates() -> dict[int, Any]:
        return {row["offset"]: row["fate"] for row in Derived(spark, lake).read("journeys").collect()}

    for offset in range(6):
        archive.failed(offset, 1)
    archive.counted(0, 5, ok=0, failed=5)
    append()
    with pytest.raises(TableMissingError):
        collect(spark, lake, now_ms=NOON_MS, within_ms=1_000)
    first = analyse(5)
    assert (first.full, first.journeys, first.is_sound) == (True, 5, True)
    assert fates() == dict.fromkeys(range(5), "pending")

    archive.succeeded(1, 2)
    archive.failed(4, 2, reason="exhausted", started_ms=NOON_MS + 61_000)
    append()
    second = analyse(6)  # record 5 was there before, and lay behind the cut
    assert (second.full, second.touched, second.journeys) == (False, 3, 6)
    assert fates() == {0: "pending", 1: "done", 2: "pending", 3: "pending", 4: "dead", 5: "pending"}

    spark.sql(f"DELETE FROM {quoted(lake.table(RECORDS_TABLE))} WHERE failure_id LIKE '%/0/0'")  # noqa: S608 - a folder of this test
    third = analyse(6)
    assert (third.full, third.journeys) == (True, 5)
    assert not third.is_sound
    (lost,) = [verdict for verdict in third.verdicts if verdict.is_error]
    assert (lost.name, lost.examples) == ("ledger: what failed has left a trace", (f"{GROUP} {MAIN} 0 1",))

    back = analyse(3)
    assert (back.full, back.journeys) == (True, 2)

    shown = collect(spark, lake, now_ms=NOON_MS + 2_000, within_ms=1_000)
    assert shown["totals"]["failed"] == 2
    assert [check["name"] for check in shown["checks"] if check["failures"]] == ["the archive is fresh"]
