"""Logs of what happens to records."""

from __future__ import annotations

import logging
from dataclasses import fields, replace

import pytest

from retryapp.ports import Event, Observation
from retryapp.runtime.observe.observers import EVENT_IDS, EVENT_LOGGER, FACTS, FactsFormatter, LogObserver

SCHEDULED = Observation(
    event=Event.SCHEDULED,
    handler="orders",
    topic="orders",
    partition=3,
    offset=1042,
    failure_id="billing/orders@kq8G0bTz/3/1042",
    attempt=1,
    tier="5m",
    due_at_ms=1_760_000_300_000,
    error_class="retryable",
    error_type="httpx.ReadTimeout",
    message="timed out",
)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture everything."""
    caplog.set_level(logging.DEBUG, logger=EVENT_LOGGER)
    return caplog


def test_every_event_has_an_id_and_a_level() -> None:
    """A new event cannot be forgotten; ids are constant and distinct."""
    assert set(EVENT_IDS) == {event for event in Event if event.value != "copy_dropped"}
    ids = [event_id for event_id, _ in EVENT_IDS.values()]
    assert len(ids) == len(set(ids))
    assert all(event_id.startswith("retryapp.") for event_id in ids)


def test_the_message_is_the_event_id_and_facts_are_attributes(logged: pytest.LogCaptureFixture) -> None:
    """Units stand in the names; what does not apply is absent."""
    LogObserver().observe(SCHEDULED)
    (record,) = logged.records
    assert (record.message, record.levelno, record.name) == ("retryapp.retry_scheduled", logging.INFO, EVENT_LOGGER)
    facts = {"topic": "orders", "partition": 3, "due_at_ms": 1_760_000_300_000, "error_message": "timed out"}
    assert facts.items() <= record.__dict__.items()
    assert not hasattr(record, "lateness_ms")


def test_every_fact_of_every_event_can_be_logged(logged: pytest.LogCaptureFixture) -> None:
    """No fact's name is taken in a log record (logging would raise)."""
    every = {field.name: 1 for field in fields(Observation) if field.name not in {"event", "message", "trace"}}
    for event in EVENT_IDS:
        LogObserver().observe(Observation(event=event, message="m", trace="t", **every))  # type: ignore[arg-type]
    assert len(logged.records) == len(EVENT_IDS)
    assert all(hasattr(record, name) for record in logged.records for name in FACTS)


def test_a_success_is_shown_when_it_is_a_retrys(logged: pytest.LogCaptureFixture) -> None:
    """First attempts that succeed would flood the log."""
    for attempt in (1, 2):
        LogObserver().observe(Observation(event=Event.SUCCEEDED, handler="orders", attempt=attempt))
    assert [record.levelno for record in logged.records] == [logging.DEBUG, logging.INFO]


def test_the_trace_of_a_decoder_is_not_logged(logged: pytest.LogCaptureFixture) -> None:
    """Decoders quote the value in their errors; other traces are logged once, with the dead letter."""
    dead = replace(SCHEDULED, event=Event.DEAD, trace="ValidationError: input_value=b'secret'")
    LogObserver().observe(replace(dead, reason="undecodable"))
    LogObserver().observe(replace(dead, reason="exhausted"))
    assert [hasattr(record, "error_trace") for record in logged.records] == [False, True]


def test_facts_can_be_shown_behind_the_line(logged: pytest.LogCaptureFixture) -> None:
    """Plain text for people; the traceback comes last; nothing a record brings forges a line."""
    LogObserver().observe(
        replace(
            SCHEDULED,
            event=Event.DEAD,
            message="no\nERROR forged",
            trace='File "a.py"\n  boom\x1b[2J',
            reason="exhausted",
        )
    )
    text = FactsFormatter(logging.Formatter("%(levelname)s %(message)s")).format(logged.records[0])
    first, *trace = text.split("\n")
    assert first.startswith("ERROR retryapp.dead_lettered handler=orders topic=orders partition=3 offset=1042 ")
    assert "reason=exhausted" in first
    assert "error_message='no\\nERROR forged'" in first
    assert "count=" not in first
    assert trace == ['    File "a.py"', "      boom\\x1b[2J"]
