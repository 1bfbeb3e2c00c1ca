"""Metrics for Prometheus: what happened is counted, what stands is asked for at each scrape.

* ``MetricsObserver`` counts observations in a registry of its own, so that two apps in one process do not clash. The
  series of a handler begin at 0 with its declaration: of a counter that begins at 1, Prometheus sees no increase.
* ``Gauges`` asks its ``Sources`` on the caller's thread.

Labels come from small sets: main topics, tiers, reasons, classes. The two that a program can widen at will, types of
errors and topics that handlers publish to, are bounded by ``MAX_LABELS``; what comes later counts as ``OTHER``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from retryapp.core.classify import DeadReason, ErrorClass
from retryapp.core.skew import BrokerSkew
from retryapp.ports import Event, Observation, PartitionInfo

LATENESS_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the lateness histogram, in seconds: fine where lateness lies while healthy, coarse after a fault."""

RETRY_AGE_BUCKETS_S: Final = (
    1.0, 10.0, 60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 1_209_600.0, 2_592_000.0,
)  # fmt: skip
"""Upper bounds of ``retryapp_retry_age_seconds``, in seconds; the age limit in docs/alerts.yml must be one of them."""

REBALANCE_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the rebalance histogram, in seconds."""

MAX_LABELS: Final = 100
"""Types of errors, or topics, that one handler's series name."""
OTHER: Final = "(other)"
"""Stands for those beyond ``MAX_LABELS``."""

Partitions = Mapping[str, Sequence[PartitionInfo]]
"""Main topic to what this worker knows of its partitions, as ``WorkerView.partitions`` returns it."""

OrphanCounts = Mapping[str, int]
"""Main topic to how many runs of its handler go on although they were given up (``engine.orphans``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a handler's records wait, and how long its topics keep them; in seconds."""

    longest_wait_s: float
    """Longest delay of the policy."""
    needed_s: float
    """What its retry and redelivery topics have to keep: the allowed downtime plus the longest wait."""
    topics_s: Mapping[str, float] = field(default_factory=dict)
    """Retry and redelivery topics to what they keep, as the broker said last; infinite: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Whom the gauges ask at each scrape."""

    partitions: Callable[[], Partitions]
    """What this worker has."""
    orphans: Callable[[], OrphanCounts] = dict
    """Runs that were given up; a handler that is absent has none."""
    skew: BrokerSkew = field(default_factory=BrokerSkew)
    """What is known of the broker's time."""
    rebalancing_s: Callable[[], float] = float
    """How long the rebalance that goes on has lasted; 0 while none does."""
    retentions: Callable[[], Mapping[str, Retention]] = dict
    """By main topic; a handler that is absent has not been looked at yet."""


class MetricsObserver:
    """Counts observations for Prometheus; gauges are asked for at each scrape."""

    def __init__(self, sources: Sources | None = None) -> None:
        """Args: sources: whom the gauges ask; no gauges are shown without them."""
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"retryapp_{name}", text, ("handler", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"retryapp_{name}", text, labels, registry=registry, buckets=buckets)

        self._deliveries = counter("deliveries", "Runs of the handler that ended, every attempt counted.")
        self._succeeded = counter("succeeded", "Deliveries that the handler finished without an error.")
        self._skipped = counter("skipped", "Records passed over as duplicates of an event that was seen before.")
        self._copies = counter(
            "copies_dropped", "Copies that a crash had left without transactions, dropped before the handler."
        )
        self._failures = counter("failures", "Deliveries that failed, by class of the error.", "class")
        self._scheduled = counter("scheduled", "Retries scheduled, by tier.", "tier")
        self._parked = counter("parked", "Records put into the pending table.")
        self._fired = counter("fired", "Due records handed to the redelivery topic.")
        self._dead = counter("dead", "Records sent to the dead-letter topic, by reason.", "reason")
        self._kinds = counter("dead_kinds", "The same by kind: reason and type of the error.", "reason", "error")
        self._published = counter(
            "published", "Records that handlers published with record.publish, by destination.", "topic"
        )
        self._damaged = counter("damaged", "Records that could not be read as written.")
        self._lane_errors = counter("lane_failures", "Errors that closed a lane; it opens again by itself.")
        self._incomplete = counter("lane_incomplete", "Lanes that wait: another worker has some of the topics.")
        self._lateness = histogram(
            "lateness_seconds", "Time of delivery to the handler minus due time.", LATENESS_BUCKETS_S, "handler"
        )
        self._age = histogram(
            "retry_age_seconds",
            "Time since a record's first failure, at the end of each later attempt.",
            RETRY_AGE_BUCKETS_S,
            "handler",
        )
        self._rebalances = histogram(
            "rebalance_seconds",
            "Length of the consumer group's rebalances as this worker saw them; _count is their number.",
            REBALANCE_BUCKETS_S,
        )
        self._child: Callable[..., Any] = cache(lambda metric, *labels: metric.labels(*labels))
        self._named: dict[tuple[Counter, str], set[str]] = {}
        if sources is not None:
            registry.register(Gauges(sources))

    def begin(self, handler: str, tiers: Iterable[str] = ()) -> None:
        """Show the series of a handler, at 0 until something happens.

        Args:
            handler: its main topic.
            tiers: names of its policy's delays.
        """
        plain = (self._deliveries, self._succeeded, self._copies, self._parked, self._fired, self._damaged)
        for metric in (*plain, self._lane_errors, self._incomplete, self._lateness, self._age):
            self._child(metric, handler)
        for error_class in ErrorClass:
            self._child(self._failures, handler, error_class.value)
        for reason in DeadReason:
            self._child(self._dead, handler, reason.value)
        for tier in tiers:
            self._child(self._scheduled, handler, tier)

    def observe(self, observation: Observation) -> None:
        """Count one observation."""
        handler, count = observation.handler, observation.count
        match observation.event:
            case Event.SUCCEEDED:
                self._count_delivery(observation)
                self._child(self._succeeded, handler).inc(count)
            case Event.SKIPPED:
                self._child(self._skipped, handler).inc(count)
            case Event.COPY_DROPPED:
                self._child(self._copies, handler).inc(count)
            case Event.FAILED:
                self._count_delivery(observation)
                self._child(self._failures, handler, observation.error_class or "unknown").inc(count)
            case Event.SCHEDULED:
                self._child(self._scheduled, handler, observation.tier or "unknown").inc(count)
            case Event.PARKED:
                self._child(self._parked, handler).inc(count)
            case Event.FIRED:
                self._child(self._fired, handler).inc(count)
            case Event.DEAD:
                reason = observation.reason or "unknown"
                self._child(self._dead, handler, reason).inc(count)
                error = self._bounded(self._kinds, handler, observation.error_type or "unknown")
                self._child(self._kinds, handler, reason, error).inc(count)
            case Event.PUBLISHED:
                topic = self._bounded(self._published, handler, observation.topic or "unknown")
                self._child(self._published, handler, topic).inc(count)
            case Event.DAMAGED:
                self._child(self._damaged, handler).inc(count)
            case Event.LANE_FAILED:
                self._child(self._lane_errors, handler).inc(count)
            case Event.LANE_INCOMPLETE:
                self._child(self._incomplete, handler).inc(count)
            case Event.REBALANCED:
                self._rebalances.observe((observation.duration_ms or 0) / 1_000)
            case Event.LANE_OPENED | Event.LANE_CLOSED:
                pass  # the lanes that are open are a gauge

    def _count_delivery(self, ended: Observation) -> None:
        self._child(self._deliveries, ended.handler).inc(ended.count)
        if ended.lateness_ms is not None:
            self._child(self._lateness, ended.handler).observe(ended.lateness_ms / 1_000)
        if ended.age_ms is not None:
            self._child(self._age, ended.handler).observe(ended.age_ms / 1_000)

    def _bounded(self, metric: Counter, handler: str, label: str) -> str:
        """Return the label, or `OTHER` where the handler's series of the metric name enough already."""
        named = self._named.setdefault((metric, handler), set())
        if label not in named and len(named) >= MAX_LABELS:
            return OTHER
        named.add(label)
        return label

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Gauges(Collector):
    """What a worker has right now, asked for at each scrape."""

    def __init__(self, sources: Sources) -> None:
        """Args: sources: whom to ask."""
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are known without asking the worker, which may not have started yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the gauges of this worker, and of every handler for the partitions that it has."""
        return [*self._of_handlers(), *self._of_retention(), *self._of_worker()]

    def _of_worker(self) -> Iterable[Metric]:
        skew = self._sources.skew
        yield _gauge(
            "clock_trusted",
            "1 while records fire by this worker's clock; 0 while it and the broker's do not agree.",
            int(skew.trusted),
        )
        yield _gauge(
            "clock_correction_seconds",
            "What this machine's clock is corrected by to agree with the broker's.",
            skew.correction_ms / 1_000,
        )
        yield _gauge(
            "clock_error_seconds", "How wrong that may be, as of the last acknowledgement.", skew.error_ms / 1_000
        )
        yield _gauge(
            "rebalancing_seconds",
            "How long the rebalance that goes on has lasted; 0 while none does.",
            self._sources.rebalancing_s(),
        )

    def _of_retention(self) -> Iterable[Metric]:
        waits = _gauge("longest_wait_seconds", "Longest delay of the policy.", labels=("handler",))
        needed = _gauge(
            "retention_needed_seconds",
            "What retry and redelivery topics have to keep: the allowed downtime plus the longest wait.",
            labels=("handler",),
        )
        kept = _gauge(
            "topic_retention_seconds",
            "What they keep, as the broker said last (every 5 minutes); +Inf: for ever.",
            labels=("handler", "topic"),
        )
        for handler, retention in self._sources.retentions().items():
            waits.add_metric((handler,), retention.longest_wait_s)
            needed.add_metric((handler,), retention.needed_s)
            for topic, seconds in retention.topics_s.items():
                kept.add_metric((handler, topic), seconds)
        return waits, needed, kept

    def _of_handlers(self) -> Iterable[Metric]:
        pending = _gauge("pending_records", "Records that wait here, by tier.", labels=("handler", "tier"))
        due = _gauge(
            "oldest_due_timestamp_seconds",
            "Earliest due time of what waits here, epoch seconds; in the past when firing is behind.",
            labels=("handler",),
        )
        looked = _gauge(
            "scheduler_last_run_timestamp_seconds",
            "When the scheduler last looked for what is due, epoch seconds: that of the open lane that waits longest.",
            labels=("handler",),
        )
        dead = _gauge("dead_letters", "Dead letters in the tables here.", labels=("handler",))
        flight = _gauge("in_flight_records", "Records in handlers right now.", labels=("handler",))
        lag = _gauge(
            "release_lag_seconds",
            "Age of the oldest record in flight here: finished records behind it wait for it.",
            labels=("handler",),
        )
        behind = _gauge(
            "table_behind_offsets",
            "Offsets that the tables here have yet to read: pending from its changelog, dead from the dead letters.",
            labels=("handler", "table"),
        )
        partitions = _gauge("partitions", "Partitions of the main topic, on all workers.", labels=("handler",))
        lanes = _gauge("lanes_open", "Lanes that are open here.", labels=("handler",))
        orphans = _gauge(
            "orphaned_runs",
            "Runs of the handler that were given up and still go on; at a limit no new one begins.",
            labels=("handler",),
        )
        orphan_counts = self._sources.orphans()
        for handler, infos in self._sources.partitions().items():
            here = [info for info in infos if info.state != "elsewhere"]
            for tier, count in _by_tier(here).items():
                pending.add_metric((handler, tier), count)
            dues = [info.next_due_ms for info in here if info.next_due_ms is not None]
            if dues:
                due.add_metric((handler,), min(dues) / 1_000)
            looks = [info.looked_ms for info in here if info.looked_ms is not None]
            if looks:
                looked.add_metric((handler,), min(looks) / 1_000)
            dead.add_metric((handler,), sum(info.dead for info in here))
            flight.add_metric((handler,), sum(info.in_flight for info in here))
            lag.add_metric((handler,), max((info.release_lag_ms for info in here), default=0) / 1_000)
            behind.add_metric((handler, "pending"), sum(info.pending_behind for info in here))
            behind.add_metric((handler, "dead"), sum(info.dead_behind for info in here))
            partitions.add_metric((handler,), len(infos))
            lanes.add_metric((handler,), sum(info.state == "open" for info in here))
            orphans.add_metric((handler,), orphan_counts.get(handler, 0))
        return pending, due, looked, dead, flight, lag, behind, partitions, lanes, orphans


def _gauge(name: str, text: str, value: float | None = None, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"retryapp_{name}", text, value=value, labels=labels or None)


def _by_tier(infos: Sequence[PartitionInfo]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for info in infos:
        for tier, count in info.pending_by_tier.items():
            totals[tier] = totals.get(tier, 0) + count
    return totals
