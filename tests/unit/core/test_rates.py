"""Rates as text, and what a bucket lets through."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from heapq import heapify, heappop, heappush
from random import Random

import pytest

from retryapp.core.control import Verb
from retryapp.core.errors import InvalidSettingError
from retryapp.core.jobs import JobPart, LetterFilter, shared
from retryapp.core.rates import LeakyBucket, RateLimit, SharedTurns, parse_rate
from retryapp.engine.partition.jobs import CATCH_UP_MS


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
    most = max(bisect_left(went, at + 1_000) - bisect_left(went, at) for at in went)
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


@pytest.mark.parametrize(
    ("parts", "letters", "rate", "stop"), [(1_000, 700, 100, 0), (1_000, 7_000, 500, 300), (7, 3_000, 50, 0)]
)
def test_sharers_together_keep_to_the_rate_and_lose_no_time(parts: int, letters: int, rate: int, stop: int) -> None:
    """However unlike their shares; in each second, up to the last; where some stop, no other goes faster."""
    random, began_ms = Random(letters), 1_700_000_000_000
    numbers = Counter(min(parts - 1, int(random.random() ** 2 * parts)) for _ in range(letters))
    whole = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), upto={}, every_ms=1_000 / rate)
    orders, left = shared(whole, numbers, {part: {} for part in numbers}), dict(numbers)
    sharers = {part: SharedTurns(1_000 / rate, order.share, began_ms, CATCH_UP_MS) for part, order in orders.items()}
    went: list[float] = []
    looks = [(began_ms + 50 * random.random(), part) for part in sharers]
    heapify(looks)
    while looks:
        now_ms, part = heappop(looks)
        if part < stop and now_ms > began_ms + 2_000:
            continue
        number = min(left[part], sharers[part].room(int(now_ms)))
        sharers[part].take(number)
        left[part] -= number
        went += [now_ms] * number
        if left[part]:
            wait_ms = max(1.0, sharers[part].wait_ms(int(now_ms)))
            heappush(looks, (now_ms + wait_ms + 50 * random.random(), part))
    seconds = Counter(int(each - began_ms) // 1_000 for each in went)
    assert max(seconds.values()) <= 1.05 * rate
    assert stop or abs(max(went) - began_ms - letters * 1_000 / rate) <= 1_000
    assert stop or len(went) == letters


def test_turns_that_nobody_has_looked_at_are_lost() -> None:
    """But for those of the last moment: an idle hour makes no burst."""
    turns = SharedTurns(10.0, (0, 1, 1), 1_000, 100.0)
    assert [turns.room(at) for at in (1_000, 1_009, 1_010)] == [0, 0, 1]
    assert turns.room(3_600_000) == 11
    turns.take(11)
    assert (turns.room(3_600_001), turns.wait_ms(3_600_001)) == (0, 9.0)
