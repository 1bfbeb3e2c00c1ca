"""Retry policies: when a failed record is tried again, how often, and what is never tried again.

A policy is frozen and always valid. Equal texts decide alike; the digest of the text travels with each record, the text
itself is in a ``policy`` event::

    5m*2 30m*3 1h; hot=50ms*3; max_elapsed=1d; timeout=5m; retryable=ConnectionError schedule=(1s*5)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from retryapp.core.durations import MAX_DURATION_MS, Duration, format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError, InvalidPolicyError
from retryapp.core.rules import ErrorClass, Rule, schedule_of
from retryapp.core.schedule import MAX_RETRIES, Schedule, parse_schedule
from retryapp.core.text import counted

DIGEST_CHARS: Final = 12

_TEXT_FIELDS: Final = ("hot", "max_elapsed", "timeout")

Rules = Rule | Iterable[Any]
"""A rule, or some, nested as one likes: `http_errors` returns several."""


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """When and whether a failed record is delivered again.

    Raises:
        InvalidPolicyError: a field is out of range or contradicts another; the message names it.
    """

    schedule: Schedule
    """Waits after failures that no rule with a schedule of its own decides."""
    max_attempts: int | None
    """Deliveries in all, the first one included; None: a schedule is endless."""
    max_elapsed_ms: int | None
    """No wait may end later than this after the first failure, in milliseconds; None: no deadline."""
    on: tuple[Rule, ...]
    """What errors mean, ordered, first match wins."""
    otherwise: ErrorClass
    """The class of errors that no rule names."""
    timeout_ms: int
    hot: Schedule | None
    """Waits between tries within one delivery, in place, before it counts as failed; None: one try."""

    def __init__(
        self,
        schedule: str | Schedule,
        *,
        max_attempts: int | None = None,
        max_elapsed: Duration | None = None,
        on: Rules = (),
        otherwise: str | ErrorClass = ErrorClass.RETRYABLE,
        timeout: Duration = "5m",
        hot: str | Schedule | None = None,
    ) -> None:
        """Validate the fields.

        Args:
            schedule: text (``"5m*2 30m*3 1h"``, ``"exp(1s, x2, cap=10m, jitter=0.2, 8)"``, ``"forever(10s)"``) or a
                schedule.
            max_attempts: deliveries in all. May be left out: one more than the longest schedule has delays. If no rule
                has a schedule of its own it must be just that. None with an endless schedule.
            max_elapsed: a record whose next wait would end later than this after its first failure is dead, reason
                ``expired``; None: no deadline.
            on: rules from ``retryable(...)``, ``non_retryable(...)``, ``skippable(...)``, ``pausing(...)`` and
                ``http_errors()``, ordered, first match wins.
            otherwise: the class of errors that no rule names, ``"retryable"`` or ``"non-retryable"``.
            timeout: how long one run of the handler may take, with all its hot tries.
            hot: a schedule of short waits (``"50ms*3"``): after an error, the same delivery tries again in place before
                it counts as failed. The waits together are shorter than ``timeout``.
        """
        chosen = schedule if isinstance(schedule, Schedule) else parse_schedule(schedule)
        rules = tuple(_rules(on))
        object.__setattr__(self, "schedule", chosen)
        object.__setattr__(self, "on", rules)
        object.__setattr__(self, "max_attempts", _attempts(max_attempts, chosen, rules))
        object.__setattr__(self, "max_elapsed_ms", None if max_elapsed is None else _length("max_elapsed", max_elapsed))
        object.__setattr__(self, "otherwise", _otherwise(otherwise))
        object.__setattr__(self, "timeout_ms", _length("timeout", timeout))
        object.__setattr__(self, "hot", None if hot is None else _hot(hot, self.timeout_ms))
        for rule in rules:
            if rule.hot is not None:
                _hot(rule.hot, self.timeout_ms)

    @classmethod
    def parse(cls, text: str) -> RetryPolicy:
        """Read a policy from its text, without rules: ``"5m*2 30m; max_elapsed=1d; timeout=30s"``.

        Raises:
            InvalidPolicyError: a part is wrong, or is a rule: types and functions cannot be found by their names.
        """
        given: object = text  # callers without type checks pass anything here
        if not isinstance(given, str):
            raise InvalidPolicyError("policy", text, "expected a RetryPolicy or its text, as '5m*2 30m*3 1h'")
        schedule, *parts = (part.strip() for part in text.strip().removesuffix(";").split(";"))
        fields: dict[str, str] = {}
        for part in parts:
            name, value = (each.strip() for each in part.partition("=")[::2])
            if name not in _TEXT_FIELDS or name in fields:
                known = ", ".join(_TEXT_FIELDS)
                problem = f"{part!r} is unknown or occurs twice; text has a schedule, {known}; rules need a RetryPolicy"
                raise InvalidPolicyError("policy", text, problem)
            fields[name] = value
        options: dict[str, Any] = fields
        return cls(schedule, **options)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Distinct delays of all schedules before jitter, in milliseconds, rising: what names the tiers."""
        return tuple(sorted({delay_ms for each in self.schedules for delay_ms in each.nominal_delays_ms}))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Its own, and those of its rules."""
        return (self.schedule, *(rule.schedule for rule in self.on if rule.schedule is not None))

    @property
    def tries_in_place(self) -> bool:
        """Whether a delivery may try again in place after some error."""
        return self.hot is not None or any(rule.hot is not None for rule in self.on)

    @property
    def longest_ms(self) -> int | None:
        """How long all waits of a record may take together, unless a handler asks for another; None: no limit."""
        longest_ms = None
        if self.max_attempts is not None:
            # schedules may take turns, and each begins anew then
            waits = [max(each.all_nominal_ms) for each in self.schedules]
            alone_ms, mixed_ms = sum(self.schedule.all_nominal_ms), max(waits) * (self.max_attempts - 1)
            longest_ms = alone_ms if len(waits) == 1 else mixed_ms
        bounds = [each for each in (longest_ms, self.max_elapsed_ms) if each is not None]
        return min(bounds, default=None)

    @property
    def dead_letters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule.dead_letters for rule in self.on if rule.dead_letters is not None))

    @property
    def text(self) -> str:
        """Canonical text, with the types and functions of its rules by name."""
        parts = [self.schedule.text]
        if self.max_attempts != _longest(self.schedules):
            parts.append(f"max_attempts={self.max_attempts}")
        if self.hot is not None:
            parts.append(f"hot={self.hot.text}")
        if self.max_elapsed_ms is not None:
            parts.append(f"max_elapsed={format_duration_ms(self.max_elapsed_ms)}")
        parts.append(f"timeout={format_duration_ms(self.timeout_ms)}")
        parts += [rule.text for rule in self.on]
        if self.otherwise is not ErrorClass.RETRYABLE:
            parts.append(f"otherwise={self.otherwise.value}")
        return "; ".join(parts)

    @property
    def digest(self) -> str:
        """Short hash of the text: ``DIGEST_CHARS`` hex digits."""
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_CHARS]


def _length(field: str, value: Duration) -> int:
    try:
        return parse_duration_ms(value)
    except InvalidDurationError as error:
        raise InvalidPolicyError(field, value, str(error)) from error


def _hot(hot: str | Schedule, timeout_ms: int) -> Schedule:
    chosen = schedule_of("hot", hot)
    if chosen.endless:
        raise InvalidPolicyError("hot", chosen.text, "tries in place have an end")
    waits_ms = sum(chosen.all_nominal_ms)
    if waits_ms >= timeout_ms:
        waits, timeout = format_duration_ms(min(waits_ms, MAX_DURATION_MS)), format_duration_ms(timeout_ms)
        raise InvalidPolicyError("hot", chosen.text, f"its waits take {waits}, and timeout={timeout} is for all tries")
    return chosen


def _rules(on: Rules) -> Iterator[Rule]:
    if isinstance(on, Rule):
        yield on
        return
    given: object = on  # callers without type checks pass anything here
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidPolicyError("on", on, "expected rules, as on=[non_retryable(ValueError)]")
    for each in given:
        yield from _rules(each)


def _longest(schedules: Iterable[Schedule]) -> int | None:
    several = tuple(schedules)
    return None if any(each.endless for each in several) else max(each.retries for each in several) + 1


def _attempts(given: int | None, schedule: Schedule, rules: tuple[Rule, ...]) -> int | None:
    own = [rule.schedule for rule in rules if rule.schedule is not None]
    attempts = _longest([schedule, *own])
    if given is None:
        return attempts
    if attempts is None:
        raise InvalidPolicyError("max_attempts", given, "none with a schedule without end; leave it out")
    number: object = given  # callers without type checks pass anything here
    if not own and (isinstance(number, bool) or number != attempts):
        raise InvalidPolicyError(
            "max_attempts",
            given,
            f"the schedule {schedule.text!r} has {counted(schedule.retries, 'delay')}, so {attempts} attempts; "
            f"leave it out",
        )
    if isinstance(number, bool) or not isinstance(number, int) or not 2 <= number <= MAX_RETRIES + 1:
        raise InvalidPolicyError("max_attempts", given, f"expected a whole number from 2 to {MAX_RETRIES + 1}")
    return number


def _otherwise(given: str | ErrorClass) -> ErrorClass:
    if given not in (ErrorClass.RETRYABLE, ErrorClass.NON_RETRYABLE):  # in a set, a list would be no key
        raise InvalidPolicyError("otherwise", given, "expected 'retryable' or 'non-retryable'")
    return ErrorClass(given)
