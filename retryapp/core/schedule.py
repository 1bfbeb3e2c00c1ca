"""Schedules: how long to wait after each failed attempt.

A schedule of n delays means n + 1 attempts. Three ways to write one, each with a constructor and a text:

* explicit sequence: ``sequence("5m", "5m", "1h")`` is ``5m*2 1h``
* exponential: ``exp("1s", cap="10m", jitter=0.2, retries=8)`` is ``exp(1s, x2, cap=10m, jitter=0.2, 8)``
* one delay, without end: ``forever("10s")`` is ``forever(10s)``

Invariants: every delay is from 1 ms to ten years; jitter only shortens, so a cap is never exceeded. Constructors raise
`InvalidPolicyError` (`InvalidDurationError` for a text that is no duration), which names the wrong field.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from typing import ClassVar, Final

from retryapp.core.durations import MAX_DURATION_MS, Duration, format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError, InvalidPolicyError, shown

MAX_RETRIES: Final = 1_000
MAX_MULTIPLIER: Final = 1_000.0
_DECIMALS: Final = 6
"""Decimals kept of a factor or a share: text and constructor then agree."""
_FORMS: Final = "write '5m*2 30m*3 1h', 'exp(1s, x2, cap=10m, jitter=0.2, 8)' or 'forever(10s)'"
_CALL: Final = re.compile(r"(exp|forever)\s*\((.*)\)", re.DOTALL)
_STEP: Final = re.compile(r"([^*]+)(?:\*([0-9]{1,6}))?")
_COUNT: Final = re.compile(r"[0-9]{1,6}")
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,30})?")


class Schedule(ABC):
    """The waits between the attempts at one record, before and after jitter."""

    __slots__ = ()
    endless: ClassVar[bool] = False
    """Whether the last delay goes on without end."""

    @property
    @abstractmethod
    def text(self) -> str:
        """Canonical text; ``parse_schedule`` reads it back to an equal schedule."""

    @property
    @abstractmethod
    def all_nominal_ms(self) -> tuple[int, ...]:
        """Every delay in milliseconds before jitter, one for each retry, in order."""

    @property
    def retries(self) -> int:
        """Number of delays: attempts after the first, unless it is endless."""
        return len(self.all_nominal_ms)

    @property
    def nominal_delays_ms(self) -> tuple[int, ...]:
        """Distinct delays before jitter, in milliseconds, rising: what names the tiers."""
        return tuple(sorted(set(self.all_nominal_ms)))

    def nominal_ms(self, attempt: int) -> int:
        """Return the delay after a failed attempt, before jitter; raise `ValueError` if none follows that attempt."""
        if not self.follows(attempt):
            raise ValueError(f"attempt={attempt}: delays follow attempts 1 to {self.retries}")
        return self.all_nominal_ms[min(attempt, self.retries) - 1]

    def follows(self, attempt: int) -> bool:
        return attempt >= 1 and (self.endless or attempt <= self.retries)

    def delay_ms(self, attempt: int, rng: float) -> int:
        """Return the delay after a failed attempt, from 1 to ``nominal_ms(attempt)``; `rng` is from [0, 1)."""
        if not 0 <= rng < 1:
            raise ValueError(f"rng={rng}: expected a number from 0 up to but without 1")
        nominal_ms = self.nominal_ms(attempt)
        return max(1, nominal_ms - int(nominal_ms * self._jitter() * rng))

    def _jitter(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Sequence(Schedule):
    """An explicit list of delays."""

    delays_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_retries(len(self.delays_ms))
        for delay_ms in self.delays_ms:
            _check_delay("delay", delay_ms)

    @property
    def text(self) -> str:
        """Equal delays in a row are folded: ``5m*2 30m*3 1h``."""
        runs = ((format_duration_ms(delay_ms), len(tuple(run))) for delay_ms, run in groupby(self.delays_ms))
        return " ".join(text if count == 1 else f"{text}*{count}" for text, count in runs)

    @property
    def all_nominal_ms(self) -> tuple[int, ...]:
        return self.delays_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Schedule):
    """Delays that grow by a factor.

    After failed attempt ``n`` (1 is the first delivery) the wait is::

        min(max_delay_ms, initial_delay_ms * multiplier ** (n - 1)) * (1 - jitter * random)

    Jitter only shortens, so ``max_delay_ms`` is never exceeded.
    Source: AWS Architecture Blog, "Exponential Backoff And Jitter". Without a cap no delay may exceed ten years.
    """

    initial_delay_ms: int
    """Wait after the first failure, in milliseconds."""
    multiplier: float = 2.0
    """Factor from one wait to the next, from 1 to ``MAX_MULTIPLIER``, rounded to six decimals."""
    max_delay_ms: int | None = None
    """Longest wait, in milliseconds, not below the first; None: no cap."""
    jitter: float = 0.0
    """Largest share by which a wait is shortened at random, from 0 (never) to 1, rounded to six decimals."""
    count: int

    def __post_init__(self) -> None:
        _check_delay("initial", self.initial_delay_ms)
        _check_retries(self.count)
        object.__setattr__(self, "multiplier", _real("multiplier", self.multiplier, 1.0, MAX_MULTIPLIER))
        object.__setattr__(self, "jitter", _real("jitter", self.jitter, 0.0, 1.0))
        if self.max_delay_ms is not None:
            _check_delay("cap", self.max_delay_ms)
            if self.max_delay_ms < self.initial_delay_ms:
                cap, first = format_duration_ms(self.max_delay_ms), format_duration_ms(self.initial_delay_ms)
                raise InvalidPolicyError("cap", cap, f"below the first delay of {first}")
        if self.all_nominal_ms[-1] > MAX_DURATION_MS:
            raise InvalidPolicyError("cap", None, f"{self.count} delays without a cap grow beyond ten years; give one")

    @property
    def text(self) -> str:
        """As ``exp(1s, x2, cap=10m, jitter=0.2, 8)``, without what is not set."""
        parts = [format_duration_ms(self.initial_delay_ms), f"x{_plain(self.multiplier)}"]
        if self.max_delay_ms is not None:
            parts.append(f"cap={format_duration_ms(self.max_delay_ms)}")
        if self.jitter:
            parts.append(f"jitter={_plain(self.jitter)}")
        return f"exp({', '.join((*parts, str(self.count)))})"

    @property
    def all_nominal_ms(self) -> tuple[int, ...]:
        """The growing delays, capped."""
        cap_ms = MAX_DURATION_MS + 1 if self.max_delay_ms is None else self.max_delay_ms
        return _growing(self.initial_delay_ms, self.multiplier, cap_ms, self.count)

    def _jitter(self) -> float:
        return self.jitter


class Forever(Sequence):
    """One delay, after every failed attempt."""

    __slots__ = ()
    endless: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """As ``forever(10s)``."""
        return f"forever({format_duration_ms(self.delays_ms[0])})"


@lru_cache(maxsize=256)
def _growing(initial_ms: int, multiplier: float, cap_ms: int, count: int) -> tuple[int, ...]:
    delays: list[int] = []
    for retry in range(count):
        capped = bool(delays) and delays[-1] >= cap_ms  # and no power beyond it, which would overflow
        delays.append(cap_ms if capped else min(cap_ms, int(initial_ms * multiplier**retry)))
    return tuple(delays)


def _check_retries(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_RETRIES:
        raise InvalidPolicyError("retries", count, f"expected a whole number of delays from 1 to {MAX_RETRIES}")


def _check_delay(field: str, delay_ms: object) -> None:
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or not 1 <= delay_ms <= MAX_DURATION_MS:
        raise InvalidPolicyError(field, delay_ms, f"expected milliseconds from 1 to {MAX_DURATION_MS}")


def _real(field: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidPolicyError(field, value, f"expected a number from {_plain(least)} to {_plain(most)}")
    return round(float(value), _DECIMALS)


def _plain(number: float) -> str:
    """Write a number without exponent, so that it reads back as the same float."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def sequence(*delays: Duration) -> Sequence:
    """Make a schedule of explicit delays, one for each retry, as ``"5m"`` or a ``timedelta``."""
    return Sequence(tuple(parse_duration_ms(delay) for delay in delays))


def forever(delay: Duration) -> Forever:
    """Make a schedule of one delay without end, for handlers that keep order."""
    return Forever((parse_duration_ms(delay),))


def exp(
    initial: Duration,
    *,
    multiplier: float = 2.0,
    cap: Duration | None = None,
    jitter: float = 0.0,
    retries: int,
) -> Exponential:
    """Make a schedule of growing delays, 1 to ``MAX_RETRIES``; for the other arguments see `Exponential`."""
    return Exponential(
        initial_delay_ms=parse_duration_ms(initial),
        multiplier=multiplier,
        max_delay_ms=None if cap is None else parse_duration_ms(cap),
        jitter=jitter,
        count=retries,
    )


def parse_schedule(text: str) -> Schedule:
    """Read a schedule from its text.

    In ``exp`` factor, cap and jitter are optional; the last part is the number of retries.

    Raises:
        InvalidPolicyError: the message names the part that is wrong.
    """
    given: object = text  # callers without type checks pass numbers here
    if not isinstance(given, str):
        form = "a schedule is text, with one delay and its unit for each retry, as '300s' or '5m 10m'"
        raise InvalidPolicyError("schedule", text, f"{form}; {_FORMS}")
    if not given.strip():
        raise InvalidPolicyError("schedule", text, f"there is no delay; {_FORMS}")
    if ";" in given:
        raise InvalidPolicyError("schedule", text, "no ';' here: RetryPolicy.parse() takes a whole policy as text")
    call = _CALL.fullmatch(text.strip())
    try:
        if call is None:
            return _parse_sequence(text)
        if call.group(1) == "forever":
            return forever(call.group(2))
        return _parse_exp(text, [part.strip() for part in call.group(2).split(",")])
    except InvalidDurationError as error:
        raise InvalidPolicyError("schedule", text, str(error)) from error
    except InvalidPolicyError as error:
        if error.field == "schedule":
            raise
        raise InvalidPolicyError("schedule", text, f"{error.field}={shown(error.value)}: {error.expected}") from error


def _parse_sequence(text: str) -> Sequence:
    delays: list[int] = []
    for part in text.split():
        step = _STEP.fullmatch(part)
        if step is None:
            raise InvalidPolicyError("schedule", text, f"{part!r} is no delay and no delay*times; {_FORMS}")
        times = 1 if step.group(2) is None else int(step.group(2))
        _check_retries(times)
        delays += [parse_duration_ms(step.group(1))] * times
        _check_retries(len(delays))
    return Sequence(tuple(delays))


def _parse_exp(text: str, parts: list[str]) -> Exponential:
    form = "expected exp(first, xfactor, cap=longest, jitter=share, retries), as 'exp(1s, x2, cap=10m, jitter=0.2, 8)'"
    if len(parts) < 2 or not _COUNT.fullmatch(parts[-1]):
        raise InvalidPolicyError("schedule", text, f"{form}; the last part is the number of retries")
    options: dict[str, str] = {}
    for part in parts[1:-1]:
        name, value = (
            ("x", part[1:]) if part.startswith("x") else (part.partition("=")[0].strip(), part.partition("=")[2])
        )
        if name not in {"x", "cap", "jitter"} or name in options:
            raise InvalidPolicyError("schedule", text, f"{form}; {part!r} is unknown or occurs twice")
        options[name] = value.strip()
    for name in options.keys() & {"x", "jitter"}:
        if not _DECIMAL.fullmatch(options[name]):
            raise InvalidPolicyError("schedule", text, f"{form}; {options[name]!r} is no number")
    return exp(
        parts[0],
        multiplier=float(options.get("x", "2")),
        cap=options.get("cap"),
        jitter=float(options.get("jitter", "0")),
        retries=int(parts[-1]),
    )
