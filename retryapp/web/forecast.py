"""How much becomes due when: a count by time that looks at a bounded number of rows, whatever waits.

A table can tell its first rows from any instant on, and how many rows it has in all, but not how many lie between two
instants. So the count *probes*: it asks for the first `SAMPLE` rows of a span.

1. Fewer came: the span is counted, each row at its own due time. That part is exact.
2. `SAMPLE` came: the rest of the span is taken to go on as densely as the second half of the sample was, and is marked
   as estimated. Spans are then cut in two and asked again, in turn the fullest and the longest one, until all are
   counted or the probes are used up.
3. What is estimated is scaled so that all together is the table's own count, which is exact.

With up to a few ten thousand rows ahead everything is counted; beyond that, what is near is still counted where it is
thin, and the rest is a good guess that says so.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

SAMPLE: Final = 64
"""Rows that one probe looks at."""

Probe = Callable[[int, int, int], Sequence[int]]
"""`(start_ms, stop_ms, limit)` to the rising due times of the first `limit` rows of that span."""

_FIRST_MS: Final = 0
_LAST_MS: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How an outlook is cut into bars."""

    name: str
    step_ms: int
    bars: int

    @property
    def span_ms(self) -> int:
        """What all bars cover together."""
        return self.step_ms * self.bars


SCALES: Final = (
    Scale(name="seconds", step_ms=5_000, bars=12),
    Scale(name="minutes", step_ms=60_000, bars=60),
    Scale(name="hours", step_ms=3_600_000, bars=48),
)
"""The next minute, the next hour, the next two days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of records, and whether they were counted."""

    count: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One step of a scale, from now on."""

    start_ms: int
    stop_ms: int
    count: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What waits, by when it is due."""

    now_ms: int
    total: int
    """Rows in all: exact."""
    overdue: Amount
    """Due already and not fired."""
    later: Amount
    """Due after the last bar of the longest scale."""
    scales: dict[str, tuple[Bar, ...]]

    @property
    def exact(self) -> bool:
        """Tell whether every number was counted."""
        bars = (bar for scale in self.scales.values() for bar in scale)
        return self.overdue.exact and self.later.exact and all(bar.exact for bar in bars)


@dataclass(slots=True)
class _Piece:
    """A span after its probe: rows seen, and how many more are thought to lie behind them."""

    start_ms: int
    stop_ms: int
    dues: Sequence[int]
    more: float = 0.0


@dataclass(slots=True)
class _Zone:
    """A part of the time axis with its own share of the probes, so that a flood in one leaves the others sharp."""

    pieces: list[_Piece] = field(default_factory=list)
    _by_rows: list[tuple[float, int]] = field(default_factory=list)
    _by_length: list[tuple[int, int]] = field(default_factory=list)
    _turn: int = 0

    def add(self, piece: _Piece) -> None:
        number = len(self.pieces)
        self.pieces.append(piece)
        if piece.more:
            heapq.heappush(self._by_rows, (-piece.more, number))
            heapq.heappush(self._by_length, (piece.start_ms - piece.stop_ms, number))

    def split(self) -> tuple[int, int, int] | None:
        """Take the piece out that is to be cut next; return its start, cut and end."""
        self._turn += 1
        while self._by_rows and self._by_length:
            _, number = heapq.heappop(self._by_rows) if self._turn % 2 else heapq.heappop(self._by_length)
            piece = self.pieces[number]
            if not piece.more:  # the other queue had it
                continue
            start_ms, stop_ms = piece.start_ms, piece.stop_ms
            if stop_ms - start_ms < 2:  # one millisecond holds more than a sample: it stays a guess
                continue
            piece.dues, piece.more = (), 0.0
            return start_ms, (start_ms + stop_ms) // 2, stop_ms
        return None


def _look(probe: Probe, start_ms: int, stop_ms: int) -> _Piece:
    dues = probe(start_ms, stop_ms, SAMPLE)
    if len(dues) < SAMPLE:
        return _Piece(start_ms, stop_ms, dues)
    middle = len(dues) // 2
    per_ms = (len(dues) - 1 - middle) / max(1, dues[-1] - dues[middle])
    return _Piece(start_ms, stop_ms, dues, max(1.0, per_ms * (stop_ms - dues[-1])))


class Survey:
    """The count of one table. Run `steps` to its end, in one go or with pauses, then take `pieces`."""

    def __init__(self, probe: Probe, now_ms: int, probes: int) -> None:
        """Args: probe: asks the table. now_ms: epoch milliseconds. probes: how many questions, about."""
        self._probe = probe
        self._edges = (_FIRST_MS, now_ms, *(now_ms + scale.span_ms for scale in SCALES), _LAST_MS)
        self._probes = probes
        self.zones: list[_Zone] = []

    def steps(self) -> Iterator[None]:
        """Yield after each probe."""
        zones = [_Zone() for _ in self._edges[1:]]
        self.zones = zones
        oldest = self._probe(_FIRST_MS, self._edges[1], 1)
        starts = (oldest[0] if oldest else _FIRST_MS, *self._edges[1:])
        for zone, start_ms, stop_ms in zip(zones, starts, self._edges[1:], strict=False):
            zone.add(_look(self._probe, start_ms, stop_ms))
            yield
        left = self._probes - len(zones)
        refined = zones[:-1]  # the last one has no end: what it holds is the rest of the table
        for place, zone in enumerate(refined):
            share = left // (len(refined) - place)
            used = 0
            while used < share and (span := zone.split()) is not None:
                start_ms, cut_ms, stop_ms = span
                zone.add(_look(self._probe, start_ms, cut_ms))
                yield
                zone.add(_look(self._probe, cut_ms, stop_ms))
                yield
                used += 2
            left -= used


def outlook(surveys: Sequence[tuple[Survey, int]], now_ms: int) -> Outlook:
    """Put finished counts together.

    Args:
        surveys: each with the exact number of rows of its table.
        now_ms: the instant they were made for.
    """
    totals = _Sums(now_ms)
    for survey, rows in surveys:
        totals.add(survey, rows)
    return totals.outlook(sum(rows for _, rows in surveys))


class _Sums:
    """Sums over tables."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._edges = {scale.name: [now_ms + n * scale.step_ms for n in range(scale.bars + 1)] for scale in SCALES}
        self._counts = {scale.name: [0.0] * scale.bars for scale in SCALES}
        self._exact = {scale.name: [True] * scale.bars for scale in SCALES}
        self._overdue = self._later = 0.0
        self._overdue_exact = self._later_exact = True

    def add(self, survey: Survey, rows: int) -> None:
        """Add a table."""
        overdue, *ahead, later = survey.zones
        pieces = [piece for zone in (overdue, *ahead) for piece in zone.pieces]
        seen = sum(len(piece.dues) for piece in pieces)
        guessed = sum(piece.more for piece in pieces)
        behind = sum(len(piece.dues) for piece in later.pieces)
        open_end = any(piece.more for piece in later.pieces)
        if guessed and not open_end:  # everything else is known: the guesses are what is left
            scale = max(0.0, rows - seen - behind) / guessed
        else:
            scale = min(1.0, max(0.0, rows - seen - behind) / guessed) if guessed else 1.0
        for piece in overdue.pieces:
            self._overdue += len(piece.dues) + piece.more * scale
            self._overdue_exact &= not piece.more
        self._count(sorted(due_ms for zone in ahead for piece in zone.pieces for due_ms in piece.dues))
        for zone in ahead:
            for piece in zone.pieces:
                if piece.more:
                    self._spread(piece, scale)
        if open_end:
            self._later += max(behind, rows - seen - guessed * scale)
            self._later_exact &= not guessed
        else:
            self._later += behind

    def _count(self, dues: Sequence[int]) -> None:
        """Count rows that were seen, at their own due times."""
        for name, edges in self._edges.items():
            places = [bisect_left(dues, edge) for edge in edges]
            for bar, (start, stop) in enumerate(pairwise(places)):
                self._counts[name][bar] += stop - start

    def _spread(self, piece: _Piece, scale: float) -> None:
        """Spread what was estimated evenly over the part of a span that was not seen."""
        start_ms, stop_ms = piece.dues[-1], piece.stop_ms
        per_ms = piece.more * scale / max(1, stop_ms - start_ms)
        for name, edges in self._edges.items():
            counts, exact = self._counts[name], self._exact[name]
            for bar in range(max(0, bisect_right(edges, start_ms) - 1), min(len(counts), bisect_left(edges, stop_ms))):
                shared = min(stop_ms, edges[bar + 1]) - max(start_ms, edges[bar])
                counts[bar] += max(0, shared) * per_ms
                exact[bar] = False

    def outlook(self, total: int) -> Outlook:
        """Return the sums."""
        return Outlook(
            now_ms=self._now_ms,
            total=total,
            overdue=Amount(count=round(self._overdue), exact=self._overdue_exact),
            later=Amount(count=round(self._later), exact=self._later_exact),
            scales={
                name: tuple(
                    Bar(start_ms=start, stop_ms=stop, count=round(count), exact=exact)
                    for start, stop, count, exact in zip(
                        edges, edges[1:], self._counts[name], self._exact[name], strict=False
                    )
                )
                for name, edges in self._edges.items()
            },
        )
