"""Rows of the pending table that are damaged while no worker runs, and what is judged of them (I25).

Each is dead, with one letter, and its record does not run. Who is to wait behind it is not known any more, unless only
a header of its is damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from retryapp.core.record import Record
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.story import Opening, Origin, Story, Violation

_STOPPED: Final = 8
_HOLD_AT: Final = 2
_COUNT: Final = b"retry-attempt"


class _Damage(NamedTuple):
    at_ms: float
    row: bytes
    readable: bool
    """The row is whole, and its metadata is not."""


class Damages:
    """The damaged rows of a handler."""

    def __init__(self) -> None:
        self.now: dict[Origin, _Damage] = {}
        self.ever: set[Origin] = set()
        self.unsure: set[int] = set()
        """Partitions with one that was to stop its sequence, and did not say which."""

    def strike(
        self, broker: Broker, tp: TopicPartition, rows: dict[bytes, bytes], stories: Mapping[Origin, Story], rng: Random
    ) -> None:
        """Damage one of the rows that a changelog has, if there are any."""
        fresh = [identity for identity in sorted(rows) if not stories[_origin(tp, identity)].replays]
        if not fresh:
            return
        identity = rng.choice(fresh)
        value, entries = rows[identity], broker.logs[tp].entries
        row, readable = _damaged(value, rng)
        at = max(at for at, entry in enumerate(entries) if entry.record.key == identity and entry.record.value == value)
        entries[at] = entries[at]._replace(record=replace(entries[at].record, value=row))
        rows[identity] = row
        origin = _origin(tp, identity)
        self.now[origin] = _Damage(broker.true_ms(), row, readable)
        self.ever.add(origin)

    def logged(self, origin: Origin, row: bytes | None) -> None:
        """Take a row of the changelog: what was on its way when the workers died may replace a damaged one.

        One that waits by reference may become a copy; its metadata is as damaged as before.
        """
        if (damage := self.now.get(origin)) is None or row == damage.row:
            return
        if row is not None and damage.readable and _COUNT + b"x" in row:
            self.now[origin] = damage._replace(row=row)
        else:
            del self.now[origin]

    def begun(self, origin: Origin, opening: Opening) -> None:
        """A call begins.

        Raises:
            Violation: the row of its record was damaged before its lane opened.
        """
        if origin in self.now and self.now[origin].at_ms < opening.fenced_ms:
            raise Violation(f"I25 {origin[0]}/{origin[1]}: begins, and its row is damaged")

    def dead(self, origin: Origin, story: Story, letter: Record, ours: Mapping[str, bytes]) -> bool:
        """Take a dead letter; tell whether it is that of a damaged row. What it has is the record from now on.

        Raises:
            Violation: it is of another row, or has other bytes.
        """
        if ours.get("retry-reason") != b"damaged" or origin not in self.now:
            return False
        damage, record = self.now[origin], story.record
        foreign = tuple((name, value) for name, value in letter.headers if not name.startswith("retry-"))
        told = letter.key, letter.value, foreign
        there = (record.key, record.value, record.headers) if damage.readable else (None, damage.row, ())
        bare = damage.readable and ("retry-no-payload" in ours or damage.row[1] > 1)
        if told != there and not (bare and letter.key == record.key):
            raise Violation(f"I25 {origin[0]}/{origin[1]}: the letter of a damaged row has {told}")
        story.stopped = True
        return True

    def replayed(self, story: Story, letter: Record, ours: Mapping[str, bytes]) -> None:
        """Note what a record is that may be replayed from the letter of its damaged row; its counts may begin anew."""
        foreign = tuple((name, value) for name, value in letter.headers if not name.startswith("retry-"))
        time_ms = int(ours["retry-origin-timestamp-ms"])
        story.record = replace(story.record, key=letter.key, value=letter.value, headers=foreign, timestamp_ms=time_ms)
        story.copies.clear()
        story.dues.clear()


def _origin(tp: TopicPartition, identity: bytes) -> Origin:
    return tp.partition, int.from_bytes(identity[-8:], "big")


def _damaged(row: bytes, rng: Random) -> tuple[bytes, bool]:
    """Return a row that cannot be read, and whether only its metadata cannot."""
    kind = rng.choice(("end", "end", "begin", "count"))
    if row[_HOLD_AT] == _STOPPED or kind == "end":  # one that stops nothing would have a second letter
        return row[: -rng.randint(1, 30)], False
    if kind == "begin":
        return b"\xff" + row[1:], False
    at = row.rindex(_COUNT) + len(_COUNT)  # a letter has one of its record, too, which is foreign and comes before
    return row[:at] + b"x" + row[at + 1 :], True
