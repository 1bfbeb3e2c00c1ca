"""What handlers do, attempt by attempt, what they raise at a step, and the policies by which that is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import Rule, non_retryable, pausing, retryable, skippable
from retryapp.core.verdicts import Defer, Reject, RetryLater, Skip, Unavailable

SCRIPTS: Final = ("S", "S", "S", "S", "D", "FS", "FS", "FFS", "FDS", "F", "TS", "R", "FR", "LS", "FLS", "FFFS")
"""Attempt by attempt; the last letter goes on: success, success after a while (D), failure, time-out, reject, later,
and by rules busy (Y), invalid (V), skip (P), pause (Q); by rules with conditions fatal from the second attempt on (E),
and neither invalid (I) nor skip (O). A asks for an instant. W waits for its release, and is done after it. X ends the
worker at once, K after a while. N asks to be called again now, B after more than the longest wait. H does not heed its
cancellation for some time."""
LONG: Final = ("TS", "TFS", "T", "DS", "DFS")
"""Of a record that runs while those behind it end."""
DEFERRED: Final = ("W", "W", "FW", "WS", "WWF", "WFS")
ASKING: Final = ("NS", "FNS", "FNNS", "NNS", "FFNS", "BS", "FBS", "BNR", "FLNS")
HUNG: Final = ("H", "HS", "HFS", "FHS", "HHS")
VERDICTS: Final = ("P", "FP", "V", "FV", "YS", "YYFS", "YYYS", "YFYS", "FFYS", "FYP", "YYV", "YP")
CONDITIONS: Final = ("E", "FE", "EFS", "IS", "FIS", "I", "OS", "FOS", "O", "YYFS", "YFYS", "YYYS", "V", "FV", "P", "FP")
INSTANTS: Final = ("AS", "AS", "FAS", "AAS", "AFS", "A", "ADS", "AR")
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
SHORTER: Final = "200ms 800ms"
SHORTER_MS: Final = WAITS_MS[0], WAITS_MS[1][:2]
OWN_MS: Final = (150, 600)
"""Waits of the rule for busy services."""


class GateError(Exception):
    """What a rule pauses the partition for."""


class BusyError(Exception):
    """What a rule has a schedule for; runs that take too long have none."""


def _never(_delivery: Any, _error: BaseException) -> bool:
    return False


def _broken(_delivery: Any, _error: BaseException) -> bool:
    """Raise: then the rule does not match."""
    raise LookupError("a condition that is wrong")


def _is_busy(_delivery: Any, error: BaseException) -> bool:
    return type(error) is BusyError


def is_invalid(value: bytes | None) -> bool:
    """Tell what the condition about a record says of its value, which a command may have edited."""
    return b"I" not in (value or b"").rpartition(b":")[2]


def _is_invalid(delivery: Any, _error: BaseException) -> bool:
    return is_invalid(delivery.raw_value)


def _was_tried(delivery: Any, _error: BaseException) -> bool:
    return bool(delivery.attempt > 1)


def _says_so(_delivery: Any, error: BaseException) -> bool:
    return error.args == (_SAYS_SO,)


_SAYS_SO: Final = "the script says so"
RULES: Final = (
    retryable(BusyError, schedule="150ms 600ms"),
    non_retryable(ValueError, dead_letters=INVALID),
    skippable(KeyError),
    pausing(GateError),
)
CONDITIONED: Final = (
    retryable(BusyError, schedule="9s", when=_never),
    skippable(ConnectionError, when=_broken),
    retryable(BusyError, schedule="150ms 600ms", when=_is_busy),
    non_retryable(ValueError, dead_letters=INVALID, when=_is_invalid),
    non_retryable(EOFError, when=_was_tried),
    skippable(KeyError, when=_says_so),
    pausing(GateError),
)
"""The same, and more, with conditions about the record, the attempt and the error."""
POLICIES: Final = RetryPolicy("300ms 1s 3s", timeout="2s"), RetryPolicy("200ms 800ms 2s", timeout="2s")
"""The second one is that of every other life, where policies change."""


def policies(
    *,
    ruled: bool,
    conditions: bool,
    hot: bool,
    endless: bool = False,
    shorter: bool = False,
    drop: bool = False,
    elapsed_ms: int | None = None,
) -> tuple[RetryPolicy, ...]:
    """Return the policies of a history: with rules, with tries in place, without an end, the second one shorter."""
    rules: tuple[Rule, ...] = CONDITIONED if conditions else RULES if ruled else ()
    rules = tuple(replace(rule, dead_letters=None) for rule in rules) if drop else rules
    schedules = ["forever(300ms)"] if endless else [POLICIES[0].schedule, SHORTER if shorter else POLICIES[1].schedule]
    more: dict[str, Any] = {"hot": HOT_TEXT} if hot else {}
    more |= {} if elapsed_ms is None else {"max_elapsed": f"{elapsed_ms}ms"}
    return tuple(RetryPolicy(schedule, on=rules, timeout="2s", **more) for schedule in schedules)


def end(now: str, offset: int, at_s: float) -> None:
    """End a handler call as a step of its script says, which may ask for an instant."""
    if now == "U":
        raise Unavailable(SERVICES[offset % len(SERVICES)])
    if now == "F":
        raise ConnectionError("service answered 503")
    if now == "R":
        raise Reject("the script says so")
    if now == "Y":
        raise RuntimeError("busy") from BusyError()
    if now in "VI":
        raise ValueError(_SAYS_SO)
    if now == "E":
        raise EOFError
    if now == "O":
        raise KeyError("nobody says so")
    if now == "A":
        raise RetryLater(at=at_s)
    if now == "Q":
        raise GateError("somebody has to act")
    if now == "P":
        raise Skip(_SAYS_SO) if offset % 2 else KeyError(_SAYS_SO)
    if now == "W":
        raise Defer(f"{DEFERRED_MS}ms")
    if now in LATER:
        raise RetryLater(after=LATER[now])
