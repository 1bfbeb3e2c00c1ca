"""One record's way, followed through its traces to where it is at the moment. Pure: no Kafka, no clock.

A record goes

    main ─► retry copy + row ─► retry copy + row ─► … ─► succeeded | dead        dead ─► retry copy + row (a replay)
    main ─► dead, or skipped (a duplicate, or by the handler or a rule: then also after any retry copy)
    main ─► discarded, as dead, where there is no dead-letter topic; or failed, where it is a dead letter itself
    main ─► held row ─► as from main            (it waits for earlier records of its sequence)
    main, retry copy, row ─► superseded         (a newer record of its key has replaced it)

and each arrow is one transaction, so at any cut it is at one station. The table says which: its rows are those of the
moment (`bounds`), and all other topics are read a little further.

* With a row, the record waits there, and further copies came later.
* Without one, it has come to an end, and that is on the topics. Where it is not, the record is *lost*, or *unknown* if
  they have deleted records of that time. Retry copies are history: whether they are kept changes nothing here.
* A replay without a row may be newer than the moment: the record was dead then.

A trace that is not on the way, and certainly of *before* the moment, is a second station: the record is there *twice*.
A copy in the middle that is missing, where nothing has been deleted yet, is a *gap*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from retryapp.ledger.traces import Station, Topics, Trace

WHOLE: Final = -1.0
"""Time before which a topic may have deleted records: it has deleted none."""
CLOCKS_MS: Final = 60_000
"""Tolerated difference between the clocks of workers and brokers."""


def kept_since(from_ms: float, timestamp_ms: float) -> bool:
    """Return whether what was taken at a time is kept, where all after `from_ms` is."""
    return from_ms == WHOLE or from_ms < timestamp_ms - CLOCKS_MS


class Fate(StrEnum):
    """What has become of a record."""

    DONE = "done"
    PENDING = "pending"
    HELD = "held"
    """Not delivered yet: it waits for earlier records of its sequence."""
    DEAD = "dead"
    DISCARDED = "discarded"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
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
    MISSING = "missing"
    """It has no end, and the topic that may have had it is not there."""


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
    received: int
    """The group's committed offset of the main topic."""
    settled: Collection[int] = ()
    """Offsets beyond that one whose records are settled, too: counted as received once the offset has passed them."""
    floor: Sequence[int]
    """What is below these offsets was published before the moment; of the changelog 0."""
    kept_from_ms: Sequence[float]
    """What the broker took after these times it still keeps; `WHOLE` where it keeps all, infinity where nothing."""
    missing_letters: str = ""
    """Dead-letter topic that is not there, where it is not known whether the handler has one; empty: it is known."""

    def sure(self, trace: Trace) -> bool:
        """Return whether a copy was certainly published before the moment."""
        return trace.offset < self.floor[trace.topic]

    def before(self, trace: Trace) -> bool:
        """Return the same for the trace of a received record: a row is in the table at the moment."""
        return trace.station is Station.ROW or self.sure(trace)

    def keeps(self, topics: Iterable[int], timestamp_ms: float) -> bool:
        """Return whether topics keep all that they took at that time or later."""
        return kept_since(max(self.kept_from_ms[topic] for topic in topics), timestamp_ms)

    @property
    def shown_from_ms(self) -> float:
        """Time from which every failure has left a trace: its first copy is kept, or whatever it has come to."""
        topics, kept = self.topics, self.kept_from_ms
        letters = max((kept[topic] for topic in topics.dlqs), default=kept[topics.events])  # else ends are events
        return max(letters, min(kept[topics.events], max(kept[topic] for topic in topics.retry)))

    def whole(self, topics: Iterable[int]) -> bool:
        return all(self.kept_from_ms[topic] == WHOLE for topic in topics)

    def place(self, trace: Trace) -> str:
        return f"{self.topics.names[trace.topic]}[{self.partition}]@{trace.offset}"


@dataclass(slots=True)
class Journey:
    """How far a record has come at the moment."""

    fate: Fate
    last: Trace
    """Where it is, or was seen last."""
    faults: list[tuple[Fault, tuple[Trace, ...], str]] = field(default_factory=list)
    handled: bool = False
    """It is dead, and the handler of its dead letter is done with it."""


_FATES: Final = {
    Station.ROW: Fate.PENDING,
    Station.DEAD: Fate.DEAD,
    Station.SUCCEEDED: Fate.DONE,
    Station.SKIPPED: Fate.SKIPPED,
    Station.DISCARDED: Fate.DISCARDED,
    Station.FAILED: Fate.DEAD,
    Station.SUPERSEDED: Fate.SUPERSEDED,
}

_FIRST_ENDS: Final = {
    (0, Station.SKIPPED),
    (0, Station.SUPERSEDED),
    *((1, end) for end in _FATES if end > Station.ROW and end is not Station.SUCCEEDED),
}
"""Steps that need none before them."""


_GOES_ON: Final = frozenset({Station.RETRY, Station.HELD})


_MARKS: Final = {
    Station.REPLAYED: Fate.UNKNOWN,
    Station.RECOVERED: Fate.DONE,
    Station.SET_ASIDE: Fate.DISCARDED,
    Station.RESTORED: Fate.DEAD,
    Station.HANDLED: Fate.DEAD,
    Station.LEFT: Fate.DEAD,
}
"""What a mark says of its letter, where nothing later shows it."""


def follow(traces: Sequence[Trace], cut: Cut) -> Journey:
    """Follow a received record through all of its traces: at least one, sorted."""
    marks = sorted((trace for trace in traces if trace.station in _MARKS), key=lambda trace: trace.offset)
    traces = [trace for trace in traces if trace.station not in _MARKS]
    if not traces:  # retention takes a letter before its marks
        return Journey(_MARKS[marks[-1].station], marks[-1], handled=marks[-1].station is Station.HANDLED)
    journey = _followed(traces, cut)
    if journey.fate is Fate.DEAD and journey.last.station is Station.DEAD:
        letter = journey.last  # its numbers, and those of its marks, may be a guess: their places are not
        about = [m for m in marks if cut.sure(m) and m.topic == letter.topic and m.offset > letter.offset]
        if about and not (
            about[-1].station is Station.REPLAYED and cut.keeps(cut.topics.retry, about[-1].timestamp_ms)
        ):
            journey.fate = _MARKS[about[-1].station]
            journey.handled = about[-1].station is Station.HANDLED
    return journey


def _followed(traces: Sequence[Trace], cut: Cut) -> Journey:
    torn = [trace for trace in traces if trace.loose and trace.station is Station.RETRY]
    sound = [trace for trace in traces if not trace.loose]
    placed = [_placed(trace, sound) for trace in traces if trace.loose and trace.station is not Station.RETRY]
    steps: dict[tuple[int, Station], list[Trace]] = {}
    for trace in sorted([*sound, *placed]):
        steps.setdefault(trace.step, []).append(trace)
    way, aside = _way([same[0] for same in steps.values()] or torn[:1])
    aside = [trace for trace in aside if cut.before(trace)]
    journey = _end(way, aside, cut)
    for same in steps.values():
        if len(same) > 1:
            journey.faults.append((Fault.TWICE, tuple(same), f"the same hand-off was published {len(same)} times"))
    if aside:
        journey.faults.append((Fault.TWICE, (journey.last, *aside), "it is in several places at once"))
    while way and not cut.before(way[-1]):
        way.pop()  # of later ones some topics were read further than others
    if not torn:
        journey.faults += _gaps(way, cut)
    return journey


def _placed(loose: Trace, copies: Sequence[Trace]) -> Trace:
    """Return a trace with the numbers that follow from its time: of the copy before it."""
    before = [t for t in copies if t.station is Station.RETRY and t.timestamp_ms <= loose.timestamp_ms]
    if not before:
        return loose
    last, ended = before[-1], loose.station is not Station.ROW
    return loose._replace(delivery=last.delivery + ended, attempt=last.attempt + ended, replays=last.replays)


def _way(traces: Iterable[Trace]) -> tuple[list[Trace], list[Trace]]:
    """Return the traces that follow from each other, up to the row if there is one, and those beside or after them."""
    way: list[Trace] = []
    aside: list[Trace] = []
    for trace in traces:
        (way if not way or _may_follow(way[-1], trace) else aside).append(trace)
    return way, aside


def _may_follow(at: Trace, trace: Trace) -> bool:
    if at.station in _GOES_ON:  # one delivery has one outcome
        return trace.delivery > at.delivery or trace.station in (Station.ROW, Station.SUPERSEDED)
    return at.station is Station.DEAD and trace.replays > at.replays


def _end(way: Sequence[Trace], aside: Sequence[Trace], cut: Cut) -> Journey:
    last = way[-1]
    if last.station in _FATES:
        held = last.station is Station.ROW and not last.delivery and not last.loose
        return Journey(Fate.HELD if held else _FATES[last.station], last)
    died = [at for at, trace in enumerate(way) if trace.station is Station.DEAD]
    if died and not any(cut.sure(trace) for trace in way[died[-1] + 1 :]):
        return Journey(Fate.DEAD, way[died[-1]])
    if ends := [trace for trace in aside if trace.station in _FATES]:
        return Journey(_FATES[ends[-1].station], last)
    if not cut.keeps((*cut.topics.dlqs, cut.topics.events), last.timestamp_ms):
        return Journey(Fate.UNKNOWN, last)
    was = "was held" if last.station is Station.HELD else "failed"
    if cut.missing_letters:
        text = f"it {was}, and is neither pending nor done; {may_be_dead(cut.missing_letters)}"
        return Journey(Fate.UNKNOWN, last, [(Fault.MISSING, (last,), text)])
    return Journey(Fate.LOST, last, [(Fault.LOST, (last,), f"it {was}, and is neither pending nor done nor dead")])


def may_be_dead(letters: str) -> str:
    """Return what is said of records without an end whose dead-letter topic is not there."""
    return f"a dead letter may have been on {letters}, which is not there"


def _is_next(before: Trace, trace: Trace) -> bool:
    """Return whether nothing is missing between two traces. A delivery spends one attempt or none."""
    if before.station is Station.DEAD:  # its replay begins the attempts anew
        new = before.delivery + 1, before.replays + 1, 0, Station.RETRY
        return (trace.delivery, trace.replays, trace.attempt, trace.station) == new
    ended = int(trace.station is not Station.ROW)
    if trace.station is Station.SUPERSEDED:  # as it waited, or as it failed
        ended = int(trace.delivery > before.delivery)
    is_whole = (trace.delivery, trace.replays) == (before.delivery + ended, before.replays)
    return is_whole and before.station in _GOES_ON and 0 <= trace.attempt - before.attempt <= ended


def _gaps(way: Sequence[Trace], cut: Cut) -> Iterator[tuple[Fault, tuple[Trace, ...], str]]:
    """Find what is missing before a station, where what is deleted does not explain it."""
    for before, trace in pairwise((None, *way)):
        if trace is None or trace.loose or trace.step <= (1, Station.RETRY) or trace.step in _FIRST_ENDS:
            continue
        replayed = trace.station is Station.RETRY and trace.attempt == 0 and trace.replays > 0
        missing: Sequence[int] = cut.topics.dlqs if replayed else cut.topics.retry
        if not missing:  # there is no dead-letter topic any more
            continue
        if trace.step == (1, Station.SUCCEEDED):  # only a held record has a trace before the end of its first delivery
            missing = (cut.topics.events,)
        # a row's copy is of its own transaction; of the others only a whole topic proves anything
        kept = cut.keeps(missing, trace.timestamp_ms) if trace.station is Station.ROW else cut.whole(missing)
        if kept and not (before and _is_next(before, trace)):
            names = " and ".join(cut.topics.names[topic] for topic in missing)
            yield Fault.GAP, (trace,), f"its previous record is missing from {names}"
