"""Logs of what happens to records, and an observer that tells several. Metrics: `runtime.metrics`.

* ``LogObserver`` writes one line an observation with the standard library's logging. The message is a constant event id
  (``retryapp.retry_scheduled``); the facts are attributes of the log record, with units in their names, so that any
  structured formatter finds them. ``FactsFormatter`` shows them behind the message for those who read plain text.

No observation holds a payload. Error messages are the exception's own text, cut to ``MAX_LOGGED_MESSAGE_CHARS``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from retryapp.core.classify import DeadReason
from retryapp.ports import Event, Observation, Observer

EVENT_LOGGER: Final = "retryapp.events"
"""Name of the logger that observations go to."""

MAX_LOGGED_MESSAGE_CHARS: Final = 500
"""Error messages are cut to this many characters in a log line."""

EVENT_IDS: Final[Mapping[Event, tuple[str, int]]] = {
    Event.SUCCEEDED: ("retryapp.succeeded", logging.DEBUG),
    Event.SKIPPED: ("retryapp.duplicate_skipped", logging.INFO),
    Event.FAILED: (
        "retryapp.attempt_failed",
        logging.DEBUG,
    ),  # what is done about it follows, at its own level
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
"""Message and level of each event."""

_RENAMED: Final = {"message": "error_message", "trace": "error_trace"}
"""Facts whose own name is taken in a log record, or would say too little there."""

FACTS: Final = tuple(_RENAMED.get(field.name, field.name) for field in fields(Observation) if field.name != "event")
"""Names of the attributes that ``LogObserver`` sets on log records, in a fixed order."""


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
