"""The job on a lake that is there already: what a run reads, and what it leaves as it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from history import CommandLine
from lives import CLUSTER, GROUP, MAIN, MINUTE_MS, NOON_MS, TOPIC_ID, Archive, cut

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run as retryapp
from retryapp.pipeline.analysis.cuts import TakenCut
from retryapp.pipeline.analysis.derived import Derived
from retryapp.pipeline.analysis.job import Analysed, Analysis
from retryapp.pipeline.analysis.outages import by_interval
from retryapp.pipeline.analysis.schemas import DERIVED_TABLES
from retryapp.pipeline.errors import OtherRunError
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.lake import Files, Lake, open_lake
from retryapp.pipeline.positions import CUT_OFF, DELETED, Gap
from retryapp.pipeline.report.facts import causes_of, collect
from retryapp.pipeline.report.page import to_page
from retryapp.pipeline.sources import Life
from retryapp.pipeline.tables import DERIVED, RECORDS_TABLE, Tables, place_of, quoted
from retryapp.pipeline.upkeep import Upkeep, hash_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
DLQ = f"{GROUP}.{MAIN}.dlq"


def taken(*offsets: int) -> TakenCut:
    return TakenCut(GROUP, cut(*offsets), {}, {DLQ: None}, lives={DLQ: "id-dlq"})


@dataclass
class Analysts:
    """The job and its results on one lake."""

    lake: Lake
    archive: Archive = field(default_factory=Archive)
    """What is new, until the next run."""

    @property
    def derived(self) -> Derived:
        return Derived(self.lake)

    @property
    def job(self) -> Analysis:
        return Analysis(self.lake, now_ms=lambda: NOON_MS)

    @property
    def result(self) -> dict[str, Any]:
        return self.derived.last_result()

    @property
    def folder(self) -> Path:
        """Of ``derived``."""
        return Path(self.lake.table(DERIVED).removeprefix("file://"))

    def append(self) -> None:
        if self.archive.rows:
            Tables(self.lake).append(self.archive.frame(self.lake.spark))
            self.archive.rows.clear()

    def analyse(
        self, *offsets: int, broker: str = "kafka-1:9092", login: str | None = None, **facts: tuple[Any, ...]
    ) -> Analysed:
        """Run the job up to an offset of each partition; ``facts`` are of the cut."""
        self.append()
        return self.job.run([replace(taken(*offsets), **facts)], broker=broker, client_config=login)

    def collect(self, now_ms: int = NOON_MS, **window: int) -> dict[str, Any]:
        return collect(self.lake, now_ms=now_ms, within_ms=1_000, **window)

    def fates(self) -> dict[int, str]:
        return {row["offset"]: row["fate"] for row in self.derived.read("journeys").collect()}


@pytest.fixture
def job(lake: Lake) -> Analysts:
    """The job on a lake that has nothing yet."""
    return Analysts(lake)


@pytest.fixture(scope="module")
def analysed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysts, Analysed, Analysed]:
    """A lake that was analysed twice, with records that came late in between; its name is no pattern."""
    job = Analysts(open_lake(spark, str(tmp_path_factory.mktemp("analysed") / "lake [1] {a}")))
    for offset in range(6):
        job.archive.failed(offset, 1)
    job.archive.counted(0, 5, ok=0, failed=5)
    first = job.analyse(5)
    assert job.fates() == dict.fromkeys(range(5), "pending")
    job.archive.succeeded(1, 2)
    job.archive.failed(4, 2, reason="exhausted", started_ms=NOON_MS + 61_000)
    return job, first, job.analyse(6)  # record 5 was there before, and lay at the cut


@pytest.fixture
def copied(spark: SparkSession, analysed: tuple[Analysts, Analysed, Analysed], tmp_path: Path) -> Analysts:
    """A copy of that lake, to be changed."""
    shutil.copytree(analysed[0].folder.parent, tmp_path / "lake")
    return Analysts(open_lake(spark, str(tmp_path / "lake")))


def test_what_is_new_joins_in(analysed: tuple[Analysts, Analysed, Analysed], copied: Analysts) -> None:
    """Records, and what the cut releases. Without news the result is that of the run before, checked now.

    Without ``derived`` all is made again, and the same.
    """
    _, first, second = analysed
    assert (first.is_new, first.journeys, first.is_sound) == (True, 5, True)
    assert (second.is_new, second.journeys) == (True, 6)
    assert copied.fates() == {0: "pending", 1: "done", 2: "pending", 3: "pending", 4: "dead", 5: "pending"}
    before = {name: copied.derived.read(name).inputFiles() for name in DERIVED_TABLES}
    again = copied.analyse(6)
    assert {name: copied.derived.read(name).inputFiles() for name in DERIVED_TABLES} == before
    assert (again.is_new, again.journeys, again.verdicts) == (False, 6, second.verdicts)
    tables = {name: sorted(map(repr, copied.derived.read(name).collect())) for name in DERIVED_TABLES}
    shutil.rmtree(copied.folder)
    assert copied.analyse(6).is_new
    assert {name: sorted(map(repr, copied.derived.read(name).collect())) for name in DERIVED_TABLES} == tables


def test_the_log_names_the_files_with_all_rows(
    spark: SparkSession, copied: Analysts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a first analysis needs no query of Delta's; joined or not, until rows were deleted.

    Of no file is asked whether it is there: there may be thousands, on an object store. And none are listed for one.
    """
    tables, asked = Tables(copied.lake), list[str]()
    tables.join_small_files()
    for name in ("exists", "names"):
        ask = getattr(Files, name)
        monkeypatch.setattr(Files, name, lambda files, uri, ask=ask: (asked.append(uri), ask(files, uri))[1])

    def added(since: list[int] | None) -> list[str]:
        asked.clear()
        files = tables.added_between(since, place_of(next(tables.commits())))
        assert files is not None
        return files

    files = added(None)
    assert len(files) == 2
    assert [uri for uri in asked if "/date=" in uri] == [files[0].rpartition("/")[0]]
    first = next(commit for commit in tables.commits() if commit["version"] == 0)
    assert added(place_of(first)) == [uri for uri in asked if "/date=" in uri] == files[:1]
    assert tables.read_files(files).count() == tables.read().count() == 9
    spark.sql(f"DELETE FROM {quoted(copied.lake.table(RECORDS_TABLE))} WHERE offset = 0")  # noqa: S608 - a folder of this test
    assert tables.added_between(None, place_of(next(tables.commits()))) is None


@pytest.mark.extended
def test_records_are_read_once(spark: SparkSession, copied: Analysts) -> None:
    """As long as files tell what was added, joined or not; else all are read anew. Fates are the same either way.

    So it is after rows were deleted: the ledger misses them, and a first analysis does not find them in the log again.
    """
    job, tables = copied, Tables(copied.lake)

    def read() -> list[int]:
        return [job.derived.read("readings", each).count() for each in job.result["readings"]]

    def add_success(offset: int) -> None:
        job.archive.succeeded(offset, 2)
        job.append()
        tables.join_small_files()

    assert read() == [7, 2], "the second run read what came after the first"
    job.archive.ends[f"{GROUP}.{MAIN}.events", 0] = 2
    add_success(2)
    job.analyse(6)
    assert (read(), job.fates()[2]) == ([7, 2, 1], "done")
    add_success(3)
    Upkeep(job.lake, now_ms=lambda: NOON_MS).vacuum(0)
    assert job.analyse(6).is_sound
    assert read() == [11], "the file that was added is gone"
    assert job.fates() == {0: "pending", 1: "done", 2: "done", 3: "done", 4: "dead", 5: "pending"}

    spark.sql(f"DELETE FROM {quoted(job.lake.table(RECORDS_TABLE))} WHERE station = 'retry' AND offset = 0")  # noqa: S608 - a folder of this test
    deleted = job.analyse(6)
    assert (deleted.is_new, deleted.journeys, read()) == (True, 5, [10])
    (lost,) = [verdict for verdict in deleted.verdicts if verdict.is_error]
    assert (lost.name, lost.examples) == ("ledger: what failed has left a trace", (f"{GROUP} {MAIN} 0 1",))
    shutil.rmtree(job.folder)
    back = job.analyse(3)  # and the cut has moved back
    assert (back.is_new, back.journeys) == (True, 2)
    assert job.collect()["totals"]["failed"] == 2


def test_the_report_of_a_small_lake(analysed: tuple[Analysts, Analysed, Analysed]) -> None:
    """Every table is in it, and an old analysis is a failed check."""
    job, _, _ = analysed
    report = job.collect(NOON_MS + 2_000)
    assert report["headline"] == "6 records failed: 1 recovered, 4 waiting, 1 dead"
    found = [(row["reason"], row["failures"], row["records"], row["dead"]) for row in report["causes"]]
    assert found == [("exhausted", 2, 1, 1), (None, 5, 5, 0)]
    assert report["causes"][0]["template"] == "no"
    assert (report["in_all"]["causes"], report["in_all"]["deadly_keys"]) == (2, 0)
    assert [entry["command"] for entry in report["todo"] if " dead record" in entry["title"]] == [
        f"retryapp dead show {GROUP}/{MAIN}@{TOPIC_ID}/0/4 --broker kafka-1:9092"
    ]
    assert [row["topic"] for row in report["retention"]] == [DLQ]
    assert [check["name"] for check in report["checks"] if check["failures"]] == ["the archive is fresh"]
    with patch("retryapp.pipeline.report.facts.ATTEMPTS", 1):
        report = job.collect()
    assert ([row["attempt"] for row in report["funnel"]], report["in_all"]["funnel"]) == ([1], 2)
    assert ["Later attempts" in to_page(report), "are not drawn" in to_page(report)] == [True, False]
    for since_ms, failing in ((NOON_MS, []), (NOON_MS + 1, ["the window was analysed"])):
        report = job.collect(NOON_MS + 500, since_ms=since_ms)
        assert [check["name"] for check in report["checks"] if check["failures"]] == failing


def test_what_workers_have_counted_and_not_said_yet_counts_too(job: Analysts) -> None:
    """So it is exact up to the cut; and of a main topic that was made again nothing is lost, however far it has come.

    What workers said of the former one does not count. A partition whose offset Kafka has forgotten is named.
    """

    def counted() -> list[tuple[int, ...]]:
        names = ("from_offset", "to_offset", "received", "done", "pending", "lost", "uncounted", "gaps")
        return [tuple(row[name] for name in names) for row in job.result["ledger"]]

    def tally(first: int, end: int, received: int, ok: int, failed: int) -> tuple[Any, ...]:
        return (CLUSTER, GROUP, MAIN, 0, first, end, NOON_MS, NOON_MS + MINUTE_MS, received, ok, failed, 0)

    job.archive.failed(5, 1, topic_id="former")
    job.archive.counted(0, 9, ok=8, failed=1)
    job.archive.failed(12, 1)
    assert job.analyse(15, tallies=(tally(0, 15, 14, 13, 1),)).is_sound
    assert counted() == [(0, 15, 14, 13, 1, 0, 0, 0)]
    job.archive.counted(0, 18, ok=16, failed=1)
    job.archive.failed(19, 1)
    place = f"{GROUP} {MAIN} 0"
    found = job.analyse(20, tallies=(tally(18, 20, 2, 1, 1),), forgotten=(place,))
    assert counted() == [(0, 20, 19, 17, 2, 0, 0, 0)]
    (told,) = [verdict for verdict in found.verdicts if verdict.failures]
    assert (told.name, told.examples) == ("ledger: the group's offsets are known", (place,))
    assert job.analyse(20, tallies=(tally(18, 20, 2, 1, 1),)).is_new, "Kafka knows it again"
    job.archive.counted(18, 20, ok=1, failed=1)  # of an idle worker, between the cut and the archive's end
    assert job.analyse(20, tallies=(tally(18, 20, 2, 1, 1),)).is_sound
    assert counted() == [(0, 20, 19, 17, 2, 0, 0, 0)], "it is the same count"
    assert job.result["ledger"][0]["overlaps"] == 0


def test_what_fails_in_spark_is_told_with_a_remedy(copied: Analysts, command: CommandLine) -> None:
    """Of every command: Spark's failures are the surroundings', and none of the program."""
    for file in copied.folder.glob("*/*/*.parquet"):
        file.write_bytes(b"overwritten")
        file.with_name(f".{file.name}.crc").unlink()
    for name in ("causes", "report"):
        code, facts = command(name)
        assert (code, facts["error"]["type"]) == (ExitCode.ENVIRONMENT, "JobFailedError")
        assert facts["error"]["message"].startswith(f"the {name} job failed")


@pytest.mark.extended
def test_what_was_erased_is_not_lost(job: Analysts) -> None:
    """Workers have counted it; what is missing of later ranges is told."""
    for offset in range(3):
        job.archive.failed(offset, 1, key=hash_key(b"ada", job.lake.salt) if offset else "other")
    job.archive.counted(0, 10, ok=6, failed=4)  # one was on its topic still, and is not archived any more
    job.append()
    assert Upkeep(job.lake, now_ms=lambda: NOON_MS + MINUTE_MS).erase(b"ada").rows == 2
    assert job.analyse(10).is_sound
    (ledger,) = job.collect()["ledger"]
    assert (ledger["failed"], ledger["pending"], ledger["lost"]) == (4, 1, 0)
    job.archive.counted(10, 20, ok=9, failed=1, from_ms=NOON_MS + MINUTE_MS + 1)
    (found,) = [verdict for verdict in job.analyse(20).verdicts if verdict.is_error]
    assert (found.name, found.examples) == ("ledger: what failed has left a trace", (f"{GROUP} {MAIN} 0 1",))


@pytest.mark.extended
def test_a_result_that_is_half_written_or_lacks_its_tables(job: Analysts) -> None:
    """The result before it stands; tables that are gone are made again, though nothing is new."""
    job.archive.failed(0, 1)
    first = job.analyse(5)
    (job.folder / "analysis.000000002.json").write_text('{"version": 3, "run')
    assert job.result["run_id"] == first.run_id
    shutil.rmtree(job.folder / first.run_id)
    again = job.analyse(5)
    assert (again.run_id == first.run_id, job.fates()) == (False, {0: "pending"})
    moved = job.analyse(5, broker="kafka-2:9092", login="/etc/caf\udce9")
    assert moved.run_id == again.run_id
    assert (job.result["broker"], job.result["client_config"]) == ("kafka-2:9092", "/etc/caf\udce9")


def test_tables_of_the_run_before_stay_for_their_readers(job: Analysts) -> None:
    """Also when a result is noted again; of two runs that end at once one is refused, and removes nothing."""
    folder = job.folder
    for run_id in ("a", "b", "b"):
        (folder / run_id).mkdir(parents=True, exist_ok=True)
        job.derived.put_result({"run_id": run_id, "readings": []})
    assert sorted(path.name for path in folder.iterdir()) == ["a", "analysis.000000003.json", "b"]
    other, seen = job.derived, ["analysis.000000003.json"]
    job.derived.put_result({"run_id": "b", "readings": []})
    with patch.object(other, "_results", return_value=seen), pytest.raises(OtherRunError):
        other.put_result({"run_id": "c", "readings": []})
    assert sorted(path.name for path in folder.iterdir()) == ["a", "analysis.000000004.json", "b"]


def test_a_window_is_of_its_time_and_the_totals_of_all(job: Analysts) -> None:
    """What is compared is as long as the window, and more only where the archive has all of it.

    What only failed before it is there, with 0 since; what failed before that is not.
    """
    day_ms = 86_400_000
    days = {"older": [15], "old": [10] * 12 + [7 - 1e-3], "quiet": [10], "fresh": [0.00001] * 11}
    for offset, (cause, age) in enumerate((cause, age) for cause, ages in days.items() for age in ages):
        at_ms = NOON_MS - int(age * day_ms)
        job.archive.failed(offset, 1, fingerprint=cause, started_ms=at_ms, arrived_ms=at_ms)
    job.analyse(50)

    def seen(rows: list[dict[str, Any]]) -> dict[str, tuple[int, str | None]]:
        return {row["fingerprint"]: (row["failures"], row["change"]) for row in rows}

    report = job.collect(since_ms=NOON_MS - 7 * day_ms)
    assert seen(report["causes"]) == {"old": (1, "fewer"), "quiet": (0, "gone"), "fresh": (11, "new")}
    assert report["headline"] == "26 records failed: 0 recovered, 26 waiting, 0 dead"
    windows = (causes_of(job.lake, job.result, now_ms=NOON_MS, since_ms=NOON_MS - ms) for ms in (100 * day_ms, 100))
    long, short = map(seen, windows)
    assert long == {"older": (1, None), "old": (13, None), "quiet": (1, None), "fresh": (11, None)}
    assert short["fresh"] == (11, "new"), "a window of less than an interval has its interval"


def test_a_clock_that_was_wrong_does_not_blur_all_others(job: Analysts) -> None:
    """Failures in 1970, a month ago and in the year 9999, a range from 1970 on: intervals stay short.

    No first try is lost, all failures are counted, and no cause is called new where the archive is.
    """
    wrong_ms = 0, NOON_MS - 30 * 86_400_000, 253_402_300_000_000
    for offset, started_ms in enumerate((*range(NOON_MS, NOON_MS + 200_000, 10_000), *wrong_ms)):
        job.archive.failed(offset, 1, started_ms=started_ms)
    job.archive.counted(0, 23, ok=0, failed=23)
    for first in range(23, 43):
        job.archive.counted(first, first + 1, ok=1, failed=0)
    job.archive.counted(43, 53, ok=10, failed=0, from_ms=0)
    assert job.analyse(53).is_sound
    rows = job.derived.read("rollup").where("fingerprint IS NULL").collect()
    assert (job.result["bin_ms"], sum(row["attempts"] for row in rows)) == (1_000, 30)
    report = job.collect()
    assert ({row["length_ms"] for row in report["timeline"]}, report["in_all"]["failures"]) == ({5_000}, 23)
    assert sum(row["failures"] for row in report["timeline"]) == 20
    assert "3 failed attempts are not drawn" in to_page(report)
    assert [(row["records"], row["change"]) for row in report["causes"]] == [(23, None)]


@pytest.mark.extended
def test_an_outage_goes_on_up_to_the_cut(job: Analysts) -> None:
    """Causes that have no name there are not called by the error of one of them."""
    job.archive.counted(0, 100, ok=90, failed=10)
    for offset in range(10):
        job.archive.failed(offset, 1, started_ms=NOON_MS + offset * 6_000)
    for offset in range(100, 130):
        job.archive.failed(offset, 1, started_ms=NOON_MS + MINUTE_MS + offset * 100)
    later_ms = NOON_MS + 2 * MINUTE_MS
    not_said_yet = (CLUSTER, GROUP, MAIN, 0, 100, 130, NOON_MS + MINUTE_MS, later_ms, 30, 0, 30, 0)
    assert job.analyse(130, tallies=(not_said_yet,)).is_sound
    assert [(row["records"], row["is_over"]) for row in job.collect(later_ms)["outages"]] == [(30, False)]
    with patch("retryapp.pipeline.report.facts.by_interval", lambda rollup, _: by_interval(rollup, [])):
        (found,) = job.collect(later_ms)["outages"]
    assert [cause["template"] for cause in found["causes"]] == ["others"]


@pytest.mark.extended
def test_a_loss_fails_the_checks_until_it_is_acknowledged(copied: Analysts, command: CommandLine) -> None:
    """It stays visible, as a warning with the note; a topic's name is all of its losses; an unknown one is refused."""
    job, gaps = copied, Gaps(copied.lake)
    life = Life(topic=DLQ, topic_id="id-dlq", group=GROUP, main=MAIN, station="dlq", epoch=1)
    for partition, begin, end, reason in ((0, 3, None, DELETED), (0, 3, None, DELETED), (1, None, 1_000, CUT_OFF)):
        gaps.put(Gap(life, partition, begin, end, reason).row(CLUSTER, "r1", NOON_MS))
    deleted, cut_off = gaps.rows()
    (found,) = [verdict for verdict in job.analyse(6).verdicts if verdict.is_error]
    assert found.examples == (
        f"{deleted['gap']} {DLQ}[0] from offset 3 to an unknown offset (deleted)",
        f"{cut_off['gap']} {DLQ}[1] is shorter than the archive: new records below offset 1,000 are not read",
    )
    commands = {entry["title"]: entry["command"] for entry in job.collect()["todo"]}
    assert commands[f"Check failed: {found.name}"] == f"retryapp pipeline gaps --lake {job.lake.uri}"
    assert gaps.open_of(GROUP) == 2
    assert command("gaps", "--acknowledge", "unknown")[0] == ExitCode.ENVIRONMENT
    assert command("gaps", "--acknowledge", cut_off["gap"], "--note", "disk 7")[0] == ExitCode.FINE
    _, facts = command("gaps", "--acknowledge", DLQ, "--note", "deleted on purpose")
    assert [row["note"] for row in facts["gaps"]] == ["deleted on purpose", "disk 7"]
    assert gaps.open_of(GROUP) == 0
    after = job.analyse(6)
    assert after.is_sound
    (warning,) = [verdict for verdict in after.verdicts if verdict.failures]
    assert "deleted on purpose" in warning.examples[0]


@pytest.mark.extended
def test_decisions_about_causes(copied: Analysts, command: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    """Resolved, come back, ignored for a time, open again; a cause that is not there is refused."""
    cause = set[str]()

    def run(*arguments: str, code: int = ExitCode.FINE) -> list[tuple[Any, ...]]:
        ended, said = command("causes", *arguments)
        assert ended == code, said
        cause.update(row["cause_id"] for row in said.get("causes", []))
        names = ("reason", "dead", "decision", "who", "change")
        return [tuple(row[name] for name in names) for row in said.get("causes", [])]

    assert run() == [("exhausted", 1, "open", None, None), (None, 0, "open", None, None)]
    assert run("--topic", "other") == []
    run("--resolve", "f1", code=ExitCode.ENVIRONMENT)
    (name,) = cause  # as 'retryapp causes' and the pages have it
    assert run("--ignore", name, "--until", "7d", "--by", "ann")[0][2:] == ("ignored", "ann", None)
    assert run("--reopen", name, "--by", "bob")[0][2:] == ("open", None, None)
    # the records failed in 2030: after any decision of today
    assert run("--resolve", name, "--topic", MAIN, "--by", "ann")[0][2:] == ("resolved", "ann", "regressed")
    with patch("retryapp.cli._analyse.SystemClock") as clock:
        for hours, is_older in ((1, False), (3, True)):
            clock.return_value.wall_ms.return_value = NOON_MS + hours * 60 * MINUTE_MS
            assert retryapp(["pipeline", "causes", "--lake", copied.lake.uri, "--json", "--since", "2h"]) == 0
            said = capsys.readouterr()
            assert json.loads(said.out)["analysed_ms"] == NOON_MS
            assert ("older than the window" in " ".join(said.err.split())) == is_older
    titles = [entry["title"] for entry in copied.collect()["todo"]]
    assert [title for title in titles if title.startswith("Came back")]
