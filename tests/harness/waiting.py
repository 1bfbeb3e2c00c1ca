"""Waiting for a condition, with a deadline; never a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, *, timeout_s: float = 30.0, every_s: float = 0.05) -> T:
    """Ask until the answer is true.

    Args:
        condition: asked again and again.
        what: named when it does not come true.
        timeout_s: how long to ask.
        every_s: pause between two questions.

    Returns:
        The first true answer.

    Raises:
        AssertionError: there was none in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last answer: {found!r}")
        time.sleep(every_s)
