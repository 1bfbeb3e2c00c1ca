"""Lists over the whole group: each worker lists what its partitions have, and any worker merges these.

A cursor is a place in the list's order, not a page number, and no longer with more partitions: for waiting records a
row key, for dead letters `Place`. A worker looks at so many rows for one page, and says how far it has come: the merged
page ends there, and the next one goes on.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from retryapp.core.causes import OTHER_CAUSE
from retryapp.core.control import is_open
from retryapp.core.dead_index import MAX_TYPE_BYTES
from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Origin, Record
from retryapp.core.row_keys import due_order
from retryapp.core.text import cut_text
from retryapp.lookup.circuits import Holding, mark_held_back, what_holds
from retryapp.lookup.decoding import Searching
from retryapp.lookup.records import Facts, dead_summary, fits, fits_row, may_be_cut, pending_summary
from retryapp.ports import DeadEntry, HandlerInfo, PartitionInfo, PendingEntry
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
_MORE_ROWS: Final = 10
"""Of a small page the shares differ more."""

_Text = str | None
_Letter = tuple[Place, DeadEntry]


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
    origin: Origin | None = None
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


_UNSAID: Final = {name: each.default for name, each in Line.model_fields.items()}


class Row(NamedTuple):
    """A record of a list. Of those that workers list, most are not shown."""

    place: Any
    """Where it is in the list's order."""
    partition: int
    facts: Callable[[], Facts]
    """Makes what a page shows of it: the names of `Line`, and more."""


L = TypeVar("L")


@dataclass(slots=True, kw_only=True)
class Listing(Generic[L]):
    """What one worker lists: of others, each a `Line`."""

    lines: list[L]
    upto: str | None = None
    """Cursor of the last row that it has looked at; None: of all."""
    scanned: int = 0
    undecoded: int = 0
    """Those whose value was not searched: the decoder failed."""
    partitions: list[int] = field(default_factory=list)
    """Those that it has listed: it has them, and they can be read now."""
    hidden: list[str] = field(default_factory=list)
    """What it does not show to who asks."""
    knows_reason: bool = True
    """Whether it knows the reason asked for, or has seen a letter of it: a newer build has written some."""


_THEIRS: Final = TypeAdapter(Listing[Line])


def answer_of(listing: Listing[Row]) -> Facts:
    """Return what this worker answers to another one."""
    return {"lines": [row.facts() for row in listing.lines], **_rest(listing)}


def _rest(listing: Listing[Any]) -> Facts:
    return {each.name: getattr(listing, each.name) for each in fields(listing) if each.name != "lines"}


def _places(newest: bool) -> Callable[[str], Any]:
    """Return what reads the cursors of a list: `newest` first, or by due time."""
    return place_of if newest else lambda cursor: due_order(row_key_of(cursor))


def _read(body: bytes, place: Callable[[str], Any]) -> Listing[Row]:
    theirs = _THEIRS.validate_json(body)
    if theirs.upto is not None:
        place(theirs.upto)
    rows = [Row(place(line.cursor), line.partition, line.model_dump) for line in theirs.lines]
    return Listing(lines=rows, **_rest(theirs))


def merge(listings: Sequence[Listing[Row]], limit: int, *, newest: bool) -> tuple[list[Facts], str | None]:
    """Return the first records of all workers, and the cursor of the next page; `newest` first, or by due time."""
    place = _places(newest)
    bounds = [place(each.upto) for each in listings if each.upto is not None]
    bound = (max if newest else min)(bounds, default=None)
    rows = sorted((row for each in listings for row in each.lines), key=itemgetter(0), reverse=newest)
    if bound is not None:  # past it, some worker has not looked
        rows = [row for row in rows if (row.place >= bound if newest else row.place <= bound)]
    records = [row.facts() for row in rows[:limit]]
    if len(rows) > limit:
        return records, records[-1]["cursor"]
    return records, next((each.upto for each in listings if each.upto and place(each.upto) == bound), None)


def chosen_of(infos: Sequence[PartitionInfo], question: Question) -> list[PartitionInfo]:
    """Return the partition that a list is asked of, or all."""
    return [item for item in infos if question.partition in (None, item.partition)]


def share_of(question: Question, chosen: Sequence[PartitionInfo]) -> int:
    """Return how many records another worker lists for a page: its share by partitions, and some more.

    What is searched may be anywhere.
    """
    if question.wanted != LetterFilter():
        return question.limit
    most = max(Counter(owner for each in chosen if (owner := owner_of(each))).values(), default=0)
    return min(question.limit, question.limit * most * 5 // (4 * max(1, len(chosen))) + _MORE_ROWS)


def may_lack(facts: Facts, question: Question, share: int) -> bool:
    """Tell whether a page ended early because a worker has more than its share of it."""
    is_short = facts["next"] is not None and len(facts["records"]) < question.limit
    return is_short and share < question.limit and facts["scanned"] < SCAN_ROWS


def merged_facts(
    question: Question, chosen: Sequence[PartitionInfo], kind: str, answers: Mapping[str, Listing[Row] | bytes | None]
) -> Facts:
    """Merge what workers list, by their addresses; of 500 records that takes too long for the event loop.

    Raises:
        PageError: 400, a reason that no worker knows and no letter has.
    """
    listings, silent, lost = list[Listing[Row]](), list[str](), {item.partition for item in chosen}
    place = _places(kind == "dead")
    for url, body in answers.items():
        try:
            listing = body if isinstance(body, Listing) else _read(body or b"", place)
        except (ValidationError, PageError):  # PageError: the cursors of another build, say
            silent.append(url)
            continue
        # while the group moves partitions two workers may have one, or none
        its = {item.partition for item in chosen if owner_of(item) == url} & set(listing.partitions)
        lost -= its
        listings.append(replace(listing, lines=[row for row in listing.lines if row.partition in its]))
    records, cursor = merge(listings, question.limit, newest=kind == "dead")
    if not (cursor or question.seen or any(each.knows_reason for each in listings)):
        raise unknown_reason(question.wanted.reason)
    follow = {"after" if kind == "pending" else "before": cursor or "", "seen": str(question.seen + len(records))}
    facts: Facts = {
        "records": records,
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
) -> Listing[Row]:
    """List what waits in the partitions here by due time; `search` decodes values in which a field is looked for."""
    rows, scanned, after = list[Row](), 0, question.after
    wanted = None if question.wanted == LetterFilter() else question.wanted
    holding, most = what_holds(infos), (question.limit if wanted is None else SCAN_ROWS) + 1
    until_s = None if wanted is None else time.monotonic() + READ_S

    def listing(upto: bytes | None) -> Listing[Row]:
        undecoded = 0 if search is None else search.undecoded
        facts: Facts = {"lines": rows, "scanned": scanned, "undecoded": undecoded, "partitions": _open(infos)}
        knows_reason = is_known(question.wanted.reason)
        return Listing(upto=None if upto is None else upto.hex(), knows_reason=knows_reason, **facts)

    for entry in view.pending_page(question.main, after=after, limit=most, partition=question.partition):
        late = scanned and until_s is not None and time.monotonic() > until_s
        if len(rows) == question.limit or scanned == SCAN_ROWS or late:
            return listing(after)
        scanned += 1
        after = entry.key
        if wanted is None or fits_row(wanted, entry.value, search):
            facts = partial(_waiting_facts, entry, holding, now_ms)
            rows.append(Row(due_order(after), entry.partition, facts))
    return listing(None)


def _waiting_facts(entry: PendingEntry, holding: Holding, now_ms: int) -> Facts:
    facts = {**_UNSAID, "cursor": entry.key.hex(), **pending_summary(entry)}
    mark_held_back(facts, holding, now_ms)
    return facts


def dead_here(
    view: RuntimeView,
    infos: Sequence[PartitionInfo],
    question: Question,
    info: HandlerInfo,
    search: Searching | None,
) -> Listing[Row]:
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
    listing, last = Listing[Row](lines=[], partitions=chosen, knows_reason=is_known(wanted.reason)), before
    merged = heapq.merge(*streams, key=itemgetter(0), reverse=True)
    looked_into = _looked_into(view, info, merged, wanted, search) if wanted.deep else ((each, True) for each in merged)
    for (place, entry), found in looked_into:
        if wanted.from_ms is not None and place[0] < wanted.from_ms:
            break
        if found is None or len(listing.lines) == question.limit or listing.scanned == SCAN_ROWS:
            listing.upto = None if last is None else place_text(last)
            break
        listing.scanned += 1
        last, row = place, entry.row
        reason = row.reason if row.damaged is None else None
        listing.knows_reason |= reason == wanted.reason
        found &= wanted.reason in (None, reason) and error_type in (None, row.error_type)
        if found and (question.marked or is_open(row.mark)):
            listing.lines.append(Row(place, entry.partition, partial(_dead_facts, place, entry)))
    listing.undecoded = 0 if search is None else search.undecoded
    return listing


def _dead_facts(place: Place, entry: DeadEntry) -> Facts:
    return {**_UNSAID, "cursor": place_text(place), **dead_summary(entry)}


def _looked_into(
    view: RuntimeView, info: HandlerInfo, letters: Iterable[_Letter], wanted: LetterFilter, search: Searching | None
) -> Iterator[tuple[_Letter, bool | None]]:
    """Yield letters with whether they fit by what the index does not have: their topics are read, some at once.

    None: the time is over, so it is not known of this letter and those after it.
    """
    until_s, of_field = time.monotonic() + READ_S, LetterFilter(field=wanted.field)
    first = wanted if search is None else wanted.model_copy(update={"field": None})
    for at, some in enumerate(_near(letters, READ_ROWS if search is None else DECODED_ROWS)):
        if at and time.monotonic() > until_s:
            yield some[0], None
            return
        places, found = {*map(_at, some)}, dict[tuple[str | None, int, int], Record | None]()
        for name in {entry.letters for _, entry in some}:
            ranges: dict[int, tuple[int, int]] = {}
            for _, entry in some:
                if entry.letters == name:
                    ranges[entry.partition] = _with(ranges.get(entry.partition), entry.row.offset)
            topic = info.topics["dlq" if name is None else f"dlq {name}"]
            for each in view.read_range(topic, ranges):
                place = name, each.partition, each.offset
                if place in places and fits(first, each):
                    found[place] = None if search is None else each
        decoded_until_s = time.monotonic() + READ_S
        for number, letter in enumerate(some):
            record = found.get(_at(letter))
            if number and record is not None and time.monotonic() > decoded_until_s:
                yield letter, None
                return
            yield letter, _at(letter) in found and (record is None or fits(of_field, record, search))


def _near(letters: Iterable[_Letter], most: int) -> Iterator[list[_Letter]]:
    """Yield some rows at once: they are read in one go, with all between them."""
    some, ranges = list[_Letter](), dict[Stream, tuple[int, int]]()
    for letter in letters:
        entry = letter[1]
        stream, offset = (entry.partition, entry.letters), entry.row.offset
        first, stop = _with(ranges.get(stream), offset)
        if len(some) == most or stop - first > READ_SPAN:
            yield some
            some, ranges, (first, stop) = [], {}, _with(None, offset)
        some.append(letter)
        ranges[stream] = first, stop
    if some:
        yield some


def _with(offsets: tuple[int, int] | None, offset: int) -> tuple[int, int]:
    first, stop = (offset, 0) if offsets is None else offsets
    return min(first, offset), max(stop, offset + 1)


def _open(infos: Sequence[PartitionInfo]) -> list[int]:
    return [item.partition for item in infos if item.state == OPEN]


def _at(letter: _Letter) -> tuple[str | None, int, int]:
    entry = letter[1]
    return entry.letters, entry.partition, entry.row.offset


def _place(entry: DeadEntry) -> Place:
    return max(0, entry.row.append_ms), entry.partition, entry.letters or "", entry.row.offset


def _letters(page: Callable[..., Any], stream: Stream, before: Place | None) -> Iterator[_Letter]:
    """Walk over the dead letters of a topic and partition from a place on, a few at a time."""
    chunk, below = 2, None if before is None else _start(stream, before)  # most are asked for no more
    while True:
        entries = page(before=below, limit=chunk)
        letters = [(_place(entry), entry) for entry in entries]
        yield from letters
        if len(letters) < chunk:
            return
        last = letters[-1][0]
        below, chunk = (last[0], last[3]), min(_CHUNK_ROWS, 2 * chunk)


def _start(stream: Stream, before: Place) -> tuple[int, int]:
    """Return the time and the offset below which the letters of a topic and partition come after a place."""
    append_ms, partition, letters, offset = before
    here, there = (stream[0], stream[1] or ""), (partition, letters)
    return (append_ms, offset) if here == there else (append_ms + (here < there), 0)
