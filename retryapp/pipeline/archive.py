"""The archive job: retry topics, dead letters and events of a group → the lake, each record once.

Life of a run:

1. Take the group's hold on the lake, and before anything is written the hold on the table of records.
2. Look up the topics, their lives (topic ids), and the first and last offset of each partition.
3. Compare with the state that the table's last commit carries: a new id opens an epoch; offsets that are gone before
   they were read become rows of ``gaps``.
4. Read batch by batch, from the state's offsets to the ends of now. A batch and the state after it are one commit: a
   run that dies has written both or neither.
5. Look up the topics after each batch, and report one that was re-created while it was read.
6. With each fiftieth batch join the small files that batches leave.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from retryapp.kafka import KafkaAdmin, KafkaConnection, Positions
from retryapp.pipeline.erasures import Erasures, without_erased
from retryapp.pipeline.errors import OtherRunError, TopicChangedError
from retryapp.pipeline.facts import Facts
from retryapp.pipeline.failures import named_failure
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.hold import RECORDS_HOLD, TURN_S, Holds, OnWait
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.positions import IN_DOUBT, Gap, Offsets, Start, find_start, next_ranges
from retryapp.pipeline.read import archive_rows, read_range
from retryapp.pipeline.schemas import RECORDS
from retryapp.pipeline.sources import Life, find_sources
from retryapp.pipeline.state import WRITER, State, read_state
from retryapp.pipeline.tables import RECORDS_TABLE, Tables

JOB: Final = "archive"
_OF_LIFE: Final = ("topic_id", "epoch", "topic", "group", "main", "station")
ROWS_PER_BATCH: Final = 500_000  # offsets that one batch covers at most
JOIN_EVERY: Final = 50  # commits of the archive, after which small files are joined


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


@dataclass(slots=True)
class Driven:
    """What a run has done so far."""

    rows: int = 0
    batches: int = 0
    rows_per_s: float = 0.0  # rate of the last batch
    behind: int = 0  # offsets between the last batch and the ends at the run's start
    interrupted: bool = False


OnProgress = Callable[[Driven], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a run finds."""

    cluster_id: str
    state: State
    start: Start
    ends: Offsets

    @property
    def has_news(self) -> bool:
        """Whether there is anything to read or to note."""
        left = any(self.ends[place] > position for place, position in self.start.positions.items())
        return bool(left or self.start.gaps or self.start.fresh)


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
        rows_per_batch: int | None = None,
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._tables = Tables(spark, lake)
        self._lake = lake
        self.group = group
        self._rows_per_batch = ROWS_PER_BATCH if rows_per_batch is None else rows_per_batch
        self._now_ms = now_ms
        self._admin = KafkaAdmin(connection)
        facts = Facts(spark, lake)
        self._gaps = Gaps(facts)
        self._erasures = Erasures(facts)
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
        take = partial(self._holds.take, JOB, on_wait=on_wait, stopped=stopped)
        began_ms, run_id, driven = self._now_ms(), uuid.uuid4().hex[:12], Driven()
        with take(f"{JOB} {self._admin.cluster_id()} {self.group}", wait_s=wait_s):
            look = look_up(self._tables, self._admin, self.group)
            cut = look.start.positions
            if look.has_news or not self._tables.is_current():
                turn = take(RECORDS_HOLD, wait_s=max(wait_s, TURN_S))
                look, cut = self._write(turn, run_id, driven, on_progress, stopped or threading.Event())
        return Archived(
            group=self.group,
            run_id=run_id,
            rows=driven.rows,
            batches=driven.batches,
            elapsed_ms=self._now_ms() - began_ms,
            topics=len(look.start.lives),
            gaps=look.start.gaps,
            new_lives=look.start.fresh,
            interrupted=driven.interrupted,
            cut=cut,
        )

    def _write(
        self,
        turn: AbstractContextManager[None],
        run_id: str,
        driven: Driven,
        on_progress: OnProgress | None,
        stopped: threading.Event,
    ) -> tuple[Look, Offsets]:
        with turn:
            # again: the state is of all groups, and one may have run
            look = look_up(self._tables, self._admin, self.group)
            self._tables.ensure_records()
            self._note_gaps(look.start.gaps, look.cluster_id, run_id)
            positions, state, erased = dict(look.start.positions), look.state, self._erasures.reach()
            begin, end = next_ranges(positions, look.ends, self._rows_per_batch)
            todo = look.has_news
            while todo:
                reached = {**positions, **end}
                after = state.after(self.group, look.start.lives_at(reached), look.cluster_id, run_id)
                began_s, driven.interrupted = time.monotonic(), stopped.is_set()
                if not driven.interrupted:
                    with _failures_named(driven, stopped):
                        state = self._commit(after, self._rows(look, begin, end, run_id, erased))
                if driven.interrupted:
                    break
                positions = reached
                if not driven.batches:
                    self._tables.check_shared()
                self._check_unchanged(look, begin, end, run_id)
                begin, end = next_ranges(positions, look.ends, self._rows_per_batch)
                todo = bool(begin)
                driven.rows += state.rows
                driven.batches += 1
                driven.rows_per_s = state.rows / max(0.001, time.monotonic() - began_s)
                driven.behind = sum(look.ends[place] - position for place, position in begin.items())
                if on_progress is not None:
                    on_progress(driven)
            if state.sequence // JOIN_EVERY > look.state.sequence // JOIN_EVERY and not driven.interrupted:
                with _failures_named(driven, stopped):
                    self._tables.join_small_files()
        return look, positions

    def _commit(self, after: State, rows: DataFrame) -> State:
        """Append rows and the state after them, in one commit; return that state as the table has it."""
        options = {"userMetadata": after.text(self._lake.id), "txnAppId": WRITER, "txnVersion": str(after.sequence)}
        writer = rows.write.format("delta").mode("append").options(**options)
        writer.save(self._lake.table(RECORDS_TABLE))
        state = read_state(self._tables)
        if state.run_id != after.run_id or state.sequence != after.sequence:  # Delta skips a sequence that is there
            raise OtherRunError(JOB, f"run {state.run_id} has written commit {state.sequence}")
        return state

    def _rows(self, look: Look, begin: Offsets, end: Offsets, run_id: str, erased: Mapping[str, int]) -> DataFrame:
        if not begin:  # only lives and gaps are news
            return self._spark.createDataFrame([], RECORDS)
        records = read_range(self._spark, self._connection, begin, end)
        rows = archive_rows(records, self._topics_frame(look), salt=self._lake.salt, run_id=run_id)
        return without_erased(rows, erased)

    def _note_gaps(self, gaps: Iterable[Gap], cluster_id: str, run_id: str) -> None:
        for gap in gaps:
            self._gaps.put(gap.row(cluster_id, run_id, self._now_ms()))

    def _topics_frame(self, look: Look) -> DataFrame:
        columns = [field for field in RECORDS if field.name in _OF_LIFE]
        values = [tuple(getattr(life, field.name) for field in columns) for life in look.start.lives]
        topics = self._spark.createDataFrame(values, T.StructType(columns))
        return topics.withColumn("cluster_id", F.lit(look.cluster_id))

    def _check_unchanged(self, look: Look, begin: Offsets, end: Offsets, run_id: str) -> None:
        """Raise if a topic was re-created while it was read: its rows then carry the wrong id."""
        read = [life for life in look.start.lives if any(place[0] == life.topic for place in begin)]
        now = self._admin.describe_topics([life.topic for life in read]) if read else {}
        for life in read:
            state = now.get(life.topic)
            if state is None or state.topic_id == life.topic_id:
                continue
            places = [place for place in begin if place[0] == life.topic]
            doubts = [Gap(life, place[1], begin[place], end[place], IN_DOUBT) for place in places]
            self._note_gaps(doubts, look.cluster_id, run_id)
            raise TopicChangedError(life.topic, life.topic_id, state.topic_id, run_id)


@contextmanager
def _failures_named(driven: Driven, stopped: threading.Event) -> Iterator[None]:
    """Name what fails in Spark; what does after a signal was interrupted: a supervisor ends Python workers too."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        driven.interrupted = stopped.is_set()
        if not driven.interrupted:
            raise named_failure(error, job=JOB) from error


def look_up(tables: Tables, admin: KafkaAdmin, group: str) -> Look:
    """Compare a group's topics with what the lake knows; changes nothing."""
    state = read_state(tables)
    sources = find_sources(admin, group, state.of_group(group))
    state.check_cluster(sources.cluster_id, tables.lake.uri)
    start = find_start(state, admin, sources)
    ends = Positions(admin.connection).ends(list(start.positions)) if start.positions else {}
    return Look(cluster_id=sources.cluster_id, state=state, start=start, ends=ends)
