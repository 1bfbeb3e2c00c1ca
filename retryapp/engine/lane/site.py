"""Names and partitions of a lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retryapp.ports import TopicPartition


@dataclass(slots=True, kw_only=True)
class LaneSite:
    """What a lane reads and writes."""

    name: str
    group: str
    partition: int
    sources: Sequence[TopicPartition]
    main: TopicPartition
    changelog: TopicPartition
    dlqs: Sequence[TopicPartition] = ()
    seen: TopicPartition | None = None
    """Changelog of the table of seen events, if there is one."""
    control: TopicPartition | None = None
    """Where commands come from."""
    control_id: str = ""
    """Id of the control topic: a recreated one has other offsets."""
    topic_id: str = ""
    """Id of the main topic: a recreated one has other offsets."""
    changelog_id: str = ""
    """Id of the changelog: a recreated one does not have the waiting rows."""
    fences: bool = False
    """Its handler takes deliveries, which have a fence: each opening writes to the changelog."""
    start_at_end: bool = False
    """Start of a main topic without committed offsets: the app's `consumer_auto_offset_reset`."""
