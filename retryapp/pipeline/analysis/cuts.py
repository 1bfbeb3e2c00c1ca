"""The cut of an analysis: how far a group has come in its main topics, taken before its other topics are archived."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from retryapp.core.marks import ProgressRecord, Tally, parse_tally
from retryapp.core.metadata import MAX_EPOCH_MS
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, Positions, TopicState, find_handlers
from retryapp.kafka.remembered import progress_records
from retryapp.pipeline.sources import find_sources, places_of, retention_of

Cut = Sequence[tuple[Any, ...]]  # rows of ``schemas.CUT``
LIFE: Final = ("cluster_id", "group", "main", "topic_id")
MINUTE_MS: Final = 60_000  # longest time of one count: then a worker writes it as an event


@dataclass(frozen=True, slots=True)
class TakenCut:
    """The cut of one group; see the package's docstring."""

    group: str
    rows: Cut
    ends: Mapping[tuple[str, int], int]  # of our own topics then, after the open transactions; at rest they stay so
    retention_ms: Mapping[str, int | None]  # topic of ours → how long it keeps records; None: no limit
    gone: tuple[str, ...] = ()  # main topics that were deleted, although their handlers' other topics are there
    lives: Mapping[str, str] = field(default_factory=dict)  # topic of ours → its id
    forgotten: tuple[str, ...] = ()  # partitions whose committed offset Kafka has forgotten
    tallies: tuple[tuple[Any, ...], ...] = ()  # what workers have counted and not said yet: rows of ``counts.RANGE``


def take_cut(admin: KafkaAdmin, group: str) -> TakenCut:
    """Find how far a group has come, then wait for the transactions that had moved it."""
    ours, cluster_id = find_sources(admin, group), admin.cluster_id()
    handlers = {topology.main: topology for topology in find_handlers(admin, group)}
    states = admin.describe_topics([*handlers, *(each.pending_changelog for each in handlers.values())])
    positions = Positions(admin.connection)
    mains = {life.topic: life.main for life in ours}
    begun = {(mains[topic], number) for (topic, number), end in positions.ends(places_of(ours)).items() if end}
    rows, tallies, forgotten = list[tuple[Any, ...]](), list[tuple[Any, ...]](), list[str]()
    for main in sorted(handlers.keys() & states.keys()):
        state = states[main]
        changelog = states.get(handlers[main].pending_changelog)
        reached = _reached(positions, handlers[main], state, changelog, begun)
        for number, (offset, tally, written_ms, is_forgotten) in reached.items():
            rows.append((cluster_id, group, main, state.topic_id, number, offset))
            forgotten += [f"{group} {main} {number}"] if is_forgotten else []
            if tally is not None:
                since_ms = min(tally.since_ms, MAX_EPOCH_MS)
                to_ms = max(since_ms, min(since_ms + MINUTE_MS, written_ms))  # or first tries would lie in the future
                tallies.append(
                    (
                        cluster_id, group, main, number, tally.from_offset, offset, since_ms, to_ms,
                        tally.received, tally.first_try_ok, tally.failed + tally.held, tally.skipped,
                    )
                )  # fmt: skip
    lives = {life.topic: life.topic_id for life in ours}
    return TakenCut(
        group, rows, positions.settled_ends(places_of(ours)), retention_of(admin, lives), lives=lives,
        gone=tuple(sorted(handlers.keys() - states.keys())), forgotten=tuple(forgotten), tallies=tuple(tallies),
    )  # fmt: skip


def _reached(
    positions: Positions,
    topology: HandlerTopology,
    state: TopicState,
    changelog: TopicState | None,
    begun: Collection[tuple[str, int]],
) -> dict[int, tuple[int, Tally | None, int, bool]]:
    """Return by partition the cut, what was counted before it and not said yet, until when; is its offset forgotten?

    Each transaction of a lane writes offset and tally to the changelog, with the id of its main topic: an offset of
    another one may outlive that, and counts of a former one are no counts of this. What the group has was set by hand,
    or a worker has moved it since. Kafka forgets the offsets of a group that was away for a week; if the changelog is
    gone too, the cut is the topic's end, so that nothing that failed is left out.
    """
    places = [(state.name, number) for number in range(state.partitions)]
    committed = positions.group_offsets(topology.group, places)
    noted = dict[int, ProgressRecord]()
    if changelog is not None:  # after the offsets, with all that has moved them: an offset beyond it was set by hand
        positions.settled_ends([(changelog.name, number) for number in range(changelog.partitions)])
        noted = progress_records(positions.connection, topology, state.topic_id)
    is_running = bool(positions.describe_group(topology.group).members)
    lost = [place for place in places if committed[place] is None and place[1] not in noted]
    ends = positions.ends([place for place in lost if changelog is None or place in begun])
    found = dict[int, tuple[int, Tally | None, int, bool]]()
    for place in places:
        offset, note, number = committed[place], noted.get(place[1]), place[1]
        if note is None:
            found[number] = ends.get(place, 0) if offset is None else offset, None, 0, ends.get(place, 0) > 0
            continue
        written = note.positions.get(state.name)
        if written is None:  # the group has not begun this topic
            found[number] = 0, None, 0, False
        elif offset is None or offset == written or (offset < written and is_running):
            is_forgotten = offset is None and written > 0
            found[number] = written, parse_tally(note.tally, written), note.written_ms, is_forgotten
        else:
            found[number] = offset, None, 0, False
    return found


def is_present(cut: Cut) -> Column:
    """Tell whether a row with the columns ``LIFE`` is of a main topic as it is now."""
    return F.concat_ws("\n", *LIFE).isin(sorted({"\n".join(row[: len(LIFE)]) for row in cut}))
