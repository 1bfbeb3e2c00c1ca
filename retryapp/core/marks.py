"""What a lane writes down about its work: beside the main topic's committed offset, and on its changelog.

The metadata of the committed offset, where it is not empty, is the main topic's id, a mark, a tally, a mark of the
rows, what is settled beyond the offset (`core.settled`), a position on the control topic and a changelog's id, those
that there are, with spaces between:

``m:kq8G0bTz`` : the offset is one of the main topic with this topic id (its beginning).
``r0:3f9c`` : the life ``3f9c`` works from this offset on.
``r2:3f9c<140`` : so it does, and two lives before it ended uncleanly; what may have run in them is before offset 140.
``r2:3f9c@100<140`` : the same, and it has outlived the suspects from offset 100 on: others may have ended those.
``g20:3f9c@100-120<140`` : the 20 records from offset 100 on, before 120, were started together; those up to 140 follow.
``s1:3f9c@100`` : the record at offset 100 was started alone, for the first time.
``s3:-@100`` : it was, for the third time; two of these lives ended uncleanly, and the last one in good order.
``p1:100-140@1700000000000:40,38,1`` : of the offsets from 100 on, before 140, 40 records were settled, 38 of them done
at their first delivery and 1 passed over; the others failed. The range began at that epoch millisecond.
``wg2:3f9c@1700000000000.40-1700000000000.42`` : a mark as above about due rows, whose places are the due time and the
offset of the first delivery.
``k:x8Zt.17`` : of the control topic with this topic id, all before offset 17 is obeyed or refused. With a ``+``
behind it, the progress record says what is remembered of commands, as of jobs.
``c:kq2T0`` : the changelog with this topic id has the rows of what was before the offset.

A life is a process. A mark written by another life means that the writer ended without a word: killed, out of memory,
or cut off from the group. One such end proves nothing; after two, what may have run in both is suspect: it runs in
groups of half of it, each with a mark of its own (`engine.partition.suspects`). A mark stays until all records that it
is about are settled, whatever becomes of others. A life that ends in good order says so in its mark (`ENDED`): that
counts for nothing, and takes back no unclean end before it. Where the mark counts no end yet, it says nothing.

A tally moves with its offset, so a count survives its worker, and neither misses a record nor has one twice. Where the
second number is not the offset, it was copied and counts for nothing. ``p1`` is the version; others are not read.

Two records of a pending changelog are no rows: their keys have other lengths. Compaction leaves one of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from retryapp.core.hops import Outgoing
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.row_keys import parse_row_key
from retryapp.core.settled import PREFIX as SETTLED
from retryapp.core.values import keyword_value_type

CLOCK: Final = b"clock"
"""Key of a record whose acknowledgement tells the broker's time."""
PROGRESS: Final = b"progress"
"""Key of the record that says how far the lane has come on each of its sources."""
SUSPECT_AFTER: Final = 2
"""Unclean ends at the same place after which records are suspect."""
ENDED: Final = "-"
"""In the place of a life that has ended in good order."""
_LIFE = r"(\d{1,6}):([0-9A-Za-z._-]{1,64})"
_PLACE = r"(\d{1,19}(?:\.\d{1,19})?)"
_MARK = re.compile(rf"([rgs]){_LIFE}(?:@{_PLACE}(?:-{_PLACE})?)?(?:<{_PLACE})?", re.ASCII)
ROWS_MARK: Final = "w"
"""What the mark of the rows begins with."""
_NUMBER = r"(0|[1-9]\d{0,18})"
_TALLY = re.compile(rf"p1:{_NUMBER}-{_NUMBER}@{_NUMBER}:{_NUMBER},{_NUMBER},{_NUMBER}(?:,{_NUMBER})?", re.ASCII)
_ANY_VERSION = re.compile(r"p\d+:", re.ASCII)
CONTROL: Final = "k:"
"""What the position on the control topic begins with."""
STEERED: Final = "+"
"""What it ends with where the progress record says more (`core.jobs.Steering`)."""
_CONTROL = re.compile(rf"k:([0-9A-Za-z_-]{{0,32}})\.{_NUMBER}\+?", re.ASCII)
_MAIN = re.compile(r"m:([0-9A-Za-z_-]{1,32})")
_CHANGELOG = re.compile(r"c:([0-9A-Za-z_-]{1,32})")


Place = tuple[int, ...]
"""Where a record is in the order of delivery: its offset; of a row, its due time and the offset of its record."""


def place_of(row_key: bytes) -> Place:
    """Return the place of a row; a held one may run at once, so it comes before all that are due."""
    key = parse_row_key(row_key)
    return (0 if key.due_at_ms == MAX_EPOCH_MS else key.due_at_ms), key.origin_offset


def after(place: Place) -> Place:
    return *place[:-1], place[-1] + 1


class Kind(StrEnum):
    """What a mark says."""

    LIFE = "r"
    GROUP = "g"
    ALONE = "s"


@dataclass(frozen=True, slots=True)
class Mark:
    """Who works from a place on, and what may have ended workers there."""

    kind: Kind
    count: int
    """Lives that ended uncleanly; or the size of the group that was started; or how often a record started alone."""
    life: str
    first: Place = ()
    """The first record of the group, or the one that started alone; empty: the first of all. Of a life, where the
    suspects began that it has outlived."""
    end: Place = ()
    """After the last record of the group."""
    upto: Place = ()
    """After the last record that may have ended a worker; empty: not known, or none but those that were started."""

    @property
    def text(self) -> str:
        text = f"{self.kind}{self.count}:{self.life}"
        for sign, place in (("@", self.first), ("-", self.end), ("<", self.upto)):
            text += sign + ".".join(map(str, place)) if place else ""
        return text

    @property
    def counts(self) -> bool:
        """Whether it counts against the records after the offset."""
        return self.kind is not Kind.LIFE or self.count > 0

    def ended(self) -> Mark:
        """Return what a life leaves of its mark where it ends in good order."""
        return replace(self, life=ENDED)

    @property
    def holds_to(self) -> Place:
        """Return the place after its last record; once an offset is there, all of them are settled."""
        return {Kind.LIFE: self.upto, Kind.GROUP: self.end, Kind.ALONE: self.first and after(self.first)}[self.kind]

    def beside(self, offset: int) -> Mark:
        """Return the mark for a later offset: this one until all its records are settled, then the life's."""
        return self if (offset,) < self.holds_to else Mark(Kind.LIFE, 0, self.life)


def parse_mark(text: str | None) -> Mark | None:
    """Return the mark in an offset's metadata; None without one of ours."""
    match = _MARK.fullmatch(text or "")
    if match is None:
        return None
    first, end, upto = (tuple(map(int, place.split("."))) if place else () for place in match.groups()[3:])
    return Mark(Kind(match[1]), int(match[2]), match[3], first, end, upto)


def parse_rows_mark(text: str) -> Mark | None:
    """Return the mark in a mark of the rows."""
    return parse_mark(text.removeprefix(ROWS_MARK))


class Suspected(NamedTuple):
    """Records that run in groups, or alone."""

    first: Place
    """Where they begin."""
    end: Place
    """After the last of them."""
    size: int = 0
    """How many there are at most; 0: as many as may run at once."""
    crashes: int = 0
    """How often a worker ended while it ran the one at `first` alone."""
    more: int = 0
    """Unclean ends beyond those that make records suspect: the one that ends workers was not among the first."""


class Suspicion(NamedTuple):
    """What follows from the mark at an offset where a life begins."""

    mark: Mark | None
    """To be written before any record after the offset runs; None: nothing to write."""
    suspected: Suspected | None


def suspicion(found: Mark | None, life: str, *, start: int, end: int) -> Suspicion:
    """Return what follows from the mark at offset `start` for this process's life; no mark: an orderly end.

    With no records between `start` and the partition's `end`, none can have ended a worker, and an idle lane writes no
    mark. The commit after its first record does; if that record ends the worker first, that end is not counted.
    """
    if start >= end and not (found is not None and found.counts):
        return Suspicion(None, None)
    return _judge(found, life, (start,), (end,))


def rows_suspicion(text: str, life: str, *, least: bytes, now_ms: int) -> tuple[str, Suspected | None]:
    """Return the mark of the rows for this process's life, as text, and what is suspect.

    Args:
        text: the mark that was found.
        life: of this process.
        least: key of the row with the least place.
        now_ms: a row that is not due by then cannot have been running.
    """
    mark, suspected = _judge(parse_rows_mark(text), life, place_of(least), (now_ms + 1, 0))
    return "" if mark is None else rows_text(mark), suspected


def _judge(found: Mark | None, life: str, start: Place, end: Place) -> Suspicion:
    """Judge the mark that was found; the records that are not settled begin at `start`, and `end` is after the last."""
    if found is None or start >= end:
        return Suspicion(Mark(Kind.LIFE, 0, life), None)
    own = found.life in (life, ENDED)  # it has ended no worker
    about = not found.holds_to or start < found.holds_to
    if about and found.kind is not Kind.LIFE:
        first = found.first or start
        if own and found.upto:
            size, upto = 0, found.upto
        else:
            size, upto = (found.count, found.end) if found.kind is Kind.GROUP else (1, after(first))
        crashes = found.count - own if found.kind is Kind.ALONE else 0
        return Suspicion(found, Suspected(first, upto, size, crashes))
    before = found.count if about else 0
    if own:
        mark = replace(found, life=life) if about else Mark(Kind.LIFE, 0, life)
    else:
        before += 1
        mark = Mark(Kind.LIFE, before, life, upto=end)
    if before < SUSPECT_AFTER or (own and found.first):
        return Suspicion(mark, None)
    return Suspicion(mark, Suspected(start, end, more=before - SUSPECT_AFTER))


def rows_text(mark: Mark) -> str:
    return f"{ROWS_MARK}{mark.text}"


@keyword_value_type
class Tally:
    """Counts of settled first deliveries, from an offset on; offsets have gaps, so a range of them is no count."""

    from_offset: int
    """Where the last `progress` event ended, or counting began."""
    since_ms: int
    received: int = 0
    first_try_ok: int = 0
    """Of these, done at their first delivery."""
    skipped: int = 0
    """Of these, passed over without a delivery."""
    held: int = 0
    """Of these, not delivered yet: they wait for earlier records of their sequence."""

    @property
    def failed(self) -> int:
        """Of those received: failed at their first delivery."""
        return self.received - self.first_try_ok - self.skipped - self.held

    def plus(self, *, received: int, ok: int, skipped: int = 0, held: int = 0) -> Tally:
        return replace(
            self,
            received=self.received + received,
            first_try_ok=self.first_try_ok + ok,
            skipped=self.skipped + skipped,
            held=self.held + held,
        )

    def text(self, to_offset: int) -> str:
        """Return it as an offset's metadata; empty where there is nothing to say."""
        if not self.received and self.from_offset == to_offset:
            return ""
        counts = f"{self.received},{self.first_try_ok},{self.skipped}" + (f",{self.held}" if self.held else "")
        return f"p1:{self.from_offset}-{to_offset}@{self.since_ms}:{counts}"


def parse_tally(text: str, offset: int) -> Tally | None:
    """Return the tally up to an offset; None where the text is none, or belongs to another offset."""
    match = _TALLY.fullmatch(text)
    if match is None:
        return None
    from_offset, to_offset, since_ms, received, ok, skipped, held = (int(number or 0) for number in match.groups())
    if to_offset != offset or from_offset + received > to_offset or ok + skipped + held > received:
        return None
    counts = {"received": received, "first_try_ok": ok, "skipped": skipped, "held": held}
    return Tally(from_offset=from_offset, since_ms=since_ms, **counts)


class Note(NamedTuple):
    """The parts of the metadata of the main topic's offset."""

    mark: str
    """Text for `parse_mark`, or text of another program."""
    tally: str
    """Text for `parse_tally`."""
    rows: str = ""
    """Text for `rows_suspicion`."""
    changelog: str = ""
    """Topic id of the changelog."""
    settled: str = ""
    """Text for `settled.decode_settled`."""
    control: str = ""
    """Text for `parse_control`."""
    main: str = ""
    """Topic id of the main topic, shortened; earlier builds wrote none."""

    @property
    def text(self) -> str:
        main, changelog = self.main and f"m:{self.main}", self.changelog and f"c:{self.changelog}"
        parts = (main, self.mark, self.tally, self.rows, self.settled, self.control, changelog)
        return " ".join(part for part in parts if part)


def split_note(text: str) -> Note:
    """Return the parts of an offset's metadata."""
    parts = text.split(" ")
    main = match[1] if (match := _MAIN.fullmatch(parts[0])) else ""
    if main:
        del parts[0]
    changelog = match[1] if parts and (match := _CHANGELOG.fullmatch(parts[-1])) else ""
    if changelog:
        parts.pop()
    control = parts.pop() if parts and parts[-1].startswith(CONTROL) else ""
    settled = parts.pop() if parts and parts[-1].startswith(SETTLED) else ""
    rows = parts.pop() if parts and parts[-1].startswith(ROWS_MARK) else ""
    at = next((at for at, part in enumerate(parts) if _ANY_VERSION.match(part)), len(parts))
    return Note(" ".join(parts[:at]), " ".join(parts[at:]), rows, changelog, settled, control, main)


def clock_probe(changelog: str, partition: int) -> Outgoing:
    """Return a record with the key `CLOCK`."""
    return Outgoing(changelog, partition, CLOCK, b"", ())


def progress_value(
    positions: Mapping[str, int],
    topic_id: str,
    tally: str = "",
    changelog_id: str = "",
    settled: str = "",
    control: str = "",
    steering: str = "",
    floor: int = 0,
) -> bytes:
    """Return the value of a record with the key `PROGRESS`; `positions`: next offset by topic."""
    texts = {"tally": tally, "changelog": changelog_id, "settled": settled, "control": control, "steering": steering}
    more = {name: said for name, said in {**texts, "floor": floor}.items() if said}
    return json.dumps({"v": 1, "main": topic_id, "next": positions, **more}).encode()


class ProgressRecord(NamedTuple):
    """The value of a record with the key `PROGRESS`; texts are empty where it does not say."""

    positions: Mapping[str, int]
    """Next offset by topic; without the main topic if that was made again."""
    tally: str
    """At the main topic's offset."""
    changelog: str
    """Topic id of the changelog that it was written to."""
    settled: str
    """Beyond the main topic's offset."""
    control: str
    """The position on the control topic."""
    steering: str
    """What is remembered of commands."""
    floor: int
    """A table without rows that reads that changelog from here has all that waits (`PendingTable.floor`)."""
    written_ms: int = 0
    """By the broker's time, where the reader knows it."""


def read_progress(value: bytes, topic_id: str = "", main: str = "") -> ProgressRecord:
    """Read a progress record; `topic_id`: that of the main topic now. Without a value it says nothing."""
    found = json.loads(value) if value else {"next": {}}
    is_of = found.get("main") == topic_id
    positions = {topic: offset for topic, offset in found["next"].items() if is_of or topic != main}
    names = "tally", "changelog", "settled", "control", "steering"
    tally, changelog, settled, control, steering = (str(found.get(name, "")) for name in names)
    texts = tally if is_of else "", changelog, settled, control, steering
    return ProgressRecord(positions, *texts, int(found.get("floor", 0)))


def control_text(topic_id: str, offset: int, *, steered: bool = False) -> str:
    return f"{CONTROL}{topic_id}.{offset}{STEERED if steered else ''}"


def parse_control(text: str, topic_id: str) -> int:
    """Return the next offset of the control topic; 0 without one, and of a topic that was made again.

    Commands are refused by age, so none is obeyed that somebody sent long ago.
    """
    match = _CONTROL.fullmatch(text)
    return int(match[2]) if match is not None and match[1] == topic_id else 0
