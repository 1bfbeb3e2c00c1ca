"""Group states and committed offsets."""

from __future__ import annotations

import pytest

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import GroupFacts
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.groups import judge_group, judge_offsets
from retryapp.kafka import OffsetRange

ORDERS = HandlerTopology(group="g", main="orders")


def group(state: str, protocol: str = "faust", members: int = 1, kind: str = "classic") -> Finding:
    """Judge a group of a topic with two partitions."""
    facts = GroupFacts(state=state, kind=kind, protocol=protocol, hosts=("10.0.0.1",) * members, operations=None)
    (finding,) = judge_group("g", facts, partitions=2, protocols={"faust"})
    return finding


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (group("stable"), Severity.OK, "stable, 1 member on 10.0.0.1, protocol faust"),
        (group("stable", members=3), Severity.NOTE, "3 members"),
        (group("preparing_rebalancing", protocol=""), Severity.NOTE, "not agreed"),
        (group("empty", protocol="", members=0), Severity.NOTE, "no worker runs"),
        (group("dead", protocol="", members=0), Severity.NOTE, "no worker ever ran"),
        (group("stable", protocol="range"), Severity.PROBLEM, "protocol range"),
        (group("stable", protocol="faust-at-least-once"), Severity.PROBLEM, "faust-at-least-once"),
        (group("stable", protocol="", kind="consumer"), Severity.PROBLEM, "consumer"),
    ],
)
def test_a_groups_state_is_told(found: Finding, severity: Severity, words: str) -> None:
    """Another program in our group is a problem; comings and goings are not."""
    assert found.severity is severity
    assert words in found.seen


def offsets(committed: dict[str, dict[int, int]], rows: set[int] | None = None) -> list[Finding]:
    """Judge offsets of topics that keep 10 to 20 in two partitions."""
    ranges = {topic: {number: OffsetRange(10, 20) for number in (0, 1)} for topic in ORDERS.consumed}
    asked: list[tuple[str, int]] = []

    def has_rows(changelog: str, number: int) -> bool:
        asked.append((changelog, number))
        return number in (rows or set())

    found = list(judge_offsets([ORDERS], committed, ranges, has_rows))
    assert all(changelog == ORDERS.pending_changelog for changelog, _ in asked)
    bare = [n for n in (0, 1) if not any(n in at for at in committed.values())]
    assert [number for _, number in asked] == bare, "the changelog is read for partitions without any offset only"
    return found


def test_offsets_within_their_topics_are_fine() -> None:
    """Both ends are within."""
    (found,) = offsets({topic: {0: 10, 1: 20} for topic in ORDERS.consumed})
    assert (found.severity, found.seen) == (Severity.OK, "6 committed, all within what the topics keep")


def test_an_offset_outside_is_a_problem_with_the_number_of_lost_records() -> None:
    """Below: deleted before they were read. Above: another topic."""
    below, above = offsets({"orders": {0: 7, 1: 21}, ORDERS.redelivery: {0: 12, 1: 12}})
    assert below.severity is above.severity is Severity.PROBLEM
    assert below.name == "offset of orders[0]"
    assert (below.seen, below.expected) == ("7", "10 to 20")
    assert "3 records" in below.why
    assert "made anew" in above.why
    assert "orders:0" in below.remedy


def test_a_new_group_has_none() -> None:
    """A worker sets them at its start."""
    (found,) = offsets({})
    assert (found.severity, found.seen) == (Severity.NOTE, "none yet for 2 of 2 partitions")


def test_forgotten_offsets_are_a_problem() -> None:
    """Records waited there, so there were offsets once."""
    (found,) = offsets({"orders": {0: 15}}, rows={1})
    assert found.severity is Severity.PROBLEM
    assert "partition 1" in found.seen


def test_topics_that_are_not_there_say_nothing() -> None:
    """The plan does."""
    assert list(judge_offsets([ORDERS], {}, {}, lambda *_: True)) == []
