"""Handlers that take their time, with more records behind them than the worker takes in: the others do not notice."""

from __future__ import annotations

import time

import pytest
from harness import Answer, Gate, HandlerSpec, Stage, Visit, wait_for

POLL_INTERVAL_S = 3.0

BEHIND = 8_000
"""Records behind a slow handler: more than the intake and the places in flight of its partitions take."""
LATE_MS = 2_500
"""Far above what others wait while all is well (it is printed), below what either slow handler takes for its queue."""


def shown(what: str, waits_ms: list[int]) -> int:
    """Print the quantiles of waits; return the 99th percentile."""
    ordered = sorted(waits_ms)
    p50, p99 = (ordered[int(len(ordered) * q)] for q in (0.5, 0.99))
    print(f"{what}: n {len(ordered)}, p50 {p50} ms, p99 {p99} ms, max {ordered[-1]} ms")  # noqa: T201 - for the report
    return p99


def late(visits: list[Visit]) -> list[int]:
    """Return how long after they were due the later attempts began; they were never early."""
    waits = [visit.at_ms - visit.due_at_ms for visit in visits if visit.due_at_ms is not None]
    assert all(wait >= 0 for wait in waits)
    return waits


def waits_under_load(stage: Stage, topic: str, seconds: float, when: str) -> tuple[int, int]:
    """Publish 100 records a second, half of which fail once; return what first deliveries and due rows wait."""
    before, ends_s = len(stage.service.of(topic)), time.monotonic() + seconds
    ids: set[str] = set()
    while time.monotonic() < ends_s:
        batch = [{"id": f"{when} {len(ids) + n}", "fail": n % 2} for n in range(10)]
        stage.produce(topic, batch)
        ids.update(str(each["id"]) for each in batch)
        time.sleep(0.1)  # the load's pace
    wait_for(lambda: ids <= stage.service.done(topic), f"{topic} has done all its records")
    visits = stage.service.of(topic)[before:]
    first = shown(f"first deliveries {when}", [v.at_ms - v.timestamp_ms for v in visits if v.attempt == 1])
    return first, shown(f"due rows {when}", late(visits))


@pytest.mark.broker
@pytest.mark.acceptance
@pytest.mark.extended
@pytest.mark.timeout(120)
def test_others_go_on_beside_handlers_that_hang_and_that_take_half_a_second(stage: Stage) -> None:
    """One handler hangs for twice the poll interval, one takes 0.5 s; failures and due rows go on, theirs too.

    The client leaves the group when its consumer does not come for records within that interval. No rebalance, and
    nothing behind the hanging record is acknowledged.
    """
    gate = Gate()
    stuck, half = stage.main_topic("stuck", 1), stage.main_topic("half")
    quick = stage.main_topic("quick")

    def rule(visit: Visit) -> Answer:
        if visit.attempt <= visit.facts.get("fail", 0):
            return Answer(503)
        then = visit.facts.get("then")
        return Answer(gate=gate if then == "hangs" else None, after_s=0.5 if then == "takes" else 0.0)

    stage.service.rule = rule
    stage.program(
        HandlerSpec(topic=stuck, policy="2s", concurrency=1, timeout="5m"),
        HandlerSpec(topic=half, policy="4s", concurrency=2),
        HandlerSpec(topic=quick, policy="300ms", concurrency=8),
        app_options={"broker_max_poll_interval": POLL_INTERVAL_S},
    )
    worker = stage.worker()
    (before,) = worker.series("retryapp_rebalance_seconds_count").values()
    alone = waits_under_load(stage, quick, 2.0, "alone")
    stage.produce(stuck, [{"id": "fails", "fail": 1}, {"id": "hangs", "then": "hangs"}], 1)
    stage.produce(stuck, [{"id": n} for n in range(BEHIND)], 1)
    stage.produce(half, [{"id": f"fails{n}", "fail": 1, "then": "takes"} for n in range(8)])
    wait_for(lambda: len(stage.evidence(half).retries()) == 8, "all that fail have failed")
    stage.produce(half, [{"id": n, "then": "takes"} for n in range(BEHIND)])
    wait_for(lambda: len(stage.service.of(stuck)) >= 2 and len(stage.service.of(half)) > 10, "both are in it")
    first_ms, again_ms = waits_under_load(stage, quick, 2 * POLL_INTERVAL_S, "beside the slow")
    stage.wait_settled(quick)
    assert first_ms < LATE_MS + 3 * alone[0]
    assert again_ms < LATE_MS + 3 * alone[1]
    assert max(late(stage.service.of(stuck))) < LATE_MS + 3 * alone[1], "rows go past the record that hangs"
    wait_for(lambda: len(late(stage.service.of(half))) == 8, "the handler that takes 0.5 s has all its rows")
    order = [visit.attempt for visit in stage.service.of(half)]
    assert order.index(2) > 8, "they came while the others were at work"
    bound_ms = LATE_MS + 3 * alone[1] + 8 / 2 * 500  # two at once
    assert shown("due rows of the handler that takes 0.5 s", late(stage.service.of(half))) < bound_ms
    assert len(stage.service.of(stuck)) == 3
    assert stage.evidence(stuck).committed(stuck) == {0: 1}
    assert worker.series("retryapp_rebalance_seconds_count") == {"": before}
    assert "retryapp.lane_failed" not in worker.log

    gate.open()
    wait_for(lambda: len(stage.service.done(stuck)) > 100, "it goes on")
