"""Planted faults of what is settled beyond the offset; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from retryapp.core import marks
from retryapp.core.settled import encode_settled
from retryapp.engine.lane.notes import Notes
from retryapp.engine.lane.transport import LaneProtocol
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.beyond import Settled
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.ports import LaneBatch, TopicPartition


async def _note_stays(self: LaneProtocol) -> None:
    """A note of a turn that was refused is in the next transaction."""
    notes = self._before[1]
    if notes is not None:
        notes.settled = self._beside().settled
    await _renew(self)


_renew = LaneProtocol.renew


def _former_base(self: Notes, batch: LaneBatch) -> str:
    """The note of an offset that has moved is read from where it is, and written from where it was."""
    text, former, offset = _noted(self, batch), self._mark[0], batch.offsets.get(self.site.main, -1)
    if not text or not 0 <= former < offset:
        return text
    return encode_settled({at + offset - former: fine for at, fine in self.settled.items()}, self._at(offset))


def _untrimmed(self: Notes, batch: LaneBatch) -> str:
    """What the offset has passed stays, one offset further on."""
    offset = batch.offsets.get(self.site.main, -1)
    passed = {max(at, offset): fine for at, fine in self.settled.items()}
    text = _noted(self, batch)
    self.settled = {**passed, **self.settled} if passed else self.settled
    return text


_noted = Notes.noted


def _nothing_found(_self: LaneProtocol) -> Mapping[int, bool]:
    """What the note beside the offset says is not looked at."""
    return {}


def _not_written(value: bytes, *of: str) -> marks.ProgressRecord:
    """The changelog does not say what was settled beyond an offset that the broker has forgotten."""
    return _read(value, *of)._replace(settled="")


_read = marks.read_progress


def _no_floor(self: Turn) -> int | None:
    """The offset passes a record whose turn went ahead and was held back."""
    return None if self.beyond else _floor(self)


_floor: Callable[[Turn], int | None] = Turn.floor.fget  # type: ignore[attr-defined]


def _unsaid(self: Turn, batch: LaneBatch, positions: Mapping[TopicPartition, int]) -> None:
    """A turn goes ahead without its note."""
    _join(self, batch, positions)
    batch.settled.clear()


_join = Turn.join


def _unnoted(self: OffsetWindow[Any], offset: int, outcome: Any, more: int = 0) -> None:
    """A record that is passed, as its row goes on, is settled beyond the offset without a note."""
    if isinstance(outcome, Turn) and outcome == Turn(source=outcome.source, next_offset=offset + 1):
        self.went_ahead(offset, Settled(offset + 1, fine=False))
    else:
        _finish(self, offset, outcome, more)


_finish = OffsetWindow.finish

BEYOND: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("a note is durable without its turn", ((LaneProtocol, "renew", _note_stays),), 286),
    ("a note is written from the former offset", ((Notes, "noted", _former_base),), 5),
    ("a note keeps what the offset has passed", ((Notes, "noted", _untrimmed),), 0),
    ("what is settled beyond the offset is lost at opening", ((LaneProtocol, "settled", property(_nothing_found)),), 6),
    ("what is settled beyond the offset is forgotten with it", ((marks, "read_progress", _not_written),), 209),
    ("an outcome goes ahead without a note", ((Turn, "join", _unsaid),), 6),
    ("a record whose row goes on is passed without a note", ((OffsetWindow, "finish", _unnoted),), 16_415_573),
    ("the offset passes a refused turn that went ahead", ((Turn, "floor", property(_no_floor)),), 1078),
)
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it, or 1."""
