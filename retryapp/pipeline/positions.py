"""A group's topics and the archive: where a run starts, and what was or will be lost. A life is a topic id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from retryapp.kafka import KafkaAdmin, Positions, first_times
from retryapp.pipeline.errors import OtherClusterError
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.sources import Life, find_sources, places_of, retention_of
from retryapp.pipeline.state import State, read_state
from retryapp.pipeline.tables import Tables

RETENTION: Final = "retention"
RECREATED: Final = "re-created"
DELETED: Final = "deleted"
CUT_OFF: Final = "cut-off"  # the topic is shorter than what was read: a broker came back without its last records
IN_DOUBT: Final = "in-doubt"
SOON_MS: Final = 3_600_000  # a loss sooner than this is a finding

Offsets = Mapping[tuple[str, int], int]  # topic and partition → offset


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that were not read."""

    life: Life
    partition: int
    from_offset: int | None  # None: not known
    to_offset: int | None  # exclusive; None: not known
    reason: str

    @property
    def offsets(self) -> int:
        """Number of offsets; 0 where it is not known."""
        return 0 if self.from_offset is None or self.to_offset is None else self.to_offset - self.from_offset

    def row(self, cluster_id: str, run_id: str, found_ms: int) -> dict[str, Any]:
        """Return it as in the ``gaps`` table."""
        life = {name: getattr(self.life, name) for name in ("group", "main", "topic_id", "epoch", "topic")}
        offsets = {name: getattr(self, name) for name in ("partition", "from_offset", "to_offset", "reason")}
        return {"cluster_id": cluster_id, **life, **offsets, "found_ms": found_ms, "run_id": run_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a run finds, and where it reads from."""

    cluster_id: str
    state: State
    positions: Offsets  # the next offset of every partition
    ends: Offsets
    gaps: tuple[Gap, ...]
    lives: tuple[Life, ...]  # of the topics that are there
    fresh: tuple[Life, ...]  # those of them that the lake does not know yet

    @property
    def has_news(self) -> bool:
        left = any(self.ends[place] > position for place, position in self.positions.items())
        return bool(left or self.gaps or self.fresh)

    def lives_at(self, positions: Offsets) -> tuple[Life, ...]:
        """Return the lives, archived up to these offsets."""
        return tuple(
            replace(life, next=tuple(positions[life.topic, number] for number in range(len(life.next))))
            for life in self.lives
        )


def look_up(tables: Tables, admin: KafkaAdmin, group: str) -> Look:
    """Compare a group's topics with what the lake knows; changes nothing."""
    state, cluster_id = read_state(tables), admin.cluster_id()
    if state.cluster_id not in {None, cluster_id}:
        raise OtherClusterError(tables.lake.uri, str(state.cluster_id), cluster_id)
    return compare(state, admin, group, find_sources(admin, group, state.of_group(group)), cluster_id=cluster_id)


def compare(state: State, admin: KafkaAdmin, group: str, sources: Sequence[Life], *, cluster_id: str) -> Look:
    """Return the next offset of each partition, and the gaps before them."""
    offsets, places = Positions(admin.connection), places_of(sources)
    begins, ends = (offsets.begins(places), offsets.ends(places)) if places else ({}, {})
    lives, fresh, positions, gaps = [], [], dict[tuple[str, int], int](), []
    for source in sources:
        former = state.life(source.topic)
        is_known = former is not None and former.topic_id == source.topic_id
        epoch = 1 if former is None else former.epoch if is_known else former.epoch + 1
        life = replace(source, epoch=epoch)
        lives.append(life)
        if not is_known:
            fresh.append(life)
        kept = dict(enumerate(former.next)) if former is not None and is_known else {}
        for number in range(len(source.next)):
            begin, position = begins[source.topic, number], kept.get(number)
            if position is None:
                # What a topic lost before the archive knew it is no gap. Nothing may be missing of a later life, and
                # of a partition that was added; without a run, the state is of rows, which do not name all partitions.
                is_later = epoch > 1 or (state.run_id and kept and number not in kept)
                position = 0 if is_later else begin
            if begin > position:
                gaps.append(Gap(life, number, position, begin, RETENTION))
            if ends[source.topic, number] < position:  # others will have these offsets, which are not read again
                gaps.append(Gap(life, number, None, position, CUT_OFF))
            positions[source.topic, number] = max(begin, position)
    present = {life.topic: life.topic_id for life in lives}
    for life in state.of_group(group):
        if present.get(life.topic) != life.topic_id:  # where its partitions ended is not known any more
            reason = RECREATED if life.topic in present else DELETED
            gaps += [Gap(life, number, offset or 0, None, reason) for number, offset in enumerate(life.next)]
    return Look(
        cluster_id=cluster_id, state=state, positions=positions, ends=ends,
        gaps=tuple(gaps), lives=tuple(lives), fresh=tuple(fresh),
    )  # fmt: skip


def next_ranges(positions: Offsets, ends: Offsets, most: int) -> tuple[Offsets, Offsets]:
    """Return begin and end of the next batch, of the partitions that have more: at most so many offsets, or one each.

    >>> next_ranges({("a", 0): 10, ("a", 1): 5, ("b", 0): 0}, {("a", 0): 10, ("a", 1): 35, ("b", 0): 10}, 20)
    ({('a', 1): 5, ('b', 0): 0}, {('a', 1): 20, ('b', 0): 5})
    """
    left = {place: ends[place] - position for place, position in positions.items() if ends[place] > position}
    total = sum(left.values())
    begin = {place: positions[place] for place in left}
    shares = {place: count if total <= most else max(1, most * count // total) for place, count in left.items()}
    return begin, {place: position + shares[place] for place, position in begin.items()}


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
