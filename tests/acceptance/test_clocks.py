"""Machines whose clocks are wrong: what is due is due by the broker's clock, on whichever worker it waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import HandlerSpec, Stage, wait_for

DELAY_MS = 2_000
WRONG_MS = 7_200_000
LATE_MS = 2_500
"""Far above what a retry is late by; far below the two hours."""
EDGE_MS = 5
"""Broker and service are one machine here; the rest is the acknowledgement by which a worker knows the time."""


def wrong_by(ms: int, folder: Path) -> dict[str, str]:
    """Return the environment of a process on a machine whose clock is ahead by so much."""
    folder.mkdir()
    text = f"import time\n_true = time.time_ns\ntime.time_ns = lambda: _true() + {ms * 1_000_000}\n"
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.extended
@pytest.mark.timeout(120)
def test_a_wrong_clock_makes_nothing_early_or_late(stage: Stage, tmp_path: Path) -> None:
    """Records fail on a machine two hours ahead and come back on one two hours behind, and the other way round."""
    topic = stage.main_topic()
    stage.program(HandlerSpec(topic=topic, policy="2s 4s"))
    said = {"ahead": "ahead of the broker's", "behind": "behind the broker's"}
    envs = {
        "ahead": wrong_by(WRONG_MS, tmp_path / "ahead"),
        "behind": wrong_by(-WRONG_MS, tmp_path / "behind"),
    }
    evidence, known = stage.evidence(topic), 0
    for first, second in (("ahead", "behind"), ("behind", "ahead")):
        worker = stage.worker(f"{first}1-{known}", env=envs[first])
        stage.produce(topic, [{"id": known + n, "fail": 2} for n in range(8)])
        wait_for(
            lambda known=known: sum(v.attempt == 2 for v in stage.service.of(topic)) == known + 8,  # type: ignore[misc]
            "the second attempts were made",
        )
        wait_for(lambda: evidence.waiting() == 8, "they wait for the third")
        assert worker.stop() == 0
        assert said[first] in worker.log
        worker = stage.worker(f"{second}2-{known}", env=envs[second])
        known += 8
        wait_for(lambda known=known: stage.service.done(topic) == set(range(known)), "all are done")  # type: ignore[misc]
        assert worker.stop() == 0
    visits = stage.service.of(topic)
    failed_ms = {(visit.facts["id"], visit.attempt): visit.at_ms for visit in visits}
    for visit in visits:
        if visit.attempt > 1:
            waited_ms = visit.at_ms - failed_ms[visit.facts["id"], visit.attempt - 1]
            due_ms = DELAY_MS * (visit.attempt - 1)
            assert waited_ms >= due_ms - EDGE_MS, f"attempt {visit.attempt} of {visit.facts} was early"
            if visit.attempt == 2:
                assert waited_ms < due_ms + LATE_MS, f"attempt {visit.attempt} of {visit.facts} was late"
    stage.wait_settled(topic)
