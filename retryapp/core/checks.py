"""Checks of arguments, which callers without type checks may give as anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import UnionType
from typing import Any

from pydantic import ValidationError

from retryapp.core.errors import InvalidSettingError


def check_word(name: str, given: object, words: Iterable[str]) -> None:
    """Check that an argument is one of some words; raise `InvalidSettingError`."""
    words = list(words)
    if given not in words:
        raise InvalidSettingError(name, given, "expected one of " + ", ".join(words))


def check_count(name: str, given: object, most: int | None = None) -> None:
    """Check that an argument is a whole number, at least 1 and at most `most`; raise `InvalidSettingError`."""
    if type(given) is not int or given < 1:
        raise InvalidSettingError(name, given, "expected a whole number, at least 1")
    if most is not None and given > most:
        raise InvalidSettingError(name, given, f"expected at most {most}")


def check_kind(name: str, given: object, kind: type | UnionType, expected: str) -> None:
    """Check that an argument is of a type; raise `InvalidSettingError`."""
    if not isinstance(given, kind):
        raise InvalidSettingError(name, given, f"expected {expected}")


def is_function_of(count: int, given: object) -> bool:
    """Tell whether something can be called with so many arguments and returns what it finds: no coroutine, no class."""
    if not callable(given) or isinstance(given, type):
        return False
    later = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    if any(is_so(each) for is_so in later for each in (given, given.__call__)):  # an object has it there
        return False
    try:
        inspect.signature(given).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some built-in functions do not tell their parameters
        return True
    return True


def first_problem(error: ValidationError) -> tuple[str, Any, str]:
    """Return the first wrong field (empty: all together), what was given, and what is wrong in our words."""
    first = error.errors(include_url=False)[0]
    return str((*first["loc"], "")[0]), first["input"], first["msg"].removeprefix("Value error, ")


def problem_text(error: ValidationError) -> str:
    """Return the first wrong field and what is wrong, without what was given."""
    name, _, problem = first_problem(error)
    return f"{name}: {problem}" if name else problem
