"""Retry policies: when a failed record is tried again, how often, and what is never tried again.

A policy is frozen and always valid. Equal texts decide alike; the digest of the text travels with each record, the text
itself is in a ``policy`` event::

    5m*2 30m*3 1h; max_elapsed=1d; timeout=5m; non-retryable=ValueError,billing.CardExpired
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from retryapp.core.classify import Rule
from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError, InvalidPolicyError
from retryapp.core.schedule import Schedule, parse_schedule

DEFAULT_TIMEOUT: Final = "5m"
"""How long one run of a handler may take."""

DIGEST_CHARS: Final = 12


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """When and whether a failed record is delivered again.

    Raises:
        InvalidPolicyError: a field is out of range or contradicts another; the message names it.
    """

    schedule: Schedule
    max_attempts: int
    """Deliveries in all, the first one included: one more than the schedule has delays."""
    max_elapsed_ms: int | None
    """No wait may end later than this after the first failure, in milliseconds; None: no deadline."""
    on: tuple[Rule, ...]
    """Which errors may go away, ordered, first match wins; what no rule names is retryable."""
    timeout_ms: int

    def __init__(
        self,
        schedule: str | Schedule,
        *,
        max_attempts: int | None = None,
        max_elapsed: str | timedelta | None = None,
        on: Rule | Iterable[Rule] = (),
        timeout: str | timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        """Validate the fields.

        Args:
            schedule: text (``"5m*2 30m*3 1h"``, ``"fixed(30s, 5)"``, ``"exp(1s, x2, cap=10m, jitter=0.2, 8)"``) or a
                schedule.
            max_attempts: deliveries in all; may be left out, and if given must be one more than the schedule has
                delays.
            max_elapsed: a record whose next wait would end later than this after its first failure is dead, reason
                ``expired``; None: no deadline.
            on: rules from ``retryable(...)`` and ``non_retryable(...)``, ordered, first match wins.
            timeout: how long one run of the handler may take.
        """
        chosen = schedule if isinstance(schedule, Schedule) else parse_schedule(schedule)
        attempts = chosen.retries + 1
        if max_attempts is not None and (isinstance(max_attempts, bool) or max_attempts != attempts):
            raise InvalidPolicyError(
                "max_attempts",
                max_attempts,
                f"the schedule {chosen.text!r} has {chosen.retries} delays, so {attempts} attempts; leave it out",
            )
        object.__setattr__(self, "schedule", chosen)
        object.__setattr__(self, "max_attempts", attempts)
        object.__setattr__(self, "max_elapsed_ms", None if max_elapsed is None else _length("max_elapsed", max_elapsed))
        object.__setattr__(self, "on", _rules(on))
        object.__setattr__(self, "timeout_ms", _length("timeout", timeout))

    @property
    def text(self) -> str:
        """Canonical text, with the types of its rules by name."""
        parts = [self.schedule.text]
        if self.max_elapsed_ms is not None:
            parts.append(f"max_elapsed={format_duration_ms(self.max_elapsed_ms)}")
        parts.append(f"timeout={format_duration_ms(self.timeout_ms)}")
        parts += [f"{rule.error_class.value}={','.join(rule.names)}" for rule in self.on]
        return "; ".join(parts)

    @property
    def digest(self) -> str:
        """Short hash of the text: ``DIGEST_CHARS`` hex digits."""
        return hashlib.sha256(self.text.encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST_CHARS]


def _length(field: str, value: str | timedelta) -> int:
    try:
        return parse_duration_ms(value)
    except InvalidDurationError as error:
        raise InvalidPolicyError(field, value, str(error)) from error


def _rules(on: Rule | Iterable[Rule]) -> tuple[Rule, ...]:
    rules = (on,) if isinstance(on, Rule) else tuple(on)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise InvalidPolicyError("on", rule, "expected rules, as on=[non_retryable(ValueError)]")
    return rules
