"""Logs what happens to records: at INFO causes, sums and dead letters, at DEBUG one line per observation.

The message is a constant event id (``retryapp.retry_scheduled``); the facts are attributes of the log record, with
units in their names. ``FactsFormatter`` shows them in plain text. No observation holds a payload.

A line for each attempt would cost a third of the processor time. So a cause of failures is logged when it has not been
seen for ``CAUSE_S``, and what became of failed records as one line per handler and second. An error that lanes meet
again and again has a line at growing pauses, with how often it came (`observe.repeats`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final, get_args

from typing_extensions import override

from retryapp.core.causes import cause_id, cause_name
from retryapp.core.classify import DeadReason, Verdict
from retryapp.core.traces import qualified_name
from retryapp.lookup.instants import iso_text
from retryapp.ports import Event, Observation, Observer
from retryapp.runtime.observe.repeats import LaneFailures

EVENT_LOGGER: Final = "retryapp.events"  # name of the logger that observations go to

MAX_LOGGED_MESSAGE_CHARS: Final = 500  # error messages are cut to this many characters in a log line

EVENT_IDS: Final[Mapping[Event, tuple[str, int]]] = {
    Event.SUCCEEDED: ("retryapp.succeeded", logging.DEBUG),
    Event.SKIPPED: ("retryapp.skipped", logging.DEBUG),
    Event.COPY: ("retryapp.copy_passed", logging.DEBUG),
    Event.HELD: ("retryapp.held", logging.DEBUG),
    Event.STOPPED: ("retryapp.sequence_stopped", logging.ERROR),
    Event.SUPERSEDED: ("retryapp.superseded", logging.DEBUG),
    Event.FAILED: ("retryapp.attempt_failed", logging.DEBUG),  # its consequence follows
    Event.SCHEDULED: ("retryapp.retry_scheduled", logging.DEBUG),
    Event.DEFERRED: ("retryapp.deferred", logging.DEBUG),
    Event.DEAD: ("retryapp.dead_lettered", logging.ERROR),
    Event.DISCARDED: ("retryapp.discarded", logging.ERROR),
    Event.LETTER_FAILED: ("retryapp.letter_failed", logging.ERROR),
    Event.PUBLISHED: ("retryapp.published", logging.DEBUG),
    Event.DAMAGED: ("retryapp.damaged_input", logging.WARNING),
    Event.LANE_OPENED: ("retryapp.lane_opened", logging.INFO),
    Event.LANE_CLOSED: ("retryapp.lane_closed", logging.INFO),
    Event.LANE_FAILED: ("retryapp.lane_failed", logging.WARNING),
    Event.HAND_OFF_REFUSED: ("retryapp.hand_off_refused", logging.ERROR),
    Event.HAND_OFF_ACCEPTED: ("retryapp.hand_off_accepted", logging.INFO),
    Event.LANE_INCOMPLETE: ("retryapp.lane_incomplete", logging.WARNING),
    Event.REBALANCED: ("retryapp.rebalanced", logging.INFO),
    Event.CIRCUIT: ("retryapp.circuit", logging.WARNING),
    Event.PAUSED: ("retryapp.partition_paused", logging.ERROR),
    Event.SUSPECTED: ("retryapp.suspected", logging.WARNING),
}

NEW_CAUSE: Final = ("retryapp.new_cause", logging.WARNING)
SUMMARY: Final = ("retryapp.retries", logging.INFO)

CAUSE_S: Final = 600.0  # a cause of failures that was not seen for so long is logged
MOST_CAUSES: Final = 250  # causes that have a line in each `CAUSE_S`: messages may be free text
SUMMARY_S: Final = 1.0
MOST_DEAD_LINES: Final = 10  # dead letters of a handler that have a line of their own in each `SUMMARY_S`

_SUMMED: Final = {
    Event.SUCCEEDED: "succeeded",
    Event.SCHEDULED: "scheduled",
    Event.DEFERRED: "deferred",
    Event.DEAD: "dead",
    Event.DISCARDED: "discarded",
    Event.LETTER_FAILED: "letters_failed",
    Event.SKIPPED: "skipped",
}
_ENDS_OF_LANES: Final = frozenset({Event.LANE_OPENED, Event.LANE_CLOSED})
_DEADLY: Final = frozenset({Event.DEAD, Event.DISCARDED, Event.LETTER_FAILED})
_UNSHOWN: Final = "dead_without_line"
_DECIDED: Final = frozenset({DeadReason.REJECTED, DeadReason.NON_RETRYABLE})  # by handler or policy: no fault of ours

_VERDICTS: Final = frozenset(map(qualified_name, get_args(Verdict)))  # raised to decide: no fault to warn of

_RENAMED: Final = {"message": "error_message", "trace": "error_trace"}
_FIELDS: Final = {
    field.name: _RENAMED.get(field.name, field.name) for field in fields(Observation) if field.name != "event"
}
FACTS: Final = ("cause", "cause_id", *_FIELDS.values(), *_SUMMED.values(), _UNSHOWN)
"""Attributes that ``LogObserver`` sets on log records."""


class CombinedObserver(Observer):
    """Passes observations on to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self.parts: list[Observer] = []
        for observer in observers:  # each level of combined ones would be two more calls for each observation
            self.parts += observer.parts if isinstance(observer, CombinedObserver) else [observer]

    @override
    def observe(self, observation: Observation) -> None:
        for observer in self.parts:
            observer.observe(observation)


class LogObserver(Observer):
    """Logs observations; it needs a running event loop."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(EVENT_LOGGER)
        self._causes: dict[tuple[str, str | None], float] = {}  # when each was seen last, in that order
        self._sums: dict[str, Counter[str]] = {}
        self._lanes = LaneFailures()

    @override
    def observe(self, observation: Observation) -> None:
        event = observation.event
        event_id, level = EVENT_IDS[event]
        if event is Event.FAILED:
            self._note_cause(observation)
        elif event is Event.LANE_FAILED:
            if (count := self._lanes.failed(observation, time.monotonic())) is None:
                level = logging.DEBUG
            else:
                observation = replace(observation, count=count)
        elif event in _ENDS_OF_LANES:
            self._lanes.ended(observation.handler, observation.partition)
        elif event in _SUMMED and (event is not Event.SUCCEEDED or (observation.attempt or 1) > 1):
            sums = self._add(observation)
            if event in _DEADLY and sums[_SUMMED[event]] > MOST_DEAD_LINES:
                sums[_UNSHOWN] += 1
                return
            if event in _DEADLY and observation.reason in _DECIDED:
                level = logging.WARNING
        self._log(level, event_id, observation)

    def summarize(self) -> None:
        """Log what became of failed records since the last call."""
        sums, self._sums = self._sums, {}
        for handler, counts in sums.items():
            level = logging.WARNING if counts[_UNSHOWN] else SUMMARY[1]
            self._logger.log(level, SUMMARY[0], extra={"handler": handler, **+counts})

    def _add(self, observation: Observation) -> Counter[str]:
        if not self._sums:
            asyncio.get_running_loop().call_later(SUMMARY_S, self.summarize)
        sums = self._sums.setdefault(observation.handler, Counter())
        sums[_SUMMED[observation.event]] += observation.count
        return sums

    def _note_cause(self, failed: Observation) -> None:
        cause, now_s = (failed.handler, failed.fingerprint or failed.error_type), time.monotonic()
        seen_s = self._causes.pop(cause, None)
        if seen_s is None and len(self._causes) >= MOST_CAUSES:
            oldest = next(iter(self._causes))
            if now_s - self._causes[oldest] < CAUSE_S:
                return
            del self._causes[oldest]
        self._causes[cause] = now_s
        if seen_s is None or now_s - seen_s >= CAUSE_S:
            name = cause_name(failed.error_type or "?", failed.place, failed.message or "")
            self._log(
                logging.INFO if failed.error_type in _VERDICTS else NEW_CAUSE[1], NEW_CAUSE[0], failed, cause=name
            )

    def _log(self, level: int, event_id: str, observation: Observation, **more: str) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event_id, extra=_facts(observation) | more)


def _facts(observation: Observation) -> dict[str, object]:
    facts = {shown: value for name, shown in _FIELDS.items() if (value := getattr(observation, name)) is not None}
    message = observation.message
    if observation.fingerprint is not None:
        facts["cause_id"] = cause_id(observation.error_type or "", observation.fingerprint, message or "")
    if message is not None and len(message) > MAX_LOGGED_MESSAGE_CHARS:
        facts["error_message"] = message[:MAX_LOGGED_MESSAGE_CHARS] + "..."
    if observation.reason == DeadReason.UNDECODABLE or observation.reason in _DECIDED:
        facts.pop("error_trace", None)  # decoders quote what they got: that is payload
    return facts


class FactsFormatter(logging.Formatter):
    """Appends the facts of our log records to another formatter's line; the traceback follows on lines of its own.

    Texts with more than plain characters are quoted: nothing in a record can forge a line.
    """

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = logging.Formatter() if inner is None else inner

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = self._inner.format(record)
        if record.name != EVENT_LOGGER:
            return line
        facts = {name: getattr(record, name) for name in FACTS if hasattr(record, name)}
        trace = facts.pop("error_trace", None)
        if facts.get("count") == 1:
            del facts["count"]
        if "due_at_ms" in facts:
            facts["due_at"] = iso_text(facts.pop("due_at_ms"))
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in facts.items())
        below = "" if trace is None else "\n" + "\n".join(f"    {_plain(part)}" for part in str(trace).splitlines())
        return f"{line} {shown}{below}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else repr(text)
