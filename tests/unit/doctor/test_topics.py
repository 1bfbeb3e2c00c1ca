"""Topics: the plan, replicas, retention, what is left of former policies; and the text of findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from retryapp.core.jobs import Level
from retryapp.core.text import with_app
from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Severity
from retryapp.doctor.topics import (
    judge_level,
    judge_main_retention,
    judge_old_handler,
    judge_plan,
    judge_replicas,
    judge_unread,
)
from retryapp.kafka import Action, Plan, PlanStep, TopicState
from retryapp.kafka.compare import Problem

ORDERS = HandlerTopology(group="g", main="orders")


def step(topic: str, action: Action, **more: object) -> PlanStep:
    """One step of a plan for `orders`."""
    fields = {"role": "retry", "group": "g", "main": "orders", "partitions": 3, "replication": 1, **more}
    return PlanStep(topic=topic, action=action, **fields)  # type: ignore[arg-type]


def test_a_plan_is_reported_by_handler() -> None:
    """One line for the topics that serve, one for the missing ones, and one for each problem."""
    bad = Problem("retention.ms", "1000", "608400000 or more", "it would lose what waits", "Set it: command")
    steps = (
        step("orders", Action.OK, role="main"),
        step(ORDERS.retry_topics[0], Action.OK, config={"retention.ms": "604800000"}),
        step(ORDERS.events, Action.CREATE),
        step(ORDERS.dlq, Action.MISMATCH, problems=(bad,)),
    )
    plan = Plan(steps=steps, brokers=1, bootstrap="b")
    fine, missing, wrong = judge_plan(plan)
    assert fine.seen == "2 of 4 ok, 3 partitions"
    assert (missing.severity, missing.seen) == (Severity.WARNING, f"missing: {ORDERS.events}")
    (_, missing) = judge_plan(Plan(steps=(steps[0], steps[2]), brokers=1, bootstrap="b"))
    assert missing.severity is Severity.NOTE  # none of ours is there: no worker has run yet
    assert (wrong.name, wrong.severity, wrong.seen) == (f"topic {ORDERS.dlq}", Severity.PROBLEM, "retention.ms=1000")
    assert (wrong.expected, wrong.why, wrong.remedy) == (bad.want, bad.why, bad.remedy)
    no_main = step("orders", Action.MISSING, role="main", why={"partitions": "Create it"})
    (found,) = judge_plan(Plan(steps=(no_main,), brokers=1, bootstrap="b"))
    assert (found.severity, found.name, found.remedy) == (Severity.PROBLEM, "topic orders", "Create it")
    no_target = step("receipts", Action.MISSING, role="published", why={"partitions": "Create it"})
    (found,) = judge_plan(Plan(steps=(no_target,), brokers=1, bootstrap="b"))
    assert (found.name, found.expected) == ("topic receipts", "the handler of orders publishes to it")


def replicas(lagging: Mapping[int, int] | None = None, leaderless: tuple[int, ...] = ()) -> TopicState:
    return TopicState("t", "x" * 8, 12, 3, {}, leaderless, lagging or {})


@pytest.mark.parametrize(
    ("state", "config", "severity", "words"),
    [
        (replicas(), {}, Severity.OK, "1 topic with a leader"),
        (replicas(leaderless=(3,)), {}, Severity.PROBLEM, "no leader of partition 3"),
        (replicas({0: 2, 5: 2}), {"min.insync.replicas": "2"}, Severity.WARNING, "out of sync of partition 0, 5"),
        (replicas({0: 2, 5: 1}), {"min.insync.replicas": "2"}, Severity.PROBLEM, "fewer than 2 replicas in sync of pa"),
        (replicas(dict.fromkeys(range(12), 2)), {}, Severity.WARNING, "8, 9 and 2 more"),
        (replicas(), {"min.insync.replicas": "2"}, Severity.OK, "1 topic with a leader"),
        (replicas(), {"min.insync.replicas": "3"}, Severity.WARNING, "=3 with 3 replicas: writes are refused while"),
        (replicas(), {"min.insync.replicas": "4"}, Severity.WARNING, "is away, and always by brokers before Kafka 3.7"),
        (replicas(), {"unclean.leader.election.enable": "true"}, Severity.WARNING, "election.enable=true"),
    ],
)
def test_replicas_and_leaders(state: TopicState, config: dict[str, str], severity: Severity, words: str) -> None:
    """Refused writes and missing leaders are problems, a replica that lags is a warning."""
    (found,) = judge_replicas({"t": replace(state, config=config)})
    assert found.severity is severity
    assert words in f"{found.seen}: {found.why}"


@pytest.mark.parametrize(("retention_ms", "found"), [("86400000", True), ("172800000", False), ("-1", False)])
def test_a_main_topic_that_deletes_before_the_allowed_downtime_ends(retention_ms: str, found: bool) -> None:
    """Unread records would be lost."""
    config = {"retention.ms": retention_ms, "cleanup.policy": "delete"}
    state = TopicState(name="orders", topic_id="t", partitions=1, replication=1, config=config)
    findings = list(judge_main_retention([ORDERS], {"orders": state}, 172_800_000))
    assert [(each.severity, each.seen) for each in findings] == [(Severity.WARNING, "retention.ms=86400000")] * found
    assert list(judge_main_retention([ORDERS], {}, 172_800_000)) == []


def test_a_pause_is_a_warning_that_names_who_has_paused_it_first() -> None:
    paused = {1: Level(since_ms=50_000, by="bob"), 0: Level(since_ms=0, by="ann", why="migration")}
    found = judge_level("orders", paused, now_ms=3_600_000)
    assert (found.severity, found.seen) == (
        Severity.WARNING, "paused by ann: migration, for 1h, 2 partitions",
    )  # fmt: skip
    assert "'retryapp handler resume -A MODULE --topic orders --why TEXT'" in found.remedy


@pytest.mark.parametrize(
    ("circuit", "name", "why", "words"),
    [
        ("", "handler of orders", "nothing is delivered", "outage close -A shop:app --topic orders --why TEXT"),
        ("Led_ger2", "circuit Led_ger2 of orders", "what has failed because of Led_ger2 is not delivered",
         "outage close -A shop:app --topic orders --circuit Led_ger2 --why TEXT"),
    ],
)  # fmt: skip
def test_a_forced_circuit_is_told_by_what_it_holds_back(circuit: str, name: str, why: str, words: str) -> None:
    """Of one with a name others go on. What ends it can be run as it is printed."""
    found = judge_level("orders", {0: Level(since_ms=0, how="forced open")}, circuit=circuit, now_ms=0)
    assert (found.name, found.why) == (name, why)
    assert f"'retryapp {words}'" in with_app(found.remedy, "shop:app")


def test_a_pause_has_a_length_from_its_first_moment_on() -> None:
    """One of less than a second, or of a clock that is behind, could not be written: the check failed."""
    for now_ms, words in ((999, "paused by ann, for 0s"), (-5, "for 0s"), (1_999, "paused by ann, for 1s")):
        assert words in judge_level("orders", {0: Level(since_ms=0, by="ann")}, now_ms=now_ms).seen


def test_unread_records_that_are_deleted_before_long_are_a_problem() -> None:
    found = judge_unread("orders", {4: 90_000_000, 1: 360_000_000}, 604_800_000)
    assert (found.severity, found.seen) == (Severity.PROBLEM, "the oldest is 4d4h old, in partition 1, 4")
    assert "deletes records after 7d" in found.why


@pytest.mark.parametrize(
    ("retention_ms", "policy", "after_ms"),
    [
        ("5", "delete", 5),
        ("5", "compact,delete", 5),
        ("5", "compact", None),
        ("-1", "delete", None),
        (str(2**63 - 1), "delete", None),
    ],
)
def test_after_how_long_a_topic_deletes_records(retention_ms: str, policy: str, after_ms: int | None) -> None:
    """A compacted topic has a retention.ms, too, and the largest number means never."""
    config = {"retention.ms": retention_ms, "cleanup.policy": policy}
    assert replace(replicas(), config=config).deletes_after_ms == after_ms


@pytest.mark.parametrize(("waiting", "severity"), [(0, Severity.NOTE), (7, Severity.WARNING)])
def test_leftovers_count_only_where_records_wait(waiting: int, severity: Severity) -> None:
    """It names the number."""
    found = judge_old_handler("orders", waiting)
    assert found.severity is severity
    assert ("7 waiting records" in found.seen) == bool(waiting)
    assert found.remedy
