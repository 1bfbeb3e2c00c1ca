"""The rights that an application needs, the commands that grant them, and what is missing."""

from __future__ import annotations

import shlex

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.cluster import ReplicaFacts
from retryapp.doctor.findings import Severity
from retryapp.doctor.rights import judge_rights
from retryapp.kafka.acls import Pattern, Resource, acl_commands, needed_acls

ORDERS = HandlerTopology(group="billing", main="orders")
CARDS = HandlerTopology(group="billing", main="cards")
OURS = {"DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE"}
MAIN = {"DESCRIBE", "DESCRIBE_CONFIGS", "READ"}


def test_one_prefix_serves_all_handlers() -> None:
    """Topics and transactional ids by prefix, main topics and the group by name."""
    acls = needed_acls([ORDERS, CARDS])
    by_place: dict[tuple[str, str, str], set[str]] = {}
    for acl in acls:
        by_place.setdefault((acl.resource.value, acl.name, acl.pattern.value), set()).add(acl.operation)
        assert acl.why
    assert by_place == {
        ("Topic", "billing.", "prefixed"): {"Create", "Describe", "DescribeConfigs", "Read", "Write"},
        ("Topic", "cards", "literal"): {"Describe", "DescribeConfigs", "Read"},
        ("Topic", "orders", "literal"): {"Describe", "DescribeConfigs", "Read"},
        ("Group", "billing", "literal"): {"Read"},
        ("TransactionalId", "billing.", "prefixed"): {"Describe", "Write"},
        ("Cluster", "kafka-cluster", "literal"): {"IdempotentWrite", "Describe", "DescribeConfigs"},
    }
    for topology in (ORDERS, CARDS):
        assert all(name.startswith("billing.") for name in topology.owned)
    assert {acl.resource for acl in acls if not acl.needed} == {Resource.CLUSTER}


def test_a_main_topic_that_is_to_be_made_needs_the_right_to() -> None:
    """Only then."""
    made = {(a.name, a.operation) for a in needed_acls([ORDERS], create_main=True) if a.pattern is Pattern.LITERAL}
    assert ("orders", "Create") in made
    assert ("orders", "Create") not in {(a.name, a.operation) for a in needed_acls([ORDERS])}


def test_the_lines_grant_all_of_it() -> None:
    """One for each resource, quoted for a shell."""
    lines = acl_commands(needed_acls([ORDERS]), bootstrap="host:9092", principal="User:CN=a b")
    assert len(lines) == 5
    words = [shlex.split(line) for line in lines]
    for line in words:
        assert line[:6] == [
            "kafka-acls.sh",
            "--bootstrap-server",
            "host:9092",
            "--add",
            "--allow-principal",
            "User:CN=a b",
        ]
    assert words[0][-4:] == ["--topic", "billing.", "--resource-pattern-type", "prefixed"]
    assert words[1][-2:] == ["--topic", "orders"]
    assert words[2][-4:] == ["--operation", "Read", "--group", "billing"]
    assert words[3][-4:] == ["--transactional-id", "billing.", "--resource-pattern-type", "prefixed"]
    assert words[4][-1] == "--cluster"
    assert sum(line.count("--operation") for line in words) == len(needed_acls([ORDERS]))


def topic(*operations: str) -> ReplicaFacts:
    """A topic on which this may be done."""
    return ReplicaFacts(partitions=1, replication=1, leaderless=(), lagging={}, operations=frozenset(operations))


def test_all_that_is_needed_is_fine() -> None:
    """More than is needed is fine too; nobody needs to create what is there."""
    topics = {"orders": topic(*MAIN), **{name: topic(*OURS, "ALTER") for name in ORDERS.owned}}
    found = list(
        judge_rights(needed_acls([ORDERS], create_main=True), topics=topics, group=frozenset({"READ"}), cluster=None)
    )
    assert [finding.severity for finding in found] == [Severity.OK]


def test_what_is_missing_is_named() -> None:
    """Each operation with its resource, and where the lines come from."""
    topics = {"orders": topic("DESCRIBE", "DESCRIBE_CONFIGS"), ORDERS.dlq: topic(*(OURS - {"WRITE"}))}
    found, cluster = judge_rights(
        needed_acls([ORDERS]), topics=topics, group=frozenset({"DESCRIBE"}), cluster=frozenset({"DESCRIBE"})
    )
    assert found.severity is Severity.PROBLEM
    assert found.seen == ("not allowed: WRITE on topic billing.orders.dlq, READ on topic orders, READ on the group")
    assert "plan --acls" in found.remedy
    assert cluster.severity is Severity.NOTE
    assert cluster.seen == "not allowed: DESCRIBE_CONFIGS, IDEMPOTENT_WRITE"


def test_nothing_told_is_a_note() -> None:
    """A broker that tells no rights, or nothing that exists yet."""
    (found,) = judge_rights(needed_acls([ORDERS]), topics={}, group=None, cluster=None)
    assert found.severity is Severity.NOTE
