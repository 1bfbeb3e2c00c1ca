"""What handlers do, attempt by attempt, what they raise at a step, and the policies by which that is judged."""

from __future__ import annotations

from typing import Any, Final

from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import non_retryable, pausing, retryable, skippable
from retryapp.core.verdicts import Defer, Reject, RetryLater, Skip, Unavailable

SCRIPTS: Final = ("S", "S", "S", "S", "D", "FS", "FS", "FFS", "FDS", "F", "TS", "R", "FR", "LS", "FLS", "FFFS")
"""Attempt by attempt; the last letter goes on: success, success after a while (D), failure, time-out, reject, later,
and by rules busy (Y), invalid (V), skip (P), pause (Q). W waits for its release, and is done after it. X ends the
worker at once, K after a while. N asks to be called again now, B after more than the longest wait. H does not heed its
cancellation for some time."""
LONG: Final = ("TS", "TFS", "T", "DS", "DFS")
"""Of a record that runs while those behind it end."""
DEFERRED: Final = ("W", "W", "FW", "WS", "WWF", "WFS")
ASKING: Final = ("NS", "FNS", "FNNS", "NNS", "FFNS", "BS", "FBS", "BNR", "FLNS")
HUNG: Final = ("H", "HS", "HFS", "FHS", "HHS")
VERDICTS: Final = ("P", "FP", "V", "FV", "YS", "YYFS", "YYYS", "YFYS", "FFYS", "FYP", "YYV", "YP")
GATED: Final = ("Q", "FQ", "FFQ")
"""Q pauses its partition, twice, and is fine after that."""
TRIED: Final = ("G", "GS", "FG", "GFG", "F", "GTS")
"""G fails at the first try of an attempt, and is fine at the next one."""
LISTED: Final = ("S", "S", "Z", "ZS", "FS", "FZS", "TS", "R")
"""Z raises for all records of its call, F and R are about themselves alone."""
DYING: Final = ("R", "R", "R", "FR", "F")
HANDLED: Final = ("S", "S", "D", "FS", "FFS", "F", "R", "TS", "FDS", "LS", "P", "FP")
"""What the handler of dead letters does with one."""
DEADLY: Final = ("X", "K", "FX", "FK", "H", "HS", "FHS")
"""The same, where it ends its worker, or does not end."""
LATER_MS: Final = 700
BEYOND_MS: Final = 9_000
DEFERRED_MS: Final = 2_500
SERVICES: Final = ("", "ledger", "mail")
"""What a record needs, by its offset."""
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
