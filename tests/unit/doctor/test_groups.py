"""Group states and committed offsets."""

from __future__ import annotations

import pytest

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import GroupFacts
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.groups import Trace, judge_group, judge_offsets
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


def offsets(committed: dict[str, dict[int, int]], traces: dict[int, Trace] | None = None) -> list[Finding]:
    """Judge offsets of topics that keep 10 to 20 in two partitions."""
    ranges = {topic: {number: OffsetRange(10, 20) for number in (0, 1)} for topic in ORDERS.consumed}
    asked: set[int] = set()

    def traced(topology: HandlerTopology, number: int) -> Trace:
        assert topology is ORDERS
        asked.add(number)
        return (traces or {}).get(number, Trace())

    found = list(judge_offsets([ORDERS], committed, ranges, traced))
    lacking = {n for n in (0, 1) if any(n not in committed.get(topic, {}) for topic in ORDERS.consumed)}
    assert asked == lacking, "the changelog is read for partitions that lack an offset only"
    return found


def at(**places: int) -> dict[str, dict[int, int]]:
    """Return the same offset on all topics, by partition (`p0=15`)."""
    return {topic: {int(place[1:]): offset for place, offset in places.items()} for topic in ORDERS.consumed}


def test_offsets_within_their_topics_are_fine() -> None:
    """Both ends are within."""
    (found,) = offsets({topic: {0: 10, 1: 20} for topic in ORDERS.consumed})
    assert (found.severity, found.seen) == (Severity.OK, "6 committed, all within what the topics keep")


def test_an_offset_outside_is_a_problem_with_the_number_of_lost_records() -> None:
    """Below: deleted before they were read. Above: another topic."""
    below, above = offsets({**at(p0=12, p1=12), "orders": {0: 7, 1: 21}})
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
    """Records waited there, so there were offsets once, and nobody wrote down how far the lane was."""
    (found,) = offsets(at(p0=15), {1: Trace(rows=True)})
    assert found.severity is Severity.PROBLEM
    assert "partition 1" in found.seen
    assert "--reset-offsets" in found.remedy


def test_expired_offsets_that_are_written_down_are_told_with_what_happens() -> None:
    """A worker goes on there, so nobody has to act; it is no new group either."""
    (found,) = offsets(at(p0=15), {1: Trace(rows=True, written=dict.fromkeys(ORDERS.consumed, 12))})
    assert (found.name, found.severity) == ("offsets of orders, expired", Severity.NOTE)
    assert "partition 1" in found.seen
    assert "goes on where its changelog says" in found.why
    assert "offsets.retention.minutes" in found.remedy


def test_expired_offsets_whose_records_are_gone_are_a_problem() -> None:
    """The main topic has forgotten what the group had not read; another one was made anew."""
    written = {"orders": 4, ORDERS.redelivery: 12, ORDERS.retry_topics[0]: 25}
    note, above, below = offsets(at(p0=15), {1: Trace(written=written)})
    assert note.severity is Severity.NOTE
    assert below.severity is above.severity is Severity.PROBLEM
    assert (below.name, below.expected) == ("offset of orders[1]", "10 to 20")
    assert below.seen == f"none committed, and 4 written down in {ORDERS.pending_changelog}"
    assert below.why.startswith("6 records were deleted")
    assert "orders:1 --to-earliest" in below.remedy
    assert (above.name, "made anew" in above.why) == (f"offset of {ORDERS.retry_topics[0]}[1]", True)


def test_an_offset_that_is_missing_beside_others_was_deleted() -> None:
    """What the changelog knows is only told; what it does not know would be done again."""
    committed = at(p0=15, p1=15)
    del committed["orders"][1]
    (known,) = offsets(committed, {1: Trace(written={"orders": 14})})
    assert (known.name, known.severity) == ("offset of orders[1]", Severity.NOTE)
    assert "goes on at 14" in known.why
    (unknown,) = offsets(committed)
    assert (unknown.name, unknown.severity) == ("offset of orders[1]", Severity.WARNING)
    assert "begins at 10" in unknown.why
    assert "orders:1 --to-offset" in unknown.remedy


def test_a_source_that_is_new_and_empty_has_no_offset_yet() -> None:
    """A policy with one tier more."""
    ranges = {topic: {0: OffsetRange(10, 20)} for topic in ORDERS.consumed}
    ranges[ORDERS.redelivery] = {0: OffsetRange(0, 0)}
    committed = {topic: {0: 15} for topic in ORDERS.consumed if topic != ORDERS.redelivery}
    (found,) = judge_offsets([ORDERS], committed, ranges, lambda *_: Trace())
    assert found.severity is Severity.OK


def test_topics_that_are_not_there_say_nothing() -> None:
    """The plan does."""
    assert list(judge_offsets([ORDERS], {}, {}, lambda *_: Trace(rows=True))) == []
