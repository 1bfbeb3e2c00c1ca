"""Local folders that cannot be used: a named error, only what needs them stands still, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from acceptance.books import check_books, partitions
from harness import HandlerSpec, Stage, wait_for
from rocksdict import Options, Rdict

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


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
        said = {row["partition"]: f"{row['state']} {row['last_error']}" for row in partitions(second, topic)}
        assert "open" in said[2]
        assert "open" in said[3]
        for number, why in ((0, "pending/0"), (1, "lock")):
            assert "StoreBrokenError" in said[number], said
            assert why in said[number].lower()
        assert "it is a copy of ('another." in second.log
        assert second.get("/retries/ready")[0] == 503
    (pending / "0").unlink()
    stage.wait_settled(topic)
    check_books(stage, topic, 40, (6_000,))
    assert second.get("/retries/ready")[0] == 200


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
