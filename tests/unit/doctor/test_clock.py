"""Clocks by an append time."""

from __future__ import annotations

import pytest

from retryapp.doctor.clock import Measured, judge_measured
from retryapp.doctor.findings import Severity


@pytest.mark.parametrize(
    ("measured", "severity", "words"),
    [
        (Measured(3, 2), Severity.OK, "3ms ahead, give or take 2ms"),
        (Measured(-1_500, 600), Severity.OK, "1s500ms slow"),
        (Measured(-1_500, 400), Severity.WARNING, "1s500ms slow"),
        (Measured(1_002, 1), Severity.WARNING, "1s2ms ahead"),
    ],
)
def test_a_measured_difference_counts_when_it_is_sure(measured: Measured, severity: Severity, words: str) -> None:
    """What may be the round trip is no finding."""
    found = judge_measured(measured)
    assert found.severity is severity
    assert words in found.seen
