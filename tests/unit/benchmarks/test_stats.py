"""The arithmetic that the published figures rest on."""

from __future__ import annotations

import doctest
import math
import random
import statistics

import pytest

from benchmarks import records, stats
from benchmarks.stats import estimate, pair_ratios, percentile, turn_order


@pytest.mark.parametrize(
    ("n", "rank", "coverage"), [(6, 1, 0.96875), (10, 2, 0.978515625), (15, 4, 0.96484375), (20, 6, 0.9586105346679688)]
)
def test_the_interval_has_the_ranks_of_the_printed_tables(n: int, rank: int, coverage: float) -> None:
    """Ranks and coverage are those of the tables for the sign test at 95 %."""
    found = estimate([float(i) for i in range(1, n + 1)])
    assert (found.low, found.high) == (rank, n + 1 - rank)
    assert found.coverage == pytest.approx(coverage)
    assert (found.n, found.median) == (n, (n + 1) / 2)


def test_few_samples_give_their_whole_range_and_say_how_little_it_covers() -> None:
    """With five samples no interval reaches 95 %."""
    found = estimate([3, 1, 2, 5, 4])
    assert (found.low, found.median, found.high) == (1, 3, 5)
    assert found.coverage == pytest.approx(1 - 2 / 32)


def test_one_sample_is_its_own_interval_and_covers_nothing() -> None:
    """One run tells a figure, and nothing about how well it is known."""
    found = estimate([7.0])
    assert (found.low, found.median, found.high, found.coverage) == (7, 7, 7, 0)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    """Over many draws from a skewed distribution the share of hits is at least the coverage, within chance."""
    chosen = random.Random(7)
    truth, draws, hits = math.log(2), 4000, 0
    for _ in range(draws):
        found = estimate([chosen.expovariate(1.0) for _ in range(10)])
        hits += found.low <= truth <= found.high
    assert hits / draws == pytest.approx(found.coverage, abs=0.01)


def test_no_samples_have_no_median() -> None:
    """A workload of which no run finished has to say so itself."""
    with pytest.raises(ValueError, match="no samples"):
        estimate([])


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: no value between two samples is made up."""
    samples = list(range(1, 201))
    random.Random(3).shuffle(samples)
    assert [percentile(samples, share) for share in (0.005, 0.5, 0.99, 1.0)] == [1, 100, 198, 200]
    assert percentile([4.0], 0.01) == 4.0


@pytest.mark.parametrize("share", [0.0, 1.01])
def test_a_percentile_outside_its_range_is_refused(share: float) -> None:
    """There is no value below the smallest or above the largest."""
    with pytest.raises(ValueError, match="share in"):
        percentile([1.0], share)


def test_two_sides_alternate_in_who_begins() -> None:
    """What drifts over a run is shared by both sides."""
    begins = [turn_order(n, ("ours", "theirs"))[0] for n in range(10)]
    assert begins == ["ours", "theirs"] * 5


def test_of_several_sides_each_begins_and_each_runs_in_every_round() -> None:
    """The order rotates; nobody is left out."""
    sides = ("a", "b", "c")
    rounds = [turn_order(n, sides) for n in range(3)]
    assert [order[0] for order in rounds] == ["a", "b", "c"]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)


def test_ratios_are_taken_pair_by_pair() -> None:
    """A machine that is twice as slow in one pair changes no ratio of it."""
    assert pair_ratios([80, 40], [20, 10]) == [4.0, 4.0]
    assert statistics.median(pair_ratios([80, 41, 90], [20, 10, 30])) == 4.0


def test_a_side_that_did_not_finish_leaves_its_pair_without_a_ratio() -> None:
    """Neither side's result may be paired with another pair's."""
    assert pair_ratios([8, None, 9], [2, 3, None]) == [4.0]
    with pytest.raises(ValueError, match="zip"):
        pair_ratios([1], [1, 2])


def test_the_examples_in_the_docstrings_are_true() -> None:
    """They are the first thing that a reader checks."""
    for module in (stats, records):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0
