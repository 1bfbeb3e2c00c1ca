"""Hold back turns that a topic refuses, and retry them one at a time, with back-off.

Turns of due rows are not ordered, and a held one keeps its claim. Nor are those that settle records beyond the offset.
But no offset may pass a record whose turn is held: turns that would move it so far wait, and so do
commands behind a held one, and outcomes of the records that these are about. In an ordered handler, all do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from retryapp.core.lane_errors import HandOffRefusedError
from retryapp.core.row_keys import IDENTITY_AT
from retryapp.engine.lane.turn import Turn

FIRST_WAIT_S = 1.0
"""First wait after a refusal, doubled by each further one; least time between two retries."""
LAST_WAIT_S = 30.0
"""Longest time between two retries of a turn, unless so many are held that the least time forbids it."""


class RefusedTurns:
    """The refused turns of one session; `retry` is called with the first of them when its time has come."""

    def __init__(self, retry: Callable[[Turn], None], *, ordered: bool = False) -> None:
        self.floor: int | None = None
        """The first offset of the source that a held turn settles: it must not be passed. None: none does."""
        self._retry = retry
        self._ordered = ordered
        self._turns: deque[Turn] = deque()
        self._later: list[Turn] = []
        self._commands = 0
        """Turns of commands that are held, or wait: a look at each would take seconds, where thousands wait."""
        self._changed: set[bytes] = set()
        """Identities of the rows that turns which are held, or wait, change."""
        self._wait_s = FIRST_WAIT_S
        self._timer: asyncio.TimerHandle | None = None

    @property
    def error(self) -> HandOffRefusedError | None:
        """Why the first one was refused; None: none is held."""
        return self._turns[0].refusal if self._turns else None

    @property
    def commanded(self) -> bool:
        """Whether one of a command is held, or waits for one that is."""
        return self._commands > 0

    def keep(self, turn: Turn) -> bool:
        """Take a turn that must wait for a held one; tell whether it must."""
        if turn.refusal is not None:
            return False
        waits = (self._ordered and bool(self._turns)) or (self.floor is not None and turn.moves_to > self.floor)
        if not waits and self.commanded:  # else a crash would forget the held command, or it is done twice
            waits = turn.commanded or turn.hurried or self._about(turn)
        if not waits:
            return False
        self._later.append(turn)
        self._note(turn)
        return True

    def _note(self, turn: Turn) -> None:
        self._commands += turn.commanded
        self._changed.update(row.identity for row in turn.rows)

    def _about(self, turn: Turn) -> bool:
        """Tell whether a turn ends the run of a record whose row a command, which waits here, would put back."""
        return turn.claim is not None and turn.claim[IDENTITY_AT:] in self._changed

    def hold(self, turn: Turn, error: HandOffRefusedError) -> None:
        """Hold a turn back. After a retried one, which is the first, the next is retried, after a longer wait."""
        again, turn.refusal = turn.refusal is not None, error
        if again:
            self._turns.rotate(-1)
            self._wait_s = min(2 * self._wait_s, LAST_WAIT_S)
        else:
            self._turns.append(turn)
            self._note(turn)
            self._find_floor()
        if again or self._timer is None:
            seconds = max(FIRST_WAIT_S, min(self._wait_s, LAST_WAIT_S / len(self._turns)))
            self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self._retry(self._turns[0]))

    def release(self) -> list[Turn]:
        """Drop the first turn, which is committed, and retry the next; return those that may have waited for it."""
        commanded = self._turns.popleft().commanded
        self._wait_s = FIRST_WAIT_S
        floor, later = self.floor, list[Turn]()
        self._find_floor()
        if self.floor != floor or commanded or (self._ordered and not self._turns):
            later, self._later = self._later, later
        self._commands, self._changed = 0, set()
        for turn in (*self._turns, *self._later):
            self._note(turn)
        if self._turns:
            self._retry(self._turns[0])
        else:
            self._timer = None
        return later

    def _find_floor(self) -> None:
        floors = (turn.floor for turn in self._turns)
        self.floor = min((floor for floor in floors if floor is not None), default=None)

    def end(self) -> list[Turn]:
        """Return all turns: the session is over."""
        if self._timer is not None:
            self._timer.cancel()
        return [*self._turns, *self._later]
