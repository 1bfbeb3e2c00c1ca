"""All checks in their order, and the few of them that a worker runs when it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from retryapp.core import marks
from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.core.rows import is_identity
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import clock, machine
from retryapp.doctor.brokers import INTERNAL, judge_brokers
from retryapp.doctor.cluster import ClusterReader, ReplicaFacts
from retryapp.doctor.findings import Finding, note, ok, problem
from retryapp.doctor.group import Trace, judge_group, judge_offsets
from retryapp.doctor.rights import REMEDY, judge_rights
from retryapp.doctor.topics import (
    judge_main_retention,
    judge_old_handler,
    judge_old_retry_topic,
    judge_plan,
    judge_replicas,
    known_tiers,
    old_retry_topics,
)
from retryapp.kafka import (
    KafkaAdmin,
    KafkaConnection,
    KafkaRequestError,
    PlanOptions,
    Positions,
    TopicState,
    find_handlers,
    fold_changelog,
    plan_topics,
    read_topic,
    require_handlers,
)
from retryapp.kafka.acls import needed_acls

DEFAULT_SESSION_MS: Final = 15_000
"""Session timeout of apps that choose none."""
REACH_S: Final = 5.0
"""How long a broker may take to answer at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to examine."""

    connection: KafkaConnection
    group: str
    topologies: tuple[HandlerTopology, ...] | None
    """The handlers; None: without the application, by their topics."""
    options: PlanOptions = field(default_factory=PlanOptions)
    session_timeout_ms: int = DEFAULT_SESSION_MS
    datadir: Path
    """Where the ``worker-N`` folders of the group are."""
    write: bool = False
    """Write one record, in a transaction that is aborted, to compare clocks and to try the rights."""
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """All findings."""

    findings: tuple[Finding, ...]
    reachable: bool
    """Whether a broker answered."""

    @property
    def clean(self) -> bool:
        """Whether nobody must act."""
        return not any(finding.counts for finding in self.findings)


def examine(subject: Subject, *, wall_ms: Callable[[], int]) -> Report:
    """Run all checks; changes nothing unless the subject says ``write``.

    Raises:
        GroupMissingError: the handlers were to be found by their topics, and the group has none.
    """
    findings = [*machine.judge_programs(), *machine.judge_folder(subject.datadir)]
    try:
        for finding in _Cluster(subject, wall_ms).check():
            findings.append(finding)  # noqa: PERF402 - findings before a broker went silent are kept
    except (BrokerUnreachableError, KafkaRequestError) as error:
        findings.append(
            problem(
                "broker",
                error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected=f"a broker at {error.bootstrap} that accepts this client",
                why="nothing about the cluster could be checked",
                remedy="Start it ('retryapp broker start' for development), or correct address and security settings",
            )
        )
        return Report(tuple(findings), reachable=False)
    return Report(tuple(findings), reachable=True)


class _Cluster:
    """The checks that ask brokers."""

    def __init__(self, subject: Subject, wall_ms: Callable[[], int]) -> None:
        self.subject = subject
        self.wall_ms = wall_ms
        self.states: Mapping[str, TopicState] = {}
        self.replicas: dict[str, ReplicaFacts] = {}
        self.group_rights: frozenset[str] | None = None
        self.admin = ClusterReader(subject.connection, timeout_s=subject.timeout_s)
        self.topologies = subject.topologies or ()

    def check(self) -> Iterator[Finding]:
        subject = self.subject
        self._reach()
        facts = self.admin.brokers()
        yield ok("broker", f"{subject.connection.bootstrap} answers")
        names = self.admin.topic_names()
        if subject.topologies is None:
            self.topologies = self._handlers(names)
        yield from self._step("topics", self._topics)
        self.replicas = self.admin.replicas([*_names(self.topologies), *INTERNAL])
        times = {"downtime_ms": subject.options.downtime_ms, "session_timeout_ms": subject.session_timeout_ms}
        yield from judge_brokers(facts, self.replicas, **times)
        self.replicas = _without_internal(self.replicas)
        yield from judge_replicas(self.replicas, self.states)
        yield from self._step(f"group {subject.group}", self._group)
        acls = needed_acls(self.topologies, create_main=subject.options.create_main_partitions is not None)
        yield from judge_rights(acls, topics=self.replicas, group=self.group_rights, cluster=facts.operations)
        yield from self._step("offsets", self._offsets)
        if subject.topologies is not None:
            yield from self._step("former handlers", lambda: self._leftovers(names))
        yield from self._step("clock", self._clock)

    def _reach(self) -> None:
        KafkaAdmin(self.subject.connection, timeout_s=REACH_S).topic_names()  # its error has the client's reason

    def _step(self, name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        """Yield the findings of a check; its failure is a finding too, as long as brokers answer other requests.

        Raises:
            BrokerUnreachableError: no broker answers any more.
        """
        try:
            yield from check()
        except BrokerUnreachableError as error:
            self._reach()
            yield problem(
                name,
                error.problem,
                expected="an answer",
                why="brokers answer other requests, so a coordinator or some of the brokers are missing",
                remedy="See the brokers' logs and the findings about their settings",
            )
        except RetryAppError as error:
            yield problem(name, str(error), expected="an answer", remedy="Fix what the error names, and try again")

    def _handlers(self, names: Sequence[str]) -> tuple[HandlerTopology, ...]:
        handlers = require_handlers(self.admin, self.subject.group)
        return tuple(known_tiers(topology, names) for topology in handlers)

    def _topics(self) -> Iterator[Finding]:
        plan = plan_topics(self.admin, self.topologies, self.subject.options)
        self.states = plan.states
        yield from judge_plan(plan)
        if self.subject.topologies is not None:
            yield from judge_main_retention(self.topologies, self.states, self.subject.options.downtime_ms)

    def _group(self) -> Iterator[Finding]:
        facts = self.admin.group(self.subject.group)
        self.group_rights = facts.operations
        mains = [self.states[t.main].partitions for t in self.topologies if t.main in self.states]
        yield judge_group(self.subject.group, facts, partitions=max(mains, default=0))

    def _offsets(self) -> Iterator[Finding]:
        mains = {topology.main for topology in self.topologies if topology.main in self.replicas}
        ranges = {name: self.admin.offsets(name) for name in sorted(mains)}
        yield from judge_offsets(self.topologies, self._committed(ranges), ranges, self._trace)

    def _committed(self, ranges: Mapping[str, Mapping[int, range]]) -> dict[str, dict[int, int]]:
        subject, places = self.subject, [(topic, number) for topic, kept in ranges.items() for number in kept]
        positions = Positions(subject.connection, timeout_s=subject.timeout_s, transaction_s=subject.timeout_s)
        committed: dict[str, dict[int, int]] = {topic: {} for topic in ranges}
        if places:
            for (topic, number), offset in positions.group_offsets(subject.group, places).items():
                if offset is not None:
                    committed[topic][number] = offset
        return committed

    def _trace(self, topology: HandlerTopology, partition: int) -> Trace:
        changelog = topology.pending_changelog
        if changelog not in self.replicas or partition >= self.replicas[changelog].partitions:
            return Trace()
        rows, mark = False, b""
        for record in read_topic(self.subject.connection, changelog, partitions=[partition]):
            rows |= is_identity(record.key)
            mark = record.value or b"" if record.key == marks.PROGRESS else mark
        main = self.states.get(topology.main)
        written = marks.read_progress(mark, main.topic_id if main else "", topology.main)
        return Trace(lost=rows and not mark, written=written.get(topology.main))

    def _leftovers(self, names: Sequence[str]) -> Iterator[Finding]:
        mains = {topology.main for topology in self.topologies}
        for former in find_handlers(self.admin, self.subject.group):
            if former.main not in mains and former.pending_changelog in names:
                rows = fold_changelog(self.subject.connection, former.pending_changelog, lambda _key, _value: None)
                yield judge_old_handler(former.main, len(rows))
        for topic, main in old_retry_topics(self.topologies, names).items():
            yield judge_old_retry_topic(topic, main)

    def _clock(self) -> Iterator[Finding]:
        subject, name = self.subject, "rights on transactions"
        topic = next((t.events for t in self.topologies if t.events in self.replicas), None)
        if not subject.write or topic is None:
            why = "--write tries one transaction" if not subject.write else "there is no events topic to write to yet"
            yield note(name, "not tried", why=f"Kafka does not report them; {why}")
            yield _judge_newest(self.admin, self.topologies, self.replicas, self.wall_ms)
            return
        try:
            measured = clock.measure(
                subject.connection, subject.group, topic, wall_ms=self.wall_ms, timeout_s=subject.timeout_s
            )
        except (KafkaRequestError, BrokerUnreachableError) as error:
            self._reach()
            yield problem(
                name,
                error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected="a transaction that can be begun, written in and aborted",
                why="no lane opens",
                remedy=f"{REMEDY}; if there was no answer, the broker cannot create or reach __transaction_state",
            )
            yield _judge_newest(self.admin, self.topologies, self.replicas, self.wall_ms)
        else:
            yield ok(name, "one transaction was begun and aborted")
            yield clock.judge_measured(measured)


def quick_findings(
    connection: KafkaConnection,
    topologies: Sequence[HandlerTopology],
    options: PlanOptions,
    states: Mapping[str, TopicState],
    *,
    session_timeout_ms: int,
    datadir: Path,
    wall_ms: Callable[[], int],
    timeout_s: float = 5.0,
) -> tuple[Finding, ...]:
    """Return the warnings and problems that a worker logs when it starts; never raises. Each request has `timeout_s`.

    Topics are not compared again: a start has just done so. What the cluster does not report is left out.
    """
    found: list[Finding] = []
    try:
        found.append(machine.judge_disk(machine.nearest(datadir)))
        reader = ClusterReader(connection, timeout_s=timeout_s)
        facts = reader.brokers()
        replicas = reader.replicas([*_names(topologies), *INTERNAL])
        times = {"downtime_ms": options.downtime_ms, "session_timeout_ms": session_timeout_ms}
        found += judge_brokers(facts, replicas, **times)
        replicas = _without_internal(replicas)
        found += judge_replicas(replicas, states)
        found += judge_rights(needed_acls(topologies), topics=replicas, group=None, cluster=None)
        found.append(_judge_newest(reader, topologies, replicas, wall_ms))
    except (RetryAppError, OSError):
        pass  # the start has its own checks and its own patience
    return tuple(finding for finding in found if finding.counts)


def _names(topologies: Sequence[HandlerTopology]) -> list[str]:
    return [name for topology in topologies for name in (topology.main, *topology.owned)]


def _without_internal(replicas: Mapping[str, ReplicaFacts]) -> dict[str, ReplicaFacts]:
    return {name: facts for name, facts in replicas.items() if name not in INTERNAL}


def _judge_newest(
    reader: ClusterReader,
    topologies: Sequence[HandlerTopology],
    replicas: Mapping[str, ReplicaFacts],
    wall_ms: Callable[[], int],
) -> Finding:
    """Compare clocks by the newest record of our topics, whose timestamps are the broker's."""
    stamped = {name: replicas[name].partitions for t in topologies for name in t.owned if name in replicas}
    return clock.judge_newest(reader.newest_append_ms(stamped), wall_ms())
