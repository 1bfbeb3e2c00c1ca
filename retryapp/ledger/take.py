"""Takes a ledger: reads each of the handler's topics once, up to its bounds, and counts by partition.

Our topics first, then the main topic: its records without a trace were done at their first delivery. It joins no group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from retryapp.core import marks
from retryapp.core.errors import DamagedEventError, TopicMissingError
from retryapp.core.lifecycle import Progress
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import is_identity
from retryapp.core.rows import is_stopped
from retryapp.core.settled import decode_settled
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, Positions, TopicState, read_offsets, read_topic
from retryapp.kafka.remembered import read_progress_of
from retryapp.ledger.bounds import Bounds, OnStep, take_bounds
from retryapp.ledger.count import Balance, PartitionCount, total
from retryapp.ledger.journey import WHOLE, Cut, Problem
from retryapp.ledger.traces import Station, Told, Topics, told_by, told_by_event, told_by_row

_SETTLED: Final = b'"settled"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The count of one handler's topics."""

    group: str
    main: str
    since_ms: int | None
    partitions: Mapping[int, Balance]
    problems: tuple[Problem, ...]
    """By partition and offset."""
    unread_events: int
    """Records of the events topic of an unknown type."""
    forgotten: tuple[int, ...] = ()
    """Partitions whose committed offset the broker has expired; it was taken from the changelog."""
    missing_letters: str = ""
    """Dead-letter topic that is not there, where it is not known whether the handler has one."""

    @property
    def total(self) -> Balance:
        return total(self.partitions.values())

    @property
    def adds_up(self) -> bool:
        """Whether every received record has one fate, without a contradiction."""
        return not self.problems


def take_ledger(
    connection: KafkaConnection,
    topology: HandlerTopology,
    *,
    by_names: bool = False,
    since_ms: int | None = None,
    on_step: OnStep | None = None,
) -> Ledger:
    """Count a handler's records, while its workers run or rest; existing retry topics of other delays count too.

    Args:
        connection: the cluster.
        topology: the handler's topics.
        by_names: they were found by their names, without the app (`find_handlers`): a dead-letter topic that is not
            there was deleted, or the handler has none, and records without an end are unknown, not lost.
        since_ms: what was received before the main topic's first record of this time or later is left out.
        on_step: gets what is read or waited for.

    Raises:
        TopicMissingError: one of the topics is not there.
        BrokerUnreachableError, AccessDeniedError: they cannot be read.
        OpenTransactionError: a transaction does not end.
    """
    return _Taking(connection, topology, since_ms, on_step, by_names).take()


@dataclass(slots=True)
class _Taking:
    connection: KafkaConnection
    topology: HandlerTopology
    since_ms: int | None
    on_step: OnStep | None
    by_names: bool
    positions: Positions = field(init=False)
    topics: Topics = field(init=False)
    states: Mapping[str, TopicState] = field(init=False)
    bounds: Bounds = field(init=False)
    counts: dict[int, PartitionCount] = field(init=False)
    starts: dict[int, int] = field(init=False)
    received: dict[int, int | None] = field(init=False)
    """The group's offset of the main topic, by partition."""
    settled: dict[int, str] = field(default_factory=dict)
    """Text about records beyond it that are settled (`core.settled`), by partition."""
    forgotten: tuple[int, ...] = ()
    unread_events: int = 0

    def take(self) -> Ledger:
        self.positions = Positions(self.connection)
        self._find_topics()
        names = self.topics.names
        self.bounds = take_bounds(
            self.positions, self.topics, {name: self.states[name].partitions for name in names}, self.on_step
        )
        self._begin_counts()
        self._read_changelog()
        self._check_offsets()
        firsts = self._read_copies()
        self._judge(firsts)
        self._read_main()
        main = [(names[0], number) for number in self.counts]
        begins = self.positions.begins(main)
        compacted = "compact" in self.states[names[0]].config.get("cleanup.policy", "")
        balances = {
            number: count.close(first_kept=begins[names[0], number], compacted=compacted)
            for number, count in self.counts.items()
        }
        return Ledger(
            group=self.topics.group,
            main=names[0],
            since_ms=self.since_ms,
            partitions=balances,
            problems=tuple(problem for count in self.counts.values() for problem in count.problems),
            unread_events=self.unread_events,
            forgotten=self.forgotten,
            missing_letters=self.missing_letters,
        )

    @property
    def missing_letters(self) -> str:
        topology = self.topology
        return topology.dlq if self.by_names and topology.may_lack_letters else ""

    def _find_topics(self) -> None:
        topology, there = self.topology, self.positions.topic_names()
        retry = [name for name in there if topology.retry_delay_ms(name) is not None]
        letters = sorted({*topology.dlqs, *filter(topology.is_dlq, there)})
        ours = (*letters, topology.events, topology.pending_changelog)
        names = (topology.main, *(retry or topology.retry_topics), *ours)
        self.states = self.positions.describe_topics(names)
        for name in names:
            if name not in self.states:
                raise TopicMissingError(name, self.connection.bootstrap)
        self.topics = Topics(topology.group, names, len(letters))

    def _begin_counts(self) -> None:
        topics, bounds = self.topics, self.bounds
        state = self.states[topics.main]
        self.starts = dict.fromkeys(range(state.partitions), 0)
        if self.since_ms is not None:
            found = self.positions.at_time([(topics.main, number) for number in self.starts], self.since_ms)
            for (name, number), offset in found.items():
                self.starts[number] = bounds.end[name, number] if offset is None else offset
        self.counts = {
            number: PartitionCount(partition=number, topics=topics, topic_id=state.topic_id, start=start)
            for number, start in self.starts.items()
        }
        self.received = dict(bounds.received)

    def _check_offsets(self) -> None:
        main, bounds = self.topics.main, self.bounds
        for number, offset in self.received.items():
            if offset is not None:
                place = main, number
                self.counts[number].check_offset(offset, begin=bounds.begin[place], end=bounds.end[place])

    def _main_stops(self) -> dict[int, int]:
        return {number: offset or 0 for number, offset in self.received.items()}

    def _read_copies(self) -> dict[tuple[int, int], int]:
        """Read our other topics; return the time of the first record by topic index and partition."""
        topics = self.topics
        firsts: dict[tuple[int, int], int] = {}
        for topic in range(1, topics.changelog):
            station = Station.DEAD if topic in topics.dlqs else Station.RETRY
            for record in self._records(topic):
                firsts.setdefault((topic, record.partition), record.timestamp_ms)
                if topic == topics.events:
                    self._take_event(record)
                else:
                    self._tell(record.partition, told_by(record, station, topic, topics))
        return firsts

    def _tell(self, number: int, told: Told) -> None:
        if number in self.counts:
            self.counts[number].tell(told)

    def _take_event(self, record: Record) -> None:
        try:
            told = told_by_event(record, self.topics)
        except DamagedEventError:
            self.unread_events += 1
            return
        if isinstance(told, Told):
            self._tell(record.partition, told)
        elif isinstance(told, Progress) and told.partition in self.counts:
            self.counts[told.partition].note(told, record.coordinates)

    def _read_changelog(self) -> None:
        """Fold the changelog into what its rows say; take committed offsets that the broker has expired from it."""
        topics = self.topics
        topic_id = self.states[topics.main].topic_id
        rows: dict[bytes, tuple[int, Told]] = {}
        last: dict[int, Record] = {}
        for record in self._records(topics.changelog):
            key = record.key or b""
            if key == marks.PROGRESS:
                last[record.partition] = record
                if _SETTLED in (record.value or b""):
                    note = read_progress_of(record, topic_id, topics.main)
                    if note.settled and note.positions.get(topics.main) == self.received.get(record.partition, -1):
                        self.settled[record.partition] = note.settled
            elif not is_identity(key):  # an owner mark, a mark of the clock
                continue
            elif record.value is None or is_stopped(record.value):  # its record is dead: its letter says so
                rows.pop(key, None)
            else:
                rows[key] = record.partition, told_by_row(record, topic_id, topics)
        for number, told in rows.values():
            self._tell(number, told)
        noted = {number: read_progress_of(record, topic_id, topics.main) for number, record in last.items()}
        written = {number: note.positions.get(topics.main) for number, note in noted.items()}
        self.forgotten = tuple(
            n for n, offset in self.received.items() if offset is None and written.get(n) is not None
        )
        self.received |= {number: written[number] for number in self.forgotten}
        self.settled |= {number: noted[number].settled for number in self.forgotten}

    def _judge(self, firsts: Mapping[tuple[int, int], int]) -> None:
        topics, bounds = self.topics, self.bounds
        begins = self.positions.begins([place for place in bounds.floor if place[1] in self.counts])
        for number, count in self.counts.items():
            received = self._main_stops()[number]
            committed = Origin(topics.main, self.states[topics.main].topic_id, number, received)
            kept: list[float] = [WHOLE] * len(topics.names)
            for topic in range(1, topics.changelog):
                if begins.get((topics.names[topic], number), 0) > 0:
                    kept[topic] = firsts.get((topic, number), math.inf)
            count.judge(
                Cut(
                    partition=number,
                    topics=topics,
                    received=received,
                    settled=decode_settled(self.settled.get(number, ""), committed),
                    floor=[bounds.floor.get((name, number), 0) for name in topics.names],
                    kept_from_ms=kept,
                    missing_letters=self.missing_letters,
                )
            )
            end = bounds.end[topics.main, number]
            count.balance.unread_offsets = max(0, end - max(received, self.starts[number]))

    def _records(self, topic: int) -> Iterator[Record]:
        name = self.topics.names[topic]
        stop = {number: end for (found, number), end in self.bounds.end.items() if found == name}
        self._say(f"reading {name}")
        return read_topic(self.connection, name, partitions=sorted(stop), stop=stop)

    def _read_main(self) -> None:
        name, stops = self.topics.main, self._main_stops()
        self._say(f"reading {name}")
        bounds: Any = {"partitions": sorted(stops), "start": self.starts, "stop": stops}
        places = read_offsets(self.connection, name, marks=self.topology.reads_letters, **bounds)
        for number, offset, timestamp_ms, copy in places:
            self.counts[number].see(offset, timestamp_ms, copy=copy)

    def _say(self, step: str) -> None:
        if self.on_step is not None:
            self.on_step(step)
