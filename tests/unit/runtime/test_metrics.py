"""Metrics: what happened is counted, what stands is told at each scrape."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from samples import partition

from retryapp.core.causes import CauseCount, cause_id
from retryapp.core.circuit import CircuitState
from retryapp.core.classify import DeadReason
from retryapp.engine.handler.handler import Durations
from retryapp.ports import CircuitInfo, Event, Observation, PartitionLag
from retryapp.runtime.app import Runtime
from retryapp.runtime.observe.metrics import MAX_LABELS, OTHER, TOP_CAUSES, Gauges, MetricsObserver
from retryapp.runtime.view import RuntimeView

TIMED_OUT = cause_id("httpx.ReadTimeout", "f", "7 s")
"""The same in the tables of dead letters and on the pages."""


def samples(metrics: MetricsObserver, gauges: Gauges | None = None) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return all samples as a Prometheus server reads them, by name and label values, the handler's first."""
    found = {}
    for family in text_string_to_metric_families(metrics.collect(gauges).text().decode()):
        for sample in family.samples:
            labels = sorted(sample.labels.items(), key=lambda item: (item[0] != "handler", item[0]))
            found[sample.name, tuple(value for _, value in labels)] = sample.value
    return found


def test_events_are_counted_by_their_labels() -> None:
    """Counts of batches add up; the age of a retry is taken at the end of each later attempt."""
    metrics = MetricsObserver()
    for event, facts in (
        (Event.SUCCEEDED, {"lateness_ms": 7}),
        (Event.FAILED, {"error_class": "retryable", "age_ms": 90_000_000}),
        (Event.SUCCEEDED, {"age_ms": 500}),
        (Event.SCHEDULED, {"tier": "5m"}),
        (Event.DEFERRED, {"attempt": 1}),
        (Event.SKIPPED, {"count": 40}),
        (Event.SKIPPED, {"attempt": 2}),
        (Event.SKIPPED, {"attempt": 1}),
        (Event.DEAD, {"reason": "exhausted", "error_type": "httpx.ReadTimeout", "fingerprint": "f", "message": "7 s"}),
        (Event.DEAD, {"reason": "exhausted"}),
        (Event.DISCARDED, {"reason": "exhausted"}),
        (Event.LETTER_FAILED, {"reason": "exhausted", "count": 2}),
        (Event.DAMAGED, {}),
        (Event.LANE_OPENED, {}),
        (Event.LANE_FAILED, {}),
        (Event.LANE_INCOMPLETE, {}),
        (Event.LANE_CLOSED, {}),
        (Event.REBALANCED, {"duration_ms": 1_200}),
    ):
        metrics.observe(Observation(event=event, handler="orders", **facts))  # type: ignore[arg-type]
    got = samples(metrics)
    assert {
        ("retryapp_deliveries_total", ("orders",)): 6,
        ("retryapp_succeeded_total", ("orders",)): 2,
        ("retryapp_failures_total", ("orders", "retryable")): 1,
        ("retryapp_scheduled_total", ("orders", "5m")): 1,
        ("retryapp_skipped_total", ("orders",)): 42,
        ("retryapp_dead_total", ("orders", "exhausted")): 2,
        ("retryapp_discarded_total", ("orders", "exhausted")): 3,
        ("retryapp_dead_causes_total", ("orders", TIMED_OUT, "httpx.ReadTimeout", "exhausted")): 1,
        ("retryapp_dead_causes_total", ("orders", cause_id("unknown", "", ""), "unknown", "exhausted")): 1,
        ("retryapp_retry_age_seconds_count", ("orders",)): 2,
        ("retryapp_retry_age_seconds_bucket", ("orders", "86400.0")): 1,
        ("retryapp_retry_age_seconds_bucket", ("orders", "259200.0")): 2,
        ("retryapp_damaged_total", ("orders",)): 1,
        ("retryapp_lane_failures_total", ("orders",)): 1,
        ("retryapp_lane_incomplete_total", ("orders",)): 1,
        ("retryapp_lateness_seconds_count", ("orders",)): 1,
        ("retryapp_lateness_seconds_bucket", ("orders", "0.005")): 0,
        ("retryapp_lateness_seconds_bucket", ("orders", "0.01")): 1,
        ("retryapp_lateness_seconds_sum", ("orders",)): 0.007,
        ("retryapp_rebalance_seconds_count", ()): 1,
        ("retryapp_rebalance_seconds_sum", ()): 1.2,
    }.items() <= got.items()


def test_gauges_leave_out_other_workers() -> None:
    """The scheduler that waits longest, what tables have yet to read, and so on; `partitions` counts all workers'."""
    parts = [
        partition(
            0,
            pending=3,
            pending_by_tier={"5m": 2, "1h": 1},
            stopped=2,
            next_due_ms=5_000,
            dead=4,
            in_flight=1,
            looked_ms=9_000,
        ),
        partition(1, pending=1, pending_by_tier={"5m": 1}, next_due_ms=2_500, release_lag_ms=1_500, looked_ms=4_500),
        partition(2, state="opening", pending_behind=70),
        partition(
            3,
            state="elsewhere",
            pending=99,
            pending_by_tier={"5m": 99},
            next_due_ms=1,
            dead=99,
            in_flight=99,
            looked_ms=1,
        ),
        partition(4, dead_behind=3),
    ]
    found = samples(MetricsObserver(), Gauges(partitions={"orders": parts, "idle": [partition(0)]}))
    assert {
        ("retryapp_pending_records", ("orders", "5m")): 3,
        ("retryapp_pending_records", ("orders", "1h")): 1,
        ("retryapp_stopped_sequences", ("orders",)): 2,
        ("retryapp_oldest_due_timestamp_seconds", ("orders",)): 2.5,
        ("retryapp_dead_letters", ("orders",)): 4,
        ("retryapp_in_flight_records", ("orders",)): 1,
        ("retryapp_release_lag_seconds", ("orders",)): 1.5,
        ("retryapp_release_lag_seconds", ("idle",)): 0,
        ("retryapp_scheduler_last_run_timestamp_seconds", ("orders",)): 4.5,
        ("retryapp_table_behind_offsets", ("orders", "pending")): 70,
        ("retryapp_table_behind_offsets", ("orders", "dead")): 3,
        ("retryapp_partitions", ("orders",)): 5,
        ("retryapp_lanes_open", ("orders",)): 3,
        ("retryapp_lanes_open", ("idle",)): 1,
    }.items() <= found.items()
    for name in ("oldest_due", "scheduler_last_run"):
        assert (f"retryapp_{name}_timestamp_seconds", ("idle",)) not in found


def test_a_gauge_without_a_known_value_is_absent_not_zero() -> None:
    """Old and unknown numbers are left out and counted; known ones say 0 for each tier of the policy."""
    parts = [
        partition(0, pending=3, pending_by_tier={"5m": 3}, dead=4),
        partition(1, pending=742, pending_by_tier={"5m": 742}, next_due_ms=1, dead=9, as_of_ms=1, state="opening"),
        partition(2, pending=None, dead=None, state="opening"),
    ]
    metrics, gauges = MetricsObserver(), Gauges(partitions={"orders": parts}, silent_s=42.5)
    metrics.begin("orders", ["5m", "1h"])
    found = samples(metrics, gauges)
    assert found["retryapp_broker_silent_seconds", ()] == 42.5
    assert found["retryapp_unknown_partitions", ("orders",)] == 2
    assert found["retryapp_pending_records", ("orders", "5m")] == 3
    assert found["retryapp_pending_records", ("orders", "1h")] == 0
    assert found["retryapp_dead_letters", ("orders",)] == 4
    assert ("retryapp_oldest_due_timestamp_seconds", ("orders",)) not in found
    del parts[0]
    found = samples(metrics, gauges)
    names = {name for name, labels in found if labels[:1] == ("orders",)}
    assert names.isdisjoint({"retryapp_pending_records", "retryapp_dead_letters"})
    assert found["retryapp_unknown_partitions", ("orders",)] == 2
    assert found["retryapp_lanes_open", ("orders",)] == 0


def test_the_clock_is_told(runtime: Runtime) -> None:
    """A worker that fires nothing because it doubts its clock must not look idle."""
    clock, view = runtime.clock, RuntimeView(runtime)

    def told() -> list[float]:
        found = samples(runtime.metrics, view.gauges())
        return [found[f"retryapp_clock_{name}", ()] for name in ("trusted", "correction_seconds", "error_seconds")]

    assert told() == [0, 0, 0]
    now_ms = int(clock.counted_ms())
    clock.anchor(sent_ms=now_ms, acked_ms=now_ms + 9, appended_ms=now_ms + 7_000)
    assert told() == pytest.approx([1, 6.991, 0.01])


async def test_runs_that_were_given_up_are_a_gauge_until_they_end(runtime: Runtime) -> None:
    """Each handler has its number, zero where all is well."""
    view, orphans = RuntimeView(runtime), runtime.served["orders"].handler.orphans

    def told() -> float:
        return samples(runtime.metrics, view.gauges())["retryapp_orphaned_runs", ("orders",)]

    assert told() == 0
    runs = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for run in runs:
        orphans.adopt(run, "app/orders/0/7")
    assert told() == 2
    runs[0].set_result(None)
    await asyncio.sleep(0)
    assert told() == 1


def test_the_series_of_a_handler_begin_at_zero() -> None:
    """Prometheus sees no increase in a counter that is first there with a 1."""
    metrics = MetricsObserver()
    metrics.begin("orders", ["5m", "1h"], ["ledger"])
    found = samples(metrics)
    assert {found["retryapp_dead_total", ("orders", reason.value)] for reason in DeadReason} == {0}
    for name, labels in (
        ("deliveries_total", ()),
        ("succeeded_total", ()),
        ("failures_total", ("retryable",)),
        ("failures_total", ("non-retryable",)),
        ("scheduled_total", ("5m",)),
        ("scheduled_total", ("1h",)),
        ("skipped_total", ()),
        ("circuit_transitions_total", ("", "open")),
        ("circuit_transitions_total", ("ledger", "open")),
        ("lane_failures_total", ()),
        ("lateness_seconds_count", ()),
        ("retry_age_seconds_count", ()),
    ):
        assert found[f"retryapp_{name}", ("orders", *labels)] == 0


def test_the_series_do_not_say_since_when_they_are() -> None:
    """Prometheus would keep that as one more series each; the user's own metrics go on to say it."""
    metrics = MetricsObserver()
    metrics.begin("orders")
    users = CollectorRegistry()
    Counter("users", "Of the user.", registry=users)
    assert b"_created" not in metrics.collect().text()
    assert b"users_created" in generate_latest(users)


def test_a_program_cannot_make_series_without_bound() -> None:
    """Names beyond the limit share one series, names within it keep theirs; each handler has a limit of its own."""
    metrics = MetricsObserver()

    def publish(handler: str, topic: str) -> None:
        metrics.observe(Observation(event=Event.PUBLISHED, handler=handler, topic=topic))

    for number in range(MAX_LABELS + 7):
        publish("orders", f"customer-{number}")
    publish("orders", "customer-0")
    publish("returns", "receipts")
    found = samples(metrics)
    assert len([1 for name, _ in found if name == "retryapp_published_total"]) == MAX_LABELS + 2
    assert found["retryapp_published_total", ("orders", OTHER)] == 7
    assert found["retryapp_published_total", ("orders", "customer-0")] == 2
    assert found["retryapp_published_total", ("returns", "receipts")] == 1


def test_dead_letters_are_shown_by_cause_within_a_bound() -> None:
    """The most frequent ones by id; the others, and those without one, together: the sum is that of all."""

    def count(number: int | str, records: int) -> CauseCount:
        facts = {"attempts": 1, "first_ms": 1, "last_ms": 1, "sample": "x"}
        return CauseCount(cause_id=str(number), name="E", records=records, **facts)  # type: ignore[arg-type]

    causes = [count("other", 500), *(count(number, 100 - number) for number in range(TOP_CAUSES + 7))]
    infos = [partition(0, dead=sum(each.records for each in causes), pending=5, pending_by_tier={"5m": 5})]
    waiting = [count(1, 2)]
    gauges = Gauges(partitions={"orders": infos}, causes={"orders": causes}, waiting={"orders": waiting})

    def shown(name: str = "retryapp_dead_letters_by_cause") -> dict[str, float]:
        found = samples(MetricsObserver(), gauges)
        return {labels[1]: value for (metric, labels), value in found.items() if metric == name}

    assert len(shown()) == TOP_CAUSES + 1
    assert shown()["0"] == 100
    assert sum(shown().values()) == infos[0].dead
    assert shown("retryapp_pending_by_cause") == {"1": 2, OTHER: 3}
    infos[0] = partition(0, dead=None)
    assert shown() == {}


def test_time_in_the_handler_is_a_histogram() -> None:
    """Each call is in the buckets of its length and of all longer ones."""
    durations = Durations()
    for duration_s in (0.0001, 0.005, 0.3, 1_000.0):
        durations.note(duration_s)
    got = samples(MetricsObserver(), Gauges(partitions={}, durations={"orders": durations}))
    for bound, count in {"0.001": 1, "0.005": 2, "0.25": 2, "0.5": 3, "300.0": 3, "+Inf": 4}.items():
        assert got["retryapp_handler_seconds_bucket", ("orders", bound)] == count
    assert got["retryapp_handler_seconds_count", ("orders",)] == 4
    assert got["retryapp_handler_seconds_sum", ("orders",)] == pytest.approx(1_000.3051)


def test_pauses_jobs_and_lag_are_gauges() -> None:
    """Of the partitions here; a lag that is not known is absent, and no job is 0."""
    infos = {
        "orders": [
            partition(0, paused="paused by ann", jobs={"running": 2}),
            partition(1, jobs={"running": 1, "paused": 1}),
        ],
        "idle": [partition(0)],
    }
    lags = [PartitionLag(partition=n, committed=1, main=n + 3, expiring=n == 1) for n in range(2)]
    got = samples(MetricsObserver(), Gauges(partitions=infos, lags={"orders": lags}))
    assert got["retryapp_paused_partitions", ("orders",)] == 1
    assert got["retryapp_job_parts", ("orders", "running")] == 3
    assert got["retryapp_job_parts", ("orders", "paused")] == 1
    assert got["retryapp_job_parts", ("idle", "running")] == 0
    assert got["retryapp_main_lag_offsets", ("orders",)] == 7
    assert got["retryapp_unread_expiring_partitions", ("orders",)] == 1
    assert ("retryapp_main_lag_offsets", ("idle",)) not in got


async def test_a_rebalance_counts_once_and_is_seen_while_it_goes_on(runtime: Runtime) -> None:
    """However many handlers the app has."""
    view = RuntimeView(runtime)
    runtime.served["returns"] = runtime.served["orders"]
    runtime.rebalanced(1.5)
    found = samples(runtime.metrics, view.gauges())
    assert found["retryapp_rebalance_seconds_count", ()] == 1
    assert found["retryapp_rebalance_seconds_sum", ()] == 1.5
    assert found["retryapp_rebalancing_seconds", ()] == 0
    runtime.rebalance_begins()
    runtime._rebalancing_since_s = (runtime._rebalancing_since_s or 0) - 40
    runtime.rebalance_begins()  # another overtakes it: the group still has not settled
    assert samples(runtime.metrics, view.gauges())["retryapp_rebalancing_seconds", ()] >= 40


def test_circuits_are_counted_by_state_where_there_are_any() -> None:
    """Changes as they come; what stands, for the partitions here."""
    ledger = {"ledger": CircuitInfo(state="half-open", since_ms=0, cause="")}
    parts = [partition(0, circuit="open", circuits=ledger), partition(1, circuit="closed")]
    infos = {"orders": parts, "flights": [partition(0)]}
    metrics = MetricsObserver()
    metrics.begin("orders")
    metrics.observe(Observation(event=Event.CIRCUIT, handler="orders", state="open", circuit="ledger"))
    got = samples(metrics, Gauges(partitions=infos))
    assert got["retryapp_circuit_transitions_total", ("orders", "ledger", "open")] == 1
    assert got["retryapp_circuit_transitions_total", ("orders", "", "half-open")] == 0
    shown = {labels: value for (name, labels), value in got.items() if name == "retryapp_circuits"}
    assert {labels: value for labels, value in shown.items() if value} == {
        ("orders", "", "open"): 1,
        ("orders", "", "closed"): 1,
        ("orders", "ledger", "half-open"): 1,
    }
    assert len(shown) == 2 * len(CircuitState)
