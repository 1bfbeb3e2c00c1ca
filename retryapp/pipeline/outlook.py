"""How far the archive is behind each topic, and when retention takes what it has not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from retryapp.kafka import KafkaAdmin, Positions, first_times
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.positions import CUT_OFF, look_up
from retryapp.pipeline.sources import retention_of
from retryapp.pipeline.tables import Tables

SOON_MS: Final = 3_600_000  # a loss sooner than this is a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutlook:
    """One topic."""

    topic: str
    epoch: int
    behind: int  # offsets between what is archived and the end, open transactions included; not a count of records
    undecided: int  # of these, at or after the first record of an open transaction: they cannot be read yet
    oldest_unread_ms: int | None  # when the oldest record arrived that can be read and is not archived; None: none
    loss_at_ms: int | None  # when its retention ends; None: nothing unread, or no limit
    lost_offsets: int  # offsets that are gone already and were not archived
    ended: bool  # it was deleted or created again since: what was not archived is gone, and its number not known
    cut_off: Mapping[int, int]  # partition that is shorter than the archive → offset below which nothing is read

    def at_risk(self, now_ms: int) -> bool:
        is_soon = self.loss_at_ms is not None and self.loss_at_ms < now_ms + SOON_MS
        return self.ended or self.lost_offsets > 0 or bool(self.cut_off) or is_soon


def find_outlook(lake: Lake, admin: KafkaAdmin, group: str) -> tuple[TopicOutlook, ...]:
    """Return the outlook of each topic of a group, by name; changes nothing."""
    look = look_up(Tables(lake), admin, group)
    ends, positions = look.ends, look.positions
    last = Positions(admin.connection).ends(list(ends), committed=False) if ends else {}
    retention_ms = retention_of(admin, [life.topic for life in look.lives])
    present = {life.topic for life in look.lives}
    ended = {gap.life.topic: gap.life for gap in look.gaps if gap.to_offset is None}
    found = []
    for life in (*look.lives, *(life for topic, life in ended.items() if topic not in present)):
        places = [place for place in positions if place[0] == life.topic]
        gaps = [gap for gap in look.gaps if gap.life.topic == life.topic]
        unread = {place[1]: range(positions[place], ends[place]) for place in places}
        oldest_ms = min(first_times(admin.connection, life.topic, unread).values(), default=None)
        kept_ms = retention_ms.get(life.topic)
        found.append(
            TopicOutlook(
                topic=life.topic,
                epoch=life.epoch,
                behind=sum(max(0, last[place] - positions[place]) for place in places),
                undecided=sum(max(0, last[place] - max(ends[place], positions[place])) for place in places),
                oldest_unread_ms=oldest_ms,
                loss_at_ms=None if oldest_ms is None or kept_ms is None else oldest_ms + kept_ms,
                lost_offsets=sum(gap.offsets for gap in gaps),
                ended=life.topic in ended,
                cut_off={gap.partition: gap.to_offset or 0 for gap in gaps if gap.reason == CUT_OFF},
            )
        )
    return tuple(found)
