"""Times as people read them: UTC to the millisecond, and how far from now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of UTC: its texts are, and shorter to make
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_SECOND_MS: Final = 1_000
_TENTHS_BELOW_MS: Final = 10_000


INSTANT: Final = "a length with a unit ('10m') or UTC ('2030-01-31T12:00')"
_DURATION: Final = re.compile(r"[0-9.]+[a-z].*")


def parse_instant(text: str, now_ms: int, *, back: bool = False) -> int:
    """Read a length from now (`back`: before now) with a unit, or a UTC time; return epoch milliseconds.

    Raises:
        ValueError: it is neither.
    """
    text = text.strip()
    try:
        if _DURATION.fullmatch(text):
            return now_ms + (-1 if back else 1) * parse_duration_ms(text)
        moment = datetime.fromisoformat(text)
    except InvalidDurationError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError(f"{text!r}: expected {INSTANT}") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def iso_text(epoch_ms: int) -> str:
    """Return an instant for the ``datetime`` attribute; empty where no calendar has it."""
    try:
        instant = _EPOCH + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return ""
    return f"{instant.isoformat(timespec='milliseconds')}Z"


def utc_text(epoch_ms: int | None) -> str:
    """Return an instant in UTC; a dash for none, the bare number where no calendar has it.

    >>> utc_text(1_760_000_000_123)
    '2025-10-09 08:53:20.123 UTC'
    """
    if epoch_ms is None:
        return "-"
    iso = iso_text(epoch_ms)
    return f"{iso[:10]} {iso[11:-1]} UTC" if iso else f"{epoch_ms} ms"


def length_text(length_ms: int) -> str:
    """Return a length in its two largest units, cut, not rounded.

    >>> length_text(252_900), length_text(3_600_000), length_text(2_340)
    ('4m 12s', '1h', '2.3s')
    """
    if length_ms < _SECOND_MS:
        return f"{length_ms}ms"
    if length_ms < _TENTHS_BELOW_MS:
        return f"{length_ms // 100 / 10:g}s"
    parts: list[str] = []
    for unit, unit_ms in _UNITS:
        number, length_ms = divmod(length_ms, unit_ms)
        if number:
            parts.append(f"{number}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def relative_text(epoch_ms: int | None, now_ms: int) -> str:
    """Return how far an instant is from now; a dash for none.

    >>> relative_text(61_000, 1_000), relative_text(1_000, 61_000), relative_text(5, 5)
    ('in 1m', '1m ago', 'now')
    """
    if epoch_ms is None:
        return "-"
    distance_ms = epoch_ms - now_ms
    if not distance_ms:
        return "now"
    return f"in {length_text(distance_ms)}" if distance_ms > 0 else f"{length_text(-distance_ms)} ago"
