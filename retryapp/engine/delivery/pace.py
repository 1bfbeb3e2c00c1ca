"""What holds the deliveries of one handler and partition back: a rate limit, circuits, and a pause.

Neither sleeps in a runner. Due rows that may not go yet stay in the table, or go back there if they were claimed before
their circuit opened: the scheduler asks how many it may claim.
First deliveries that may not begin are kept here, a few of them: while the circuit is not closed no more are taken in.
While somebody has paused the handler, or forced its circuit open, nothing begins, and nothing is taken in.
Named circuits hold back due rows that have failed because of them, and nothing else. Of these, only so many run at once
(`engine.handler.places`).
A record that may have killed its worker passes: its mark waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retryapp.core.circuit import Circuit, Transition
from retryapp.core.classify import Failure
from retryapp.core.rates import LeakyBucket, RateLimit
from retryapp.core.rules import ErrorClass
from retryapp.engine.delivery.gate import Due, Gate, Paced
from retryapp.engine.handler.handler import Handler
from retryapp.engine.handler.places import Places, Wake
from retryapp.ports import Clock, Random

MANY = 1 << 30


Pauses = Mapping[str, Sequence[tuple[int, int]]]
"""Begin and end, by name of a circuit; of the handler itself and its own circuit under an empty one."""
Submit = Callable[[Any], None]
"""Takes a run."""


class Pace:
    """How fast the records of one partition are delivered; without a rate and circuits as fast as they come."""

    def __init__(
        self,
        clock: Clock | None = None,
        random: Random | None = None,
        *,
        rate: RateLimit | None = None,
        shares: int = 1,
        circuits: Mapping[str, Circuit] = {},
        places: Mapping[str, Places] = {},
        gathers: int = 0,
    ) -> None:
        self._clock = clock
        self._random = random
        now_ms = self._now_ms()
        self.gates = {name: Gate(name, each, shares, now_ms, places.get(name)) for name, each in circuits.items()}
        """By name of the circuit; the handler's own has an empty one."""
        self._own = self.gates.get("")
        self.gated = bool(self.gates)
        """Whether a run may have to wait: `holds` is to be asked."""
        self.paused = False
        self.going = asyncio.Event()
        """Set while it is not paused, nor its circuit forced open."""
        self.going.set()
        self.pauses: Pauses = {}
        """Begin and end of the last times when somebody had all wait, epoch milliseconds; or, by name, a circuit."""
        self._bucket = None if rate is None else LeakyBucket(rate.share_ms(shares), self._now_ms())
        self._gathers = gathers
        """So many claims that have not begun wait for no runner: they gather in a list, or their copies come first."""
        self._begun = False
        """It has had a session: a lane that opens again goes on with its bucket."""
        self._held: deque[Paced] = deque()
        self._first: Submit | None = None
        """Submits first deliveries; None without a session."""
        self._again: Submit | None = None
        self._freed: Callable[[], None] = lambda: None
        self._tell: Callable[[Transition, str], None] = lambda _change, _name: None
        self._fail: Callable[[Exception], None] = lambda _fault: None
        self._waits: Callable[[str, int], bool] = lambda _name, _until_ms: True

    @classmethod
    def of(cls, handler: Handler, partition: int, *, clock: Clock, random: Random, shares: int) -> Pace:
        """Make that of a partition, one of so many `shares`. The circuits are those that it had here before."""
        circuits = handler.known_circuits.setdefault(partition, {})
        for name, breaker in handler.breakers.items():
            circuits.setdefault(name, Circuit(breaker))
        gathers = 0 if handler.batch is None else handler.batch.size
        if handler.through_main:
            gathers = handler.max_in_flight
        return cls(
            clock,
            random,
            rate=handler.rate_limit,
            shares=shares,
            circuits=circuits,
            places=handler.places,
            gathers=gathers,
        )

    @property
    def circuit(self) -> Circuit | None:
        """The handler's own."""
        return None if self._own is None else self._own.circuit

    def _now_ms(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic_s() * 1_000

    def remember(self, *, paused: bool, forced: Mapping[str, str], pauses: Pauses) -> None:
        """Be paused, or not, before a session begins; `forced`: why circuits are forced open, by name."""
        self.paused, self.pauses = paused, pauses
        self.gated = paused or bool(self.gates)
        for name, gate in self.gates.items():
            if name in forced:
                gate.change = gate.circuit.force(self._now_ms(), forced[name])
            elif gate.forced:  # released at another worker
                gate.change = gate.circuit.release(self._now_ms())
        self._set_going()

    @property
    def forced(self) -> bool:
        """Whether somebody has forced the handler's circuit open."""
        return self._own is not None and self._own.forced

    def _set_going(self) -> None:
        (self.going.clear if self.paused or self.forced else self.going.set)()

    def pause(self) -> None:
        """Let nothing begin. What runs goes on."""
        self.paused = self.gated = True
        self._set_going()
        for gate in self.gates.values():
            gate.circuit.pause(self._now_ms())

    def go_on(self) -> None:
        """End a pause."""
        self.paused, self.gated = False, bool(self.gates)
        self._set_going()
        for gate in self.gates.values():
            gate.circuit.resume(self._now_ms())
        if self._own is not None:
            self._look(self._own)
        else:
            held, self._held = self._held, deque()
            for run in held:
                self._submit(run)
        self._freed()

    def force(self, cause: str, name: str = "") -> None:
        """Force a circuit open."""
        if (gate := self.gates.get(name)) is not None:
            self._told(gate, gate.circuit.force(self._now_ms(), cause))
            self._set_going()

    def release(self, name: str = "") -> None:
        """Have an open circuit probe."""
        if (gate := self.gates.get(name)) is not None:
            self._told(gate, gate.circuit.release(self._now_ms()))
            self._set_going()

    # -- session ------------------------------------------------------------------------------------------------

    def begin(
        self,
        first: Submit,
        again: Submit,
        freed: Callable[[], None],
        tell: Callable[[Transition, str], None],
        fail: Callable[[Exception], None],
        waits: Callable[[str, int], bool],
    ) -> None:
        """Begin a session: `first` and `again` take runs, `freed` hears when more may go, `fail` of our faults.

        `waits` tells whether a row is due by a time: of all rows, or of those that wait for a named circuit.
        """
        self._first, self._again, self._freed, self._tell, self._fail = first, again, freed, tell, fail
        self._waits = waits
        for bucket in (self._bucket, *(gate.bucket for gate in self.gates.values())):
            if bucket is not None and not self._begun:
                bucket.empty(self._now_ms())
        self._begun = True
        for gate in self.gates.values():
            gate.circuit.resume(self._now_ms())
            if self.paused:
                gate.circuit.pause(self._now_ms())
            change, gate.change = gate.change, None
            self._look(gate, change)

    def end(self) -> None:
        """End the session: runs that wait are dropped, those that go on do not count."""
        self._first = self._again = None
        self._held.clear()
        for gate in self.gates.values():
            gate.admitted.clear()
            gate.stop()
            gate.circuit.pause(self._now_ms())
            gate.circuit.forget()

    # -- what may begin -----------------------------------------------------------------------------------------

    def claims(self, waiting: int, *, due: bool = True) -> int:
        """Return how many rows may be claimed now; `waiting`: claims that no runner has begun yet.

        Due ones keep to the rate, held ones, which were not delivered yet, do not.
        """
        if self.paused:
            return 0
        most = self._rate_room(self._bucket, waiting) if due else MANY
        if self.circuit is not None and not self.circuit.closed:
            most = min(most, self.circuit.permits(self._now_ms()) - waiting)
        return max(0, most)

    def _rate_room(self, bucket: LeakyBucket | None, waiting: int) -> int:
        """Return how many a rate lets go: what waits for a runner is no store for a burst."""
        return MANY if bucket is None else bucket.room(self._now_ms()) - max(0, waiting - self._gathers)

    def limits(self, waiting: Mapping[str, int], wake: Wake) -> dict[str, int]:
        """Return how many rows may be claimed of circuits with a limit now; `claimed` follows.

        `waiting`: claims that no runner has begun, by name; `wake` is called when there is a place for another row.
        """
        limits, now_ms = dict[str, int](), self._now_ms()
        for name, gate in self.gates.items():
            most = MANY if gate.circuit.closed else gate.circuit.permits(now_ms) - waiting.get(name, 0)
            most = min(most, self._rate_room(gate.bucket, waiting.get(name, 0)))
            if gate.places is not None:
                gate.offered = gate.places.room(wake)
                most = min(most, gate.offered)
            if name and most < MANY:
                limits[name] = max(0, most)
        return limits

    def claimed(self, rows: Sequence[Due], limits: Mapping[str, int], wake: Wake) -> None:
        """Note that rows are claimed: held ones first, then those for which there were these `limits`."""
        circuits = [row.circuit for row in rows if row.due_at_ms > 0]
        if self._bucket is not None:
            self._bucket.take(len(circuits), self._now_ms())
        for name, gate in self.gates.items():
            if gate.bucket is not None and (count := circuits.count(name)):
                gate.bucket.take(count, self._now_ms())
            if gate.places is not None:
                taken = sum(gate.places.take(row) for row in reversed(rows) if row.circuit == name)
                if gate.offered:
                    gate.offered = 0
                    gate.places.looked(wake, more=0 < limits[name] <= taken)

    def free(self, row: Due) -> None:
        """Note that the run of a claimed row is over, or does not begin now."""
        if (places := self._places_of(row)) is not None:
            places.free(row)

    def leave(self, wake: Wake) -> None:
        """Note that no more rows are looked for."""
        for gate in self.gates.values():
            gate.offered = 0
            if gate.places is not None:
                gate.places.leave(wake)

    def _places_of(self, row: Due) -> Places | None:
        gate = self.gates.get(row.circuit)
        return None if gate is None else gate.places

    def limit_s(self) -> float:
        """Return after how long the rate of a circuit lets more go that does not now."""
        now_ms = self._now_ms()
        buckets = (gate.bucket for gate in self.gates.values() if gate.bucket is not None)
        waits = (bucket.next_ms - now_ms for bucket in buckets if not bucket.room(now_ms))
        return min(waits, default=math.inf) / 1_000

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
        if run.on_end is not None:
            return False
        own, named = self._own, self.gates.get(run.circuit)
        if not self.going.is_set():
            for gate in self._gates_of(run):
                gate.admitted.discard(run)
            self._held.append(run)
            return True
        if own is not None and run not in own.admitted and (self._held or not own.circuit.closed):
            waits = bool(self._held) or not own.circuit.permits(self._now_ms())
            if waits:
                self._held.append(run)
            else:
                own.admit(run, self._now_ms())
            self._look(own)  # what it has taken comes back by time alone: none of its runs may end before that
            if waits:
                return True
        if named is not None and named is not own and not named.circuit.closed and run not in named.admitted:
            named.admit(run, self._now_ms())
            self._look(named)
        return False

    def sends_back(self, run: Paced) -> bool:
        """Tell whether a due row waits on in the table, where commands about it do not wait for its run.

        Nothing may begin; or a circuit that it has to pass has opened since it was claimed; or it has no place: it was
        held, or is the head of a sequence now.
        """
        if run.claim is None:
            return False
        shut = not self.going.is_set() or any(self._shuts(gate, run) for gate in self._gates_of(run))
        if shut and run.on_end is None:
            return True
        places = self._places_of(run.claim)
        return places is not None and not places.take(run.claim)

    def _shuts(self, gate: Gate, run: Paced) -> bool:
        """Tell whether a circuit keeps a run from beginning now."""
        return run not in gate.admitted and not gate.circuit.permits(self._now_ms())

    def _gates_of(self, run: Paced) -> list[Gate]:
        """Return those that a run has to pass: the handler's own, and that of its row."""
        return [self.gates[name] for name in dict.fromkeys(("", run.circuit)) if name in self.gates]

    # -- what becomes of it -------------------------------------------------------------------------------------

    def fine(self, run: Paced) -> None:
        """Note that the handler has done its work."""
        for gate in self._gates_of(run):
            self._told(gate, gate.circuit.settle(run.record.offset, fine=True, now_ms=self._now_ms()))

    def failed(self, run: Paced, failure: Failure) -> int | None:
        """Take a failure; return the wait in milliseconds if it spends no attempt, else None.

        Only an error that may go away says something about the service; a time that the handler names does not.
        """
        now_ms, asked_ms = self._now_ms(), failure.retry_after_ms
        if not self.gates or self._random is None or failure.error_class is not ErrorClass.RETRYABLE:
            return None
        if (counts := self.gates.get(failure.circuit)) is not None and not failure.asked_by_handler:
            place = run.record.offset
            self._told(counts, counts.circuit.settle(place, fine=False, now_ms=now_ms, cause=failure.error_type))
        free = [gate.circuit for gate in (counts, self._own) if gate is not None and gate.circuit.free(now_ms)]
        if not free:
            return None
        wait_ms = max(max(circuit.again_ms(now_ms) for circuit in free) - now_ms, asked_ms or 0)
        return 1 + int(wait_ms + self._random.random() * free[0].breaker.break_for_ms)

    def ended(self, run: Paced) -> None:
        """Note that a run is over, whatever became of it."""
        for gate in self._gates_of(run):
            gate.admitted.discard(run)
            if not gate.circuit.closed:
                gate.circuit.leave(run.record.offset, called=run.begun)
                self._look(gate)

    @property
    def holds_due(self) -> str | None:
        """What holds due rows back now: `pause`, `circuit` or `rate`; None: nothing."""
        if self.paused:
            return "pause"
        if self.circuit is not None and not self.circuit.closed:
            return "circuit"
        return "rate" if self.wait_s() else None

    def gates_of(self, circuit: str, *, first: bool = False) -> list[str]:
        """Return what holds a due row back now that waits for this circuit, for people; `first`: it has not run yet."""
        now_ms, named = self._now_ms(), self.gates.get(circuit)
        buckets = self._bucket, None if named is None else named.bucket
        shut = {
            "deliveries are paused": self.paused,
            "an outage is on, which holds it back": self.is_out(circuit),
            "a rate limit holds it back": not first
            and any(each is not None and not each.room(now_ms) for each in buckets),
            "as many of its circuit run as may at once": named is not None
            and named.places is not None
            and named.places.full,
        }
        return [text for text, holds in shut.items() if holds]

    def age_ms(self, circuit: Circuit) -> int:
        """Return for how long a circuit has been in its state."""
        return int(self._now_ms() - circuit.since_ms)

    def is_out(self, name: str) -> bool:
        """Tell whether the handler's circuit, or that of this name, is not closed."""
        return any(name in self.gates and not self.gates[name].circuit.closed for name in ("", name))

    def away_ms(self, since_ms: int, now_ms: int, *circuits: str) -> int:
        """Return for how long nothing was to be tried between two wall-clock times, as far as this worker knows.

        That is while the handler's own circuit, or one of these names, was not closed, or the handler was paused.
        """
        if not (self.gates or self.pauses):
            return 0
        counted_ms, names = self._now_ms(), dict.fromkeys(("", *circuits))
        spells = [
            spell for name in names if name in self.gates for spell in self.gates[name].circuit.spells(counted_ms)
        ]
        pauses = [pause for name in names for pause in self.pauses.get(name, ())]
        if not (spells or pauses):
            return 0
        wall = [(int(now_ms - (counted_ms - begin)), int(now_ms - (counted_ms - end))) for begin, end in spells]
        away_ms, at_ms = 0, since_ms
        for begin_ms, end_ms in sorted([*pauses, *wall]):
            away_ms += max(0, min(end_ms, now_ms) - max(begin_ms, at_ms))
            at_ms = max(at_ms, end_ms)
        return away_ms

    def later_ms(self, counted_ms: int, since_ms: int, until_ms: int, now_ms: int, circuit: str) -> int:
        """Return from when a deadline counts that counted from `counted_ms`, after a hold between two times.

        What nothing was to be tried in is left out once (`away_ms` from then on), also before and in the hold.
        """
        away_ms, from_hold_ms, after_ms = (self.away_ms(at, now_ms, circuit) for at in (counted_ms, since_ms, until_ms))
        before_counts_ms = max(0, since_ms - counted_ms - (away_ms - from_hold_ms))
        counts_ms = before_counts_ms + max(0, now_ms - until_ms - after_ms)
        later_ms = now_ms - counts_ms
        while (earlier_ms := now_ms - counts_ms - self.away_ms(later_ms, now_ms, circuit)) < later_ms:
            later_ms = earlier_ms
        return max(counted_ms, later_ms)

    # -- the circuits' own time ---------------------------------------------------------------------------------

    def _told(self, gate: Gate, change: Transition | None) -> None:
        if change is not None:
            self._look(gate, change)

    def _look(self, gate: Gate, change: Transition | None = None) -> None:
        """Let go what may, and look again when time alone changes it; `change`: one that is not told yet."""
        if self._first is not None:
            try:
                self._advance(gate, change)
            except Exception as fault:  # noqa: BLE001 - else what is held would wait for ever, silently
                self._fail(fault)

    def _advance(self, gate: Gate, change: Transition | None) -> None:
        circuit, now_ms = gate.circuit, self._now_ms()
        ended = circuit.end_idle(now_ms) if self._is_idle(gate, now_ms) else None
        for each in (change, ended or circuit.tick(now_ms)):
            if each is not None:
                self._tell(each, gate.name)
        if gate is self._own:
            self._release()
        if circuit.permits(now_ms):
            self._freed()
        gate.stop()
        next_ms = circuit.next_ms(now_ms)
        if next_ms is not None:
            wait_s = max(0.001, (next_ms - now_ms) / 1_000)
            gate.timer = asyncio.get_running_loop().call_later(wait_s, self._look, gate)

    def _is_idle(self, gate: Gate, now_ms: float) -> bool:
        """Tell whether a circuit waits for probes, and nothing waits for it."""
        waits = self.paused or (gate is self._own and self._held)  # in a pause the main topic may have some
        if self._clock is None or waits or not gate.circuit.is_idle(now_ms):
            return False
        return not self._waits(gate.name, self._clock.wall_ms() + gate.circuit.breaker.longest_break_ms)

    def _release(self) -> None:
        own, now_ms = self._own, self._now_ms()
        if own is None or self._first is None or self.paused:
            return
        while self._held and own.circuit.permits(now_ms) > 0:
            run = self._held.popleft()
            own.admit(run, now_ms)
            self._submit(run)

    def _submit(self, run: Paced) -> None:
        submit = self._first if run.claim is None else self._again
        if submit is not None:
            submit(run)
