"""The analysis compared with the ledger of the topics."""

from __future__ import annotations

from typing import Any

import pytest

from retryapp.pipeline.analysis.counts import OF_FAILED, compare

COVERED = {"from_offset": 0, "to_offset": 5, "cut_offset": 5, "gaps": 0, "overlaps": 0}
ROW = {**dict.fromkeys(OF_FAILED, 0), **COVERED, "group": "g", "main": "m", "partition": 0}
ROW |= {"received": 5, "done": 3, "pending": 2, "recovered": 2}
LEDGER = {**ROW, "skipped": 0, "unknown": 0, "expired_offsets": 0}


@pytest.mark.parametrize(
    ("ledger", "different"),
    [
        ({}, []),
        ({"done": 1, "skipped": 2}, []),
        ({"dead": 1}, ["dead"]),
        ({"done": 1, "recovered": 0, "unknown": 2}, []),
        ({"done": 1, "recovered": 0, "unknown": 1}, ["recovered", "done"]),
        ({"received": 3, "done": 1, "recovered": 0, "expired_offsets": 2}, []),
        ({"pending": 3, "unknown": 1}, ["pending"]),
    ],
)
def test_the_ledger_may_count_fewer_by_what_retention_has_deleted(ledger: dict[str, Any], different: list[str]) -> None:
    """No more than that, and never more of anything: the archive would have missed it."""
    assert [each["name"] for each in compare(ROW, LEDGER | ledger)] == different


def test_without_a_dead_letter_topic_what_is_lost_is_unknown_to_the_ledger() -> None:
    assert compare(ROW | {"lost": 1}, LEDGER | {"unknown": 1}) == []
