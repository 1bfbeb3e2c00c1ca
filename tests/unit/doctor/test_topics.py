"""Topics: the plan's words as findings, copies, handlers found by their topics; and how findings are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.doctor.cluster import ReplicaFacts
from retryapp.doctor.findings import Finding, Severity, looked_at, ok
from retryapp.doctor.topics import judge_main_retention, judge_plan, judge_replicas, known_tiers
from retryapp.kafka import AccessDeniedError, Action, Plan, PlanStep, Problem, TopicState

ORDERS = HandlerTopology(group="g", main="orders")


def step(topic: str, action: Action, **more: object) -> PlanStep:
    """One step of a plan for `orders`."""
    told = {"role": "retry", "group": "g", "main": "orders", "partitions": 3, "replication": 1, **more}
    return PlanStep(topic=topic, action=action, **told)  # type: ignore[arg-type]


def test_a_plan_is_told_by_handler() -> None:
    """What serves in one line, what is missing in one, what does not serve one by one."""
    problem = Problem("retention.ms", "1000", "608400000 or more", "it would lose what waits", "Set it: command")
    plan = Plan(
        steps=(
            step("orders", Action.OK, role="main"),
            step(ORDERS.retry_topics[0], Action.OK, config={"retention.ms": "608400000"}),
            step(ORDERS.redelivery, Action.CREATE),
            step(ORDERS.dlq, Action.MISMATCH, problems=(problem,)),
        ),
        brokers=1,
        bootstrap="b",
    )
    fine, missing, wrong = judge_plan(plan)
    assert fine.seen == "2 of 4 as they have to be, 3 partitions, retries kept for 7d1h"
    assert "7d1h" not in next(iter(judge_plan(plan, waits_known=False))).seen
    assert (missing.severity, missing.seen) == (Severity.NOTE, f"not there yet: {ORDERS.redelivery}")
    assert wrong == Finding(
        name=f"topic {ORDERS.dlq}",
        severity=Severity.PROBLEM,
        seen="retention.ms=1000",
        expected="608400000 or more",
        why="it would lose what waits",
        remedy="Set it: command",
    )


def test_a_missing_main_topic_is_a_problem() -> None:
    """With the plan's remedy; what cannot be planned says nothing."""
    plan = Plan(
        steps=(
            step("orders", Action.MISSING, role="main", why={"partitions": "Create it"}),
            step(ORDERS.dlq, Action.BLOCKED),
        ),
        brokers=1,
        bootstrap="b",
    )
    (found,) = judge_plan(plan)
    assert (found.severity, found.name, found.remedy) == (Severity.PROBLEM, "topic orders", "Create it")


def replicas(lagging: Mapping[int, int] | None = None, leaderless: tuple[int, ...] = ()) -> ReplicaFacts:
    """A topic with three copies."""
    return ReplicaFacts(partitions=12, replication=3, leaderless=leaderless, lagging=lagging or {}, operations=None)


def with_settings(**config: str) -> dict[str, TopicState]:
    """The state of topic `t`."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    return {"t": TopicState(name="t", topic_id="x", partitions=12, replication=3, config=named)}


@pytest.mark.parametrize(
    ("facts", "config", "severity", "words"),
    [
        (replicas(), {}, Severity.OK, "1 topic with a leader"),
        (replicas(leaderless=(3,)), {}, Severity.PROBLEM, "no leader of partition 3"),
        (replicas({0: 2, 5: 2}), {"min_insync_replicas": "2"}, Severity.WARNING, "behind of partition 0, 5"),
        (
            replicas({0: 2, 5: 1}),
            {"min_insync_replicas": "2"},
            Severity.PROBLEM,
            "fewer than 2 copies in sync of partition 5",
        ),
        (replicas(dict.fromkeys(range(12), 2)), {}, Severity.WARNING, "8, 9 and 2 more"),
        (
            replicas(),
            {"unclean_leader_election_enable": "true"},
            Severity.WARNING,
            "unclean.leader.election.enable=true",
        ),
    ],
)
def test_copies_and_leaders(facts: ReplicaFacts, config: dict[str, str], severity: Severity, words: str) -> None:
    """Refused writes and missing leaders are problems, a copy that lags is a warning."""
    (found,) = judge_replicas({"t": facts}, with_settings(**config))
    assert found.severity is severity
    assert words in found.seen


def test_tiers_are_read_from_topic_names() -> None:
    """One topic for each delay, or one for all; what only looks like one is passed over."""
    names = [
        f"{ORDERS.prefix}.retry.5m",
        f"{ORDERS.prefix}.retry.1h",
        f"{ORDERS.prefix}.retry.backup",
        "g.cards.retry.7m",
    ]
    assert known_tiers(ORDERS, names) == HandlerTopology("g", "orders", Tiers.PER_DELAY, (300_000, 3_600_000))
    assert known_tiers(ORDERS, [f"{ORDERS.prefix}.retry"]) is ORDERS


def test_a_check_that_fails_by_name_is_a_finding() -> None:
    """What was found before stays; a broker that went silent ends the examination."""

    def refused() -> Iterator[Finding]:
        yield ok("first", "fine")
        raise AccessDeniedError("describe topic t", "b", "Topic authorization failed")

    first, failure = looked_at("topics", refused)
    assert first.name == "first"
    assert (failure.name, failure.severity) == ("topics", Severity.PROBLEM)
    assert "describe topic t" in failure.seen

    def silent() -> Iterator[Finding]:
        raise BrokerUnreachableError("b", "gone")
        yield

    with pytest.raises(BrokerUnreachableError):
        list(looked_at("topics", silent))


def test_a_finding_is_one_line_for_a_log() -> None:
    """What, seen, expected, why, remedy; a full stop each."""
    found = Finding(
        name="disk", severity=Severity.WARNING, seen="1 MiB", expected="2", why="it fills", remedy="Make room"
    )
    assert found.text == "disk: 1 MiB, expected is 2: it fills. Make room."
    assert ok("disk", "fine").text == "disk: fine."


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"retention.ms": "86400000", "cleanup.policy": "delete"}, True),
        ({"retention.ms": "86400000", "cleanup.policy": "compact,delete"}, True),
        ({"retention.ms": "86400000", "cleanup.policy": "compact"}, False),
        ({"retention.ms": "172800000", "cleanup.policy": "delete"}, False),
        ({"retention.ms": "-1", "cleanup.policy": "delete"}, False),
        ({}, False),
    ],
)
def test_a_main_topic_that_forgets_sooner_than_workers_may_be_down_is_found(
    config: dict[str, str], found: bool
) -> None:
    """What was never read would be gone."""
    state = TopicState(name="orders", topic_id="t", partitions=1, replication=1, config=config)
    told = list(judge_main_retention([ORDERS], {"orders": state}, 172_800_000))
    assert bool(told) is found
    for finding in told:
        assert (finding.severity, finding.seen) == (Severity.WARNING, "retention.ms=86400000")
        assert "downtime=" in finding.remedy
    assert list(judge_main_retention([ORDERS], {}, 172_800_000)) == []
