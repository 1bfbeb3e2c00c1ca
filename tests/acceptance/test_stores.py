"""Local folders that cannot be used: a named error, only what needs them stands still, and nothing is lost."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from acceptance.books import check_books, partitions
from harness import HandlerSpec, Stage, wait_for
from rocksdict import Options, Rdict

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]


@pytest.mark.timeout(150)
def test_stores_of_single_partitions_that_cannot_be_used(stage: Stage, tmp_path: Path) -> None:
    """One stands where a folder should, one is locked, two are sound; records wait in all.

    The first two keep their lanes shut with a named error, until the cause is gone.
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
        assert second.get("/retries/ready")[0] == 503
    (pending / "0").unlink()
    stage.wait_settled(topic)
    check_books(stage, topic, 40, (6_000,))
    assert second.get("/retries/ready")[0] == 200
