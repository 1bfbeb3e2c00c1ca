"""The job on a lake that is there already: what a run makes anew, and what it leaves as it was."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from lives import CLUSTER, GROUP, MAIN, NOON_MS, TOPIC_ID, Archive

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run as retryapp
from retryapp.pipeline.analysis.cuts import TakenCut
from retryapp.pipeline.analysis.derived import SIDE_BY_SIDE, Derived
from retryapp.pipeline.analysis.job import Analysed, Analysis
from retryapp.pipeline.analysis.schemas import DERIVED_TABLES
from retryapp.pipeline.errors import TableMissingError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.lake import Lake, open_lake
from retryapp.pipeline.positions import DELETED, Gap
from retryapp.pipeline.report.facts import collect
from retryapp.pipeline.sources import Source, Sources
from retryapp.pipeline.state import Life
from retryapp.pipeline.tables import RECORDS_TABLE, Tables, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


@dataclass
class Analysts:
    """The job and its results on one lake."""

    spark: SparkSession
    lake: Lake

    def analyse(self, offset: int | None) -> Analysed:
        """Run the job up to an offset of one partition; None: Kafka has none."""
        main = Source(topic=MAIN, topic_id=TOPIC_ID, group=GROUP, main=MAIN, station="main", partitions=1)
        mains = Sources(cluster_id=CLUSTER, group=GROUP, topics=(main,))
        cut = TakenCut(mains, {(MAIN, 0): offset}, {}, {f"{GROUP}.{MAIN}.dlq": None})
        return Analysis(self.spark, self.lake, now_ms=lambda: NOON_MS).run([cut], broker="kafka-1:9092")

    def append(self, archive: Archive) -> None:
        """Write rows to the archive."""
        archive.frame(self.spark).write.format("delta").mode("append").save(self.lake.table(RECORDS_TABLE))
        archive.rows.clear()

    def collect(self, now_ms: int = NOON_MS) -> dict[str, Any]:
        """Return the report."""
        return collect(self.spark, self.lake, now_ms=now_ms, within_ms=1_000)

    def fates(self) -> dict[int, str]:
        """Return the fate of each record."""
        return {row["offset"]: row["fate"] for row in Derived(self.spark, self.lake).read("journeys").collect()}


@pytest.fixture(scope="module")
def analysed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysts, Analysed, Analysed]:
    """A lake that was analysed twice, with records that came late in between."""
    folder = tmp_path_factory.mktemp("analysed") / "lake"
    job, archive = Analysts(spark, open_lake(spark, str(folder))), Archive()
    with pytest.raises(TableMissingError, match="pipeline archive"):
        job.analyse(5)
    Tables(spark, job.lake).ensure_records()
    for offset in range(6):
        archive.failed(offset, 1)
    archive.counted(0, 5, ok=0, failed=5)
    job.append(archive)
    with pytest.raises(TableMissingError):
        job.collect()
    first = job.analyse(5)
    assert job.fates() == dict.fromkeys(range(5), "pending")
    archive.succeeded(1, 2)
    archive.failed(4, 2, reason="exhausted", started_ms=NOON_MS + 61_000)
    job.append(archive)
    return job, first, job.analyse(6)  # record 5 was there before, and lay at the cut


def test_late_records_touch_their_journeys_alone(analysed: tuple[Analysts, Analysed, Analysed]) -> None:
    """The first run makes all, the second those with new records and those that the cut released."""
    job, first, second = analysed
    assert (first.full, first.journeys, first.is_sound) == (True, 5, True)
    assert (second.full, second.touched, second.journeys) == (False, 3, 6)
    assert job.fates() == {0: "pending", 1: "done", 2: "pending", 3: "pending", 4: "dead", 5: "pending"}


def test_the_report_of_a_small_lake(analysed: tuple[Analysts, Analysed, Analysed]) -> None:
    """Every table is in it, and an old analysis is a failed check."""
    job, _, _ = analysed
    report = job.collect()
    assert (report["totals"]["failed"], report["totals"]["recovered"], report["totals"]["dead"]) == (6, 1, 1)
    found = [(row["reason"], row["failures"], row["records"], row["dead"]) for row in report["causes"]]
    assert found == [("exhausted", 2, 1, 1), (None, 5, 5, 0)]
    assert (report["causes"][0]["template"], report["in_all"]["causes"], report["in_all"]["deadly_keys"]) == (
        "no",
        2,
        0,
    )
    assert [entry["command"] for entry in report["todo"] if " dead record" in entry["title"]] == [
        f"retryapp dead show {GROUP}/{MAIN}@{TOPIC_ID}/0/4 --broker kafka-1:9092"
    ]
    assert [check["name"] for check in report["checks"] if check["failures"]] == []
    assert [row["topic"] for row in report["retention"]] == [f"{GROUP}.{MAIN}.dlq"]
    assert set(DERIVED_TABLES) - {"journeys", "progress"} <= set(report)
    late = job.collect(NOON_MS + 2_000)
    assert [check["name"] for check in late["checks"] if check["failures"]] == ["the archive is fresh"]


@pytest.mark.parametrize("counts", ["kept", "gone"])
def test_a_group_whose_offsets_kafka_has_forgotten_is_analysed_as_far_as_the_archive_tells(
    counts: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Unknown is not 0: that would drop every journey, and all checks would hold."""
    job, archive = Analysts(spark, open_lake(spark, str(tmp_path / "lake"))), Archive()
    Tables(spark, job.lake).ensure_records()
    for offset in range(6):
        archive.failed(offset, 1)
    if counts == "kept":
        archive.counted(0, 2, ok=0, failed=2)
        archive.counted(2, 5, ok=0, failed=3)
    job.append(archive)
    found = job.analyse(None)
    assert (found.journeys, found.is_sound) == (5 if counts == "kept" else 6, True)
    (told,) = [verdict for verdict in found.verdicts if verdict.failures]
    assert (told.name, told.examples) == ("ledger: the group's offsets are known", (f"{GROUP} {MAIN} 0",))
    assert told.name in {check["name"] for check in job.collect()["checks"] if check["failures"]}


@pytest.mark.extended
def test_deleted_rows_and_a_cut_that_moved_back_make_all_anew(
    spark: SparkSession, analysed: tuple[Analysts, Analysed, Analysed], tmp_path: Path
) -> None:
    """And what was deleted is missed by the ledger."""
    former, folder = Path(analysed[0].lake.uri.removeprefix("file://")), tmp_path / "lake"
    shutil.copytree(former, folder)
    job = Analysts(spark, open_lake(spark, str(folder)))
    spark.sql(f"DELETE FROM {quoted(job.lake.table(RECORDS_TABLE))} WHERE failure_id LIKE '%/0/0'")  # noqa: S608 - a folder of this test
    third = job.analyse(6)
    assert (third.full, third.journeys, third.is_sound) == (True, 5, False)
    (lost,) = [verdict for verdict in third.verdicts if verdict.is_error]
    assert (lost.name, lost.examples) == ("ledger: what failed has left a trace", (f"{GROUP} {MAIN} 0 1",))
    back = job.analyse(3)
    assert (back.full, back.journeys) == (True, 2)
    assert job.collect()["totals"]["failed"] == 2


@pytest.mark.extended
def test_a_loss_fails_the_checks_until_it_is_acknowledged(
    spark: SparkSession,
    analysed: tuple[Analysts, Analysed, Analysed],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It stays visible, as a warning with the note; a gap that is not there is refused."""
    folder = tmp_path / "lake"
    shutil.copytree(Path(analysed[0].lake.uri.removeprefix("file://")), folder)
    job = Analysts(spark, open_lake(spark, str(folder)))
    life = Life(topic=f"{GROUP}.{MAIN}.dlq", topic_id="id-dlq", group=GROUP, main=MAIN, station="dlq", epoch=1)
    gaps = Gaps(Facts(spark, job.lake))
    for _ in range(2):
        gaps.put(Gap(life, 0, 3, None, DELETED).row(CLUSTER, "r1", NOON_MS))
    (gap,) = gaps.rows()
    assert [verdict.name for verdict in job.analyse(6).verdicts if verdict.is_error] == [
        "nothing was lost before it was archived"
    ]
    line = ["pipeline", "gaps", "--lake", job.lake.uri, "--json", "--acknowledge"]
    assert retryapp([*line, "unknown"]) == ExitCode.ENVIRONMENT
    capsys.readouterr()
    assert retryapp([*line, gap["gap"], "--note", "deleted on purpose"]) == ExitCode.FINE
    (shown,) = json.loads(capsys.readouterr().out)["gaps"]
    assert (shown["topic"], shown["from_offset"], shown["note"]) == (life.topic, 3, "deleted on purpose")
    after = job.analyse(6)
    assert after.is_sound
    (warning,) = [verdict for verdict in after.verdicts if verdict.failures]
    assert "deleted on purpose" in warning.examples[0]


def test_a_table_that_cannot_be_made_ends_the_others(spark: SparkSession, lake: Lake) -> None:
    """The error is raised once what was begun has ended; what had not begun by then is not made."""
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
