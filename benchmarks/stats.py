"""Medians with their intervals, percentiles, and the order in which sides take turns. Pure arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

CONFIDENCE = 0.95
"""What a median's interval should cover at least."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and the interval it is known to."""

    median: float
    low: float
    high: float
    coverage: float
    """Probability that the interval holds the true median: below 0.95 when there are fewer than six samples."""
    n: int
    """Number of samples."""


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median with a distribution-free interval.

    The true median lies between the k-th smallest and the k-th largest of n samples with probability
    ``1 - 2 * P(Binomial(n, 1/2) < k)``; k is the largest that reaches `CONFIDENCE`, at least 1. Source: Conover,
    "Practical Nonparametric Statistics", confidence interval for a quantile.

    >>> estimate([5, 1, 4, 2, 3, 9, 7, 8, 6, 10])
    Estimate(median=5.5, low=2, high=9, coverage=0.978515625, n=10)
    """
    if not samples:
        raise ValueError("no samples: there is no median")
    ordered = sorted(samples)
    n = len(ordered)
    k = 1
    while k < (n + 1) // 2 and _coverage(n, k + 1) >= CONFIDENCE:
        k += 1
    return Estimate(statistics.median(ordered), ordered[k - 1], ordered[n - k], _coverage(n, k), n)


def _coverage(n: int, k: int) -> float:
    """Return how probably the k-th smallest and the k-th largest of n samples enclose the median."""
    return max(0.0, 1 - 2 * sum(math.comb(n, i) for i in range(k)) / float(2**n))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, a value that was measured, for a share in (0, 1].

    >>> percentile(range(1, 101), 0.99)
    99
    """
    if not samples or not 0 < share <= 1:
        raise ValueError(f"percentile of {len(samples)} samples at {share}: needs samples, and a share in (0, 1]")
    return sorted(samples)[math.ceil(share * len(samples)) - 1]


def turn_order(round_number: int, sides: Sequence[T]) -> tuple[T, ...]:
    """Return the sides in the order of this round: each round begins with the next, so two sides alternate.

    >>> [turn_order(n, "AB") for n in range(3)]
    [('A', 'B'), ('B', 'A'), ('A', 'B')]
    """
    at = round_number % len(sides)
    return (*sides[at:], *sides[:at])


def pair_ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float]:
    """Return ours / theirs pair by pair; a pair of which one side did not finish (None) has no ratio.

    >>> pair_ratios([8, 9, None], [2, 3, 4])
    [4.0, 3.0]
    """
    return [a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b]
