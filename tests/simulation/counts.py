"""What workers say that they have counted, judged at the end of a history (I12).

The ranges of `progress` events, and behind them the one that stands beside the committed offset, follow each other
without a hole, nothing in two of them, and their counts are those of the records that lie there. Like the oracle this
reads the bytes by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.oracle import Oracle
from simulation.story import Origin, Story, Topics, Violation

_NOTE = re.compile(r"p1:(\d+)-(\d+)@\d+:(\d+),(\d+),(\d+)(?:,(\d+))?")


class Range(NamedTuple):
    """What was counted between two offsets."""

    first: int
    end: int
    received: int
    ok: int
    skipped: int
    held: int = 0


def check_counts(broker: Broker, oracle: Oracle, topics: Topics, beyond: Collection[Origin] = ()) -> int:
    """Judge the counts of all partitions.

    Args:
        broker: at rest.
        oracle: knows what became of each record.
        topics: the handler's.
        beyond: skipped records that were settled beyond the offset: each may be counted as one that succeeded.

    Returns:
        How many events there are.

    Raises:
        Violation: there is a hole, an overlap or a wrong count.
    """
    events = 0
    for number in range(broker.partitions):
        told = ranges_of(broker, topics, number)
        events += len(told)
        committed, note = _committed(broker, topics, number)
        reached = check_ranges(number, told)
        beside = _beside(note, reached)
        if (beside.first, beside.end) != (reached, committed):
            raise Violation(f"I12 {number}/{committed}: events reach {reached}, and {beside} stands beside the offset")
        for each in [*told, beside]:
            _check_range(oracle.stories, number, each, beyond)
    return events


def ranges_of(broker: Broker, topics: Topics, number: int) -> list[Range]:
    """Return what the visible `progress` events of a partition say, in their order."""
    told = [json.loads(record.value or b"{}") for record in broker.visible(TopicPartition(topics.events, number))]
    return [
        Range(
            *(each.get(name, 0) for name in ("from_offset", "to_offset", "received", "first_try_ok", "skipped", "held"))
        )
        for each in told
        if each.get("kind") == "progress"
    ]


def check_ranges(number: int, told: list[Range]) -> int:
    """Judge whether ranges follow each other; return the offset that they reach.

    Raises:
        Violation: they do not.
    """
    reached = 0
    for each in told:
        if each.first != reached:
            raise Violation(f"I12 {number}/{each.first}: counted from here, and before it up to {reached}")
        reached = each.end
    return reached


def _committed(broker: Broker, topics: Topics, number: int) -> tuple[int, str]:
    """Return where the next lane begins and what it finds: by the group, or by the changelog once that is forgotten."""
    tp = TopicPartition(topics.main, number)
    if tp in broker.committed:
        return broker.committed[tp], broker.notes[tp]
    rows = [row.value for row in broker.visible(TopicPartition(topics.changelog, number)) if row.key == b"progress"]
    told = json.loads(rows[-1] or b"{}") if rows else {}
    return told.get("next", {}).get(topics.main, 0), told.get("tally", "")


def _beside(note: str, reached: int) -> Range:
    found = _NOTE.search(note)
    return Range(*(int(each or 0) for each in found.groups())) if found else Range(reached, reached, 0, 0, 0)


def _check_range(stories: Mapping[Origin, Story], number: int, told: Range, beyond: Collection[Origin]) -> None:
    there = [story for (at, offset), story in stories.items() if at == number and told.first <= offset < told.end]
    skipped = sum("skipped" in story.fates and not story.copies.total() and not story.held for story in there)
    ok = sum(not story.fates and not story.copies[1] and not story.held for story in there)
    held = sum(story.held or 1 in story.deferred for story in there)
    taken = sum(at == number and told.first <= offset < told.end for at, offset in beyond)
    as_fine = told.ok - ok
    if (told.received, told.skipped + as_fine) != (len(there), skipped) or not 0 <= as_fine <= taken:
        raise Violation(f"I12 {number}/{told.first}: {told}, and there are {len(there)}, {ok} and {skipped}")
    if told.held > held:  # one that was settled beyond the offset counts as failed
        raise Violation(f"I12 {number}/{told.first}: {told}, and {held} were held")
