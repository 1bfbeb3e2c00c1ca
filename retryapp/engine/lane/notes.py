"""Metadata of the main topic's committed offset: who works after it, what was counted before it, and who works on rows.

It moves with the offset. A commit that does not move it keeps the mark there, another life's too: it is about the
record after it, which may be running or come again. The mark of the rows stays until another one is written
(`core.marks`). The last part is the id of the changelog that has the rows (`engine.lane.recovery.check_changelog`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retryapp.core.marks import (
    Mark,
    Note,
    Suspected,
    Tally,
    parse_mark,
    parse_tally,
    rows_suspicion,
    split_note,
    suspicion,
)
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
    _mark: tuple[int, str] = (-1, "")
    _rows: str = ""

    def read(
        self, found: Committed | None, start: int, end: int, written_down: str
    ) -> tuple[Suspected | None, str | None]:
        """Read the metadata at opening; `written_down` is the changelog's tally.

        Returns:
            What may have ended a worker; and the mark to be written before a record runs, None where there is nothing
            to write. An offset that names no changelog has the mark that is there written once more.
        """
        note = split_note(found.note if found else "")
        self.tally = parse_tally(note.tally if found else written_down, start)
        self._counted = "" if self.tally is None else self.tally.text(start)
        self._mark, self._rows = (start, note.mark), note.rows
        mark, suspected = suspicion(parse_mark(note.mark), self.life, start=start, end=end)
        if mark is not None and mark.text != note.mark:
            return suspected, mark.text
        return suspected, None if note.changelog == self.site.changelog_id else note.mark

    def read_rows(self, least: bytes, now_ms: int) -> tuple[Suspected | None, str]:
        """Read the mark of the rows, the first of which is `least`; return as `read` does, with empty text."""
        text, suspected = rows_suspicion(self._rows, self.life, least=least, now_ms=now_ms)
        return suspected, "" if text == self._rows else text

    def beside(self, batch: LaneBatch) -> dict[TopicPartition, Committed]:
        """Return the offsets of a batch with their metadata, for its commit."""
        told = {}
        counted = self.counted(batch)
        if batch.rows_note is not None:
            self._rows = batch.rows_note
        for tp, offset in batch.offsets.items():
            text = batch.notes[tp] if tp in batch.notes else self._going_on(offset)
            self._mark = offset, text
            told[tp] = Committed(offset, Note(text, counted, self._rows, self.site.changelog_id).text)
        return told

    def counted(self, batch: LaneBatch) -> str:
        """Return the tally before the main topic's offset after a batch, as text."""
        self.tally = batch.tally or self.tally
        offset = batch.offsets.get(self.site.main)
        if offset is not None:
            self._counted = "" if self.tally is None else self.tally.text(offset)
        return self._counted

    def counting(self) -> Mapping[str, str]:
        """Return what takes back the marks that count against a record or row, as fields of a batch's; else nothing."""
        mark, rows = parse_mark(self._mark[1]), parse_mark(self._rows[1:].partition("@")[0])
        return {
            **({"note": ""} if mark is not None and mark.counts else {}),
            **({"rows_note": ""} if rows is not None and rows.counts else {}),
        }

    def _going_on(self, offset: int) -> str:
        at, text = self._mark
        if at == offset and parse_mark(text) is not None:
            return text
        return Mark(alone=False, count=0, life=self.life).text
