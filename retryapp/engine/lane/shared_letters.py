"""What two lanes of one worker know of a partition of dead letters.

One is that of the handler whose records die, the other that of the handler of these letters. Each settles letters by
marks, in transactions of its own. No letter is both replayed and handled, because

* runs of the letters' handler begin only while the records' lane is open here and its table has all marks, and commands
  about letters are obeyed only while the letters' lane is open here, too: the openings have fenced all former owners;
* a letter is with one of the two at a time, from the begin of a run, or from the effect of a command, until the turn
  is committed;
* the table gets each mark that the letters' lane commits. After each opening of that lane the table reads its topic up
  to the end of that moment. It waits for transactions that are open there, so it sees a commit without an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from retryapp.core.control import LetterMark, OutgoingMark, is_open
from retryapp.core.errors import RetryAppError
from retryapp.core.hops import Outgoing


class LettersUnknownError(RetryAppError):
    """The table of a partition's dead letters has failed, and is made anew."""


class Keeper(Protocol):
    """Keeps the table of the partition: `engine.lane.dead_keeper`."""

    known: asyncio.Event

    def mark_of(self, letter: int) -> str | None:
        """Return what became of a letter; None: nothing yet."""

    def take(self, marks: Sequence[LetterMark]) -> None:
        """Write marks that the lane of the letters' handler has committed."""

    def read_again(self) -> None:
        """Read on to the end of the topic."""

    def rebuild(self) -> None:
        """Drop the table, and read its topic from the beginning."""


class SharedLetters:
    """One partition of a dead-letter topic. Letters are named by their offsets there."""

    def __init__(self) -> None:
        self.handled_here = False
        """Whether the lane of the letters' handler is open."""
        self._keeper: Keeper | None = None
        self._joined = asyncio.Event()
        self._running: dict[int, str | None] = {}
        """Letters that the handler has begun, up to the commit of their outcome, and what became of them before."""
        self._changing: set[int] = set()
        """Letters that a command changes, up to the commit of its turn."""
        self._waiting: list[Callable[[], None]] = []

    # -- the lane of the records ----------------------------------------------------------------------------------

    def join(self, keeper: Keeper) -> None:
        """Note that the lane of the records is open; `keeper` has its table."""
        self._keeper = keeper
        self._joined.set()

    def leave(self, keeper: Keeper) -> None:
        """Note that it has closed."""
        if self._keeper is keeper:  # else another session has begun
            self._keeper = None
            self._joined.clear()
            self._changing.clear()

    def runs(self, letter: int) -> bool:
        """Tell whether the handler has a letter now."""
        return letter in self._running

    def change(self, letter: int) -> None:
        """Keep the handler from a letter that is free, until `let_go`."""
        self._changing.add(letter)

    def let_go(self, letters: Iterable[int]) -> None:
        """End changes of letters: they are in the table, or dropped."""
        self._changing.difference_update(letters)
        self.go_on()

    def go_on(self) -> None:
        """Have runs try to begin that wait; called once the table has all marks, too."""
        waiting, self._waiting = self._waiting, []
        for begin in waiting:
            begin()

    # -- the lane of the letters' handler -------------------------------------------------------------------------

    async def rolled_back(self) -> None:
        """Have the table made anew, once the lane of the records is open: the last marks may be gone again."""
        while self._keeper is None:
            await self._joined.wait()
        self._keeper.rebuild()

    def begin(self) -> None:
        """Note that its lane has opened."""
        self.handled_here = True
        if self._keeper is not None:
            self._keeper.read_again()

    def end(self) -> None:
        """Note that it has closed: what became of the letters that it had is not known here."""
        self.handled_here = False
        self._running.clear()
        self._waiting.clear()
        if self._keeper is not None:
            self._keeper.known.clear()

    def may_begin(self, letter: int, begin: Callable[[], None]) -> bool:
        """Take a letter for a run; where that must wait, `begin` is called later."""
        if self.waits(letter):
            self._waiting.append(begin)
            return False
        self._running[letter] = self.mark_of(letter)
        return True

    def waits(self, letter: int | None = None) -> bool:
        """Tell whether nothing may begin; of one letter, also whether a command changes it, or its table fails."""
        if self._keeper is None or not self._keeper.known.is_set() or letter in self._changing:
            return True
        try:
            if letter is not None:
                self.mark_of(letter)
        except LettersUnknownError:
            return True
        return False

    async def known(self, letter: int | None = None) -> None:
        """Wait while `waits`."""
        while self.waits(letter):
            known = asyncio.Event()
            self._waiting.append(known.set)
            await known.wait()

    def may_mark(self, letter: int) -> bool:
        """Take a letter for a mark without a run; False: its table, or a command, says more than that mark would."""
        if letter not in self._running:
            if self.waits(letter) or not is_open(self.mark_of(letter)):
                return False
            self._running[letter] = None
        return True

    def mark_of(self, letter: int) -> str | None:
        """Return what became of a letter; None: nothing yet.

        Raises:
            LettersUnknownError: its table has failed.
        """
        if letter in self._running:
            return self._running[letter]
        return None if self._keeper is None else self._keeper.mark_of(letter)

    def ended(self, letter: int, publishes: Sequence[Outgoing]) -> None:
        """Let a letter go whose run has ended, unless its turn has a mark."""
        if not any(isinstance(out, OutgoingMark) for out in publishes):
            self._running.pop(letter, None)

    def committed(self, publishes: Iterable[Outgoing]) -> None:
        """Take the marks that a turn has committed."""
        if marks := [out.told for out in publishes if isinstance(out, OutgoingMark)]:
            if self._keeper is not None:
                self._keeper.take(marks)
            for mark in marks:
                self._running.pop(mark.letter, None)
