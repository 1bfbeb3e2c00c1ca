"""Logs and metrics of what happens to records."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from samples import partition

from retryapp.ports import Event, Observation
from retryapp.runtime.app import Runtime
from retryapp.runtime.observers import (
    EVENT_IDS,
    EVENT_LOGGER,
    FACTS,
    LATENESS_BUCKETS_S,
    CombinedObserver,
    FactsFormatter,
    LogObserver,
    MetricsObserver,
)
from retryapp.runtime.view import RuntimeView

SCHEDULED = Observation(
    event=Event.SCHEDULED,
    handler="orders",
    topic="orders",
    partition=3,
    offset=1042,
    failure_id="billing/orders@kq8G0bTz/3/1042",
    attempt=1,
    tier="5m",
    due_at_ms=1_760_000_300_000,
    error_class="retryable",
    error_type="httpx.ReadTimeout",
    message="timed out",
)


def samples(metrics: MetricsObserver) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return all samples as a Prometheus server reads them, by name and label values, the handler's first."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = sorted(sample.labels.items(), key=lambda item: (item[0] != "handler", item[0]))
            found[sample.name, tuple(value for _, value in labels)] = sample.value
    return found


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture everything."""
    caplog.set_level(logging.DEBUG, logger=EVENT_LOGGER)
    return caplog


def test_every_event_has_an_id_and_a_level() -> None:
    """A new event cannot be forgotten; ids are constant and distinct."""
    assert set(EVENT_IDS) == set(Event)
    ids = [event_id for event_id, _ in EVENT_IDS.values()]
    assert len(ids) == len(set(ids))
    assert all(event_id.startswith("retryapp.") for event_id in ids)


def test_every_event_is_told_by_somebody(project_root: Path) -> None:
    """An event that nothing emits would have a metric that stays at zero whatever happens."""
    listeners = {"ports.py", "observers.py"}
    package = project_root / "retryapp"
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.name not in listeners)
    assert [event.name for event in Event if f"Event.{event.name}" not in code] == []


def test_the_message_is_the_event_id_and_facts_are_attributes(logged: pytest.LogCaptureFixture) -> None:
    """Units stand in the names; what does not apply is absent."""
    LogObserver().observe(SCHEDULED)
    (record,) = logged.records
    assert (record.message, record.levelno, record.name) == ("retryapp.retry_scheduled", logging.INFO, EVENT_LOGGER)
    assert (
        record.__dict__
        | {
            "topic": "orders",
            "partition": 3,
            "offset": 1042,
            "attempt": 1,
            "error_class": "retryable",
            "due_at_ms": 1_760_000_300_000,
            "error_message": "timed out",
        }
        == record.__dict__
    )
    assert not hasattr(record, "lateness_ms")


@pytest.mark.parametrize("event", list(Event))
def test_every_fact_of_every_event_can_be_logged(event: Event, logged: pytest.LogCaptureFixture) -> None:
    """No fact's name is taken in a log record (logging would raise)."""
    every = {field.name: 1 for field in fields(Observation) if field.name not in {"event", "message", "trace"}}
    LogObserver().observe(Observation(event=event, message="m", trace="t", **every))  # type: ignore[arg-type]
    (record,) = logged.records
    assert all(hasattr(record, name) for name in FACTS)


@pytest.mark.parametrize(
    ("event", "attempt", "level"),
    [
        (Event.DEAD, 7, logging.ERROR),
        (Event.DAMAGED, None, logging.WARNING),
        (Event.SCHEDULED, 1, logging.INFO),
        (Event.SUCCEEDED, 1, logging.DEBUG),
        (Event.SUCCEEDED, 2, logging.INFO),
        (Event.FAILED, 1, logging.DEBUG),
    ],
)
def test_levels(event: Event, attempt: int | None, level: int, logged: pytest.LogCaptureFixture) -> None:
    """Dead is an error, damaged a warning, a retry and its success are information."""
    LogObserver().observe(Observation(event=event, handler="orders", attempt=attempt))
    assert [record.levelno for record in logged.records] == [level]


def test_long_error_messages_are_cut(logged: pytest.LogCaptureFixture) -> None:
    """A message may quote what it got."""
    LogObserver().observe(replace(SCHEDULED, message="x" * 100_000))
    assert len(logged.records[0].__dict__["error_message"]) == 503


def test_the_trace_of_a_decoder_is_not_logged(logged: pytest.LogCaptureFixture) -> None:
    """Decoders quote the value in their errors; other traces are logged once, with the dead letter."""
    dead = replace(SCHEDULED, event=Event.DEAD, trace="ValidationError: input_value=b'secret'")
    LogObserver().observe(replace(dead, reason="undecodable"))
    LogObserver().observe(replace(dead, reason="exhausted"))
    assert [hasattr(record, "error_trace") for record in logged.records] == [False, True]


def test_facts_can_be_shown_behind_the_line(logged: pytest.LogCaptureFixture) -> None:
    """Plain text for people; the traceback comes last; nothing a record brings forges a line."""
    LogObserver().observe(
        replace(
            SCHEDULED,
            event=Event.DEAD,
            message="no\nERROR forged",
            trace='File "a.py"\n  boom\x1b[2J',
            reason="exhausted",
        )
    )
    text = FactsFormatter(logging.Formatter("%(levelname)s %(message)s")).format(logged.records[0])
    first, *trace = text.split("\n")
    assert first.startswith("ERROR retryapp.dead_lettered handler=orders topic=orders partition=3 offset=1042 ")
    assert "reason=exhausted" in first
    assert "error_message='no\\nERROR forged'" in first
    assert "count=" not in first
    assert trace == ['    File "a.py"', "      boom\\x1b[2J"]


def test_other_loggers_lines_stay_as_they_are() -> None:
    """The formatter is for our events only."""
    record = logging.LogRecord("faust", logging.INFO, "", 0, "ready %s", ("now",), None)
    assert FactsFormatter().format(record) == "ready now"


def test_events_are_counted_by_their_labels() -> None:
    """Counts of batches add up."""
    metrics = MetricsObserver()
    for event, facts in (
        (Event.SUCCEEDED, {"lateness_ms": 7}),
        (Event.FAILED, {"error_class": "retryable"}),
        (Event.SCHEDULED, {"tier": "5m"}),
        (Event.PARKED, {"count": 5}),
        (Event.FIRED, {"count": 40}),
        (Event.FIRED, {"count": 2}),
        (Event.DEAD, {"reason": "exhausted"}),
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
        ("retryapp_deliveries_total", ("orders",)): 2,
        ("retryapp_succeeded_total", ("orders",)): 1,
        ("retryapp_failures_total", ("orders", "retryable")): 1,
        ("retryapp_scheduled_total", ("orders", "5m")): 1,
        ("retryapp_parked_total", ("orders",)): 5,
        ("retryapp_fired_total", ("orders",)): 42,
        ("retryapp_dead_total", ("orders", "exhausted")): 1,
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


def test_lateness_buckets_are_fit_for_5_ms_to_60_s() -> None:
    """Rising, from the resolution of a healthy scheduler to that of a fault."""
    assert list(LATENESS_BUCKETS_S) == sorted(set(LATENESS_BUCKETS_S))
    assert (LATENESS_BUCKETS_S[0], LATENESS_BUCKETS_S[-1]) == (0.005, 60.0)


def test_gauges_are_asked_for_at_each_scrape_and_leave_out_other_workers() -> None:
    """Pending by tier, oldest due, dead, in flight, release lag and open lanes of this worker's partitions."""
    parts = [
        partition(0, pending=3, pending_by_tier={"5m": 2, "1h": 1}, next_due_ms=5_000, dead=4, in_flight=1),
        partition(1, pending=1, pending_by_tier={"5m": 1}, next_due_ms=2_500, release_lag_ms=1_500),
        partition(2, state="opening"),
        partition(3, state="elsewhere", pending=99, pending_by_tier={"5m": 99}, next_due_ms=1, dead=99, in_flight=99),
    ]
    metrics = MetricsObserver(lambda: {"orders": parts, "idle": [partition(0)]})
    assert {
        ("retryapp_pending_records", ("orders", "5m")): 3,
        ("retryapp_pending_records", ("orders", "1h")): 1,
        ("retryapp_oldest_due_timestamp_seconds", ("orders",)): 2.5,
        ("retryapp_dead_letters", ("orders",)): 4,
        ("retryapp_in_flight_records", ("orders",)): 1,
        ("retryapp_release_lag_seconds", ("orders",)): 1.5,
        ("retryapp_release_lag_seconds", ("idle",)): 0,
        ("retryapp_lanes_open", ("orders",)): 2,
        ("retryapp_lanes_open", ("idle",)): 1,
    }.items() <= samples(metrics).items()
    assert ("retryapp_oldest_due_timestamp_seconds", ("idle",)) not in samples(metrics)
    parts.clear()
    assert samples(metrics)["retryapp_lanes_open", ("orders",)] == 0


def test_the_clock_is_told(runtime: Runtime) -> None:
    """A worker that fires nothing because it doubts its clock must not look idle."""
    clock = runtime.clock

    def told() -> list[float]:
        found = samples(runtime.metrics)
        return [found[f"retryapp_clock_{name}", ()] for name in ("trusted", "correction_seconds", "error_seconds")]

    assert told() == [0, 0, 0]
    now_ms = int(clock.counted_ms())
    clock.anchor(sent_ms=now_ms, acked_ms=now_ms + 9, appended_ms=now_ms + 7_000)
    assert told() == pytest.approx([1, 6.991, 0.01])


async def test_runs_that_were_given_up_are_a_gauge_until_they_end(runtime: Runtime) -> None:
    """Each handler has its number, zero where all is well."""
    RuntimeView(runtime)  # lets the gauges be asked
    orphans = runtime.served["orders"].handler.orphans
    assert samples(runtime.metrics)["retryapp_orphaned_runs", ("orders",)] == 0
    runs = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for run in runs:
        orphans.adopt(run)
    assert samples(runtime.metrics)["retryapp_orphaned_runs", ("orders",)] == 2
    runs[0].set_result(None)
    await asyncio.sleep(0)
    assert samples(runtime.metrics)["retryapp_orphaned_runs", ("orders",)] == 1


def test_two_observers_in_one_process_count_apart() -> None:
    """Each has a registry of its own."""
    first, second = MetricsObserver(), MetricsObserver()
    first.observe(Observation(event=Event.FIRED, handler="orders"))
    assert ("retryapp_fired_total", ("orders",)) in samples(first)
    assert ("retryapp_fired_total", ("orders",)) not in samples(second)


def test_combined_observer_tells_all_in_order() -> None:
    """One observation, every observer."""

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def observe(self, observation: Observation) -> None:
            told.append((self.name, observation.event))

    told: list[tuple[str, Event]] = []
    CombinedObserver(Noted("a"), Noted("b")).observe(SCHEDULED)
    assert told == [("a", Event.SCHEDULED), ("b", Event.SCHEDULED)]
