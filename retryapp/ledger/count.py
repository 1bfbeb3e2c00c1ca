"""The count of one partition, from traces, workers' own counts and the main topic's offsets.

1. `tell` and `note` take the contents of our topics.
2. `judge` follows every record that has a trace to its fate at the cut.
3. `see` takes the received records of the main topic, in order. Those without a trace were done at their first
   delivery: a failure leaves one, in the transaction that moves the offset, and so does each end.
4. `close` compares, and returns the balance.

Workers' own counts (`progress` events: so many received and failed between two offsets) are not added up but compared:
only they show a record that is lost with all its traces.

Memory: 30 bytes per trace and some 120 per record that has one, a few numbers per `progress` event, the problems;
nothing for a record that never failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Final

from retryapp.core.lifecycle import Progress
from retryapp.core.record import Origin, failure_id
from retryapp.core.text import counted
from retryapp.ledger.journey import WHOLE, Cut, Fate, Fault, Journey, Problem, follow, kept_since, may_be_dead
from retryapp.ledger.traces import Station, Told, Topics, Trace, pack, unpack

_STATION_TEXTS: Final = {
    Station.HELD: "events topic, held before its first delivery",
    Station.RETRY: "retry topic, attempt {} failed",
    Station.ROW: "pending table, attempt {} failed",
    Station.DEAD: "dead-letter topic, attempt {} failed",
    Station.SUCCEEDED: "events topic, attempt {} succeeded",
    Station.SKIPPED: "events topic, skipped at attempt {}",
    Station.DISCARDED: "events topic, discarded at attempt {}",
    Station.FAILED: "events topic, attempt {} at the dead letter failed",
    Station.SUPERSEDED: "events topic, superseded after attempt {}",
    Station.REPLAYED: "dead-letter topic, replayed",
    Station.RECOVERED: "dead-letter topic, replayed and done",
    Station.SET_ASIDE: "dead-letter topic, discarded",
    Station.RESTORED: "dead-letter topic, restored",
    Station.HANDLED: "dead-letter topic, handled",
    Station.LEFT: "dead-letter topic, skipped or failed by its handler",
}
_MANY: Final = 3_000
"""Bytes of traces, of which a record has 60 to some hundreds."""


@dataclass(slots=True, kw_only=True)
class Balance:
    """The count of one partition, or of a handler: received = the sum of the others up to ``lost``."""

    received: int = 0
    """Records of the main topic that the group's offset has passed, and failed ones that it no longer keeps."""
    done: int = 0
    pending: int = 0
    held: int = 0
    """Not delivered yet: they wait for earlier records of their sequences."""
    dead: int = 0
    handled: int = 0
    """Of those dead: their handler of dead letters is done with them."""
    discarded: int = 0
    """Dead, without a dead-letter topic, or with a letter that was discarded."""
    skipped: int = 0
    """Duplicates of an earlier event, and what the handler or a rule skipped."""
    superseded: int = 0
    """Replaced by newer records of their keys."""
    unknown: int = 0
    """Records whose fate the topics no longer contain."""
    lost: int = 0
    recovered: int = 0
    """Of those done: at their second delivery or later, as after a failure or a wait for an event."""
    on_hold: int = 0
    """Of those pending or held: not tried before somebody releases them."""
    expired_offsets: int = 0
    """Offsets at the beginning that the main topic no longer keeps and that have no trace."""
    unread_offsets: int = 0
    """Offsets of the main topic that the group has not passed."""
    copies: int = 0
    """What the group has passed besides: copies of records that were due again, of any group, or marks of letters."""


@dataclass(slots=True)
class _Range:
    """What workers have counted between two offsets, and how many records the topic has there."""

    told: Progress
    where: str
    seen: int = 0
    fine: int = 0
    """Of these: done at the first delivery, for all that the topics show."""


class PartitionCount:
    """Counts one partition; records of the main topic (as it is now: `topic_id`) below offset `start` are left out."""

    def __init__(self, *, partition: int, topics: Topics, topic_id: str, start: int = 0) -> None:
        self.partition = partition
        self.problems: list[Problem] = []
        self.balance = Balance()
        self._topics = topics
        self._topic_id = topic_id
        self._start = start
        self._traces: dict[tuple[str, int] | int, bytes | bytearray] = {}
        self._nobody: list[tuple[Trace, str]] = []
        self._ranges: list[_Range] = []
        self._damaged: list[tuple[int, int]] = []
        self._damage = "dead"
        self._on_hold: set[int] = set()
        """Offsets whose rows are not tried before somebody releases them."""
        self._fates: dict[int, Fate] = {}
        self._offsets: list[int] = []
        self._skipped: list[int] = []
        """Of these: skipped without having failed or been held before."""
        self._cut: Cut
        self._shown_from_ms = WHOLE
        self._open: list[_Range] = []
        self._next_range = 0

    def tell(self, told: Told) -> None:
        if told.nobody is not None:
            self._nobody.append((told.trace, told.nobody))
        elif told.topic_id == self._topic_id:
            if told.offset >= self._start:
                self._keep(told.offset, told.trace)
                if told.on_hold:
                    self._on_hold.add(told.offset)
                if told.last_offset > told.offset:
                    self._damaged.append((told.offset, told.last_offset))
                    self._damage = "discarded" if told.trace.station is Station.DISCARDED else "dead"
        elif self._start == 0:
            self._keep((told.topic_id, told.offset), told.trace)

    def _keep(self, key: tuple[str, int] | int, trace: Trace) -> None:
        raw = self._traces.get(key, b"")
        raw += pack(trace)
        # where a policy has no end a record has tens of thousands: bytes would be copied each time
        self._traces[key] = bytearray(raw) if isinstance(raw, bytes) and len(raw) > _MANY else raw

    def note(self, told: Progress, where: str) -> None:
        """Take a worker's own count, and the coordinates of its event; in the order in which they were published."""
        if told.from_offset == 0:
            self._ranges.clear()  # of a former life of the main topic, or before the offset was set to 0
        if told.from_offset >= self._start:
            self._ranges.append(_Range(told, where))

    def check_offset(self, committed: int, *, begin: int, end: int) -> None:
        """Compare the committed offset of the main topic with its first kept and its end offset."""
        where = f"{self._topics.main}[{self.partition}]"
        if committed < begin:
            gone = counted(begin - committed, "offset")
            text = f"deleted unread from committed offset {committed} of {where} on: {gone}"
            self._problem(Fault.DELETED, text)
        elif committed > end:
            text = f"committed offset {committed} of {where} is past its end offset {end}: recreated or truncated topic"
            self._problem(Fault.OFFSETS, text)

    def judge(self, cut: Cut) -> None:
        self._cut, self._shown_from_ms = cut, cut.shown_from_ms
        ahead: list[tuple[int, Trace]] = []
        while self._traces:
            key, raw = self._traces.popitem()
            traces = unpack(raw)
            if isinstance(key, int) and key >= cut.received:
                sure = [trace for trace in traces if cut.sure(trace)]
                if sure and key not in cut.settled:
                    ahead.append((key, sure[-1]))
                continue
            topic_id, offset = (self._topic_id, key) if isinstance(key, int) else key
            journey = follow(traces, cut)
            self._add(journey)
            for fault, found, text in journey.faults:
                where = tuple(cut.place(trace) for trace in found)
                station = station_text(journey.last)
                self._problem(fault, text, offset=offset, topic_id=topic_id, station=station, where=where)
            if isinstance(key, int):
                self._fates[key] = journey.fate
                self.balance.on_hold += key in self._on_hold and journey.fate in (Fate.PENDING, Fate.HELD)
                was_held = traces[0].station is Station.HELD  # workers have counted it as that
                if journey.fate is Fate.SKIPPED and journey.last.delivery <= 1 and not was_held:
                    self._skipped.append(key)
            else:
                self.balance.received += 1
        self._tell_ahead(sorted(ahead), cut.received)
        self._tell_nobody()
        self._skipped.sort()
        self._offsets = sorted(self._fates.keys() - set(self._skipped))
        inside = [each for each in self._ranges if each.told.to_offset <= cut.received]
        self._ranges = sorted(inside, key=lambda each: each.told.from_offset)

    def see(self, offset: int, timestamp_ms: int, *, copy: bool = False) -> None:
        """Take a received record of the main topic, or a copy, which is none: its traces, if any, are a stranger's."""
        balance = self.balance
        if copy:
            balance.copies += 1
            return
        balance.received += 1
        fine = False
        if self._fates.pop(offset, None) is None:
            if self._is_damaged(offset):
                setattr(balance, self._damage, getattr(balance, self._damage) + 1)
            elif fine := kept_since(self._shown_from_ms, timestamp_ms):
                balance.done += 1
            else:
                balance.unknown += 1  # it may have failed, and what followed be gone
        ranges = self._ranges
        while self._next_range < len(ranges) and ranges[self._next_range].told.from_offset <= offset:
            self._open.append(ranges[self._next_range])
            self._next_range += 1
        for each in self._open:
            if offset < each.told.to_offset:
                each.seen += 1
                each.fine += fine
        if self._open and self._open[0].told.to_offset <= offset:
            self._open = [each for each in self._open if each.told.to_offset > offset]

    def close(self, *, first_kept: int, compacted: bool = False) -> Balance:
        """Compare and return the counts; `first_kept`: first offset of the main topic, after it was read."""
        expired = 0
        for offset in sorted(self._fates):
            self.balance.received += 1
            if offset < first_kept:
                expired += 1
            elif not compacted and not self._is_damaged(offset):
                self._problem(Fault.STRANGER, "the main topic has no such record", offset=offset)
        if self._start <= first_kept:
            self.balance.expired_offsets = max(0, first_kept - self._start - expired)
        for each in self._ranges:
            if each.told.from_offset >= first_kept and not compacted:
                self._compare(each)
        self.problems.sort(key=lambda problem: -1 if problem.offset is None else problem.offset)
        return self.balance

    def _compare(self, each: _Range) -> None:
        told = each.told
        where = f"{self._topics.main}[{self.partition}]@{told.from_offset} to {told.to_offset - 1}"
        # a batch that could not be read counts as one for the workers
        inside = [r for r in self._damaged if told.from_offset <= r[0] < told.to_offset]
        if not inside and each.seen != told.received:
            text = f"workers received {counted(told.received, 'record')} in {where}, the topic has {each.seen}"
            self._problem(Fault.COUNTS, text, where=(each.where,))
        skipped = _between(self._skipped, told)
        if skipped < told.skipped and self._cut.keeps([self._topics.events], told.from_ms):
            text = f"{counted(told.skipped, 'record')} skipped in {where}, {skipped} left a trace"
            self._problem(Fault.COUNTS, text, where=(each.where,))
        traced, expected = _between(self._offsets, told), told.failed + told.held
        came = "failed or held" if told.held else "failed"
        if traced < expected:
            missing = min(expected - traced, each.fine)
            self.balance.done -= missing
            # of a record that was held, or superseded before its delivery, events may be the only traces
            if not self._cut.keeps((*self._topics.dlqs, self._topics.events), told.from_ms):
                self.balance.unknown += missing
                return
            text = f"{counted(expected, 'record')} {came} in {where}, {traced} left a trace"
            if letters := self._cut.missing_letters:
                self.balance.unknown += missing
                self._problem(Fault.MISSING, f"{text}; {may_be_dead(letters)}", where=(each.where,))
                return
            self.balance.lost += missing
            self._problem(Fault.LOST, text, where=(each.where,))
        elif traced > expected:
            text = f"{counted(expected, 'record')} {came} in {where}, {traced} with traces of a failure"
            self._problem(Fault.COUNTS, text, where=(each.where,))

    def _tell_ahead(self, ahead: list[tuple[int, Trace]], committed: int) -> None:
        if ahead and committed == 0:
            records = counted(len(ahead), "record")
            text = f"{records} on the group's topics, without a committed offset of {self._topics.main}"
            self._problem(Fault.OFFSETS, text, where=(self._cut.place(ahead[0][1]),))
            return
        for offset, last in ahead:
            text = f"it was published, but committed offset {committed} is not past it: it will be delivered again"
            where = (self._cut.place(last),)
            self._problem(Fault.AHEAD, text, offset=offset, station=station_text(last), where=where)

    def _tell_nobody(self) -> None:
        for trace, text in self._nobody:
            where = (self._cut.place(trace),)
            self._problem(Fault.NOBODY, text, station=station_text(trace), where=where)

    def _problem(
        self,
        fault: Fault,
        text: str,
        *,
        offset: int | None = None,
        topic_id: str | None = None,
        station: str | None = None,
        where: tuple[str, ...] = (),
    ) -> None:
        identity = record = None
        if offset is not None:
            origin = Origin(self._topics.main, topic_id or self._topic_id, self.partition, offset)
            identity = failure_id(self._topics.group, origin)
            record = f"{self._topics.main}[{self.partition}]@{offset}"
        self.problems.append(
            Problem(fault, self.partition, text, failure_id=identity, record=record, offset=offset, station=station,
                    where=where)
        )  # fmt: skip

    def _add(self, journey: Journey) -> None:
        name, last = journey.fate.name.lower(), journey.last
        setattr(self.balance, name, getattr(self.balance, name) + 1)
        self.balance.handled += journey.handled
        self.balance.recovered += journey.fate is Fate.DONE and last.delivery > 1  # in an outage none spends an attempt

    def _is_damaged(self, offset: int) -> bool:
        return any(first <= offset <= last for first, last in self._damaged)


def _between(offsets: list[int], told: Progress) -> int:
    return bisect_left(offsets, told.to_offset) - bisect_left(offsets, told.from_offset)


def station_text(trace: Trace) -> str:
    """Return where a trace is, for people."""
    if trace.station is Station.ROW and not trace.delivery:
        return "pending table, held before its first delivery"
    if trace.station is Station.SKIPPED and not trace.delivery:
        return "events topic, skipped as a duplicate"
    again = f", replay {trace.replays}" if trace.replays else ""
    where = _STATION_TEXTS[trace.station]
    if not trace.attempt:
        where = where.replace("attempt {} failed", "no attempt spent")
    return where.format(trace.attempt) + again


def total(balances: Collection[Balance]) -> Balance:
    return Balance(**{f.name: sum(getattr(balance, f.name) for balance in balances) for f in fields(Balance)})
