"""Small hand-made histories of records, as rows of the archive's ``records``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from samples import waiting

from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.headers import encode_metadata
from retryapp.core.lifecycle import Discarded, Held, Progress, Skipped, Succeeded, Superseded
from retryapp.core.record import Origin, failure_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from retryapp.pipeline.analysis.cuts import Cut

GROUP, MAIN, TOPIC_ID, CLUSTER = "billing", "orders", "kq8G0bTz", "c1"
MINUTE_MS = 60_000
NOON_MS = 1_900_000_000_000


@dataclass
class Archive:
    """Rows as the archive would have written them; offsets count up by topic and partition."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    group: str = GROUP

    def add(self, station: str, partition: int, **columns: Any) -> None:
        """Append a record to a topic."""
        topic = f"{self.group}.{MAIN}.{station}"
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        self.rows.append(
            {
                "cluster_id": CLUSTER,
                "topic_id": f"id-{station}",
                "epoch": 1,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp_ms": NOON_MS,
                "date": date(2030, 3, 17),
                "headers": [],
                "group": self.group,
                "main": MAIN,
                "station": station,
                "run_id": "r1",
                **columns,
            }
        )

    def failed(
        self, offset: int, attempt: int, *, partition: int = 0, key: str | None = None, arrived_ms: int = NOON_MS,
        **facts: Any,
    ) -> None:  # fmt: skip
        """A record waits (``due_at_ms``), or is dead (``reason``)."""
        origin = Origin(MAIN, facts.pop("topic_id", TOPIC_ID), partition, offset)
        began = facts.pop("started_ms", NOON_MS)
        facts = {"delivery": attempt, **facts}
        times = {"started_ms": began, "last_failed_ms": began + 100}
        told = replace(_PLAIN, group=self.group, origin=origin, attempt=attempt, **times, **facts)
        station = "retry" if told.reason is None else "dlq"
        if told.reason is not None:
            told = replace(told, due_at_ms=None, tier=None)
        self.add(station, partition, headers=encode_metadata(told), key_hash=key, timestamp_ms=arrived_ms)

    def event(self, kind: Callable[..., Any], offset: int, *, partition: int = 0, **facts: Any) -> None:
        """A worker tells something of a record."""
        origin = Origin(MAIN, facts.pop("topic_id", TOPIC_ID), partition, offset)
        name = failure_id(self.group, origin)
        ids = {"group": self.group, "handler": "shop.charge", "failure_id": name, "origin": origin.text}
        self.add("events", partition, value=kind(**ids, **facts).to_json(), key_hash="of-the-event")

    def succeeded(self, offset: int, attempt: int, *, started_ms: int = NOON_MS, **facts: Any) -> None:
        """A record is done after a failure."""
        times = {"started_ms": started_ms, "ended_ms": started_ms + 50, "lateness_ms": facts.pop("lateness_ms", 7)}
        self.event(Succeeded, offset, attempt=attempt, **times, **facts)

    def marked(self, offset: int, delivery: int, kind: str, *, replays: int = 0) -> None:
        """Something became of a dead letter."""
        name = failure_id(self.group, Origin(MAIN, TOPIC_ID, 0, offset))
        mark = LetterMark(
            mark=MarkKind(kind), failure_id=name, letter=0, delivery=delivery, replays=replays, command="c1"
        ).to_record(f"{self.group}.{MAIN}.dlq", 0)
        self.add("dlq", 0, headers=mark.headers, value=mark.value, key_hash="k")

    def held(self, offset: int) -> None:
        """A record waits for earlier ones of its sequence."""
        self.event(Held, offset, at_ms=NOON_MS)

    def skipped(self, offset: int, delivery: int, **facts: Any) -> None:
        """A record is skipped; delivery 0: as a duplicate."""
        self.event(Skipped, offset, delivery=delivery, attempt=delivery, at_ms=NOON_MS + 70_000, **facts)

    def discarded(
        self, offset: int, attempt: int, kind: Literal["discarded", "failed"] = "discarded", reason: str = "exhausted"
    ) -> None:
        """A record is dead, and there is no dead-letter topic."""
        self.event(
            partial(Discarded, kind=kind), offset, reason=reason, error_type="OSError", error_message="away",
            fingerprint="f2", attempt=attempt, delivery=attempt, policy="p2", origin_timestamp_ms=NOON_MS - 5,
            first_failed_ms=NOON_MS, started_ms=NOON_MS + 70_000, ended_ms=NOON_MS + 70_100,
        )  # fmt: skip

    def superseded(self, offset: int, delivery: int) -> None:
        """A newer record has replaced one whose last delivery had this number."""
        facts = {"delivery": delivery, "attempt": delivery, "by_offset": offset + 1}
        self.event(Superseded, offset, at_ms=NOON_MS + 70_000, **facts)

    def counted(self, first: int, end: int, *, ok: int, failed: int, partition: int = 0, **facts: Any) -> None:
        """A worker says what it counted."""
        facts = {"from_ms": NOON_MS, "to_ms": NOON_MS + MINUTE_MS, "received": ok + failed, **facts}
        event = Progress(
            group=self.group, handler="shop.charge", main=MAIN, partition=partition, from_offset=first, to_offset=end,
            first_try_ok=ok, failed=failed, **facts,
        )  # fmt: skip
        self.add("events", partition, value=event.to_json())

    def frame(self, spark: SparkSession, rows: Iterable[dict[str, Any]] | None = None) -> DataFrame:
        from retryapp.pipeline.schemas import RECORDS

        chosen = self.rows if rows is None else list(rows)
        return spark.createDataFrame([tuple(map(row.get, RECORDS.fieldNames())) for row in chosen], RECORDS)


def cut(*ends: int, group: str = GROUP) -> Cut:
    """Return a cut: one offset for each partition."""
    return [(CLUSTER, group, MAIN, TOPIC_ID, number, end) for number, end in enumerate(ends)]


_TIMES = {"origin_timestamp_ms": NOON_MS - 5, "first_failed_ms": NOON_MS, "due_at_ms": NOON_MS + MINUTE_MS}
_PLAIN = waiting(0, group=GROUP, policy="p1", fingerprint="f1", **_TIMES)
