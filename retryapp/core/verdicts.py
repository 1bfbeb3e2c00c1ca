"""Exceptions by which a handler decides about its record; also effective as a ``__cause__`` or in a group."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from retryapp.core.durations import MAX_DURATION_MS, parse_duration_ms
from retryapp.core.errors import InvalidDurationError

_SECONDS: Final = re.compile(r"[0-9]{1,12}")


class Reject(Exception):  # noqa: N818 - a verdict that reads as one: raise Reject("why")
    """The record is wrong for good: dead letter at once, reason ``rejected``, with this text as its message."""

    def __init__(self, text: str = "") -> None:
        """Args: text: why, in a few words; no payload and no secrets, it is stored with the dead letter."""
        self.text = text
        super().__init__(text)


class RetryLater(Exception):  # noqa: N818 - a verdict that reads as one: raise RetryLater(after="90s")
    """Try again after this wait: it replaces the schedule's next delay and spends an attempt.

    When the attempts are used up, or the wait would end past the policy's deadline, the record is dead as usual.

    Raises:
        InvalidDurationError: ``after`` is negative, no number, no duration, or longer than ten years.
    """

    def __init__(self, after: float | timedelta | str, text: str = "") -> None:
        """Set the wait.

        Args:
            after: seconds from 0 (as soon as possible), a ``timedelta``, or text: a duration (``"1m30s"``) or digits,
                which are seconds, as in an HTTP ``Retry-After`` header. An HTTP date is not read: subtract the time
                first.
            text: why, in a few words; it is stored with the record.
        """
        self.after_ms = _wait_ms(after)
        self.text = text
        super().__init__(text or f"retry after {self.after_ms} ms")

    def __reduce__(self) -> tuple[type[RetryLater], tuple[timedelta, str]]:
        return type(self), (timedelta(milliseconds=self.after_ms), self.text)


def _wait_ms(after: object) -> int:
    if isinstance(after, str):
        text = after.strip()
        if not _SECONDS.fullmatch(text):
            return parse_duration_ms(text)
        seconds: float = int(text)
    elif isinstance(after, timedelta):
        seconds = after.total_seconds()
    elif isinstance(after, int | float) and not isinstance(after, bool):
        seconds = after
    else:
        raise InvalidDurationError(after, "it is neither seconds nor a timedelta nor text")
    if math.isnan(seconds) or seconds < 0:
        raise InvalidDurationError(after, "it is negative or no number")
    if seconds > MAX_DURATION_MS / 1_000:
        raise InvalidDurationError(after, "it is longer than ten years")
    return math.ceil(seconds * 1_000)
