"""What a page answers when it has no facts: one shape for all errors.

Every error of every address is ``{"error": {"code", "message", "hint"}}``: a constant code for programs, what happened
with the values it is about, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from retryapp.core.errors import RetryAppError, shown
from retryapp.core.text import counted
from retryapp.ports import HandlerInfo, PartitionInfo

NAMED_LANES: Final = 5
"""Lanes that an answer names; of more it gives the number."""
SOON: Final = {"Retry-After": "2"}


class PageError(RetryAppError):
    """A request that has no page as its answer. Status and code are for programs, message and hint for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str,
        headers: Mapping[str, str] | None = None,
        *,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """`links`: for people, where to go on: addresses by their texts."""
        self.links = dict(links or {})
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})
        super().__init__(f"{code}: {message}. {hint}")

    @property
    def facts(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


def bad_parameter(name: str, value: str, expected: str) -> PageError:
    return PageError(400, "bad-parameter", f"parameter {name}={shown(value)} cannot be used", f"Expected {expected}")


def not_found(code: str, message: str, hint: str, links: Mapping[str, str] | None = None) -> PageError:
    return PageError(404, code, message, hint, links=links)


def elsewhere(main: str, partition: int, location: str | None, *, routed: bool = False) -> PageError:
    """Return 307 to the worker that has a partition, or 409 where its address is not known, or it was sent here."""
    if routed and location is not None:
        return PageError(
            409,
            "partition-elsewhere",
            f"partition {partition} of {main} is on another worker by now: {location}",
            "Ask there; if that one does not have it either, it is moving: ask again in a few seconds",
            links={"The same page of the worker that has it": location},
        )
    if location is None:
        return PageError(
            409,
            "partition-elsewhere",
            f"partition {partition} of {main} is not on this worker, and its owner is not known here",
            "It may be moving to another worker: ask again in a few seconds. A worker without pages has no address",
        )
    return PageError(
        307,
        "partition-elsewhere",
        f"partition {partition} of {main} is on another worker: {location}",
        "Follow the Location header",
        {"Location": location},
    )


def not_open(main: str, partition: int, state: str, last_error: str | None) -> PageError:
    """Return 503 for a partition that this worker has but cannot read yet."""
    why = f"; its last error: {last_error}" if last_error else ""
    return PageError(
        503,
        "partition-not-open",
        f"partition {partition} of {main} belongs to this worker but is {state}{why}",
        "Ask again in a few seconds; if it does not open, look at the worker's log",
        SOON,
    )


def not_ready(
    silence: str | None, waiting: Sequence[tuple[HandlerInfo, PartitionInfo]], lanes: int, now_ms: int, home: str
) -> PageError:
    """Return 503 for a worker that is not ready; `waiting`: those of its `lanes` that are not open or stalled."""
    if waiting:
        names = [_lane_text(info, item, now_ms) for info, item in waiting[:NAMED_LANES]]
        names += [f"and {len(waiting) - NAMED_LANES} more"] if len(waiting) > NAMED_LANES else []
        verb = "is" if len(waiting) == 1 else "are"
        message = (
            f"{len(waiting)} of {counted(lanes, 'lane')} of this worker {verb} not open or stalled: {'; '.join(names)}"
        )
        hint = f"Lanes retry by themselves; an idle one waits for the next assignment. Ask again, or see {home}"
    elif silence is None:
        message = "this worker waits for its partitions: for its first assignment, or for the end of a rebalance"
        hint = f"Ask again; if nothing changes, look at the group's other members, the worker's log and {home}"
    if silence is not None:
        message = f"{silence}; {message}" if waiting else silence
        hint = (
            "If no cause is named, see whether it runs and can be reached from here. This worker goes on by itself "
            f"once it answers: {home}"
        )
    return PageError(503, "not-ready", message, hint, SOON)


def _lane_text(info: HandlerInfo, item: PartitionInfo, now_ms: int) -> str:
    since = "" if item.since_ms is None else f" for {max(0, now_ms - item.since_ms) // 1000} s"
    why = f", last error: {item.last_error}" if item.last_error else ""
    if item.stalled:
        return f"{info.main}[{item.partition}] of {info.function} is stalled: {item.stalled}"
    return f"{info.main}[{item.partition}] of {info.function} is {item.state}{since}{why}"
