"""Group states and committed offsets."""

from __future__ import annotations

import faust
import pytest

from retryapp import Retries
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import GroupFacts
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.group import PROTOCOL, Trace, judge_group, judge_offsets
from retryapp.kafka import OffsetRange

ORDERS = HandlerTopology(group="g", main="orders")
NEW = "none yet for 2 of 2 partitions"


def test_the_protocol_is_the_runtimes() -> None:
    """The doctor is below the runtime, so it repeats the name."""
    app = faust.App("names", broker="kafka://127.0.0.1:1")
    Retries(app)
    assert app.conf.PartitionAssignor(app).name == PROTOCOL


@pytest.mark.parametrize(
    ("state", "changes", "severity", "words"),
    [
        ("stable", {}, Severity.OK, "stable, 1 member on 10.0.0.1"),
        ("stable", {"hosts": ("10.0.0.1",) * 3}, Severity.NOTE, "3 members"),
        ("preparing_rebalancing", {"protocol": ""}, Severity.NOTE, "preparing_rebalancing"),
        ("empty", {"protocol": "", "hosts": ()}, Severity.NOTE, "no worker runs"),
        ("dead", {"protocol": "", "hosts": ()}, Severity.NOTE, "no worker has run yet"),
        ("stable", {"protocol": "range"}, Severity.PROBLEM, "protocol range"),
        ("stable", {"protocol": "", "kind": "consumer"}, Severity.PROBLEM, "consumer"),
    ],
)
def test_states_of_a_group(state: str, changes: dict[str, object], severity: Severity, words: str) -> None:
    """Another program in our group is a problem; members that join and leave are not."""
    facts = {"kind": "classic", "protocol": "faust", "hosts": ("10.0.0.1",), "operations": None, **changes}
    found = judge_group("g", GroupFacts(state=state, **facts), partitions=2)  # type: ignore[arg-type]
    assert found.severity is severity
    assert words in found.seen


def offsets(committed: dict[str, dict[int, int]], traces: dict[int, Trace] | None = None) -> list[Finding]:
    """Judge offsets of topics that keep 10 to 20 in two partitions."""
    ranges = {topic: {number: OffsetRange(10, 20) for number in (0, 1)} for topic in ORDERS.consumed}
    asked: set[int] = set()

    def traced(_: HandlerTopology, number: int) -> Trace:
        asked.add(number)
        return (traces or {}).get(number, Trace())

    found = list(judge_offsets([ORDERS], committed, ranges, traced))
    lacking = {n for n in (0, 1) if any(n not in committed.get(topic, {}) for topic in ORDERS.consumed)}
    assert asked == lacking, "the changelog is read only for partitions that lack an offset"
    return found


def at(**places: int) -> dict[str, dict[int, int]]:
    """Return the same offset on all topics, by partition (`p0=15`)."""
    return {topic: {int(place[1:]): offset for place, offset in places.items()} for topic in ORDERS.consumed}


def test_offsets_within_their_topics_are_fine() -> None:
    """Both ends are within."""
    (found,) = offsets({topic: {0: 10, 1: 20} for topic in ORDERS.consumed})
    assert found.severity is Severity.OK
    assert "all within their topics" in found.seen


def test_an_offset_outside_is_a_problem_with_the_number_of_lost_records() -> None:
    """Before the begin: deleted before they were read. Past the end: another topic."""
    below, above = offsets({**at(p0=12, p1=12), "orders": {0: 7, 1: 21}})
    assert below.severity is above.severity is Severity.PROBLEM
    assert (below.name, below.seen, below.expected) == ("offset of orders[0]", "7", "10 to 20")
    assert "3 records deleted" in below.why
    assert "recreated" in above.why
    assert "orders:0 --to-earliest" in below.remedy


@pytest.mark.parametrize(
    ("committed", "trace", "severity", "name", "seen"),
    [
        ({}, Trace(), Severity.NOTE, "offsets of orders", NEW),
        (at(p0=15), Trace(rows=True), Severity.PROBLEM, "offsets of orders", "partition 1, where records have waited"),
        (
            at(p0=15),
            Trace(rows=True, written=dict.fromkeys(ORDERS.consumed, 12)),
            Severity.NOTE,
            "offsets of orders, expired",
            "partition 1, whose lanes have worked",
        ),
    ],
    ids=["new", "forgotten", "expired"],
)
def test_partitions_without_any_offset(
    committed: dict[str, dict[int, int]], trace: Trace, severity: Severity, name: str, seen: str
) -> None:
    """New ones, ones that were forgotten after records waited, and ones whose changelog says where to continue."""
    (found,) = offsets(committed, {1: trace})
    assert (found.severity, found.name) == (severity, name)
    assert seen in found.seen
    assert found.why


def test_expired_offsets_whose_records_are_gone_are_a_problem() -> None:
    """The main topic has deleted what the group had not read."""
    written = {**dict.fromkeys(ORDERS.consumed, 12), "orders": 4}
    (gone,) = offsets(at(p0=15), {1: Trace(written=written)})
    assert (gone.severity, gone.name) == (Severity.PROBLEM, "offset of orders[1]")
    assert gone.seen == "none; the changelog says 4"
    assert gone.why.startswith("6 records deleted")


def test_an_offset_of_one_topic_that_was_deleted() -> None:
    """A note where the changelog knows it; otherwise records would be processed again."""
    committed = at(p0=15, p1=15)
    del committed["orders"][1]
    (known,) = offsets(committed, {1: Trace(written={"orders": 14})})
    assert (known.name, known.severity) == ("offsets of orders, expired", Severity.NOTE)
    (unknown,) = offsets(committed)
    assert (unknown.name, unknown.severity) == ("offset of orders[1]", Severity.WARNING)
    assert "begins at 10" in unknown.why
    assert "orders:1 --to-offset" in unknown.remedy


def test_a_source_that_is_new_and_empty_has_no_offset_yet() -> None:
    """A policy with one more delay; and topics that do not exist report nothing."""
    ranges = {topic: {0: OffsetRange(10, 20)} for topic in ORDERS.consumed}
    new = ORDERS.consumed[-1]
    ranges[new] = {0: OffsetRange(0, 0)}
    committed = {topic: {0: 15} for topic in ORDERS.consumed if topic != new}
    (found,) = judge_offsets([ORDERS], committed, ranges, lambda *_: Trace())
    assert found.severity is Severity.OK
    assert list(judge_offsets([ORDERS], {}, {}, lambda *_: Trace(rows=True))) == []
