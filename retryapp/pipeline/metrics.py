"""Metrics of the streaming jobs for Prometheus: their lag, rate, and last activity.

Spark's listener reports batches, the job reports rounds. A round with nothing to read has no batch.
"""

from __future__ import annotations

import json
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from retryapp.core.errors import PortTakenError
from retryapp.pipeline.runner import offsets_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

M = TypeVar("M")

BATCH_BUCKETS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

Ends = Mapping[tuple[str, int], int]  # topic and partition → offset


class PipelineMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rows = self._make(Counter, "rows", "Records read.")
        self._batches = self._make(
            partial(Histogram, buckets=BATCH_BUCKETS_S),
            "batch_seconds",
            "Time of a batch, from its trigger to its commit.",
        )
        self._rate = self._make(Gauge, "rows_per_second", "Records a second in the last batch.")
        self._last_batch = self._make(Gauge, "last_batch_timestamp_seconds", "When the last batch ended.")
        self._behind = self._make(
            Gauge, "behind_offsets", "Offsets between what was read and the topic's end.", "topic"
        )
        self._last_round = self._make(Gauge, "last_round_timestamp_seconds", "When a round last ended in order.")
        self._loss = self._make(
            Gauge, "loss_timestamp_seconds", "When retention may delete what is not read yet, at the earliest.", "topic"
        )
        self._gaps = self._make(Counter, "gaps", "Ranges that were lost before they were read.")

    def _make(self, kind: Callable[..., M], name: str, text: str, *labels: str) -> M:
        return kind(f"retryapp_pipeline_{name}", text, ("task", "group", *labels), registry=self.registry)

    def batch_ended(self, progress: Mapping[str, Any]) -> None:
        """Record a batch, from Spark's JSON."""
        task, _, group = str(progress.get("name") or "").partition(":")  # as the archive names its queries
        if not group:
            return  # not one of ours
        length_ms = progress.get("durationMs", {}).get("triggerExecution", 0)
        began = datetime.fromisoformat(str(progress["timestamp"]))
        self._rows.labels(task, group).inc(int(progress["numInputRows"]))
        self._batches.labels(task, group).observe(length_ms / 1_000)
        self._rate.labels(task, group).set(float(progress.get("processedRowsPerSecond") or 0.0))
        self._last_batch.labels(task, group).set(began.timestamp() + length_ms / 1_000)
        for source in progress["sources"]:
            self._set_behind(task, group, offsets_of(source.get("endOffset")), offsets_of(source.get("latestOffset")))

    def round_ended(
        self,
        task: str,
        group: str,
        *,
        began_ms: int,
        ended_ms: int,
        read: Ends,
        ends: Ends,
        retention_ms: Mapping[str, int | None],
        gaps: int,
    ) -> None:
        """Record a round that ended in order; it looked at the topics' ends at ``began_ms``."""
        self._last_round.labels(task, group).set(ended_ms / 1_000)
        self._gaps.labels(task, group).inc(gaps)
        self._set_behind(task, group, read, ends)
        for topic, kept_ms in retention_ms.items():
            self._loss.labels(task, group, topic).set(
                float("inf") if kept_ms is None else (began_ms + kept_ms) / 1_000  # what is not read came since then
            )

    def _set_behind(self, task: str, group: str, read: Ends, ends: Ends) -> None:
        behind = Tally[str]()
        for (topic, partition), end in ends.items():
            behind[topic] += max(0, end - read.get((topic, partition), end))
        for topic, offsets in behind.items():
            self._behind.labels(task, group, topic).set(offsets)

    @contextmanager
    def served(self, address: str, port: int) -> Iterator[int]:
        """Serve them over HTTP; yields the port, which is another one for 0."""
        try:
            server, thread = start_http_server(port, address, registry=self.registry)
        except OSError as error:
            raise PortTakenError(address, port, f"({error.strerror}) Choose another one: --metrics-port") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    @contextmanager
    def heard(self, spark: SparkSession) -> Iterator[None]:
        """Listen to the batches of all queries of a session."""
        listener = _listener(self)
        spark.streams.addListener(listener)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)


def _listener(metrics: PipelineMetrics) -> StreamingQueryListener:
    """Return a listener; its class is made here, so that this module can be imported without PySpark."""
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

    def ignore(self: StreamingQueryListener, event: object) -> None:
        pass

    class Listener(StreamingQueryListener):
        onQueryStarted = onQueryIdle = onQueryTerminated = ignore  # noqa: N815 - Spark's names

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            metrics.batch_ended(json.loads(event.progress.json))

    return Listener()
