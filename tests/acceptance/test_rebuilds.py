"""A worker without a store reads what the rows that wait are in, and not what has come and gone before."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from acceptance.books import check_books
from harness import HandlerSpec, Stage, wait_for

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

SHORT_TAIL = "\nfrom retryapp.engine.lane import recovery\n\nrecovery.TAIL_OFFSETS = 40\n"


@pytest.mark.timeout(150)
def test_a_lost_store_is_rebuilt_from_the_floor(stage: Stage, tmp_path: Path) -> None:
    """Killed, its disk gone, and again before anything was written; the rows run on time, and each once."""
    topic = stage.main_topic(partitions=1)
    spec = HandlerSpec(topic=topic, policy="4s")
    stage.program(spec, app_options={"datadir": str(tmp_path / "data")}, code=SHORT_TAIL)
    first = stage.worker()
    for begin in range(0, 300, 100):
        stage.produce(topic, [{"id": n, "fail": 1} for n in range(begin, begin + 100)], 1)
        stage.evidence(topic).wait_settled()
    stage.produce(topic, [{"id": n, "fail": 1} for n in range(300, 340)], 1)
    wait_for(lambda: stage.evidence(topic).waiting() == 40, "all wait")
    first.kill()
    log, changelog = stage.evidence(topic), stage.topology(topic).pending_changelog
    rows = [record.offset for record in log.records(changelog) if record.key not in (b"progress", b"clock")]
    starts = []
    for _ in range(2):
        shutil.rmtree(tmp_path / "data")
        worker = stage.worker()
        starts += [int(at) for at in re.findall(r"rebuilds its store from offset (\d+)", worker.log_file.read_text())]
        worker.kill()
    assert len(starts) == 2
    assert rows[300] < starts[0] <= rows[-40], "two generations back at most: behind the first 100 and their ends"
    assert starts[1] >= starts[0]
    stage.worker()
    stage.wait_settled(topic)
    check_books(stage, topic, 340, (4_000,))
