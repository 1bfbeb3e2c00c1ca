"""Upkeep of a lake, and erasing from it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history import CommandLine, Group
from lives import GROUP, MAIN, NOON_MS, TOPIC_ID
from lives import Archive as Rows
from pyspark.sql import functions as F
from samples import dead, waiting

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run as retryapp
from retryapp.core.headers import RETRY_ORIGIN, encode_metadata
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.kafka import read_topic
from retryapp.pipeline.analysis.job import Analysis
from retryapp.pipeline.erasures import Erasure, Erasures
from retryapp.pipeline.errors import ErasureUnfinishedError, OtherRunError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.hold import RECORDS_HOLD, TURN_S, Holds
from retryapp.pipeline.lake import Files, Lake
from retryapp.pipeline.remains import Remains, find_remains
from retryapp.pipeline.state import read_state
from retryapp.pipeline.tables import DERIVED, ERASURES_TABLE, RECORDS_TABLE, Tables, quoted
from retryapp.pipeline.upkeep import Upkeep, hash_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDRESS = b"ada.lovelace@example.org"
FAR_MS = 4_000_000_000_000
DAY = date(2020, 1, 1)

pytestmark = pytest.mark.timeout(300)


def files_with(folder: Path, needle: bytes) -> Iterator[Path]:
    """Find the files below a folder that hold some bytes, as they are or compressed in Parquet."""
    import pyarrow.parquet as pq

    for path in (path for path in folder.rglob("*") if path.is_file()):
        raw = path.read_bytes()
        if path.suffix == ".parquet":
            raw += repr(pq.ParquetFile(path).read().to_pylist()).encode()
        if needle in raw or needle.decode().encode("utf-16") in raw:
            yield path


def keys(lake: Lake) -> list[bytes]:
    return sorted(bytes(row["key"]) for row in Tables(lake).read().select("key").collect())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def dies(*_: object) -> None:
    """End this process, as far as a command can tell."""
    raise SystemExit(137)


def test_erasing_a_key_leaves_no_trace_in_the_lake(
    group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, log, quarantine, change data, reports; and nothing of it comes back from the topics.

    Where it dies between its steps, the command, given again, ends it.
    """
    metadata = replace(dead(0), error_message=f"no such user {ADDRESS.decode()}")
    group.dead(0, metadata, key=ADDRESS, value=b'{"mail": "' + ADDRESS + b'"}')
    group.dead(1, dead(1), key=b"other")
    group.send(group.topology.dlq, 0, ADDRESS, b"unreadable " + ADDRESS, (("retry-attempt", ADDRESS),))
    group.flush()
    job = group.archive(lake)
    assert job.run_once().rows == 3
    marking = "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"  # where somebody wants that
    lake.spark.sql(f"ALTER TABLE {quoted(lake.table(RECORDS_TABLE))} {marking}")
    upkeep = Upkeep(lake, now_ms=lambda: FAR_MS)
    report = tmp_path / "lake" / DERIVED / "report.html"
    report.parent.mkdir()
    report.write_bytes(ADDRESS)
    assert list(files_with(tmp_path / "lake", ADDRESS)), "the search finds nothing where something is"
    group.dead(1, dead(2), key=ADDRESS)  # on the topic, not archived yet
    row = PendingRow(ADDRESS, b"v", encode_metadata(waiting(0)))
    rows = ((0, row), (0, replace(row, attempt=2)), (1, row), (2, replace(row, key=b"other")), (1, None))
    for offset, each in rows:  # one that waits for the second time, one that is done, one of another key
        value = None if each is None else encode_row(each)
        group.send(group.topology.pending_changelog, 0, identity_of(waiting(offset).origin), value)
    group.send(group.topology.pending_changelog, 0, identity_of(waiting(3).origin), b"damaged " + ADDRESS)
    group.flush()
    remains, pending = find_remains(group.admin, group.topology.group, ADDRESS)
    assert pending == Remains(topic=group.topology.pending_changelog, records=2, expires_ms=None, waiting=True)
    newest_ms = max(record.timestamp_ms for record in read_topic(group.connection, group.topology.dlq))
    assert (remains.topic, remains.records) == (group.topology.dlq, 3)
    assert remains.expires_ms == newest_ms + 30 * 86_400_000
    steps: tuple[tuple[type, str], ...] = ((Upkeep, "_delete"), (Upkeep, "_purge"), (Files, "remove"))
    for owner, step in steps:
        with monkeypatch.context() as dying:
            dying.setattr(owner, step, dies)
            with pytest.raises(SystemExit):
                upkeep.erase(ADDRESS)
        assert list(files_with(tmp_path / "lake", ADDRESS)), f"it had ended before {step}"
    for file in (tmp_path / "lake" / RECORDS_TABLE).rglob("*.parquet"):
        os.utime(file, (FAR_MS / 1_000, FAR_MS / 1_000))  # written by a machine whose clock is ahead: a vacuum keeps it
    remove = Files.remove
    for kept in (RECORDS_TABLE, DERIVED):  # Hadoop does not say that it could not remove a file
        report.parent.mkdir(exist_ok=True)
        report.write_bytes(ADDRESS)
        with monkeypatch.context() as refusing:
            refusing.setattr(Files, "remove", lambda files, uri, kept=kept: f"/{kept}" in uri or remove(files, uri))
            with pytest.raises(ErasureUnfinishedError, match=rf"may hold .*/{kept}.* --resume' with the same --lake"):
                upkeep.erase(ADDRESS)
    assert len(Erasures(lake).open()) == 1
    capsys.readouterr()
    (tmp_path / "key").write_bytes(ADDRESS + b"\n")
    line = ["pipeline", "erase", "--lake", lake.uri, *group.where, "--group", group.topology.group]
    assert retryapp([*line, "--key-file", str(tmp_path / "key")]) == ExitCode.FINE
    assert "the key ends with a line end" in capsys.readouterr().err
    assert retryapp([*line, "--key", ADDRESS.decode()]) == ExitCode.FINE
    assert capsys.readouterr().out.count("keeps 2 records of the key until it has an outcome") == 1
    assert job.run_once().rows == 0
    assert list(files_with(tmp_path / "lake", ADDRESS)) == []
    assert keys(lake) == [b"other"]


def test_a_record_that_waited_is_erased_with_its_later_hops(
    group: Group, lake: Lake, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    """They arrive after the erasure, with key and payload; what is new of the key, or tells no time, is kept.

    Where the erasure dies before that, status lists it until it is resumed, without its key.
    """

    def hop(number: int, first_failed_ms: int, key: bytes = b"ada") -> None:
        group.retry(0, waiting(number, first_failed_ms=first_failed_ms, attempt=2, delivery=2), key=key, value=b"v")

    job, failed_ms = group.archive(lake), now_ms()
    group.retry(0, waiting(0, first_failed_ms=failed_ms), key=b"ada", value=b"v")
    assert job.run_once().rows == 1
    maintenance = Upkeep(lake, now_ms=now_ms)
    assert maintenance.erase(b"ada").rows == 1
    hop(0, failed_ms)
    hop(1, failed_ms, key=b"other")
    hop(2, now_ms() + 1)
    group.send(group.topology.dlq, 0, b"ada", b"damaged", (("retry-first-failed-ms", b"1e3"), ("h", None)))
    group.flush()
    assert job.run_once().rows == 3
    assert keys(lake) == [b"ada", b"ada", b"other"]

    with monkeypatch.context() as dying:  # a hop that is archived while an erasure is not finished goes with its end
        dying.setattr(Upkeep, "_delete", dies)
        with pytest.raises(SystemExit):
            maintenance.erase(b"other")
    (begun,) = Erasures(lake).open()
    with monkeypatch.context() as blind:
        blind.setattr(Erasures, "reach", lambda _: {})
        hop(1, begun.erased_ms, key=b"other")
        hop(3, begun.erased_ms + 1, key=b"other")
        assert job.run_once().rows == 2
    code, facts = command("status", *group.where)
    assert (code, [each["key_hash"] for each in facts["open_erasures"]]) == (ExitCode.FINDING, [begun.key_hash])
    for wrong in (("--key", "other"), group.where, ("--client-config", __file__)):
        assert command("erase", "--resume", *wrong)[0] == ExitCode.USAGE
    assert command("erase", "--resume") == (0, {"erasures": [{"rows": 2, "key_hash": begun.key_hash}]})
    code, facts = command("status", *group.where)
    assert (code, facts["open_erasures"]) == (0, [])
    assert keys(lake) == [b"ada", b"ada", b"other"]


def test_events_and_marks_of_an_erased_record_go_with_it(spark: SparkSession, lake: Lake) -> None:
    """Their key is the failure id, and an error or whoever replayed it may name a person; the log has no hash of each.

    A mark that stayed would be a record that waits, or is dead. A clock that is behind the broker's spares no row: what
    is in the lake has arrived, whatever the time is here.
    """
    rows, place = Rows(), Path(lake.table(RECORDS_TABLE).removeprefix("file://"))
    for offset, key in enumerate((b"ada", b"other")):
        rows.failed(offset, 1, key=hash_key(key, lake.salt), first_failed_ms=NOON_MS)
        rows.discarded(offset, 2)
        rows.marked(offset, 2, "replayed", replays=1)
        for row in rows.rows[-2:]:
            row["key_hash"] = hash_key(f"{GROUP}/{MAIN}@{TOPIC_ID}/0/{offset}".encode(), lake.salt)
    value = f"IF(h.key = '{RETRY_ORIGIN}', encode(concat('{MAIN}@{TOPIC_ID}/0/', id), 'UTF-8'), h.value)"
    headers = F.expr(f"transform(headers, h -> named_struct('key', h.key, 'value', {value}))")
    many = rows.frame(spark, rows.rows[:1]).crossJoin(spark.range(2, 3_000)).withColumns({"headers": headers})
    Tables(lake).append(rows.frame(spark).unionByName(many.withColumn("offset", F.col("id")).drop("id")))
    late = Upkeep(lake, now_ms=lambda: NOON_MS - 300_000)
    assert [late.erase(b"ada").rows for _ in range(2)] == [3_001, 0]
    assert Erasures(lake).reach() == {hash_key(b"ada", lake.salt): NOON_MS}, "the second one reaches as far"
    assert max(commit.stat().st_size for commit in (place / "_delta_log").glob("*.json")) < 100_000
    left = Tables(lake).read().select("station", "offset").collect()
    assert sorted(map(tuple, left)) == [("dlq", 1), ("events", 1), ("retry", 1)]


def test_which_erasures_are_open(lake: Lake, tmp_path: Path) -> None:
    """Those that no later end covers: of their key, whole, and of whatever version."""
    facts = Facts(lake)
    erasures, kay, lee = Erasures(lake), Erasure(100, "ab"), Erasure(70, "cd")
    assert erasures.open() == ()
    erasures.put(kay)
    facts.put(ERASURES_TABLE, "cd 70", {"key_hash": "cd", "erased_ms": 70})  # as versions without an end wrote it
    assert erasures.open() == (lee, kay)
    assert erasures.reach() == {"ab": 100, "cd": 70}
    erasures.put(lee, ended_ms=75)
    erasures.put(Erasure(60, "ab"))
    erasures.put(Erasure(60, "ab"), ended_ms=65)
    assert erasures.open() == (kay,)
    half = tmp_path / "lake" / ERASURES_TABLE / "ab~20100~20ended.json"
    half.write_text('{"key_hash": "ab", "era')
    assert erasures.open() == (kay,)
    erasures.put(kay, ended_ms=105)
    assert erasures.open() == ()
    erasures.put(Erasure(200, "ab"))
    assert erasures.open() == (Erasure(200, "ab"),)


def test_expire_and_vacuum(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """By day, and files that nothing needs; each commit says how far the archive has come, for the log forgets."""
    rows, table, folder = Rows(), Tables(lake), tmp_path / "lake"
    for offset in range(3):
        rows.failed(offset, 1)
    table.append(rows.frame(spark).repartitionByRange(3, "offset"), optimizeWrite="false")
    assert len(table.read().inputFiles()) == 3
    job = Upkeep(lake, now_ms=lambda: FAR_MS)
    table.join_small_files()
    before = read_state(table)
    job.vacuum(0)
    assert len(list((folder / RECORDS_TABLE).glob("date=*/*.parquet"))) == len(table.read().inputFiles()) == 1
    spark.sql(f"CREATE TABLE named USING delta LOCATION '{lake.table(RECORDS_TABLE)}'")  # as docs/pipeline.md says
    assert spark.table("named").count() == 3
    spark.sql("DROP TABLE named")
    assert job.expire(DAY) == 0
    assert job.expire(date(2200, 1, 1)) == 3
    assert table.read().count() == 0
    for commit in sorted((folder / RECORDS_TABLE / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    assert read_state(table) == before


def test_whoever_changes_the_table_waits_until_no_other_does(
    spark: SparkSession, group: Group, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """A vacuum would take a running batch's files, and an erasure would miss what is written.

    Two runs of one group would begin at the same offsets: the later one is refused, or waits.
    """
    Tables(lake).append(Rows().frame(spark))
    holds, job = Holds(lake), Upkeep(lake, now_ms=lambda: FAR_MS, wait_s=0.0)
    version = spark.sql(f"DESCRIBE HISTORY {quoted(lake.table(RECORDS_TABLE))}").count()
    with holds.take("archive", RECORDS_HOLD):
        for name, argument in (("expire", DAY), ("vacuum", 0), ("erase", ADDRESS)):
            with pytest.raises(OtherRunError, match=rf"the {name} run cannot .*: archive \(process"):
                getattr(job, name)(argument)
    analysis = Analysis(lake, now_ms=lambda: FAR_MS)
    with analysis.hold():
        with pytest.raises(OtherRunError, match=r"the erase run cannot .*: analyse"):
            job.erase(ADDRESS)
        with pytest.raises(OtherRunError, match="the analyse run"), analysis.hold():
            pass
    assert spark.sql(f"DESCRIBE HISTORY {quoted(lake.table(RECORDS_TABLE))}").count() == version

    group.dead(1, dead(1))
    stopped, archive = threading.Event(), group.archive(lake)
    with holds.take("vacuum", RECORDS_HOLD), pytest.raises(OtherRunError, match="vacuum"):
        archive.run_once(on_wait=lambda _: stopped.set(), stopped=stopped)
    with ExitStack() as first:
        first.enter_context(holds.take("archive", f"archive {group.admin.cluster_id()} {group.topology.group}"))
        with pytest.raises(OtherRunError, match=rf"archive \(process {os.getpid()} on "):
            archive.run_once()
        assert archive.run_once(wait_s=200.0, on_wait=lambda _: first.close()).rows == 1

    line = ["pipeline", "expire", "--older-than", "1d", "--lake", lake.uri, "--wait", "300ms"]
    with holds.take("archive", RECORDS_HOLD):
        began_s = time.monotonic()
        assert retryapp(line) == ExitCode.ENVIRONMENT
        assert 0.3 <= time.monotonic() - began_s < TURN_S
    assert "waiting for another run: archive (process" in capsys.readouterr().err
