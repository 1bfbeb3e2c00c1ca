"""Limits log lines that repeat: without a broker the client library logs 70 a second, without a topic 190."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from retryapp.core.text import counted
from retryapp.ports import Observation

EVERY_S: Final = 60.0  # how often the same line is shown
LOGGERS: Final = (
    "retryapp.runtime.app",
    "retryapp.runtime.faust.consumer",
    "retryapp.runtime.faust.consumer_thread",
)
LIBRARY: Final = "aiokafka"
"""Loggers whose lines repeat while a broker or a topic is missing, or may not be read; of the library all."""
FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 300.0
"""Pauses between lines about one error of lanes: the first, doubled up to the longest."""
_MOST_LINES: Final = 1_000  # different lines that are remembered; after that all are forgotten and shown again


class Seldom(logging.Filter):
    """Shows a line at most once per interval, with how often it came meanwhile."""

    def __init__(self, every_s: float = EVERY_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock_s = clock_s
        self._shown: dict[str, tuple[float, int]] = {}  # line -> when it was shown, how often it was hidden since

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        line, now_s = record.getMessage(), self._clock_s()
        shown_s, hidden = self._shown.get(line, (None, 0))
        if shown_s is not None and now_s - shown_s < self._every_s:
            self._shown[line] = (shown_s, hidden + 1)
            return False
        if len(self._shown) >= _MOST_LINES:
            self._shown.clear()
        self._shown[line] = (now_s, 0)
        if hidden:
            record.msg = f"{line} ({counted(hidden, 'time')} more in the last {now_s - (shown_s or 0):.0f} s)"
            record.args = ()  # not None: the formatter of Faust's workers takes that for an argument
        return True


@dataclass(slots=True)
class _Cause:
    """An error of lanes that goes on."""

    next_s: float
    """When it is shown again."""
    pause_s: float = FIRST_PAUSE_S
    hidden: int = 0
    lanes: set[tuple[str, int | None]] = field(default_factory=set)
    """Those that have failed with it and have not opened since."""


class LaneFailures:
    """Shows an error of lanes once for all of them, and again after pauses that grow: each lane opens again and again.

    Once none of its lanes has it any more, its next failure is shown at once.
    """

    def __init__(self) -> None:
        self._causes: dict[tuple[str | None, str | None], _Cause] = {}

    def failed(self, failure: Observation, now_s: float) -> int | None:
        """Take a failure; return how many the line about it stands for, None: it has none."""
        name = failure.error_type, failure.message
        cause = self._causes.get(name)
        # a lane fails far more often than this, but one that is taken away while it opens does not say so
        if cause is None or now_s > cause.next_s + LONGEST_PAUSE_S:
            if len(self._causes) >= _MOST_LINES:
                self._causes.clear()
            cause = self._causes[name] = _Cause(now_s)
        cause.lanes.add((failure.handler, failure.partition))
        if now_s < cause.next_s:
            cause.hidden += 1
            return None
        count, cause.hidden = cause.hidden + 1, 0
        cause.next_s, cause.pause_s = now_s + cause.pause_s, min(2 * cause.pause_s, LONGEST_PAUSE_S)
        return count

    def ended(self, handler: str, partition: int | None) -> None:
        """Note that a lane has opened, or has left."""
        for name, cause in [*self._causes.items()]:
            cause.lanes.discard((handler, partition))
            if not cause.lanes:
                del self._causes[name]


def install() -> None:
    """Filter those loggers; safe to call twice."""
    for name in (*LOGGERS, *(name for name in logging.root.manager.loggerDict if name.split(".")[0] == LIBRARY)):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in logger.filters):
            logger.addFilter(Seldom())
