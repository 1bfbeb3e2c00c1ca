"""What a lane writes down about its work: beside the main topic's committed offset, and on its changelog.

The metadata of the committed offset, where it is not empty, is a mark, a tally, a mark of the rows and a changelog's
id, those that there are, with spaces between:

``r2:3f9c`` : the life ``3f9c`` works from this offset on, and two before it ended uncleanly without moving it.
``s1:3f9c`` : the record at this offset was started alone, for the first time.
``p1:100-140@1700000000000:40,38,1`` : of the offsets from 100 on, before 140, 40 records were settled, 38 of them done
at their first delivery and 1 passed over; the others failed. The range began at that epoch millisecond.
``wr2:3f9c@5d41402abc4b2a76`` : a mark as above, about the due rows from this one on.
``c:kq2T0`` : the changelog with this topic id has the rows of what was before the offset.

A life is a process. A mark written by another life means that the writer ended without a word: killed, out of memory,
or cut off from the group. One such end proves nothing; after two without progress the records from the offset on are
suspect, and run one at a time, each with a mark of its own.

A tally moves with its offset, so a count survives its worker, and neither misses a record nor has one twice. Where the
second number is not the offset, it was copied and counts for nothing. ``p1`` is the version; others are not read.

Two records of a pending changelog are no rows: their keys have other lengths. Compaction leaves one of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple

from retryapp.core.hops import Outgoing

CLOCK: Final = b"clock"
"""Key of a record whose acknowledgement tells the broker's time."""
PROGRESS: Final = b"progress"
"""Key of the record that says how far the lane has come on each of its sources."""
SUSPECT_AFTER: Final = 2
"""Unclean ends in a row, without progress, after which records run alone."""
_MARK = re.compile(r"([rs])(\d{1,6}):([0-9A-Za-z._-]{1,64})")
ROWS_MARK: Final = "w"
"""What the mark of the rows begins with."""
_NUMBER = r"(0|[1-9]\d{0,18})"
_TALLY = re.compile(rf"p1:{_NUMBER}-{_NUMBER}@{_NUMBER}:{_NUMBER},{_NUMBER},{_NUMBER}", re.ASCII)
_ANY_VERSION = re.compile(r"p\d+:", re.ASCII)
_CHANGELOG = re.compile(r"c:([0-9A-Za-z_-]{1,32})")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a committed offset says."""

    alone: bool
    """The record at the offset was started alone, ``count`` times; else ``count`` lives ended there uncleanly."""
    count: int
    life: str

    @property
    def text(self) -> str:
        """Return it as the offset's metadata."""
        return f"{'s' if self.alone else 'r'}{self.count}:{self.life}"

    @property
    def counts(self) -> bool:
        """Whether it counts against the records after the offset."""
        return self.alone or self.count > 0


def parse_mark(text: str | None) -> Mark | None:
    """Return the mark in an offset's metadata; None without one of ours."""
    match = _MARK.fullmatch(text or "")
    return Mark(match[1] == "s", int(match[2]), match[3]) if match else None


class Suspected(NamedTuple):
    """Records that run alone."""

    crashes: int
    """How often a worker ended while it ran the first of them."""
    upto: int
    """Offset after the last of them; of rows, the due time of none of them."""


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
    if found is None or start >= end:
        return Suspicion(Mark(alone=False, count=0, life=life), None)
    if found.alone:
        crashes = found.count if found.life != life else found.count - 1  # our own life has not ended of it
        return Suspicion(found, Suspected(crashes, end))
    ends = found.count + (found.life != life)
    suspected = Suspected(0, end) if ends >= SUSPECT_AFTER else None
    return Suspicion(Mark(alone=False, count=ends, life=life), suspected)


def place_of(row_key: bytes) -> str:
    """Return how a mark names the row that it is about."""
    return blake2b(row_key, digest_size=8).hexdigest()


def rows_suspicion(text: str, life: str, *, least: bytes, now_ms: int) -> tuple[str, Suspected | None]:
    """Return the mark of the rows for this process's life, as text, and what runs alone.

    Args:
        text: the mark that was found.
        life: of this process.
        least: key of the row that is due first.
        now_ms: a row that is not due before this cannot have been running.
    """
    mark, at, place = text.removeprefix(ROWS_MARK).partition("@")
    found = parse_mark(mark) if at and place == place_of(least) else None
    told, suspected = suspicion(found, life, start=0, end=now_ms)
    return "" if told is None else rows_text(told, least), suspected


def rows_text(mark: Mark, row_key: bytes) -> str:
    """Return the mark of the rows from this one on, as text."""
    return f"{ROWS_MARK}{mark.text}@{place_of(row_key)}"


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def failed(self) -> int:
        """Of those received: failed at their first delivery."""
        return self.received - self.first_try_ok - self.skipped

    def plus(self, *, received: int, ok: int, skipped: int = 0) -> Tally:
        """Return the tally with more records."""
        return replace(
            self,
            received=self.received + received,
            first_try_ok=self.first_try_ok + ok,
            skipped=self.skipped + skipped,
        )

    def text(self, to_offset: int) -> str:
        """Return it as an offset's metadata; empty where there is nothing to say."""
        if not self.received and self.from_offset == to_offset:
            return ""
        counts = f"{self.received},{self.first_try_ok},{self.skipped}"
        return f"p1:{self.from_offset}-{to_offset}@{self.since_ms}:{counts}"


def parse_tally(text: str, offset: int) -> Tally | None:
    """Return the tally up to an offset; None where the text is none, or belongs to another offset."""
    match = _TALLY.fullmatch(text)
    if match is None:
        return None
    from_offset, to_offset, since_ms, received, ok, skipped = map(int, match.groups())
    if to_offset != offset or from_offset + received > to_offset or ok + skipped > received:
        return None
    return Tally(from_offset=from_offset, since_ms=since_ms, received=received, first_try_ok=ok, skipped=skipped)


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

    @property
    def text(self) -> str:
        """Return it as metadata."""
        parts = (self.mark, self.tally, self.rows, self.changelog and f"c:{self.changelog}")
        return " ".join(part for part in parts if part)


def split_note(text: str) -> Note:
    """Return the parts of an offset's metadata."""
    parts = text.split(" ")
    changelog = match[1] if (match := _CHANGELOG.fullmatch(parts[-1])) else ""
    if match:
        parts.pop()
    rows = parts.pop() if parts and parts[-1].startswith(ROWS_MARK) else ""
    at = next((at for at, part in enumerate(parts) if _ANY_VERSION.match(part)), len(parts))
    return Note(" ".join(parts[:at]), " ".join(parts[at:]), rows, changelog)


def clock_probe(changelog: str, partition: int) -> Outgoing:
    """Return a record with the key `CLOCK`."""
    return Outgoing(changelog, partition, CLOCK, b"", ())


def progress_value(positions: Mapping[str, int], topic_id: str, tally: str = "", changelog_id: str = "") -> bytes:
    """Return the value of a record with the key `PROGRESS`; `positions`: next offset by topic."""
    more = {name: text for name, text in (("tally", tally), ("changelog", changelog_id)) if text}
    return json.dumps({"v": 1, "main": topic_id, "next": positions, **more}).encode()


def read_progress(value: bytes, topic_id: str, main: str) -> dict[str, int]:
    """Return the next offset by topic; without the main topic if it was recreated, nothing without a value."""
    if not value:
        return {}
    mark = json.loads(value)
    return {topic: offset for topic, offset in mark["next"].items() if topic != main or mark["main"] == topic_id}


def read_changelog(value: bytes) -> str:
    """Return the topic id of the changelog that the record was written to; empty if it does not say."""
    return str(json.loads(value).get("changelog", "")) if value else ""


def read_tally(value: bytes, topic_id: str) -> str:
    """Return the text of the tally at the main topic's offset; empty without one."""
    mark = json.loads(value) if value else {}
    return str(mark.get("tally", "")) if mark.get("main") == topic_id else ""
