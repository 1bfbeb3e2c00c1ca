"""How far the archive is behind each topic, and when retention takes what it has not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from retryapp.kafka import KafkaAdmin, Positions, read_offsets
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.positions import find_lives, find_start
from retryapp.pipeline.runs import RunLog
from retryapp.pipeline.sources import find_sources, retention_of
from retryapp.pipeline.tables import Tables

JOB: Final = "archive"
SOON_MS: Final = 3_600_000  # a loss sooner than this is a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutlook:
    """One topic."""

    topic: str
    epoch: int
    behind: int  # offsets between what is archived and the end; not a count of records
    oldest_unread_ms: int | None  # when the oldest record arrived that is not archived; None: there is none
    loss_at_ms: int | None  # when its retention ends; None: nothing unread, or no limit
    lost_offsets: int  # offsets that are gone already and were not archived

    def at_risk(self, now_ms: int) -> bool:
        """Tell whether records are lost, or will be soon."""
        return self.lost_offsets > 0 or (self.loss_at_ms is not None and self.loss_at_ms < now_ms + SOON_MS)


def find_outlook(spark: SparkSession, lake: Lake, admin: KafkaAdmin, group: str) -> tuple[TopicOutlook, ...]:
    """Return the outlook of each topic of a group, by name; changes nothing."""
    facts, tables = Facts(spark, lake), Tables(spark, lake)
    sources = find_sources(admin, group)
    lives = find_lives(facts, sources, 0)
    start = find_start(tables, admin, sources, lives, RunLog(facts, int).last(JOB, sources))
    ends = Positions(admin.connection).ends(list(start.positions))
    retention_ms = retention_of(admin, [source.topic for source in sources.topics])
    found = []
    for life in sorted(lives.present, key=lambda life: life.topic):
        places = [place for place in sources.places if place[0] == life.topic]
        unread = {place[1]: start.positions[place] for place in places if start.positions[place] < ends[place]}
        oldest_ms = _oldest(admin, life.topic, unread)
        kept_ms = retention_ms[life.topic]
        found.append(
            TopicOutlook(
                topic=life.topic,
                epoch=life.epoch,
                behind=sum(ends[life.topic, partition] - position for partition, position in unread.items()),
                oldest_unread_ms=oldest_ms,
                loss_at_ms=None if oldest_ms is None or kept_ms is None else oldest_ms + kept_ms,
                lost_offsets=sum(gap.offsets for gap in start.gaps if gap.life.topic == life.topic),
            )
        )
    return tuple(found)


def _oldest(admin: KafkaAdmin, topic: str, unread: Mapping[int, int]) -> int | None:
    firsts = (
        next(read_offsets(admin.connection, topic, partitions=[partition], start={partition: position}), None)
        for partition, position in unread.items()
    )
    return min((first[2] for first in firsts if first is not None), default=None)
