"""The archive job: retry topics, dead letters and events of a group → the lake, each record once.

Life of a run:

1. Take the group's hold on the lake, and before anything is written the hold on the table of records.
2. Look up the topics, their lives (topic ids), and the first and last offset of each partition.
3. Compare with the lake: a new id opens an epoch; offsets that are gone before they were read become rows of ``gaps``.
4. Note that the run has begun (``runs``), and continue from the group's checkpoint. Without a usable one a new one
   starts from the table's own offsets: the table is the truth, checkpoints are disposable.
5. Stream what is there, batch by batch, each one commit of ``records``; a repeated batch changes nothing.
6. Look up the topics again and report one that was re-created meanwhile. Publish the cut (``runs``).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from retryapp.core.errors import RetryAppError
from retryapp.kafka import KafkaAdmin, KafkaConnection, Positions
from retryapp.pipeline.errors import LakeUnusableError, OtherRunError, TopicChangedError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.hold import RECORDS_HOLD, TURN_S, Holds, OnWait
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.positions import IN_DOUBT, Gap, Life, Lives, Start, find_lives, find_start
from retryapp.pipeline.read import read_stream
from retryapp.pipeline.runner import Driven, OnProgress, drive
from retryapp.pipeline.runs import FAILED, FINISHED, INTERRUPTED, REFUSED, LastRun, Run, RunLog
from retryapp.pipeline.schemas import RECORDS
from retryapp.pipeline.sources import Sources, find_sources
from retryapp.pipeline.tables import ERASURES_TABLE, GAPS_TABLE, RECORDS_TABLE, TOPICS_TABLE, Tables
from retryapp.pipeline.transform import archive_rows

JOB: Final = "archive"
_OF_LIFE: Final = ("cluster_id", "topic_id", "epoch", "topic", "group", "main", "station")
DEFAULT_ROWS_PER_BATCH: Final = 500_000  # offsets that one batch covers at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of one run."""

    group: str
    topics: int
    cut: Mapping[tuple[str, int], int]  # topic and partition → next offset: all before it is archived
    run_id: str
    rows: int
    batches: int
    elapsed_ms: int
    gaps: tuple[Gap, ...]
    new_lives: tuple[Life, ...]  # seen for the first time; an epoch over 1 is a re-creation
    interrupted: bool

    @property
    def rows_per_s(self) -> float:
        """Over the whole run, its start included."""
        return self.rows * 1_000 / max(1, self.elapsed_ms)


class Archive:
    """Runs the job for one group (all its handlers) on one lake."""

    def __init__(
        self,
        spark: SparkSession,
        connection: KafkaConnection,
        lake: Lake,
        group: str,
        *,
        now_ms: Callable[[], int],
        rows_per_batch: int = DEFAULT_ROWS_PER_BATCH,
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._tables = Tables(spark, lake)
        self._lake = lake
        self.group = group
        self._rows_per_batch = rows_per_batch
        self._now_ms = now_ms
        self._admin = KafkaAdmin(connection)
        self._facts = Facts(spark, lake)
        self._runs = RunLog(self._facts, now_ms)
        self._holds = Holds(spark, lake)

    def run_once(
        self,
        *,
        on_progress: OnProgress | None = None,
        stopped: threading.Event | None = None,
        wait_s: float = 0.0,
        on_wait: OnWait | None = None,
    ) -> Archived:
        """Archive what is there now.

        Waits ``wait_s`` for another run of the group, at least ``TURN_S`` for others that write to the table. After an
        error what was committed stays.
        """
        sources = find_sources(self._admin, self.group)
        take = partial(self._holds.take, JOB, on_wait=on_wait, stopped=stopped)
        with take(f"{JOB} {sources.cluster_id} {self.group}", wait_s=wait_s):
            last = self._runs.last(JOB, sources)
            turn = take(RECORDS_HOLD, wait_s=max(wait_s, TURN_S))
            watch = partial(drive, job=JOB, on_progress=on_progress, stopped=stopped)
            return self._run(sources, last, turn, watch)

    def _run(
        self,
        sources: Sources,
        last: LastRun | None,
        turn: AbstractContextManager[str | None],
        watch: Callable[..., Driven],
    ) -> Archived:
        began_ms, run_id = self._now_ms(), uuid.uuid4().hex[:12]
        lives = find_lives(self._facts, sources, began_ms)
        start = find_start(self._tables, self._admin, sources, lives, last)
        if last is not None and last.state == FINISHED and not (start.gaps or lives.fresh) and self._is_all(start):
            return self._result(run_id, began_ms, sources, lives, start, Driven())
        with turn as waited_for:
            if waited_for is not None:  # the first look may be long ago
                lives = find_lives(self._facts, sources, began_ms)
                start = find_start(self._tables, self._admin, sources, lives, last)
            self._tables.ensure_records()
            self._note_gaps(start.gaps, run_id, began_ms)
            for life in lives.fresh:  # after the gaps: the next run then reports a re-creation that this one did not
                self._facts.put(TOPICS_TABLE, f"{sources.cluster_id} {life.topic}@{life.topic_id}", asdict(life))
            run = self._runs.begin(run_id, JOB, sources, start.checkpoint or f"{sources.digest}-{run_id}")
            try:
                query = self._start(sources, lives, start, run)
                driven = watch(query, resumed=start.checkpoint is not None)
                self._check_unchanged(lives, run_id, driven)
            except OtherRunError:
                self._runs.end(run, REFUSED, rows=0, cut={})
                raise
            except RetryAppError as error:
                with suppress(LakeUnusableError):  # on a full disk nothing can be noted; the next run sees no end
                    self._runs.end(run, FAILED, rows=0, cut=start.positions, detail=str(error))
                raise
            result = self._result(run_id, began_ms, sources, lives, start, driven)
            self._runs.end(run, INTERRUPTED if driven.interrupted else FINISHED, rows=driven.rows, cut=result.cut)
            return result

    def _is_all(self, start: Start) -> bool:
        """Tell whether there is nothing to read: looking costs milliseconds, a query seconds."""
        ends = Positions(self._connection).ends(list(start.positions))
        return all(ends[place] <= position for place, position in start.positions.items())

    def _result(
        self, run_id: str, began_ms: int, sources: Sources, lives: Lives, start: Start, driven: Driven
    ) -> Archived:
        return Archived(
            group=sources.group,
            run_id=run_id,
            rows=driven.rows,
            batches=driven.batches,
            elapsed_ms=self._now_ms() - began_ms,
            topics=len(sources.topics),
            gaps=start.gaps,
            new_lives=lives.fresh,
            interrupted=driven.interrupted,
            cut={**start.positions, **driven.ends},
        )

    def _start(self, sources: Sources, lives: Lives, start: Start, run: Run) -> StreamingQuery:
        records = read_stream(self._spark, self._connection, start=start.positions, rows_per_batch=self._rows_per_batch)
        rows = archive_rows(
            records, self._topics_frame(lives), salt=self._lake.salt, run_id=run.run_id, erased=self._erased()
        )
        checkpoint = self._lake.checkpoint(JOB, run.checkpoint)
        writer = rows.writeStream.format("delta").outputMode("append").trigger(availableNow=True)
        writer = writer.queryName(f"{JOB}:{sources.group}").option("checkpointLocation", checkpoint)
        writer = writer.option("mergeSchema", "true")  # a lake of an older build gets the columns that it lacks
        return writer.start(self._lake.table(RECORDS_TABLE))  # its commits name query and batch: none comes twice

    def _erased(self) -> DataFrame | None:
        """Return the keys whose records are not kept; None where there are none, which is faster."""
        if not self._facts.names(ERASURES_TABLE):
            return None
        return self._tables.read(ERASURES_TABLE).groupBy("key_hash").agg(F.max("erased_ms").alias("erased_ms"))

    def _note_gaps(self, gaps: Iterable[Gap], run_id: str, found_ms: int) -> None:
        for gap in gaps:
            self._facts.put(GAPS_TABLE, gap.name, gap.row(run_id, found_ms))

    def _topics_frame(self, lives: Lives) -> DataFrame:
        columns = [field for field in RECORDS if field.name in _OF_LIFE]
        values = [tuple(getattr(life, field.name) for field in columns) for life in lives.present]
        return self._spark.createDataFrame(values, T.StructType(columns))

    def _check_unchanged(self, lives: Lives, run_id: str, driven: Driven) -> None:
        """Raise if a topic was re-created while it was read: its rows then carry the wrong id."""
        now = self._admin.describe_topics([life.topic for life in lives.present])
        for life in lives.present:
            state = now.get(life.topic)
            if state is None or state.topic_id == life.topic_id:
                continue
            ends = [(place[1], end) for place, end in driven.ends.items() if place[0] == life.topic]
            doubts = [Gap(life, partition, None, end, IN_DOUBT) for partition, end in ends]
            self._note_gaps(doubts, run_id, self._now_ms())
            raise TopicChangedError(life.topic, life.topic_id, state.topic_id, run_id)
