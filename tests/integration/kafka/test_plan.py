"""Planning, creating and claiming topics on a real broker."""

from __future__ import annotations

import concurrent.futures
import dataclasses

import pytest

from retryapp.core.errors import TopicMismatchError, TopicMissingError
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import HandlerCommand, HandlerVerb, Level, Steering, decode_command
from retryapp.core.marks import PROGRESS, progress_value
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.kafka import (
    Action,
    KafkaAdmin,
    ensure_topics,
    grow_topics,
    plan_topics,
)
from retryapp.kafka.errors import OwnerMismatchError
from retryapp.kafka.owner import OwnerMark, claim_owner_mark, read_owner_mark
from retryapp.kafka.reader import read_topic
from retryapp.kafka.writer import write_records
from retryapp.stage import wait_for


@pytest.fixture
def topology(topology, make_topic) -> HandlerTopology:
    """A handler whose main topic exists, with 3 partitions."""
    return dataclasses.replace(topology, main=make_topic(3))


def test_topics_are_planned_made_and_then_fine(admin: KafkaAdmin, topology):
    """Planning changes nothing; afterwards all topics have the main topic's partitions and the settings asked for."""
    plan = plan_topics(admin, [topology])
    assert [step.action for step in plan.steps] == [Action.OK] + [Action.CREATE] * len(topology.owned)
    assert admin.describe_topics(topology.owned) == {}

    done = ensure_topics(admin, [topology])

    assert done.ok
    assert set(done.states) == {topology.main, *topology.owned}
    for step in done.steps[1:]:
        state = done.states[step.topic]
        assert state.partitions == 3
        assert {name: state.config[name] for name in step.config} == dict(step.config)
    assert len(done.states[topology.main].topic_id) == 8
    assert "/" not in done.states[topology.main].topic_id
    assert ensure_topics(admin, [topology]).ok


def test_topics_are_made_while_one_that_a_handler_publishes_to_is_missing(admin: KafkaAdmin, topology):
    """Ours do not depend on it; who needs it refuses."""
    out = f"{topology.main}-out"
    plan = ensure_topics(admin, [dataclasses.replace(topology, publishes=(out,))])
    assert set(plan.states) == {topology.main, *topology.owned}
    assert [step.topic for step in plan.refused] == [out]
    with pytest.raises(TopicMissingError, match="publishes to it"):
        plan.raise_refused()


@pytest.mark.parametrize(
    ("suffix", "settings", "what"),
    [
        ("pending.changelog", {"cleanup_policy": "delete"}, "cleanup.policy"),
        ("events", {"partitions": 1}, "partitions"),
    ],
)
def test_a_topic_that_does_not_serve_is_refused(admin, make_topic, topology, suffix, settings, what):
    """The error names topic, setting, both values and the remedy; nothing else is made."""
    spec = next(s.spec for s in plan_topics(admin, [topology]).steps if s.topic == f"{topology.prefix}.{suffix}")
    good = {key.replace(".", "_"): value for key, value in spec.config.items()}
    make_topic(**{"name": spec.name, "partitions": 3, **good, **settings})
    with pytest.raises(TopicMismatchError, match=rf"{spec.name}.*{what}=.*--alter|partitions") as caught:
        ensure_topics(admin, [topology])
    assert caught.value.what == what
    assert set(admin.describe_topics(topology.owned)) == {spec.name}


def test_our_topics_grow_with_the_main_topic(admin, topology):
    """One call serves a start again."""
    ensure_topics(admin, [topology])
    admin.grow(topology.main, 5)
    admin.wait_for_topics([topology.main], {topology.main: 5})
    with pytest.raises(TopicMismatchError, match="retryapp topics grow -A"):
        ensure_topics(admin, [topology])
    assert grow_topics(admin, [topology]) == topology.owned
    assert ensure_topics(admin, [topology]).ok
    assert grow_topics(admin, [topology]) == ()


def test_topics_of_an_earlier_policy_grow_too(admin, make_topic, topology):
    """Whoever goes back to it needs no second call; a topic that only looks like ours stays as it is."""
    settings = {"tiers": Tiers.PER_DELAY, "delays_ms": (5_000,), "dead_letters": ("invalid",), "seen_window_ms": 60_000}
    before = dataclasses.replace(topology, **settings)
    ensure_topics(admin, [before])
    other = make_topic(3, f"{topology.prefix}.retry.report")
    ensure_topics(admin, [topology])
    admin.grow(topology.main, 5)
    admin.wait_for_topics([topology.main], {topology.main: 5})
    assert {*grow_topics(admin, [topology])} == {*topology.owned, *before.owned}
    assert ensure_topics(admin, [before]).ok
    assert admin.describe_topics([other])[other].partitions == 3
    assert grow_topics(admin, [topology]) == grow_topics(admin, [before]) == ()


BY_ANN = Level(since_ms=1, by="ann", why="migration")


@pytest.mark.parametrize(
    ("steering", "queued", "verbs"),
    [
        (Steering(paused=BY_ANN), "", ["handler-pause"]),
        (Steering(forced=BY_ANN), "", ["outage-open"]),
        (Steering(outages={"ledger": BY_ANN}), "", ["outage-open ledger"]),
        (Steering(paused=Level(since_ms=1, by="rule gate", record="x")), "", []),
        (None, "handler-pause", ["handler-pause"]),
        (Steering(paused=BY_ANN), "handler-resume", []),
        (Steering(outages={"ledger": BY_ANN}), "outage-close ledger", []),
    ],
)
def test_partitions_that_are_added_are_paused_as_the_others(admin, connection, topology, steering, queued, verbs):
    """What somebody has done to the handler, with what waits for a worker; not what a rule has done to a partition."""
    ensure_topics(admin, [topology])
    if steering is not None:
        value = progress_value({}, "id", steering=steering.written)
        progress = Outgoing(topology.pending_changelog, 1, PROGRESS, value, ())
        write_records(connection, progress.topic, [progress])
    if queued:
        verb, _, circuit = queued.partition(" ")
        command = HandlerCommand(id="0123456789", verb=HandlerVerb(verb), circuit=circuit, by="ann")
        write_records(connection, topology.control, [command.to_record(topology.control, 1)])
    admin.grow(topology.main, 5)
    admin.wait_for_topics([topology.main], {topology.main: 5})
    grow_topics(admin, [topology])

    def told() -> bool:  # soon: a transaction's commit does not wait until the broker has marked all partitions
        records = read_topic(connection, topology.control, partitions=[3, 4])
        commands = [(record.partition, decode_command(record.value)) for record in records]
        said = sorted((number, f"{each.verb} {each.circuit}".strip(), each.by) for number, each in commands)
        return said == [(number, verb, "ann") for number in (3, 4) for verb in verbs]

    wait_for(told, "the new partitions get these commands, and no others", timeout_s=10)


def test_a_broker_that_hears_late_of_new_topics_is_asked_again(connection, topology, monkeypatch):
    """The brokers of a cluster learn of a topic one after the other: the next answer may come from the last of them."""
    admin = KafkaAdmin(connection)
    told, unheard = admin.describe_topics, iter([(), (), {topology.pending_changelog, topology.dlq}])

    def describe(names, **how):  # before the topics are made, when one waits for them, then the late broker
        hidden = next(unheard, ())
        return {name: state for name, state in told(names, **how).items() if name not in hidden}

    monkeypatch.setattr(admin, "describe_topics", describe)
    plan = ensure_topics(admin, [topology])
    assert plan.ok
    assert set(plan.states) == {topology.main, *topology.owned}
    assert next(unheard, None) is None


def test_many_workers_at_once_make_one_set_of_topics(connection, topology):
    """Whoever comes second finds the topics made; all end with the same plan and one owner."""
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        plans = list(pool.map(lambda _: ensure_topics(KafkaAdmin(connection), [topology]), range(6)))
    assert all(plan.ok for plan in plans)
    assert read_owner_mark(connection, topology.pending_changelog) == OwnerMark(topology.group, topology.main)


def test_names_that_join_alike_are_told_apart(admin, make_topic, topology):
    """Group ``a.b`` with ``c`` and group ``a`` with ``b.c`` make the same names: the second one is refused."""
    group = topology.group
    first = HandlerTopology(group=f"{group}.b", main=make_topic(3, f"{group}c"))
    second = HandlerTopology(group=group, main=make_topic(3, f"b.{group}c"))
    assert first.owned == second.owned
    ensure_topics(admin, [first])
    with pytest.raises(OwnerMismatchError, match=rf"{group}\.b\+{group}c.*{group}\+b\.{group}c"):
        ensure_topics(admin, [second])
    assert not plan_topics(admin, [second]).ok
    admin.grow(second.main, 4)
    admin.wait_for_topics([second.main], {second.main: 4})
    with pytest.raises(OwnerMismatchError):
        grow_topics(admin, [second])
    assert {state.partitions for state in admin.describe_topics(first.owned).values()} == {3}
    assert ensure_topics(admin, [first]).ok


def test_rivals_at_the_same_moment_have_one_winner(connection, make_topic):
    """The mark with the lowest offset decides, for all and for ever."""
    topic = make_topic(1)
    rivals = [OwnerMark("a.b", "c"), OwnerMark("a", "b.c")] * 3

    def claim(mark: OwnerMark) -> bool:
        try:
            claim_owner_mark(connection, topic, mark)
        except OwnerMismatchError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        won = list(pool.map(claim, rivals))
    owner = read_owner_mark(connection, topic)
    assert won == [mark == owner for mark in rivals]
