"""Metrics for Prometheus: counters of events, and ``Gauges``, whose values are taken at each scrape.

Two apps in one process do not clash: each observer has its own registry. The series of a handler begin at 0 with its
declaration: Prometheus sees no increase in a counter that begins at 1. Labels that a program can widen, causes
and topics that handlers publish to, are bounded by ``MAX_LABELS``; later ones count as ``OTHER``.
"""

from __future__ import annotations

from collections import Counter as Totals
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from retryapp.core.causes import OTHER_CAUSE, CauseCount, cause_id
from retryapp.core.circuit import CircuitState
from retryapp.core.classify import DeadReason
from retryapp.core.jobs import PartState
from retryapp.core.rules import ErrorClass
from retryapp.core.skew import BrokerSkew
from retryapp.engine.handler.handler import DURATION_BOUNDS_S, Durations
from retryapp.ports import ELSEWHERE, Event, Observation, Observer, PartitionInfo, PartitionLag
from retryapp.runtime.observe.recent import DELIVERIES, FAILURES

LATENESS_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the lateness histogram, in seconds: fine where lateness lies while healthy, coarse after a fault."""

RETRY_AGE_BUCKETS_S: Final = (
    1.0, 10.0, 60.0, 600.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 1_209_600.0, 2_592_000.0,
)  # fmt: skip
"""Upper bounds of ``retryapp_retry_age_seconds``, in seconds; the age limit in docs/alerts.yml must be one of them."""

REBALANCE_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MAX_LABELS: Final = 100  # causes, or topics, that one handler's series name
TOP_CAUSES: Final = 20  # causes that one handler's gauges name, of what waits and of dead letters
OTHER: Final = "(other)"  # label of those beyond ``MAX_LABELS``

_SECONDS: Final = 1_000  # milliseconds in one
_COUNTERS: Final[Mapping[Event, tuple[str, str]]] = {
    Event.SUCCEEDED: ("succeeded", "Deliveries that the handler finished without an error."),
    Event.SKIPPED: ("skipped", "Records passed over: duplicates of an event, or as the handler or a rule said."),
    Event.COPY: (
        "copies",
        "Copies of records that are due again, of any group, that were read on the main topic and passed over.",
    ),
    Event.HELD: ("held", "Records held, undelivered, behind earlier ones of their sequence."),
    Event.DEFERRED: ("deferred", "Records that their handler has put off until somebody releases them."),
    Event.SUPERSEDED: ("superseded", "Records that a newer one of their key has replaced."),
    Event.DAMAGED: ("damaged", "Records that could not be read as written."),
    Event.LANE_FAILED: ("lane_failures", "Errors that closed a lane; it opens again by itself."),
    Event.LANE_INCOMPLETE: (
        "lane_incomplete",
        "Lanes that wait: another worker has some of the topics, or ours have too few partitions.",
    ),
}
"""Events that are counted without a further label: name and help."""

_GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "pending_records": (
        "Records that wait here, by tier; absent while no partition's number is known.",
        ("handler", "tier"),
    ),
    "stopped_sequences": (
        "Sequences that have stopped here behind dead records, until somebody decides.",
        ("handler",),
    ),
    "unknown_partitions": (
        "Partitions here that the sums of waiting and dead records leave out: their numbers are not known now.",
        ("handler",),
    ),
    "oldest_due_timestamp_seconds": (
        "Earliest due time of what waits here, epoch seconds; in the past while due records wait for the handler.",
        ("handler",),
    ),
    "scheduler_last_run_timestamp_seconds": (
        "When the scheduler last looked for what is due, epoch seconds: that of the open lane that waits longest.",
        ("handler",),
    ),
    "dead_letters": ("Dead letters in the tables here; absent while no partition's number is known.", ("handler",)),
    "dead_letters_by_cause": (
        f"Dead letters here by cause, the {TOP_CAUSES} most frequent ones of a worker; all others are '{OTHER}'.",
        ("handler", "cause"),
    ),
    "pending_by_cause": (
        f"Waiting records by cause, the {TOP_CAUSES} most frequent ones of a worker; all others, and what was never "
        f"delivered, are '{OTHER}'.",
        ("handler", "cause"),
    ),
    "main_lag_offsets": (
        "Offsets of the main topic that are not committed, of the partitions here; absent while no broker answers.",
        ("handler",),
    ),
    "unread_expiring_partitions": (
        "Partitions here with unread records that are older than half of the main topic's retention.ms, as it was at "
        "the worker's start; absent as the lag is.",
        ("handler",),
    ),
    "in_flight_records": ("Records in handlers right now.", ("handler",)),
    "release_lag_seconds": (
        "Age of the oldest record in flight here: the committed offset waits for it.",
        ("handler",),
    ),
    "table_behind_offsets": (
        "Offsets that the tables here have yet to read: pending from its changelog, dead from the dead letters.",
        ("handler", "table"),
    ),
    "partitions": ("Partitions of the main topic, on all workers.", ("handler",)),
    "lanes_open": ("Lanes that are open here.", ("handler",)),
    "lanes_stalled": (
        "Open lanes whose records wait: a topic refuses a hand-off or may not be read, no run can begin, or a rule has "
        "paused them.",
        ("handler",),
    ),
    "circuits": (
        "Partitions here whose circuit is in a state; the name of the handler's own is empty.",
        ("handler", "circuit", "state"),
    ),
    "blocked_partitions": (
        "Partitions here that take no new records, or soon: a cap is reached, one waits for a record that the topic has"
        " lost, or for over a minute all wait for one record.",
        ("handler",),
    ),
    "paused_partitions": ("Partitions here whose handler somebody has paused.", ("handler",)),
    "job_parts": (
        "Partitions here that have a part of a job to do, by its state; each job counts.",
        ("handler", "state"),
    ),
    "orphaned_runs": (
        "Runs of the handler that were given up and still go on; at a limit no new one begins.",
        ("handler",),
    ),
    "clock_trusted": ("1 while retries start by this worker's clock; 0 while it and the broker's do not agree.", ()),
    "clock_correction_seconds": ("What this machine's clock is corrected by to agree with the broker's.", ()),
    "clock_error_seconds": ("How wrong the corrected clock may be, as of the last acknowledgement.", ()),
    "broker_silent_seconds": ("Time since a broker answered this worker last.", ()),
    "rebalancing_seconds": ("How long the current rebalance has lasted; 0 when there is none.", ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What a worker has at one moment. Mappings are by main topic."""

    partitions: Mapping[str, Sequence[PartitionInfo]]
    blocked: Mapping[str, int] = field(default_factory=dict)
    """Partitions that are blocked for long (``PartitionInfo``)."""
    orphans: Mapping[str, int] = field(default_factory=dict)
    """Runs that go on although they were given up (``engine.handler.orphans``)."""
    durations: Mapping[str, Durations] = field(default_factory=dict)
    causes: Mapping[str, Sequence[CauseCount]] = field(default_factory=dict)
    """What the dead letters here died of."""
    waiting: Mapping[str, Sequence[CauseCount]] = field(default_factory=dict)
    """The same of what waits."""
    lags: Mapping[str, Sequence[PartitionLag]] = field(default_factory=dict)
    """Without those that are not known."""
    skew: BrokerSkew = field(default_factory=BrokerSkew)
    rebalancing_s: float = 0.0
    silent_s: float = 0.0


class Scrape(Collector):
    """Counters, and gauges as they were at a moment; not when each counter was made, a quarter of the page."""

    def __init__(self, counters: Collector, gauges: Iterable[Metric]) -> None:
        self._counters = counters
        self._gauges = gauges

    @override
    def collect(self) -> Iterable[Metric]:
        for family in chain(self._counters.collect(), self._gauges):
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    def text(self) -> bytes:
        """Return them as Prometheus reads them; any thread may write that."""
        return generate_latest(self)


class MetricsObserver(Observer):
    """Counts observations for Prometheus."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"retryapp_{name}", text, ("handler", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"retryapp_{name}", text, labels, registry=registry, buckets=buckets)

        self._deliveries = counter("deliveries", "Runs of the handler that ended, every attempt counted.")
        self._counters = {event: counter(name, text) for event, (name, text) in _COUNTERS.items()}
        self._failures = counter("failures", "Deliveries that failed, by class of the error.", "class")
        self._scheduled = counter("scheduled", "Retries scheduled, by tier.", "tier")
        self._dead = counter("dead", "Records sent to the dead-letter topic, by reason.", "reason")
        text = "Records that ended without a dead letter, dropped or dead letters themselves, by reason."
        self._discarded = counter("discarded", text, "reason")
        text = f"Dead letters by reason and cause, the first {MAX_LABELS} causes since the start; error is its type."
        self._causes = counter("dead_causes", text, "reason", "cause", "error")
        self._published = counter(
            "published", "Records that handlers published with record.publish, by destination.", "topic"
        )
        self._circuit = counter(
            "circuit_transitions", "Changes of circuits, by the state that they came to.", "circuit", "state"
        )
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
        self.ended = Totals[str]()
        """By handler: what ended without a dead letter."""
        self._named: dict[tuple[Counter, str], set[str]] = {}
        self._tiers: dict[str, list[str]] = {}

    def begin(self, handler: str, tiers: Iterable[str] = (), circuits: Iterable[str] = ()) -> None:
        """Show the series of a handler, with the tiers of its policy and its named circuits, at 0."""
        for metric in (self._deliveries, *self._counters.values(), self._lateness, self._age):
            self._child(metric, handler)
        for error_class in ErrorClass:
            self._child(self._failures, handler, error_class.value)
        for reason in DeadReason:
            self._child(self._dead, handler, reason.value)
            self._child(self._discarded, handler, reason.value)
        for circuit in ("", *circuits):
            for state in CircuitState:
                self._child(self._circuit, handler, circuit, state.value)
        self._tiers[handler] = list(tiers)
        for tier in self._tiers[handler]:
            self._child(self._scheduled, handler, tier)

    @override
    def observe(self, observation: Observation) -> None:
        handler, count, event = observation.handler, observation.count, observation.event
        if event in self._counters:
            self._child(self._counters[event], handler).inc(count)
        match event:
            case Event.SUCCEEDED | Event.DEFERRED:
                self._count_delivery(observation)
            case Event.FAILED:
                self._count_delivery(observation)
                self._child(self._failures, handler, observation.error_class or "unknown").inc(count)
            case Event.SKIPPED if observation.attempt is not None:  # a duplicate was not delivered
                self._count_delivery(observation)
            case Event.SCHEDULED:
                self._child(self._scheduled, handler, observation.tier or "unknown").inc(count)
            case Event.DEAD:
                reason = observation.reason or "unknown"
                self._child(self._dead, handler, reason).inc(count)
                error = observation.error_type or "unknown"
                named = cause_id(error, observation.fingerprint or "", observation.message or "")
                cause = self._bounded(self._causes, handler, named)
                self._child(self._causes, handler, reason, cause, OTHER if cause == OTHER else error).inc(count)
            case Event.DISCARDED | Event.LETTER_FAILED:
                self.ended[handler] += count
                self._child(self._discarded, handler, observation.reason or "unknown").inc(count)
            case Event.PUBLISHED:
                topic = self._bounded(self._published, handler, observation.topic or "unknown")
                self._child(self._published, handler, topic).inc(count)
            case Event.CIRCUIT:
                self._child(self._circuit, handler, observation.circuit or "", observation.state or "unknown").inc(
                    count
                )
            case Event.REBALANCED:
                self._rebalances.observe((observation.duration_ms or 0) / _SECONDS)

    def _count_delivery(self, ended: Observation) -> None:
        self._child(self._deliveries, ended.handler).inc(ended.count)
        if ended.lateness_ms is not None:
            self._child(self._lateness, ended.handler).observe(ended.lateness_ms / _SECONDS)
        if ended.age_ms is not None:
            self._child(self._age, ended.handler).observe(ended.age_ms / _SECONDS)

    def _bounded(self, metric: Counter, handler: str, label: str) -> str:
        named = self._named.setdefault((metric, handler), set())
        if label not in named and len(named) >= MAX_LABELS:
            return OTHER
        named.add(label)
        return label

    def collect(self, gauges: Gauges | None = None) -> Scrape:
        """Return what a scrape shows; without gauges, the counters only."""
        return Scrape(self._registry, () if gauges is None else _families(gauges, self._tiers))

    def counted(self) -> Mapping[str, Totals[str]]:
        """Return by handler how many deliveries have ended and failed, and how late retries began (`Recent`)."""
        found: defaultdict[str, Totals[str]] = defaultdict(Totals)
        for metric, name in ((self._deliveries, DELIVERIES), (self._failures, FAILURES), (self._lateness, "le")):
            for sample in chain.from_iterable(family.samples for family in metric.collect()):
                if sample.name.endswith(("_total", "_bucket")):
                    found[sample.labels["handler"]][sample.labels.get(name, name)] += int(sample.value)
        return found


_HANDLER_SECONDS: Final = "Time of deliveries in the handler, hot retries included; of lists, time of the calls."


def _families(gauges: Gauges, tiers: Mapping[str, Sequence[str]]) -> Iterable[Metric]:
    families = {
        name: GaugeMetricFamily(f"retryapp_{name}", text, labels=labels) for name, (text, labels) in _GAUGES.items()
    }

    def add(name: str, value: float, *labels: str) -> None:
        families[name].add_metric(labels, value)

    _add_handlers(add, gauges, tiers)
    times = HistogramMetricFamily("retryapp_handler_seconds", _HANDLER_SECONDS, labels=("handler",))
    for handler, durations in gauges.durations.items():
        counts = zip((*DURATION_BOUNDS_S, "+Inf"), accumulate(durations.counts), strict=True)
        times.add_metric((handler,), [(str(bound), count) for bound, count in counts], durations.total_s)
    skew = gauges.skew
    add("clock_trusted", skew.trusted)
    add("clock_correction_seconds", skew.correction_ms / _SECONDS)
    add("clock_error_seconds", skew.error_ms / _SECONDS)
    add("broker_silent_seconds", gauges.silent_s)
    add("rebalancing_seconds", gauges.rebalancing_s)
    return (times, *families.values())


def _add_causes(add: Callable[..., None], name: str, handler: str, counts: Sequence[CauseCount], total: int) -> None:
    causes = [each for each in counts if each.cause_id != OTHER_CAUSE][:TOP_CAUSES]
    for cause in causes:
        add(name, cause.records, handler, cause.cause_id)
    add(name, max(0, total - sum(cause.records for cause in causes)), handler, OTHER)


def _add_handlers(add: Callable[..., None], gauges: Gauges, tiers: Mapping[str, Sequence[str]]) -> None:
    for handler, infos in gauges.partitions.items():
        here = [info for info in infos if info.state != ELSEWHERE]
        now = [info for info in here if info.as_of_ms is None]
        known = [info for info in now if info.pending is not None]
        counts = Totals(dict.fromkeys(tiers.get(handler, ()) if known else (), 0))
        for info in known:
            counts.update(info.pending_by_tier)
        for tier, count in counts.items():
            add("pending_records", count, handler, tier)
        if known:
            _add_causes(add, "pending_by_cause", handler, gauges.waiting.get(handler, ()), counts.total())
            add("stopped_sequences", sum(info.stopped or 0 for info in known), handler)
        if dead := [info.dead for info in now if info.dead is not None]:
            add("dead_letters", sum(dead), handler)
            _add_causes(add, "dead_letters_by_cause", handler, gauges.causes.get(handler, ()), sum(dead))
        if handler in gauges.lags:
            add("main_lag_offsets", sum(lag.main for lag in gauges.lags[handler]), handler)
            add("unread_expiring_partitions", sum(lag.expiring for lag in gauges.lags[handler]), handler)
        add("unknown_partitions", len(here) - min(len(known), len(dead)), handler)
        dues = [info.next_due_ms for info in known if info.next_due_ms is not None]
        if dues:
            add("oldest_due_timestamp_seconds", min(dues) / _SECONDS, handler)
        looks = [info.looked_ms for info in here if info.looked_ms is not None]
        if looks:
            add("scheduler_last_run_timestamp_seconds", min(looks) / _SECONDS, handler)
        add("in_flight_records", sum(info.in_flight for info in here), handler)
        add("release_lag_seconds", max((info.release_lag_ms for info in here), default=0) / _SECONDS, handler)
        add("table_behind_offsets", sum(info.pending_behind for info in here), handler, "pending")
        add("table_behind_offsets", sum(info.dead_behind for info in here), handler, "dead")
        add("partitions", len(infos), handler)
        add("lanes_open", sum(info.state == "open" for info in here), handler)
        add("lanes_stalled", sum(info.stalled is not None for info in here), handler)
        circuits = Totals(("", info.circuit) for info in here if info.circuit is not None)
        circuits.update((name, each.state) for info in here for name, each in info.circuits.items())
        for name in sorted({name for name, _ in circuits}):
            for state in CircuitState:
                add("circuits", circuits[name, state], handler, name, state.value)
        add("blocked_partitions", gauges.blocked.get(handler, 0), handler)
        add("paused_partitions", sum(info.paused is not None for info in here), handler)
        for going in (PartState.RUNNING, PartState.PAUSED):
            add("job_parts", sum(info.jobs.get(going, 0) for info in here), handler, going.value)
        add("orphaned_runs", gauges.orphans.get(handler, 0), handler)
