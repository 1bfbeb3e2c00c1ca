"""What a worker leaves out of libraries' log lines: repetitions, and refusals that a line of ours names."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, InconsistentGroupProtocolError, TopicAuthorizationFailedError
from mode.utils.logging import ExtensionFormatter

from retryapp.runtime.observe import repeats
from retryapp.runtime.observe.repeats import Seldom
from retryapp.runtime.worker import LastLine


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


# -- refusals ----------------------------------------------------------------------------------------------------------

GROUP, TOPIC = GroupAuthorizationFailedError("g"), TopicAuthorizationFailedError()
CLOSED = RuntimeError("Event loop is closed")


def line(name: str, level: int, error: BaseException | None = None, *args: Any) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, None)
    return logging.LogRecord(name, level, "", 0, "it raised" + " %s" * len(args), args, exc_info)


@pytest.mark.parametrize(
    ("name", "level", "error", "crash", "shown"),
    [
        ("faust.transport.consumer", logging.ERROR, GROUP, None, False),
        ("retryapp.runtime.faust.consumer", logging.ERROR, CLOSED, GROUP, False),
        ("retryapp.runtime.worker", logging.CRITICAL, None, InconsistentGroupProtocolError(), False),
        ("aiokafka.producer.sender", logging.ERROR, TOPIC, None, False),
        ("faust.transport.consumer", logging.ERROR, CLOSED, None, True),
        ("faust.transport.consumer", logging.ERROR, TOPIC, CLOSED, True),
        ("faust.transport.consumer", logging.WARNING, None, GROUP, True),
        ("retryapp.events", logging.ERROR, CLOSED, GROUP, True),
        ("retryapp.runtime.app", logging.CRITICAL, None, GROUP, True),
        ("retryapp.runtime.app", logging.ERROR, GROUP, None, True),
        ("billing.orders", logging.ERROR, GROUP, GROUP, True),
    ],
)
def test_only_our_line_names_a_refusal(
    name: str, level: int, error: BaseException | None, crash: BaseException | None, shown: bool
) -> None:
    """Tracebacks came before it; of other errors, of records and of the user's own they stay."""
    assert LastLine(lambda: crash).filter(line(name, level, error)) is shown


def test_a_debug_level_shows_all(caplog: pytest.LogCaptureFixture) -> None:
    """Who debugs wants to see where it was raised."""
    refused = line("aiokafka.producer.sender", logging.ERROR, None, 3, TopicAuthorizationFailedError)
    last_line = LastLine(lambda: None)
    assert not last_line.filter(refused)
    with caplog.at_level(logging.DEBUG):
        assert last_line.filter(refused)
