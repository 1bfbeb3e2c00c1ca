"""Metrics of ``retryapp pipeline archive``: the options, and the figures of a round."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retryapp.kafka import KafkaAdmin, Positions
from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.pipeline.sources import retention_of

if TYPE_CHECKING:
    from retryapp.pipeline.archive import Archived

R = TypeVar("R")


def metrics_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--metrics-port`` and ``--metrics-bind``; the job gets ``metrics``, which are served while it runs."""

    @click.option(
        "--metrics-port", metavar="PORT", type=click.IntRange(0, 65_535),
        help="Serve Prometheus metrics on this port; 0: any free one. [default: none]",
    )  # fmt: skip
    @click.option(
        "--metrics-bind", metavar="ADDRESS", default="127.0.0.1", show_default=True,
        help="Address that the metrics listen on. They have no login.",
    )  # fmt: skip
    @wraps(function)
    def with_metrics(*, metrics_port: int | None, metrics_bind: str, **others: Any) -> R:
        if metrics_port is None:
            return function(metrics=None, **others)
        metrics = PipelineMetrics()
        with metrics.served(metrics_bind, metrics_port) as port:
            click.echo(f"metrics: http://{metrics_bind}:{port}/metrics", err=True)
            return function(metrics=metrics, **others)

    return with_metrics


def record_round(metrics: PipelineMetrics, admin: KafkaAdmin, result: Archived, *, began_ms: int, now_ms: int) -> None:
    """Record a round of the archive that began to look at ``began_ms`` and ended in order."""
    metrics.round_ended(
        "archive",
        result.group,
        began_ms=began_ms,
        ended_ms=now_ms,
        read=result.cut,
        ends=Positions(admin.connection).ends(list(result.cut)),
        retention_ms=retention_of(admin, {topic for topic, _ in result.cut}),
        gaps=len(result.gaps),
    )
