"""Lanes that are silent while workers run."""

from __future__ import annotations

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.lanes import HOUR_MS, judge_lanes
from retryapp.engine.lane import LaneLimits

ORDERS = HandlerTopology(group="g", main="orders")
NOW_MS = 1_700_000_000_000
DAY_MS = 24 * HOUR_MS


def judged(silence_ms: dict[int, int], unread: dict[int, int] | None = None, partitions: int = 2) -> list[Finding]:
    """Judge lanes by how long they have written nothing."""
    newest = {(ORDERS.pending_changelog, number): NOW_MS - ms for number, ms in silence_ms.items()}
    waiting = {("orders", number): count for number, count in (unread or {}).items()}
    return list(judge_lanes([ORDERS], {"orders": partitions}, newest, waiting, now_ms=NOW_MS))


def test_lanes_that_write_are_fine() -> None:
    """An idle one every other day, one with something to do every hour; a clock that is behind changes nothing."""
    (found,) = judged({0: 47 * HOUR_MS, 1: -5_000}, {1: 3})
    assert (found.severity, found.seen) == (Severity.OK, "2 lanes, silent for 1d23h at most")


def test_a_lane_that_has_something_to_read_and_writes_nothing_stands_still() -> None:
    """A warning with the page to look at."""
    (found,) = judged({0: 3 * HOUR_MS, 1: 60_000}, {0: 12, 1: 4})
    assert (found.name, found.severity) == ("lane of orders[0]", Severity.WARNING)
    assert found.seen == "it has written nothing for 3h and has 12 offsets to read, while workers run"
    assert "/retries/orders/partitions" in found.remedy
    (never,) = judged({1: 60_000}, {0: 1})
    assert (never.severity, "has never written" in never.seen) == (Severity.WARNING, True)


def test_an_idle_lane_that_has_not_renewed_itself_is_told() -> None:
    """A worker that has just started after a pause looks the same, so it is a note."""
    longest_ms = int(2 * LaneLimits().renew_s * 1_000)
    (found,) = judged({0: longest_ms + 2 * HOUR_MS, 1: 0})
    assert (found.name, found.severity) == ("lane of orders[0]", Severity.NOTE)
    assert "2d2h" in found.seen
    assert found.remedy
    (fine,) = judged({0: longest_ms, 1: 0})
    assert fine.severity is Severity.OK


def test_a_partition_that_never_had_anything_is_fine() -> None:
    """Nothing was ever written for it, and nothing is to be read."""
    (found,) = judged({})
    assert found.severity is Severity.OK
    assert judged({}, partitions=0) == []
