"""Settle records beyond the partition's offset while one before them still runs.

1. An outcome that has waited for `LOOK_S` goes to the lane, in a turn of its own: all that it publishes and changes,
   and beside the offset, which stays, the note that its record is settled (`core.settled`).
2. When nothing before the record is open any more, the offset passes it, and it is counted. That turn is behind the
   first one in the lane, and no offset passes a turn that is held back (`engine.lane.refused`).
3. If a session ends in between, the next one finds the note, and takes the record in as settled: it does not run again.
4. A record that comes again while its row waits goes ahead at once, with nothing but its note: once the row has ended,
   only that says that the record is not to run. In an ordered handler the row begins behind it.

What does not fit into the note waits for the offset. So do copies and marks, which are no records; a duplicate whose
first record still runs; and what could not be read: read again, it may be another range of offsets.

A note cannot tell a record that was skipped from one that succeeded: after a crash it is counted as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from retryapp.core.record import Record
from retryapp.core.settled import that_fit
from retryapp.engine.delivery.run import Outcome
from retryapp.engine.lane.turn import Turn
from retryapp.engine.partition.progress import OffsetWindow
from retryapp.ports import Event, Observation, TopicPartition

LOOK_S = 0.1
"""Time between two looks for outcomes that wait: one that has waited longer, twice as long at most, goes ahead."""
TURN_ROWS = 500
"""Records that succeeded at once in one turn, where each adds a row to the transaction."""


class Settled(NamedTuple):
    """What the window keeps of a record whose outcome went ahead."""

    next_offset: int
    fine: bool
    skipped: bool = False
    """It is known here that its handler has skipped it."""


class Beyond:
    """The records of one session that are settled beyond the offset of their partition."""

    def __init__(self, main: TopicPartition, start: int, found: Mapping[int, bool], *, ordered: bool = False) -> None:
        self._main = main
        self._ordered = ordered
        """None goes ahead of one that waits for the offset: it may be the successor of that."""
        self._committed = start
        self._noted = dict(found)
        """All of them, in the lane or durable, from the committed offset on."""
        self._unread = dict(found)

    def has(self, offset: int) -> bool:
        """Tell whether a record is settled beyond the committed offset, in the lane or durably."""
        return offset in self._noted

    def found(self, record: Record) -> list[Settled]:
        """Return what was settled before of a record that is taken in, and of those before it that compaction removed.

        A range that cannot be read was several records; what is noted of those in it says nothing of the others.
        """
        settled: list[Settled] = []
        if not self._unread:
            return settled
        alone = record.next_offset == record.offset + 1
        while self._unread and (offset := next(iter(self._unread))) < record.next_offset:
            fine = self._unread.pop(offset)
            if alone or offset < record.offset:
                settled.append(Settled(offset + 1, fine))
        return settled

    def take_back(self, offset: int) -> None:
        """Forget that an offset is settled: it has another record now."""
        del self._noted[offset]

    def turns(self, window: OffsetWindow[Outcome | Settled], most: int | None = None) -> list[Turn]:
        """Return the turns of outcomes that wait for an open record; `most`: records of one turn."""
        waiting: dict[int, bool] = {}
        stopped = False

        def look(offset: int, outcome: Outcome | Settled) -> None:
            nonlocal stopped
            fine = _fine(offset, outcome)
            stopped = stopped or (self._ordered and fine is None and may_run_again(outcome))
            if fine is not None and not stopped:
                waiting[offset] = fine

        window.go_ahead(look)
        noted = {offset: waiting[offset] for offset in that_fit(self._noted, self._committed, waiting)}
        self._noted |= noted

        def replace(offset: int, outcome: Outcome | Settled) -> Settled | None:
            skipped = isinstance(outcome, Turn) and outcome.skipped
            return Settled(offset + 1, noted[offset], skipped) if offset in noted else None

        return [*self._apart(window.go_ahead(replace), most or max(1, len(noted)))]

    def _apart(self, outcomes: Iterable[Outcome | Settled], most: int) -> Iterator[Turn]:
        fine: list[int] = []
        for outcome in outcomes:
            if isinstance(outcome, Turn):
                if self._ordered:
                    yield from self._together(fine, most)
                    fine = []
                outcome.beyond = {outcome.next_offset - 1: outcome.fine or outcome.skipped}
                yield outcome
            elif isinstance(outcome, int):
                fine.append(outcome - 1)
        yield from self._together(fine, most)

    def _together(self, fine: Sequence[int], most: int) -> Iterator[Turn]:
        for at in range(0, len(fine), most):
            part = fine[at : at + most]
            yield Turn(
                source=self._main,
                next_offset=part[-1] + 1,
                beyond=dict.fromkeys(part, True),
                observations=(succeeded(self._main, part[-1], len(part)),),
            )

    def passed(self, turns: Sequence[Turn]) -> None:
        """Take note of turns that are durable: the offset may have passed what was settled beyond it."""
        reached = next((turn.moves_to for turn in reversed(turns) if turn.moves_to), 0)
        if reached > self._committed:
            self._committed = reached
            if self._noted:
                self._noted = {offset: fine for offset, fine in self._noted.items() if offset >= reached}


def _fine(offset: int, outcome: Outcome | Settled) -> bool | None:
    """Return whether a record succeeded, or was skipped; None where it waits for the offset."""
    if isinstance(outcome, int):
        return True if outcome == offset + 1 else None
    if isinstance(outcome, Settled) or outcome.provisional or not outcome.settles:
        return None
    if any(seen.event is Event.DAMAGED for seen in outcome.observations):
        return None
    return outcome.fine or outcome.skipped


def may_run_again(outcome: Outcome | Settled) -> bool:
    """Tell whether what has this outcome may run after a crash, if the outcome was not durable: a copy never does."""
    return not isinstance(outcome, Turn) or outcome.settles > 0


def in_order(main: TopicPartition, outcomes: Iterable[Outcome | Settled]) -> Iterator[Turn]:
    """Return the turns of a prefix: one for each run of records that succeeded at once, or were settled before."""
    count = new = upto = 0
    for outcome in outcomes:
        if isinstance(outcome, int):
            count, new, upto = count + 1, new + 1, outcome
            continue
        if isinstance(outcome, Settled) and outcome.fine and not outcome.skipped:
            count, upto = count + 1, outcome.next_offset
            continue
        if count:
            yield _several(main, upto, count, new)
            count = new = 0
        if isinstance(outcome, Settled):
            outcome = Turn(source=main, next_offset=outcome.next_offset, skipped=outcome.skipped)
        yield outcome
    if count:
        yield _several(main, upto, count, new)


def _several(main: TopicPartition, next_offset: int, count: int, new: int) -> Turn:
    seen = (succeeded(main, next_offset - 1, new),) if new else ()
    return Turn(source=main, next_offset=next_offset, settles=count, fine=True, observations=seen)


def succeeded(main: TopicPartition, last: int, count: int) -> Observation:
    """Return the observation of records, up to the last one, that succeeded at their first delivery."""
    return Observation(
        event=Event.SUCCEEDED,
        handler=main.topic,
        topic=main.topic,
        partition=main.partition,
        offset=last,
        attempt=1,
        count=count,
    )
