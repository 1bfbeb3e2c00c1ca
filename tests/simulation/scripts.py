"""What handlers raise at a step of a script, and the policies by which that is judged."""

from __future__ import annotations

from typing import Any, Final

from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import non_retryable, pausing, retryable, skippable
from retryapp.core.verdicts import Defer, Reject, RetryLater, Skip, Unavailable
from simulation.plan import BEYOND_MS, DEFERRED_MS, LATER_MS, SERVICES

LATER: Final = {"L": f"{LATER_MS}ms", "N": "0", "B": f"{BEYOND_MS}ms"}
INVALID: Final = "invalid"
"""Name of the dead-letter topic of a rule."""
WAITS_MS: Final = (300, 1_000, 3_000), (200, 800, 2_000)
ENDLESS_MS: Final = ((300,) * 30,)
"""In place of a delay without end: no script takes longer."""
HOT_RETRIES: Final = 2
HOT_TEXT: Final = "100ms*2"
OWN_MS: Final = (150, 600)
"""Waits of the rule for busy services."""


class GateError(Exception):
    """What a rule pauses the partition for."""


class BusyError(Exception):
    """What a rule has a schedule for; runs that take too long have none."""


RULES: Final = (
    retryable(BusyError, schedule="150ms 600ms"),
    non_retryable(ValueError, dead_letters=INVALID),
    skippable(KeyError),
    pausing(GateError),
)
POLICIES: Final = RetryPolicy("300ms 1s 3s", timeout="2s"), RetryPolicy("200ms 800ms 2s", timeout="2s")
"""The second one is that of every other life, where policies change."""
RULED: Final = tuple(RetryPolicy(policy.schedule, on=RULES, timeout="2s") for policy in POLICIES)
"""The same with rules, where scripts need them."""


def policies(*, ruled: bool, hot: bool, endless: bool = False) -> tuple[RetryPolicy, ...]:
    """Return the policies of a history: with rules, with tries in place, with a delay without end."""
    chosen = RULED if ruled else POLICIES
    schedules = ["forever(300ms)"] if endless else [policy.schedule for policy in chosen]
    more: dict[str, Any] = {"hot": HOT_TEXT} if hot else {}
    return tuple(RetryPolicy(schedule, on=chosen[0].on, timeout="2s", **more) for schedule in schedules)


def end(now: str, offset: int) -> None:
    """End a handler call as a step of its script says."""
    if now == "U":
        raise Unavailable(SERVICES[offset % len(SERVICES)])
    if now == "F":
        raise ConnectionError("service answered 503")
    if now == "R":
        raise Reject("the script says so")
    if now == "Y":
        raise RuntimeError("busy") from BusyError()
    if now == "V":
        raise ValueError("the script says so")
    if now == "Q":
        raise GateError("somebody has to act")
    if now == "P":
        raise Skip("the script says so") if offset % 2 else KeyError("the script says so")
    if now == "W":
        raise Defer(f"{DEFERRED_MS}ms")
    if now in LATER:
        raise RetryLater(after=LATER[now])
