"""Where a lane belongs: names and partitions, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retryapp.ports import TopicPartition


@dataclass(slots=True, kw_only=True)
class LaneSite:
    """Where a lane belongs and what it writes to."""

    name: str
    group: str
    partition: int
    sources: Sequence[TopicPartition]
    main: TopicPartition
    changelog: TopicPartition
    dlq: TopicPartition
    delivering: Sequence[TopicPartition] = ()
    """The sources whose records run in handlers."""
    seen: TopicPartition | None = None
    """Changelog of the table of seen events; None where there is none."""
    topic_id: str = ""
    """Id of the main topic: one that was made again has other offsets."""
    changelog_id: str = ""
    """Id of the changelog: one that was made again does not have the rows that wait."""
    start_at_end: bool = False
    """Where a main topic without committed offsets begins: the app's `consumer_auto_offset_reset`."""
