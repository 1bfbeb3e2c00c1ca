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
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.pipeline.erasures import Erasures, without_erased
from retryapp.pipeline.errors import OtherRunError, TopicChangedError
from retryapp.pipeline.gaps import Gaps
from retryapp.pipeline.hold import RECORDS_HOLD, TURN_S, Holds, OnWait
from retryapp.pipeline.kafka_source import java_options, read_range
from retryapp.pipeline.lake import Lake
from retryapp.pipeline.positions import CUT_OFF, IN_DOUBT, Gap, Look, Offsets, look_up, next_ranges
from retryapp.pipeline.schemas import RECORDS, to_frame
from retryapp.pipeline.sources import Life
from retryapp.pipeline.state import WRITER, State, read_state
from retryapp.pipeline.tables import Tables

JOB: Final = "archive"
_OF_LIFE: Final = ("topic_id", "epoch", "topic", "group", "main", "station")
ROWS_PER_BATCH: Final = 500_000  # offsets that one batch covers at most
JOIN_EVERY: Final = 50  # commits of the archive, after which small files are joined


@dataclass(slots=True, kw_only=True)
class Archived:
    """What one run has done, so far or in all."""

    group: str
    run_id: str
    topics: int
    cut: Mapping[tuple[str, int], int]  # topic and partition → next offset: all before it is archived
    gaps: tuple[Gap, ...]
    new_lives: tuple[Life, ...]  # seen for the first time; an epoch over 1 is a re-creation
    rows: int = 0
    batches: int = 0
    elapsed_ms: int = 0
    behind: int = 0  # offsets between the last batch and the ends at the run's start
    interrupted: bool = False

    @property
    def rows_per_s(self) -> float:
        """Over the whole run, its start included."""
        return self.rows * 1_000 / max(1, self.elapsed_ms)


OnProgress = Callable[[Archived], None]


class Archive:
    """Runs the job for one group (all its handlers) on one lake."""

    def __init__(
        self,
        connection: KafkaConnection,
        lake: Lake,
        group: str,
        *,
        now_ms: Callable[[], int],
        rows_per_batch: int | None = None,
    ) -> None:
        java_options(connection)  # refuses what Java cannot be told, also where nothing is to be read yet
        self._spark = lake.spark
        self._connection = connection
        self._tables = Tables(lake)
        self._lake = lake
        self.group = group
        self._rows_per_batch = ROWS_PER_BATCH if rows_per_batch is None else rows_per_batch
        self._now_ms = now_ms
        self._admin = KafkaAdmin(connection)
        self._gaps = Gaps(lake)
        self._erasures = Erasures(lake)
        self._holds = Holds(lake)

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
        began_ms, run_id, stopped = self._now_ms(), uuid.uuid4().hex[:12], stopped or threading.Event()
        with take(f"{JOB} {self._admin.cluster_id()} {self.group}", wait_s=wait_s), ExitStack() as stack:
            look = self._look()
            if look.has_news:
                stack.enter_context(take(RECORDS_HOLD, wait_s=max(wait_s, TURN_S)))
                look = self._look()  # the state is of all groups: one may have run
            done = Archived(
                group=self.group, run_id=run_id, topics=len(look.lives), cut=look.positions, gaps=look.gaps,
                new_lives=look.fresh,
            )  # fmt: skip
            batches = self._batches(look, done, stopped) if look.has_news else iter(())
            try:
                for _ in batches:
                    done.elapsed_ms = self._now_ms() - began_ms
                    if on_progress is not None:
                        on_progress(done)
            except (PySparkException, Py4JJavaError):  # a supervisor signals all processes: Python workers end too
                if not stopped.is_set():
                    raise
                done.interrupted = True
        done.elapsed_ms = self._now_ms() - began_ms
        return done

    def _look(self) -> Look:
        """Look the topics up; that one is shorter than what was archived is news once."""
        look = look_up(self._tables, self._admin, self.group)
        rows = ((gap, gap.row(look.cluster_id, "", 0)) for gap in look.gaps)
        news = tuple(gap for gap, row in rows if gap.reason != CUT_OFF or not self._gaps.has(row))
        return replace(look, gaps=news)

    def _batches(self, look: Look, done: Archived, stopped: threading.Event) -> Iterator[None]:
        """Write what there is, and yield after each batch; the first one may have no rows, only lives and gaps."""
        self._note_gaps(look.gaps, look.cluster_id, done.run_id)
        state, erased = look.state, self._erasures.reach()
        begin, end = next_ranges(done.cut, look.ends, self._rows_per_batch)
        while begin or not done.batches:
            if stopped.is_set():
                done.interrupted = True
                return
            reached = {**done.cut, **end}
            after = state.after(self.group, look.lives_at(reached), look.cluster_id, done.run_id)
            state = self._commit(after, self._rows(look, begin, end, done.run_id, erased))
            done.cut = reached
            if not done.batches:
                self._tables.check_shared()
            self._check_unchanged(look, begin, end, done.run_id)
            begin, end = next_ranges(reached, look.ends, self._rows_per_batch)
            done.rows += state.rows
            done.batches += 1
            done.behind = sum(look.ends[place] - position for place, position in begin.items())
            yield
        if state.sequence // JOIN_EVERY > look.state.sequence // JOIN_EVERY:
            self._tables.join_small_files()

    def _commit(self, after: State, rows: DataFrame) -> State:
        """Append rows and the state after them, in one commit; return that state as the table has it."""
        state_text = after.text(self._lake.id)
        self._tables.append(rows, userMetadata=state_text, txnAppId=WRITER, txnVersion=str(after.sequence))
        state = read_state(self._tables)
        if state.run_id != after.run_id or state.sequence != after.sequence:  # Delta skips a sequence that is there
            raise OtherRunError(JOB, f"run {state.run_id} has written commit {state.sequence}")
        return state

    def _rows(self, look: Look, begin: Offsets, end: Offsets, run_id: str, erased: Mapping[str, int]) -> DataFrame:
        if not begin:  # only lives and gaps are news
            return self._spark.createDataFrame([], RECORDS)
        made = {
            "cluster_id": F.lit(look.cluster_id),
            "timestamp_ms": F.unix_millis("timestamp"),
            # in no zone but UTC
            "date": F.date_from_unix_date(F.expr("int(floor(unix_millis(timestamp) / 86400000))")),
            "key_hash": self._lake.key_hash(F.col("key")),
            "run_id": F.lit(run_id),
        }
        records = read_range(self._spark, self._connection, begin, end)
        known = records.join(F.broadcast(self._topics_frame(look)), on="topic", how="inner").withColumns(made)
        columns = (F.col(field.name).alias(field.name, metadata=field.metadata) for field in RECORDS)
        return without_erased(known.select(*columns), erased)

    def _note_gaps(self, gaps: Iterable[Gap], cluster_id: str, run_id: str) -> None:
        for gap in gaps:
            self._gaps.put(gap.row(cluster_id, run_id, self._now_ms()))

    def _topics_frame(self, look: Look) -> DataFrame:
        columns = [field for field in RECORDS if field.name in _OF_LIFE]
        values = [tuple(getattr(life, field.name) for field in columns) for life in look.lives]
        return to_frame(self._spark, values, T.StructType(columns))

    def _check_unchanged(self, look: Look, begin: Offsets, end: Offsets, run_id: str) -> None:
        """Raise if a topic was re-created while it was read: its rows then carry the wrong id."""
        now = self._admin.describe_topics({topic for topic, _ in begin}) if begin else {}
        for life in look.lives:
            if life.topic in now and now[life.topic].topic_id != life.topic_id:
                places = [place for place in begin if place[0] == life.topic]
                doubts = [Gap(life, place[1], begin[place], end[place], IN_DOUBT) for place in places]
                self._note_gaps(doubts, look.cluster_id, run_id)
                raise TopicChangedError(life.topic, life.topic_id, now[life.topic].topic_id, run_id)
