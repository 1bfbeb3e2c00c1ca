"""Metadata of the committed offsets of a lane's sources.

* main: a mark of who works after the offset (`core.marks`), and what was counted before it (`core.marks`);
* redelivery: a mark;
* retry topics: the id of the changelog that has the rows of what is before it (`engine.lane.recovery.check_changelog`).

It moves with the offset. A commit that does not move an offset keeps our own mark there: it is about the record after
it, which may be running.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retryapp.core.marks import Mark, Note, Suspected, Tally, parse_mark, parse_tally, split_note, suspicion
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import Committed, LaneBatch, TopicPartition


@dataclass(slots=True)
class Notes:
    """The metadata of one lane. A failed commit ends the session, and the next one reads it again."""

    site: LaneSite
    life: str
    tally: Tally | None = None
    """What was counted of the main topic before its offset; None: unknown."""
    _counted: str = ""
    _marks: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)

    def read(
        self,
        offsets: Mapping[TopicPartition, Committed],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        written_down: str,
    ) -> tuple[dict[TopicPartition, Suspected], dict[TopicPartition, str]]:
        """Read the metadata at opening; `written_down` is the changelog's tally.

        Returns:
            What may have ended a worker, by source; and the marks to be written before a record runs.
        """
        main, suspicions, marks = self.site.main, dict[TopicPartition, Suspected](), dict[TopicPartition, str]()
        note = split_note(offsets[main].note if main in offsets else "")
        self.tally = parse_tally(note.tally if main in offsets else written_down, starts[main])
        self._counted = "" if self.tally is None else self.tally.text(starts[main])
        for tp in self.site.delivering:
            text = note.mark if tp == main else offsets[tp].note if tp in offsets else ""
            self._marks[tp] = starts[tp], text
            mark, suspected = suspicion(parse_mark(text), self.life, start=starts[tp], end=ends[tp])
            if suspected is not None:
                suspicions[tp] = suspected
            if mark is not None and mark.text != text:
                marks[tp] = mark.text
        return suspicions, marks

    def beside(self, batch: LaneBatch) -> dict[TopicPartition, Committed]:
        """Return the offsets of a batch with their metadata, for its commit."""
        told = {}
        counted = self.counted(batch)
        for tp, offset in batch.offsets.items():
            text = self.site.changelog_id
            if tp in self.site.delivering:
                text = batch.notes[tp] if tp in batch.notes else self._going_on(tp, offset)
                self._marks[tp] = offset, text
            told[tp] = Committed(offset, Note(text, counted).text if tp == self.site.main else text)
        return told

    def counted(self, batch: LaneBatch) -> str:
        """Return the tally before the main topic's offset after a batch, as text."""
        self.tally = batch.tally or self.tally
        offset = batch.offsets.get(self.site.main)
        if offset is not None:
            self._counted = "" if self.tally is None else self.tally.text(offset)
        return self._counted

    def counting(self) -> list[TopicPartition]:
        """Return the sources whose mark counts against the record after the offset."""
        return [tp for tp, (_, text) in self._marks.items() if (mark := parse_mark(text)) is not None and mark.counts]

    def _going_on(self, tp: TopicPartition, offset: int) -> str:
        at, text = self._marks.get(tp, (-1, ""))
        mark = parse_mark(text)
        if at == offset and mark is not None and mark.life == self.life:
            return text
        return Mark(alone=False, count=0, life=self.life).text
