"""What holds the deliveries of one handler and partition back: a rate limit, a circuit, and a pause.

Neither sleeps in a runner. Due rows that may not go yet stay in the table: the scheduler asks how many it may claim.
First deliveries that may not begin are kept here, a few of them: while the circuit is not closed no more are taken in.
While somebody has paused the handler, or forced its circuit open, nothing begins, and nothing is taken in.
A record that may have killed its worker passes: its mark waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from retryapp.core.circuit import Circuit, CircuitState, Transition
from retryapp.core.classify import Failure
from retryapp.core.rates import LeakyBucket, RateLimit
from retryapp.core.record import Record
from retryapp.core.rules import ErrorClass
from retryapp.engine.handler.handler import Handler
from retryapp.ports import Clock, Random

MANY = 1 << 30


class Paced(Protocol):
    """What is asked of a run (`engine.delivery.run`)."""

    @property
    def record(self) -> Record:
        """Its record."""

    @property
    def claim(self) -> object | None:
        """The due row; None for a first delivery."""

    @property
    def on_end(self) -> object | None:
        """Who waits for its end: its mark."""


Submit = Callable[[Any], None]
"""Takes a run."""


class Pace:
    """How fast the records of one partition are delivered; without a rate and a circuit as fast as they come."""

    def __init__(
        self,
        clock: Clock | None = None,
        random: Random | None = None,
        *,
        rate: RateLimit | None = None,
        shares: int = 1,
        circuit: Circuit | None = None,
    ) -> None:
        self._clock = clock
        self._random = random
        self.circuit = circuit
        self.gated = circuit is not None
        """Whether a run may have to wait: `holds` is to be asked."""
        self.paused = False
        self.going = asyncio.Event()
        """Set while it is not paused, nor its circuit forced open."""
        self.going.set()
        self.pauses: Sequence[tuple[int, int]] = ()
        """Begin and end of the last times when somebody had all wait, epoch milliseconds."""
        self._bucket = None if rate is None else LeakyBucket(rate.share_ms(shares), self._now_ms())
        self._change: Transition | None = None
        """Of the circuit, before a session."""
        self._begun = False
        """It has had a session: a lane that opens again goes on with its bucket."""
        self._held: deque[Paced] = deque()
        self._admitted: set[Paced] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._first: Submit | None = None
        """Submits first deliveries; None without a session."""
        self._again: Submit | None = None
        self._freed: Callable[[], None] = lambda: None
        self._tell: Callable[[Transition], None] = lambda _change: None
        self._fail: Callable[[Exception], None] = lambda _fault: None

    @classmethod
    def of(cls, handler: Handler, partition: int, *, clock: Clock, random: Random, shares: int) -> Pace:
        """Make that of a partition, one of so many `shares`. The circuit is the one that it had here before."""
        circuit = handler.circuits.get(partition)
        if circuit is None and handler.circuit is not None:
            circuit = handler.circuits[partition] = Circuit(handler.circuit)
        return cls(clock, random, rate=handler.rate_limit, shares=shares, circuit=circuit)

    def _now_ms(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic_s() * 1_000

    def remember(self, *, paused: bool, forced: str | None, pauses: Sequence[tuple[int, int]]) -> None:
        """Be paused, or not, before a session begins; `forced`: why the circuit is forced open."""
        self.paused, self.pauses = paused, pauses
        self.gated = paused or self.circuit is not None
        if self.circuit is not None and forced is not None:
            self._change = self.circuit.force(self._now_ms(), forced)
        elif self.forced and self.circuit is not None:  # released at another worker
            self._change = self.circuit.release(self._now_ms())
        self._set_going()

    @property
    def forced(self) -> bool:
        """Whether somebody has forced the circuit open."""
        return self.circuit is not None and self.circuit.state is CircuitState.FORCED_OPEN

    def _set_going(self) -> None:
        (self.going.clear if self.paused or self.forced else self.going.set)()

    def pause(self) -> None:
        """Let nothing begin. What runs goes on."""
        self.paused = self.gated = True
        self._set_going()

    def go_on(self) -> None:
        """End a pause."""
        self.paused, self.gated = False, self.circuit is not None
        self._set_going()
        if self.circuit is not None:
            self._look()
        else:
            held, self._held = self._held, deque()
            for run in held:
                self._submit(run)
        self._freed()

    def force(self, cause: str) -> None:
        """Force the circuit open."""
        if self.circuit is not None:
            self._told(self.circuit.force(self._now_ms(), cause))
            self._set_going()

    def release(self) -> None:
        """Have an open circuit probe."""
        if self.circuit is not None:
            self._told(self.circuit.release(self._now_ms()))
            self._set_going()

    # -- session ------------------------------------------------------------------------------------------------

    def begin(
        self,
        first: Submit,
        again: Submit,
        freed: Callable[[], None],
        tell: Callable[[Transition], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Begin a session: `first` and `again` take runs, `freed` hears when more may go, `fail` of our faults."""
        self._first, self._again, self._freed, self._tell, self._fail = first, again, freed, tell, fail
        if self._bucket is not None and not self._begun:
            self._bucket.empty(self._now_ms())
        self._begun = True
        if self.circuit is not None:
            self.circuit.resume(self._now_ms())
        change, self._change = self._change, None
        self._look(change)

    def end(self) -> None:
        """End the session: runs that wait are dropped, those that go on do not count."""
        self._first = self._again = None
        self._held.clear()
        self._admitted.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.circuit is not None:
            self.circuit.pause(self._now_ms())

    # -- what may begin -----------------------------------------------------------------------------------------

    def claims(self, waiting: int, *, due: bool = True) -> int:
        """Return how many rows may be claimed now; `waiting`: claims that no runner has begun yet.

        Due ones keep to the rate, held ones, which were not delivered yet, do not.
        """
        if self.paused:
            return 0
        most = MANY
        if self._bucket is not None and due:
            most = self._bucket.room(self._now_ms())
        if self.circuit is not None and not self.circuit.closed:
            most = min(most, self.circuit.permits(self._now_ms()))
        return most if most == MANY else max(0, most - waiting)

    def claimed(self, count: int) -> None:
        """Note that so many due rows are claimed."""
        if self._bucket is not None:
            self._bucket.take(count, self._now_ms())

    def wait_s(self) -> float:
        """Return after how long the rate lets the next row go; 0: it does already. A circuit wakes by itself."""
        return 0.0 if self._bucket is None else max(0.0, self._bucket.next_ms - self._now_ms()) / 1_000

    def room(self, room: int) -> int:
        """Return how many records of the main topic may come in, of those for which there is room."""
        if self.paused:
            return 0
        if self.circuit is None or self.circuit.closed:
            return room
        return max(0, min(room, self.circuit.ahead(self._now_ms()) - len(self._held)))

    def holds(self, run: Paced) -> bool:
        """Tell whether a run may not begin yet: it is submitted again when it may."""
        circuit = self.circuit
        if run.on_end is not None:
            return False
        if not self.going.is_set():
            self._admitted.discard(run)
            self._held.append(run)
            return True
        if run in self._admitted or circuit is None or (circuit.closed and not self._held):
            return False
        waits = bool(self._held) or not circuit.permits(self._now_ms())
        if waits:
            self._held.append(run)
        else:
            self._admit(circuit, run)
        self._look()  # what it has taken comes back by time alone: none of its runs may end before that
        return waits

    # -- what becomes of it -------------------------------------------------------------------------------------

    def fine(self, run: Paced) -> None:
        """Note that the handler has done its work."""
        if self.circuit is not None:
            self._told(self.circuit.settle(run.record.offset, fine=True, now_ms=self._now_ms()))

    def failed(self, run: Paced, failure: Failure) -> int | None:
        """Take a failure; return the wait in milliseconds if it spends no attempt, else None.

        Only an error that may go away says something about the service; an answer that names a time does not.
        """
        circuit, now_ms = self.circuit, self._now_ms()
        if circuit is None or self._random is None or failure.error_class is not ErrorClass.RETRYABLE:
            return None
        asked_ms = failure.retry_after_ms
        if asked_ms is None:
            settled = circuit.settle(run.record.offset, fine=False, now_ms=now_ms, cause=failure.error_type)
            self._told(settled)
        if not circuit.free(now_ms):
            return None
        wait_ms = max(circuit.again_ms(now_ms) - now_ms, asked_ms or 0)
        return 1 + int(wait_ms + self._random.random() * circuit.breaker.break_for_ms)

    def ended(self, run: Paced) -> None:
        """Note that a run is over, whatever became of it."""
        if self.circuit is not None:
            self._admitted.discard(run)
            if not self.circuit.closed:
                self.circuit.leave(run.record.offset)
                self._look()

    @property
    def holds_due(self) -> str | None:
        """What holds due rows back now: `pause`, `circuit` or `rate`; None: nothing."""
        if self.paused:
            return "pause"
        if self.circuit is not None and not self.circuit.closed:
            return "circuit"
        return "rate" if self.wait_s() else None

    def age_ms(self) -> int:
        """Return for how long the circuit has been in its state."""
        return 0 if self.circuit is None else int(self._now_ms() - self.circuit.since_ms)

    def away_ms(self, since_ms: int, now_ms: int) -> int:
        """Return for how long nothing was to be tried between two wall-clock times, as far as this worker knows.

        That is while the circuit was not closed, or the handler was paused.
        """
        counted_ms = self._now_ms()
        spells = [] if self.circuit is None else self.circuit.spells(counted_ms)
        wall = [(int(now_ms - (counted_ms - begin)), int(now_ms - (counted_ms - end))) for begin, end in spells]
        away_ms, at_ms = 0, since_ms
        for begin_ms, end_ms in sorted([*self.pauses, *wall]):
            away_ms += max(0, min(end_ms, now_ms) - max(begin_ms, at_ms))
            at_ms = max(at_ms, end_ms)
        return away_ms

    # -- the circuit's own time ---------------------------------------------------------------------------------

    def _told(self, change: Transition | None) -> None:
        if change is not None:
            self._look(change)

    def _look(self, change: Transition | None = None) -> None:
        """Let go what may, and look again when time alone changes it; `change`: one that is not told yet."""
        if self.circuit is not None and self._first is not None:
            try:
                self._advance(self.circuit, change)
            except Exception as fault:  # noqa: BLE001 - else what is held would wait for ever, silently
                self._fail(fault)

    def _advance(self, circuit: Circuit, change: Transition | None) -> None:
        now_ms = self._now_ms()
        for each in (change, circuit.tick(now_ms)):
            if each is not None:
                self._tell(each)
        self._release()
        if circuit.permits(now_ms):
            self._freed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = circuit.next_ms(now_ms)
        if next_ms is not None:
            wait_s = max(0.001, (next_ms - now_ms) / 1_000)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _release(self) -> None:
        circuit, now_ms = self.circuit, self._now_ms()
        if circuit is None or self._first is None or self.paused:
            return
        while self._held and circuit.permits(now_ms) > 0:
            run = self._held.popleft()
            self._admit(circuit, run)
            self._submit(run)

    def _submit(self, run: Paced) -> None:
        submit = self._first if run.claim is None else self._again
        if submit is not None:
            submit(run)

    def _admit(self, circuit: Circuit, run: Paced) -> None:
        circuit.begin(run.record.offset, self._now_ms())
        self._admitted.add(run)
