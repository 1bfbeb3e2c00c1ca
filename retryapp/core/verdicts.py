"""Exceptions by which a handler decides about its record; also effective as a ``__cause__`` or in a group."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from retryapp.core.durations import MAX_DURATION_MS, duration_text, parse_duration_ms
from retryapp.core.errors import ConfigurationError, InvalidDurationError, PicklableError, RetryAppError, shown
from retryapp.core.metadata import MAX_EPOCH_MS

_SECONDS: Final = re.compile(r"[0-9]{1,12}")


class InvalidInstantError(InvalidDurationError):
    """What `RetryLater(at=...)` was given is no instant."""

    def __init__(self, value: object, problem: str) -> None:
        self.value = value
        self.problem = problem
        ConfigurationError.__init__(
            self,
            f"RetryLater(at={shown(value)}): {problem}. Write at=datetime.now(UTC) + timedelta(hours=1), with "
            f"`from datetime import UTC, datetime, timedelta`, or seconds since 1970",
        )


class BrokenVerdictError(RetryAppError):
    """A subclass of a verdict asks for no usable wait: a failure as any, with the wait of the policy."""

    def __init__(self, verdict: str, problem: str) -> None:
        """Args: verdict: qualified name of its class. problem: what is wrong with its wait."""
        self.verdict = verdict
        self.problem = problem
        super().__init__(
            f"{verdict} says no wait in whole milliseconds ({problem}), so that of the policy counts. Have the "
            f'subclass pass its wait on: super().__init__(after="90s")'
        )


class Reject(Exception):  # noqa: N818 - a verdict that reads as one: raise Reject("why")
    """The record is wrong for good: dead letter at once, reason ``rejected``, with this text as its message."""

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(self, text: str = "") -> None:
        """Args: text: why, in a few words; no payload and no secrets, it is stored with the dead letter."""
        self.text = text
        super().__init__(text)


class Skip(Exception):  # noqa: N818 - a verdict that reads as one: raise Skip("why")
    """The record needs no handling: it is settled, and a ``skipped`` event has this text as its ``why``."""

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(self, text: str = "") -> None:
        """Args: text: why, in a few words; no payload and no secrets, it is stored with the event."""
        self.text = text
        super().__init__(text)


class RetryLater(PicklableError):  # noqa: N818 - a verdict that reads as one: raise RetryLater(after="90s")
    """Try again after a wait, or not before an instant: replaces the schedule's next delay and spends an attempt.

    When the attempts are used up, or the wait would end past the policy's deadline, the record is dead as usual.

    Raises:
        InvalidDurationError: not exactly one of ``after`` and ``at`` is given; ``after`` is negative, no number, no
            duration, or longer than ten years.
        InvalidInstantError: ``at`` is no aware datetime and no epoch time.
    """

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(
        self,
        after: float | timedelta | str | None = None,
        text: str = "",
        *,
        at: datetime | float | None = None,
    ) -> None:
        """Set the wait.

        Args:
            after: seconds from 0 (as soon as possible), a ``timedelta``, or text: a duration (``"1m30s"``) or digits,
                which are seconds. `http_errors` reads an HTTP date.
            text: why, in a few words; it is stored with the record.
            at: the instant, as a ``datetime`` with a time zone or in seconds since 1970; one that has passed: now.
        """
        if at is not None and after is not None:
            raise InvalidDurationError(after, "after= and at= exclude each other")
        self.after_ms = None if at is not None else _wait_ms(after)
        self.at_ms = None if at is None else _instant_ms(at)
        self.text = text
        super().__init__(text or self._asked())

    def _asked(self) -> str:
        if self.at_ms is None:
            return f"retry after {duration_text(self.after_ms or 0)}"
        return f"retry at {datetime.fromtimestamp(self.at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"

    def wait_ms(self, now_ms: int) -> int:
        return max(0, self.at_ms - now_ms) if self.at_ms is not None else self.after_ms or 0


class Defer(PicklableError):  # noqa: N818 - a verdict that reads as one: raise Defer(deadline="1h")
    """The record waits for an event outside: somebody releases it by `Delivery.token`, or its deadline passes.

    That spends no attempt: after the release it is delivered again at once, with the same attempt number. At the
    deadline the attempt has failed with `ReleaseTimeoutError`, which spends it: the policy decides, and if an attempt
    is left, it begins at once. In a group, only where all members are verdicts.

    Raises:
        InvalidDurationError: ``deadline`` is negative, no number, no duration, or longer than ten years.
    """

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(self, deadline: float | timedelta | str, text: str = "") -> None:
        """Set how long it waits.

        Args:
            deadline: seconds, a ``timedelta``, or text: a duration (``"1h"``) or digits, which are seconds.
            text: what it waits for, in a few words; it is stored with the record.
        """
        self.deadline_ms = _wait_ms(deadline)
        self.text = text
        super().__init__(text or f"waits for its release for {duration_text(self.deadline_ms)}")

    def wait_ms(self, _now_ms: int) -> int:
        return self.deadline_ms


class Unavailable(PicklableError):  # noqa: N818 - a verdict that reads as one: raise Unavailable("ledger")
    """A service does not answer: a retryable failure that counts for the circuit of this name.

    While that circuit is not closed, it spends no attempt, and the record waits until the circuit lets it try again.
    """

    __module__ = "retryapp"  # records and policies name it as people import it

    def __init__(self, circuit: str, text: str = "") -> None:
        """Name the service.

        Args:
            circuit: one of the handler's `circuits`.
            text: why, in a few words; it is stored with the record.
        """
        self.circuit = str(circuit)  # of anything else a name that no handler has, which the log then says
        self.text = text
        super().__init__(text or f"{circuit} is unavailable")


def _instant_ms(at: object) -> int:
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidInstantError(at, "it has no time zone, so it means another time on each machine")
        seconds: float = at.timestamp()
    elif isinstance(at, int | float) and not isinstance(at, bool):
        seconds = at
    else:
        raise InvalidInstantError(at, "it is neither a datetime nor seconds since 1970")
    if not 0 <= seconds <= MAX_EPOCH_MS / 1_000:
        raise InvalidInstantError(at, "it is no time from 1970 to 9999; at= counts seconds, not milliseconds")
    return math.ceil(round(seconds * 1_000, 3))


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
    if not seconds >= 0:  # nor is NaN
        raise InvalidDurationError(after, "it is negative or no number")
    if seconds > MAX_DURATION_MS / 1_000:
        raise InvalidDurationError(after, "it is longer than ten years")
    return math.ceil(seconds * 1_000)
