"""A circuit breaker: tells an outage from a poison record, and lets a service come back.

A handler may have one for all that it does, and one for each service that it names. A named one counts failures that
name it, and calls of records that have failed so before; only these wait for it.

The words are Polly's:

1. ``closed``: everything runs. The circuit opens once, of at least ``minimum_calls`` different records in ``sampling``,
   the share that failed reaches ``failure_ratio``. A record that fails again and again counts once.
2. ``open``: nothing begins for ``break_for``; twice as long each time that it opens again, up to ``MAX_DOUBLINGS``.
3. ``half-open``: up to ``probes`` records run. One that has no outcome after ``break_for`` is not waited for: another
   takes its place. Most of them decide: open again, or on. If no probe has run for the longest break, and nothing that
   waits is due within another one, it closes. Else its idle time would count towards ``max_open`` of the next outage.
4. ``recovering``: runs begin at a limited rate, from ``probes`` a second, which doubles ten times in ``ramp``. What
   fails is counted as when closed. After ``ramp`` it is closed.

Failures are free while it is not closed, for ``max_open`` at most: a deploy that is bad for good is no outage. When
probes still fail then, it closes, and does not open again before calls have gone well.

Somebody may know better: ``forced-open`` it stays open, and failures are free, until it is released: half-open.

All times are monotonic milliseconds that the caller passes in. A place is what tells a record from others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from retryapp.core.calls import Calls
from retryapp.core.checks import check_count
from retryapp.core.durations import Duration, format_duration_ms, named_duration_ms
from retryapp.core.errors import InvalidSettingError
from retryapp.core.rates import RateLimit, parse_rate
from retryapp.core.row_keys import queue_of
from retryapp.core.text import counted

MAX_CIRCUITS: Final = 16
"""Of one handler, with names: each is a metric's label, and what is forced open is written with every transaction."""
MAX_DOUBLINGS: Final = 3
"""The longest break is eight times the first."""
MOST_SPELLS: Final = 10
"""Outages that are written down after their end, for each circuit, and pauses: deadlines do not count them."""

_LEAST_FAILED: Final = 2
_RAMP_DOUBLINGS: Final = 10
_TOKENS_MS: Final = 100.0
"""Time for which a recovering circuit saves up what may begin."""
_MAX_SPELLS: Final = 100


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


def check_names(names: Collection[str]) -> None:
    """Raise `InvalidSettingError` unless circuits may have these names."""
    for name in names:
        if not _NAME.fullmatch(str(name)):
            raise InvalidSettingError("circuits", name, "expected names of up to 32 letters, digits, '-' and '_'")
    if len(names) > MAX_CIRCUITS:
        raise InvalidSettingError("circuits", len(names), f"expected at most {MAX_CIRCUITS} circuits")
    queues: dict[int, str] = {}
    for name in names:
        if (other := queues.setdefault(queue_of(name), name)) != name:
            raise InvalidSettingError(
                "circuits", name, f"expected another name: it would share its queue with {other!r}"
            )


class CircuitState(StrEnum):
    """States of a circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    RECOVERING = "recovering"
    FORCED_OPEN = "forced-open"


class Transition(NamedTuple):
    """A change of state."""

    before: CircuitState
    after: CircuitState
    cause: str
    """Why it opened, or closed although probes fail; else empty."""
    spell: tuple[float, float] | None = None
    """When it was not closed, if that has ended."""


class KeptCircuit(BaseModel):
    """What its owner has written down of a circuit, at its last change of state."""

    model_config = ConfigDict(frozen=True)
    state: CircuitState
    by: str
    """The life of that owner."""
    cause: str = ""
    """Why it opened last."""
    since_ms: int = 0
    """When it was closed last, epoch milliseconds; 0 where it is closed."""
    used_ms: Annotated[int, Field(ge=0)] = 0
    """How much of `max_open` had passed."""
    opened: Annotated[int, Field(ge=0)] = 0
    """How often it has opened since."""
    spells: tuple[tuple[int, int], ...] = ()
    """Begin and end of the last outages, epoch milliseconds."""

    @property
    def closed(self) -> bool:
        return self.state is CircuitState.CLOSED


@dataclass(frozen=True, slots=True, init=False)
class CircuitBreaker:
    """When a handler's circuit opens, and how it closes again.

    Raises:
        InvalidSettingError: a field is out of range.
        InvalidDurationError: a text is no duration.
    """

    failure_ratio: float
    """Share of different records that must fail: over 0, up to 1."""
    sampling_ms: int
    """How far back is counted."""
    minimum_calls: int
    """Different records in `sampling`, for each partition, before anything is judged."""
    break_for_ms: int
    """The first break; twice, four and eight times as long when it opens again and again."""
    max_open_ms: int
    """How long failures spend no attempt."""
    probes: int
    """Records that try at a time."""
    ramp_ms: int
    """How long it takes to be back to full speed."""
    rate_limit: RateLimit | None
    """Of what comes back, for the whole group, also while it is closed; None: no limit."""
    max_concurrent: int | None
    """Runs at once of what comes back, per worker, also while it is closed; None: no limit of its own."""

    def __init__(
        self,
        *,
        failure_ratio: float = 0.5,
        sampling: Duration = "10s",
        minimum_calls: int = 20,
        break_for: Duration = "5s",
        max_open: Duration = "1h",
        probes: int = 3,
        ramp: Duration = "30s",
        rate_limit: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        """Validate the fields; all but the last two are for each partition."""
        if type(failure_ratio) not in (int, float) or not 0 < failure_ratio <= 1:
            raise InvalidSettingError("failure_ratio", failure_ratio, "expected a number above 0, and at most 1")
        if type(minimum_calls) is not int or minimum_calls < _LEAST_FAILED:
            raise InvalidSettingError(
                "minimum_calls", minimum_calls, "expected a whole number, at least 2: one record is no outage"
            )
        check_count("probes", probes)
        if max_concurrent is not None:
            check_count("max_concurrent", max_concurrent)
        object.__setattr__(self, "failure_ratio", failure_ratio)
        object.__setattr__(self, "sampling_ms", named_duration_ms("sampling", sampling))
        object.__setattr__(self, "minimum_calls", minimum_calls)
        object.__setattr__(self, "break_for_ms", named_duration_ms("break_for", break_for))
        object.__setattr__(self, "max_open_ms", named_duration_ms("max_open", max_open))
        if self.max_open_ms < self.break_for_ms:
            least = format_duration_ms(self.break_for_ms)
            problem = f"expected at least break_for={least}: nothing is tried until that is over, so no probe is free"
            raise InvalidSettingError("max_open", max_open, problem)
        object.__setattr__(self, "probes", probes)
        object.__setattr__(self, "ramp_ms", named_duration_ms("ramp", ramp))
        object.__setattr__(self, "rate_limit", None if rate_limit is None else parse_rate(rate_limit))
        object.__setattr__(self, "max_concurrent", max_concurrent)

    @property
    def longest_break_ms(self) -> int:
        """Return the longest break of one that opens again and again."""
        return self.break_for_ms * 2**MAX_DOUBLINGS

    @property
    def text(self) -> str:
        """All fields, for people."""
        times = {
            name: format_duration_ms(getattr(self, f"{name}_ms"))
            for name in ("sampling", "break_for", "max_open", "ramp")
        }
        return (
            f"opens for {times['break_for']} when {self.failure_ratio:g} of {self.minimum_calls} or more records "
            f"fail in {times['sampling']}; {counted(self.probes, 'probe')}; ramp {times['ramp']}; "
            f"attempts free for {times['max_open']}"
            + ("" if self.rate_limit is None else f"; retries {self.rate_limit.text}")
            + (
                ""
                if self.max_concurrent is None
                else f"; {counted(self.max_concurrent, 'retry', 'retries')} at once per worker"
            )
        )


class Circuit:
    """The state of one handler and partition."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.state = CircuitState.CLOSED
        self.since_ms = 0.0
        """When it came to its state."""
        self.cause = ""
        """Why it opened last."""
        self._calls = Calls(breaker.sampling_ms)
        self._left_ms = 0.0
        """When it was closed last."""
        self._absent_ms = 0.0
        """For how long since then its partition was elsewhere, or paused."""
        self._ended_ms: float | None = None
        """When its partition went, or was paused, while it is."""
        self._opened = 0
        """How often since."""
        self._until_ms = 0.0
        """End of the break."""
        self._quiet_ms = 0.0
        """Since when no probe has begun or ended, while half-open."""
        self._exempt = False
        """It has been open for too long: it does not open before calls have gone well."""
        self._slots: dict[Hashable, float] = {}
        """Probes, and when another may take their place."""
        self._asked: set[Hashable] = set()
        """Probes whose outcome counts."""
        self._fine: set[Hashable] = set()
        self._failed: set[Hashable] = set()
        self._tokens = self._filled_ms = 0.0
        self._spells: deque[tuple[float, float]] = deque(maxlen=_MAX_SPELLS)
        """When it was not closed."""
        self.kept: KeptCircuit | None = None
        """What is written down of it, as far as this process has asked for."""
        self.read: KeptCircuit | None = None
        """What another owner had written down when this one went on with it."""

    @property
    def closed(self) -> bool:
        return self.state is CircuitState.CLOSED

    @property
    def opened(self) -> int:
        """How often it has opened since it was closed last."""
        return 0 if self.closed else self._opened

    # -- what may begin -----------------------------------------------------------------------------------------

    def permits(self, now_ms: float) -> int:
        """Return how many runs may begin now; call `tick` before. Without a bound when closed."""
        match self.state:
            case CircuitState.CLOSED:
                return 1 << 30
            case CircuitState.OPEN | CircuitState.FORCED_OPEN:
                return 0
            case CircuitState.HALF_OPEN:
                taken = len(self._fine) + len(self._failed) + sum(1 for end in self._slots.values() if end > now_ms)
                return max(0, self.breaker.probes - taken)
            case CircuitState.RECOVERING:
                self._fill(now_ms)
                return int(self._tokens)

    def ahead(self, now_ms: float) -> int:
        """Return how many records are worth having at hand."""
        match self.state:
            case CircuitState.CLOSED:
                return 1 << 30
            case CircuitState.OPEN | CircuitState.FORCED_OPEN:
                return 0
            case CircuitState.HALF_OPEN:
                return self.breaker.probes
            case CircuitState.RECOVERING:
                return max(self.breaker.probes, int(self._rate(now_ms) * _TOKENS_MS))

    def begin(self, place: Hashable, now_ms: float) -> None:
        if self.state is CircuitState.HALF_OPEN:
            self._quiet_ms = now_ms
            self._slots = {each: end for each, end in self._slots.items() if end > now_ms}
            self._slots[place] = now_ms + self.breaker.break_for_ms
            self._asked.add(place)
        elif self.state is CircuitState.RECOVERING:
            self._tokens -= 1

    def next_ms(self, now_ms: float) -> float | None:
        """Return when `tick` or `permits` may say something else by time alone, or None."""
        match self.state:
            case CircuitState.CLOSED | CircuitState.FORCED_OPEN:
                return None
            case CircuitState.OPEN:
                return self._until_ms
            case CircuitState.HALF_OPEN:
                longest_ms = self.breaker.longest_break_ms
                ends = (end for end in (*self._slots.values(), self._quiet_ms + longest_ms) if end > now_ms)
                return min(ends, default=now_ms + longest_ms)
            case CircuitState.RECOVERING:
                self._fill(now_ms)
                end_ms = self.since_ms + self.breaker.ramp_ms
                lacking = 1 - self._tokens
                return end_ms if lacking <= 0 else min(end_ms, now_ms + max(1.0, lacking / self._rate(now_ms)))

    # -- what becomes of it -------------------------------------------------------------------------------------

    def settle(self, place: Hashable, *, fine: bool, now_ms: float, cause: str = "") -> Transition | None:
        """Take the outcome of a call; `cause`: its error."""
        if self.state in {CircuitState.CLOSED, CircuitState.RECOVERING}:
            self._calls.add(place, fine=fine, now_ms=now_ms)
            return self._judge_calls(now_ms, cause) if not fine or self._exempt else None
        if place not in self._asked or self.state is not CircuitState.HALF_OPEN:
            return None  # it began before the break
        self._asked.discard(place)
        self._slots.pop(place, None)
        self._quiet_ms = now_ms
        (self._failed if fine else self._fine).discard(place)
        (self._fine if fine else self._failed).add(place)
        return self._judge_probes(now_ms, cause)

    def leave(self, place: Hashable, *, called: bool) -> None:
        """Note that a run ended without telling anything of the service; one that has `called` keeps its slot."""
        self._asked.discard(place)
        if not called:
            self._slots.pop(place, None)

    def pause(self, now_ms: float) -> None:
        """Note that its partition leaves or is paused: until `resume` nothing probes, and `max_open` stands still."""
        if self._ended_ms is None:
            self._ended_ms = now_ms

    def resume(self, now_ms: float) -> None:
        """Note that its partition is here, again or for the first time, or that a pause of it has ended."""
        self._quiet_ms = now_ms
        if self._ended_ms is not None:
            self._absent_ms += now_ms - max(self._ended_ms, self._left_ms)
            self._ended_ms = None

    def take_up(self, kept: KeptCircuit, now_ms: float, away_ms: float) -> Transition | None:
        """Go on with what another owner has written down: closed if it was, else half-open.

        Args:
            kept: what that is.
            now_ms: now.
            away_ms: how long ago it was closed last. What exceeds `kept.used_ms` does not count towards `max_open`.

        Returns:
            The change of state; None: it is closed.
        """
        self._calls.clear()
        self._exempt, self._ended_ms = False, None
        if kept.closed:
            self.forget()
            if not self.closed:
                self._go(CircuitState.CLOSED, now_ms)
            return None
        away_ms = max(away_ms, kept.used_ms)
        self._left_ms, self._absent_ms, self._opened = now_ms - away_ms, away_ms - kept.used_ms, kept.opened
        self.cause = kept.cause
        self._probe(now_ms)
        return Transition(kept.state, self.state, kept.cause)

    def forget(self) -> None:
        """Note that no run goes on whose outcome will come."""
        self._slots.clear()
        self._asked.clear()

    def tick(self, now_ms: float) -> Transition | None:
        if self.state is CircuitState.OPEN and now_ms >= self._until_ms:
            return self._probe(now_ms)
        if self.state is CircuitState.RECOVERING and now_ms >= self.since_ms + self.breaker.ramp_ms:
            return self._close(now_ms)
        return None

    def is_idle(self, now_ms: float) -> bool:
        """Tell whether it waits for probes and none has run for the longest break."""
        quiet = not self._asked and now_ms >= self._quiet_ms + self.breaker.longest_break_ms
        return self.state is CircuitState.HALF_OPEN and quiet

    def end_idle(self, now_ms: float) -> Transition:
        """Close it: it is idle, and nothing waits for it."""
        return self._close(now_ms, "nothing waits for it")

    def force(self, now_ms: float, cause: str) -> Transition | None:
        """Open it until `release`; None: it is forced open already."""
        if self.state is CircuitState.FORCED_OPEN:
            return None
        if self.closed:
            self._left_ms, self._absent_ms, self._opened = now_ms, 0.0, 0
        self.cause, self._exempt = cause, False
        return self._go(CircuitState.FORCED_OPEN, now_ms, cause)

    def release(self, now_ms: float) -> Transition | None:
        """Let an open one probe now. One that was forced open has all of `max_open` for that; None: it is not open."""
        if self.state is CircuitState.FORCED_OPEN:
            spell = self._end_spell(now_ms)
            self._left_ms, self._absent_ms, self._opened = now_ms, 0.0, 0
            self.cause = f"was {self.cause}"
            return self._probe(now_ms)._replace(spell=spell)
        return self._probe(now_ms) if self.state is CircuitState.OPEN else None

    def _end_spell(self, now_ms: float) -> tuple[float, float]:
        self._spells.append((self._left_ms, now_ms))
        return self._spells[-1]

    def _probe(self, now_ms: float) -> Transition:
        self.forget()
        self._fine.clear()
        self._failed.clear()
        self._quiet_ms = now_ms
        return self._go(CircuitState.HALF_OPEN, now_ms)

    def _judge_calls(self, now_ms: float, cause: str) -> Transition | None:
        failed, calls = self._calls.failed, self._calls.all
        if calls < self.breaker.minimum_calls:
            return None
        if failed < max(_LEAST_FAILED, self.breaker.failure_ratio * calls):
            self._exempt = False
            return None
        return None if self._exempt else self._open(now_ms, f"{failed} of {calls} records failed: {cause}")

    def _judge_probes(self, now_ms: float, cause: str) -> Transition | None:
        fatal = self.breaker.failure_ratio * self.breaker.probes
        if len(self._failed) >= fatal:
            return self._open(now_ms, f"{len(self._failed)} of {counted(self.breaker.probes, 'probe')} failed: {cause}")
        if len(self._fine) > self.breaker.probes - fatal:
            self._calls.clear()
            self._tokens, self._filled_ms = 1.0, now_ms
            return self._go(CircuitState.RECOVERING, now_ms)
        return None

    def _open(self, now_ms: float, cause: str) -> Transition:
        self.cause = cause
        if self.closed:
            self._left_ms, self._absent_ms, self._opened = now_ms, 0.0, 0
        elif not self.free(now_ms):
            self._exempt = True
            return self._close(now_ms, f"not closed for max_open, and {cause}")
        self._until_ms = now_ms + self.breaker.break_for_ms * 2 ** min(self._opened, MAX_DOUBLINGS)
        self._opened += 1
        return self._go(CircuitState.OPEN, now_ms, cause)

    def _close(self, now_ms: float, cause: str = "") -> Transition:
        spell = self._end_spell(now_ms)
        self._calls.clear()
        return self._go(CircuitState.CLOSED, now_ms, cause)._replace(spell=spell)

    def _go(self, state: CircuitState, now_ms: float, cause: str = "") -> Transition:
        change = Transition(self.state, state, cause)
        self.state, self.since_ms = state, now_ms
        return change

    def _rate(self, now_ms: float) -> float:
        """Return how many may begin in a millisecond of a recovery."""
        share = min(1.0, max(0.0, (now_ms - self.since_ms) / self.breaker.ramp_ms))
        return float(self.breaker.probes * 2 ** (_RAMP_DOUBLINGS * share) / 1_000)

    def _fill(self, now_ms: float) -> None:
        rate = self._rate(now_ms)
        most = max(1.0, rate * _TOKENS_MS)
        self._tokens = min(most, self._tokens + (now_ms - self._filled_ms) * rate)
        self._filled_ms = now_ms

    # -- what it costs records ----------------------------------------------------------------------------------

    def free(self, now_ms: float) -> bool:
        if self.state is CircuitState.FORCED_OPEN:
            return True
        return not self.closed and self.used_ms(now_ms) < self.breaker.max_open_ms

    def used_ms(self, now_ms: float) -> float:
        """Return how much of `max_open` has passed; 0 while it is closed."""
        until_ms = now_ms if self._ended_ms is None else self._ended_ms
        return 0.0 if self.closed else max(0.0, until_ms - self._left_ms - self._absent_ms)

    def again_ms(self, now_ms: float) -> float:
        """Return when a record that failed for free may probe again."""
        return self._until_ms if self.state is CircuitState.OPEN else now_ms + self.breaker.break_for_ms

    def spells(self, now_ms: float) -> list[tuple[float, float]]:
        """Return when it was not closed: begin and end. The last one lasts until now where it is not closed."""
        return [*self._spells] if self.closed else [*self._spells, (self._left_ms, now_ms)]
