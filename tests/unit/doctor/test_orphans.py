"""What was left behind: found by its names, and a warning where something waits in it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.orphans import OldTier, Orphan, find_old_tiers, judge_orphans

MINUTE_MS = 60_000


def judged(**changes: object) -> list[Finding]:
    """Judge one handler's topics that nobody has."""
    told = {"group": "g", "main": "orders", "topics": ("g.orders.dlq",), "waiting": 0, "state": None, **changes}
    return list(judge_orphans([Orphan(**told)], []))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "name"), [(None, "handler of orders"), ("dead", "group g on orders")], ids=["this group", "a former one"]
)
def test_records_that_nobody_brings_back_are_a_warning(state: str | None, name: str) -> None:
    """Without records it is only told; both with what to do."""
    (found,) = judged(state=state, waiting=7)
    assert (found.name, found.severity) == (name, Severity.WARNING)
    assert "tables: 7 records" in found.seen
    assert "until nothing waits" in found.remedy
    (left,) = judged(state=state)
    assert (left.severity, left.name) == (Severity.NOTE, name)
    assert r"kafka-topics.sh --delete --topic 'g\.orders\.dlq'" in left.remedy
    assert "dead letters go with them" in left.remedy


def test_a_group_that_is_only_down_is_not_to_be_deleted() -> None:
    """It may be somebody else's."""
    (found,) = judged(state="empty", waiting=1)
    assert found.severity is Severity.NOTE
    assert "--delete" not in found.remedy
    assert judged(state="empty") == []


def unread(topics: Sequence[str]) -> dict[str, int]:
    """Tell how much of each is not read."""
    return {topic: 4 if topic.endswith("5m") else 0 for topic in topics}


def test_retry_topics_that_a_policy_has_no_more_are_found() -> None:
    """Delays that were dropped, and a single topic where there are tiers now; nobody else's names."""
    now = HandlerTopology(group="g", main="orders", tiers=Tiers.PER_DELAY, delays_ms=(MINUTE_MS,))
    names = [*now.owned, "g.orders.retry", "g.orders.retry.5m", "g.orders.retry.mine", "g.orders.eu.retry.5m", "orders"]
    found = find_old_tiers([now], names, unread)
    assert found == (
        OldTier(topic="g.orders.retry", main="orders", unread=0),
        OldTier(topic="g.orders.retry.5m", main="orders", unread=4),
    )
    read, waiting = judge_orphans([], found)
    assert (read.severity, waiting.severity) == (Severity.NOTE, Severity.WARNING)
    assert "up to 4 records" in waiting.seen
    assert r"'g\.orders\.retry'" in read.remedy


def test_tiers_that_became_one_topic_are_found() -> None:
    """And a handler whose topics are all its own is fine."""
    now = HandlerTopology(group="g", main="orders", delays_ms=(MINUTE_MS,))
    assert [old.topic for old in find_old_tiers([now], [*now.owned, "g.orders.retry.5m"], unread)] == [
        "g.orders.retry.5m"
    ]
    assert find_old_tiers([now], [*now.owned], unread) == ()
