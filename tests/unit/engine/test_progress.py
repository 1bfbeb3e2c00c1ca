"""Which prefix of offsets has an outcome, what was counted, and how many fired records are on their way."""

from __future__ import annotations

from typing import Any

import pytest
from doubles import make_station

from retryapp.core.lifecycle import Progress, decode_event
from retryapp.core.tally import Tally
from retryapp.engine.firing import Ahead
from retryapp.engine.progress import Counting, OffsetWindow
from retryapp.engine.turn import Turn
from retryapp.ports import TopicPartition

MAIN = TopicPartition("orders", 0)


def window(*offsets: int) -> OffsetWindow[str]:
    """Return a window with these records in work."""
    made: OffsetWindow[str] = OffsetWindow()
    for offset in offsets:
        made.add(offset, 10)
    return made


def test_outcomes_come_out_in_offset_order_whatever_the_order_of_finishing() -> None:
    """Nothing passes a record that is still in work."""
    made = window(1, 2, 3)
    made.finish(3, "c")
    assert made.release() == []
    made.finish(1, "a")
    assert made.release() == ["a"]
    made.finish(2, "b")
    assert made.release() == ["b", "c"]
    assert made.release() == []


def test_gaps_in_offsets_hold_nothing_up() -> None:
    """Transaction markers and compaction leave gaps."""
    made = window(5, 900, 901)
    for offset in (5, 900):
        made.finish(offset, str(offset))
    assert made.release() == ["5", "900"]


def test_size_and_number_are_those_of_what_is_not_released() -> None:
    """A finished record behind an open one still holds its memory."""
    made = window(1, 2, 3)
    made.finish(2, "b")
    made.release()
    assert (len(made), made.bytes) == (3, 30)
    made.finish(1, "a")
    made.release()
    assert (len(made), made.bytes) == (1, 10)


@pytest.mark.parametrize("offset", [0, 4, 5])
def test_a_record_out_of_order_is_refused(offset: int) -> None:
    """Twice the same, or an older one: the source is at fault, and skipping would lose records."""
    made = window(5)
    with pytest.raises(ValueError, match=f"offset {offset} after 5"):
        made.add(offset)


def test_a_released_record_does_not_come_in_again() -> None:
    """The order is remembered when the window is empty."""
    made = window(5)
    made.finish(5, "a")
    made.release()
    with pytest.raises(ValueError, match="in order"):
        made.add(5)


def test_an_outcome_of_an_unknown_record_is_refused() -> None:
    """As is a second outcome."""
    made = window(5)
    with pytest.raises(KeyError):
        made.finish(6, "x")
    made.finish(5, "a")
    with pytest.raises(KeyError):
        made.finish(5, "b")


@pytest.fixture
def counting() -> Counting:
    """A session that begins at offset 100."""

    async def fine(_: Any) -> None:
        pass

    tally = Tally(from_offset=100, since_ms=1_000)
    return Counting(make_station(fine).handler, MAIN, tally, 100)


def said(turn: Turn | None) -> Progress:
    """Return the event that a turn publishes."""
    assert turn is not None
    (out,) = turn.publishes
    event = decode_event(out.value or b"")
    assert isinstance(event, Progress)
    return event


def test_progress_events_have_ranges_without_gaps_and_counts_of_their_own(counting: Counting) -> None:
    """What was counted once is not counted again."""
    counting.settle(
        [Turn(source=MAIN, next_offset=120, settles=1), Turn(source=MAIN, next_offset=140, settles=2, fine=True)]
    )
    first = said(counting.say(5_000))
    counting.settle([Turn(source=MAIN, next_offset=150, skipped=True)])
    second = said(counting.say(9_000))
    assert (first.from_offset, first.to_offset, first.from_ms, first.to_ms) == (100, 140, 1_000, 5_000)
    assert (first.received, first.first_try_ok, first.failed, first.skipped) == (3, 2, 1, 0)
    assert (second.from_offset, second.to_offset, second.from_ms, second.to_ms) == (140, 150, 5_000, 9_000)
    assert (second.received, second.first_try_ok, second.failed, second.skipped) == (1, 0, 0, 1)


def test_a_progress_event_never_ends_before_it_begins(counting: Counting) -> None:
    """Whatever the clock did meanwhile."""
    counting.settle([Turn(source=MAIN, next_offset=101)])
    event = said(counting.say(400))
    assert (event.from_ms, event.to_ms) == (1_000, 1_000)


def test_each_turn_takes_along_what_is_counted_once_it_is_durable(counting: Counting) -> None:
    """A lane may commit any number of them, and whoever comes next goes on behind the last one."""
    turns = [Turn(source=MAIN, next_offset=at, fine=at == 102) for at in (101, 102)]
    counting.settle(turns)
    tallies = [turn.tally for turn in turns]
    assert tallies == [
        Tally(from_offset=100, since_ms=1_000, received=1),
        Tally(from_offset=100, since_ms=1_000, received=2, first_try_ok=1),
    ]
    event = counting.say(5_000)
    assert event is not None
    assert (event.source, event.next_offset) == (MAIN, 102), "beside which the count stands that is over with it"
    assert event.tally == Tally(from_offset=102, since_ms=5_000)


def test_nothing_counted_is_nothing_to_say(counting: Counting) -> None:
    """An idle partition publishes nothing."""
    assert counting.say(5_000) is None


def test_fired_records_count_from_the_turn_to_the_end_of_their_delivery() -> None:
    """Queued, then on the topic, then done."""
    ahead = Ahead()
    ahead.queued(3)
    assert len(ahead) == 3
    ahead.fired(3, [10, 11, 12])
    assert len(ahead) == 3
    ahead.finished(12)
    assert len(ahead) == 1
    ahead.finished(13)
    assert len(ahead) == 0


def test_records_of_a_dropped_turn_are_not_ahead() -> None:
    """They are still rows."""
    ahead = Ahead()
    ahead.queued(3)
    ahead.queued(2)
    ahead.fired(3, ())
    assert len(ahead) == 2
