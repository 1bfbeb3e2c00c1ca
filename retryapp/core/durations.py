"""Durations as text, as in policies and in names of retry topics.

* Units are ``d h m s ms`` (a day is 24 hours), largest first, each at most once: ``1h30m``, ``250ms``, ``1.5s``.
* A bare number, a negative or zero length, a part finer than a millisecond and anything over ten years are refused.
* The canonical text is the shortest with whole numbers: ``60s`` is ``1m``, ``90s`` is ``1m30s``, ``24h`` is ``1d``. It
  has only lower-case letters and digits, so it is legal in a topic name, and equal lengths have equal names.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Final

from retryapp.core.errors import InvalidDurationError

Duration = str | timedelta
"""As text, or as a length that has a unit of its own."""
MAX_DURATION_MS: Final = 3_650 * 86_400_000
"""Longest duration: 3650 days. Keeps every due time far inside the range of dates and of 64 bits."""

_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_NUMBER: Final = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_SHAPE: Final = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit, _ in _UNITS))
_BARE_NUMBER: Final = re.compile(r"[+-]?[0-9.]+")


def parse_duration_ms(value: Duration) -> int:
    """Return a duration's milliseconds, from 1 to ``MAX_DURATION_MS``.

    Raises:
        InvalidDurationError: anything else; the message names the value and says what is allowed.
    """
    if isinstance(value, timedelta):
        length_ms = Fraction(value // timedelta.resolution, 1_000)
    elif isinstance(value, str):
        length_ms = _parse_text(value)
    else:
        raise InvalidDurationError(
            value, "a bare number has no unit" if isinstance(value, int | float) else "it is not text"
        )
    if length_ms < 0:
        raise InvalidDurationError(value, "it is negative")
    if length_ms % 1:
        raise InvalidDurationError(value, "it has a part finer than a millisecond")
    if length_ms == 0:
        raise InvalidDurationError(value, "it has no length")
    if length_ms > MAX_DURATION_MS:
        raise InvalidDurationError(value, "it is longer than ten years")
    return int(length_ms)


def named_duration_ms(name: str, value: Duration) -> int:
    """Return a setting's milliseconds; the error of `parse_duration_ms` then names the setting, too."""
    try:
        return parse_duration_ms(value)
    except InvalidDurationError as error:
        raise InvalidDurationError(value, error.problem, name) from error


def _parse_text(text: str) -> Fraction:
    stripped = text.strip()
    if not stripped:
        raise InvalidDurationError(text, "it is empty")
    if _BARE_NUMBER.fullmatch(stripped):
        raise InvalidDurationError(text, "a bare number has no unit")
    if stripped.startswith("-"):
        raise InvalidDurationError(text, "it is negative")
    parts = _SHAPE.fullmatch(stripped)
    if parts is None:
        raise InvalidDurationError(text, "it has an unknown unit, a unit out of order or other characters")
    return sum((Fraction(part or 0) * size for part, (_, size) in zip(parts.groups(), _UNITS, strict=True)), Fraction())


@lru_cache(maxsize=1024)  # each record that waits asks for the name of its tier
def format_duration_ms(duration_ms: int) -> str:
    """Return a duration's canonical text; raise `InvalidDurationError` for what `parse_duration_ms` refuses."""
    if not 0 < duration_ms <= MAX_DURATION_MS:
        raise InvalidDurationError(f"{duration_ms}ms", "it is out of range")
    parts = []
    rest = duration_ms
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def duration_text(duration_ms: float) -> str:
    """Return any length for people, also where it is no duration of a policy.

    >>> duration_text(5_400_000), duration_text(0), duration_text(-1_500)
    ('1h30m', '0s', '-1s500ms')
    """
    length_ms = abs(int(duration_ms))
    text = format_duration_ms(length_ms) if 0 < length_ms <= MAX_DURATION_MS else f"{length_ms // 1_000}s"
    return f"-{text}" if duration_ms <= -1 else text
