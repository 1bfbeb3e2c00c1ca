"""Rules for errors of HTTP clients, told by their names and attributes: httpx, aiohttp, requests. None is imported.

=======================================  ==========================================================
answer                                   what it means
=======================================  ==========================================================
429, 503                                 retryable, after ``Retry-After`` if it names a time to come
5xx, 401, 403, 404, 408, 409, 425        retryable
no answer (connection, time-out)         retryable
400, 410, 422                            non-retryable
any other                                no rule: the next one decides
=======================================  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from retryapp.core.durations import Duration, format_duration_ms, parse_duration_ms
from retryapp.core.errors import InvalidDurationError, InvalidPolicyError
from retryapp.core.rules import ErrorClass, Rule
from retryapp.core.traces import qualified_name, raised_in

_ANSWERS: Final = frozenset(
    {
        "aiohttp.client_exceptions.ClientResponseError",
        "httpx.HTTPStatusError",
        "httpx._exceptions.HTTPStatusError",
        "requests.exceptions.HTTPError",
    }
)
_SILENCE: Final = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "httpx.TransportError",
        "httpx._exceptions.TransportError",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.RetryError",
        "requests.exceptions.Timeout",
    }
)
_LATER: Final = frozenset({401, 403, 404, 408, 409, 425, 429})
_NEVER: Final = frozenset({400, 410, 422})
_MAY_SAY_WHEN: Final = frozenset({429, 503})
_MAX_DIGITS: Final = 12


def http_errors(cap: Duration = "1h", *, circuit: str = "") -> tuple[Rule, ...]:
    """Return rules for errors of httpx, aiohttp and requests, to be put into ``RetryPolicy(on=[...])``.

    Args:
        cap: no ``Retry-After`` makes a record wait longer than this.
        circuit: see `retryable`.
    """
    try:
        cap_ms = parse_duration_ms(cap)
    except InvalidDurationError as error:
        raise InvalidPolicyError("cap", cap, str(error)) from error
    wait, made_by = RetryAfter(cap_ms), f"http_errors retry_after<={format_duration_ms(cap_ms)}"
    return (
        Rule((Exception,), ErrorClass.NON_RETRYABLE, is_final, made_by="http_errors"),
        Rule((Exception,), ErrorClass.RETRYABLE, may_pass, wait=wait, circuit=circuit, made_by=made_by),
    )


def is_final(_delivery: Any, error: BaseException) -> bool:
    """Tell whether a service has said that this request is wrong for good."""
    return _status(error) in _NEVER


def may_pass(_delivery: Any, error: BaseException) -> bool:
    """Tell whether a service could not be asked, or may answer otherwise later."""
    status = _status(error)
    return _is_silence(error) if status is None else status in _LATER or 500 <= status <= 599


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """The wait in the header ``Retry-After`` of an answer: seconds, or an HTTP date (RFC 9110, 10.2.3)."""

    cap_ms: int

    def __call__(self, error: BaseException, now_ms: int) -> int | None:
        """Return the wait in milliseconds, at most the cap; None where the answer names no time to come."""
        wait_ms = _wait_ms(_retry_after(error), now_ms) if _status(error) in _MAY_SAY_WHEN else 0
        return min(wait_ms, self.cap_ms) or None  # without a wait, all delays of the schedule would be over at once


def _wait_ms(text: str | None, now_ms: int) -> int:
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return int(text[:_MAX_DIGITS]) * 1_000
    try:
        instant = parsedate_to_datetime(text)
        aware = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
        return max(0, round(aware.timestamp() * 1_000) - now_ms)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0


def _is_silence(error: BaseException) -> bool:
    if type(error) is TimeoutError:  # what aiohttp raises after `ClientTimeout(total=...)`, five minutes by default
        return (raised_in(error) or "").startswith("aiohttp.")
    return _is_one_of(error, _SILENCE)


def _is_one_of(error: BaseException, names: frozenset[str]) -> bool:
    return any(qualified_name(each) in names for each in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    if not _is_one_of(error, _ANSWERS):
        return None
    status = getattr(error, "status", None)  # aiohttp
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _retry_after(error: BaseException) -> str | None:
    response = getattr(error, "response", None)
    headers = getattr(error if response is None else response, "headers", None)
    try:
        value = None if headers is None else headers.get("Retry-After")
    except Exception:  # noqa: BLE001 - another library's code: without a wait the schedule's counts
        return None
    return value if isinstance(value, str) else None
