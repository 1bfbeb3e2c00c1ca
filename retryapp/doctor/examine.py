"""All checks in their order, and the few of them that a worker runs at its start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from retryapp.core import marks
from retryapp.core.errors import BrokerUnreachableError, RetryAppError, TopicMissingError
from retryapp.core.rows import ROW_KEY_BYTES
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import clock, machine, stores
from retryapp.doctor.acls import needed_acls
from retryapp.doctor.brokers import INTERNAL, Needs, judge_brokers
from retryapp.doctor.cluster import ClusterFacts, ClusterReader, GroupFacts, ReplicaFacts
from retryapp.doctor.findings import Finding, Severity, looked_at, note, ok, unanswered
from retryapp.doctor.groups import Trace, judge_group, judge_offsets
from retryapp.doctor.lanes import judge_lanes
from retryapp.doctor.orphans import find_old_tiers, find_orphans, judge_orphans
from retryapp.doctor.releases import ask_features, judge_release
from retryapp.doctor.rights import REMEDY, judge_rights
from retryapp.doctor.topics import judge_main_retention, judge_plan, judge_replicas, known_tiers
from retryapp.kafka import (
    KafkaAdmin,
    KafkaConnection,
    KafkaRequestError,
    OffsetRange,
    Plan,
    PlanOptions,
    TopicState,
    find_handlers,
    plan_topics,
    read_topic,
)

DEFAULT_SESSION_MS: Final = 15_000
"""Session time-out that apps get from us unless they choose one."""
REACH_S: Final = 5.0
"""How long a broker may take to answer at all."""
VERIFICATION: Final = "transaction.partition.verification.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be looked at."""

    connection: KafkaConnection
    group: str
    topologies: tuple[HandlerTopology, ...] | None
    """The handlers; None: no application tells them, their topics do."""
    options: PlanOptions = field(default_factory=PlanOptions)
    session_timeout_ms: int = DEFAULT_SESSION_MS
    datadir: Path
    """Where the ``worker-N`` folders of the group are."""
    web_bind: str
    web_port: int | None
    """First port for pages; None: no pages."""
    store_format: int
    """Format of the local stores that workers of this version write."""
    protocols: frozenset[str]
    """Names under which its workers may join the group."""
    transactions: bool = True
    """Its hand-offs are transactions."""
    write: bool = False
    """Write one record, in a transaction that is aborted, to compare clocks and to try the rights."""
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    findings: tuple[Finding, ...]
    reachable: bool
    """Whether a broker answered."""

    @property
    def clean(self) -> bool:
        """Whether nobody has to act."""
        return not any(finding.counts for finding in self.findings)


def examine(subject: Subject, *, wall_ms: Callable[[], int]) -> Report:
    """Look at everything; changes nothing unless the subject says ``write``.

    Args:
        subject: what to look at.
        wall_ms: this machine's clock, epoch milliseconds.

    Raises:
        TopicMissingError: the handlers were to be found by their topics, and the group has none.
    """
    findings = [
        *machine.judge_programs(),
        *machine.judge_ports(subject.web_bind, subject.web_port),
        *machine.judge_room(subject.datadir),
    ]
    cluster = _Cluster(subject, wall_ms)
    reachable = True
    try:
        for finding in cluster.look():
            findings.append(finding)  # noqa: PERF402 - what was found before a broker went silent is kept
    except (BrokerUnreachableError, KafkaRequestError) as error:
        reachable = False
        findings.append(
            Finding(
                name="broker",
                severity=Severity.PROBLEM,
                seen=error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected=f"a broker at {error.bootstrap} that lets us in",
                why="nothing about the cluster could be looked at",
                remedy="Start it ('retryapp broker start' for development), or correct address and security settings",
            )
        )
    folders = stores.inspect_folders(subject.datadir)
    findings += stores.judge_folders(
        folders, cluster.topologies, cluster.states, store_format=subject.store_format, now_ms=wall_ms()
    )
    if cluster.names is not None:
        findings += stores.judge_neighbours(subject.datadir, subject.group, cluster.names)
    return Report(tuple(findings), reachable)


class _Cluster:
    """The part that asks brokers; what it learns about handlers and topics serves the stores too."""

    def __init__(self, subject: Subject, wall_ms: Callable[[], int]) -> None:
        self.subject = subject
        self.wall_ms = wall_ms
        self.states: dict[str, TopicState] = {}
        self.admin = KafkaAdmin(subject.connection, timeout_s=subject.timeout_s)
        self.reader = ClusterReader(subject.connection, subject.timeout_s)
        self.topologies = subject.topologies or ()
        self.names: Sequence[str] | None = None
        """All topics; None: nobody could be asked."""

    def look(self) -> Iterator[Finding]:
        subject = self.subject
        self._reach()
        facts = self.reader.cluster()
        yield ok("broker", f"{subject.connection.bootstrap} answers")
        features = ask_features(subject.connection, timeout_s=subject.timeout_s)
        yield from judge_release(features, _first_setting(facts, VERIFICATION))
        if subject.topologies is None:
            self.topologies = self._found()
        yield from self._step("topics", self._topics)
        replicas = self.reader.replicas([*_names(self.topologies), *INTERNAL])
        internal = {name: replicas.pop(name).replication for name in INTERNAL if name in replicas}
        needs = _needs(facts, subject.options, subject.session_timeout_ms, self.states.values())
        yield from judge_brokers(facts, needs, internal)
        yield from judge_replicas(replicas, self.states)
        group: list[GroupFacts] = []
        yield from self._step(f"group {subject.group}", lambda: self._group(group))
        yield from judge_rights(
            needed_acls(
                self.topologies,
                create_main=subject.options.create_main_partitions is not None,
                transactions=subject.transactions,
            ),
            topics=replicas,
            group=group[0].operations if group else None,
            cluster=facts.operations,
        )
        yield from self._step("offsets", lambda: self._offsets(replicas, running=bool(group and group[0].hosts)))
        yield from self._step("orphans", self._orphans)
        yield from self._step("clock", lambda: self._clock(replicas))

    def _reach(self) -> None:
        KafkaAdmin(self.subject.connection, timeout_s=REACH_S).topic_names()  # its error has the client's words on why

    def _step(self, name: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        """Yield what a check finds. A question that is not answered while others are is a finding too.

        Raises:
            BrokerUnreachableError: nothing is answered any more.
        """
        try:
            yield from looked_at(name, look)
        except BrokerUnreachableError as error:
            self._reach()
            yield unanswered(name, error)

    def _found(self) -> tuple[HandlerTopology, ...]:
        group = self.subject.group
        found = find_handlers(self.admin, group)
        if not found:
            remedy = f"Group {group!r} has no handlers there: correct the group (the Faust app's id) or the address"
            raise TopicMissingError(f"{group}.*.pending.changelog", self.subject.connection.bootstrap, remedy)
        names = self.admin.topic_names()
        return tuple(known_tiers(topology, names) for topology in found)

    def _topics(self) -> Iterator[Finding]:
        plan: Plan = plan_topics(self.admin, self.topologies, self.subject.options)
        self.states.update(plan.states)
        known = self.subject.topologies is not None
        yield from judge_plan(plan, waits_known=known)
        if known:
            yield from judge_main_retention(self.topologies, self.states, self.subject.options.downtime_ms)

    def _group(self, told: list[GroupFacts]) -> Iterator[Finding]:
        facts = self.reader.group(self.subject.group)
        told.append(facts)
        mains = [self.states[t.main].partitions for t in self.topologies if t.main in self.states]
        yield from judge_group(
            self.subject.group, facts, partitions=max(mains, default=0), protocols=self.subject.protocols
        )

    def _offsets(self, replicas: Mapping[str, ReplicaFacts], *, running: bool) -> Iterator[Finding]:
        consumed = {name for topology in self.topologies for name in topology.consumed if name in replicas}
        partitions = {name: replicas[name].partitions for name in sorted(consumed)}
        committed = self.reader.committed(self.subject.group, partitions)
        ranges = {name: self.admin.offsets(name) for name in partitions}

        def traced(topology: HandlerTopology, partition: int) -> Trace:
            changelog = topology.pending_changelog
            if changelog not in replicas or partition >= replicas[changelog].partitions:
                return Trace()
            rows, mark = False, b""
            for record in read_topic(self.subject.connection, changelog, partitions=[partition]):
                rows |= len(record.key or b"") == ROW_KEY_BYTES
                mark = record.value or b"" if record.key == marks.PROGRESS else mark
            main = self.states.get(topology.main)
            return Trace(rows=rows, written=marks.read_progress(mark, main.topic_id if main else "", topology.main))

        yield from judge_offsets(self.topologies, committed, ranges, traced)
        if running:
            yield from self._lanes(replicas, committed, ranges)

    def _lanes(
        self,
        replicas: Mapping[str, ReplicaFacts],
        committed: Mapping[str, Mapping[int, int]],
        ranges: Mapping[str, Mapping[int, OffsetRange]],
    ) -> Iterator[Finding]:
        changelogs = {
            name: replicas[name].partitions for t in self.topologies if (name := t.pending_changelog) in replicas
        }
        unread: Counter[tuple[str, int]] = Counter()
        for topology in self.topologies:
            for topic in topology.consumed:
                for number, kept in ranges.get(topic, {}).items():
                    at = committed.get(topic, {}).get(number, kept.begin)
                    unread[topology.main, number] += max(0, kept.end - at)
        partitions = {t.main: replicas[t.main].partitions for t in self.topologies if t.main in replicas}
        newest_ms = self.reader.newest_appends(changelogs)
        yield from judge_lanes(self.topologies, partitions, newest_ms, unread, now_ms=self.wall_ms())

    def _orphans(self) -> Iterator[Finding]:
        subject, names = self.subject, self.admin.topic_names()
        self.names = names

        def unread(topics: Sequence[str]) -> Mapping[str, int]:
            ranges = {topic: self.admin.offsets(topic) for topic in topics}
            committed = self.reader.committed(subject.group, {topic: len(kept) for topic, kept in ranges.items()})
            return {
                topic: sum(max(0, each.end - committed[topic].get(n, each.begin)) for n, each in kept.items())
                for topic, kept in ranges.items()
            }

        orphans = tuple(find_orphans(self.admin, self.reader, subject.group, self.topologies, names))
        tiers = () if subject.topologies is None else find_old_tiers(self.topologies, names, unread)
        yield from judge_orphans(orphans, tiers)

    def _clock(self, replicas: Mapping[str, ReplicaFacts]) -> Iterator[Finding]:
        measured: list[clock.Measured] = []
        yield self._transaction(replicas, measured)
        if measured:
            yield from clock.judge_measured(measured[0])
            return
        yield from _newest(self.reader, self.topologies, replicas, self.wall_ms)

    def _transaction(self, replicas: Mapping[str, ReplicaFacts], measured: list[clock.Measured]) -> Finding:
        """Try one transaction where that is wanted, and say what is known about the right to."""
        subject, name = self.subject, "rights on transactions"
        if not subject.transactions:
            why = "--write needs them" if subject.write else "nothing needs them"
            return note(name, "this app works without transactions", why=why)
        written = next((t.events for t in self.topologies if t.events in replicas), None)
        if not subject.write or written is None:
            why = "--write tries one transaction" if not subject.write else "there is no events topic to write to yet"
            return note(name, "not tried", why=f"Kafka cannot be asked; {why}")
        try:
            told = clock.measure(
                subject.connection,
                group=subject.group,
                topic=written,
                wall_ms=self.wall_ms,
                timeout_s=subject.timeout_s,
            )
        except (KafkaRequestError, BrokerUnreachableError) as error:
            self._reach()
            return Finding(
                name=name,
                severity=Severity.PROBLEM,
                seen=error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected="a transaction that can be begun, written in and aborted",
                why="no lane opens",
                remedy=f"{REMEDY}; a broker that stays silent cannot make or reach __transaction_state",
            )
        measured.append(told)
        return ok(name, "one transaction was begun and aborted")


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
    """Return what a worker should say at its start; five requests, and never an error.

    Topics are not looked at again: a start has just compared them. What the cluster does not tell is left out.

    Args:
        connection: the cluster.
        topologies: the handlers.
        options: what the application decides about its topics.
        states: the topics, as the start found them.
        session_timeout_ms: the application's.
        datadir: the worker's own folder, or where it will be.
        wall_ms: this machine's clock, epoch milliseconds.
        timeout_s: for each request.

    Returns:
        Warnings and problems only.
    """
    found: list[Finding] = []
    try:
        found.append(machine.judge_disk(machine.nearest(datadir)))
        reader = ClusterReader(connection, timeout_s)
        facts = reader.cluster()
        features = ask_features(connection, timeout_s=timeout_s)
        found += judge_release(features, _first_setting(facts, VERIFICATION))
        replicas = reader.replicas([*_names(topologies), *INTERNAL])
        needs = _needs(facts, options, session_timeout_ms, states.values())
        internal = {name: replicas.pop(name).replication for name in INTERNAL if name in replicas}
        found += judge_brokers(facts, needs, internal)
        found += judge_replicas(replicas, states)
        found += judge_rights(needed_acls(topologies), topics=replicas, group=None, cluster=None)
        found += _newest(reader, topologies, replicas, wall_ms)
    except (RetryAppError, OSError):
        pass  # the start has its own checks and its own patience; this one only adds to them
    return tuple(finding for finding in found if finding.counts)


def _names(topologies: Sequence[HandlerTopology]) -> list[str]:
    return [name for topology in topologies for name in (topology.main, *topology.owned)]


def _needs(facts: ClusterFacts, options: PlanOptions, session_timeout_ms: int, states: Iterable[TopicState]) -> Needs:
    return Needs(
        brokers=len(facts.brokers),
        downtime_ms=options.downtime_ms,
        session_timeout_ms=session_timeout_ms,
        largest_bytes=max((int(state.config.get("max.message.bytes", 0)) for state in states), default=0),
    )


def _first_setting(facts: ClusterFacts, name: str) -> str | None:
    return next((settings[name] for settings in (facts.settings or {}).values() if name in settings), None)


def _newest(
    reader: ClusterReader,
    topologies: Sequence[HandlerTopology],
    replicas: Mapping[str, ReplicaFacts],
    wall_ms: Callable[[], int],
) -> Iterator[Finding]:
    """Compare clocks by the newest record of our topics, whose timestamps are the broker's."""
    stamped = {name: replicas[name].partitions for t in topologies for name in t.owned if name in replicas}
    newest_ms = reader.newest_append_ms(stamped)
    yield from clock.judge_newest(newest_ms, wall_ms())
