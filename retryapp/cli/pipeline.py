"""``retryapp pipeline``: the jobs on Spark over everything that failed."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import inf
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from retryapp.cli._analyse import analyse, causes, report
from retryapp.cli._options import LENGTH, json_option
from retryapp.cli._output import instant, table
from retryapp.cli._spark import (
    broker_options,
    group_option,
    lake_job,
    lake_options,
    print_waiting,
    wait_option,
)
from retryapp.cli._upkeep import erase, expire, gaps, vacuum
from retryapp.cli.broker import download_progress
from retryapp.cli.console import ExitCode, Group, emit, emit_error, on_signals, stderr_console
from retryapp.core.errors import RetryAppError
from retryapp.core.text import counted
from retryapp.jvm import ensure_jars, spark_jars
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.pipeline.errors import OtherRunError, failures_named
from retryapp.pipeline.metrics import PipelineMetrics
from retryapp.pipeline.session import SessionOptions
from retryapp.pipeline.sources import Life, refuse_missing
from retryapp.runtime.machine.clock import SystemClock
from retryapp.runtime.machine.place import in_url
from retryapp.settings import load_settings

if TYPE_CHECKING:
    from retryapp.pipeline.archive import Archived, OnProgress
    from retryapp.pipeline.positions import TopicOutlook


@click.group(name="pipeline", cls=Group)
@click.pass_context
def command(context: click.Context) -> None:
    """Archive and analyse everything that failed, on Spark.

    Runs on this machine without any setup; --master and 'spark-submit' run the same on a cluster. The first run
    downloads 20 MB of jars from Maven Central into RETRYAPP_CACHE_DIR; later ones work offline.

    \b
    Examples:
      retryapp pipeline archive --broker localhost:9092 --group billing
      retryapp pipeline archive --broker localhost:9092 --group billing --lake s3a://lake/retries
      retryapp pipeline archive --broker localhost:9092 --group billing --every 1m --metrics-port 6080
      retryapp pipeline analyse --broker localhost:9092 --group billing
      retryapp pipeline report --out report.html
      retryapp pipeline causes --since 7d
      retryapp pipeline status --broker localhost:9092 --group billing --json
      retryapp pipeline erase --key ada@example.org
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    context.with_resource(on_signals(signal.default_int_handler, signal.SIGTERM))  # also before Spark starts


for _other in (analyse, report, causes, expire, vacuum, gaps, erase):
    command.add_command(_other)


@command.command()
@broker_options
@group_option
@click.option("--every", metavar="LENGTH", type=LENGTH, help="Keep running, one round per interval ('1m').")
@click.option(
    "--rows-per-batch", type=click.IntRange(min=1), show_default="500,000",
    help="Maximum number of offsets in one batch.",
)  # fmt: skip
@wait_option(None, "How long to wait for another run of the group ('2h'). [default: 0; with --every no limit]")
@click.option(
    "--metrics-port", metavar="PORT", type=click.IntRange(0, 65_535),
    help="Serve Prometheus metrics on this port; 0: any free one. [default: none]",
)  # fmt: skip
@click.option(
    "--metrics-bind", metavar="ADDRESS", default="127.0.0.1", show_default=True,
    help="Address that the metrics listen on. They have no login.",
)  # fmt: skip
@lake_options
@json_option
def archive(
    *,
    connection: KafkaConnection,
    groups: tuple[str, ...],
    every: int | None,
    rows_per_batch: int | None,
    wait_s: float | None,
    metrics_port: int | None,
    metrics_bind: str,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Copy retry topics, dead letters and events to the lake, each record once.

    Reads what is there now and ends; run it again for new records. It may be killed at any moment: a rerun continues,
    and no record is archived twice. Records that were deleted before they were read are reported (exit code 1). A
    second run of the same group is refused, or waits as --wait says; runs of other groups and the lake's upkeep are
    waited for, at least ten minutes. A group that fails keeps no other from being archived; then the command ends with
    its error. Only a lake on a path keeps runs apart: elsewhere run one at a time. With --every
    there is no limit unless --wait sets one, and each round prints its result, with --json as one object a line. With
    --metrics-port the run serves metrics for Prometheus.

    \b
    Exit codes: 0 all archived, 1 records were lost before they were archived, 130 stopped by Ctrl-C or SIGTERM.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms, code = SystemClock().wall_ms, ExitCode.FINE
    if wait_s is None:  # a round comes after that of another run; a single run does not queue
        wait_s = 0.0 if every is None else inf
    with ExitStack() as stack:
        metrics = None if metrics_port is None else stack.enter_context(_served(metrics_bind, metrics_port))
        admin = KafkaAdmin(connection)
        lasting = lake_job(lake, replace(session, brief=False), before_new=lambda _uri: refuse_missing(admin, groups))
        opened, stopped = stack.enter_context(lasting)
        from retryapp.pipeline.archive import Archive
        from retryapp.pipeline.gaps import Gaps

        known_gaps = Gaps(opened)
        jobs = [
            Archive(connection, opened, group, now_ms=now_ms, rows_per_batch=rows_per_batch)
            for group in sorted(set(groups))
        ]
        while True:
            results: list[Archived] = []
            failed: list[RetryAppError] = []
            for job in jobs:
                try:
                    with _progress(job.group) as show, failures_named("archive"):
                        result = job.run_once(on_progress=show, stopped=stopped, wait_s=wait_s, on_wait=print_waiting)
                except RetryAppError as error:
                    if stopped.is_set():
                        if isinstance(error, OtherRunError) and error.is_held:
                            break
                        raise
                    failed.append(error)  # retention does not wait: the other groups' records are archived first
                    continue
                results.append(result)
                if metrics is not None and not result.interrupted:
                    metrics.round_ended(result.group, ended_ms=now_ms(), gaps=known_gaps.open_of(result.group))
                if stopped.is_set():
                    break
            facts = {"lake": opened.uri, "groups": [archived_facts(result) for result in results]}
            if results or not failed:
                emit(facts, "\n".join(map(archived_text, results)), as_json=as_json)
            if failed:
                for other in failed[1:]:
                    emit_error(type(other).__name__, str(other), other.exit_code, as_json=as_json)
                raise failed[0]
            code = ExitCode.FINDING if any(result.gaps for result in results) else code
            if every is None or stopped.wait(every / 1_000):
                break
    cut_short = any(result.interrupted for result in results) or (every is None and stopped.is_set())
    return ExitCode.INTERRUPTED if cut_short else code


@command.command()
@broker_options
@group_option
@lake_options
@json_option
def status(
    *, connection: KafkaConnection, groups: tuple[str, ...], lake: str, session: SessionOptions, as_json: bool
) -> ExitCode:
    """Show how far the archive lags each topic, and how long until retention deletes what it has not read.

    Lists the erasures that have not ended.

    \b
    Exit codes: 0 nothing is lost, 1 records were lost already or will be within an hour, a topic is shorter than the
    archive, or an erasure has not ended.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    with lake_job(lake, session) as (opened, _):
        from retryapp.pipeline.erasures import Erasures
        from retryapp.pipeline.gaps import SHORTER
        from retryapp.pipeline.positions import find_outlook

        erasures = Erasures(opened).open()
        admin = KafkaAdmin(connection)
        topics = [topic for group in sorted(set(groups)) for topic in find_outlook(opened, admin, group)]
    facts = {"lake": opened.uri, "now_ms": now_ms, "topics": topics, "open_erasures": erasures}
    lines = [
        f"{topic.topic}[{partition}] {SHORTER.format(offset)}"
        for topic in topics
        for partition, offset in sorted(topic.cut_off.items())
    ]
    lines += [
        f"an erasure that began {instant(erasure.erased_ms, now_ms)} has not ended (hash {erasure.key_hash}): if none "
        f"is running, 'retryapp pipeline erase --resume --lake {quote(opened.uri)}' finishes it"
        for erasure in erasures
    ]
    emit(facts, "\n".join([outlook_text(topics, now_ms), *lines]), as_json=as_json)
    return ExitCode.FINDING if erasures or any(topic.at_risk(now_ms) for topic in topics) else ExitCode.FINE


@command.command()
@json_option
def jars(*, as_json: bool) -> None:
    """Download the jars that Spark needs for Kafka and Delta, and print their paths for 'spark-submit --jars'."""
    with download_progress(spark_jars(), "Spark's connectors") as progress:
        paths = ensure_jars(load_settings().cache_dir, spark_jars(), progress=progress)
    emit({"version": spark_jars().version, "jars": paths}, ",".join(map(str, paths)), as_json=as_json)


@contextmanager
def _served(bind: str, port: int) -> Iterator[PipelineMetrics]:
    metrics = PipelineMetrics()
    with metrics.served(bind, port) as actual_port:
        click.echo(f"metrics: http://{in_url(bind)}:{actual_port}/metrics", err=True)
        yield metrics


@contextmanager
def _progress(group: str) -> Iterator[OnProgress]:
    with stderr_console.status(f"{group}: starting") as line:
        yield lambda done: line.update(f"{group}: {progress_text(done)}")


def progress_text(progress: Archived) -> str:
    parts = [f"{counted(progress.rows, 'row')}", f"{progress.rows_per_s:,.0f}/s"]
    parts.append(f"{counted(progress.behind, 'offset')} behind")
    if progress.rows_per_s > 0:
        parts.append(f"about {progress.behind / progress.rows_per_s:,.0f} s left")
    return ", ".join(parts)


def archived_facts(result: Archived) -> dict[str, Any]:
    def of(life: Life) -> dict[str, Any]:
        return {"topic": life.topic, "topic_id": life.topic_id, "epoch": life.epoch}

    names = ("group", "run_id", "rows", "batches", "elapsed_ms", "topics", "interrupted")
    offsets = ("partition", "from_offset", "to_offset", "reason")
    return {
        **{name: getattr(result, name) for name in names},
        "rows_per_s": round(result.rows_per_s, 1),
        "gaps": [{**of(gap.life), **{name: getattr(gap, name) for name in offsets}} for gap in result.gaps],
        "new_topics": [of(life) for life in result.new_lives],
        "cut": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(result.cut.items())
        ],
    }


def archived_text(result: Archived) -> str:
    from retryapp.pipeline.gaps import gap_text

    lines = [
        f"{result.group}: {counted(result.rows, 'record')} of {counted(result.topics, 'topic')} archived in "
        f"{result.elapsed_ms / 1_000:.1f} s ({result.rows_per_s:,.0f}/s)"
        f"{', then interrupted: a rerun continues' if result.interrupted else ''}"
    ]
    lines += [f"  not archived: {gap_text(gap.row('', '', 0))}" for gap in result.gaps]
    lines += [
        f"  {life.topic} was re-created: epoch {life.epoch} begins" for life in result.new_lives if life.epoch > 1
    ]
    return "\n".join(lines)


def outlook_text(topics: Sequence[TopicOutlook], now_ms: int) -> str:
    rows = [
        (
            topic.topic,
            str(topic.epoch),
            f"{topic.behind:,}",
            f"{topic.undecided:,}",
            instant(topic.oldest_unread_ms, now_ms),
            "never" if topic.loss_at_ms is None and topic.oldest_unread_ms else instant(topic.loss_at_ms, now_ms),
            "deleted" if topic.ended else f"{topic.lost_offsets:,}",
        )
        for topic in topics
    ]
    names = ("topic", "epoch", "offsets behind", "in open transactions", "oldest unread", "lost by retention")
    return table((*names, "offsets lost"), rows)
