"""Name code that holds the event loop: a coroutine that computes, or calls what blocks.

A thread asks the loop for an answer, in rounds. A process that is stopped as a whole misses no round.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Final

from retryapp.core.durations import duration_text
from retryapp.core.traces import place_in, running_frame

logger = logging.getLogger("retryapp.events")

ROUNDS: Final = 4
"""A loop that has not answered for so many is held."""
_ROUND_S: Final = 0.5
_MOST_NAMED: Final = 100
_WAITS: Final = "Write the handler with `def`, so that it runs in a thread, or await calls that wait"
_LOCKS: Final = "It keeps Python's lock, as it would in a thread: call it with less, or in another process"


class HeldLoop:
    """Watches the event loop that runs."""

    def __init__(self, round_s: float = _ROUND_S) -> None:
        self._loop, self._thread_id, self._round_s = asyncio.get_running_loop(), threading.get_ident(), round_s
        self._ended, self._answered = threading.Event(), threading.Event()
        self._answered.set()
        self._vain = 0
        clock_of = getattr(time, "pthread_getcpuclockid", None)  # macOS has none
        self._cpu_clock: int | None = None if clock_of is None else clock_of(self._thread_id)
        self._used_s = self._cpu_s()
        self._named: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Look from a thread of its own, until `end`."""
        threading.Thread(target=self._run, name="held-loop", daemon=True).start()

    def end(self) -> None:
        """Look no longer."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._round_s):
            self.look()

    def look(self) -> None:
        """Log which function of the user's holds the loop, once for each function, after `ROUNDS` without an answer.

        One long call into C may keep Python's lock all the time, and this thread out: then the loop's thread has
        computed for as long since the last look.
        """
        before_s, self._used_s = self._used_s, self._cpu_s()
        if self._used_s - before_s >= ROUNDS * self._round_s:
            self._name(_LOCKS)
        elif self._answered.is_set():
            self._answered.clear()
            self._vain = 0
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # it is closed
                self.end()
        else:
            self._vain += 1
            if self._vain == ROUNDS:
                self._name(_WAITS)

    def _cpu_s(self) -> float:
        """Return the processor time of the loop's thread."""
        if self._cpu_clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._cpu_clock)
        except OSError:  # it has ended
            return 0.0

    def _name(self, remedy: str) -> None:
        frame = running_frame(sys._current_frames().get(self._thread_id))  # noqa: SLF001 - Python's only way
        if frame is None:
            return
        function = frame.f_code.co_filename, frame.f_code.co_qualname
        if function in self._named or len(self._named) == _MOST_NAMED:
            return
        self._named.add(function)
        held = duration_text(round(ROUNDS * self._round_s * 1000))
        text = f"it has held the event loop for {held}: all of this worker waits. {remedy}"
        logger.warning("retryapp.loop_held", extra={"place": place_in(frame, frame.f_lineno), "error_message": text})
