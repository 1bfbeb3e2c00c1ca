"""Marks beside committed offsets: when an end without a word makes records suspect."""

from __future__ import annotations

import pytest

from retryapp.core.marks import Mark, Suspected, Suspicion, parse_mark
from retryapp.core.marks import suspicion as judged


def runs(count: int, life: str = "old") -> Mark:
    """Return the mark of a life at work, after so many unclean ends."""
    return Mark(alone=False, count=count, life=life)


def alone(count: int, life: str = "old") -> Mark:
    """Return the mark of a record that started alone so many times."""
    return Mark(alone=True, count=count, life=life)


def suspicion(found: Mark | None, life: str) -> Suspicion:
    """Return what follows from a mark beside offset 7, with records up to 20."""
    return judged(found, life, start=7, end=20)


@pytest.mark.parametrize("mark", [runs(0), runs(2, "3f9c"), alone(1), alone(3, "worker-0.12")])
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    """In a few bytes: brokers bound the metadata of an offset (4 KiB)."""
    assert parse_mark(mark.text) == mark
    assert len(mark.text) < 80


@pytest.mark.parametrize(
    "text", [None, "", "r", "r1", "x1:a", "r-1:a", "r1:", "r1:a b", "noted by somebody", "r1:" + "a" * 65]
)
def test_what_somebody_else_wrote_is_no_mark(text: str | None) -> None:
    """Tools and other clients may use the metadata for themselves."""
    assert parse_mark(text) is None


def test_an_orderly_end_is_no_reason_to_suspect() -> None:
    """Nor is a group that is new."""
    assert suspicion(None, "new") == (runs(0, "new"), None)


def test_one_end_without_a_word_proves_nothing() -> None:
    """Workers are killed by deploys, too."""
    assert suspicion(runs(0), "new") == (runs(1, "new"), None)


def test_two_in_a_row_without_progress_do() -> None:
    """Whoever moves the offset writes a fresh mark, so what is counted has led nowhere."""
    assert suspicion(runs(1), "new") == (runs(2, "new"), Suspected(0, 20))
    assert suspicion(runs(7), "new") == (runs(8, "new"), Suspected(0, 20))


def test_a_lane_that_opens_again_in_the_same_life_has_not_crashed() -> None:
    """It lost its producer, or the broker was away."""
    assert suspicion(runs(1, "same"), "same") == (runs(1, "same"), None)
    assert suspicion(runs(2, "same"), "same") == (runs(2, "same"), Suspected(0, 20))
    assert suspicion(alone(2, "same"), "same") == (alone(2, "same"), Suspected(1, 20))


def test_a_record_that_started_alone_is_counted_by_its_mark() -> None:
    """The mark stays until its record starts again or is passed."""
    assert suspicion(alone(1), "new") == (alone(1), Suspected(1, 20))
    assert suspicion(alone(3), "new") == (alone(3), Suspected(3, 20))


@pytest.mark.parametrize("found", [runs(5), alone(2)])
def test_where_nothing_was_there_to_run_nothing_is_suspect(found: Mark) -> None:
    """Idle partitions see many lives: those of deploys that could not say good-bye in time."""
    assert judged(found, "new", start=20, end=20) == (runs(0, "new"), None)


@pytest.mark.parametrize("found", [None, runs(0)])
def test_where_nothing_is_there_to_run_nothing_is_marked(found: Mark | None) -> None:
    """It would be a transaction for each idle lane of a worker, at each rebalance."""
    assert judged(found, "new", start=20, end=20) == (None, None)


def test_a_mark_counts_when_it_holds_something_against_records() -> None:
    """That a life works there is nothing against any."""
    assert [mark.counts for mark in (runs(0), runs(1), alone(1))] == [False, True, True]
