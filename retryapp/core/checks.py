"""Checks of arguments, which callers without type checks may give as anything."""

from __future__ import annotations

from collections.abc import Iterable

from retryapp.core.errors import InvalidSettingError


def check_word(name: str, given: object, words: Iterable[str]) -> None:
    """Check that an argument is one of some words; raise `InvalidSettingError`."""
    words = list(words)
    if given not in words:
        raise InvalidSettingError(name, given, "expected one of " + ", ".join(words))


def check_count(name: str, given: object) -> None:
    """Check that an argument is a whole number, at least 1; raise `InvalidSettingError`."""
    if type(given) is not int or given < 1:
        raise InvalidSettingError(name, given, "expected a whole number, at least 1")


def check_kind(name: str, given: object, kind: type, expected: str) -> None:
    """Check that an argument is of a type; raise `InvalidSettingError`."""
    if not isinstance(given, kind):
        raise InvalidSettingError(name, given, f"expected {expected}")
