"""Logs what happens to records: one line per observation.

The message is a constant event id (``retryapp.retry_scheduled``); the facts are attributes of the log record, with
units in their names. ``FactsFormatter`` shows them in plain text. No observation holds a payload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from typing_extensions import override

from retryapp.core.classify import DeadReason
from retryapp.ports import Event, Observation, Observer

EVENT_LOGGER: Final = "retryapp.events"  # name of the logger that observations go to

MAX_LOGGED_MESSAGE_CHARS: Final = 500  # error messages are cut to this many characters in a log line

EVENT_IDS: Final[Mapping[Event, tuple[str, int]]] = {
    Event.SUCCEEDED: ("retryapp.succeeded", logging.DEBUG),
    Event.SKIPPED: ("retryapp.duplicate_skipped", logging.INFO),
    Event.FAILED: ("retryapp.attempt_failed", logging.DEBUG),  # its consequence follows, at its own level
    Event.SCHEDULED: ("retryapp.retry_scheduled", logging.INFO),
    Event.DEAD: ("retryapp.dead_lettered", logging.ERROR),
    Event.PARKED: ("retryapp.parked", logging.DEBUG),
    Event.FIRED: ("retryapp.fired", logging.DEBUG),
    Event.PUBLISHED: ("retryapp.published", logging.DEBUG),
    Event.DAMAGED: ("retryapp.damaged_input", logging.WARNING),
    Event.LANE_OPENED: ("retryapp.lane_opened", logging.INFO),
    Event.LANE_CLOSED: ("retryapp.lane_closed", logging.INFO),
    Event.LANE_FAILED: ("retryapp.lane_failed", logging.WARNING),
    Event.LANE_INCOMPLETE: ("retryapp.lane_incomplete", logging.WARNING),
    Event.REBALANCED: ("retryapp.rebalanced", logging.INFO),
}

_RENAMED: Final = {"message": "error_message", "trace": "error_trace"}
_FIELDS: Final = {
    field.name: _RENAMED.get(field.name, field.name) for field in fields(Observation) if field.name != "event"
}
FACTS: Final = tuple(_FIELDS.values())
"""Attributes that ``LogObserver`` sets on log records."""


class CombinedObserver(Observer):
    """Passes observations on to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    @override
    def observe(self, observation: Observation) -> None:
        for observer in self._observers:
            observer.observe(observation)


class LogObserver(Observer):
    """Logs observations, a success at INFO if it is a retry's (attempt 2 or later)."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger(EVENT_LOGGER) if logger is None else logger

    @override
    def observe(self, observation: Observation) -> None:
        event_id, level = EVENT_IDS[observation.event]
        if observation.event is Event.SUCCEEDED and (observation.attempt or 1) > 1:
            level = logging.INFO
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event_id, extra=_facts(observation))


def _facts(observation: Observation) -> dict[str, object]:
    facts = {shown: value for name, shown in _FIELDS.items() if (value := getattr(observation, name)) is not None}
    message = observation.message
    if message is not None and len(message) > MAX_LOGGED_MESSAGE_CHARS:
        facts["error_message"] = message[:MAX_LOGGED_MESSAGE_CHARS] + "..."
    if observation.reason == DeadReason.UNDECODABLE:
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
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in facts.items())
        below = "" if trace is None else "\n" + "\n".join(f"    {_plain(part)}" for part in str(trace).splitlines())
        return f"{line} {shown}{below}"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _quoted(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text and '"' not in text else repr(text)
