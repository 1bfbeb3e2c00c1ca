"""What a plan says, from states alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from confluent_kafka import Uuid

from retryapp.core.errors import TopicMismatchError, TopicMissingError
from retryapp.core.row_keys import IDENTITY_BYTES, is_identity
from retryapp.core.topology import HandlerTopology, topic_specs
from retryapp.kafka import (
    Action,
    KafkaConnection,
    Plan,
    PlanOptions,
    PlanStep,
    TopicState,
    plan_topics,
)
from retryapp.kafka.acls import needed_acls
from retryapp.kafka.admin import ClusterState, url_safe_topic_id
from retryapp.kafka.compare import Problem, compare, keeps, kept_ms
from retryapp.kafka.discovery import find_handlers, with_dead_letters
from retryapp.kafka.errors import OwnerMismatchError, ReplicationTooLowError
from retryapp.kafka.owner import OwnerMark, decode_owner_mark, encode_owner_mark
from retryapp.kafka.plan import check_replication, plan_handler

TOPOLOGY = HandlerTopology(group="billing", main="orders", delays_ms=(60_000, 3_600_000))
(RETRY,) = TOPOLOGY.retry_topics


def of(brokers, copies):
    """Return a cluster whose brokers give new topics so many copies."""
    return ClusterState(
        tuple(range(brokers)), {} if copies is None else {"0": {"default.replication.factor": str(copies)}}
    )


ONE = of(1, 1)
THREE = of(3, 3)


def main_state(**changes):
    base = TopicState("orders", "abcdefgh", 4, 3, {"max.message.bytes": "2000000"})
    return dataclasses.replace(base, **changes)


def steps(states=(), cluster=THREE, options=None):
    """Plan the handler, with the main topic unless told."""
    known = {state.name: state for state in states} or {"orders": main_state()}
    return {step.topic: step for step in plan_handler(TOPOLOGY, known, cluster, options or PlanOptions())}


def served(name=None, config=None, **changes):
    """Return states of all topics as they have to be, but for one of them."""
    own = [
        TopicState(step.topic, "x" * 8, step.partitions, 3, dict(step.config))
        for step in steps().values()
        if step.spec is not None
    ]
    return [
        dataclasses.replace(each, config={**each.config, **(config or {})}, **changes) if each.name == name else each
        for each in (main_state(), *own)
    ]


def test_ours_follow_the_main_topic():
    """Partition count, copies of the broker's default, and room over its largest record."""
    for step in list(steps().values())[1:]:
        assert (step.action, step.partitions, step.replication) == (Action.CREATE, 4, 3)
        assert int(step.config["max.message.bytes"]) == 2_000_000 + 64 * 1024
        assert step.config["min.insync.replicas"] == "2"
        assert set(step.config) <= set(step.why)


def test_copies_are_those_of_the_brokers_default():
    """Whatever the main topic has: that was somebody else's decision, perhaps long ago."""
    assert steps([main_state(replication=1)], THREE)[TOPOLOGY.dlq].replication == 3
    assert steps([main_state(replication=3)], ONE)[TOPOLOGY.dlq].replication == 1


class _Admin:
    """The cluster as a plan asks it; no topic is there but the main topic."""

    connection = KafkaConnection("kafka:9092")

    def __init__(self, cluster):
        self._cluster = cluster

    def cluster(self):
        return self._cluster

    def describe_topics(self, names):
        return {"orders": main_state()} if "orders" in names else {}


def test_topics_with_too_few_copies_are_not_planned():
    """Before anything is made."""
    few = of(3, 1)
    with pytest.raises(ReplicationTooLowError):
        plan_topics(_Admin(few), [TOPOLOGY])
    assert plan_topics(_Admin(few), [TOPOLOGY], PlanOptions(allow_low_replication=True)).to_create
    assert plan_topics(_Admin(THREE), [TOPOLOGY]).to_create


@pytest.mark.parametrize(
    ("brokers", "mains", "low", "copies"),
    [
        (3, 1, False, 3),
        (3, 2, False, 3),
        (3, 4, False, 4),
        (3, 2, True, 2),
        (2, 1, False, 1),
        (3, None, False, 3),
        (3, None, True, None),
        (2, None, False, None),
    ],
)
def test_copies_when_the_default_cannot_be_read(brokers, mains, low, copies):
    """As many as the main topic has, without it the broker decides; but never so few that the start is refused."""
    unknown, options = of(brokers, None), PlanOptions(create_main_partitions=5, allow_low_replication=low)
    main = main_state(name="other") if mains is None else main_state(replication=mains)
    step = steps([main], unknown, options)[TOPOLOGY.dlq]
    assert (step.replication, step.spec.replication) == (copies, -1 if copies is None else copies)
    made = TopicState(TOPOLOGY.dlq, "x" * 8, step.partitions, copies or brokers, step.spec.config)
    assert steps([main, made], unknown, options)[TOPOLOGY.dlq].action is Action.OK


def test_a_missing_main_topic_and_ours_are_created_with_the_partitions_asked_for():
    """Whether the brokers' default is known or not."""
    created = steps([main_state(name="other")], of(3, None), PlanOptions(create_main_partitions=5))
    assert created["orders"].action is Action.CREATE
    assert created[TOPOLOGY.dlq].partitions == 5


def test_a_missing_main_topic_is_all_that_is_planned():
    """Also where ours exist: what they should be like is not known."""
    found = steps([state for state in served() if state.name != "orders"])
    assert {name: step.action for name, step in found.items()} == {"orders": Action.MISSING}


@pytest.mark.parametrize(
    ("name", "changes", "setting"),
    [
        (TOPOLOGY.pending_changelog, {"cleanup.policy": "delete"}, "cleanup.policy"),
        (TOPOLOGY.pending_changelog, {"cleanup.policy": "delete,compact"}, "cleanup.policy"),
        (TOPOLOGY.pending_changelog, {"delete.retention.ms": "1000"}, "delete.retention.ms"),
        (RETRY, {"cleanup.policy": "compact"}, "cleanup.policy"),
        (RETRY, {"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        (TOPOLOGY.events, {"retention.ms": "604799999"}, "retention.ms"),
        (TOPOLOGY.dlq, {"retention.bytes": "1000000000"}, "retention.bytes"),
        (TOPOLOGY.dlq, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type"),
        (TOPOLOGY.dlq, {"max.message.bytes": "2000000"}, "max.message.bytes"),
        (TOPOLOGY.events, {"min.insync.replicas": "1"}, "min.insync.replicas"),
    ],
)
def test_a_setting_that_would_lose_or_delay_records_is_a_mismatch(name, changes, setting):
    """It says what is there, what is needed, why and what to do."""
    found = steps(served(name, changes))
    assert {topic: step.action for topic, step in found.items() if step.action is not Action.OK} == {
        name: Action.MISMATCH
    }
    (problem,) = found[name].problems
    assert problem.setting == setting
    assert problem.have == changes[setting]
    assert problem.why
    assert f"--topic {name} --add-config {setting}=" in problem.remedy


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (RETRY, {"retention.ms": "1000", "retention.bytes": "1000"}),
        (TOPOLOGY.events, {"retention.ms": "-1"}),
        (TOPOLOGY.events, {"retention.ms": "9000000000"}),
        (TOPOLOGY.dlq, {"max.message.bytes": "9000000"}),
        (TOPOLOGY.dlq, {"compression.type": "zstd"}),
        (TOPOLOGY.pending_changelog, {"segment.ms": "600000", "min.cleanable.dirty.ratio": "0.5"}),
        (TOPOLOGY.events, {"min.insync.replicas": "3"}),
    ],
)
def test_more_than_needed_is_fine(name, changes):
    """Longer retention, more room, settings that lose nothing; a retry topic is history, whatever is kept of it."""
    assert steps(served(name, changes))[name].action is Action.OK


@pytest.mark.parametrize(("partitions", "remedy"), [(2, "topics grow"), (8, "--alter --topic orders --partitions 8")])
def test_another_partition_count_is_a_mismatch(partitions, remedy):
    """The remedy differs: Kafka adds partitions and never removes them."""
    (problem,) = steps(served(TOPOLOGY.dlq, partitions=partitions))[TOPOLOGY.dlq].problems
    assert (problem.setting, problem.have, problem.want) == ("partitions", str(partitions), "4")
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("brokers", "replication", "allowed", "refused"),
    [(3, 1, False, True), (3, 2, False, True), (3, 3, False, False), (3, 1, True, False), (2, 1, False, False)],
)
def test_few_copies_on_many_brokers_are_refused_unless_allowed(brokers, replication, allowed, refused):
    """Both for the default that new topics would get and for topics that are there."""
    options = PlanOptions(allow_low_replication=allowed)
    cluster = of(brokers, replication)
    if refused:
        with pytest.raises(ReplicationTooLowError, match=f"default.replication.factor={replication} on {brokers}"):
            check_replication(cluster, options)
    else:
        check_replication(cluster, options)
    spec = topic_specs(TOPOLOGY, partitions=4, main_max_message_bytes=1, replication=replication)[0]
    state = TopicState(spec.name, "x" * 8, 4, replication, spec.config)
    problems = compare(spec, state, main=TOPOLOGY.main, brokers=brokers, allow_low_replication=allowed)
    assert [problem.setting for problem in problems] == (["replication"] if refused else [])


def test_settings_that_are_not_told_are_a_mismatch():
    """Without a value nobody can say that it serves."""
    states = [dataclasses.replace(state, config={}) if state.name == TOPOLOGY.events else state for state in served()]
    problems = steps(states)[TOPOLOGY.events].problems
    assert {"cleanup.policy", "retention.ms"} <= {problem.setting for problem in problems}
    assert {problem.have for problem in problems} == {"(unknown)"}


def step(action, *problems):
    facts = {"partitions": 1, "replication": 1, "why": {"partitions": "Create it"}, "problems": problems}
    return PlanStep(topic="t", role="dlq", action=action, group="g", main="m", **facts)


@pytest.mark.parametrize(
    ("planned", "error"),
    [
        (step(Action.MISSING), TopicMissingError),
        (step(Action.MISMATCH, Problem("retention.ms", "1", "2", "why", "Set it")), TopicMismatchError),
        (step(Action.MISMATCH, Problem("owner", "a.b+c", "a+b.c", "why", "Rename")), OwnerMismatchError),
    ],
)
def test_a_refused_plan_raises_by_name(planned, error):
    """With topic and remedy; a plan without refusals passes."""
    fine = Plan((step(Action.OK), step(Action.CREATE)), 1, "b:9092")
    fine.raise_refused()
    assert not fine.ok
    with pytest.raises(error, match="'t'") as caught:
        Plan((step(Action.OK), planned), 1, "b:9092").raise_refused()
    assert caught.value.exit_code == 3


def test_a_refused_plan_names_all_missing_topics():
    """One at each start would take as many starts."""
    missing = [dataclasses.replace(step(Action.MISSING), topic=topic) for topic in ("orders", "payments", "orders")]
    with pytest.raises(TopicMissingError, match=r"'orders' does not exist .*Create it\. Missing as well: 'payments'$"):
        Plan(tuple(missing), 1, "b:9092").raise_refused()


def test_a_topic_id_never_holds_a_slash():
    """The client library prints plain base64; a slash would split a failure id."""
    uuid = Uuid(-5, 7_777_777_777_777)
    assert "/" in str(uuid)
    assert url_safe_topic_id(uuid) == str(uuid).replace("/", "_").replace("+", "-")


def test_owner_marks_are_read_back_and_nothing_else_is_one():
    """Rows, progress and damaged marks are none; a mark's key is no row's."""
    mark = OwnerMark("a.b", "c")
    key, value = encode_owner_mark(mark, "0" * 32)
    assert decode_owner_mark(key, value) == mark
    assert not is_identity(key)
    assert mark.text != OwnerMark("a", "b.c").text
    damaged = ((key, bad) for bad in (None, b"{", b"[]", b'{"group":"a"}'))
    for other in [(None, value), (b"x" * IDENTITY_BYTES, value), *damaged]:
        assert decode_owner_mark(*other) is None


def test_the_topic_of_seen_events_is_planned_and_has_to_cover_the_window():
    """It is made where a handler deduplicates; one that forgets before the window is over is a mismatch."""
    topology = dataclasses.replace(TOPOLOGY, seen_window_ms=86_400_000)
    name = topology.seen_changelog
    planned = {step.topic: step for step in plan_handler(topology, {"orders": main_state()}, THREE, PlanOptions())}
    assert (planned[name].action, planned[name].role, planned[name].partitions) == (Action.CREATE, "seen", 4)
    for retention_ms, action in (("90000000", Action.OK), ("86400000", Action.MISMATCH)):
        config = {**planned[name].config, "retention.ms": retention_ms}
        known = {"orders": main_state(), name: TopicState(name, "x" * 8, 4, 3, config)}
        found = {step.topic: step for step in plan_handler(topology, known, THREE, PlanOptions())}
        assert found[name].action is action


def test_dead_letter_topics_are_found_by_their_names() -> None:
    """Those of the policy stay; another handler's and topics that no rule can name are left alone."""
    topology = HandlerTopology("g", "orders", dead_letters=("fraud",))
    names = [
        "g.orders.dlq",
        "g.orders.dlq.invalid",
        "g.orders.dlq.retry",
        "g.orders.dlq.a.b",
        "g.orders.eu.dlq.x",
        "g.x",
    ]
    found = with_dead_letters(topology, names)
    assert found.dlqs == ("g.orders.dlq", "g.orders.dlq.fraud", "g.orders.dlq.invalid")
    assert with_dead_letters(HandlerTopology("g", "orders"), ["g.orders.dlq"]).dead_letters == ()


def test_topics_of_a_handler_of_dead_letters_are_planned_with_those_of_its_handler():
    """Before its main topic exists, with the same partitions, and room for a letter's headers and its own."""
    letters = HandlerTopology("billing", "billing.orders.dlq", drop=True, letters_of="orders")

    def planned(*states, main=main_state(), options=PlanOptions()):  # noqa: B008 - both are frozen
        known = {state.name: state for state in (*states, *([main] if main else []))}
        return {step.topic: step for step in plan_handler(letters, known, THREE, options)}

    new = planned()
    assert list(new) == list(letters.owned), "the main topic is a step of the other handler"
    changelog = new[letters.pending_changelog]
    assert (changelog.action, changelog.partitions) == (Action.CREATE, 4)
    assert changelog.config["max.message.bytes"] == str(2_000_000 + 2 * 65_536)
    dlq = TopicState("billing.orders.dlq", "x" * 8, 4, 3, {"max.message.bytes": "3000000"})
    there = planned(dlq)[letters.pending_changelog]
    assert (there.partitions, there.config["max.message.bytes"]) == (4, str(3_000_000 + 65_536))
    grown = planned(dlq, main=main_state(partitions=6))[letters.pending_changelog]
    assert grown.partitions == 6, "they grow in one step with the dead-letter topic"
    assert planned(main=None) == {}
    made = planned(main=None, options=PlanOptions(create_main_partitions=5))
    assert made[letters.pending_changelog].partitions == 5


def test_dead_letters_of_another_group_are_a_main_topic_that_is_only_read():
    """Its group makes it, whatever may be created here; our topics follow it."""
    letters = HandlerTopology("alarms", "billing.orders.dlq", drop=True, letters_of="orders", letters_from="billing")
    options = PlanOptions(create_main_partitions=3)
    (missing,) = plan_handler(letters, {}, THREE, options)
    assert (missing.topic, missing.action) == (letters.main, Action.MISSING)
    assert "group billing" in missing.why["partitions"]
    state = TopicState(letters.main, "id", 5, 3, {"max.message.bytes": "2000000"})
    main, *ours = plan_handler(letters, {letters.main: state}, THREE, options)
    assert (main.role, main.action, main.partitions) == ("main", Action.OK, 5)
    assert [step.topic for step in ours] == list(letters.owned)
    assert {step.partitions for step in ours} == {5}
    rights = [acl for acl in needed_acls([letters], create_main=True) if acl.name == letters.main]
    assert [acl.operation for acl in rights] == ["Describe", "DescribeConfigs", "Read"]


def test_handlers_without_dead_letters_are_found():
    """A handler whose dead-letter topic is gone, or was never made, has none; one of a former start has it still."""
    dropping = HandlerTopology("g", "orders", drop=True)
    assert with_dead_letters(HandlerTopology("g", "orders"), ["g.orders.events"]).dlqs == ()
    assert with_dead_letters(dropping, ["g.orders.dlq"]).dlqs == ("g.orders.dlq",)


def test_another_programs_topic_is_no_handler():
    """`g.dlq` made a handler of a main topic `dlq`: each command on the group ended, as its topics are not there."""
    names = ("g.dlq", "g.pending.changelog", "g.orders.dlq", "other.orders.dlq")
    found = find_handlers(SimpleNamespace(topic_names=lambda: names), "g")  # type: ignore[arg-type]  # asked for no more
    assert [topology.main for topology in found] == ["orders"]


def test_a_handler_of_dead_letters_needs_no_right_of_its_own():
    """All its topics have the group's prefix, its main topic too."""
    letters = HandlerTopology("billing", "billing.orders.dlq", drop=True, letters_of="orders")
    assert needed_acls([TOPOLOGY, letters]) == needed_acls([TOPOLOGY])


@pytest.mark.parametrize(
    ("config", "kept", "setting"),
    [
        ({"retention.ms": "-1", "retention.bytes": "-1"}, None, None),
        ({"retention.ms": "7200000"}, 7_200_000, None),
        ({"retention.ms": "7199999"}, 7_199_999, "retention.ms"),
        ({"retention.ms": "-1", "retention.bytes": "1000000000"}, None, "retention.bytes"),
        ({"cleanup.policy": "compact", "retention.ms": "1", "min.compaction.lag.ms": "7200000"}, 7_200_000, None),
        ({"cleanup.policy": "compact", "retention.ms": "-1", "min.compaction.lag.ms": "0"}, 0, "min.compaction.lag.ms"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "9", "min.compaction.lag.ms": "-1"}, 9, "retention.ms"),
    ],
)
def test_a_main_topic_keeps_what_waits_by_reference(config, kept, setting):
    """For twice all waits, whatever deletes its records; else the plan says which setting is in the way."""
    main = main_state(config={"max.message.bytes": "2000000", **config})
    topology = dataclasses.replace(TOPOLOGY, reference_ms=3_600_000)
    (step, *_) = plan_handler(topology, {"orders": main}, THREE, PlanOptions())
    assert kept_ms(main.config) == kept
    assert [problem.setting for problem in keeps(main, 3_600_000)] == [setting] * (setting is not None)
    assert step.action is (Action.OK if setting is None else Action.MISMATCH)
    assert steps([main])["orders"].action is Action.OK


@pytest.mark.parametrize(("policy", "action"), [("delete", Action.OK), ("compact,delete", Action.MISMATCH)])
def test_copies_of_what_is_due_again_go_through_no_compacted_topic(policy, action):
    """They would replace newer records of their keys."""
    main = main_state(config={"max.message.bytes": "2000000", "cleanup.policy": policy})
    topology = dataclasses.replace(TOPOLOGY, through_main=True)
    (step, *_) = plan_handler(topology, {"orders": main}, THREE, PlanOptions())
    assert step.action is action
    assert [problem.setting for problem in step.problems] == ["cleanup.policy"] * (action is Action.MISMATCH)


def test_the_right_to_create_is_that_of_topics_which_a_start_may_create():
    """Main topics and those that handlers declare to publish to."""
    orders = HandlerTopology("billing", "orders", publishes=("receipts",))
    rights = needed_acls([orders], create_main=True)
    assert {acl.name for acl in rights if acl.operation == "Create"} == {"billing.", "orders", "receipts"}
    assert {acl.name for acl in needed_acls([orders]) if acl.operation == "Create"} == {"billing."}
