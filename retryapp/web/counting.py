"""What jobs would do, counted in threads: a page shows how far it is, and the next one finds it further on."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from retryapp.core.control import Verb
from retryapp.core.jobs import LetterFilter
from retryapp.lookup.previews import Preview, Scope, preview
from retryapp.runtime.view import RuntimeView
from retryapp.web.turns import Turns

MOST_AT_ONCE: Final = 2
"""Counts of one worker's pages that go on."""
UNASKED_S: Final = 10.0
"""One that nobody has asked for so long ends."""
HURRIED_S: Final = 8.0
"""After so long half of the time is left to the worker's records, by pauses of this length between 1,000 letters:"""
PAUSE_S: Final = 0.03
COPY_S: Final = 0.5
MOST_COUNTED: Final = 5_000_000
"""Letters that fit: some 65 MB."""
_REMEMBERED: Final = 8

Asked = tuple[str, Verb, LetterFilter]


@dataclass(slots=True)
class _Count:
    said: str
    """The address that asked for it: a length from now, as `2h`, is another instant each time."""
    asked_s: float = field(default_factory=time.monotonic)
    hurried_until_s: float = field(default_factory=lambda: time.monotonic() + HURRIED_S)
    copied_s: float = 0.0
    seen: Preview = field(default_factory=lambda: Preview(complete=False))
    """As it was when it was copied last."""

    @property
    def forgotten(self) -> bool:
        """Whether nobody has asked for it any more."""
        return time.monotonic() - self.asked_s >= UNASKED_S

    def go_on(self, found: Preview) -> bool:
        """Let others see how far it is; called in its thread."""
        now_s = time.monotonic()
        if now_s - self.copied_s >= COPY_S:
            self.seen, self.copied_s = found.copy(), now_s
        if now_s >= self.hurried_until_s:
            time.sleep(PAUSE_S)
        return not self.forgotten and found.letters + found.done.total() < MOST_COUNTED


class Counting:
    """The counts of one worker's pages."""

    def __init__(self, view: RuntimeView) -> None:
        self._view = view
        self._turns = Turns(MOST_AT_ONCE)
        self._going: dict[Asked, tuple[_Count, asyncio.Task[Preview]]] = {}
        """Those that go on, and those that are over and were not asked for since."""
        self._given: deque[tuple[Asked, Preview]] = deque(maxlen=_REMEMBERED)

    async def count(self, asked: Asked, said: str, *, wait_s: float) -> tuple[Asked, Preview, bool]:
        """Return what is asked, what is counted of it after `wait_s` at most, and whether counting goes on.

        Raises:
            PageError: 503, too many others go on.
        """
        for other, (known, ended) in [*self._going.items()]:
            if ended.done() and known.forgotten:
                del self._going[other]
        asked = next((other for other, (known, _) in self._going.items() if known.said == said), asked)
        if asked not in self._going:
            begun, (main, verb, wanted) = _Count(said), asked
            count = partial(self._view.on_topics, main, preview, verb, wanted, go_on=begun.go_on)
            self._going[asked] = begun, asyncio.create_task(self._turns.take(count), name="preview")
        known, task = self._going[asked]
        known.asked_s = time.monotonic()
        await asyncio.wait([task], timeout=wait_s)
        if not task.done():
            return asked, known.seen, True
        if self._going.get(asked) == (known, task):
            del self._going[asked]
        found = task.result()
        self._given.append((asked, found))
        return asked, found, False

    def known(self, asked: Asked, scope: Scope) -> Preview | None:
        """Return the preview that a page has shown with this scope, if it was whole."""
        given = (found for other, found in self._given if other == asked and found.scope == scope)
        return next((found for found in given if found.complete), None)
