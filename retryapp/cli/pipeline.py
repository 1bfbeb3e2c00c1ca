"""``retryapp pipeline``: the jobs on Spark over everything that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Any

import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from retryapp.cli._analyse import analyse, report, say_waiting
from retryapp.cli._metrics import heard, metrics_options, tell_round
from retryapp.cli._output import instant, table
from retryapp.cli._spark import (
    CONNECTORS,
    broker_options,
    format_option,
    interruptible,
    lake_options,
    length_ms,
    spark_session,
    stopped_by_signals,
    wait_option,
)
from retryapp.cli._upkeep import compact, erase, expire, rebuild, register, vacuum
from retryapp.cli.broker import download_progress
from retryapp.cli.console import ExitCode, emit, json_option, stderr_console
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.pipeline.classes import make_class_archive
from retryapp.pipeline.errors import HeldError
from retryapp.pipeline.session import SessionOptions
from retryapp.runtime.clock import SystemClock
from retryapp.settings import current_settings

if TYPE_CHECKING:
    from retryapp.pipeline.archive import Archived
    from retryapp.pipeline.metrics import PipelineMetrics
    from retryapp.pipeline.outlook import TopicOutlook
    from retryapp.pipeline.runner import OnProgress, RunProgress

_group_option = click.option(
    "--group",
    "groups",
    metavar="NAME",
    required=True,
    multiple=True,
    help="Consumer group = the Faust app's id; may be repeated.",
)


@click.group(name="pipeline")
def command() -> None:
    """Keep and explain everything that failed, on Spark.

    Runs on this machine without any setting up; --master and 'spark-submit' run the same on a cluster. The first run
    downloads 20 MB of jars from Maven Central into RETRYAPP_CACHE_DIR; later ones work offline.

    \b
    Examples:
      retryapp pipeline archive --broker localhost:9092 --group billing
      retryapp pipeline archive --broker localhost:9092 --group billing --lake s3a://lake/retries --every 1m
      retryapp pipeline archive --broker localhost:9092 --group billing --every 1m --metrics-port 6080
      retryapp pipeline analyse --broker localhost:9092 --group billing
      retryapp pipeline report --out report.html
      retryapp pipeline status --broker localhost:9092 --group billing --json
      retryapp pipeline erase --key ada@example.org
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


for _other in (analyse, report, compact, expire, vacuum, rebuild, erase, register):
    command.add_command(_other)


@command.command()
@broker_options
@_group_option
@click.option("--every", metavar="LENGTH", callback=length_ms, help="Go on for ever, once in so long ('1m').")
@format_option
@click.option(
    "--rows-per-batch",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Offsets that one batch covers at most.",
)
@wait_option(None, "How long to wait for another run of the group ('2h'). [default: not at all; with --every for ever]")
@metrics_options
@lake_options
@json_option
def archive(
    *,
    connection: KafkaConnection,
    groups: tuple[str, ...],
    every: int | None,
    table_format: str | None,
    rows_per_batch: int,
    wait_s: float | None,
    metrics: PipelineMetrics | None,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Copy retry topics, dead letters and events to the lake, each record once.

    Reads what is there now and ends; run it again for what is new. It may be killed at any moment: a rerun continues,
    and no record is there twice. Records that were deleted before they were read are said (exit code 1). Of two runs of
    one group the later is refused, or waits as --wait says; other groups' runs and the lake's upkeep are waited for, at
    least ten minutes. With --every all are waited for unless --wait says how long, and each round prints its result,
    with --json as one object a line. With --metrics-port Prometheus may ask meanwhile.

    \b
    Exit codes: 0 all archived, 1 records were lost before they were archived, 130 stopped by Ctrl-C.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    clock, code = SystemClock(), ExitCode.FINE
    if wait_s is None:  # a round comes after that of another run; a single run does not queue
        wait_s = 0.0 if every is None else inf
    with spark_session(session) as spark, stopped_by_signals() as stopped, heard(metrics, spark):
        from retryapp.pipeline.archive import Archive, ArchiveOptions
        from retryapp.pipeline.lake import open_lake

        opened = open_lake(spark, lake, wanted=table_format)
        jobs = [
            Archive(
                spark,
                connection,
                opened,
                ArchiveOptions(group=group, rows_per_batch=rows_per_batch),
                now_ms=clock.wall_ms,
            )
            for group in sorted(set(groups))
        ]
        while True:
            results = []
            for job in jobs:
                began_ms = clock.wall_ms()
                with _progress(job.group) as on_progress:
                    try:
                        results.append(
                            job.run_once(on_progress=on_progress, stopped=stopped, wait_s=wait_s, on_wait=say_waiting)
                        )
                    except HeldError:
                        if stopped.is_set():
                            break
                        raise
                if metrics is not None and not results[-1].interrupted:
                    tell_round(
                        metrics, KafkaAdmin(connection), results[-1], began_ms=began_ms, ended_ms=clock.wall_ms()
                    )
                if stopped.is_set():
                    break
            facts = {"lake": opened.uri, "groups": [archived_facts(result) for result in results]}
            emit(facts, "\n".join(map(archived_text, results)), as_json=as_json)
            code = ExitCode.FINDING if any(result.gaps for result in results) else code
            if every is None or stopped.wait(every / 1_000):
                break
    cut_short = any(result.interrupted for result in results) or (every is None and stopped.is_set())
    return ExitCode.INTERRUPTED if cut_short else code


@command.command()
@broker_options
@_group_option
@lake_options
@json_option
def status(
    *,
    connection: KafkaConnection,
    groups: tuple[str, ...],
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Show how far the archive is behind each topic, and how long until retention takes what it has not read.

    Erasures that have not ended are named.

    \b
    Exit codes: 0 nothing is lost, 1 records were lost already or will be within an hour, or an erasure has not ended.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    with spark_session(replace(session, brief=True)) as spark, interruptible(spark):
        from retryapp.pipeline.erasures import Erasures
        from retryapp.pipeline.facts import Facts
        from retryapp.pipeline.lake import open_lake
        from retryapp.pipeline.outlook import find_outlook

        opened = open_lake(spark, lake)
        erasures = Erasures(Facts(spark, opened)).open()
        found = [
            outlook
            for group in sorted(set(groups))
            for outlook in find_outlook(spark, opened, KafkaAdmin(connection), group)
        ]
    facts = {
        "lake": opened.uri,
        "now_ms": now_ms,
        "topics": [asdict(outlook) for outlook in found],
        "open_erasures": [asdict(erasure) for erasure in erasures],
    }
    lines = [
        f"an erasure that began {instant(erasure.erased_ms, now_ms)} has not ended (hash {erasure.key_hash}): where "
        f"none is at work, 'retryapp pipeline erase --resume --lake {opened.uri}' ends it"
        for erasure in erasures
    ]
    emit(facts, "\n".join([outlook_text(found, now_ms), *lines]), as_json=as_json)
    return ExitCode.FINDING if erasures or any(outlook.at_risk(now_ms) for outlook in found) else ExitCode.FINE


@command.command()
@json_option
def jars(*, as_json: bool) -> None:
    """Download the jars that Spark needs for Kafka and Delta, and print where they are: for 'spark-submit --jars'."""
    with download_progress(spark_jars(), CONNECTORS) as progress:
        paths = ensure_jars(current_settings().cache_dir, spark_jars(), progress=progress)
    emit({"version": spark_jars().version, "jars": paths}, ",".join(map(str, paths)), as_json=as_json)


@command.command()
@json_option
def prepare(*, as_json: bool) -> None:
    """Make commands of the pipeline start sooner; optional, once for each Java and PySpark.

    Downloads the jars, and has Java keep the classes of Spark in the form in which it needs them: a minute or so, and
    200 MB in the cache.
    """
    cache_dir = current_settings().cache_dir
    with download_progress(spark_jars(), CONNECTORS) as progress:
        paths = ensure_jars(cache_dir, spark_jars(), progress=progress)
    with stderr_console.status("Java writes its archive of classes"):
        archive = make_class_archive(cache_dir)
    said = f"{archive} ({archive.stat().st_size / 1e6:.0f} MB)"
    emit({"version": spark_jars().version, "jars": paths, "class_archive": archive}, said, as_json=as_json)


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
        task = bar.add_task(f"{what}: looking")

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


def archived_facts(result: Archived) -> dict[str, Any]:
    """Return a run for programs."""
    return {
        "group": result.group,
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


def archived_text(result: Archived) -> str:
    """Return a run for people."""
    lines = [
        f"{result.group}: {result.rows:,} records of {result.topics} topics archived in "
        f"{result.elapsed_ms / 1_000:.1f} s ({result.rows_per_s:,.0f}/s)"
        f"{', then interrupted: a rerun continues' if result.interrupted else ''}"
    ]
    for gap in result.gaps:
        upto = "an unknown offset" if gap.to_offset is None else f"{gap.to_offset:,}"
        since = "?" if gap.from_offset is None else f"{gap.from_offset:,}"
        lines.append(
            f"  lost: {gap.life.topic}[{gap.partition}] from offset {since} to {upto}, deleted before it was archived "
            f"({gap.reason})"
        )
    lines += [
        f"  {life.topic} was re-created: epoch {life.epoch} begins" for life in result.new_lives if life.epoch > 1
    ]
    return "\n".join(lines)


def outlook_text(found: Sequence[TopicOutlook], now_ms: int) -> str:
    """Return how far behind the archive is, for people."""
    rows = [
        (
            outlook.topic,
            str(outlook.epoch),
            f"{outlook.behind:,}",
            instant(outlook.oldest_unread_ms, now_ms),
            "never" if outlook.loss_at_ms is None and outlook.behind else instant(outlook.loss_at_ms, now_ms),
            f"{outlook.lost_offsets:,}",
        )
        for outlook in found
    ]
    return table(("topic", "epoch", "offsets behind", "oldest unread", "lost by retention", "offsets lost"), rows)
