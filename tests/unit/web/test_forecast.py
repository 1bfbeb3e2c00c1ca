"""The count of what becomes due when: exact where rows were counted, and honest where they were not."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest

from retryapp.web.forecast import SAMPLE, SCALES, Outlook, Survey, outlook

NOW_MS = 1_760_000_000_000
HOUR_MS = 3_600_000


class Rows:
    """A table of due times that counts what it is asked."""

    def __init__(self, dues: Sequence[int]) -> None:
        self.dues = sorted(dues)
        self.probes = 0
        self.looked_at = 0

    def probe(self, start_ms: int, stop_ms: int, limit: int) -> Sequence[int]:
        """Return the first rows of a span."""
        first, end = bisect_left(self.dues, start_ms), bisect_left(self.dues, stop_ms)
        found = self.dues[first : min(end, first + limit)]
        self.probes += 1
        self.looked_at += len(found)
        return found

    def between(self, start_ms: int, stop_ms: int) -> int:
        """Return how many there really are."""
        return bisect_left(self.dues, stop_ms) - bisect_left(self.dues, start_ms)


def look(*tables: Rows, probes: int = 200) -> Outlook:
    """Survey tables to the end."""
    surveys = []
    for table in tables:
        survey = Survey(table.probe, NOW_MS, probes)
        assert all(step is None for step in survey.steps())
        surveys.append((survey, len(table.dues)))
    return outlook(surveys, NOW_MS)


def test_nothing_waits() -> None:
    """Empty bars, all of them exact."""
    found = look()
    assert found.exact
    assert (found.total, found.overdue.count, found.later.count) == (0, 0, 0)
    assert [len(found.scales[scale.name]) for scale in SCALES] == [12, 60, 48]


def test_few_rows_are_counted_each_in_its_bar() -> None:
    """Also on the edges: a bar has its start and not its end."""
    dues = [NOW_MS - 1, NOW_MS, NOW_MS + 4_999, NOW_MS + 5_000, NOW_MS + HOUR_MS, NOW_MS + 48 * HOUR_MS]
    found = look(Rows(dues))
    assert found.exact
    assert found.overdue.count == 1
    assert found.later.count == 1
    assert [bar.count for bar in found.scales["seconds"]][:3] == [2, 1, 0]
    assert found.scales["minutes"][0].count == 3
    assert [bar.count for bar in found.scales["hours"]][:2] == [3, 1]


def test_some_thousand_rows_are_still_exact() -> None:
    """Spans are cut until each was counted."""
    chance = random.Random(1)
    table = Rows([NOW_MS + chance.randrange(-60_000, 47 * HOUR_MS) for _ in range(2_000)])
    found = look(table)
    assert found.exact
    for scale in SCALES:
        for bar in found.scales[scale.name]:
            assert bar.count == table.between(bar.start_ms, bar.stop_ms)
    assert found.overdue.count + sum(bar.count for bar in found.scales["hours"]) + found.later.count == 2_000


@pytest.mark.parametrize("rows", [10**5, 10**6])
def test_a_million_rows_cost_what_a_thousand_do_and_are_marked_as_estimated(rows: int) -> None:
    """Bounded in probes and rows; the sum is the exact total, each hour right to a fifth or so."""
    chance = random.Random(2)
    table = Rows([NOW_MS + int(chance.random() ** 2 * 24 * HOUR_MS) for _ in range(rows)])
    found = look(table)
    assert table.probes <= 200 + 2
    assert table.looked_at <= table.probes * SAMPLE
    assert not found.exact
    assert found.total == rows
    hours = found.scales["hours"]
    assert sum(bar.count for bar in hours) == pytest.approx(rows, rel=0.01)
    errors = [abs(bar.count / table.between(bar.start_ms, bar.stop_ms) - 1) for bar in hours[:24]]
    assert sum(errors) / len(errors) < 0.25
    assert all(bar.exact and not bar.count for bar in hours[25:]), "hours without rows are known to be empty"


def test_a_burst_is_found_where_it_is() -> None:
    """50,000 rows within ten seconds, five hours from now, among few others."""
    chance = random.Random(3)
    burst = [NOW_MS + 5 * HOUR_MS + 1_200_000 + chance.randrange(10_000) for _ in range(50_000)]
    others = [NOW_MS + chance.randrange(47 * HOUR_MS) for _ in range(500)]
    table = Rows(burst + others)
    hours = look(table).scales["hours"]
    assert hours[5].count == pytest.approx(50_000, rel=0.1)
    assert max(bar.count for bar in hours[:5] + hours[6:]) < 2_000


def test_what_is_near_stays_exact_below_a_flood_that_is_far() -> None:
    """Each part of the time axis has its own share of the probes."""
    table = Rows([NOW_MS + 1_000 * n for n in range(60)] + [NOW_MS + 20 * HOUR_MS + n for n in range(200_000)])
    found = look(table)
    assert all(bar.exact and bar.count == 5 for bar in found.scales["seconds"])
    assert not found.exact


def test_rows_that_are_due_at_the_same_instant_stay_an_estimate() -> None:
    """No span can be cut below a millisecond; the total tells how many there are."""
    found = look(Rows([NOW_MS + 90_000] * 5_000))
    assert found.scales["minutes"][1].count == 5_000
    assert not found.scales["minutes"][1].exact


def test_what_is_far_is_the_rest() -> None:
    """Beyond the longest scale the table's own count says how many."""
    found = look(Rows([NOW_MS + 10] * 3 + [NOW_MS + 60 * HOUR_MS + n for n in range(10_000)]))
    assert (found.later.count, found.later.exact) == (10_000, True)


def test_tables_add_up() -> None:
    """Partitions are counted each by itself."""
    found = look(Rows([NOW_MS + 1]), Rows([NOW_MS + 2, NOW_MS - 5]))
    assert (found.total, found.overdue.count, found.scales["seconds"][0].count) == (3, 1, 2)
