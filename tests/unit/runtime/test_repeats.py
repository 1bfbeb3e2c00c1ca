"""Lines that repeat: shown once in a while, with how often they were said."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from retryapp.runtime.repeats import Seldom


@dataclass
class _Ticker:
    """Seconds, as told."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def ticker() -> _Ticker:
    """Time at zero."""
    return _Ticker()


@pytest.fixture
def shown(ticker: _Ticker) -> list[str]:
    """Lines that pass; say them with the logger `repeats`."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("tests.repeats")
    logger.handlers, logger.filters = [Keep()], [Seldom(30.0, ticker)]
    return lines


def say(topic: str) -> None:
    """Say a line of the client library."""
    logging.getLogger("tests.repeats").error("Topic %s not found", topic)


def test_the_same_line_comes_once_in_a_while_with_its_count(shown: list[str], ticker: _Ticker) -> None:
    """The first at once, the next after the rest; others are not held back by it."""
    for _ in range(5):
        say("a")
    say("b")
    assert shown == ["Topic a not found", "Topic b not found"]
    ticker.now_s = 29.9
    say("a")
    ticker.now_s = 31.0
    say("a")
    say("b")
    assert shown[2:] == ["Topic a not found (5 times more in the last 31 s)", "Topic b not found"]
