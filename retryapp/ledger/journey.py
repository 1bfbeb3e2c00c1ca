"""One record's way, followed through its traces to where it is at the cut. Pure: no Kafka, no clock.

A record goes

    main ─► retry ─► row ─► redelivery ─► retry ─► … ─► succeeded | dead        dead ─► retry (a replay)
    main ─► skipped (a duplicate)

and each arrow is one transaction, so at any cut it is at one station: the first that it has not left by then. `follow`
goes from arrow to arrow:

* a copy on a retry or redelivery topic at or after the committed offset has not been handled: there it is, and further
  copies were published after the cut;
* one before the committed offset was handled, so the next copy must be there. Where it is not, the record is *lost*, or
  *unknown* if the topic of the next copy has deleted records of that time;
* a row is in the table at the cut; further copies were published after it.

A trace that is not on this way, and was certainly published *before* the cut, is a second station: the record is there
*twice*. A copy in the middle that is missing, where nothing has been deleted yet, is a *gap*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Final

from retryapp.ledger.traces import Station, Topics, Trace

WHOLE: Final = -1.0
"""Time before which a topic may have deleted records: it has deleted none."""


class Fate(StrEnum):
    """What has become of a record."""

    DONE = "done"
    PENDING = "pending"
    DEAD = "dead"
    SKIPPED = "skipped"
    UNKNOWN = "unknown (expired)"
    """The topics no longer keep what would show it."""
    LOST = "lost"
    """No fate, although the topics have kept all that could contain it."""


class Fault(StrEnum):
    """Kinds of problems."""

    LOST = "lost"
    TWICE = "twice"
    GAP = "gap"
    AHEAD = "ahead"
    """It has traces, and the committed offset is not past it."""
    STRANGER = "stranger"
    """The main topic has no such record."""
    NOBODY = "nobody"
    """Its headers do not identify a record of this handler."""
    DELETED = "deleted"
    """Records were deleted before the group had read them."""
    OFFSETS = "offsets"
    """The committed offset is missing, or past the end of its topic."""
    COUNTS = "counts"
    """What workers have counted differs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not add up."""

    fault: Fault
    partition: int
    text: str
    """What is wrong, in one clause."""
    _: KW_ONLY
    failure_id: str | None = None
    """Whose record; None where none is named."""
    record: str | None = None
    """The record on the main topic, ``topic[partition]@offset``."""
    offset: int | None = None
    """Its offset there."""
    station: str | None = None
    """Where it was last, in words."""
    where: tuple[str, ...] = ()
    """Coordinates of what was found, ``topic[partition]@offset``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The moment of one partition; see `bounds`. Sequences go by the index of `Topics.names`."""

    partition: int
    topics: Topics
    committed: Sequence[int]
    """The group's committed offsets, of what it consumes."""
    floor: Sequence[int]
    """What is below these offsets was published before the cut."""
    kept_from_ms: Sequence[float]
    """What the broker took after these times it still keeps; `WHOLE` where it keeps all, infinity where nothing."""
    buried: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Topic → ranges of offsets that a dead letter stands for."""

    def handled(self, trace: Trace) -> bool:
        """Return whether the committed offset is past a copy."""
        return trace.offset < self.committed[trace.topic]

    def sure(self, trace: Trace) -> bool:
        """Return whether a copy was certainly published before the cut."""
        if trace.station is Station.ROW:  # its record on the retry topic shows it
            return False
        consumed = trace.topic in self.topics.consumed and self.handled(trace)
        return consumed or trace.offset < self.floor[trace.topic]

    def keeps(self, topics: Sequence[int], timestamp_ms: float) -> bool:
        """Return whether topics keep all that they took at that time or later."""
        return all(self.kept_from_ms[topic] < timestamp_ms or self.kept_from_ms[topic] == WHOLE for topic in topics)

    def whole(self, topics: Sequence[int]) -> bool:
        """Return whether topics have deleted nothing yet."""
        return all(self.kept_from_ms[topic] == WHOLE for topic in topics)

    def place(self, trace: Trace) -> str:
        """Return the coordinates of a trace."""
        return f"{self.topics.names[trace.topic]}[{self.partition}]@{trace.offset}"


@dataclass(slots=True)
class Journey:
    """How far a record has come at the cut."""

    fate: Fate = Fate.UNKNOWN
    last: Trace | None = None
    """Where it is, or was seen last."""
    faults: list[tuple[Fault, tuple[Trace, ...], str]] = field(default_factory=list)


def follow(traces: Sequence[Trace], cut: Cut) -> Journey:
    """Follow a received record through all of its traces: at least one, sorted."""
    return _Walk(traces, cut).walk()


class _Walk:
    def __init__(self, traces: Sequence[Trace], cut: Cut) -> None:
        self._cut = cut
        self._journey = Journey()
        self._steps: dict[tuple[int, int, Station], list[Trace]] = {}
        for trace in traces:
            self._steps.setdefault(trace.step, []).append(trace)
        self._left = {step: copies[0] for step, copies in self._steps.items()}

    def walk(self) -> Journey:
        journey = self._journey
        self._count_copies()
        at: Trace | None = None
        while (following := self._next(at)) is not None:
            at = journey.last = self._left.pop(following.step)
        journey.fate = self._fate(at)
        self._look_round()
        return journey

    def _next(self, at: Trace | None) -> Trace | None:
        """Return the next station; None where the record rests, or nothing follows."""
        cut = self._cut
        if at is not None and not self._moved_on(at):
            return None
        for step in _arrows(at):
            if step in self._left:
                return self._left[step]
        if at is not None and at.station is Station.DEAD:
            return None
        loose = next((trace for trace in self._left.values() if trace.loose), None)
        if loose is not None:
            return loose
        if at is not None and self._is_buried(at):
            return None
        later = min((t for t in self._left.values() if at is None or t.step > at.step), default=None)
        if later is not None:
            missing = _before(later, cut.topics)
            provable = cut.keeps(missing, later.timestamp_ms) if later.station is Station.ROW else cut.whole(missing)
            if missing and provable:
                names = " and ".join(cut.topics.names[topic] for topic in missing)
                self._journey.faults.append((Fault.GAP, (later,), f"its previous record is missing from {names}"))
        return later

    def _moved_on(self, at: Trace) -> bool:
        if at.station in (Station.RETRY, Station.REDELIVERY):
            return self._cut.handled(at)
        return at.station is Station.DEAD

    def _is_buried(self, at: Trace) -> bool:
        return any(first <= at.offset <= last for first, last in self._cut.buried.get(at.topic, ()))

    def _fate(self, at: Trace | None) -> Fate:
        cut = self._cut
        if at is None:
            raise ValueError("a record without a trace has no way to follow")
        if at.station is Station.SUCCEEDED:
            return Fate.DONE
        if at.station is Station.DEAD:
            return Fate.DEAD
        if at.station is Station.SKIPPED:
            return Fate.SKIPPED
        if not self._moved_on(at):
            return Fate.PENDING
        if self._is_buried(at):
            return Fate.DEAD
        if not cut.keeps(_after(at, cut.topics), at.timestamp_ms):
            return Fate.UNKNOWN
        what = "parked" if at.station is Station.RETRY else "redelivered"
        self._journey.faults.append((Fault.LOST, (at,), f"it was {what}, and is neither pending nor done nor dead"))
        return Fate.LOST

    def _count_copies(self) -> None:
        for copies in self._steps.values():
            if len(copies) > 1:
                text = f"the same hand-off was published {len(copies)} times"
                self._journey.faults.append((Fault.TWICE, tuple(copies), text))

    def _look_round(self) -> None:
        """Find traces that are not on the record's way."""
        cut, last = self._cut, self._journey.last
        for (replays, attempt, station), row in self._left.items():
            if station is not Station.ROW or row.loose or (replays, attempt, Station.RETRY) in self._steps:
                continue
            if cut.keeps(cut.topics.retry, row.timestamp_ms):
                self._journey.faults.append((Fault.GAP, (row,), "it is in the pending table, but not on a retry topic"))
        others = [trace for trace in self._left.values() if cut.sure(trace) and not self._was_buried(trace)]
        if others and last is not None:
            self._journey.faults.append((Fault.TWICE, (last, *sorted(others)), "it is in several places at once"))

    def _was_buried(self, trace: Trace) -> bool:
        """Return whether a copy with damaged headers was handled: then a dead letter followed, with any numbers."""
        return trace.loose and trace.station in (Station.RETRY, Station.REDELIVERY) and self._cut.handled(trace)


def _arrows(at: Trace | None) -> tuple[tuple[int, int, Station], ...]:
    """Return where a record may go from a station, the usual first."""
    if at is None:
        return (0, 1, Station.RETRY), (0, 1, Station.DEAD), (0, 0, Station.SKIPPED)
    replays, attempt, station = at.step
    if station is Station.RETRY:
        return tuple((replays, attempt, to) for to in (Station.ROW, Station.REDELIVERY, Station.DEAD))
    if station is Station.REDELIVERY:
        ends = tuple((replays, attempt + 1, to) for to in (Station.RETRY, Station.SUCCEEDED, Station.DEAD))
        return *ends, (replays, attempt, Station.DEAD)
    if station is Station.DEAD:
        return ((replays + 1, 0, Station.RETRY),)
    return ()


def _before(trace: Trace, topics: Topics) -> tuple[int, ...]:
    """Return the topics of the previous copy; none if that is the main topic's record."""
    if trace.station in (Station.ROW, Station.REDELIVERY):
        return tuple(topics.retry)
    if trace.attempt == 0:
        return (topics.dlq,)
    return () if trace.replays == 0 and trace.attempt == 1 else (topics.redelivery,)


def _after(trace: Trace, topics: Topics) -> tuple[int, ...]:
    """Return the topics of the next copy, after a trace was handled and its row is gone."""
    if trace.station is Station.RETRY:
        return topics.redelivery, topics.dlq
    return *topics.retry, topics.dlq, topics.events
