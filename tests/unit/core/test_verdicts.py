"""What a handler may raise to decide: waits, instants, pickling."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from retryapp.core.classify import classify
from retryapp.core.errors import InvalidDurationError
from retryapp.core.verdicts import Defer, InvalidInstantError, Reject, RetryLater, Unavailable
from retryapp.engine.delivery.deliver import ReleaseTimeoutError

MOSCOW = datetime(2026, 1, 1, 3, 0, 1, tzinfo=timezone(timedelta(hours=3)))


@pytest.mark.parametrize(
    ("after", "milliseconds"),
    [
        (0, 0), (1.5, 1_500), (0.0001, 1), ("120", 120_000), (" 0 ", 0), ("1m30s", 90_000),
        (timedelta(minutes=2), 120_000), (timedelta(0), 0),
    ],
)  # fmt: skip
def test_retry_later_takes_seconds_timedelta_or_text(after: float | timedelta | str, milliseconds: int) -> None:
    """Never rounded down: a service that asks for time gets it."""
    assert RetryLater(after).after_ms == milliseconds


@pytest.mark.parametrize("at", [datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), 1_767_225_601, 1_767_225_601.0, MOSCOW])
def test_retry_later_takes_an_instant(at: datetime | float) -> None:
    """An aware datetime of any zone, or seconds since 1970; an instant that has passed is now."""
    later = RetryLater(at=at)
    assert later.at_ms == 1_767_225_601_000
    assert classify(later, now_ms=1_767_225_600_000).retry_after_ms == 1_000
    assert classify(later, now_ms=1_767_225_602_000).retry_after_ms == 0
    group = ExceptionGroup("g", [later, RetryLater(3)])
    assert classify(group, now_ms=1_767_225_596_000).retry_after_ms == 5_000, "the longest counts"


NO_WAITS = (
    -1, "-1", float("nan"), float("inf"), "", "soon", "Wed, 21 Oct 2015 07:28:00 GMT", None, True, 10**12, 10**400,
    timedelta(-1),
)  # fmt: skip
NO_INSTANTS = (
    datetime(2026, 1, 1),  # noqa: DTZ001 - another time on each machine
    1_767_225_601_000, -1, "2026-01-01", True, float("nan"), 10**400,
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [*({"after": each} for each in NO_WAITS), *({"at": each} for each in NO_INSTANTS), {"after": 1, "at": 1.8e9}, {}],
)
def test_retry_later_refuses_what_is_no_wait_and_no_instant(options: dict[str, Any]) -> None:
    """It is named, and never taken for no wait."""
    with pytest.raises(InvalidDurationError):
        RetryLater(**options)


def test_a_time_without_a_time_zone_is_told_how_to_get_one() -> None:
    """It is no duration that lacks a unit."""
    with pytest.raises(InvalidInstantError, match=r"it has no time zone.* Write at=datetime\.now\(UTC\)") as raised:
        RetryLater(at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
    assert "duration" not in str(raised.value)


def test_verdicts_survive_pickling() -> None:
    """They cross process borders with what they say."""
    later = pickle.loads(pickle.dumps(RetryLater("90s", "busy")))  # noqa: S301 - our own bytes
    assert (later.after_ms, later.text, str(later)) == (90_000, "busy", "busy")
    at = pickle.loads(pickle.dumps(RetryLater(at=1_700_000_000.25)))  # noqa: S301 - our own bytes
    assert (at.after_ms, at.at_ms) == (None, 1_700_000_000_250)
    assert pickle.loads(pickle.dumps(Reject("no"))).text == "no"  # noqa: S301 - our own bytes
    defer = pickle.loads(pickle.dumps(Defer("1h", "approval")))  # noqa: S301 - our own bytes
    assert (defer.deadline_ms, defer.text, str(defer)) == (3_600_000, "approval", "approval")
    away = pickle.loads(pickle.dumps(Unavailable("ledger")))  # noqa: S301 - our own bytes
    assert (away.circuit, away.text, str(away)) == ("ledger", "", "ledger is unavailable")


def test_what_people_read_has_units() -> None:
    """Not raw milliseconds, also where there is no wait, and for an instant."""
    assert str(RetryLater("90s")) == "retry after 1m30s"
    assert str(RetryLater(0)) == "retry after 0s"
    assert str(RetryLater(at=1_760_000_000)) == "retry at 2025-10-09 08:53:20 UTC"
    assert str(Defer("10m")) == "waits for its release for 10m"
    assert str(ReleaseTimeoutError("charge", 600_000)) == (
        "nobody has released the record within 10m after handler charge raised Defer"
    )
