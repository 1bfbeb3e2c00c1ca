"""Keeping a lake in shape, and erasing from it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history import Group
from samples import dead

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run as retryapp
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.pipeline.archive import Archive, ArchiveOptions
from retryapp.pipeline.erasures import Erasure, Erasures
from retryapp.pipeline.errors import HeldError, LakeUnusableError, TableMissingError, TurnLostError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.hold import ANALYSIS_HOLD, RECORDS_HOLD, TURN_S, Held, Holds
from retryapp.pipeline.lake import Files, Lake, open_lake
from retryapp.pipeline.remains import find_remains
from retryapp.pipeline.tables import DERIVED, ERASURES_TABLE, RECORDS_TABLE, Tables, quoted
from retryapp.pipeline.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESS = b"ada.lovelace@example.org"
FAR_MS = 4_000_000_000_000


pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def group(connection: KafkaConnection, topology: HandlerTopology) -> Group:
    """Topics with two partitions."""
    made = Group(connection, topology)
    made.make(partitions=2)
    return made


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lake."""
    return open_lake(spark, str(tmp_path / "lake"))


def archive(spark: SparkSession, group: Group, lake: Lake) -> int:
    """Archive what is there; return how many records."""
    options = ArchiveOptions(group=group.topology.group)
    return Archive(spark, group.connection, lake, options, now_ms=lambda: FAR_MS).run_once().rows


def upkeep_of(spark: SparkSession, lake: Lake, *, wait_s: float = 60.0) -> Upkeep:
    """Return the commands."""
    return Upkeep(spark, lake, now_ms=lambda: FAR_MS, wait_s=wait_s)


def files_with(folder: Path, needle: bytes) -> Iterator[Path]:
    """Find the files below a folder that hold some bytes, as they are or compressed in Parquet."""
    import pyarrow.parquet as pq

    for path in (path for path in folder.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        if path.suffix == ".parquet":
            raw += repr(pq.ParquetFile(path).read().to_pylist()).encode()
        if needle in raw or needle.decode().encode("utf-16") in raw:
            yield path


def test_erasing_a_key_leaves_no_trace_in_the_lake(
    spark: SparkSession, group: Group, lake: Lake, tmp_path: Path
) -> None:
    """Table, log, quarantine, change data, checkpoints, reports; and nothing of it comes back from the topics."""
    metadata = replace(dead(0), error_message=f"no such user {ADDRESS.decode()}")
    group.dead(0, metadata, key=ADDRESS, value=b'{"mail": "' + ADDRESS + b'"}')
    group.dead(1, dead(1), key=b"somebody else")
    group.send(group.topology.dlq, 0, ADDRESS, b"unreadable " + ADDRESS, (("retry-attempt", ADDRESS),))
    group.flush()
    assert archive(spark, group, lake) == 3
    report = tmp_path / "lake" / DERIVED / "report.html"
    report.parent.mkdir()
    report.write_bytes(ADDRESS)
    assert list(files_with(tmp_path / "lake", ADDRESS)), "the search finds nothing where something is"
    group.dead(1, dead(2), key=ADDRESS)  # on the topic, not archived yet
    erased = upkeep_of(spark, lake).erase(ADDRESS)
    assert erased.rows == 2
    assert archive(spark, group, lake) == 1
    assert list(files_with(tmp_path / "lake", ADDRESS)) == []
    assert [bytes(row["key"]) for row in Tables(spark, lake).read(RECORDS_TABLE).collect()] == [b"somebody else"]


def now_ms() -> int:
    """Return the time, as the broker has it."""
    return time.time_ns() // 1_000_000


def dies(*_: object) -> None:
    """End this process, as far as a command can tell."""
    raise SystemExit(137)


def keys(spark: SparkSession, lake: Lake) -> list[bytes]:
    """Return the archived records' keys."""
    return sorted(bytes(row["key"]) for row in Tables(spark, lake).read(RECORDS_TABLE).select("key").collect())


def test_an_erasure_that_dies_is_resumed_without_its_key(
    spark: SparkSession,
    group: Group,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What had arrived before is not archived; status tells of it until it has ended; what came later stays."""
    group.dead(0, replace(dead(0), error_message="no such user grace"), key=b"grace")
    group.dead(1, dead(1), key=b"somebody else")
    assert archive(spark, group, lake) == 2
    group.dead(1, dead(2), key=b"grace", value=b"grace was here before")
    group.flush()
    upkeep = Upkeep(spark, lake, now_ms=now_ms)
    with monkeypatch.context() as dying:
        dying.setattr(Upkeep, "_delete", dies)
        with pytest.raises(SystemExit):
            upkeep.erase(b"grace")
    (begun,) = Erasures(Facts(spark, lake)).open()
    group.dead(1, dead(3), key=b"grace", value=b"grace is back")
    group.flush()
    assert archive(spark, group, lake) == 2, "read; one of them is left out"
    assert keys(spark, lake) == [b"grace", b"grace", b"somebody else"]

    where = ["--lake", lake.uri, "--broker", group.connection.bootstrap, "--group", group.topology.group]
    capsys.readouterr()
    assert retryapp(["pipeline", "status", *where]) == ExitCode.FINDING
    assert f"'retryapp pipeline erase --resume --lake {lake.uri}' ends it" in capsys.readouterr().out
    resume = ["pipeline", "erase", "--resume", "--lake", lake.uri, "--json"]
    for wrong in (["--key", "grace"], where[2:], ["--client-config", __file__]):
        assert retryapp([*resume, *wrong]) == ExitCode.USAGE
    capsys.readouterr()
    assert retryapp(resume) == ExitCode.FINE
    assert json.loads(capsys.readouterr().out) == {"erasures": [{"rows": 1, "key_hash": begun.key_hash}]}
    assert retryapp(["pipeline", "status", *where, "--json"]) == ExitCode.FINE
    assert json.loads(capsys.readouterr().out)["open_erasures"] == []
    assert keys(spark, lake) == [b"grace", b"somebody else"]
    assert not list(files_with(tmp_path / "lake", b"no such user grace"))
    assert list(files_with(tmp_path / "lake", b"grace is back"))
    assert retryapp(resume) == ExitCode.FINE
    assert json.loads(capsys.readouterr().out) == {"erasures": []}

    behind = Upkeep(spark, lake, now_ms=lambda: begun.erased_ms - 1)  # a machine whose clock is slow
    with monkeypatch.context() as dying:
        dying.setattr(Upkeep, "_vacuum", dies)
        with pytest.raises(SystemExit):
            upkeep.erase(b"grace")
    assert behind.erase(b"grace").rows == 0, "it reaches as far as the one before"
    assert Erasures(Facts(spark, lake)).open() == ()


def test_an_erasure_that_dies_between_its_steps(
    spark: SparkSession, group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, given again, ends it, whichever step it was."""
    group.dead(0, replace(dead(0), error_message=f"no such user {ADDRESS.decode()}"), key=ADDRESS)
    group.dead(1, dead(1), key=b"somebody else")
    assert archive(spark, group, lake) == 2
    report = tmp_path / "lake" / DERIVED / "report.html"
    report.parent.mkdir()
    report.write_bytes(ADDRESS)
    steps: tuple[tuple[type, str], ...] = ((Upkeep, "_delete"), (Upkeep, "_vacuum"), (Files, "remove"))
    for owner, step in steps:
        with monkeypatch.context() as dying:
            dying.setattr(owner, step, dies)
            with pytest.raises(SystemExit):
                upkeep_of(spark, lake).erase(ADDRESS)
        assert list(files_with(tmp_path / "lake", ADDRESS)), f"it had ended before {step}"
    upkeep_of(spark, lake).erase(ADDRESS)
    assert list(files_with(tmp_path / "lake", ADDRESS)) == []
    assert keys(spark, lake) == [b"somebody else"]


def test_which_erasures_are_open(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Those that no later end covers: of their key, whole, and of whatever version."""
    facts = Facts(spark, lake)
    erasures, kay, lee = Erasures(facts), Erasure(100, "ab"), Erasure(70, "cd")
    assert erasures.open() == ()
    erasures.begin(kay)
    facts.put(ERASURES_TABLE, "cd 70", {"key_hash": "cd", "erased_ms": 70})  # as versions without an end wrote it
    assert erasures.open() == (lee, kay)
    assert (erasures.last("ab"), erasures.last("ef")) == (kay, None)
    erasures.end(lee, 75)
    erasures.begin(Erasure(60, "ab"))
    erasures.end(Erasure(60, "ab"), 65)
    assert erasures.open() == (kay,)
    half = tmp_path / "lake" / ERASURES_TABLE / "ab~20100~20ended.json"
    half.write_text('{"key_hash": "ab", "era')
    assert erasures.open() == (kay,)
    erasures.end(kay, 105)
    assert erasures.open() == ()
    erasures.begin(Erasure(200, "ab"))
    assert erasures.open() == (Erasure(200, "ab"),)


@pytest.mark.parametrize("command", [("compact",), ("erase", "--key", "ada")])
def test_the_user_says_how_long_to_wait(
    command: tuple[str, ...], spark: SparkSession, group: Group, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside somebody who does not end: refused when the time is over, with who it is."""
    group.dead(0, dead(0))
    assert archive(spark, group, lake) == 1
    line = ["pipeline", *command, "--lake", lake.uri, "--wait"]
    assert retryapp([*line, "soon"]) == ExitCode.USAGE
    capsys.readouterr()
    with Holds(spark, lake, lambda: FAR_MS).take("archive", RECORDS_HOLD):
        began_s = time.monotonic()
        assert retryapp([*line, "700ms"]) == ExitCode.ENVIRONMENT
        assert 0.7 <= time.monotonic() - began_s < TURN_S
    said = capsys.readouterr().err
    assert "waiting for another run: archive (process" in said
    assert "beside another one: archive (process" in said


def test_compact_rebuild_expire_and_vacuum(spark: SparkSession, group: Group, lake: Lake, tmp_path: Path) -> None:
    """The same rows in fewer files; read anew; gone by day; old files removed."""
    for number in range(3):
        group.dead(number % 2, dead(number), key=b"k%d" % number)
        archive(spark, group, lake)
    upkeep, table = upkeep_of(spark, lake), Tables(spark, lake)
    before = sorted(map(str, table.read(RECORDS_TABLE).collect()))
    assert upkeep.compact() == {"removed": 3, "added": 1}
    assert sorted(map(str, table.read(RECORDS_TABLE).collect())) == before
    assert upkeep.rebuild(date(2020, 1, 1)) == 3
    assert sorted(map(str, table.read(RECORDS_TABLE).collect())) == before
    upkeep.vacuum(0)
    assert (
        len([path for path in (tmp_path / "lake" / "records").rglob("*.parquet") if "date=" in str(path.parent)]) == 1
    )
    assert upkeep.expire(date(2020, 1, 1)) == 0
    assert upkeep.expire(date(2200, 1, 1)) == 3
    assert table.read(RECORDS_TABLE).count() == 0


def test_whoever_changes_the_table_waits_until_nobody_else_does(
    spark: SparkSession, group: Group, lake: Lake, topology: HandlerTopology
) -> None:
    """A vacuum would take a running batch's files, S3 one of two commits, and an erasure would miss what is written."""
    group.dead(0, dead(0), key=ADDRESS)
    assert archive(spark, group, lake) == 1
    upkeep, holds = upkeep_of(spark, lake, wait_s=0.0), Holds(spark, lake, lambda: FAR_MS)
    day = date(2020, 1, 1)
    commands: dict[str, Callable[[], object]] = {
        "compact": upkeep.compact,
        "expire": lambda: upkeep.expire(day),
        "vacuum": lambda: upkeep.vacuum(0),
        "erase": lambda: upkeep.erase(ADDRESS),
        "rebuild": lambda: upkeep.rebuild(day),
    }
    version = spark.sql(f"DESCRIBE HISTORY {quoted(lake.table(RECORDS_TABLE))}").count()
    for name, command in commands.items():
        with (
            holds.take("archive", RECORDS_HOLD),
            pytest.raises(HeldError, match=rf"the {name} run would .*: archive \(process"),
        ):
            command()
    with holds.take("analyse", ANALYSIS_HOLD), pytest.raises(HeldError, match=r"the erase run would .*: analyse"):
        upkeep.erase(ADDRESS)
    assert spark.sql(f"DESCRIBE HISTORY {quoted(lake.table(RECORDS_TABLE))}").count() == version

    group.dead(1, dead(1))
    waited: list[str] = []
    stopped = threading.Event()

    def tell(holder: str) -> None:
        waited.append(holder)
        stopped.set()

    job = Archive(spark, group.connection, lake, ArchiveOptions(group=topology.group), now_ms=lambda: FAR_MS)
    with holds.take("vacuum", RECORDS_HOLD), pytest.raises(HeldError, match="vacuum"):
        job.run_once(on_wait=tell, stopped=stopped)
    assert len(waited) == 1
    assert Tables(spark, lake).read(RECORDS_TABLE).count() == 1
    assert job.run_once().rows == 1
    with ExitStack() as stack:
        stack.enter_context(holds.take("archive", RECORDS_HOLD))
        patient = Upkeep(
            spark, lake, now_ms=lambda: FAR_MS, on_wait=lambda holder: stack.close(), stopped=threading.Event()
        )
        assert patient.erase(ADDRESS).rows == 1
    with holds.take("archive", RECORDS_HOLD), pytest.raises(HeldError):
        Upkeep(spark, lake, now_ms=lambda: FAR_MS, stopped=stopped).compact()


def test_nothing_is_vacuumed_once_somebody_else_has_taken_over(
    spark: SparkSession, group: Group, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be another run's, which are not committed yet."""
    group.dead(0, dead(0), key=ADDRESS)
    assert archive(spark, group, lake) == 1
    monkeypatch.setattr(Held, "is_lost", True)
    with pytest.raises(TurnLostError, match="the vacuum run"):
        upkeep_of(spark, lake).vacuum(0)
    with pytest.raises(TurnLostError, match="the erase run"):
        upkeep_of(spark, lake).erase(ADDRESS)


def test_a_lake_without_an_archive_and_one_without_delta(spark: SparkSession, tmp_path: Path) -> None:
    """Both say what to do."""
    with pytest.raises(TableMissingError, match="pipeline archive"):
        upkeep_of(spark, open_lake(spark, str(tmp_path / "empty")))
    with pytest.raises(LakeUnusableError, match="needs Delta tables"):
        upkeep_of(spark, open_lake(spark, str(tmp_path / "plain"), wanted="parquet"))


def test_what_remains_on_topics_is_listed_with_its_date(group: Group) -> None:
    """Of the key alone, until its topic's retention ends."""
    for number, key in enumerate((ADDRESS, b"somebody else", ADDRESS)):
        group.dead(0, dead(number), key=key)
    times = [record.timestamp_ms for record in read_topic(group.connection, group.topology.dlq)]
    (found,) = find_remains(group.admin, group.topology.group, ADDRESS)
    assert (found.topic, found.records) == (group.topology.dlq, 2)
    assert found.expires_ms == times[2] + 30 * 86_400_000
