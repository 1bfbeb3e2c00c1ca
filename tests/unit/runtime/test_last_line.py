"""What libraries log of a refusal that a line of ours names."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, InconsistentGroupProtocolError, TopicAuthorizationFailedError

from retryapp.runtime.worker import LastLine

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
