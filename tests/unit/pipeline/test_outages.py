"""Outages of hand-made histories: found whatever their length, and only where something changed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline needs PySpark: pip install 'retryapp[spark]'")

from retryapp.pipeline.analysis.outages import LONGEST_MS, of_counted_time, outages

MINUTE_MS = 60_000
NOON_MS = 1_900_000_020_000 // MINUTE_MS * MINUTE_MS


def history(
    minutes: int, *bad: range, usual: float = 0.02, main: str = "orders", each: int = 100
) -> list[dict[str, Any]]:
    """First deliveries, so many a minute: in bad minutes nine in ten fail."""
    rows, hot = [], {number for some in bad for number in some}
    for number in range(minutes):
        failed = round(each * (0.9 if number in hot else usual))
        place = {"group": "billing", "main": main, "bin_ms": NOON_MS + number * MINUTE_MS}
        times = {"first_ms": place["bin_ms"] + 1_000, "last_ms": place["bin_ms"] + 59_000}
        rows.append({**place, "fingerprint": None, "records": each - failed, "error_type": None, **times})
        for name, count in (("down", failed * 2 // 3), ("slow", failed - failed * 2 // 3)):
            rows.append({**place, "fingerprint": name, "records": count, "error_type": name.title(), **times})
    return rows


@pytest.mark.parametrize("length", [1, 5, 6, 7, 30, 100])
def test_an_outage_is_found_however_long_it_is(length: int) -> None:
    """With its beginning, end, causes, and what was usual before."""
    (found,) = outages(history(240, range(60, 60 + length)), bin_ms=MINUTE_MS, until_ms=NOON_MS + 240 * MINUTE_MS)
    assert (found["from_ms"], found["to_ms"]) == (
        NOON_MS + 60 * MINUTE_MS + 1_000,
        NOON_MS + (59 + length) * MINUTE_MS + 59_000,
    )
    assert (found["records"], found["is_over"]) == (90 * length, True)
    assert (found["share"], found["usual"]) == (pytest.approx(0.9), pytest.approx(0.02))
    assert [(cause["fingerprint"], cause["records"]) for cause in found["causes"]] == [
        ("down", 60 * length),
        ("slow", 30 * length),
    ]


@pytest.mark.parametrize("usual", [0.0, 0.02, 0.3, 1.0])
def test_what_always_fails_is_no_outage(usual: float) -> None:
    """However much it is."""
    assert outages(history(240, usual=usual), bin_ms=MINUTE_MS, until_ms=NOON_MS) == []


def test_an_outage_at_the_very_beginning_is_found() -> None:
    """There is no history before it: the calmer half is what is usual."""
    (found,) = outages(history(60, range(10)), bin_ms=MINUTE_MS, until_ms=NOON_MS + 60 * MINUTE_MS)
    assert (found["from_ms"], found["records"]) == (NOON_MS + 1_000, 900)


def test_an_outage_goes_on_until_calm_intervals_follow() -> None:
    """Or nothing for a quarter of an hour; one handler's outage says nothing of another's."""
    rows = history(60, range(50, 60)) + history(60, range(20, 25), main="refunds")
    end_ms = NOON_MS + 60 * MINUTE_MS
    last, first = outages(rows, bin_ms=MINUTE_MS, until_ms=end_ms)
    assert (last["main"], last["is_over"], first["main"], first["is_over"]) == ("orders", False, "refunds", True)
    later, _ = outages(rows, bin_ms=MINUTE_MS, until_ms=end_ms + LONGEST_MS)
    assert later["is_over"]


def test_two_outages_with_a_calm_time_between_are_two() -> None:
    """Two calm minutes do not end one."""
    rows = history(120, range(30, 35), range(37, 40), range(60, 65))
    found = outages(rows, bin_ms=MINUTE_MS, until_ms=NOON_MS + 120 * MINUTE_MS)
    assert [(row["from_ms"] - NOON_MS) // MINUTE_MS for row in found] == [60, 30]


@pytest.mark.parametrize(("silent_minutes", "count"), [(15, 1), (16, 2), (240, 2)])
def test_silence_ends_an_outage_as_calm_does(silent_minutes: int, count: int) -> None:
    """Nothing for a quarter of an hour: between two bad nights it is not known how the day would have been."""
    begin = 65 + silent_minutes
    rows = history(begin + 30, range(60, 65), range(begin, begin + 5))
    rows = [row for row in rows if not 65 <= (row["bin_ms"] - NOON_MS) // MINUTE_MS < begin]
    found = outages(rows, bin_ms=MINUTE_MS, until_ms=NOON_MS + (begin + 30) * MINUTE_MS)
    assert [(row["from_ms"] - NOON_MS) // MINUTE_MS for row in found] == [begin, 60][-count:]
    assert sum(row["records"] for row in found) == 10 * 90
    assert all(row["is_over"] for row in found)


def test_few_deliveries_are_looked_at_over_a_longer_time() -> None:
    """One a second says little; eight seconds of hundreds are an outage of eight seconds."""
    rare = history(240, range(60, 90), each=5)
    (found,) = outages(rare, bin_ms=MINUTE_MS, until_ms=NOON_MS + 240 * MINUTE_MS)
    assert abs(found["from_ms"] - NOON_MS - 60 * MINUTE_MS) <= 5 * MINUTE_MS
    often = [
        {**row, "bin_ms": NOON_MS + (row["bin_ms"] - NOON_MS) // 60, "first_ms": row["first_ms"] // 60}
        for row in history(120, range(60, 68), each=300)
    ]
    (burst,) = outages(often, bin_ms=1_000, until_ms=NOON_MS)
    assert burst["records"] == 8 * 270


def test_failures_before_the_first_count_are_no_outage() -> None:
    """What succeeded beside them is not known. Counted time is that of all partitions of a handler."""

    def first(*begins_ms: int | None, main: str = "orders") -> int | None:
        ledger = [{"group": "billing", "main": main, "from_ms": begin_ms} for begin_ms in begins_ms]
        found = of_counted_time(history(120), ledger, bin_ms=MINUTE_MS)
        return min(((row["bin_ms"] - NOON_MS) // MINUTE_MS for row in found), default=None)

    begin_ms = NOON_MS + 20 * MINUTE_MS + 30_000
    assert [first(begin_ms), first(begin_ms + MINUTE_MS, begin_ms, None), first(0)] == [20, 20, 0]
    assert [first(), first(None), first(begin_ms, main="refunds")] == [None] * 3


def test_thousands_of_outages_are_found_in_one_go() -> None:
    """Each looks at its own intervals only: a service that fails every five minutes for weeks would take hours."""
    minutes = 25_000
    rows = history(minutes, *(range(begin, begin + 1) for begin in range(4, minutes, 5)))
    assert len(outages(rows, bin_ms=MINUTE_MS, until_ms=NOON_MS)) == minutes // 5
