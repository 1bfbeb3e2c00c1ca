"""The ledger that handlers of all sides write, and the records that tell them what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ledger import Balance, Ledger
from benchmarks.records import Wanted, decode, encode


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with room for ten records."""
    made = Ledger.create(tmp_path / "ledger", 10)
    yield made
    made.close()


def test_a_record_fails_as_often_as_it_says_and_is_done_once(ledger: Ledger) -> None:
    """Whatever redelivers it, the third run of two wanted failures succeeds; a fourth is no further record done."""
    value = encode(Wanted(3, 2, 0), 64)
    assert [ledger.visit(value) for _ in range(4)] == [-1, -1, 0, 0]
    assert (ledger.deliveries, ledger.done, ledger.runs(3), ledger.runs(4)) == (4, 1, 4, 0)


def test_another_process_sees_what_was_written(ledger: Ledger, tmp_path: Path) -> None:
    """The file is shared memory: a second mapping reads at once."""
    other = Ledger(tmp_path / "ledger")
    ledger.visit(encode(Wanted(0, 0, 0), 64))
    assert (other.deliveries, other.done, other.runs(0)) == (1, 1, 1)
    other.close()


def test_lateness_counts_from_the_failure_and_the_wait(ledger: Ledger) -> None:
    """Due is the moment of the failure plus the wait, whatever any framework thinks."""
    value = encode(Wanted(1, 1, 20), 64)
    assert ledger.visit(value) == 20
    time.sleep(0.05)
    ledger.visit(value)
    assert 29 <= ledger.lateness_ms(1, 20) < 5_000
    assert ledger.first_ns(1) < ledger.due_ns(1, 20) < ledger.last_ns(1)


def test_an_absolute_due_time_is_waited_for(ledger: Ledger) -> None:
    """A record may name the moment at which it is due."""
    due_ms = time.time_ns() // 1_000_000 + 60_000
    assert 50_000 < ledger.visit(encode(Wanted(2, 1, due_ms), 64)) <= 60_000
    assert ledger.due_ns(2, due_ms) == due_ms * 1_000_000


def test_lost_repeated_and_early_records_are_found(ledger: Ledger) -> None:
    """Record 0 is sound, 1 never came back, 2 came once too often, 3 came before it was due."""
    for number, runs, wait_ms in ((0, 2, 0), (1, 1, 0), (2, 3, 0), (3, 2, 60_000)):
        for _ in range(runs):
            ledger.visit(encode(Wanted(number, 1, wait_ms), 64))
    assert ledger.balance(range(3), runs=2, wait_ms=0) == Balance(lost=1, repeated=1, early=0)
    assert ledger.balance(range(3, 4), runs=2, wait_ms=60_000) == Balance(lost=0, repeated=0, early=1)
    assert ledger.balance(range(1), runs=2, wait_ms=0).sound


def test_without_slots_it_only_counts(tmp_path: Path) -> None:
    """Millions of waiting records need no memory of their own."""
    ledger = Ledger.create(tmp_path / "counts", 0)
    assert ledger.visit(encode(Wanted(5_000_000, 9, 1000), 64)) == 1000
    assert ledger.visit(encode(Wanted(5_000_001, 0, 0), 64)) == 0
    assert (ledger.deliveries, ledger.done) == (2, 1)
    ledger.close()


@pytest.mark.parametrize("wanted", [Wanted(0, 0, 0), Wanted(999_999_999, 9, 1_700_000_000_000)])
def test_records_read_as_they_were_written(wanted: Wanted) -> None:
    """Smallest and largest; the value has the asked size and is text."""
    value = encode(wanted, 100)
    assert decode(value) == wanted
    assert len(value) == 100
    assert value.isascii()
