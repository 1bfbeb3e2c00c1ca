"""Logs and metrics: two observers of what happens to records, and one that tells several.

* ``LogObserver`` writes one line an observation with the standard library's logging. The message is a constant event id
  (``retryapp.retry_scheduled``); the facts are attributes of the log record, with units in their names, so that any
  structured formatter finds them. ``FactsFormatter`` shows them behind the message for those who read plain text.
* ``MetricsObserver`` counts for Prometheus in a registry of its own, so that two apps in one process do not clash.

No observation holds a payload. Error messages are the exception's own text, cut to ``MAX_LOGGED_MESSAGE_CHARS``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from retryapp.core.classify import DeadReason
from retryapp.core.skew import BrokerSkew
from retryapp.ports import Event, Observation, Observer, PartitionInfo

EVENT_LOGGER: Final = "retryapp.events"
"""Name of the logger that observations go to."""

MAX_LOGGED_MESSAGE_CHARS: Final = 500
"""Error messages are cut to this many characters in a log line."""

EVENT_IDS: Final[Mapping[Event, tuple[str, int]]] = {
    Event.SUCCEEDED: ("retryapp.succeeded", logging.DEBUG),
    Event.FAILED: (
        "retryapp.attempt_failed",
        logging.DEBUG,
    ),  # what is done about it follows, at its own level
    Event.SCHEDULED: ("retryapp.retry_scheduled", logging.INFO),
    Event.DEAD: ("retryapp.dead_lettered", logging.ERROR),
    Event.PARKED: ("retryapp.parked", logging.DEBUG),
    Event.FIRED: ("retryapp.fired", logging.DEBUG),
    Event.DAMAGED: ("retryapp.damaged_input", logging.WARNING),
    Event.LANE_OPENED: ("retryapp.lane_opened", logging.INFO),
    Event.LANE_CLOSED: ("retryapp.lane_closed", logging.INFO),
    Event.LANE_FAILED: ("retryapp.lane_failed", logging.WARNING),
    Event.LANE_INCOMPLETE: ("retryapp.lane_incomplete", logging.WARNING),
    Event.REBALANCED: ("retryapp.rebalanced", logging.INFO),
}
"""Message and level of each event."""

_RENAMED: Final = {"message": "error_message", "trace": "error_trace"}
"""Facts whose own name is taken in a log record, or would say too little there."""

FACTS: Final = tuple(_RENAMED.get(field.name, field.name) for field in fields(Observation) if field.name != "event")
"""Names of the attributes that ``LogObserver`` sets on log records, in a fixed order."""

LATENESS_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the lateness histogram, in seconds: fine where lateness lies while healthy, coarse after a fault."""

REBALANCE_BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the rebalance histogram, in seconds."""

Partitions = Mapping[str, Sequence[PartitionInfo]]
"""Main topic to what this worker knows of its partitions, as ``WorkerView.partitions`` returns it."""

OrphanCounts = Mapping[str, int]
"""Main topic to how many runs of its handler go on although they were given up (``engine.orphans``)."""


class CombinedObserver:
    """Tells several observers, in their order."""

    def __init__(self, *observers: Observer) -> None:
        """Args: observers: whom to tell."""
        self._observers = observers

    def observe(self, observation: Observation) -> None:
        """Pass one observation on to each."""
        for observer in self._observers:
            observer.observe(observation)


class LogObserver:
    """Writes observations to a logger: constant event id as the message, facts as attributes.

    A retry that succeeded (attempt 2 or later) is worth an INFO line; a record that was fine at once is not.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        """Args: logger: where to; ``retryapp.events`` unless given."""
        self._logger = logging.getLogger(EVENT_LOGGER) if logger is None else logger

    def observe(self, observation: Observation) -> None:
        """Write one line, when the level is enabled."""
        event_id, level = EVENT_IDS[observation.event]
        if observation.event is Event.SUCCEEDED and (observation.attempt or 1) > 1:
            level = logging.INFO
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event_id, extra=_facts(observation))


_FIELDS: Final = tuple((field.name, _RENAMED.get(field.name, field.name)) for field in fields(Observation))


def _facts(observation: Observation) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name, shown in _FIELDS:
        value = getattr(observation, name)
        if value is not None and name != "event":
            facts[shown] = value
    message = observation.message
    if message is not None and len(message) > MAX_LOGGED_MESSAGE_CHARS:
        facts["error_message"] = message[:MAX_LOGGED_MESSAGE_CHARS] + "..."
    if observation.reason == DeadReason.UNDECODABLE:
        facts.pop("error_trace", None)  # decoders quote what they got: that is payload
    return facts


class FactsFormatter(logging.Formatter):
    """Shows the facts of our log records behind the line that another formatter makes; leaves all other records alone.

    Texts are quoted where they hold more than plain characters, so that nothing a record brings can forge a line. The
    traceback comes last, on lines of its own.
    """

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        """Args: inner: makes the line; the library's default unless given."""
        super().__init__()
        self._inner = logging.Formatter() if inner is None else inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with ``name=value`` for each fact."""
        line = self._inner.format(record)
        if record.name != EVENT_LOGGER:
            return line
        facts = {name: getattr(record, name) for name in FACTS if hasattr(record, name)}
        trace = facts.pop("error_trace", None)
        if facts.get("count") == 1:
            del facts["count"]
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in facts.items())
        below = "" if trace is None else "\n" + "\n".join(f"    {_plain(part)}" for part in str(trace).splitlines())
        return f"{line} {shown}{below}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else repr(text)


class MetricsObserver:
    """Counts observations for Prometheus; gauges are asked for at each scrape.

    Labels: ``handler`` (main topic), ``tier`` (text of a nominal delay), ``reason``, ``class``: all from small fixed
    sets, so the number of series is bounded by what is configured.
    """

    def __init__(
        self,
        partitions: Callable[[], Partitions] | None = None,
        orphans: Callable[[], OrphanCounts] = dict,
        skew: BrokerSkew | None = None,
    ) -> None:
        """Take what the gauges ask at each scrape, on the caller's thread.

        Args:
            partitions: what this worker has; no gauges are shown without it.
            orphans: runs that were given up; a handler that is absent has none.
            skew: what is known of the broker's time; nothing without it.
        """
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"retryapp_{name}", text, ("handler", *labels), registry=registry)

        self._deliveries = counter("deliveries", "Runs of the handler that ended, every attempt counted.")
        self._succeeded = counter("succeeded", "Deliveries that the handler finished without an error.")
        self._failures = counter("failures", "Deliveries that failed, by class of the error.", "class")
        self._scheduled = counter("scheduled", "Retries scheduled, by tier.", "tier")
        self._parked = counter("parked", "Records put into the pending table.")
        self._fired = counter("fired", "Due records handed to the redelivery topic.")
        self._dead = counter("dead", "Records sent to the dead-letter topic, by reason.", "reason")
        self._damaged = counter("damaged", "Records that could not be read as written.")
        self._lane_errors = counter("lane_failures", "Errors that closed a lane; it opens again by itself.")
        self._incomplete = counter("lane_incomplete", "Lanes that wait: another worker has some of the topics.")
        self._lateness = Histogram(
            "retryapp_lateness_seconds",
            "Time of delivery to the handler minus due time.",
            ("handler",),
            registry=registry,
            buckets=LATENESS_BUCKETS_S,
        )
        self._rebalances = Histogram(
            "retryapp_rebalance_seconds",
            "Length of the consumer group's rebalances as this worker saw them; _count is their number.",
            registry=registry,
            buckets=REBALANCE_BUCKETS_S,
        )
        self._child: Callable[..., Any] = cache(lambda metric, *labels: metric.labels(*labels))
        if partitions is not None:
            registry.register(_Gauges(partitions, orphans, skew or BrokerSkew()))

    def observe(self, observation: Observation) -> None:
        """Count one observation."""
        handler, count = observation.handler, observation.count
        match observation.event:
            case Event.SUCCEEDED:
                self._count_delivery(observation)
                self._child(self._succeeded, handler).inc(count)
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
                self._child(self._dead, handler, observation.reason or "unknown").inc(count)
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

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """What a worker has right now, asked for at each scrape."""

    def __init__(
        self, partitions: Callable[[], Partitions], orphans: Callable[[], OrphanCounts], skew: BrokerSkew
    ) -> None:
        self._partitions = partitions
        self._orphans = orphans
        self._skew = skew

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names are known without asking the worker, which may not have started yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the gauges of this worker, and of every handler for the partitions that it has."""
        return [*self._of_handlers(), *self._of_clock()]

    def _of_clock(self) -> Iterable[Metric]:
        skew = self._skew
        yield GaugeMetricFamily(
            "retryapp_clock_trusted",
            "1 while records fire by this worker's clock; 0 while it and the broker's do not agree.",
            value=int(skew.trusted),
        )
        yield GaugeMetricFamily(
            "retryapp_clock_correction_seconds",
            "What this machine's clock is corrected by to agree with the broker's.",
            value=skew.correction_ms / 1_000,
        )
        yield GaugeMetricFamily(
            "retryapp_clock_error_seconds",
            "How wrong that may be, as of the last acknowledgement.",
            value=skew.error_ms / 1_000,
        )

    def _of_handlers(self) -> Iterable[Metric]:
        pending = GaugeMetricFamily(
            "retryapp_pending_records", "Records that wait here, by tier.", labels=("handler", "tier")
        )
        due = GaugeMetricFamily(
            "retryapp_oldest_due_timestamp_seconds",
            "Earliest due time of what waits here, epoch seconds; in the past when firing is behind.",
            labels=("handler",),
        )
        dead = GaugeMetricFamily("retryapp_dead_letters", "Dead letters in the tables here.", labels=("handler",))
        flight = GaugeMetricFamily("retryapp_in_flight_records", "Records in handlers right now.", labels=("handler",))
        lag = GaugeMetricFamily(
            "retryapp_release_lag_seconds",
            "Age of the oldest record in flight here: finished records behind it wait for it.",
            labels=("handler",),
        )
        lanes = GaugeMetricFamily("retryapp_lanes_open", "Lanes that are open here.", labels=("handler",))
        orphans = GaugeMetricFamily(
            "retryapp_orphaned_runs",
            "Runs of the handler that were given up and still go on; at a limit no new one begins.",
            labels=("handler",),
        )
        orphan_counts = self._orphans()
        for handler, infos in self._partitions().items():
            here = [info for info in infos if info.state != "elsewhere"]
            for tier, count in _by_tier(here).items():
                pending.add_metric((handler, tier), count)
            dues = [info.next_due_ms for info in here if info.next_due_ms is not None]
            if dues:
                due.add_metric((handler,), min(dues) / 1_000)
            dead.add_metric((handler,), sum(info.dead for info in here))
            flight.add_metric((handler,), sum(info.in_flight for info in here))
            lag.add_metric((handler,), max((info.release_lag_ms for info in here), default=0) / 1_000)
            lanes.add_metric((handler,), sum(info.state == "open" for info in here))
            orphans.add_metric((handler,), orphan_counts.get(handler, 0))
        return pending, due, dead, flight, lag, lanes, orphans


def _by_tier(infos: Sequence[PartitionInfo]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for info in infos:
        for tier, count in info.pending_by_tier.items():
            totals[tier] = totals.get(tier, 0) + count
    return totals
