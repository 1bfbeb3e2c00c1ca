"""``retryapp pipeline``: the jobs on Spark over everything that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from retryapp.cli._target import reach, read_client_config
from retryapp.cli.broker import download_progress
from retryapp.cli.console import ExitCode, emit, json_option, stderr_console
from retryapp.jvm import spark_jars
from retryapp.kafka import KafkaConnection
from retryapp.pipeline.errors import SparkMissingError
from retryapp.pipeline.session import SessionOptions, brought_along, start_session
from retryapp.runtime.clock import SystemClock
from retryapp.settings import current_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from retryapp.pipeline.archive import Archived
    from retryapp.pipeline.runner import OnProgress, RunProgress

R = TypeVar("R")

LAKE: Final = "lake"
"""Folder of the default lake, in ``RETRYAPP_DATADIR``."""


@click.group(name="pipeline")
def command() -> None:
    """Keep and explain everything that failed, on Spark.

    Runs on this machine without any setting up; --master and 'spark-submit' run the same on a cluster. The first run
    downloads 20 MB of jars from Maven Central into RETRYAPP_CACHE_DIR; later ones work offline.

    \b
    Examples:
      retryapp pipeline archive --broker localhost:9092 --group billing
      retryapp pipeline archive --broker localhost:9092 --group billing --lake s3a://lake/retries --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


def lake_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add the options of every job: where the lake is, and how to get Spark; the job gets ``lake`` and ``session``."""

    @wraps(function)
    def with_lake(*, lake: str | None, master: str | None, memory: str, conf: tuple[str, ...], **others: Any) -> R:
        if find_spec("pyspark") is None:
            raise SparkMissingError("no module named 'pyspark'")
        settings = dict(pair.partition("=")[::2] for pair in conf)
        options = SessionOptions(cache_dir=current_settings().cache_dir, master=master, memory=memory, conf=settings)
        return function(lake=lake or str(current_settings().datadir / LAKE), session=options, **others)

    for option in (
        click.option(
            "--conf", multiple=True, metavar="NAME=VALUE", help="A further setting of Spark; may be repeated."
        ),
        click.option("--memory", default="2g", show_default=True, help="Heap of the driver, as Java writes it."),
        click.option("--master", metavar="URL", help="Spark's master. [default: this machine, all processors]"),
        click.option("--lake", metavar="URI", help="Folder or URI of the lake. [default: .retryapp/lake]"),
    ):
        with_lake = option(with_lake)
    return with_lake


@contextmanager
def spark_session(options: SessionOptions) -> Iterator[SparkSession]:
    """Yield a session, and stop it if it is ours."""
    if brought_along():
        yield start_session(options)
        return
    with download_progress(spark_jars(), "Spark's connectors") as progress:
        session = start_session(options, progress=progress)
    try:
        yield session
    finally:
        session.stop()


@command.command()
@click.option("--broker", metavar="HOST:PORT", required=True, help="Bootstrap address.")
@click.option(
    "--group",
    "groups",
    metavar="NAME",
    required=True,
    multiple=True,
    help="Consumer group = the Faust app's id; may be repeated.",
)
@click.option(
    "--client-config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with librdkafka properties, name=value a line (security.protocol, sasl.username); those that begin with "
    "'kafka.' go to Spark's Java client as they are.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "parquet"]),
    help="Of a new lake's tables. [default: delta]",
)
@click.option(
    "--rows-per-batch",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Offsets that one batch covers at most.",
)
@lake_options
@json_option
def archive(
    *,
    broker: str,
    groups: tuple[str, ...],
    client_config: Path | None,
    table_format: str | None,
    rows_per_batch: int,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Copy retry topics, dead letters and events to the lake, each record once.

    Reads what is there now and ends; run it again for what is new. It may be killed at any moment: a rerun continues,
    and no record is there twice. Records that were deleted before they were read are said (exit code 1).

    \b
    Exit codes: 0 all archived, 1 records were lost before they were archived.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection = KafkaConnection(broker, {} if client_config is None else read_client_config(client_config))
    reach(connection)
    from retryapp.pipeline.archive import Archive, ArchiveOptions
    from retryapp.pipeline.lake import open_lake

    clock, results = SystemClock(), []
    with spark_session(session) as spark:
        opened = open_lake(spark, lake, wanted=table_format)
        for group in sorted(set(groups)):
            options = ArchiveOptions(group=group, rows_per_batch=rows_per_batch)
            with _progress(group) as on_progress:
                job = Archive(spark, connection, opened, options, now_ms=clock.wall_ms)
                results.append((group, job.run_once(on_progress=on_progress)))
            if results[-1][1].interrupted:
                break
    facts = {"lake": opened.uri, "groups": [archived_facts(group, result) for group, result in results]}
    emit(facts, "\n".join(archived_text(group, result) for group, result in results), as_json=as_json)
    if any(result.interrupted for _, result in results):
        return ExitCode.INTERRUPTED
    return ExitCode.FINDING if any(result.gaps for _, result in results) else ExitCode.FINE


@contextmanager
def _progress(what: str) -> Iterator[OnProgress]:
    """Show rows, rate and what is left, on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=stderr_console,
        transient=True,
        disable=not stderr_console.is_terminal,
    )
    with bar:
        task = bar.add_task(f"{what}: starting")

        def show(progress: RunProgress) -> None:
            bar.update(task, description=f"{what}: {progress_text(progress)}")

        yield show


def progress_text(progress: RunProgress) -> str:
    """Return how far a run is, for people."""
    parts = [f"{progress.rows:,} rows", f"{progress.rows_per_s:,.0f}/s"]
    if progress.behind is not None:
        parts.append(f"{progress.behind:,} offsets behind")
        if progress.rows_per_s > 0:
            parts.append(f"about {progress.behind / progress.rows_per_s:,.0f} s left")
    return ", ".join(parts)


def archived_facts(group: str, result: Archived) -> dict[str, Any]:
    """Return a run for programs."""
    return {
        "group": group,
        "run_id": result.run_id,
        "rows": result.rows,
        "batches": result.batches,
        "elapsed_ms": result.elapsed_ms,
        "rows_per_s": round(result.rows_per_s, 1),
        "topics": result.topics,
        "interrupted": result.interrupted,
        "gaps": [
            {
                "topic": gap.life.topic,
                "topic_id": gap.life.topic_id,
                "epoch": gap.life.epoch,
                "partition": gap.partition,
                "from_offset": gap.from_offset,
                "to_offset": gap.to_offset,
                "reason": gap.reason,
            }
            for gap in result.gaps
        ],
        "new_topics": [
            {"topic": life.topic, "topic_id": life.topic_id, "epoch": life.epoch} for life in result.new_lives
        ],
        "cut": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(result.cut.items())
        ],
    }


def archived_text(group: str, result: Archived) -> str:
    """Return a run for people."""
    lines = [
        f"{group}: {result.rows:,} records of {result.topics} topics archived in {result.elapsed_ms / 1_000:.1f} s "
        f"({result.rows_per_s:,.0f}/s){', then interrupted' if result.interrupted else ''}"
    ]
    for gap in result.gaps:
        upto = "an unknown offset" if gap.to_offset is None else f"{gap.to_offset:,}"
        since = "?" if gap.from_offset is None else f"{gap.from_offset:,}"
        lines.append(
            f"  lost: {gap.life.topic}[{gap.partition}] from offset {since} to {upto}, reason {gap.reason}: deleted "
            f"before it was archived"
        )
    lines += [
        f"  {life.topic} was re-created: epoch {life.epoch} begins" for life in result.new_lives if life.epoch > 1
    ]
    return "\n".join(lines)
