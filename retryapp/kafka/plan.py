"""Compares the topics that handlers need with those of the cluster, and creates missing ones.

1. :func:`plan_topics` compares; it changes nothing.
2. :func:`ensure_topics` refuses the plan by a named error or creates what is missing, and claims the topics by their
   owner mark; workers call it at start, many at once.

An existing topic is never altered: the message of the refusal has the remedy. :func:`grow_topics`, an operator's, adds
partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from retryapp.core.errors import TopicMismatchError, TopicMissingError
from retryapp.core.publication import DEFAULT_MAX_BYTES
from retryapp.core.topology import (
    DEFAULT_DLQ_RETENTION_MS,
    DEFAULT_DOWNTIME_MS,
    METADATA_ROOM_BYTES,
    HandlerTopology,
    TopicSpec,
    check_names,
    topic_specs,
)
from retryapp.kafka.admin import BROKER_DEFAULT, PAUSE_S, ClusterState, KafkaAdmin, TopicState
from retryapp.kafka.compare import SAFE_REPLICATION, Problem, compare, keeps, takes_copies
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.errors import OwnerMismatchError, ReplicationTooLowError
from retryapp.kafka.owner import OwnerMark, claim_owner_mark, read_owner_mark
from retryapp.kafka.remembered import pass_on

PUBLISHED_ROLE: Final = "published"
OWNER: Final = "owner"


class Action(StrEnum):
    """What a plan does about one topic."""

    OK = "ok"
    """It is there and serves."""
    CREATE = "create"
    """It will be made."""
    MISMATCH = "mismatch"
    """It is there and does not serve."""
    MISSING = "missing"
    """A topic of the user's that is not there, and may not be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One topic: what it should be, why, and what is to be done."""

    topic: str
    role: str
    """``main``, ``published``, or the role of a topic of ours."""
    action: Action
    group: str
    main: str
    """With ``group``: the handler that it is for."""
    partitions: int | None
    """None: a topic of the user's that is missing."""
    replication: int | None
    """Copies that are there or will be; None: the broker decides."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings that are needed; empty for the main topic."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Setting, ``partitions`` and ``replication`` → reason."""
    problems: tuple[Problem, ...] = ()
    """What is wrong with the existing topic."""
    spec: TopicSpec | None = None
    """What to create; None for topics of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the application decides about its topics."""

    create_main_partitions: int | None = None
    """Create a missing main topic, or one that handlers publish to, with so many partitions; None: that is an error."""
    allow_low_replication: bool = False
    """Accept fewer than three copies on three or more brokers. On fewer brokers nothing is asked."""
    downtime_ms: int = DEFAULT_DOWNTIME_MS
    """Longest time that all workers may be down, in milliseconds."""
    dlq_retention_ms: int | None = DEFAULT_DLQ_RETENTION_MS
    """How long dead letters are kept, in milliseconds; None: no limit."""


DEFAULT_OPTIONS: Final = PlanOptions()


@dataclass(frozen=True, slots=True)
class Plan:
    """The topics of handlers, one after the other, main topic first."""

    steps: tuple[PlanStep, ...]
    brokers: int
    bootstrap: str
    states: Mapping[str, TopicState] = field(default_factory=dict)
    """The topics that were there, main topics (and so their topic ids) included."""

    @property
    def ok(self) -> bool:
        return all(step.action is Action.OK for step in self.steps)

    @property
    def to_create(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.action is Action.CREATE)

    @property
    def refused(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.action not in {Action.OK, Action.CREATE})

    @property
    def unpublishable(self) -> tuple[PlanStep, ...]:
        """Missing topics of others that handlers publish to: ours do not depend on them."""
        return tuple(step for step in self.refused if step.role == PUBLISHED_ROLE)

    def raise_refused(self) -> None:
        """Raise the named error of the first step that cannot be carried out; return when there is none.

        Of missing topics it names all: one at each start would take as many starts.
        """
        for step in self.refused:
            if step.action is Action.MISSING:
                missing = dict.fromkeys(each.topic for each in self.refused if each.action is Action.MISSING)
                others = ", ".join(repr(topic) for topic in missing if topic != step.topic)
                remedy = step.why["partitions"] + (f". Missing as well: {others}" if others else "")
                raise TopicMissingError(step.topic, self.bootstrap, remedy)
            for found in step.problems:
                if found.setting == OWNER:
                    raise OwnerMismatchError(step.topic, found.have, found.want)
                raise TopicMismatchError(
                    step.topic, found.setting, found.have, found.want, f"{found.why}. {found.remedy}"
                )


def missing_remedy(topology: HandlerTopology) -> str:
    if topology.letters_from is not None:
        return f"A worker of group {topology.letters_from} makes it: start one, or correct the name"
    return f"Create it ({creation(topology.main)}), or correct the name"


def creation(topic: str) -> str:
    """Return the commands that create a topic of the user's."""
    ours = "'retryapp topics create -A MODULE --create-main N'"
    return f"kafka-topics.sh --create --topic {topic} --partitions N, or {ours}"


def plan_topics(
    admin: KafkaAdmin, topologies: Sequence[HandlerTopology], options: PlanOptions = DEFAULT_OPTIONS
) -> Plan:
    """Compare what the handlers of an application need with what the cluster has. Changes nothing.

    Raises:
        NameClashError: two of these handlers make the same name.
        ReplicationTooLowError: the brokers' default gives too few copies for what must be created.
        BrokerUnreachableError: no broker answered.
    """
    check_names(topologies)
    cluster = admin.cluster()
    states = admin.describe_topics({name for topology in topologies for name in (topology.main, *topology.owned)})
    mains = {topology.main for topology in topologies}
    published = {topic for topology in topologies for topic in topology.publishes if topic not in mains}
    others = admin.describe_topics(published, tolerant=True) if published else {}
    steps: list[PlanStep] = []
    for topology in topologies:
        for step in plan_handler(topology, states, cluster, options):
            has_owner = step.topic == topology.pending_changelog and step.topic in states
            steps.append(_with_owner(step, admin, topology) if has_owner else step)
        names = [name for name in topology.publishes if name in published]
        steps += [_published_step(topology, name, others.get(name), options) for name in names]
    steps = [_runnable(step, admin.connection) for step in steps]
    plan = Plan(tuple(steps), len(cluster.brokers), admin.connection.bootstrap, states)
    if plan.to_create:
        check_replication(cluster, options)
    return plan


def _runnable(step: PlanStep, connection: KafkaConnection) -> PlanStep:
    """Have the commands that a step suggests reach this cluster."""
    why = {setting: connection.complete(text) for setting, text in step.why.items()}
    problems = tuple(replace(each, remedy=connection.complete(each.remedy)) for each in step.problems)
    return replace(step, why=why, problems=problems)


def check_replication(cluster: ClusterState, options: PlanOptions) -> None:
    """Refuse to create topics with too few copies where three are possible, unless allowed."""
    default = cluster.default_replication
    if options.allow_low_replication or default is None:
        return
    brokers = len(cluster.brokers)
    if default < SAFE_REPLICATION <= brokers:
        raise ReplicationTooLowError(
            f"default.replication.factor={default} on {brokers} brokers: losing {default} would lose the records that "
            f"wait; set default.replication.factor=3 on the brokers, or accept it: Retries(app, "
            f"allow_low_replication=True)"
        )


def plan_handler(
    topology: HandlerTopology, states: Mapping[str, TopicState], cluster: ClusterState, options: PlanOptions
) -> Iterator[PlanStep]:
    """Yield the steps of one handler from known states: the main topic, then ours in the order of the topology.

    Ours cannot be planned while the main topic is missing.
    """
    main = states.get(topology.own_letters_of or topology.main)
    created = options.create_main_partitions if topology.letters_from is None else None
    partitions = created if main is None else main.partitions
    main_config, room = {} if main is None else main.config, 0
    if topology.own_letters_of is None:
        yield _main_step(topology, main, partitions)
    elif (letters := states.get(topology.main)) is not None:
        partitions, main_config = max(partitions or 1, letters.partitions), letters.config
    else:
        room = METADATA_ROOM_BYTES  # the other handler's steps create it
    if partitions is None:
        return
    specs = topic_specs(
        topology,
        partitions=partitions,
        main_max_message_bytes=int(main_config.get("max.message.bytes", DEFAULT_MAX_BYTES)) + room,
        replication=_copies(main, cluster, options),
        dlq_retention_ms=options.dlq_retention_ms,
    )
    for spec in specs:
        yield _own_step(topology, spec, states.get(spec.name), cluster, options)


def _main_step(topology: HandlerTopology, main: TopicState | None, partitions: int | None) -> PlanStep:
    problems: tuple[Problem, ...] = ()
    if main is not None:
        if topology.reference_ms is not None:
            problems = tuple(keeps(main, topology.reference_ms))
        if topology.through_main:
            problems = tuple(takes_copies(main))
        action = Action.MISMATCH if problems else Action.OK
        why = {"partitions": "the user's topic: its partition count decides that of all others"}
    elif partitions is not None:
        action, why = Action.CREATE, {"partitions": "as asked for", "replication": "the broker's default"}
    else:
        action, why = Action.MISSING, {"partitions": missing_remedy(topology)}
    return PlanStep(
        topic=topology.main,
        role="main",
        action=action,
        group=topology.group,
        main=topology.main,
        partitions=partitions,
        replication=None if main is None else main.replication,
        why=why,
        problems=problems,
    )


def _published_step(topology: HandlerTopology, topic: str, state: TopicState | None, options: PlanOptions) -> PlanStep:
    partitions = options.create_main_partitions if state is None else state.partitions
    why = "the user's topic: the handler publishes to it"
    if partitions is None:
        why = (
            f"The handler of {topology.main} publishes to it: create it ({creation(topic)}), grant Describe on it, or "
            f"correct publishes="
        )
    return PlanStep(
        topic=topic,
        role=PUBLISHED_ROLE,
        action=Action.OK if state is not None else Action.MISSING if partitions is None else Action.CREATE,
        group=topology.group,
        main=topology.main,
        partitions=partitions,
        replication=None if state is None else state.replication,
        why={"partitions": why},
    )


def _own_step(
    topology: HandlerTopology, spec: TopicSpec, state: TopicState | None, cluster: ClusterState, options: PlanOptions
) -> PlanStep:
    copies = spec.replication if state is None else state.replication
    problems: tuple[Problem, ...] = ()
    if state is not None:
        brokers, low = len(cluster.brokers), options.allow_low_replication
        problems = tuple(compare(spec, state, main=topology.main, brokers=brokers, allow_low_replication=low))
    return PlanStep(
        topic=spec.name,
        role=spec.role.value,
        action=Action.CREATE if state is None else Action.MISMATCH if problems else Action.OK,
        group=topology.group,
        main=topology.main,
        partitions=spec.partitions,
        replication=None if copies == BROKER_DEFAULT else copies,
        config=spec.config,
        why=spec.why,
        problems=problems,
        spec=spec if state is None else None,
    )


def _with_owner(step: PlanStep, admin: KafkaAdmin, topology: HandlerTopology) -> PlanStep:
    mark = OwnerMark(topology.group, topology.main)
    owner = read_owner_mark(admin.connection, topology.pending_changelog)
    if owner is None or owner == mark:
        return step
    found = Problem(OWNER, owner.text, mark.text, OwnerMismatchError.why, OwnerMismatchError.remedy)
    return replace(step, action=Action.MISMATCH, problems=(found, *step.problems))


def _copies(main: TopicState | None, cluster: ClusterState, options: PlanOptions) -> int:
    """Return how many copies topics of ours are created with."""
    if cluster.default_replication is not None:
        return cluster.default_replication
    copies = BROKER_DEFAULT if main is None else main.replication
    refused = not options.allow_low_replication and len(cluster.brokers) >= SAFE_REPLICATION > copies
    return SAFE_REPLICATION if refused else copies  # fewer would be made, and then refused


def ensure_topics(
    admin: KafkaAdmin, topologies: Sequence[HandlerTopology], options: PlanOptions = DEFAULT_OPTIONS
) -> Plan:
    """Make sure that every topic of these handlers exists, serves and is ours. Safe in many workers at once.

    Returns:
        The plan as it is afterwards, with the states (and topic ids) of all topics. Only topics of others that
        handlers publish to may be ``refused``: `Plan.raise_refused` raises for these.

    Raises:
        TopicMissingError: a main topic does not exist and may not be created, or a created one did not appear.
        KafkaRequestError: a broker refused a creation.
        TopicMismatchError: a topic does not serve (also one that another worker created a moment ago).
        OwnerMismatchError: the topics belong to another handler.
    """
    plan = plan_topics(admin, topologies, options)
    _raise_ours(plan)
    budget_s = admin.timeout_s
    while plan.to_create:
        for step in plan.to_create:
            if step.spec is None:
                admin.create_main_topic(step.topic, partitions=step.partitions or 1)
        admin.create([step.spec for step in plan.to_create if step.spec is not None])
        admin.wait_for_topics([step.topic for step in plan.to_create])
        plan = plan_topics(admin, topologies, options)
        _raise_ours(plan)
        if plan.to_create:  # this time a broker answered that has not heard of them yet
            if budget_s <= 0:
                raise admin.not_ready(plan.to_create[0].topic)
            threading.Event().wait(PAUSE_S)
            budget_s -= PAUSE_S
    for topology in topologies:
        mark = OwnerMark(topology.group, topology.main)
        claim_owner_mark(admin.connection, topology.pending_changelog, mark)
    return plan


def _raise_ours(plan: Plan) -> None:
    if len(plan.refused) > len(plan.unpublishable):
        plan.raise_refused()


def grow_topics(
    admin: KafkaAdmin, topologies: Sequence[HandlerTopology], options: PlanOptions = DEFAULT_OPTIONS
) -> tuple[str, ...]:
    """Give topics of ours as many partitions as their main topics have; return their names.

    Those that handlers had by an earlier policy grow, too: else a start with that one would be refused.

    A running worker opens a partition as soon as all of them have it. One that is added to a handler that somebody has
    paused, or whose circuit is forced open, begins so.

    Raises:
        OwnerMismatchError: the topics belong to another handler.
    """
    plan = plan_topics(admin, topologies, options)
    foreign = tuple(step for step in plan.refused if any(found.setting == OWNER for found in step.problems))
    replace(plan, steps=foreign).raise_refused()
    short = _short_formers(admin, plan, topologies)
    short |= {
        step.topic: step.partitions
        for step in plan.steps
        if step.partitions and step.topic in plan.states and plan.states[step.topic].partitions < step.partitions
    }
    changelogs = {each.pending_changelog: each for each in topologies if each.control in plan.states}
    for topic, partitions in short.items():
        if topic in changelogs:  # without it no worker opens a partition
            admin.wait_for_topics([changelogs[topic].control], short)
            pass_on(admin.connection, changelogs[topic], range(plan.states[topic].partitions, partitions))
        admin.grow(topic, partitions)
    admin.wait_for_topics([*short], short)
    return tuple(short)


def _short_formers(admin: KafkaAdmin, plan: Plan, topologies: Sequence[HandlerTopology]) -> dict[str, int]:
    """Return the topics of earlier policies that have too few partitions, with the number that they should have."""
    partitions = {step.topic: step.partitions for step in plan.steps}
    others = {*admin.topic_names()} - {*plan.states}
    wanted = {
        name: count
        for topology in topologies
        for name in filter(topology.may_have, others)
        if (count := partitions.get(topology.pending_changelog))
    }
    states = admin.describe_topics(wanted, tolerant=True)
    return {name: wanted[name] for name, state in states.items() if state.partitions < wanted[name]}
