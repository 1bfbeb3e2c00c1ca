"""Local folders that cannot be used: a named error, only what needs them stands still, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import HandlerSpec, Stage, Worker, wait_for
from rocksdict import Options, Rdict

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


def shown(worker: Worker, topic: str) -> dict[int, str]:
    """Return what the pages say of each partition: the lane's state and its last error."""
    status, body = worker.get(f"/retries/{topic}/?format=json")
    rows = json.loads(body)["partitions"] if status == 200 else []
    return {row["partition"]: f"{row['state']} {row['last_error'] or ''}" for row in rows}


@pytest.mark.timeout(150)
def test_stores_of_single_partitions_that_cannot_be_used(stage: Stage, tmp_path: Path) -> None:
    """One stands where a folder should, one is locked, one is another application's, one is sound; records wait in all.

    The first two keep their lanes shut with a named error, until the cause is gone; the third is made anew.
    """
    topic = stage.main_topic(partitions=4)
    stage.program(HandlerSpec(topic=topic, policy="6s"), app_options={"datadir": str(tmp_path / "data")})
    first = stage.worker()
    stage.produce(topic, [{"id": n, "fail": 1} for n in range(40)], 4)
    wait_for(lambda: stage.evidence(topic).waiting() == 40, "all wait")
    assert first.stop() == 0
    (pending,) = (tmp_path / "data").glob("worker-1/**/pending")
    shutil.rmtree(pending / "0")
    (pending / "0").write_text("in the way")
    as_another_application(pending / "3", pending / "2")
    with ExitStack() as stack:
        held = Rdict(str(pending / "1"), options=Options(raw_mode=True))
        stack.callback(held.close)
        second = stage.worker(ready=False)
        wait_for(lambda: set(stage.service.done(topic)) == {n for n in range(40) if (n + 1) % 4 > 1}, "two lanes work")
        said = shown(second, topic)
        assert "open" in said[2]
        assert "open" in said[3]
        for number, why in ((0, "pending/0"), (1, "lock")):
            assert "StoreBrokenError" in said[number], said
            assert why in said[number].lower()
        assert "it is a copy of ('another." in second.log
        assert second.get("/retries/ready")[0] == 503
    (pending / "0").unlink()
    stage.wait_settled(topic)
    check_done_once(stage, topic, 40)
    assert second.ready()


def as_another_application(source: Path, target: Path) -> None:
    """Put a store in place of another one, as a copy of a topic of some other application."""
    shutil.rmtree(target)
    shutil.copytree(source, target)
    db: Any = Rdict(str(target), options=Options(raw_mode=True))
    (key,) = (key for key in db.keys() if key.startswith(b"\x02"))  # noqa: SIM118 - not a mapping
    meta = json.loads(db[key])
    assert meta["partition"] == 3
    db[key] = json.dumps({**meta, "topic": "another.orders.pending.changelog", "partition": 2}).encode()
    db.close()


def check_done_once(stage: Stage, topic: str, count: int) -> None:
    """Every record is done at its second attempt, not before it was due, and was handed on once."""
    evidence = stage.evidence(topic)
    due = evidence.due_times()
    assert stage.service.done(topic) == set(range(count))
    later = [visit for visit in stage.service.of(topic) if visit.attempt == 2]
    assert all(visit.at_ms >= due[visit.failure_id, 2] for visit in later)
    assert evidence.repeated_handoffs() == {}
    assert not evidence.dead()


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory; skip the test where that is not permitted."""
    folder.mkdir()
    command = shutil.which("mount")
    if command is None:
        pytest.skip("no mount command")
    done = subprocess.run(
        [command, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"mount is not permitted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    with mounted(tmp_path / "disk", "size=24m") as folder:
        yield folder


@pytest.mark.timeout(120)
def test_a_full_disk(stage: Stage, small_disk: Path) -> None:
    """It fills up while records come to wait: the lane says so, and when there is room it goes on; nothing is lost."""
    topic = stage.main_topic(partitions=1)
    stage.program(HandlerSpec(topic=topic, policy="2s"), app_options={"datadir": str(small_disk)})
    worker = stage.worker()
    with (small_disk / "filler").open("wb") as filler:
        free = os.statvfs(small_disk)
        filler.write(bytes(free.f_bavail * free.f_frsize - 1_000_000))
    padding = os.urandom(25_000).hex()
    stage.produce(topic, [{"id": n, "fail": 1, "padding": padding} for n in range(60)], 1)
    wait_for(lambda: "DiskFullError" in shown(worker, topic)[0], "the lane says that the disk is full")
    assert str(small_disk) in shown(worker, topic)[0]
    (small_disk / "filler").unlink()
    stage.wait_settled(topic)
    check_done_once(stage, topic, 60)
    assert not worker.ended(), "the same process lived through it"
