"""All checks in their order, and the few of them that a worker runs when it starts."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from retryapp.core import marks
from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.core.row_keys import is_identity
from retryapp.core.topology import HandlerTopology
from retryapp.doctor import clock, machine
from retryapp.doctor.brokers import INTERNAL, judge_brokers
from retryapp.doctor.findings import Finding, note, ok, problem
from retryapp.doctor.group import REMEDY, Trace, judge_group, judge_offsets, judge_rights
from retryapp.doctor.topics import (
    judge_level,
    judge_main_retention,
    judge_old_handler,
    judge_plan,
    judge_replicas,
    judge_unread,
)
from retryapp.kafka import (
    KafkaAdmin,
    KafkaConnection,
    KafkaRequestError,
    PlanOptions,
    Positions,
    TopicState,
    find_handlers,
    first_times,
    fold_changelog,
    plan_topics,
    reach,
    read_topic,
)
from retryapp.kafka.acls import needed_acls
from retryapp.kafka.admin import operation_names
from retryapp.kafka.remembered import TAILS, progress_records, read_progress_of, remembered

_TRANSACTIONS: Final = "rights on transactions"
_LOOK_S: Final = 1.0
"""How long a start reads what former handlers have left; it waits twice as long for what cannot be interrupted."""
MOST_BROKERS: Final = 12
"""Brokers whose settings are read; of a larger cluster those with the lowest ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to examine."""

    connection: KafkaConnection
    group: str
    topologies: tuple[HandlerTopology, ...]
    options: PlanOptions
    session_timeout_ms: int
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
        return not any(finding.counts for finding in self.findings)


def examine(subject: Subject, *, wall_ms: Callable[[], int]) -> Report:
    """Run all checks; changes nothing unless the subject says ``write``."""
    findings = [*machine.judge_settings(os.environ), *machine.judge_folder(subject.datadir)]
    try:
        for finding in _Cluster(subject, wall_ms).check():
            findings.append(finding)  # noqa: PERF402 - findings before a broker went silent are kept
    except (BrokerUnreachableError, KafkaRequestError) as error:
        remedy = "Fix what the error names, and try again"
        if isinstance(error, BrokerUnreachableError):
            remedy = "Start it ('retryapp broker start' for development), or correct address and security settings"
        findings.append(
            problem(
                "broker",
                error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected=f"a broker at {error.bootstrap} that accepts this client",
                why="nothing about the cluster could be checked",
                remedy=remedy,
            )
        )
        return Report(_runnable(findings, subject.connection), reachable=False)
    return Report(_runnable(findings, subject.connection), reachable=True)


def _runnable(findings: Iterable[Finding], connection: KafkaConnection) -> tuple[Finding, ...]:
    """Have the commands of remedies reach this cluster."""
    return tuple(replace(each, remedy=connection.complete(each.remedy)) for each in findings)


class _Cluster:
    """The checks that ask brokers."""

    def __init__(self, subject: Subject, wall_ms: Callable[[], int]) -> None:
        self.subject = subject
        self.wall_ms = wall_ms
        self.states: dict[str, TopicState] = {}
        self.group_rights: frozenset[str] | None = None
        self.admin = KafkaAdmin(subject.connection, timeout_s=subject.timeout_s)
        self.topologies = subject.topologies

    def check(self) -> Iterator[Finding]:
        subject = self.subject
        reach(subject.connection)
        facts = self.admin.cluster(asked=MOST_BROKERS)
        yield ok("broker", f"{subject.connection.bootstrap} answers")
        yield from self._step("topics", self._topics)
        every, self.states = _existing(self.admin, self.topologies)
        times = {"downtime_ms": subject.options.downtime_ms, "session_timeout_ms": subject.session_timeout_ms}
        yield from judge_brokers(facts, every, **times)
        yield from judge_replicas(self.states)
        yield from self._step(f"group {subject.group}", self._group)
        acls = needed_acls(self.topologies, create_main=subject.options.create_main_partitions is not None)
        yield from judge_rights(acls, topics=self.states, group=self.group_rights, cluster=facts.operations)
        yield from self._step("offsets", self._offsets)
        yield from self._step("pauses", self._paused)
        yield from self._step("former handlers", lambda: left_behind(self.admin, self.topologies))
        yield from self._step("clock", self._clock)

    def _step(self, name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
        """Yield the findings of a check; its failure is a finding too, as long as brokers answer other requests.

        Raises:
            BrokerUnreachableError: no broker answers any more.
        """
        try:
            yield from check()
        except BrokerUnreachableError as error:
            reach(self.subject.connection)
            yield problem(
                name,
                error.problem,
                expected="an answer",
                why="brokers answer other requests, so a coordinator or some of the brokers are missing",
                remedy="See the brokers' logs and the findings about their settings",
            )
        except RetryAppError as error:
            yield problem(name, str(error), expected="an answer", remedy="Fix what the error names, and try again")

    def _topics(self) -> Iterator[Finding]:
        plan = plan_topics(self.admin, self.topologies, self.subject.options)
        yield from judge_plan(plan)
        yield from judge_main_retention(self.topologies, plan.states, self.subject.options.downtime_ms)

    def _group(self) -> Iterator[Finding]:
        group = self.admin.describe_group(self.subject.group)
        self.group_rights = operation_names(group.authorized_operations)
        mains = [self.states[t.main].partitions for t in self.topologies if t.main in self.states]
        yield judge_group(self.subject.group, group, partitions=max(mains, default=0))

    def _offsets(self) -> Iterator[Finding]:
        """Compare the group's offsets with its topics; ends are asked last, as workers commit meanwhile."""
        positions = self._positions()
        mains = sorted({topology.main for topology in self.topologies if topology.main in self.states})
        places = [(main, number) for main in mains for number in range(self.states[main].partitions)]
        begins = positions.begins(places)
        committed: dict[str, dict[int, int]] = {main: {} for main in mains}
        for (main, number), offset in positions.group_offsets(self.subject.group, places).items():
            if offset is not None:
                committed[main][number] = offset
        traces = {
            (topology.main, number): self._trace(topology, number)
            for topology in self.topologies
            if topology.main in committed
            for number in range(self.states[topology.main].partitions)
            if number not in committed[topology.main]
        }
        ends = positions.ends(places)
        ranges: dict[str, dict[int, range]] = {main: {} for main in mains}
        for main, number in places:
            ranges[main][number] = range(begins[main, number], ends[main, number])
        yield from judge_offsets(self.topologies, committed, ranges, traces)
        for main, kept in ranges.items():
            unread = {n: range(at, kept[n].stop) for n, at in committed[main].items() if at in kept[n]}
            yield from self._unread(main, unread)

    def _unread(self, main: str, unread: Mapping[int, range]) -> Iterator[Finding]:
        retention_ms, now_ms = self.states[main].deletes_after_ms, self.wall_ms()
        if retention_ms is None or not unread:
            return
        young = self._positions().at_time([(main, number) for number in unread], now_ms - retention_ms // 2)
        stops = {number: young[main, number] for number in unread}
        old = {n: range(at.start, at.stop if (stop := stops[n]) is None else stop) for n, at in unread.items()}
        times = first_times(self.subject.connection, main, old)
        ages_ms = {number: max(0, now_ms - since_ms) for number, since_ms in times.items()}
        if ages_ms:
            yield judge_unread(main, ages_ms, retention_ms)

    def _positions(self) -> Positions:
        subject = self.subject
        return Positions(subject.connection, timeout_s=subject.timeout_s, transaction_s=subject.timeout_s)

    def _trace(self, topology: HandlerTopology, partition: int) -> Trace:
        changelog = topology.pending_changelog
        if changelog not in self.states or partition >= self.states[changelog].partitions:
            return Trace()
        rows, mark = False, None
        for record in read_topic(self.subject.connection, changelog, partitions=[partition]):
            rows |= is_identity(record.key)
            mark = record if record.key == marks.PROGRESS else mark
        main = self.states.get(topology.main)
        if mark is None:
            return Trace(lost=rows)
        written = read_progress_of(mark, main.topic_id if main else "", topology.main)
        return Trace(written=written.positions.get(topology.main))

    def _paused(self) -> Iterator[Finding]:
        for topology in self.topologies:
            if topology.pending_changelog in self.states:
                known = remembered(self.subject.connection, topology)
                paused = {number: each.paused for number, each in known.items() if each.paused is not None}
                if paused:
                    yield judge_level(topology.main, paused, now_ms=self.wall_ms())
                for name in sorted({name for each in known.values() for name in each.forced_open}):
                    forced = {
                        number: each.forced_open[name] for number, each in known.items() if name in each.forced_open
                    }
                    yield judge_level(topology.main, forced, circuit=name, now_ms=self.wall_ms())

    def _clock(self) -> Iterator[Finding]:
        subject = self.subject
        topic = next((t.events for t in self.topologies if t.events in self.states), None)
        if not subject.write or topic is None:
            yield from _not_written(
                "--write tries one transaction" if not subject.write else "there is no events topic to write to yet"
            )
            return
        try:
            measured = clock.measure(
                subject.connection, subject.group, topic, wall_ms=self.wall_ms, timeout_s=subject.timeout_s
            )
        except clock.FencedError as error:
            yield from _not_written(f"{error}. Run this one again")
        except (KafkaRequestError, BrokerUnreachableError) as error:
            reach(self.subject.connection)
            yield problem(
                _TRANSACTIONS,
                error.problem if isinstance(error, BrokerUnreachableError) else str(error),
                expected="a transaction that can be begun, written in and aborted",
                why="no lane opens",
                remedy=f"{REMEDY}; if there was no answer, the broker cannot create or reach __transaction_state",
            )
        else:
            yield ok(_TRANSACTIONS, "one transaction was begun and aborted")
            yield clock.judge_measured(measured)


def _not_written(why: str) -> Iterator[Finding]:
    """Say that nothing was learnt by writing, and why."""
    yield note(_TRANSACTIONS, "not tried", why=f"Kafka does not report them; {why}")
    yield note("clock", "not compared", expected=clock.EXPECTED, why=f"Kafka does not report its time; {why}")


def quick_findings(
    connection: KafkaConnection,
    topologies: Sequence[HandlerTopology],
    options: PlanOptions,
    *,
    session_timeout_ms: int,
    datadir: Path,
    timeout_s: float = 5.0,
) -> tuple[Finding, ...]:
    """Return the warnings and problems that a worker logs when it starts; never raises. Each request has `timeout_s`.

    Topics are not compared again: a start has just done so. What the cluster does not report is left out.
    """
    found: list[Finding] = []
    try:
        found += machine.judge_settings(os.environ)
        found.append(machine.judge_disk(machine.nearest(datadir)))
        admin = KafkaAdmin(connection, timeout_s=timeout_s)
        facts = admin.cluster(asked=MOST_BROKERS)
        every, states = _existing(admin, topologies)
        times = {"downtime_ms": options.downtime_ms, "session_timeout_ms": session_timeout_ms}
        found += judge_brokers(facts, every, **times)
        found += judge_replicas(states)
        found += judge_rights(needed_acls(topologies), topics=states, group=None, cluster=None)
        found += _soon_left(connection, topologies)
    except (RetryAppError, OSError):
        pass  # the start has its own checks and its own patience
    return _runnable([finding for finding in found if finding.counts], connection)


def _soon_left(connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> Sequence[Finding]:
    """Return what is left behind, as far as that is known soon.

    A thread looks: topics that the start does not need may be many or long, or have no leader or damaged records.
    """
    found: list[Finding] = []

    def look() -> None:
        with suppress(Exception):
            found.extend(left_behind(KafkaAdmin(connection), topologies, deadline_s=time.monotonic() + _LOOK_S))

    thread = threading.Thread(target=look, name="left-behind", daemon=True)
    thread.start()
    thread.join(2 * _LOOK_S)
    return [*found]


def left_behind(
    admin: KafkaAdmin, topologies: Sequence[HandlerTopology], deadline_s: float = math.inf
) -> Iterator[Finding]:
    """Report the handlers whose topics exist and that the application does not have."""

    def convert(_key: bytes, _value: bytes) -> None:
        if time.monotonic() > deadline_s:
            raise TimeoutError

    for former in find_handlers(admin, topologies[0].group, but=[topology.main for topology in topologies]):
        changelog = former.pending_changelog
        if (state := admin.describe_topics([changelog]).get(changelog)) is not None:
            noted = progress_records(admin.connection, former, tails=TAILS).items()  # else all is read, and once
            floors = {number: record.floor for number, record in noted if record.changelog == state.topic_id}
            try:
                waiting = len(fold_changelog(admin.connection, changelog, convert, start=floors))
            except TimeoutError:
                waiting = None
            yield judge_old_handler(former.main, waiting)


def _existing(
    admin: KafkaAdmin, topologies: Sequence[HandlerTopology]
) -> tuple[dict[str, TopicState], dict[str, TopicState]]:
    """Return the topics that exist and that we may see, with Kafka's own and without."""
    names = [name for topology in topologies for name in topology.named]
    every = admin.describe_topics([*names, *INTERNAL], tolerant=True)
    return every, {name: state for name, state in every.items() if name not in INTERNAL}
