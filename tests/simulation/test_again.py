"""The judge of records that come again, since somebody has set the offset back, finds each way in which it is wrong."""

from __future__ import annotations

import pytest

from retryapp.core.record import Record
from retryapp.ports import TopicPartition
from simulation.oracle import Oracle
from simulation.story import Call, Opening, Topics, Violation

TOPICS = Topics("orders", "retry", "dlq", "events", "changelog", "seen", "results")
MAIN = TopicPartition("orders", 0)
RECORD = Record("orders", 0, 0, 7, b"k", b"v", ())
ROW = bytes(4) + (1_000).to_bytes(8, "big")


class Told:
    """An oracle with one record, and short ways to tell it things."""

    def __init__(self, script: str) -> None:
        self.oracle = Oracle(TOPICS, (100, 200), later_ms=50, skew_ms=0)
        self.oracle.sequences.orders["w"] = "none"
        self.oracle.add(RECORD, script)

    def run(self, at_ms: float, attempt: int = 1, *, fine: bool = True) -> None:
        seen = RECORD.key, RECORD.value, RECORD.headers, RECORD.timestamp_ms
        due_ms = None if attempt == 1 else 1_000
        self.oracle.begun((0, 0), attempt, due_ms, seen, at_ms, Opening("w", at_ms - 1))
        self.oracle.ended((0, 0), attempt, Call("w", at_ms, at_ms, fine))

    def show(self, topic: str, at_ms: float, *, key: bytes = b"0", value: bytes | None = b"1") -> None:
        headers = (("retry-origin", b"orders@x/0/0"), ("retry-attempt", b"1"), ("retry-due-ms", b"1000"))
        value = RECORD.value if topic == "retry" else value
        copy = Record(topic, 0, 0, 0, b"k" if topic == "retry" else key, value, headers if topic == "retry" else ())
        self.oracle.appeared(TopicPartition(topic, 0), [copy], at_ms)

    def row(self, at_ms: float) -> None:
        self.show("changelog", at_ms, key=bytes(21), value=ROW)

    def move(self) -> None:
        self.oracle.offsets.moved({MAIN: 1})


def done() -> Told:
    """Return what is known of a record that is done, and comes again."""
    told = Told("S")
    told.run(10)
    told.show("results", 11)
    told.move()
    told.oracle.offsets.set_back(0, 0, 20)
    return told


def waiting(offset: int = 0) -> Told:
    """Return what is known of a record that waits, where somebody has set the group back to an offset: 0 is its own."""
    told = Told("FS")
    told.run(10, fine=False)
    told.show("retry", 11)
    told.row(11)
    told.move()
    told.oracle.offsets.set_back(0, offset, 20)
    return told


def test_a_record_that_runs_once_more_is_right() -> None:
    told = done()
    assert told.oracle.open_ends() == [(0, 0)]
    told.run(30)
    told.show("results", 31)
    told.move()
    assert told.oracle.open_ends() == []


def test_a_record_that_waits_is_passed() -> None:
    told = waiting()
    told.move()
    assert told.oracle.open_ends() == [(0, 0)]


def test_a_record_that_does_not_run_once_more_is_found() -> None:
    with pytest.raises(Violation, match="I26 0/0: set back, and passed without a run"):
        done().move()


def test_a_record_that_runs_beside_its_row_is_found() -> None:
    with pytest.raises(Violation, match="I26 0/0: runs once more, and it waits in a row"):
        waiting().run(30)


def test_a_third_result_is_found() -> None:
    told = done()
    told.show("results", 31)
    with pytest.raises(Violation, match="I1 0/0: 3 visible copies of a result"):
        told.show("results", 32)


def test_a_second_copy_of_a_record_before_the_offset_is_found() -> None:
    """Nobody has asked for it."""
    told = waiting(1)
    with pytest.raises(Violation, match="I1 0/0: 2 visible copies of a copy of delivery 1"):
        told.show("retry", 12)
