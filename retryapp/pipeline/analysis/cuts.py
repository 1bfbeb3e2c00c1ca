"""The cut of an analysis: how far a group has come in its main topics, taken before its other topics are archived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from retryapp.kafka import KafkaAdmin, Positions, find_handlers
from retryapp.pipeline.sources import find_sources, places_of, retention_of

Cut = Sequence[tuple[Any, ...]]  # rows of ``schemas.CUT``
LIFE: Final = ("cluster_id", "group", "main", "topic_id")


@dataclass(frozen=True, slots=True)
class TakenCut:
    """The cut of one group; see the package's docstring."""

    group: str
    rows: Cut  # an offset is None where Kafka has none
    ends: Mapping[tuple[str, int], int]  # of our own topics then, after the open transactions; at rest they stay so
    retention_ms: Mapping[str, int | None]  # topic of ours → how long it keeps records; None: no limit
    gone: tuple[str, ...] = ()  # main topics that were deleted, although their handlers' other topics are there
    lives: Mapping[str, str] = field(default_factory=dict)  # topic of ours → its id


def take_cut(admin: KafkaAdmin, group: str) -> TakenCut:
    """Ask for a group's offsets, then wait for the transactions that had moved them."""
    ours, cluster_id = find_sources(admin, group), admin.cluster_id()
    names = sorted({topology.main for topology in find_handlers(admin, group)})
    states = admin.describe_topics(names)
    gone = tuple(name for name in names if name not in states)
    places = [(name, number) for name in names if name in states for number in range(states[name].partitions)]
    positions = Positions(admin.connection)
    committed = positions.group_offsets(group, places) if places else {}
    rows = [
        (cluster_id, group, name, states[name].topic_id, number, committed[name, number]) for name, number in places
    ]
    ends = positions.settled_ends(places_of(ours))
    lives = {life.topic: life.topic_id for life in ours}
    return TakenCut(group, rows, ends, retention_of(admin, lives), gone, lives)


def is_present(cut: Cut) -> Column:
    """Tell whether a row with the columns ``LIFE`` is of a main topic as it is now."""
    return F.concat_ws("\n", *LIFE).isin(sorted({"\n".join(row[: len(LIFE)]) for row in cut}))
