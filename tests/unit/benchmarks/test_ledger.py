"""The ledger that handlers of all sides write, and the records that tell them what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.ledger import SOUND, Balance, Ledger
from benchmarks.records import Wanted, encode


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger", 10) as made:
        yield made


def test_a_record_fails_as_often_as_it_says_and_is_done_once(ledger: Ledger, tmp_path: Path) -> None:
    """The third run of two wanted failures succeeds, a fourth is no further record done; another process sees it."""
    value = encode(Wanted(3, 2, 0), 64)
    assert [ledger.visit(value) for _ in range(4)] == [-1, -1, 0, 0]
    with Ledger(tmp_path / "ledger") as other:
        assert (other.deliveries, other.done) == (4, 1)


def test_lateness_counts_from_the_failure_and_the_wait_or_from_the_time_that_a_record_names(ledger: Ledger) -> None:
    """Due is the moment of the failure plus the wait, whatever any framework thinks."""
    value = encode(Wanted(1, 1, 20), 64)
    assert ledger.visit(value) == 20
    ledger.visit(value)
    assert ledger.due_ns(1, 20) - ledger.first_ns(1) == 20_000_000
    assert ledger.lateness_ms(1, 20) == (ledger.last_ns(1) - ledger.due_ns(1, 20)) / 1e6
    due_ms = time.time_ns() // 1_000_000 + 60_000
    assert 50_000 < ledger.visit(encode(Wanted(2, 1, due_ms), 64)) <= 60_000
    assert ledger.due_ns(2, due_ms) == due_ms * 1_000_000


def test_lost_repeated_and_early_records_are_found(ledger: Ledger) -> None:
    """Record 0 is sound, 1 never came back, 2 came once too often, 3 came before it was due."""
    for number, runs, wait_ms in ((0, 2, 0), (1, 1, 0), (2, 3, 0), (3, 2, 60_000)):
        for _ in range(runs):
            ledger.visit(encode(Wanted(number, 1, wait_ms), 64))
    assert ledger.balance({0: 0, 1: 0, 2: 0, 3: 60_000}, runs=2) == Balance(lost=1, repeated=1, early=1)
    assert not ledger.balance({1: 0}, runs=2).sound
    assert ledger.balance({0: 0}, runs=2) == SOUND


def test_without_slots_it_only_counts(tmp_path: Path) -> None:
    """Millions of waiting records need no memory of their own."""
    with Ledger.create(tmp_path / "counts", 0) as ledger:
        assert ledger.visit(encode(Wanted(5_000_000, 9, 1000), 64)) == 1000
        assert ledger.visit(encode(Wanted(5_000_001, 0, 0), 64)) == 0
        assert (ledger.deliveries, ledger.done) == (2, 1)
