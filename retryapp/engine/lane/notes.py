"""Metadata of the main topic's committed offset: who works after it, what was counted before it, and who works on rows.

It moves with the offset. A mark stays until the offset has passed all records that it is about, another life's mark
too: those after the offset may be running or come again. The mark of the rows stays until another one is written
(`core.marks`). What is settled beyond the offset is named until that has passed it (`core.settled`). The last part is
the id of the changelog that has the rows (`engine.lane.recovery.check_changelog`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from retryapp.core.marks import (
    Kind,
    Mark,
    Note,
    Suspected,
    Tally,
    control_text,
    parse_control,
    parse_mark,
    parse_rows_mark,
    parse_tally,
    rows_suspicion,
    rows_text,
    split_note,
    suspicion,
)
from retryapp.core.record import Origin
from retryapp.core.settled import decode_settled, encode_settled
from retryapp.engine.lane.site import LaneSite
from retryapp.ports import Committed, LaneBatch, TopicPartition

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Notes:
    """The metadata of one lane. A failed commit ends the session, and the next one reads it again."""

    site: LaneSite
    life: str
    tally: Tally | None = None
    """What was counted of the main topic before its offset; None: unknown."""
    settled: Mapping[int, bool] = field(default_factory=dict)
    """Records beyond the main topic's offset that are settled, and whether they succeeded; never changed in place."""
    control: str = ""
    """Position on the control topic, as text."""
    steering: str = ""
    """What is remembered of commands (`core.jobs.Steering`); it is in the progress record only."""
    _counted: str = ""
    _mark: tuple[int, str] = (-1, "")
    _rows: str = ""
    _settled: str = ""

    def read(
        self, found: Committed | None, start: int, end: int, written_down: tuple[str, str, str, str] = ("", "", "", "")
    ) -> tuple[Suspected | None, str | None]:
        """Read the metadata at opening; `written_down`: tally, settled, control and steering, as the changelog says.

        Returns:
            What may have ended a worker; and the mark to be written before a record runs, None where there is nothing
            to write. The mark that is there is written once more where no changelog is named, or too many records are.
        """
        note = split_note(found.note if found else "")
        *beside, control, self.steering = written_down
        counted, settled = (note.tally, note.settled) if found else beside
        self.tally = parse_tally(counted, start)
        noted = decode_settled(settled, self._at(start))
        self.settled = {
            at: fine for at, fine in noted.items() if at < end
        }  # else about records that the topic has lost
        if settled and (not noted or self.settled != noted):
            problem = "Lane %s cannot use %r beside its offset %d: what was settled beyond it runs again"
            logger.warning(problem, self.site.name, settled, start)
        self._counted = "" if self.tally is None else self.tally.text(start)
        self._settled = encode_settled(self.settled, self._at(start))
        self.control = note.control or control
        self._mark, self._rows = (start, note.mark), note.rows
        mark, suspected = suspicion(parse_mark(note.mark), self.life, start=start, end=end)
        if mark is not None and mark.text != note.mark:
            return suspected, mark.text
        written = note.changelog == self.site.changelog_id and self.settled == noted
        return suspected, None if written else note.mark

    def read_rows(self, least: bytes, now_ms: int) -> tuple[Suspected | None, str]:
        """Read the mark of the rows, the first of which is `least`; return as `read` does, with empty text."""
        text, suspected = rows_suspicion(self._rows, self.life, least=least, now_ms=now_ms)
        return suspected, "" if text == self._rows else text

    def beside(self, batch: LaneBatch) -> dict[TopicPartition, Committed]:
        """Return the offsets of a batch with their metadata, for its commit."""
        told = {}
        counted, settled, control = self.counted(batch), self.noted(batch), self.commanded(batch)
        if batch.rows_note is not None:
            self._rows = batch.rows_note
        for tp, offset in batch.offsets.items():
            text = batch.notes[tp] if tp in batch.notes else self._going_on(offset)
            self._mark = offset, text
            beside = counted, self._rows, self.site.changelog_id, settled, control, self.site.topic_id
            told[tp] = Committed(offset, Note(text, *beside).text)
        return told

    def counted(self, batch: LaneBatch) -> str:
        """Return the tally before the main topic's offset after a batch, as text."""
        self.tally = batch.tally or self.tally
        offset = batch.offsets.get(self.site.main)
        if offset is not None:
            self._counted = "" if self.tally is None else self.tally.text(offset)
        return self._counted

    def commanded(self, batch: LaneBatch) -> str:
        """Return the position on the control topic after a batch, as text."""
        if batch.steering is not None:
            self.steering = batch.steering
        if batch.control is not None or batch.steering is not None:
            at = parse_control(self.control, self.site.control_id) if batch.control is None else batch.control
            self.control = control_text(self.site.control_id, at, steered=bool(self.steering))
        return self.control

    def noted(self, batch: LaneBatch) -> str:
        """Return what is settled beyond the main topic's offset after a batch, as text.

        Each batch adds the records of its own turns only: one that is refused or never sent leaves nothing.
        """
        offset = batch.offsets.get(self.site.main)
        if offset is None:
            return self._settled
        if self.settled or batch.settled:
            settled = {**self.settled, **batch.settled}
            self.settled = {at: fine for at, fine in settled.items() if at >= offset}
        self._settled = encode_settled(self.settled, self._at(offset))
        return self._settled

    def _at(self, offset: int) -> Origin:
        main = self.site.main
        return Origin(main.topic, self.site.topic_id, main.partition, offset)

    def ended(self) -> tuple[str | None, str | None]:
        """Return the mark and that of the rows as they are after a clean end of this life; None: that needs no word."""
        mark, rows = parse_mark(self._mark[1]), parse_rows_mark(self._rows)
        return (
            mark.ended().text if mark is not None and self._would_count(mark) else None,
            rows_text(rows.ended()) if rows is not None and self._would_count(rows) else None,
        )

    def _would_count(self, mark: Mark) -> bool:
        return mark.counts and mark.life == self.life

    def _going_on(self, offset: int) -> str:
        at, text = self._mark
        mark = parse_mark(text)
        if mark is not None and (at == offset or (offset,) < mark.holds_to):
            return text
        return Mark(Kind.LIFE, 0, self.life).text
