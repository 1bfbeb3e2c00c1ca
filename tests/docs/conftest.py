"""What tests of alerts and dashboard share."""

from __future__ import annotations

import pytest
from samples import partition

from retryapp.core.causes import CauseCount
from retryapp.engine.handler.handler import Durations
from retryapp.ports import CircuitInfo, Event, Observation, PartitionLag
from retryapp.runtime.observe.metrics import Gauges, MetricsObserver, Scrape


@pytest.fixture(scope="module")
def worker_metrics() -> Scrape:
    """The metrics of a worker with one handler, which shows every series that there is."""
    info = partition(
        0,
        pending=1,
        pending_by_tier={"5m": 1},
        next_due_ms=1,
        looked_ms=1,
        dead=1,
        circuit="open",
        circuits={"ledger": CircuitInfo(state="half-open", since_ms=0, cause="")},
        jobs={"running": 1},
    )
    cause = CauseCount(cause_id="c1-3f9ca81b02", name="E", records=1, attempts=1, first_ms=1, last_ms=1, sample="x")
    metrics = MetricsObserver()
    metrics.begin("orders", ["5m"])
    for event, facts in (
        (Event.DEAD, {"reason": "exhausted", "error_type": "E"}),
        (Event.PUBLISHED, {"topic": "receipts"}),
    ):
        metrics.observe(Observation(event=event, handler="orders", **facts))
    return metrics.collect(
        Gauges(
            partitions={"orders": [info]},
            durations={"orders": Durations()},
            causes={"orders": [cause]},
            lags={"orders": [PartitionLag(partition=0, committed=0, main=1)]},
        )
    )
