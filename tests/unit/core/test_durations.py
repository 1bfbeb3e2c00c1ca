"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.errors import ConfigurationError, InvalidDurationError


@pytest.mark.parametrize(
    ("text", "milliseconds", "canonical"),
    [
        ("30s", 30_000, "30s"), ("60s", 60_000, "1m"), ("90s", 90_000, "1m30s"), ("1h30m", 5_400_000, "1h30m"),
        ("24h", 86_400_000, "1d"), ("250ms", 250, "250ms"), ("1.5s", 1_500, "1s500ms"), (" 5m ", 300_000, "5m"),
        ("0.25s", 250, "250ms"), ("3650d", 315_360_000_000, "3650d"), ("1d2h3m4s5ms", 93_784_005, "1d2h3m4s5ms"),
        (timedelta(minutes=5), 300_000, "5m"),
    ],
)  # fmt: skip
def test_a_length_is_read_and_written_canonically(text: str | timedelta, milliseconds: int, canonical: str) -> None:
    """Equal lengths have one text, whatever was written."""
    assert parse_duration_ms(text) == milliseconds
    assert format_duration_ms(milliseconds) == canonical


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "empty"), ("   ", "empty"), ("30", "no unit"), ("-30", "no unit"), ("1.5", "no unit"), (30, "no unit"),
        (1.5, "no unit"), (True, "no unit"), (None, "not text"), ("-5m", "negative"), ("0s", "no length"),
        ("0", "no unit"), (timedelta(0), "no length"), (timedelta(seconds=-1), "negative"),
        (timedelta(microseconds=1500), "finer than a millisecond"), ("1.0001s", "finer than a millisecond"),
        ("460.999574ms", "finer than a millisecond"),
        ("100us", "unknown unit"), ("5mm", "unknown unit"), ("1y", "unknown unit"), ("5x", "unknown unit"),
        ("1m1h", "out of order"), ("1h junk 5m", "other characters"), ("5m 30s", "other characters"),
        ("1h1h", "out of order"), ("5M", "unknown unit"), ("\u0665m", "other characters"), ("3651d", "ten years"),
        ("999999999999d", "ten years"), ("9" * 400 + "d", "other characters"),
        (timedelta(days=4000), "ten years"),
    ],
)  # fmt: skip
def test_what_is_no_length_is_refused_with_value_and_remedy(value: object, problem: str) -> None:
    """The message names the value, what is wrong with it and what is allowed."""
    with pytest.raises(InvalidDurationError) as caught:
        parse_duration_ms(value)  # type: ignore[arg-type]
    assert problem in str(caught.value)
    assert repr(value)[:20] in str(caught.value)
    assert "'1h30m'" in str(caught.value)
    assert caught.value.value == value
    assert isinstance(caught.value, ConfigurationError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("milliseconds", [0, -1, 315_360_000_001])
def test_a_length_out_of_range_is_not_written(milliseconds: int) -> None:
    """Formatting refuses what parsing would refuse."""
    with pytest.raises(InvalidDurationError):
        format_duration_ms(milliseconds)
