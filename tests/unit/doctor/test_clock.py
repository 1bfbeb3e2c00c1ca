"""Clocks by append times."""

from __future__ import annotations

import pytest

from retryapp.doctor.clock import Measured, judge_measured, judge_newest
from retryapp.doctor.findings import Severity


@pytest.mark.parametrize(
    ("newest_ms", "severity", "words"),
    [
        (None, Severity.NOTE, "not compared"),
        (100_000, Severity.NOTE, "at most 0 ms slow"),
        (40_000, Severity.NOTE, "at most 60000 ms slow"),
        (101_000, Severity.NOTE, "not ahead"),
        (101_001, Severity.WARNING, "ahead by at least 1001 ms"),
    ],
)
def test_the_newest_record_bounds_one_side(newest_ms: int | None, severity: Severity, words: str) -> None:
    """A record from our future shows a broker ahead; an old one shows nothing."""
    found = judge_newest(newest_ms, 100_000)
    assert found.severity is severity
    assert words in found.seen
    if newest_ms in {None, 40_000}:
        assert "--write" in found.remedy


@pytest.mark.parametrize(
    ("measured", "severity", "words"),
    [
        (Measured(3, 2), Severity.OK, "3 ms ahead, give or take 2 ms"),
        (Measured(-1_500, 600), Severity.OK, "1500 ms slow"),
        (Measured(-1_500, 400), Severity.WARNING, "1500 ms slow"),
        (Measured(1_002, 1), Severity.WARNING, "1002 ms ahead"),
    ],
)
def test_a_measured_difference_counts_when_it_is_sure(measured: Measured, severity: Severity, words: str) -> None:
    """What may be the round trip is no finding."""
    found = judge_measured(measured)
    assert found.severity is severity
    assert words in found.seen
