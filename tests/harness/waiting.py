"""Waiting for a condition, with a deadline; never a fixed sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from retryapp import stage

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], what: str, *, timeout_s: float = 30.0, every_s: float = 0.05) -> T:
    """Do what `retryapp.stage.wait_for` does; a missed deadline fails the test."""
    try:
        return stage.wait_for(condition, what, timeout_s=timeout_s, every_s=every_s)
    except stage.NotInTimeError as error:
        raise AssertionError(str(error)) from None
