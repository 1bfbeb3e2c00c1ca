"""The judge of histories finds each way in which one can be wrong, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from retryapp.core.record import Record
from retryapp.ports import TopicPartition
from simulation.oracle import Oracle, Topics
from simulation.story import Call, Opening, Violation

TOPICS = Topics("orders", "retry", "redelivery", "dlq", "events", "changelog", "seen", "results")
WAITS_MS = (100, 200)
KEY, HEADERS = b"k", (("trace", b"1"),)
ROW = (1_000_100).to_bytes(8, "big") + bytes(4) + (0).to_bytes(8, "big")


class Told:
    """An oracle with one record, and short ways to tell it things."""

    def __init__(self, script: str = "FS") -> None:
        self.oracle = Oracle(TOPICS, WAITS_MS, later_ms=50, skew_ms=0)
        self.record = Record("orders", 0, 0, 7, KEY, b"v", HEADERS)
        self.oracle.add(self.record, script)

    def call(self, attempt: int, *, at_ms: float, fine: bool, due_ms: int | None = None) -> None:
        """The handler is called, and is done 10 ms later."""
        self.begin(attempt, at_ms=at_ms, due_ms=due_ms)
        self.oracle.ended((0, 0), attempt, Call("w", at_ms, at_ms + 10, fine))

    def begin(
        self,
        attempt: int,
        *,
        at_ms: float,
        due_ms: int | None = None,
        value: bytes = b"v",
        opening: Opening | None = None,
    ) -> None:
        """The handler is called."""
        self.oracle.begun((0, 0), attempt, due_ms, (KEY, value, HEADERS, 7), at_ms, opening)

    def show(self, topic: str, attempt: int, *, at_ms: float = 1e9, due_ms: int = 0, value: bytes = b"v") -> None:
        """A copy of the record becomes visible."""
        ours = (
            ("retry-origin", b"orders@x/0/0"), ("retry-attempt", b"%d" % attempt), ("retry-due-ms", b"%d" % due_ms),
        )  # fmt: skip
        copy = Record(topic, 0, attempt, 0, KEY, value, HEADERS + ours)
        self.oracle.appeared(TopicPartition(topic, 0), [copy], at_ms)

    def log(self, value: bytes | None) -> None:
        """A row is put or removed."""
        self.oracle.appeared(TopicPartition("changelog", 0), [Record("changelog", 0, 0, 0, ROW, value, ())], 1e9)

    def succeed(self) -> None:
        """The event of a success after a failure becomes visible."""
        told = b'{"kind": "succeeded", "origin": "orders@x/0/0"}'
        self.oracle.appeared(TopicPartition("events", 0), [Record("events", 0, 0, 0, b"", told, ())], 1e9)

    def publish(self, attempt: int) -> None:
        """What the handler publishes at an attempt becomes visible."""
        record = Record("results", 0, attempt, 0, b"0", b"%d" % attempt, ())
        self.oracle.appeared(TopicPartition("results", 0), [record], 1e9)

    def move(self, topic: str, offset: int) -> None:
        """The group moves on."""
        self.oracle.moved({TopicPartition(topic, 0): offset})


def in_order(told: Told) -> None:
    """A failure, a wait and a success."""
    told.call(1, at_ms=1_000_000, fine=False)
    told.show("retry", 1, due_ms=1_000_100)
    told.move("orders", 1)
    told.log(b"row")
    told.move("retry", 2)
    told.show("redelivery", 1, at_ms=1_000_110, due_ms=1_000_100)
    told.log(None)
    told.call(2, at_ms=1_000_120, fine=True, due_ms=1_000_100)
    told.publish(2)
    told.succeed()
    told.move("redelivery", 2)


def test_a_good_history_holds() -> None:
    """From the first delivery to the last."""
    told = Told()
    assert told.oracle.open_ends() == [(0, 0)]
    in_order(told)
    told.oracle.at_rest()
    assert (told.oracle.open_ends(), told.oracle.repeated) == ([], 0)


def _early(told: Told) -> None:
    told.call(1, at_ms=1_000_000, fine=False)
    told.begin(2, at_ms=1_000_105, due_ms=1_000_105)


def _emitted_early(told: Told) -> None:
    told.show("redelivery", 1, at_ms=500, due_ms=1_000)


def _too_often(told: Told) -> None:
    told.begin(4, at_ms=0)


def _out_of_order(told: Told) -> None:
    told.begin(2, at_ms=0)


def _changed(told: Told) -> None:
    told.begin(1, at_ms=0, value=b"other")


def _changed_copy(told: Told) -> None:
    told.show("retry", 1, value=b"other")


def _passed(told: Told) -> None:
    told.move("orders", 1)


def _passed_tier(told: Told) -> None:
    told.show("retry", 1, due_ms=1_000_100)
    told.move("retry", 2)


def _passed_redelivery(told: Told) -> None:
    told.show("redelivery", 1)
    told.move("redelivery", 2)


def _moved_back(told: Told) -> None:
    told.call(1, at_ms=0, fine=True)
    told.move("orders", 1)
    told.move("orders", 0)


def _twice(told: Told) -> None:
    told.show("retry", 1)
    told.show("retry", 1)


def _fired_twice(told: Told) -> None:
    told.show("redelivery", 1)
    told.show("redelivery", 1)


def _ended_twice(told: Told) -> None:
    told.succeed()
    told.succeed()


def _tried_after_its_end(told: Told) -> None:
    told.succeed()
    told.show("retry", 1)


def _wrong_end(told: Told) -> None:
    told.show("dlq", 1)


def _one_wait_too_many(told: Told) -> None:
    told.show("retry", 3)


def _twice_in_a_session(told: Told) -> None:
    for at_ms in (0, 5):
        told.begin(1, at_ms=at_ms, opening=Opening("w", 0.0))


def _again_behind_its_outcome(told: Told) -> None:
    told.show("retry", 1, at_ms=500)
    told.begin(1, at_ms=900, opening=Opening("w", 501.0))


def _again_behind_its_end(told: Told) -> None:
    told.call(1, at_ms=0, fine=False)
    told.show("dlq", 1, at_ms=500)
    told.begin(2, at_ms=9_000, due_ms=1, opening=Opening("w", 501.0))


def _published_by_a_failure(told: Told) -> None:
    told.call(1, at_ms=0, fine=False)
    told.publish(1)


def _published_twice(told: Told) -> None:
    in_order(told)
    told.publish(2)


def _published_nothing(told: Told) -> None:
    told.call(1, at_ms=0, fine=True)
    told.oracle.at_rest()


def _lost(told: Told) -> None:
    told.oracle.at_rest()


def _waits_for_ever(told: Told) -> None:
    in_order(told)
    told.log(b"row")
    told.oracle.at_rest()


def _another_store(told: Told) -> None:
    told.log(b"row")
    told.oracle.recovered(0, {})


def _nobodys(told: Told) -> None:
    told.oracle.begun((0, 5), 1, None, (), 0)


@pytest.mark.parametrize(
    ("invariant", "wrong"),
    [
        ("I3", _early), ("I3", _emitted_early), ("I5", _too_often), ("I5", _out_of_order), ("I8", _changed),
        ("I8", _changed_copy), ("I6", _passed), ("I6", _passed_tier), ("I6", _passed_redelivery), ("I6", _moved_back),
        ("I1", _twice), ("I10", _fired_twice), ("I2", _ended_twice), ("I2", _tried_after_its_end), ("I1", _wrong_end),
        ("I5", _one_wait_too_many), ("I1", _lost), ("I7", _waits_for_ever), ("I7", _another_store), ("I1", _nobodys),
        ("I5", _twice_in_a_session), ("I5", _again_behind_its_outcome),
        ("I1", _published_by_a_failure), ("I1", _published_twice), ("I1", _published_nothing),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(invariant: str, wrong: Callable[[Told], None]) -> None:
    """By its invariant."""
    with pytest.raises(Violation, match=f"^{invariant} "):
        wrong(Told())


@pytest.mark.parametrize(
    ("script", "fate"),
    [("S", "done"), ("FS", "done"), ("FFS", "done"), ("FFFS", "dead"), ("F", "dead"), ("FR", "dead"), ("R", "dead")],
)
def test_a_script_says_how_a_record_ends(script: str, fate: str) -> None:
    """Under three attempts."""
    assert Told().oracle.fate(script) == fate


def test_what_an_opening_could_not_know_may_be_handled_again() -> None:
    """An outcome that came later."""
    told = Told()
    told.show("retry", 1, at_ms=500)
    told.begin(1, at_ms=900, opening=Opening("w", 499.0))
    told.begin(1, at_ms=900)
    assert told.oracle.repeated == 1


def test_the_end_of_a_record_is_the_outcome_of_all_its_attempts() -> None:
    """A second attempt behind a dead letter is one too many, whatever its own outcome."""
    with pytest.raises(Violation, match=r"^I5 .* its outcome is durable"):
        _again_behind_its_end(Told("R"))


@pytest.mark.parametrize(
    ("taken_back", "rows", "holds"),
    [
        (False, {b"e": b"row"}, True),
        (False, {}, False),
        (False, {b"e": b"row", b"f": b"row"}, False),
        (True, {b"e": b"row", b"f": b"row"}, True),
        (True, {b"f": b"row"}, False),
    ],
)
def test_a_table_of_seen_events_is_compared(rows: dict[bytes, bytes], *, taken_back: bool, holds: bool) -> None:
    """It is its changelog, and what the broker took back."""
    oracle = repeated()
    oracle.appeared(TopicPartition("seen", 0), [Record("seen", 0, 0, 0, b"e", b"row", ())], 1.0)
    with nullcontext() if holds else pytest.raises(Violation, match=r"^I7 "):
        oracle.remembered(0, rows, taken_back=taken_back)


def repeated() -> Oracle:
    """Return an oracle with two records of one event, at offsets 0 and 1."""
    oracle = Oracle(TOPICS, WAITS_MS, later_ms=50, skew_ms=0)
    for offset in (0, 1):
        oracle.add(Record("orders", 0, offset, 7, KEY, b"v", HEADERS), "S", "e1")
    return oracle


def handle(oracle: Oracle, offset: int) -> None:
    """A handler call, from begin to end."""
    oracle.begun((0, offset), 1, None, (KEY, b"v", HEADERS, 7), 1.0)
    oracle.ended((0, offset), 1, Call("w", 1.0, 2.0, fine=True))


def skip(oracle: Oracle, offset: int, first: int) -> None:
    """The event of a skip becomes visible."""
    told = b'{"kind": "skipped", "origin": "orders@x/0/%d", "first_offset": %d}' % (offset, first)
    oracle.appeared(TopicPartition("events", 0), [Record("events", 0, 0, 0, b"", told, ())], 1e9)


def test_a_duplicate_that_is_skipped_is_right() -> None:
    """The first is handled, the other one told; rows of seen events concern nobody here."""
    oracle = repeated()
    handle(oracle, 0)
    oracle.appeared(TopicPartition("results", 0), [Record("results", 0, 0, 0, b"0", b"1", ())], 1e9)
    oracle.appeared(TopicPartition("seen", 0), [Record("seen", 0, 0, 0, bytes(16), b"row", ())], 1e9)
    skip(oracle, 1, 0)
    oracle.moved({TopicPartition("orders", 0): 2})
    oracle.at_rest()
    assert (oracle.open_ends(), oracle.skips) == ([], 1)


def test_a_duplicate_that_is_handled_is_wrong() -> None:
    """What was seen is durable before the offset moves."""
    with pytest.raises(Violation, match=r"I5 0/1: a duplicate of \(0, 0\)"):
        handle(repeated(), 1)


def test_skips_that_are_wrong_are_found() -> None:
    """Of the first record, as a repetition of another one, twice, and without a word."""
    for offset, first in ((0, 1), (1, 7)):
        with pytest.raises(Violation, match="I1"):
            skip(repeated(), offset, first)
    oracle = repeated()
    skip(oracle, 1, 0)
    with pytest.raises(Violation, match="I2 0/1: 2 visible copies"):
        skip(oracle, 1, 0)
    oracle = repeated()
    handle(oracle, 0)
    with pytest.raises(Violation, match="I6 0/1: passed without a fate"):
        oracle.moved({TopicPartition("orders", 0): 2})
