"""What append times tell about clocks."""

from __future__ import annotations

import pytest

from retryapp.doctor.clock import Measured, judge_measured, judge_newest
from retryapp.doctor.findings import Severity


@pytest.mark.parametrize(
    ("newest_ms", "severity", "words"),
    [
        (None, Severity.NOTE, "not compared"),
        (100_000, Severity.NOTE, "behind by 0 ms at most"),
        (40_000, Severity.NOTE, "behind by 60000 ms at most"),
        (101_000, Severity.NOTE, "not ahead"),
        (101_001, Severity.WARNING, "ahead by 1001 ms at least"),
    ],
)
def test_the_newest_record_bounds_one_side(newest_ms: int | None, severity: Severity, words: str) -> None:
    """A record from our future shows a broker ahead; an old one shows nothing."""
    (found,) = judge_newest(newest_ms, 100_000)
    assert found.severity is severity
    assert words in found.seen
    if newest_ms in {None, 40_000}:
        assert "--write" in found.remedy


@pytest.mark.parametrize(
    ("measured", "severity", "words"),
    [
        (Measured(3, 2), Severity.OK, "ahead by 3 ms, give or take 2 ms"),
        (Measured(-1_500, 600), Severity.OK, "behind by 1500 ms"),
        (Measured(-1_500, 400), Severity.WARNING, "behind by 1500 ms"),
        (Measured(1_002, 1), Severity.WARNING, "ahead by 1002 ms"),
    ],
)
def test_a_measured_difference_counts_when_it_is_sure(measured: Measured, severity: Severity, words: str) -> None:
    """What may be the round trip is no finding."""
    (found,) = judge_measured(measured)
    assert found.severity is severity
    assert words in found.seen
