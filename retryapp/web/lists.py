"""Lists over the whole group: each worker lists what its partitions have, and any worker merges these.

A cursor is a place in the list's order, not a page number, and no longer with more partitions: for waiting records a
row key, for dead letters `Place`. A worker looks at so many rows for one page, and says how far it has come: the merged
page ends there, and the next one goes on.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retryapp.core.causes import OTHER_CAUSE
from retryapp.core.control import is_open
from retryapp.core.dead_index import MAX_TYPE_BYTES
from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Record
from retryapp.core.row_keys import due_order
from retryapp.core.text import cut_text
from retryapp.lookup.circuits import mark_held_back, what_holds
from retryapp.lookup.decoding import Searching
from retryapp.lookup.records import Facts, dead_summary, fits, fits_row, may_be_cut, pending_summary
from retryapp.ports import HandlerInfo, PartitionInfo
from retryapp.runtime.view import RuntimeView
from retryapp.web.errors import PageError
from retryapp.web.figures import OPEN, owner_of
from retryapp.web.query import (
    Place,
    Question,
    Stream,
    is_known,
    place_of,
    place_text,
    row_key_of,
    unknown_reason,
)

SCAN_ROWS: Final = 2_000
"""Rows that a worker looks at for one page."""
READ_ROWS: Final = 200
"""Dead letters that are read from their topics at once, to look into them."""
DECODED_ROWS: Final = 50
"""The same where values are decoded: they are kept until their turn."""
READ_SPAN: Final = 5_000
"""Most offsets of a partition in one reading: where a clock was set back, letters of one time are far apart."""
READ_S: Final = 0.3
"""After this time no more records are read, decoded or looked into for one page: others wait for what is found."""
_CHUNK_ROWS: Final = 50

_Text = str | None


class Line(BaseModel):
    """One record of a list, as any worker of the group tells it."""

    model_config = ConfigDict(extra="allow")
    cursor: str
    partition: int
    failure_id: _Text = None
    key: _Text = None
    attempt: int | None = None
    replays: int | None = None
    max_attempts: int | None = None
    error_type: _Text = None
    message: _Text = None
    cause_id: _Text = None
    damaged: _Text = None
    # of waiting records
    origin: Any = None
    origin_offset: int | None = None
    held_by: _Text = None
    due_at_ms: int | None = None
    held_until_ms: int | None = None
    held_back_by: _Text = None
    # of dead letters
    offset: int | None = None
    letters: _Text = None
    reason: _Text = None
    mark: _Text = None
    append_ms: int | None = None
    last_failed_ms: int | None = None


class Listing(BaseModel):
    """What one worker lists."""

    lines: list[Line]
    upto: str | None = None
    """Cursor of the last row that it has looked at; None: of all."""
    scanned: int = 0
    undecoded: int = 0
    """Those whose value was not searched: the decoder failed."""
    partitions: list[int] = Field(default_factory=list)
    """Those that it has listed: it has them, and they can be read now."""
    hidden: list[str] = Field(default_factory=list)
    """What it does not show to who asks."""
    knows_reason: bool = True
    """Whether it knows the reason asked for, or has seen a letter of it: a newer build has written some."""


def _places(newest: bool) -> Callable[[str], Any]:
    """Return what reads the cursors of a list: `newest` first, or by due time."""
    return place_of if newest else lambda cursor: due_order(row_key_of(cursor))


def merge(listings: Sequence[Listing], limit: int, *, newest: bool) -> tuple[list[Line], str | None]:
    """Return the first lines of all workers, and the cursor of the next page; `newest` first, or by due time."""
    place = _places(newest)
    bounds = [place(each.upto) for each in listings if each.upto is not None]
    bound = (max if newest else min)(bounds, default=None)
    lines = sorted((line for each in listings for line in each.lines), key=lambda line: place(line.cursor))
    if newest:
        lines.reverse()
    if bound is not None:  # past it, some worker has not looked
        lines = [line for line in lines if (place(line.cursor) >= bound if newest else place(line.cursor) <= bound)]
    if len(lines) > limit:
        return lines[:limit], lines[limit - 1].cursor
    return lines, next((each.upto for each in listings if each.upto and place(each.upto) == bound), None)


def chosen_of(infos: Sequence[PartitionInfo], question: Question) -> list[PartitionInfo]:
    """Return the partition that a list is asked of, or all."""
    return [item for item in infos if question.partition in (None, item.partition)]


def merged_facts(
    question: Question, chosen: Sequence[PartitionInfo], kind: str, answers: Mapping[str, Listing | bytes | None]
) -> Facts:
    """Merge what workers list, by their addresses; of 500 records that takes too long for the event loop.

    Raises:
        PageError: 400, a reason that no worker knows and no letter has.
    """
    listings, silent, lost = list[Listing](), list[str](), {item.partition for item in chosen}
    place = _places(kind == "dead")
    for url, body in answers.items():
        try:
            listing = body if isinstance(body, Listing) else Listing.model_validate_json(body or b"")
            for cursor in (listing.upto, *(line.cursor for line in listing.lines)):
                if cursor is not None:
                    place(cursor)
        except (ValidationError, PageError):  # PageError: the cursors of another build, say
            silent.append(url)
            continue
        # while the group moves partitions two workers may have one, or none
        its = {item.partition for item in chosen if owner_of(item) == url} & set(listing.partitions)
        lost -= its
        lines = [line for line in listing.lines if line.partition in its]
        listings.append(listing.model_copy(update={"lines": lines}))
    lines, cursor = merge(listings, question.limit, newest=kind == "dead")
    if not (cursor or question.seen or any(each.knows_reason for each in listings)):
        raise unknown_reason(question.wanted.reason)
    follow = {"after" if kind == "pending" else "before": cursor or "", "seen": str(question.seen + len(lines))}
    facts: Facts = {
        "records": [line.model_dump() for line in lines],
        "first": question.seen + 1,
        "next": question.address(**follow) if cursor else None,
        "scanned": sum(each.scanned for each in listings),
        "undecoded": sum(each.undecoded for each in listings),
        "silent": silent,
        "partitions_left_out": sorted(lost),
    }
    hidden = sorted({name for each in listings for name in each.hidden})
    return {**facts, "hidden": hidden} if hidden else facts


def waiting_here(
    view: RuntimeView,
    infos: Sequence[PartitionInfo],
    question: Question,
    now_ms: int,
    search: Searching | None,
) -> Listing:
    """List what waits in the partitions here by due time; `search` decodes values in which a field is looked for."""
    lines, scanned, after = list[Line](), 0, question.after
    wanted = None if question.wanted == LetterFilter() else question.wanted
    holding, size = what_holds(infos), question.limit + 1
    until_s = None if wanted is None else time.monotonic() + READ_S

    def listing(upto: bytes | None) -> Listing:
        undecoded = 0 if search is None else search.undecoded
        facts: Facts = {"lines": lines, "scanned": scanned, "undecoded": undecoded, "partitions": _open(infos)}
        knows_reason = is_known(question.wanted.reason)
        return Listing(upto=None if upto is None else upto.hex(), knows_reason=knows_reason, **facts)

    while True:
        entries = view.pending_page(question.main, after=after, limit=size, partition=question.partition)
        for entry in entries:
            late = scanned and until_s is not None and time.monotonic() > until_s
            if len(lines) == question.limit or scanned == SCAN_ROWS or late:
                return listing(after)
            scanned += 1
            after = entry.key
            if wanted is None or fits_row(wanted, entry.value, search):
                facts = pending_summary(entry)
                mark_held_back(facts, holding, now_ms)
                lines.append(Line(cursor=after.hex(), **facts))
        if len(entries) < size:
            return listing(None)


def dead_here(
    view: RuntimeView,
    infos: Sequence[PartitionInfo],
    question: Question,
    info: HandlerInfo,
    search: Searching | None,
) -> Listing:
    """List the dead letters of the partitions here, the newest first; the open ones, or all.

    `search` decodes values in which a field is looked for.
    """
    chosen = [each for each in _open(chosen_of(infos, question)) if view.letters_counted(info.main, each)]
    before, wanted = question.before, question.wanted
    error_type = None if wanted.error_type is None else cut_text(wanted.error_type, MAX_TYPE_BYTES)
    if wanted.until_ms is not None:
        until = (wanted.until_ms, -1, "", -1)
        before = until if before is None else min(before, until)
    sought: Facts = {"cause": wanted.cause, "key": None if wanted.key is None else wanted.key.encode()}
    if wanted.deep:
        sought = {}  # neighbours are read together
    if wanted.cause == OTHER_CAUSE:  # only the index tells
        sought["cause"], wanted = OTHER_CAUSE, wanted.model_copy(update={"cause": None})
    if may_be_cut(wanted.error_type):  # copied from a list: what the index has decides
        wanted = wanted.model_copy(update={"error_type": None})
    streams = []
    for number in chosen:
        for letters in (None, *info.dead_letters):
            page = partial(view.dead_latest, info.main, partition=number, letters=letters, **sought)
            streams.append(_letters(page, (number, letters), before))
    listing, last = Listing(lines=[], partitions=chosen, knows_reason=is_known(wanted.reason)), before
    rows = heapq.merge(*streams, key=_place, reverse=True)
    looked_into = _looked_into(view, info, rows, wanted, search) if wanted.deep else ((row, True) for row in rows)
    for row, found in looked_into:
        if wanted.from_ms is not None and (row["append_ms"] or 0) < wanted.from_ms:
            break
        if found is None or len(listing.lines) == question.limit or listing.scanned == SCAN_ROWS:
            listing.upto = None if last is None else place_text(last)
            break
        listing.scanned += 1
        last = _place(row)
        listing.knows_reason |= row["reason"] == wanted.reason
        found &= wanted.reason in (None, row["reason"]) and error_type in (None, row["error_type"])
        if found and (question.marked or is_open(row["mark"])):
            listing.lines.append(Line(cursor=place_text(last), **row))
    listing.undecoded = 0 if search is None else search.undecoded
    return listing


def _looked_into(
    view: RuntimeView, info: HandlerInfo, rows: Iterable[Facts], wanted: LetterFilter, search: Searching | None
) -> Iterator[tuple[Facts, bool | None]]:
    """Yield letters with whether they fit by what the index does not have: their topics are read, some at once.

    None: the time is over, so it is not known of this letter and those after it.
    """
    until_s, field = time.monotonic() + READ_S, LetterFilter(field=wanted.field)
    first = wanted if search is None else wanted.model_copy(update={"field": None})
    for at, some in enumerate(_near(rows, READ_ROWS if search is None else DECODED_ROWS)):
        if at and time.monotonic() > until_s:
            yield some[0], None
            return
        places, found = {*map(_at, some)}, dict[tuple[str | None, int, int], Record | None]()
        for letters in {row["letters"] for row in some}:
            ranges: dict[int, tuple[int, int]] = {}
            for row in some:
                if row["letters"] == letters:
                    ranges[row["partition"]] = _with(ranges.get(row["partition"]), row["offset"])
            topic = info.topics["dlq" if letters is None else f"dlq {letters}"]
            for each in view.read_range(topic, ranges):
                place = letters, each.partition, each.offset
                if place in places and fits(first, each):
                    found[place] = None if search is None else each
        decoded_until_s = time.monotonic() + READ_S
        for number, row in enumerate(some):
            record = found.get(_at(row))
            if number and record is not None and time.monotonic() > decoded_until_s:
                yield row, None
                return
            yield row, _at(row) in found and (record is None or fits(field, record, search))


def _near(rows: Iterable[Facts], most: int) -> Iterator[list[Facts]]:
    """Yield some rows at once: they are read in one go, with all between them."""
    some, ranges = list[Facts](), dict[Stream, tuple[int, int]]()
    for row in rows:
        stream = row["partition"], row["letters"]
        first, stop = _with(ranges.get(stream), row["offset"])
        if len(some) == most or stop - first > READ_SPAN:
            yield some
            some, ranges, (first, stop) = [], {}, _with(None, row["offset"])
        some.append(row)
        ranges[stream] = first, stop
    if some:
        yield some


def _with(offsets: tuple[int, int] | None, offset: int) -> tuple[int, int]:
    first, stop = (offset, 0) if offsets is None else offsets
    return min(first, offset), max(stop, offset + 1)


def _open(infos: Sequence[PartitionInfo]) -> list[int]:
    return [item.partition for item in infos if item.state == OPEN]


def _at(row: Facts) -> tuple[str | None, int, int]:
    return row["letters"], row["partition"], row["offset"]


def _place(row: Facts) -> Place:
    return row["append_ms"] or 0, row["partition"], row["letters"] or "", row["offset"]


def _letters(page: Callable[..., Any], stream: Stream, before: Place | None) -> Iterator[Facts]:
    """Walk over the dead letters of a topic and partition from a place on, a few at a time."""
    chunk, below = 2, None if before is None else _start(stream, before)  # most are asked for no more
    while True:
        rows = [dead_summary(entry) for entry in page(before=below, limit=chunk)]
        yield from rows
        if len(rows) < chunk:
            return
        below, chunk = (rows[-1]["append_ms"] or 0, rows[-1]["offset"]), min(_CHUNK_ROWS, 2 * chunk)


def _start(stream: Stream, before: Place) -> tuple[int, int]:
    """Return the time and the offset below which the letters of a topic and partition come after a place."""
    append_ms, partition, letters, offset = before
    here, there = (stream[0], stream[1] or ""), (partition, letters)
    return (append_ms, offset) if here == there else (append_ms + (here < there), 0)
