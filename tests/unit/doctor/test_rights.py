"""The rights that an application needs, the commands that grant them, and what is missing."""

from __future__ import annotations

import shlex

from retryapp.core.topology import HandlerTopology
from retryapp.doctor.findings import Severity
from retryapp.doctor.group import judge_rights
from retryapp.kafka import KafkaConnection, TopicState
from retryapp.kafka.acls import Resource, acl_commands, needed_acls

ORDERS = HandlerTopology(group="billing", main="orders")
CARDS = HandlerTopology(group="billing", main="cards")
HERE = KafkaConnection("h:1")
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
    assert all(name.startswith("billing.") for topology in (ORDERS, CARDS) for name in topology.owned)
    assert {acl.resource for acl in acls if not acl.needed} == {Resource.CLUSTER}


def test_a_handler_that_publishes_what_is_due_again_writes_to_its_main_topic() -> None:
    """And no other does."""
    through = HandlerTopology(group="billing", main="orders", through_main=True)
    writes = {acl.name for acl in needed_acls([through, CARDS]) if acl.operation == "Write"}
    assert "orders" in writes
    assert "cards" not in writes


def test_the_commands_grant_all_of_it() -> None:
    """One for each resource, quoted for a shell."""
    words = [shlex.split(line) for line in acl_commands(needed_acls([ORDERS]), HERE, principal="User:a b")]
    start = ["kafka-acls.sh", "--bootstrap-server", "h:1", "--add", "--allow-principal", "User:a b"]
    assert all(line[:6] == start for line in words)
    prefixed = ["--resource-pattern-type", "prefixed"]
    assert [[word for word in line[6:] if word != "--operation" and not word[0].isupper()] for line in words] == [
        ["--topic", "billing.", *prefixed],
        ["--topic", "orders"],
        ["--group", "billing"],
        ["--transactional-id", "billing.", *prefixed],
        ["--cluster"],
    ]
    assert sum(line.count("--operation") for line in words) == len(needed_acls([ORDERS]))


def test_the_commands_log_in_where_the_cluster_wants_it() -> None:
    """As they are printed they would be refused by a listener with TLS or a login."""
    secured = KafkaConnection("h:1", {"security.protocol": "SASL_SSL", "sasl.password": "hunter2"})
    for line in acl_commands(needed_acls([ORDERS]), secured, principal="User:a"):
        assert line.startswith("kafka-acls.sh --bootstrap-server h:1 --command-config FILE --add ")
        assert "hunter2" not in line


def topic(*operations: str) -> TopicState:
    return TopicState("t", "x" * 8, 1, 1, {}, operations=frozenset(operations))


def test_all_that_is_needed_is_fine() -> None:
    """More than is needed is fine too; nobody needs to create what is there."""
    topics = {"orders": topic(*MAIN), **{name: topic(*OURS, "ALTER") for name in ORDERS.owned}}
    acls = needed_acls([ORDERS], create_main=True)
    (found,) = judge_rights(acls, topics=topics, group=frozenset({"READ"}), cluster=None)
    assert (found.severity, found.seen) == (Severity.OK, f"{len(topics)} topics and the group: all allowed")


def test_a_topic_that_a_handler_publishes_to_has_to_be_writable() -> None:
    """Its settings need not be readable: then a record that is too large for it is found later."""
    orders = HandlerTopology(group="billing", main="orders", publishes=("receipts",))
    topics = {"orders": topic(*MAIN), "receipts": topic("DESCRIBE", "WRITE")}
    (fine,) = judge_rights(needed_acls([orders]), topics=topics, group=None, cluster=None)
    assert (fine.severity, fine.seen) == (Severity.OK, "2 topics: all allowed")  # of the group nothing is known
    topics["receipts"] = topic("DESCRIBE", "DESCRIBE_CONFIGS")
    (found,) = judge_rights(needed_acls([orders]), topics=topics, group=None, cluster=None)
    assert found.seen == "not allowed: WRITE on topic receipts"


def test_what_is_missing_is_named() -> None:
    """Each operation with its resource, and where the lines come from."""
    topics = {"orders": topic("DESCRIBE", "DESCRIBE_CONFIGS"), ORDERS.dlq: topic(*(OURS - {"WRITE"}))}
    found, cluster = judge_rights(
        needed_acls([ORDERS]), topics=topics, group=frozenset({"DESCRIBE"}), cluster=frozenset({"DESCRIBE"})
    )
    assert found.severity is Severity.PROBLEM
    assert found.seen == "not allowed: WRITE on topic billing.orders.dlq, READ on topic orders, READ on the group"
    assert "plan -A MODULE --acls" in found.remedy
    assert cluster.severity is Severity.NOTE
    assert cluster.seen == "not allowed: DESCRIBE_CONFIGS, IDEMPOTENT_WRITE"


def test_unknown_rights_are_a_note() -> None:
    """A broker that reports none, or nothing exists yet."""
    (found,) = judge_rights(needed_acls([ORDERS]), topics={}, group=None, cluster=None)
    assert found.severity is Severity.NOTE
