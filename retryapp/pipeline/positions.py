"""Where a run starts: topic lives and epochs, next offsets, and the gaps before them.

A topic's life is its topic id. A position is the next offset to read: the greater of what the last run published and,
if that did not end in order, one more than the greatest offset in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import functions as F

from retryapp.kafka import KafkaAdmin, Positions
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.runs import FAILED, FINISHED, LastRun
from retryapp.pipeline.sources import Source, Sources
from retryapp.pipeline.tables import RECORDS_TABLE, TOPICS_TABLE, Tables

RETENTION: Final = "retention"
RECREATED: Final = "re-created"
IN_DOUBT: Final = "in-doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life(Source):
    """One life of a topic: a row of ``topics``."""

    cluster_id: str
    epoch: int
    first_seen_ms: int


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

    @property
    def name(self) -> str:
        """Its identity: a gap that is found twice is one."""
        place = f"{self.life.topic}@{self.life.topic_id} {self.partition}"
        return f"{place} {self.from_offset} {self.to_offset} {self.reason}"

    def row(self, run_id: str, found_ms: int) -> dict[str, Any]:
        """Return it as in the ``gaps`` table."""
        life = {name: getattr(self.life, name) for name in ("cluster_id", "topic_id", "epoch", "topic")}
        offsets = {name: getattr(self, name) for name in ("partition", "from_offset", "to_offset", "reason")}
        return {**life, **offsets, "found_ms": found_ms, "run_id": run_id}


@dataclass(frozen=True, slots=True)
class Start:
    """Where to read from."""

    positions: Mapping[tuple[str, int], int]  # topic and partition → next offset, for every partition
    gaps: tuple[Gap, ...]
    checkpoint: str | None  # name of the checkpoint to continue from; None: a new one


@dataclass(frozen=True, slots=True)
class Lives:
    """The lives of all topics of a run."""

    present: tuple[Life, ...]
    fresh: tuple[Life, ...]  # those of them that the lake does not know yet
    former: tuple[Life, ...]  # the life before of each topic that was re-created since the last run


def find_lives(facts: Facts, sources: Sources, now_ms: int) -> Lives:
    """Compare topic ids with what the lake knows."""
    known: dict[str, Life] = {}
    latest: dict[str, Life] = {}
    rows = [row for row in facts.rows(TOPICS_TABLE) if row["cluster_id"] == sources.cluster_id]
    for row in sorted(rows, key=lambda row: int(row["epoch"])):
        known[row["topic_id"]] = latest[row["topic"]] = Life(**row)
    present, fresh = [], []
    for source in sources.topics:
        if source.topic_id in known:
            present.append(known[source.topic_id])
            continue
        before = latest.get(source.topic)
        epoch = 1 if before is None else before.epoch + 1
        fresh.append(Life(**asdict(source), cluster_id=sources.cluster_id, epoch=epoch, first_seen_ms=now_ms))
    former = tuple(latest[life.topic] for life in fresh if life.topic in latest)
    return Lives((*present, *fresh), tuple(fresh), former)


def find_start(tables: Tables, admin: KafkaAdmin, sources: Sources, lives: Lives, last: LastRun | None) -> Start:
    """Return the next offset of each partition, and the gaps."""
    by_topic = {life.topic: life for life in lives.present}
    begins = Positions(admin.connection).begins(sources.places)
    kept = {} if last is None else dict(last.cut)
    if last is None or last.state != FINISHED:
        for place, offset in table_positions(tables, sources.cluster_id).items():
            kept[place] = max(offset, kept.get(place, 0))
    positions, gaps = {}, []
    for topic, number in sources.places:
        life, begin = by_topic[topic], begins[topic, number]
        # What a topic lost before the archive knew its name is no gap; of a later life nothing may be missing.
        position = kept.get((life.topic_id, number), begin if life.epoch == 1 else 0)
        if begin > position:
            gaps.append(Gap(life, number, position, begin, RETENTION))
        positions[topic, number] = max(begin, position)
    for life in lives.former:  # where it ended is not known any more
        ends = [(number, offset) for (topic_id, number), offset in sorted(kept.items()) if topic_id == life.topic_id]
        gaps += [Gap(life, number, offset, None, RECREATED) for number, offset in ends or [(0, 0)]]
    return Start(positions, tuple(gaps), None if gaps else _usable(tables, sources, last))


def table_positions(tables: Tables, cluster_id: str) -> dict[tuple[str, int], int]:
    """Return topic id and partition → one more than the greatest offset in the archive."""
    rows = (
        tables.read(RECORDS_TABLE)
        .where(F.col("cluster_id") == cluster_id)
        .groupBy("topic_id", "partition")
        .agg(F.max("offset").alias("greatest"))
        .collect()
    )
    return {(row["topic_id"], row["partition"]): row["greatest"] + 1 for row in rows}


def _usable(tables: Tables, sources: Sources, last: LastRun | None) -> str | None:
    if last is None or last.state == FAILED or not last.checkpoint.startswith(f"{sources.digest}-"):
        return None
    place = tables.lake.checkpoint("archive", last.checkpoint)
    return last.checkpoint if tables.files.exists(place) else None
