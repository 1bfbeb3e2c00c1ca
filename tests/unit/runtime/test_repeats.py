"""Log lines that repeat: shown once per interval, with their number."""

from __future__ import annotations

import logging

import pytest
from mode.utils.logging import ExtensionFormatter

from retryapp.runtime.observe import repeats
from retryapp.runtime.observe.repeats import Seldom


def test_the_same_line_comes_once_in_a_while_with_its_count() -> None:
    """The first at once, the next after the interval; other lines are not held back by it."""
    now_s, formatter = 0.0, ExtensionFormatter(fmt="%(message)s")  # that of a worker
    seldom, shown = Seldom(30.0, lambda: now_s), []

    def say(topic: str) -> None:
        line = logging.LogRecord("aiokafka.cluster", logging.ERROR, "", 0, "Topic %s not found", (topic,), None)
        if seldom.filter(line):
            shown.append(formatter.format(line))

    for _ in range(5):
        say("a")
    say("b")
    assert shown == ["Topic a not found", "Topic b not found"]
    now_s = 29.9
    say("a")
    now_s = 31.0
    say("a")
    say("b")
    assert shown[2:] == ["Topic a not found (5 times more in the last 31 s)", "Topic b not found"]


@pytest.mark.parametrize("name", ["aiokafka", "aiokafka.consumer.fetcher", "aiokafka.producer.sender"])
def test_all_of_the_client_library_is_held_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped broker makes each of its parts repeat itself; twice installed is once."""
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "filters", [])
    repeats.install()
    repeats.install()
    (seldom,) = logger.filters
    assert isinstance(seldom, Seldom)
