"""Group states and committed offsets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import faust
import pytest

from retryapp import Retries
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.group import PROTOCOL, Trace, judge_group, judge_offsets

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
        ("stable", {"hosts": ("/10.0.0.1",) * 3}, Severity.NOTE, "3 members"),
        ("preparing_rebalancing", {"protocol": ""}, Severity.NOTE, "preparing_rebalancing"),
        ("empty", {"protocol": "", "hosts": ()}, Severity.NOTE, "no worker runs"),
        ("dead", {"protocol": "", "hosts": ()}, Severity.NOTE, "no worker has run yet"),
        ("stable", {"protocol": "range"}, Severity.PROBLEM, "protocol range"),
        ("stable", {"protocol": "", "kind": "CONSUMER"}, Severity.PROBLEM, "consumer"),
    ],
)
def test_states_of_a_group(state: str, changes: dict[str, Any], severity: Severity, words: str) -> None:
    """Another program in our group is a problem; members that join and leave are not."""
    facts = {"kind": "CLASSIC", "protocol": "faust", "hosts": ("/10.0.0.1",), **changes}
    group = SimpleNamespace(
        state=SimpleNamespace(name=state.upper()),
        type=SimpleNamespace(name=facts["kind"]),
        partition_assignor=facts["protocol"],
        members=[SimpleNamespace(host=host) for host in facts["hosts"]],
    )
    found = judge_group("g", group, partitions=2)
    assert found.severity is severity
    assert words in found.seen


def offsets(committed: dict[int, int], traces: dict[int, Trace] | None = None) -> list[Finding]:
    """Judge offsets of a main topic that keeps 10 to 20 in two partitions."""
    ranges = {"orders": {number: range(10, 20) for number in (0, 1)}}
    known = {("orders", number): (traces or {}).get(number, Trace()) for number in {0, 1} - committed.keys()}
    return list(judge_offsets([ORDERS], {"orders": committed}, ranges, known))


def test_an_offset_outside_is_a_problem_with_the_number_of_lost_records() -> None:
    """Before the begin: deleted before they were read. Past the end: another topic."""
    below, above = offsets({0: 7, 1: 21})
    assert below.severity is above.severity is Severity.PROBLEM
    assert (below.name, below.seen, below.expected) == ("offset of orders[0]", "7", "10 to 20")
    assert "3 records deleted" in below.why
    assert "recreated" in above.why
    assert f"--group {ORDERS.group} --reset-offsets --topic orders:0 --to-earliest" in below.remedy


@pytest.mark.parametrize(
    ("committed", "trace", "severity", "name", "seen"),
    [
        ({}, Trace(), Severity.NOTE, "offsets of orders", NEW),
        ({0: 15}, Trace(lost=True), Severity.PROBLEM, "offsets of orders", "partition 1, where records have waited"),
        ({0: 15}, Trace(written=12), Severity.NOTE, "offsets of orders, expired", "partition 1, whose lanes have w"),
        ({0: 15}, Trace(written=4), Severity.PROBLEM, "offset of orders[1]", "none; the changelog says 4"),
    ],
    ids=["new", "forgotten", "expired", "expired and deleted unread"],
)
def test_partitions_without_an_offset(
    committed: dict[int, int], trace: Trace, severity: Severity, name: str, seen: str
) -> None:
    """New ones, ones that were forgotten after records waited, and ones whose changelog says where to continue."""
    (found,) = offsets(committed, {1: trace})
    assert (found.severity, found.name) == (severity, name)
    assert seen in found.seen
    assert found.why
