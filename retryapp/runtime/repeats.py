"""Log lines that say the same again and again.

With one of our changelogs deleted the client library names it at each of its tries, for each producer: 190 lines a
second with four partitions (measured). One in half a minute tells as much.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 30.0
"""How often the same line is shown."""

LOGGERS: Final = ("aiokafka.cluster", "retryapp.runtime.consumer")
"""Whose lines repeat for as long as a topic is away."""

_MOST_LINES: Final = 1_000
"""So many different lines are remembered; beyond that all are forgotten, and shown once more."""


class Seldom(logging.Filter):
    """Shows a line once in a while, and how often it was said meanwhile."""

    def __init__(self, every_s: float = EVERY_S, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Args: every_s: how often the same line is shown; clock_s: seconds that only grow."""
        super().__init__()
        self._every_s = every_s
        self._clock_s = clock_s
        self._said: dict[str, tuple[float, int]] = {}  # line -> when it was shown, how often it was not since

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to show it."""
        line, now_s = record.getMessage(), self._clock_s()
        shown_s, hidden = self._said.get(line, (None, 0))
        if shown_s is not None and now_s - shown_s < self._every_s:
            self._said[line] = (shown_s, hidden + 1)
            return False
        if len(self._said) >= _MOST_LINES:
            self._said.clear()
        self._said[line] = (now_s, 0)
        if hidden:
            record.msg, record.args = (
                f"{line} (said {hidden} times more in the last {now_s - (shown_s or 0):.0f} s)",
                None,
            )
        return True


def install() -> None:
    """Have those loggers say the same once in a while; safe to call twice."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in logger.filters):
            logger.addFilter(Seldom())
