"""What a page says when it cannot answer: one shape for all of them.

Every error of every address is ``{"error": {"code", "message", "hint"}}``: a constant code for programs, what happened
with the values it is about, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping

from retryapp.core.errors import RetryAppError, shown


class PageError(RetryAppError):
    """A request that has no page as its answer. Status and code are for programs, message and hint for people."""

    def __init__(
        self, status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Args: status: of HTTP. code: constant word. message: what happened. hint: what to do. headers: to send."""
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})
        super().__init__(f"{code}: {message}. {hint}")

    @property
    def facts(self) -> dict[str, dict[str, str]]:
        """The one JSON shape of errors."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


def bad_parameter(name: str, value: str, expected: str) -> PageError:
    """Return the answer to a query parameter that cannot be used (400)."""
    return PageError(400, "bad-parameter", f"parameter {name}={shown(value)} cannot be used", f"Expected {expected}")


def not_found(code: str, message: str, hint: str) -> PageError:
    """Return the answer to a question for something that is not there (404)."""
    return PageError(404, code, message, hint)


def elsewhere(main: str, partition: int, location: str | None) -> PageError:
    """Return the answer to a question for a partition of another worker.

    Args:
        main: the handler's main topic.
        partition: the partition that was asked for.
        location: the same question at the worker that has it; None when nobody knows where it is at the moment.

    Returns:
        307 to the other worker, or 409 when it is not known.
    """
    if location is None:
        return PageError(
            409,
            "partition-elsewhere",
            f"partition {partition} of {main} is not on this worker, and its owner is not known here",
            "It may be moving to another worker: ask again in a few seconds, or ask the other workers",
        )
    return PageError(
        307,
        "partition-elsewhere",
        f"partition {partition} of {main} is on another worker: {location}",
        "Follow the Location header",
        {"Location": location},
    )


def not_open(main: str, partition: int, state: str, last_error: str | None) -> PageError:
    """Return the answer to a question for a partition that this worker has but cannot read yet (503)."""
    why = f"; its last error: {last_error}" if last_error else ""
    return PageError(
        503,
        "partition-not-open",
        f"partition {partition} of {main} belongs to this worker but is {state}{why}",
        "Ask again in a few seconds; if it stays so, look at the worker's log",
        {"Retry-After": "2"},
    )
