"""The root of all errors, and how they quote values."""

from __future__ import annotations

from typing import Any, ClassVar

MAX_SHOWN_CHARS = 200
"""Bound of a value in a message: messages are in logs and in record headers."""


def shown(value: object) -> str:
    """Quote a value for a message, cut to ``MAX_SHOWN_CHARS`` characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}... ({len(text)} characters)"


def _rebuild(cls: type[RetryAppError], message: str, state: dict[str, Any]) -> RetryAppError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(state)
    return error


class RetryAppError(Exception):
    """Root of all errors that retryapp raises by name. Survives pickling, whatever its constructor takes."""

    __module__ = __package__  # names of error types travel in headers and in policies: they say where to import from
    exit_code: ClassVar[int] = 1
    """What a command exits with when this error ends it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(f"{__package__}."):
            cls.__module__ = __package__

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))
