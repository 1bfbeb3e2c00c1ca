"""The arithmetic that the published figures rest on."""

from __future__ import annotations

import doctest
import math
import random

import pytest

from benchmarks import records, stats
from benchmarks.stats import estimate, pair_ratios, percentile, turn_order


@pytest.mark.parametrize(
    ("n", "rank", "coverage"),
    [
        (6, 1, 0.96875), (10, 2, 0.978515625), (15, 4, 0.96484375), (20, 6, 0.9586105346679688),
        (5, 1, 1 - 2 / 32), (1, 1, 0),
    ],
)  # fmt: skip
def test_the_interval_has_the_ranks_of_the_printed_tables(n: int, rank: int, coverage: float) -> None:
    """Those of the tables for the sign test at 95 %; few samples give their range, and how little that covers."""
    found = estimate([float(i) for i in range(1, n + 1)])
    assert (found.low, found.high) == (rank, n + 1 - rank)
    assert found.coverage == pytest.approx(coverage)
    assert (found.n, found.median) == (n, (n + 1) / 2)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    """Over many draws from a skewed distribution the share of hits is at least the coverage, within chance."""
    rng = random.Random(7)
    truth, draws, hits = math.log(2), 4000, 0
    for _ in range(draws):
        found = estimate([rng.expovariate(1.0) for _ in range(10)])
        hits += found.low <= truth <= found.high
    assert hits / draws == pytest.approx(found.coverage, abs=0.01)


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: no value between two samples is made up."""
    samples = list(range(1, 201))
    random.Random(3).shuffle(samples)
    assert [percentile(samples, share) for share in (0.005, 0.5, 0.99, 1.0)] == [1, 100, 198, 200]
    assert percentile([4.0], 0.01) == 4.0


def test_of_several_sides_each_begins_and_each_runs_in_every_round() -> None:
    """What drifts over a run is shared by all sides; a warm-up has a negative number."""
    rounds = [turn_order(n, ("a", "b", "c")) for n in range(-1, 3)]
    assert [order[0] for order in rounds] == ["c", "a", "b", "c"]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)


def test_ratios_are_taken_pair_by_pair() -> None:
    """A slow pair changes no ratio; a side that did not finish leaves its pair without one."""
    assert pair_ratios([80, 40], [20, 10]) == [4.0, 4.0]
    assert pair_ratios([8, None, 9], [2, 3, None]) == [4.0]


@pytest.mark.parametrize("share", [0.0, 1.01])
def test_what_has_no_answer_is_refused(share: float) -> None:
    """No samples, a share outside its range, pairs of unequal number."""
    with pytest.raises(ValueError, match="no samples"):
        estimate([])
    with pytest.raises(ValueError, match="share in"):
        percentile([1.0], share)
    with pytest.raises(ValueError, match="zip"):
        pair_ratios([1], [1, 2])


def test_the_examples_in_the_docstrings_are_true() -> None:
    """They are the first thing that a reader checks."""
    for module in (stats, records):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0
