"""Limits log lines that repeat: without a broker the client library logs 70 a second, without a topic 190."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from typing_extensions import override

from retryapp.core.text import counted

EVERY_S: Final = 60.0  # how often the same line is shown
LOGGERS: Final = (
    "retryapp.runtime.app",
    "retryapp.runtime.faust.consumer",
    "retryapp.runtime.faust.consumer_thread",
)
LIBRARY: Final = "aiokafka"
"""Loggers whose lines repeat while a broker or a topic is missing, or may not be read; of the library all."""
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


def install() -> None:
    """Filter those loggers; safe to call twice."""
    for name in (*LOGGERS, *(name for name in logging.root.manager.loggerDict if name.split(".")[0] == LIBRARY)):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in logger.filters):
            logger.addFilter(Seldom())
