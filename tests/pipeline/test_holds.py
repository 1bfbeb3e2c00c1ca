"""Who may write to a lake: locks, leases, and archive runs and analyses at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta import places_of
from history import Group, tick
from samples import dead

from retryapp.cli._analyse import unchanged
from retryapp.pipeline.analysis.job import Analysis
from retryapp.pipeline.errors import HeldError, OtherRunError, TurnLostError
from retryapp.pipeline.hold import RECORDS_HOLD, Held, Holds
from retryapp.pipeline.lake import Files, Lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300)]
PATIENCE_S = 200.0


def test_a_lease_is_kept_lost_and_left_behind(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no locks: good while it is renewed, nobody's when it is not, and its late holder finds out."""
    monkeypatch.setattr("retryapp.pipeline.lake.Files.local_folder", lambda files, uri: None)
    clock = [1_000_000]
    patient = Holds(spark, lake, lambda: clock[0], lease_ms=1_000, renew_s=3_600)
    prompt = Holds(spark, lake, lambda: clock[0], lease_ms=1_000, renew_s=0.01)
    with patient.take("archive", "one") as held:
        with pytest.raises(HeldError, match="archive"), prompt.take("analyse", "one"):
            pass
        clock[0] += 1_001  # nobody has renewed it
        with prompt.take("archive", "one") as later:
            clock[0] += 500
            deadline_s = time.monotonic() + 30
            (file,) = Path(lake.uri.removeprefix("file://"), "holds", "one").glob("*.json")
            while json.loads(file.read_text() or "{}").get("until_ms") != clock[0] + 1_000:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            later.check("archive")
        assert held.lost is not None
        assert not held.lost.is_set()  # it looks by itself once in an hour
        with pytest.raises(OtherRunError, match="took the lake over"):
            held.check("archive")
    with prompt.take("archive", "two") as held:
        (file,) = Path(lake.uri.removeprefix("file://"), "holds", "two").glob("*.json")
        file.with_name("000000009.json").write_text("{}")
        assert held.lost is not None
        assert held.lost.wait(30)
        with pytest.raises(OtherRunError, match="took the lake over"):
            held.check("archive")
    half = file.with_name("000000010.json")
    half.write_text('{"until')  # a crash while it was written
    with pytest.raises(HeldError), Holds(spark, lake, tick, lease_ms=60_000).take("archive", "two"):
        pass
    os.utime(half, (1, 1))
    with Holds(spark, lake, tick, lease_ms=60_000).take("archive", "two"):
        pass
    assert [path.name for path in file.parent.glob("*.json")] == ["000000011.json"]  # so that no number comes twice


def test_of_those_who_take_a_lease_at_once_one_has_it(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was slow between a look and its own file finds that others have had it meanwhile."""
    monkeypatch.setattr("retryapp.pipeline.lake.Files.local_folder", lambda files, uri: None)
    holds = Holds(spark, lake, tick, lease_ms=60_000, renew_s=3_600)
    with holds.take("archive", "three"):
        pass
    inside: list[bool] = []
    real = Files.create

    def slow(files: Files, uri: str, text: str) -> bool:
        monkeypatch.setattr(Files, "create", real)
        with holds.take("compact", "three"):
            pass
        stack.enter_context(holds.take("vacuum", "three"))
        inside.append(True)
        return real(files, uri, text)

    with ExitStack() as stack:
        monkeypatch.setattr(Files, "create", slow)
        with pytest.raises(HeldError, match="vacuum"), holds.take("erase", "three"):
            pass
        assert inside
        with pytest.raises(HeldError, match="vacuum"), holds.take("erase", "three"):
            pass
    with holds.take("erase", "three"):
        pass


def test_a_file_is_made_by_one(spark: SparkSession, lake: Lake) -> None:
    """The lake's mark among them, whose salt must not be two."""
    files, tries = Files(spark, lake.uri), 8
    for number in range(20):
        begin = threading.Barrier(tries)
        place = f"{lake.uri}/some/{number}.json"

        def make(one: int, begin: threading.Barrier = begin, place: str = place) -> bool:
            begin.wait()
            return files.create(place, str(one))

        with ThreadPoolExecutor(tries) as pool:
            made = list(pool.map(make, range(tries)))
        assert made.count(True) == 1
        assert files.read(place) == str(made.index(True))


def test_a_lock_outlives_a_second_try_of_its_own_process(spark: SparkSession, lake: Lake) -> None:
    """The system drops all locks of a process on a file when the process closes it once: another program looks."""
    holds = Holds(spark, lake, tick)
    with holds.take("archive", RECORDS_HOLD):
        with pytest.raises(HeldError), holds.take("vacuum", RECORDS_HOLD):
            pass
        place = Path(lake.uri.removeprefix("file://"), "holds", RECORDS_HOLD, "lock")
        program = f"import fcntl; fcntl.lockf(open({str(place)!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in other.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_two_first_runs_write_each_record_once(spark: SparkSession, group: Group, lake: Lake, tmp_path: Path) -> None:
    """Both would begin a checkpoint of their own, and Spark would not notice: the later one is refused, or waits."""
    group.send_dead(10)
    first, second = (group.archive(spark, lake) for _ in range(2))
    with first.hold(), pytest.raises(HeldError, match=rf"archive \(process {os.getpid()} on ") as refused:
        second.run_once()
    assert refused.value.exit_code == 3
    rows: list[int] = []
    seen: list[str] = []
    with first.hold():
        waiting = threading.Thread(
            target=lambda: rows.append(second.run_once(wait_s=PATIENCE_S, on_wait=seen.append).rows)
        )
        waiting.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while not seen and time.monotonic() < deadline_s:
            time.sleep(0.01)
    waiting.join(PATIENCE_S)
    assert (rows, len(seen)) == ([10], 1)
    assert places_of(tmp_path / "lake") == group.places()


@pytest.mark.extended
def test_nothing_is_archived_under_an_analysis_without_versions(
    spark: SparkSession, group: Group, tmp_path: Path
) -> None:
    """A Parquet lake is read several times while it is analysed; Delta keeps the version that it began with."""
    for kind, refused in (("parquet", True), ("delta", False)):
        lake = open_lake(spark, str(tmp_path / kind), wanted=kind)
        first, second = (group.archive(spark, lake) for _ in range(2))
        with unchanged(lake, [first], 600.0, threading.Event()):
            if refused:
                with pytest.raises(HeldError):
                    second.run_once()
            else:
                assert second.run_once().rows == 0
        assert second.run_once().rows == 0
    analyses = [Analysis(spark, lake, now_ms=tick) for _ in range(2)]
    with analyses[0].hold(), pytest.raises(HeldError, match="the analyse run"), analyses[1].hold():
        pass


@pytest.mark.extended
def test_what_another_run_has_archived_is_not_archived_again(
    spark: SparkSession, group: Group, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has waited asks first whether as much as it wants is published; else it archives the rest."""
    group.dead(0, dead(0))
    job = group.archive(spark, lake)
    assert job.run_once().rows == 1
    group.dead(0, dead(1))
    real = Holds.take

    @contextmanager
    def after_another(self: Holds, job: str, name: str, **options: Any) -> Iterator[Held]:
        with real(self, job, name, **options) as held:
            held.waited_for = "somebody"
            yield held

    monkeypatch.setattr(Holds, "take", after_another)
    place = (group.topology.dlq, 0)
    spared = job.run_once(enough={place: 1})
    assert (spared.rows, spared.by_another, spared.cut[place]) == (0, "somebody", 1)
    done = job.run_once(enough={place: 2})
    assert (done.rows, done.by_another, done.cut[place]) == (1, None, 2)


@pytest.mark.extended
def test_a_run_that_lost_its_turn_ends_and_a_rerun_continues_from_the_table(
    spark: SparkSession, group: Group, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had committed is there once, whoever took over."""
    group.send_dead(20)
    real = Holds.take

    @contextmanager
    def taken_over(self: Holds, job: str, name: str, **options: Any) -> Iterator[Held]:
        with real(self, job, name, **options) as held:
            if name == RECORDS_HOLD:
                held.lost, held.look = threading.Event(), lambda: False
            yield held

    monkeypatch.setattr(Holds, "take", taken_over)
    with pytest.raises(TurnLostError, match="a rerun continues"):
        group.archive(spark, lake).run_once()
    monkeypatch.setattr(Holds, "take", real)
    assert group.archive(spark, lake).run_once().rows == 0
    assert places_of(tmp_path / "lake") == group.places()
