"""Metrics of the pipeline's jobs: the options, and what a round tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retryapp.kafka import KafkaAdmin, Positions
from retryapp.pipeline.metrics import PipelineMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from retryapp.pipeline.archive import Archived

R = TypeVar("R")


def metrics_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--metrics-port`` and ``--metrics-bind``; the job gets ``metrics``, which are served while it runs."""

    @wraps(function)
    def with_metrics(*, metrics_port: int | None, metrics_bind: str, **others: Any) -> R:
        if metrics_port is None:
            return function(metrics=None, **others)
        metrics = PipelineMetrics()
        with metrics.served(metrics_bind, metrics_port) as port:
            click.echo(f"metrics: http://{metrics_bind}:{port}/metrics", err=True)
            return function(metrics=metrics, **others)

    for option in (
        click.option(
            "--metrics-bind",
            metavar="ADDRESS",
            default="127.0.0.1",
            show_default=True,
            help="Where the metrics listen. They have no login.",
        ),
        click.option(
            "--metrics-port",
            metavar="PORT",
            type=click.IntRange(0, 65_535),
            help="Serve metrics for Prometheus on this port; 0: on any that is free. [default: none]",
        ),
    ):
        with_metrics = option(with_metrics)
    return with_metrics


def heard(metrics: PipelineMetrics | None, spark: SparkSession) -> AbstractContextManager[None]:
    """Let the metrics hear of the session's batches, if there are any."""
    return nullcontext() if metrics is None else metrics.heard(spark)


def tell_round(metrics: PipelineMetrics, admin: KafkaAdmin, result: Archived, *, began_ms: int, ended_ms: int) -> None:
    """Tell the metrics of a round of the archive that ended in order.

    Args:
        metrics: whom.
        admin: of the cluster: ends and retention of the topics are asked of it.
        result: what the round did.
        began_ms: before it looked where topics end, epoch milliseconds.
        ended_ms: when it ended, epoch milliseconds.
    """
    kept = {
        name: int(state.config.get("retention.ms", "-1"))
        for name, state in admin.describe_topics(topic for topic, _ in result.cut).items()
    }
    metrics.round_ended(
        "archive",
        result.group,
        began_ms=began_ms,
        ended_ms=ended_ms,
        read=result.cut,
        ends=Positions(admin.connection).ends(list(result.cut)),
        retention_ms={topic: None if length_ms < 0 else length_ms for topic, length_ms in kept.items()},
        gaps=len(result.gaps),
    )
