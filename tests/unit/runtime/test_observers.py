"""Logs of what happens to records."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import fields, replace
from itertools import pairwise

import pytest

from retryapp.core.causes import cause_id
from retryapp.ports import Event, Observation
from retryapp.runtime.observe import observers
from retryapp.runtime.observe.observers import (
    EVENT_IDS,
    EVENT_LOGGER,
    FACTS,
    NEW_CAUSE,
    SUMMARY,
    FactsFormatter,
    LogObserver,
)

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
    caplog.set_level(logging.DEBUG, logger=EVENT_LOGGER)
    return caplog


@pytest.fixture
async def observer() -> LogObserver:
    """An observer on the test's event loop."""
    return LogObserver()


def test_every_event_has_an_id_and_a_level() -> None:
    """A new event cannot be forgotten; ids are constant and distinct."""
    assert set(EVENT_IDS) == set(Event)
    ids = [event_id for event_id, _ in EVENT_IDS.values()]
    assert len(ids) == len(set(ids))
    assert all(event_id.startswith("retryapp.") for event_id in ids)


async def test_the_message_is_the_event_id_and_facts_are_attributes(
    observer: LogObserver, logged: pytest.LogCaptureFixture
) -> None:
    """Units stand in the names; what does not apply is absent."""
    observer.observe(SCHEDULED)
    (record,) = logged.records
    assert (record.message, record.levelno, record.name) == ("retryapp.retry_scheduled", logging.DEBUG, EVENT_LOGGER)
    facts = {"topic": "orders", "partition": 3, "due_at_ms": 1_760_000_300_000, "error_message": "timed out"}
    assert facts.items() <= record.__dict__.items()
    assert not hasattr(record, "lateness_ms")


async def test_every_fact_of_every_event_can_be_logged(observer: LogObserver, logged: pytest.LogCaptureFixture) -> None:
    """No fact's name is taken in a log record (logging would raise)."""
    every = {field.name: 1 for field in fields(Observation) if field.name not in {"event", "message", "trace"}}
    every |= {"error_type": "E", "fingerprint": "f", "attempt": 2}  # type: ignore[dict-item]
    for event in EVENT_IDS:
        observer.observe(Observation(event=event, message="m", trace="t", **every))  # type: ignore[arg-type]
    observer.summarize()
    assert {record.message for record in logged.records} == {
        name for name, _ in (*EVENT_IDS.values(), NEW_CAUSE, SUMMARY)
    }
    assert all(any(hasattr(record, name) for record in logged.records) for name in {*FACTS} - {"dead_without_line"})


async def test_an_attempt_has_no_line_at_info_but_its_cause_has(
    observer: LogObserver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure with a cause that was not seen for ten minutes names an example."""
    start_s = time.monotonic()
    caplog.set_level(logging.INFO, logger=EVENT_LOGGER)
    for n in range(100):
        for event in (Event.FAILED, Event.SCHEDULED):
            observer.observe(
                replace(SCHEDULED, event=event, offset=n, fingerprint="f1", place="billing.py:3 in charge")
            )
    (cause,) = caplog.records
    assert (cause.message, cause.levelno) == NEW_CAUSE
    shown = {"error_message": "timed out", "cause": "httpx.ReadTimeout at billing.py:3 in charge: timed out"}
    assert (shown | {"offset": 0}).items() <= cause.__dict__.items()
    failed = replace(SCHEDULED, event=Event.FAILED)
    for now_s, fingerprint, lines in (
        (0.0, "f2", 2),
        (599.0, "f2", 2),
        (1198.0, "f2", 2),
        (1798.5, "f2", 3),  # not 1798: the difference of two readings of a clock is rounded
        (1799.0, "f1", 4),
    ):
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: start_s + now_s)
        observer.observe(replace(failed, fingerprint=fingerprint))
        assert len(caplog.records) == lines


async def test_a_new_cause_is_named(observer: LogObserver, logged: pytest.LogCaptureFixture) -> None:
    """By type, place and template; the message is beside it as it was."""
    message = "flight 17 of 'UA' is late"
    observer.observe(replace(SCHEDULED, event=Event.FAILED, place="app.py:7 in f", message=message, fingerprint="f"))
    line = FactsFormatter().format(logged.records[0])
    assert "cause='httpx.ReadTimeout at app.py:7 in f: flight <number> of <text> is late'" in line
    assert f'error_message="{message}"' in line
    assert f"cause_id={cause_id('httpx.ReadTimeout', 'f', message)} " in line, "what commands and lists take"


async def test_free_text_makes_no_flood_of_causes(
    observer: LogObserver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many have a line in ten minutes; one that goes on is no new one for all that."""
    caplog.set_level(logging.INFO, logger=EVENT_LOGGER)
    now_s = 1_000.0  # sums of whole numbers are exact
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    failed = replace(SCHEDULED, event=Event.FAILED)
    for n in range(3 * observers.MOST_CAUSES):
        observer.observe(replace(failed, fingerprint="steady"))
        observer.observe(replace(failed, fingerprint=f"f{n}"))
    assert len(caplog.records) == observers.MOST_CAUSES
    now_s += observers.CAUSE_S - 1
    observer.observe(replace(failed, fingerprint="steady"))
    assert len(caplog.records) == observers.MOST_CAUSES
    now_s += 1
    for n in range(5, 8):
        observer.observe(replace(failed, fingerprint=f"new{n}"))
    observer.observe(replace(failed, fingerprint="steady"))
    assert len(caplog.records) == observers.MOST_CAUSES + 3, "what has gone makes room"


NO_ANSWER = Observation(
    event=Event.LANE_FAILED,
    handler="orders",
    partition=0,
    error_type="TimeoutError",
    message="opening it took longer than 30 s",
)


async def test_lanes_that_cannot_open_have_one_line_at_growing_pauses(
    observer: LogObserver, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them had one every 35 seconds, as long as no broker answered; at DEBUG it has."""
    shown: list[tuple[float, int]] = []
    for seconds in range(0, 1_800, 35):
        monkeypatch.setattr("time.monotonic", lambda now_s=float(seconds): now_s)
        logged.clear()
        for partition in range(4):
            observer.observe(replace(NO_ANSWER, partition=partition))
        assert len(logged.records) == 4
        shown += [(seconds, record.__dict__["count"]) for record in logged.records if record.levelno >= logging.INFO]
    times = [at_s for at_s, _ in shown]
    assert times[:6] == [0, 35, 70, 140, 245, 420]
    assert max(later - sooner for sooner, later in pairwise(times)) <= 300 + 35
    assert shown[:3] == [(0, 1), (35, 4), (70, 4)], "the others of that round, and the first of this"


@pytest.mark.parametrize("other", [{"message": "no leader"}, {"error_type": "OSError"}])
async def test_another_error_of_a_lane_is_not_held_back(
    observer: LogObserver, caplog: pytest.LogCaptureFixture, other: dict[str, str]
) -> None:
    """Nor is the same one once the lanes that had it have opened, or have left."""
    caplog.set_level(logging.WARNING, logger=EVENT_LOGGER)
    for failure in (NO_ANSWER, replace(NO_ANSWER, partition=1), replace(NO_ANSWER, **other)):  # type: ignore[arg-type]
        observer.observe(failure)
    assert len(caplog.records) == 2
    observer.observe(Observation(event=Event.LANE_OPENED, handler="orders", partition=0))
    observer.observe(NO_ANSWER)
    assert len(caplog.records) == 2, "the other lane still has it"
    for event, partition in ((Event.LANE_OPENED, 0), (Event.LANE_CLOSED, 1)):
        observer.observe(Observation(event=event, handler="orders", partition=partition))
    observer.observe(NO_ANSWER)
    assert len(caplog.records) == 3


async def test_an_error_of_a_lane_that_comes_again_much_later_is_shown_at_once(
    observer: LogObserver, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lane was taken away while it opened, which has no event: a day later the count was that of yesterday."""
    shown: list[tuple[int, int]] = []
    day_s = 86_400
    for partition, seconds in ((0, 0), (0, 5), (1, day_s), (1, day_s + 5), (1, day_s + 11)):
        monkeypatch.setattr("time.monotonic", lambda now_s=float(seconds): now_s)
        logged.clear()
        observer.observe(replace(NO_ANSWER, partition=partition))
        shown += [(seconds, record.__dict__["count"]) for record in logged.records if record.levelno >= logging.INFO]
    assert shown == [(0, 1), (day_s, 1), (day_s + 11, 2)], "the pauses begin anew too"


async def test_a_second_is_summed_up_in_one_line_for_each_handler(
    observer: LogObserver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there was something; first deliveries that succeed are not."""
    caplog.set_level(logging.INFO, logger=EVENT_LOGGER)
    done = Observation(event=Event.SUCCEEDED, handler="orders", attempt=1, count=500)
    monkeypatch.setattr(observers, "SUMMARY_S", 0.0)
    observer.observe(done)
    await asyncio.sleep(0.001)
    for _ in range(3):
        observer.observe(replace(done, attempt=2, count=1))
        observer.observe(SCHEDULED)
    observer.observe(replace(SCHEDULED, handler="other"))
    assert caplog.records == []
    await asyncio.sleep(0.001)
    mine, others = (record.__dict__ for record in caplog.records)
    assert {"handler": "orders", "succeeded": 3, "scheduled": 3}.items() <= mine.items()
    assert {"handler": "other", "scheduled": 1}.items() <= others.items()
    assert "succeeded" not in others
    line = FactsFormatter(logging.Formatter("%(levelname)s %(message)s")).format(caplog.records[0])
    assert line == "INFO retryapp.retries handler=orders succeeded=3 scheduled=3"
    observer.summarize()
    assert len(caplog.records) == 2, "nothing came"
    observer.observe(SCHEDULED)
    await asyncio.sleep(0.001)
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("event", "line", "sum_"),
    [
        (Event.DEAD, "retryapp.dead_lettered", "dead"),
        (Event.DISCARDED, "retryapp.discarded", "discarded"),
        (Event.LETTER_FAILED, "retryapp.letter_failed", "letters_failed"),
    ],
)
async def test_dead_letters_have_a_line_each_unless_they_are_many(
    event: Event, line: str, sum_: str, observer: LogObserver, caplog: pytest.LogCaptureFixture
) -> None:
    """The sum says how many had none, also to those who see warnings only."""
    caplog.set_level(logging.WARNING, logger=EVENT_LOGGER)
    for n in range(25):
        observer.observe(replace(SCHEDULED, event=event, reason="exhausted", offset=n))
    observer.summarize()
    *lines, total = caplog.records
    assert [record.message for record in lines] == [line] * 10
    assert (total.levelno, total.__dict__[sum_], total.__dict__["dead_without_line"]) == (logging.WARNING, 25, 15)


@pytest.mark.parametrize("reason", ["rejected", "non-retryable"])
async def test_what_handler_or_policy_decided_is_no_error(
    reason: str, observer: LogObserver, logged: pytest.LogCaptureFixture
) -> None:
    """Its line has no traceback, and `Reject` is no cause to warn of."""
    rejected = replace(SCHEDULED, error_type="retryapp.Reject", reason=reason, trace="File ...")
    observer.observe(replace(rejected, event=Event.FAILED, reason=None, trace=None))
    observer.observe(replace(rejected, event=Event.DEAD))
    assert [(record.message, record.levelno) for record in logged.records] == [
        ("retryapp.new_cause", logging.INFO),
        ("retryapp.attempt_failed", logging.DEBUG),
        ("retryapp.dead_lettered", logging.WARNING),
    ]
    assert not hasattr(logged.records[-1], "error_trace")


async def test_a_handler_that_took_too_long_has_decided_nothing(
    observer: LogObserver, logged: pytest.LogCaptureFixture
) -> None:
    """Although its error has a public name, as verdicts have."""
    observer.observe(replace(SCHEDULED, event=Event.FAILED, error_type="retryapp.HandlerTimeoutError"))
    assert (logged.records[0].message, logged.records[0].levelno) == ("retryapp.new_cause", logging.WARNING)


async def test_people_read_due_times_as_times(observer: LogObserver, logged: pytest.LogCaptureFixture) -> None:
    """Programs get milliseconds."""
    observer.observe(SCHEDULED)
    line = FactsFormatter().format(logged.records[0])
    assert "due_at=2025-10-09T08:58:20.000Z" in line
    assert "due_at_ms" not in line
    assert logged.records[0].__dict__["due_at_ms"] == 1_760_000_300_000


async def test_the_trace_of_a_decoder_is_not_logged(observer: LogObserver, logged: pytest.LogCaptureFixture) -> None:
    """Decoders quote the value in their errors; other traces are logged once, with the dead letter."""
    dead = replace(SCHEDULED, event=Event.DEAD, trace="ValidationError: input_value=b'secret'")
    observer.observe(replace(dead, reason="undecodable"))
    observer.observe(replace(dead, reason="exhausted"))
    assert [hasattr(record, "error_trace") for record in logged.records] == [False, True]


async def test_facts_can_be_shown_behind_the_line(observer: LogObserver, logged: pytest.LogCaptureFixture) -> None:
    """Plain text for people; the traceback comes last; nothing a record brings forges a line."""
    observer.observe(
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
