"""Rates as text, and what a bucket lets through."""

from __future__ import annotations

import pytest

from retryapp.core.errors import InvalidSettingError
from retryapp.core.rates import LeakyBucket, RateLimit, parse_rate


@pytest.mark.parametrize(
    ("text", "expected"), [("50/s", (50, 1_000)), ("600/m", (600, 60_000)), (" 1000/h ", (1_000, 3_600_000))]
)
def test_rates_are_read(text: str, expected: tuple[int, int]) -> None:
    """And written back as they stand."""
    rate = parse_rate(text)
    assert rate == RateLimit(*expected)
    assert rate.text == text.strip()


@pytest.mark.parametrize("text", ["50", "0/s", "-1/s", "1.5/s", "50/d", "50 / s", "/s", "", 50, None, "9999999999/s"])
def test_anything_else_is_refused(text: object) -> None:
    """The message says what to write."""
    with pytest.raises(InvalidSettingError, match=r"rate_limit=.*50/s"):
        parse_rate(text)


@pytest.mark.parametrize("late_ms", [0.0, 3.0, 9.0])
@pytest.mark.parametrize("text", ["50/s", "1000/s", "120/m"])
def test_no_second_has_more_than_the_rate(text: str, late_ms: float) -> None:
    """Whenever the caller comes, always late by as much: no more than stated, and not much less."""
    rate = parse_rate(text)
    bucket = LeakyBucket(rate.share_ms(1), 0.0)
    went: list[float] = []
    now_ms = 0.0
    while now_ms < 5_000:
        now_ms = max(now_ms, bucket.next_ms) + late_ms + 0.01
        count = bucket.room(now_ms)
        assert count > 0
        bucket.take(count, now_ms)
        went += [now_ms] * count
    a_second = 1_000 * rate.count / rate.per_ms
    most = max(sum(at <= each < at + 1_000 for each in went) for at in went)
    assert most <= a_second * 1.01 + 1
    assert len(went) >= 5 * a_second * 0.9 - 1


def test_it_is_empty_at_first_and_saves_nothing_up() -> None:
    """A restart, or an idle hour, makes no burst."""
    bucket = LeakyBucket(100.0, 1_000.0)
    assert [bucket.room(at) for at in (1_000.0, 1_099.0, 1_100.0)] == [0, 0, 1]
    assert bucket.room(3_600_000.0) == 1


def test_shares_add_up() -> None:
    """Each of four partitions has a quarter."""
    assert parse_rate("50/s").share_ms(4) == 80.0
