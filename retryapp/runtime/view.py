"""What the pages may ask of a worker.

Methods run on the worker's event loop: none reads more rows than its `limit` and one more per partition. `due_times`,
`causes`, `waiting_causes`, `pending_page` and `dead_latest` may run in a thread: each asks for its table once, and its
iterators end with it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from retryapp.core.causes import CauseCount, summed
from retryapp.core.dead_index import IndexedLetter, newest_letter
from retryapp.core.errors import BrokerUnreachableError, RecordError
from retryapp.core.headers import decode_metadata
from retryapp.core.jobs import Part
from retryapp.core.metadata import STOPPED_TIER
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import STOPPED_MS, due_order, identity_of
from retryapp.core.rows import decode_row
from retryapp.core.topology import GROW, HandlerTopology
from retryapp.engine.handler.handler import Order
from retryapp.engine.lane.lane import LaneState
from retryapp.engine.worker.placement import Placed
from retryapp.kafka import KafkaConnection, read_record, read_topic
from retryapp.ports import (
    ELSEWHERE,
    Activity,
    CauseTrends,
    CircuitInfo,
    DeadEntry,
    HandlerInfo,
    PartitionInfo,
    PartitionLag,
    PendingEntry,
    PendingTable,
)
from retryapp.runtime.app import Runtime
from retryapp.runtime.lags import ask_lags
from retryapp.runtime.machine.threads import Daemons
from retryapp.runtime.observe.lanes import LaneWatch
from retryapp.runtime.observe.metrics import Gauges
from retryapp.runtime.observe.observers import CombinedObserver
from retryapp.runtime.observe.trends import CauseWatch
from retryapp.runtime.stores.deadletters import RocksDeadLetterTable

_LEAST_CHUNK, _MOST_CHUNK = 4, 50
"""Rows of a partition that are read at once for a page."""
_AT_ONCE: Final = 10  # partitions that are looked at in one turn of the event loop, every two seconds: some 0.4 ms
_IDLE: Final = str(LaneState.IDLE)

_scrapes: Final = Daemons(2, "metrics")
"""Not the event loop's threads, which handlers may hold: alerts matter then."""

P = ParamSpec("P")
T = TypeVar("T")


class RuntimeView:
    """What the pages may ask. Answers are bounded by `limit`; only partitions owned here are listed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lanes, self._trends = LaneWatch(runtime.clock), CauseWatch(runtime.clock)
        self._known: dict[tuple[str, int], PartitionInfo] = {}
        """Last known numbers of each partition that this worker has, or had until a rebalance began."""
        runtime.observer = CombinedObserver(runtime.observer, self._lanes, self._trends)
        runtime.gauges = self._all_partitions
        runtime.remember = self.remember
        runtime.scrape = self.metrics_text

    def url(self) -> str:
        """Return the address under which this worker has its pages, without our prefix."""
        return str(self._runtime.app.conf.canonical_url)

    def handlers(self) -> Sequence[HandlerInfo]:
        return [_info(self._runtime, main) for main in self._runtime.served]

    def partitions(self, main: str) -> Sequence[PartitionInfo]:
        """Return all partitions of the handler, other workers' with their owner's address."""
        addresses = self._addresses(main)
        return [
            self._partition(main, number, addresses.get(number))
            for number in range(self._runtime.served[main].partitions)
        ]

    async def remember(self) -> None:
        """Note the numbers of all partitions here, which are shown while no broker answers, a few at a time."""
        for at, (main, number) in enumerate([*self._runtime.placed], 1):
            self.partition(main, number)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def partition(self, main: str, number: int) -> PartitionInfo | None:
        if not 0 <= number < self._runtime.served[main].partitions:
            return None
        here = (main, number) in self._runtime.placed
        return self._partition(main, number, None if here else self._addresses(main).get(number))

    async def lags(self, main: str) -> Sequence[PartitionLag]:
        """Ask the broker for the lag of the partitions owned here; may raise `BrokerUnreachableError`."""
        return await ask_lags(self._runtime, main, self._here(main))

    def due_times(self, main: str, partition: int, *, start_ms: int, stop_ms: int, limit: int) -> Sequence[int]:
        """Return `due_at_ms` of the first rows of a partition with `start_ms <= due_at_ms < stop_ms`, rising."""
        placed = self._open(main, partition)
        # not while it is read from the changelog: a table that a thread uses first may not see rows that come meanwhile
        table = placed.transport.pending if placed and placed.lane.state is LaneState.OPEN else None
        return table.due_times(start_ms, stop_ms, limit) if table else []

    def pending_page(
        self, main: str, *, after: bytes | None, limit: int, partition: int | None = None
    ) -> Iterable[PendingEntry]:
        """Yield waiting records by due time over all partitions owned here, with keys greater than `after`."""
        here = [
            (number, placed)
            for number, placed in self._here(main).items()
            if partition in {None, number} and placed.lane.state is LaneState.OPEN
        ]
        chunk = min(limit, max(_LEAST_CHUNK, 2 * limit // max(1, len(here))), _MOST_CHUNK)
        most = self._max_attempts(main)
        rows = [_waiting(placed, number, after, chunk, most) for number, placed in here]
        return islice(heapq.merge(*rows, key=lambda entry: due_order(entry.key)), limit)

    def topic_id(self, main: str) -> str:
        """Return the id of a main topic: what waits or is dead may be of a former one of its name."""
        return self._runtime.served[main].topic_id

    def pending_find(self, origin: Origin) -> PendingEntry | None:
        placed = self._open(origin.topic, origin.partition)
        table = placed.transport.pending if placed else None
        key = table.find(identity_of(origin)) if table else None
        value = table.get(key) if table and key else None
        if not key or not value:
            return None
        most = self._max_attempts(origin.topic)
        return PendingEntry(partition=origin.partition, key=key, value=value, max_attempts=most)

    def letters_counted(self, main: str, partition: int) -> bool:
        """Tell whether the dead letters of a partition have been read since it opened; what came since may lack."""
        placed = self._open(main, partition)
        return placed is not None and placed.transport.letters_counted

    def dead_page(
        self, main: str, *, partition: int, before: int | None, limit: int, letters: str | None = None
    ) -> Sequence[DeadEntry]:
        """Return dead letters of one topic and partition with offsets below `before`, the highest first."""
        table = self._letters(main, partition, letters)
        return self._entries(main, partition, letters, table.page(before, limit) if table else [])

    def dead_latest(
        self,
        main: str,
        *,
        partition: int,
        before: tuple[int, int] | None,
        limit: int,
        letters: str | None = None,
        cause: str | None = None,
        key: bytes | None = None,
    ) -> Sequence[DeadEntry]:
        """Return dead letters of one topic and partition by time, newest first, below a time and an offset.

        All of them, or those of a cause id or of a record key, which are looked up.
        """
        table = self._letters(main, partition, letters)
        rows = table.latest(before, limit, cause=cause, key=key) if table else []
        return self._entries(main, partition, letters, rows)

    def _letters(self, main: str, partition: int, letters: str | None) -> RocksDeadLetterTable | None:
        placed, topology = self._open(main, partition), self._runtime.served[main].handler.topology
        return _dead(placed).get(topology.dlq_named(letters)) if placed else None

    def _entries(
        self, main: str, partition: int, letters: str | None, rows: Sequence[IndexedLetter]
    ) -> list[DeadEntry]:
        most = self._max_attempts(main)
        return [DeadEntry(partition=partition, row=row, letters=letters, max_attempts=most) for row in rows]

    def dead_find(self, main: str, partition: int, failure_id: str) -> DeadEntry | None:
        placed, topology = self._open(main, partition), self._runtime.served[main].handler.topology
        tables = placed.transport.dead if placed else {}
        found = [
            DeadEntry(partition=partition, row=row, letters=letters, max_attempts=self._max_attempts(main))
            for letters in (None, *topology.dead_letters)
            if (table := tables.get(topology.dlq_named(letters))) and (row := table.find(failure_id))
        ]
        return newest_letter(found, lambda each: each.row.age) if found else None

    def job_parts(self, main: str) -> Mapping[int, Sequence[Part]]:
        known = {number: each.engine.commands for number, each in self._here(main).items()}
        return {number: list(each.parts) for number, each in known.items() if each is not None}

    def on_topics(
        self,
        main: str,
        call: Callable[Concatenate[KafkaConnection, HandlerTopology, P], T],
        *args: P.args,
        **more: P.kwargs,
    ) -> T:
        """Call what reads a handler's topics, or writes commands to them, as the command line does. Blocks."""
        return call(self._runtime.connection, self._runtime.served[main].handler.topology, *args, **more)

    def causes(self, main: str) -> Mapping[int, Sequence[CauseCount]]:
        """Return the causes of open dead letters by partition, of those here, the most frequent first."""
        return {
            number: summed(count for table in _dead(each).values() for count in table.causes())
            for number, each in self._here(main).items()
        }

    def activity(self, main: str) -> Activity | None:
        """Return what ended here lately; None before the worker has begun."""
        return self._runtime.recent.of(main)

    def trends(self, main: str) -> CauseTrends | None:
        """Return how many deliveries have failed here lately, by cause."""
        return self._trends.of(main)

    def read_record(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record from Kafka; None when it is no longer there. Blocks."""
        return read_record(self._runtime.connection, topic, partition, offset)

    def waiting_causes(self, main: str) -> Mapping[int, Sequence[CauseCount]]:
        """Return the causes of what waits by partition, of the open ones here, the most frequent first."""
        open_here = {number: each for number, each in self._here(main).items() if each.lane.state is LaneState.OPEN}
        tables = {number: each.transport.pending for number, each in open_here.items()}
        return {number: table.causes() for number, table in tables.items() if table is not None}

    def read_range(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Record]:
        """Read ranges of offsets of some partitions. Blocks."""
        starts, stops = ({number: each[at] for number, each in ranges.items()} for at in (0, 1))
        return read_topic(self._runtime.connection, topic, partitions=ranges, start=starts, stop=stops)

    def silence(self) -> str | None:
        return self._runtime.contact.silence()

    def ready(self) -> bool:
        """Tell whether a broker answers and every lane that belongs to this worker is open, and none is stalled."""
        runtime = self._runtime
        if (
            not runtime.assigned or runtime.app.rebalancing or self.silence()
        ):  # before the first assignment nothing is placed yet
            return False
        if runtime.contact.missing or any(served.lacking for served in runtime.served.values()):
            return False
        return all(
            placed.lane.state is LaneState.OPEN and self._stalled(main, placed) is None
            for (main, _), placed in runtime.placed.items()
        )

    def _stalled(self, main: str, placed: Placed) -> str | None:
        refusal, commands = placed.lane.refusal, placed.engine.commands
        if commands is not None and commands.levels.paused is not None and commands.levels.paused.record:
            return commands.levels.paused.text
        if refusal is not None:
            return str(refusal)
        return self._runtime.served[main].handler.orphans.problem or self._runtime.contact.refused(main)

    async def metrics_text(self) -> bytes:
        """Return the metrics in the Prometheus text format, with the lag of the main topics if a broker answers."""
        mains = list(self._runtime.served)
        lags = zip(mains, await asyncio.gather(*map(self._lag, mains)), strict=True)
        gauges = self.gauges({main: lag for main, lag in lags if lag})
        return await asyncio.get_running_loop().run_in_executor(_scrapes, self._text, gauges)

    def _text(self, gauges: Gauges) -> bytes:
        """Write gauges with the causes, in a thread: each partition may have hundreds."""
        dead, waiting = (
            {main: summed(chain.from_iterable(causes(main).values())) for main in gauges.partitions}
            for causes in (self.causes, self.waiting_causes)
        )
        return self._runtime.metrics.collect(replace(gauges, causes=dead, waiting=waiting)).text()

    def gauges(self, lags: Mapping[str, Sequence[PartitionLag]] | None = None) -> Gauges:
        """Return what the metrics show of this moment but the causes; the lags are those that the broker told."""
        runtime, parts = self._runtime, self._all_partitions()
        now_ms = runtime.clock.wall_ms()
        return Gauges(
            partitions=parts,
            blocked={main: sum(info.is_blocked_long(now_ms) for info in infos) for main, infos in parts.items()},
            orphans={main: len(served.handler.orphans) for main, served in runtime.served.items()},
            durations={main: served.handler.durations for main, served in runtime.served.items()},
            lags=lags or {},
            skew=runtime.clock.skew,
            rebalancing_s=runtime.rebalancing_s(),
            silent_s=runtime.contact.silent_s(),
        )

    def _all_partitions(self) -> dict[str, Sequence[PartitionInfo]]:
        return {main: self.partitions(main) for main in self._runtime.served}

    async def _lag(self, main: str) -> Sequence[PartitionLag]:
        try:
            return await self.lags(main)
        except BrokerUnreachableError:
            return ()

    def _max_attempts(self, main: str) -> int | None:
        return self._runtime.served[main].handler.policy.max_attempts

    def _open(self, main: str, partition: int) -> Placed | None:
        return self._runtime.placed.get((main, partition))

    def _here(self, main: str) -> dict[int, Placed]:
        """Return the partitions of a main topic that are here, by number; may run in a thread."""
        numbers = range(self._runtime.served[main].partitions)
        return {number: placed for number in numbers if (placed := self._open(main, number)) is not None}

    def _addresses(self, main: str) -> dict[int, str]:
        if self._runtime.plan is None:
            return {}
        workers = cast("Any", self._runtime.app.assignor).external_topics_metadata()
        return {int(number): str(url) for url, topics in workers.items() for number in topics.get(main, ())}

    def _partition(self, main: str, number: int, address: str | None) -> PartitionInfo:
        placed, place = self._open(main, number), (main, number)
        if placed is None:
            if not self._runtime.assigned and (last := self._known.get(place)) is not None:
                seen = self._lanes.look(main, number, last.session, _IDLE, None)
                return replace(
                    last, state=_IDLE, since_ms=seen.since_ms, last_error=seen.error, last_error_ms=seen.error_ms
                )
            self._known.pop(place, None)
            why = self._runtime.contact.missing.get(main)
            if number in self._runtime.served[main].lacking:
                why = f"a topic of ours lacks this partition. {GROW}"
            if why is not None:
                return PartitionInfo(partition=number, state=str(LaneState.CLOSED), last_error=why)
            url = address if address and address != self.url() else None
            return PartitionInfo(partition=number, state=ELSEWHERE, owner_url=url)
        lane, pace, commands = placed.lane, placed.engine.context.pace, placed.engine.commands
        paused = commands.levels.paused if commands is not None and pace.paused else None
        circuits = _circuits(placed, self._runtime.clock.wall_ms())
        own = circuits.pop("", None)
        pending_behind, dead_behind = self._runtime.behind(main, number)
        is_open = lane.state is LaneState.OPEN
        blocked = placed.engine.blocked if is_open else None
        in_line = self._runtime.served[main].handler.order is Order.PARTITION  # else a cap is reached, whatever is next
        seen = self._lanes.look(main, number, lane.session, str(lane.state), lane.last_error)
        return replace(
            self._numbers(placed, place),
            state=str(lane.state),
            in_flight=placed.engine.running,
            release_lag_ms=placed.engine.release_lag_ms,
            looked_ms=placed.engine.looked_ms if is_open else None,
            pending_behind=pending_behind if lane.state is LaneState.OPENING else 0,
            dead_behind=dead_behind if is_open else 0,
            stalled=self._stalled(main, placed) if is_open else None,
            circuit=None if own is None else own.state,
            circuits=circuits,
            paused=None if paused is None else paused.text,
            paused_since_ms=None if paused is None else paused.since_ms,
            circuit_since_ms=None if own is None else own.since_ms,
            # a plain one: `asdict` cannot copy a Counter
            jobs=dict(Counter(str(part.state) for part in commands.parts if not part.over)) if commands else {},
            circuit_cause="" if own is None else own.cause,
            holds_due=pace.holds_due if is_open else None,
            blocked=blocked,
            blocked_since_ms=_first_failed_ms(placed, self._runtime.clock.wall_ms()) if blocked and in_line else None,
            session=lane.session,
            since_ms=seen.since_ms,
            last_error=seen.error,
            last_error_ms=seen.error_ms,
        )

    def _numbers(self, placed: Placed, place: tuple[str, int]) -> PartitionInfo:
        """Return the numbers of the open tables while a broker answers, else the last known ones with their time.

        A table is complete while its lane is open only; dead letters are read after that.
        """
        contact, pending, dead = self._runtime.contact, placed.transport.pending, _dead(placed)
        known = self._known.get(place) or PartitionInfo(partition=place[1], state=_IDLE)
        if placed.lane.state is LaneState.OPEN and pending is not None and not contact.silence():
            counts = dict(pending.counts())
            stopped = counts.pop(STOPPED_TIER, 0)
            whole = placed.transport.letters_counted and not self._runtime.behind(*place)[1]
            known = PartitionInfo(
                partition=place[1],
                state=_IDLE,
                pending=sum(counts.values()),
                pending_by_tier=counts,
                stopped=stopped,
                next_due_ms=_next_due_ms(pending, placed.engine.begun_rows) if counts else None,
                dead=sum(table.count() for table in dead.values()) if whole else None,
                session=placed.lane.session,
            )
            at_ms = self._runtime.clock.wall_ms() - round(contact.silent_s() * 1000)
            self._known[place] = replace(known, as_of_ms=at_ms)
        return known


def _circuits(placed: Placed, now_ms: int) -> dict[str, CircuitInfo]:
    pace, commands = placed.engine.context.pace, placed.engine.commands
    levels = {} if commands is None else commands.levels.forced
    return {
        name: CircuitInfo(
            state=str(gate.circuit.state),
            # of one that is forced open: its worker may have begun later
            since_ms=levels[name].since_ms if gate.forced and name in levels else now_ms - pace.age_ms(gate.circuit),
            cause=gate.circuit.cause,
            full=gate.places is not None and gate.places.full,
        )
        for name, gate in pace.gates.items()
    }


def _first_failed_ms(placed: Placed, now_ms: int) -> int | None:
    """Return when the record that is next in the table failed first: now, if it comes there now; None: not known."""
    table = placed.transport.pending
    if table is None or not (rows := table.page(None, 1)):
        return now_ms
    with suppress(RecordError):
        metadata = decode_metadata(decode_row(rows[0][1]).headers)
        return None if metadata is None else metadata.first_failed_ms
    return None


def _next_due_ms(pending: PendingTable, running: Collection[bytes]) -> int | None:
    due_at_ms = pending.due(0, 0, running)[1]
    return None if due_at_ms is not None and due_at_ms >= STOPPED_MS else due_at_ms  # only what is held is there


def _waiting(placed: Placed, number: int, after: bytes | None, chunk: int, most: int | None) -> Iterator[PendingEntry]:
    """Walk over waiting records, a few at a time: most of them are never asked for."""
    table = placed.transport.pending
    while table is not None:
        rows = table.page(after, chunk)
        for key, value in rows:
            yield PendingEntry(partition=number, key=key, value=value, max_attempts=most)
        if len(rows) < chunk:
            return
        after = rows[-1][0]


def _dead(placed: Placed) -> Mapping[str, RocksDeadLetterTable]:
    return cast("Mapping[str, RocksDeadLetterTable]", placed.transport.dead)  # `KafkaTransport` opens no others


def _info(runtime: Runtime, main: str) -> HandlerInfo:
    served = runtime.served[main]
    handler, topology = served.handler, served.handler.topology
    return HandlerInfo(
        group=handler.group,
        main=main,
        function=handler.name,
        policy=handler.policy.text,
        schedule=handler.policy.schedule.text,
        max_attempts=handler.policy.max_attempts,
        max_elapsed_ms=handler.policy.max_elapsed_ms,
        rule_schedules=tuple(each.text for each in handler.policy.schedules[1:]),
        policy_digest=handler.policy.digest,
        tiers=str(topology.tiers),
        order=str(handler.order),
        concurrency=handler.concurrency,
        timeout_ms=handler.policy.timeout_ms,
        topics={
            "main": main,
            **({} if topology.drop else {"dlq": topology.dlq}),
            **{f"dlq {name}": topology.dlq_named(name) for name in topology.dead_letters},
            "events": topology.events,
            "control": topology.control,
            "changelog": topology.pending_changelog,
            **({} if topology.seen_window_ms is None else {"seen events": topology.seen_changelog}),
        },
        partitions=served.partitions,
        retry_topics=topology.retry_topics,
        dead_letters=topology.dead_letters,
        pace=handler.pace,
        discarded=runtime.metrics.ended[main] if topology.drop else None,
        batch="" if handler.batch is None else handler.batch.text,
        publishes=topology.publishes,
    )
