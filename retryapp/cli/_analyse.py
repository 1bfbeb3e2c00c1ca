"""``retryapp pipeline analyse | report``: what the archive's records come to, as tables and as a page."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from retryapp.cli._output import table
from retryapp.cli._spark import (
    broker_options,
    cancelled_by,
    format_option,
    interruptible,
    lake_options,
    length_ms,
    spark_session,
    stopped_by_signals,
    wait_option,
)
from retryapp.cli.console import ExitCode, emit, emit_error, json_option, stderr_console
from retryapp.kafka import KafkaAdmin, KafkaConnection, find_handlers
from retryapp.ledger import take_ledger
from retryapp.pipeline.errors import HeldError
from retryapp.pipeline.session import SessionOptions
from retryapp.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from retryapp.pipeline.analysis.checks import Verdict
    from retryapp.pipeline.analysis.comparison import Difference
    from retryapp.pipeline.analysis.cuts import TakenCut
    from retryapp.pipeline.analysis.job import Analysed
    from retryapp.pipeline.archive import Archive, Archived
    from retryapp.pipeline.lake import Lake

REPORT: Final = "retryapp-report.html"
DAY_MS: Final = 86_400_000
INTERRUPTED: Final = "interrupted: what was archived stays, and a rerun continues"


@click.command()
@broker_options
@click.option(
    "--group",
    "groups",
    metavar="NAME",
    required=True,
    multiple=True,
    help="Consumer group = the Faust app's id; may be repeated.",
)
@click.option("--full", is_flag=True, help="Make every journey anew, also those that nothing new concerns.")
@click.option(
    "--compare-ledger",
    is_flag=True,
    help="Count the topics as 'retryapp ledger' does, and compare. Only at rest are both of one moment.",
)
@click.option(
    "--report",
    "page",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the page too, as 'retryapp pipeline report' does.",
)
@wait_option("10m", "How long to wait for a run of 'archive' that is at work, for each group; others at least 10m.")
@format_option
@lake_options
@json_option
def analyse(
    *,
    connection: KafkaConnection,
    groups: tuple[str, ...],
    full: bool,
    compare_ledger: bool,
    page: Path | None,
    wait_s: float,
    table_format: str | None,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Archive what is there, and work out what became of every record that failed.

    Takes the groups' offsets first, then archives, then makes the tables below 'derived/' of the lake: journeys,
    funnel, lateness, causes, outages, offenders, cost, retention, ledger, checks. Only journeys that new records
    concern are made anew. 'retryapp pipeline report' shows them, --report does so at once. Where a run of 'retryapp
    pipeline archive' is at work on the lake, its round is waited for, and what it has archived is not archived again.

    \b
    Exit codes: 0 every check holds, 1 one does not (or the ledger differs), 130 stopped by Ctrl-C or SIGTERM.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    clock = SystemClock()
    try:
        with spark_session(session) as spark, stopped_by_signals() as stopped:
            from retryapp.pipeline.analysis.job import Analysis
            from retryapp.pipeline.archive import Archive, ArchiveOptions
            from retryapp.pipeline.lake import open_lake

            opened = open_lake(spark, lake, wanted=table_format)
            job = Analysis(spark, connection, opened, now_ms=clock.wall_ms)
            archives = [
                Archive(spark, connection, opened, ArchiveOptions(group=group), now_ms=clock.wall_ms)
                for group in sorted(set(groups))
            ]
            with job.hold() as held:
                taken = job.cut([archive.group for archive in archives])
                archived = _archive(archives, taken, wait_s, stopped)
                with cancelled_by(stopped, spark), unchanged(opened, archives, wait_s, stopped):
                    _say("analysing")
                    held.check("analyse")
                    analysed = job.run(taken, full=full)
                    held.check("analyse")
                    compared = _compare(spark, opened, connection, taken) if compare_ledger else None
                    counted = None if compared is None or not compared.at_rest else compared.counted
                    shown = None if page is None else _collect(spark, opened, clock.wall_ms(), DAY_MS, counted)
    except KeyboardInterrupt:
        emit_error("Interrupted", INTERRUPTED, ExitCode.INTERRUPTED, as_json=as_json)
        return ExitCode.INTERRUPTED
    facts = {"lake": opened.uri, **analysed_facts(analysed), "archived": [_archived_facts(each) for each in archived]}
    text = "\n".join([*_waited(archived), analysed_text(analysed, compared)])
    if page is not None and shown is not None:
        text += f"\n\n{_write(page, shown)}"
        facts["report"] = {"path": page.absolute(), "headline": shown["headline"], "totals": shown["totals"]}
    if compared is not None:
        facts["ledger"] = asdict(compared)
    emit(facts, text, as_json=as_json)
    differs = compared is not None and compared.at_rest and bool(compared.differences)
    return ExitCode.FINE if analysed.is_sound and not differs else ExitCode.FINDING


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    default=REPORT,
    show_default=True,
    help="The page; one file without anything outside.",
)
@click.option(
    "--fresh-within",
    "within_ms",
    metavar="LENGTH",
    default="1d",
    show_default=True,
    callback=length_ms,
    help="How old the analysis may be; an older one is a failed check.",
)
@lake_options
@json_option
def report(*, out: Path, within_ms: int, lake: str, session: SessionOptions, as_json: bool) -> ExitCode:
    """Write what was analysed as one page: what deserves action first. With --json print it instead.

    \b
    Exit codes: 0 every check holds, 1 one does not.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    with spark_session(replace(session, brief=True)) as spark, interruptible(spark):
        from retryapp.pipeline.lake import open_lake

        facts = _collect(spark, open_lake(spark, lake), now_ms, within_ms)
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else _write(out, facts))
    failed = any(check["severity"] == "error" and check["failures"] for check in facts["checks"])
    return ExitCode.FINDING if failed else ExitCode.FINE


def _archive(
    archives: Sequence[Archive], taken: Sequence[TakenCut], wait_s: float, stopped: threading.Event
) -> list[Archived]:
    """Archive up to the cuts; where another run is at work, wait for it and take what it has archived."""
    done = []
    for archive, cut in zip(archives, taken, strict=True):
        _say(f"{archive.group}: archiving")
        try:
            result = archive.run_once(stopped=stopped, wait_s=wait_s, on_wait=say_waiting, enough=cut.ends)
        except HeldError:
            if stopped.is_set():
                raise KeyboardInterrupt from None
            raise
        if result.interrupted or stopped.is_set():
            raise KeyboardInterrupt
        done.append(result)
    return done


@contextmanager
def unchanged(lake: Lake, archives: Sequence[Archive], wait_s: float, stopped: threading.Event) -> Iterator[None]:
    """Keep the archive as it is while the body reads it: Delta has versions, Parquet has not."""
    with ExitStack() as stack:
        if lake.format != "delta":
            for archive in archives:
                stack.enter_context(archive.hold(wait_s=wait_s, on_wait=say_waiting, stopped=stopped))
        yield


def say_waiting(holder: str) -> None:
    """Say who is waited for."""
    stderr_console.print(f"waiting for another run: {holder}", highlight=False)


def _archived_facts(result: Archived) -> dict[str, Any]:
    return {"group": result.group, "rows": result.rows, "by_another": result.by_another}


def _waited(archived: Sequence[Archived]) -> list[str]:
    return [
        f"{each.group}: archived by another run, {each.by_another}; analysed is what it has published"
        for each in archived
        if each.by_another is not None
    ]


def _collect(
    spark: SparkSession, lake: Lake, now_ms: int, within_ms: int, counted: Mapping[str, int] | None = None
) -> dict[str, Any]:
    from retryapp.pipeline.report import collect

    return collect(spark, lake, now_ms=now_ms, within_ms=within_ms, counted=counted)


def _write(out: Path, facts: Mapping[str, Any]) -> str:
    """Write the page, and return a line about it."""
    from retryapp.pipeline.report import to_page

    page = to_page(facts)
    out.write_text(page, encoding="utf-8")
    return f"{out.absolute()} ({len(page.encode()) / 1024:,.0f} KiB): {facts['headline']}"


def _say(what: str) -> None:
    if stderr_console.is_terminal:
        stderr_console.print(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The analysis held against ``retryapp ledger``."""

    at_rest: bool
    """The groups did nothing all the while, so both are of one moment."""
    differences: Sequence[Difference]
    counted: Mapping[str, int]
    """What the topics come to: received, first_try_ok, done."""


def _compare(spark: SparkSession, lake: Lake, connection: KafkaConnection, taken: Sequence[TakenCut]) -> Compared:
    """Count the topics, and compare."""
    from retryapp.pipeline.analysis.comparison import compare
    from retryapp.pipeline.analysis.cuts import take_cut
    from retryapp.pipeline.analysis.derived import Derived

    admin, found, rest, total = KafkaAdmin(connection), [], True, Counter[str]()
    rows = [row.asDict() for row in Derived(spark, lake).read("ledger").collect()]
    for cut in taken:
        group = cut.mains.group
        for topology in find_handlers(admin, group):
            counted = take_ledger(connection, topology).partitions
            ours = [row for row in rows if (row["group"], row["main"]) == (group, topology.main)]
            for row in ours:
                theirs = asdict(counted[row["partition"]])
                found += compare(row, theirs)
                total.update({name: theirs[name] for name in ("received", "done", "recovered", "skipped")})
        rest = rest and cut.is_rest(take_cut(admin, group))
    first = total["done"] - total["recovered"]
    counts = {"received": total["received"], "first_try_ok": first, "done": total["done"] + total["skipped"]}
    return Compared(at_rest=rest, differences=found, counted=counts)


def analysed_facts(result: Analysed) -> dict[str, Any]:
    """Return a run for programs."""
    facts = asdict(result)
    return {**facts, "sound": result.is_sound}


def analysed_text(result: Analysed, compared: Compared | None) -> str:
    """Return a run for people."""
    how = "all made anew" if result.full else f"{result.touched:,} of them made anew"
    lines = [f"{result.journeys:,} journeys, {how}, in {result.elapsed_ms / 1_000:.1f} s", _checks(result.verdicts)]
    if compared is not None:
        lines.append(_compared(compared.differences, compared.at_rest))
    return "\n\n".join(lines)


def _checks(verdicts: Sequence[Verdict]) -> str:
    failing = [verdict for verdict in verdicts if verdict.failures]
    if not failing:
        return f"all {len(verdicts)} checks hold"
    rows = [
        (verdict.severity, verdict.name, f"{verdict.failures:,}", verdict.text, "; ".join(verdict.examples[:2]))
        for verdict in failing
    ]
    holding = f"{len(verdicts) - len(failing)} of {len(verdicts)} checks hold"
    return f"{table(('severity', 'check', 'rows', 'what is wrong', 'for example'), rows)}\n\n{holding}"


def _compared(differences: Sequence[Difference], at_rest: bool) -> str:
    if not differences:
        return "retryapp ledger counts the same"
    moving = "" if at_rest else ", but the group was at work meanwhile, so the two are of different moments"
    lines = [f"retryapp ledger counts otherwise{moving}:"]
    lines += [
        f"  {each.main}[{each.partition}] {each.name}: analysis {each.analysis:,}, ledger {each.ledger:,}"
        for each in differences
    ]
    return "\n".join(lines)
