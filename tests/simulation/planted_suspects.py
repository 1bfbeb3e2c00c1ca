"""Planted faults of what finds the records that kill their workers; see `simulation.mutants`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from retryapp.core.marks import Kind, Mark
from retryapp.engine.delivery.run import Run
from retryapp.engine.lane.notes import Notes
from retryapp.engine.partition import suspects
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.partition.suspects import Suspects


class _Forgetful(Mark):
    """A mark that says that its record never started alone before."""

    @property
    def text(self) -> str:
        count = 1 if self.kind is Kind.ALONE else self.count
        return Mark(self.kind, count, self.life, self.first, self.end, self.upto).text


def _moved_on(self: Notes, offset: int) -> str:
    """A mark is about the record at its offset, and about none of those after it."""
    at, text = self._mark
    return text if at == offset and text else Mark(Kind.LIFE, 0, self.life).text


async def _marked_late(self: Suspects, mark: Mark, run: Run, **more: Any) -> None:
    marked = asyncio.ensure_future(_note(self, mark, run, **more))
    if mark.kind is Kind.LIFE:
        await marked


_note = Suspects._note


async def _not_waited_for(self: Suspects, group: list[Run]) -> bool:
    for run in group:
        self._submit(run)
    return True


async def _half(self: Suspects, group: list[Run], crashes: int) -> None:
    """Once one half is done, the other is taken for sound."""
    await _run_group(self, group, crashes)
    self._held[:0] = self._queue
    self._queue.clear()


_run_group = Suspects._run_group


def _begins(_self: PartitionEngine, _run: Run) -> bool:
    """What is no suspect yet begins beside a record that one more death gives up."""
    return False


def _share(self: Suspects, run: Run) -> bool:
    """Only rows between those of a group may be more."""
    return run.claim is not None and self._found.size > 0


SUSPECTS: Final[tuple[tuple[str, int, tuple[Any, str, Any]], ...]] = (
    ("nobody counts crashes", 11, (suspects, "Mark", _Forgetful)),
    ("a settled neighbour clears the crash mark", 3392, (Notes, "_going_on", _moved_on)),
    ("group mark written after its first start", 11, (Suspects, "_note", _marked_late)),
    (
        "the next group starts before the outcomes of the former are durable",
        15,
        (Suspects, "_run_together", _not_waited_for),
    ),
    (
        "what is no suspect runs beside one that is given up next",
        18_186_142,
        (PartitionEngine, "_keeps_still", _begins),
    ),
    ("halving drops the second half", 172, (Suspects, "_run_group", _half)),
    ("who outlives its suspects trusts what comes after them", 14_897_735, (suspects, "SUSPECT_AFTER", 0)),
    ("rows of all circuits share the places of suspects", 16_486_698, (Suspects, "_may_be_more", _share)),
)
"""Name, a seed that finds it, and what is replaced: owner, attribute, by what."""
