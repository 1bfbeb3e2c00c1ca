"""What must hold where nothing went wrong: invariants I4 (bounded late), I5 (no repetition) and I9 (healthy flow)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from simulation.oracle import Oracle
from simulation.story import Call, Story, Violation

LATE_MS: Final = 8_000.0
"""Longest lateness: handlers that hang hold others up."""
HEALED_MS: Final = 6_000.0
"""Longest time until everything has run after an outage: the longest break, a probe, the ramp, and some more."""
IDLE_MS: Final = 1_500.0
"""Longest wait for a first delivery while none runs; what there is of it comes from openings, half a second each."""


def check_quiet(oracle: Oracle, *, failed: int, ordered: bool, through: bool, lone: bool) -> None:
    """Judge a history without faults, once it is at rest; so many of its lanes have failed.

    What goes `through` the main topic comes behind what waits there, handlers that hang included. Where a lane takes a
    `lone` turn at a time, a record waits for a transaction of each one before it.
    """
    if failed:
        raise Violation(f"I4: {failed} lanes failed without a fault")
    if oracle.latest_ms > LATE_MS * (1 + 2 * through):
        raise Violation(f"I4: {oracle.latest_ms:.0f} ms late without a fault")
    if oracle.repeated:
        raise Violation(f"I5: {oracle.repeated} calls repeated without a fault")
    if oracle.cut:
        raise Violation(f"I17: {oracle.cut} attempts failed without their second try")
    idle_ms = longest_idle_wait_ms(oracle.stories.values())
    if idle_ms > IDLE_MS * (1 + 3 * lone) and not ordered:  # else it waited for others of its sequence
        raise Violation(f"I9: a record waited {idle_ms:.0f} ms for its first delivery while none was running")


def check_outage(oracle: Oracle, healed_ms: float) -> None:
    """Judge a history in which the service was down until then, and nothing else went wrong, if it is one.

    One record may hang at a time: it holds nobody up.
    """
    stories = oracle.stories.values()
    if {story.script for story in stories} <= {"S", "TS"}:
        for story in stories:
            begun_ms = max((call.started_ms for calls in story.calls.values() for call in calls), default=healed_ms)
            late_ms = begun_ms - max(healed_ms, story.sent_ms, story.freed_ms)
            steered = story.replays or story.hurried  # it begins when somebody says so
            if story.script != "TS" and not steered and late_ms > HEALED_MS:
                raise Violation(f"I18: a record began {late_ms:.0f} ms after the outage was over")


def longest_idle_wait_ms(stories: Collection[Story]) -> float:
    """Return the longest wait for a first delivery, from the lane's opening, while none ran at the worker."""
    firsts = (call for story in stories for call in _deliveries(story.calls.get(1, ())))
    calls = sorted(firsts, key=lambda call: call.started_ms)
    longest_ms = 0.0
    for story in stories:
        if story.taken_in is None:
            continue
        began_ms, opening = story.taken_in
        at_ms, idle_ms = max(story.sent_ms, opening.fenced_ms), 0.0
        for call in calls:
            if call.worker == opening.worker and call.ended_ms > at_ms and call.started_ms < began_ms:
                idle_ms += max(0.0, call.started_ms - at_ms)
                at_ms = call.ended_ms
        longest_ms = max(longest_ms, idle_ms + max(0.0, began_ms - at_ms))
    return longest_ms


def _deliveries(calls: Iterable[Call]) -> list[Call]:
    """Join tries in place to one call: while a delivery pauses between them it goes on, and has its place in flight."""
    joined: list[Call] = []
    for call in calls:
        if call.in_place and joined:
            joined[-1] = joined[-1]._replace(ended_ms=call.ended_ms)
        else:
            joined.append(call)
    return joined
