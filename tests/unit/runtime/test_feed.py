"""From the intake to the engines: how much, in which order, what stays behind, and what no record tells of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka_fakes import stuck

from retryapp.core.errors import UnreadableTopicError
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.engine.worker.feed import Feed
from retryapp.engine.worker.intake import Intake
from retryapp.ports import TopicPartition

TP, ROWS = TopicPartition("orders", 0), TopicPartition("app.orders.retry", 0)


class _Place:
    """A partition with a window but no deliveries: what is accepted stays in flight until the test settles it."""

    def __init__(self, feed: Feed, *, max_in_flight: int = 1000) -> None:
        self.window: OffsetWindow[Any] = OffsetWindow()
        self.max_in_flight = max_in_flight
        self.errors: list[Exception] = []
        self.turns: list[Turn] = []
        self.draining = False
        self.reached = 0
        self.engine = self
        self.rows = ROWS
        self.due: list[Any] = []
        self.lane = SimpleNamespace(session=1, fail=self.errors.append, submit=self.submit, name="app.orders.0")
        feed.placed[TP] = feed.placed[ROWS] = self  # type: ignore[assignment]

    def submit(self, session: int, turn: Turn) -> None:
        assert session == 1
        self.turns.append(turn)

    def room(self, _tp: TopicPartition) -> int:
        return self.max_in_flight - len(self.window)

    def room_bytes(self, _tp: TopicPartition) -> int:
        return 10**9

    def reach(self, _tp: TopicPartition, position: int) -> None:
        self.reached = position

    def idle(self, _tp: TopicPartition) -> bool:
        return not len(self.window) and not self.draining

    def accept(self, tp: TopicPartition, _session: int, records: list[Any]) -> None:
        if tp == ROWS:
            self.due += records
            return
        for record in records:
            self.window.add(record.offset, len(record.value))

    def settle(self, *offsets: int) -> None:
        for offset in offsets:
            self.window.finish(offset, None)
        self.window.release()

    @property
    def settled(self) -> list[int]:
        return [turn.next_offset for turn in self.turns]


class _Way:
    """The way of records: a consumer that fetches what a test says, intake, feed, and agents that take when asked."""

    def __init__(self, records: Any) -> None:
        self.records = records
        self.intake = Intake()
        self.intake.attach(SimpleNamespace(on_buffer_full=lambda _tp: None, on_buffer_drop=lambda _tp: None))
        self.feed = Feed(self.intake)
        self.intake.on_records = self.feed.pump
        self.feed.channels[TP.topic] = self.feed.channels[ROWS.topic] = self  # type: ignore[assignment]
        self.batches: list[Any] = []
        self.running = True

    def fetched(self, count: int, *, start: int = 0, position: int | None = None) -> None:
        """So many records, which the consumer's position is behind."""
        records = {TP: self.records(TP, count, start=start)} if count else {}
        self.intake.put(records, {}, {} if position is None else {TP: position})

    def put_now(self, batch: Any) -> bool:
        self.batches.append(batch)
        return self.running

    @property
    def offsets(self) -> list[list[int]]:
        return [[record.offset for record in batch.records] for batch in self.batches]


@pytest.fixture
def way(records: Any) -> _Way:
    """To no partition yet."""
    return _Way(records)


# -- how much ---------------------------------------------------------------------------------------------------------


async def test_the_engine_is_given_one_batch_at_a_time_and_the_next_when_it_was_taken(way: _Way) -> None:
    """Batches of a partition keep their order, and room is counted with the former batch in it."""
    _Place(way.feed, max_in_flight=3)
    way.fetched(2)
    way.fetched(5, start=2)
    assert way.offsets == [[0, 1]]
    way.feed.accept(way.batches[-1])
    assert way.offsets == [[0, 1], [2]]


async def test_a_batch_that_its_agent_cannot_take_is_read_again(way: _Way) -> None:
    """While Faust restarts an agent nothing may be skipped: the lane reads from the committed offset again."""
    place = _Place(way.feed)
    way.running = False
    way.fetched(2, position=2)
    (error,) = place.errors
    assert str(error) == "the agent of orders is not running"
    way.running = True
    way.fetched(2, start=2, position=9)
    way.feed.catch_up()
    assert (len(way.batches), place.turns) == (1, []), "nothing goes past what is missing before the lane reopens"
    way.feed.forget(TP)
    way.feed.pump(TP)
    assert len(way.batches) == 2


async def test_records_that_cannot_be_accepted_are_read_again(way: _Way) -> None:
    """An error in an agent would make Faust acknowledge and skip the batch."""
    place = _Place(way.feed)
    place.accept = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    way.intake.begin({TP: 0})
    way.fetched(2, position=5)
    way.feed.accept(way.batches[0])
    assert [type(error) for error in place.errors] == [ZeroDivisionError]
    way.feed.catch_up()
    assert place.turns == []


@pytest.mark.parametrize("again", [False, True])
async def test_a_batch_of_an_older_assignment_is_ignored(way: _Way, again: bool) -> None:
    """Sessions of lanes begin at 1 with each assignment; its records are read again, maybe under way already."""
    _Place(way.feed)
    way.fetched(3)
    way.feed.clear()
    place = _Place(way.feed)
    way.intake.clear([TP])
    if again:
        way.fetched(2)
    way.feed.accept(way.batches[0])
    assert len(place.window) == 0
    way.fetched(2, start=2)
    assert way.offsets == [[0, 1, 2], [0, 1] if again else [2, 3]], "the one that is on its way still is"
    way.feed.accept(way.batches[1])
    assert len(place.window) == 2


async def test_due_rows_take_the_way_of_their_agent(way: _Way) -> None:
    """Whatever is on its way of the main topic. While Faust restarts the agent, their lane opens again."""
    place, rows = _Place(way.feed), [cast("Any", "a claim")]
    way.fetched(2)
    way.feed.emit(ROWS, 1, rows)
    assert place.due == []
    way.feed.accept(way.batches[1])
    assert (place.due, len(place.window)) == (rows, 0)
    way.feed.accept(way.batches[0])
    assert (place.due, len(place.window)) == (rows, 2)
    way.running = False
    with pytest.raises(RuntimeError, match=r"the agent of app\.orders\.retry is not running"):
        way.feed.emit(ROWS, 1, rows)


# -- what cannot be passed --------------------------------------------------------------------------------------------


async def test_what_is_before_a_stuck_record_is_done_before_the_lane_closes(way: _Way) -> None:
    """Closed at once, the lane would read the sound ones again and again, and never have the time to finish them."""
    place = _Place(way.feed)
    way.intake.put({TP: [*way.records(TP, 3), stuck(3)]}, {})
    assert way.offsets == [[0, 1, 2]]
    way.feed.accept(way.batches[0])
    place.settle(0, 1)
    way.feed.pump(TP)
    assert place.turns == []
    place.settle(2)
    way.feed.pump(TP)
    way.feed.pump(TP)
    (turn,) = place.turns
    assert (turn.source, turn.next_offset, turn.urgent) == (TP, 3, False)
    assert place.errors == [], "not before everything is committed"
    assert turn.on_settled is not None
    turn.on_settled(True, ())
    (error,) = place.errors
    assert isinstance(error, UnreadableTopicError)
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 3)


# -- what no record tells of ------------------------------------------------------------------------------------------


async def test_a_position_behind_a_transaction_marker_is_settled_once(way: _Way) -> None:
    """The marker is at 2: without this the group would stay before it."""
    place = _Place(way.feed)
    way.intake.begin({TP: 0})
    way.fetched(2, position=2)
    way.feed.accept(way.batches[0])
    way.fetched(0, position=3)
    way.feed.catch_up()
    assert place.turns == [], "two records are not settled"
    place.settle(0, 1)
    way.feed.catch_up()
    way.feed.catch_up()
    assert place.settled == [3]
    way.fetched(0, position=5)
    way.feed.catch_up()
    assert place.settled == [3, 5]


async def test_a_position_past_the_last_record_is_told_with_its_fetch(way: _Way) -> None:
    """Rows wait for it; but not before all records that came before it are taken in."""
    place = _Place(way.feed)
    way.fetched(0, position=3)
    assert place.reached == 3
    way.fetched(2, position=6)
    assert place.reached == 3
    way.feed.accept(way.batches[0])
    assert place.reached == 6


async def test_no_position_is_settled_while_records_before_it_are_on_their_way(way: _Way) -> None:
    """In the intake, in the agent's queue, or where a draining engine has dropped them."""
    place = _Place(way.feed, max_in_flight=0)
    way.intake.begin({TP: 0})
    way.fetched(2, position=3)
    way.feed.catch_up()
    place.max_in_flight = 10
    way.feed.pump(TP)
    assert way.intake.waiting(TP) == 0
    way.feed.catch_up()
    place.draining = True
    place.accept = lambda *_: None  # type: ignore[method-assign]
    way.feed.accept(way.batches[0])
    way.feed.catch_up()
    assert place.turns == []
