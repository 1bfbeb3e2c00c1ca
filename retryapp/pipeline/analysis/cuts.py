"""The cut of an analysis: how far a group has come in its main topics, taken before its other topics are archived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from retryapp.core.marks import parse_tally, split_note
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, Positions, TopicState, find_handlers
from retryapp.kafka.remembered import progress_records
from retryapp.pipeline.sources import find_sources, places_of, retention_of

Cut = Sequence[tuple[Any, ...]]  # rows of ``schemas.CUT``
LIFE: Final = ("cluster_id", "group", "main", "topic_id")


@dataclass(frozen=True, slots=True)
class TakenCut:
    """The cut of one group; see the package's docstring."""

    group: str
    rows: Cut
    counted: Cut  # of the same places the offsets up to which workers have counted the topic that is there now
    ends: Mapping[tuple[str, int], int]  # of our own topics then, after the open transactions; at rest they stay so
    retention_ms: Mapping[str, int | None]  # topic of ours → how long it keeps records; None: no limit
    gone: tuple[str, ...] = ()  # main topics that were deleted, although their handlers' other topics are there
    lives: Mapping[str, str] = field(default_factory=dict)  # topic of ours → its id
    forgotten: tuple[str, ...] = ()  # partitions whose committed offset Kafka has forgotten


def take_cut(admin: KafkaAdmin, group: str) -> TakenCut:
    """Find how far a group has come, then wait for the transactions that had moved its offsets."""
    ours, cluster_id = find_sources(admin, group), admin.cluster_id()
    handlers = {topology.main: topology for topology in find_handlers(admin, group)}
    states = admin.describe_topics([*handlers, *(each.pending_changelog for each in handlers.values())])
    positions = Positions(admin.connection)
    mains = sorted(handlers.keys() & states.keys())
    places = [(main, number) for main in mains for number in range(states[main].partitions)]
    reached = dict[tuple[str, int], tuple[int, str]]()
    for place, (offset, text) in (positions.group_commits(group, places) if places else {}).items():
        note = split_note(text)
        if offset is not None and note.main in {"", states[place[0]].topic_id}:  # else it has outlived its topic
            reached[place] = offset, note.tally
    forgotten = _written_down(positions, handlers, states, [place for place in places if place not in reached])
    reached = dict.fromkeys(places, (0, "")) | forgotten | reached
    rows, counted = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for (main, number), (offset, text) in reached.items():
        tally, head = parse_tally(text, offset), (cluster_id, group, main, states[main].topic_id, number)
        rows.append((*head, offset))
        counted.append((*head, offset if tally is None else tally.from_offset))
    lives = {life.topic: life.topic_id for life in ours}
    return TakenCut(
        group, rows, counted, positions.settled_ends(places_of(ours)), retention_of(admin, lives), lives=lives,
        gone=tuple(sorted(handlers.keys() - states.keys())),
        forgotten=tuple(f"{group} {main} {number}" for (main, number), (offset, _) in forgotten.items() if offset),
    )  # fmt: skip


def _written_down(
    positions: Positions,
    handlers: Mapping[str, HandlerTopology],
    states: Mapping[str, TopicState],
    places: Sequence[tuple[str, int]],
) -> dict[tuple[str, int], tuple[int, str]]:
    """Return the offset and tally of partitions of which Kafka has no offset, as their lanes wrote them down.

    Kafka forgets the offsets of a group that was away for a week. Without the changelog it is not known how far the
    group had come: then the cut is the end of the topic, so that nothing that failed is left out. A partition that the
    group has not begun, or of which it has read only a former topic, is not among them.
    """
    found = dict[tuple[str, int], tuple[int, str]]()
    for main in dict(places):
        numbers = [number for name, number in places if name == main]
        changelog = states.get(handlers[main].pending_changelog)
        if changelog is None:
            ends = positions.ends([(main, number) for number in numbers])
            found |= {place: (end, "") for place, end in ends.items()}
            continue
        numbers = [number for number in numbers if number < changelog.partitions]
        noted = progress_records(positions.connection, handlers[main], states[main].topic_id, numbers)
        written = ((number, each.positions.get(main), each.tally) for number, each in noted.items())
        found |= {(main, number): (offset, tally) for number, offset, tally in written if offset is not None}
    return found


def is_present(cut: Cut) -> Column:
    """Tell whether a row with the columns ``LIFE`` is of a main topic as it is now."""
    return F.concat_ws("\n", *LIFE).isin(sorted({"\n".join(row[: len(LIFE)]) for row in cut}))
