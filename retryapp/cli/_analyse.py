"""``retryapp pipeline analyse | report | causes``: the analysis of the archive, as tables and as a page."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from retryapp.cli._options import LENGTH, WORDS, json_option, user_name
from retryapp.cli._output import table
from retryapp.cli._spark import (
    STOPPED,
    broker_options,
    group_option,
    lake_job,
    lake_options,
    print_waiting,
    wait_option,
)
from retryapp.cli.console import ExitCode, emit, stderr_console
from retryapp.core.errors import EnvironmentFault
from retryapp.core.text import counted
from retryapp.kafka import KafkaAdmin, KafkaConnection, find_handlers
from retryapp.ledger import take_ledger
from retryapp.pipeline.session import SessionOptions
from retryapp.pipeline.sources import count_offsets, refuse_missing
from retryapp.runtime.machine.clock import SystemClock

if TYPE_CHECKING:
    from retryapp.pipeline.analysis.checks import Verdict
    from retryapp.pipeline.analysis.cuts import TakenCut
    from retryapp.pipeline.archive import Archive, Archived
    from retryapp.pipeline.lake import Lake

DAY_MS: Final = 86_400_000
POLL_S: Final = 0.1
MANY_RECORDS: Final = 400_000  # records from which an analysis takes less processor time with Java's second compiler

since_option = click.option(
    "--since", metavar="LENGTH", type=LENGTH, help="Only what happened in this time ('7d'). [default: all]"
)


@click.command()
@broker_options
@group_option
@click.option(
    "--compare-ledger", is_flag=True,
    help="Count the topics as 'retryapp ledger' does, and compare. Exact only while the group is idle.",
)  # fmt: skip
@click.option(
    "--report", "page", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the page too, as 'retryapp pipeline report' does.",
)  # fmt: skip
@click.option(
    "--after",
    metavar="FILE",
    type=click.Path(path_type=Path),
    hidden=True,  # for the demo, which makes it at its end
    help="Archive what is there, then wait for this file and go on.",
)
@wait_option("10m", "How long to wait for a running 'archive' of the same group; others are waited for at least 10m.")
@lake_options
@json_option
def analyse(
    *,
    connection: KafkaConnection,
    groups: tuple[str, ...],
    compare_ledger: bool,
    page: Path | None,
    after: Path | None,
    wait_s: float,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> ExitCode:
    """Archive what is there, and derive the fate of every record that failed.

    Takes the groups' offsets first, then archives, then makes the tables below 'derived/' of the lake; without
    news the last result stands. 'retryapp pipeline report' shows it, --report does so at once. If
    an 'archive' run of the group is at work on the lake, the command waits for its round and does not archive the same
    records again.

    \b
    Exit codes: 0 every check holds, 1 a check fails (or the ledger differs), 130 stopped by Ctrl-C or SIGTERM.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms
    login = click.get_current_context().params["client_config"]
    compared = shown = None
    if page is not None:
        if after is None:  # what is waited for may make its folder
            _check_folder(page)
        # while the JVM starts: it takes a second
        threading.Thread(target=import_module, args=("retryapp.pipeline.report.page",), daemon=True).start()
    admin = KafkaAdmin(connection)
    session = replace(session, brief=count_offsets(admin, groups) < MANY_RECORDS)
    with lake_job(lake, session, before_new=lambda _uri: refuse_missing(admin, groups)) as (opened, stopped):
        from retryapp.pipeline.analysis.cuts import take_cut
        from retryapp.pipeline.analysis.job import Analysis
        from retryapp.pipeline.archive import Archive
        from retryapp.pipeline.hold import TURN_S
        from retryapp.pipeline.report.facts import collect

        job = Analysis(opened, now_ms=now_ms)
        archives = [Archive(connection, opened, group, now_ms=now_ms) for group in sorted(set(groups))]
        if after is not None:
            _archive_until(after, archives, wait_s, stopped)
        with job.hold(wait_s=max(wait_s, TURN_S), on_wait=print_waiting, stopped=stopped):
            taken = [take_cut(admin, archive.group) for archive in archives]
            archived = _archive(archives, wait_s, stopped)
            _show("analysing")
            analysed = job.run(taken, broker=connection.bootstrap, client_config=login and str(login))
            if compare_ledger:
                compared = _compare(opened, connection, taken)
            if page is not None:
                shown = collect(opened, now_ms=now_ms(), within_ms=DAY_MS)
    news = "" if analysed.is_new else ", nothing new"
    parts = [
        f"{counted(analysed.journeys, 'journey')}{news}, in {analysed.elapsed_ms / 1_000:.1f} s",
        _checks(analysed.verdicts),
    ]
    facts = {"lake": opened.uri, **asdict(analysed), "sound": analysed.is_sound}
    facts["archived"] = [{"group": each.group, "rows": each.rows} for each in archived]
    if compared is not None:
        parts.append(_compared(compared, analysed.groups))
        facts["ledger"] = compared
    if page is not None and shown is not None:
        parts.append(_write(page, shown))
        facts["report"] = {"path": page.absolute(), "headline": shown["headline"], "totals": shown["totals"]}
    emit(facts, "\n\n".join(parts), as_json=as_json)
    differs = compared is not None and compared.at_rest and bool(compared.differences)
    return ExitCode.FINE if analysed.is_sound and not differs else ExitCode.FINDING


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False, writable=True), default="retryapp-report.html",
    show_default=True, help="The page; one file with everything in it.",
)  # fmt: skip
@click.option(
    "--fresh-within", "within_ms", metavar="LENGTH", default="1d", show_default=True, type=LENGTH,
    help="Maximum age of the analysis; an older one is a failed check.",
)  # fmt: skip
@since_option
@lake_options
@json_option
def report(
    *, out: Path, within_ms: int, since: int | None, lake: str, session: SessionOptions, as_json: bool
) -> ExitCode:
    """Write the analysis as one page, most urgent first; with --json print it instead.

    With --since, figures are of attempts that ended since then, and each cause is compared with the time before that is
    as long: new, more, fewer, gone. The totals on top are of all time.

    \b
    Exit codes: 0 every check holds, 1 a check fails.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    if not as_json:
        _check_folder(out)
    now_ms = SystemClock().wall_ms()
    with lake_job(lake, session) as (opened, _):
        from retryapp.pipeline.report.facts import collect

        since_ms = None if since is None else now_ms - since
        facts = collect(opened, now_ms=now_ms, within_ms=within_ms, since_ms=since_ms)
    emit(facts, "" if as_json else _write(out, facts), as_json=as_json)
    failed = any(check["severity"] == "error" and check["failures"] for check in facts["checks"])
    return ExitCode.FINDING if failed else ExitCode.FINE


@click.command()
@click.option("--resolve", metavar="CAUSE", multiple=True, help="It is mended; it comes back as 'regressed'.")
@click.option("--ignore", metavar="CAUSE", multiple=True, help="Leave it out of what to do.")
@click.option("--reopen", metavar="CAUSE", multiple=True, help="Neither resolved nor ignored any more.")
@click.option("--until", metavar="LENGTH", type=LENGTH, help="--ignore ends after this time ('7d'). [default: never]")
@click.option("--topic", "main", metavar="NAME", help="Only of this main topic. [default: all]")
@click.option("--by", "who", type=WORDS, default=user_name, show_default="the user's name", help="Who decides.")
@click.option("--note", type=WORDS, default="", help="Why.")
@since_option
@lake_options
@json_option
def causes(
    *,
    resolve: tuple[str, ...],
    ignore: tuple[str, ...],
    reopen: tuple[str, ...],
    until: int | None,
    main: str | None,
    who: str,
    note: str,
    since: int | None,
    lake: str,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """List what records fail of, as of the last analysis; decide about causes.

    \b
    Examples:
      retryapp pipeline causes --since 7d
      retryapp pipeline causes --resolve c1-3f9ca81b02 --note "payments 2.4"
      retryapp pipeline causes --ignore c1-3f9ca81b02 --until 30d
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    if until is not None and not ignore:
        raise click.UsageError("--until goes with --ignore")
    if several := ({*resolve} & {*ignore}) | ({*resolve, *ignore} & {*reopen}):
        raise click.UsageError(f"{min(several)}: give a cause to one of --resolve, --ignore and --reopen")
    now_ms = SystemClock().wall_ms()
    with lake_job(lake, session) as (opened, _):
        from retryapp.pipeline.analysis.checks import OLDER
        from retryapp.pipeline.analysis.derived import Derived
        from retryapp.pipeline.decisions import IGNORED, OPEN, RESOLVED, decide
        from retryapp.pipeline.report.facts import by_name, causes_of

        result = Derived(opened).last_result()

        def seen(since_ms: int | None = None) -> list[dict[str, Any]]:
            found = causes_of(opened, result, now_ms=now_ms, since_ms=since_ms)
            return [row for row in found if main in {None, row["main"]}]

        wanted = {**dict.fromkeys(resolve, RESOLVED), **dict.fromkeys(ignore, IGNORED), **dict.fromkeys(reopen, OPEN)}
        if wanted:
            until_ms = None if until is None else now_ms + until
            decide(opened, seen(), wanted, decided_ms=now_ms, who=who, note=note, until_ms=until_ms)
        shown = seen(None if since is None else now_ms - since)
        analysed_ms, groups = result["analysed_ms"], result["state"]["groups"]
    if since is not None and now_ms - since > analysed_ms:
        stderr_console.print(OLDER, highlight=False)
    names = (
        "cause", "topic", "what", "reason", "decision", "change",
        "dead", "discarded", "waiting", "recovered", "attempts",
    )  # fmt: skip
    lines = [
        (
            row["cause_id"], row["main"], row["template"] or row["error_type"], row["reason"] or "",
            row["decision"], row["change"] or "",
            *(f"{row[name]:,}" for name in ("dead", "discarded", "pending", "recovered", "failures")),
        )
        for row in by_name(shown, groups)
    ]  # fmt: skip
    facts = {"analysed_ms": analysed_ms, "causes": shown}
    emit(facts, table(names, lines) if lines else "nothing failed", as_json=as_json)


def _archive(archives: Sequence[Archive], wait_s: float, stopped: threading.Event) -> list[Archived]:
    """Archive what is there, and so all before the cuts; where another run is at work, wait for it."""
    results = []
    for archive in archives:
        _show(f"{archive.group}: archiving")
        result = archive.run_once(stopped=stopped, wait_s=wait_s, on_wait=print_waiting)
        if result.interrupted or stopped.is_set():
            raise KeyboardInterrupt(STOPPED)
        results.append(result)
    return results


def _archive_until(after: Path, archives: Sequence[Archive], wait_s: float, stopped: threading.Event) -> None:
    """Archive what is there already, and wait for a file."""
    _archive(archives, wait_s, stopped)
    while not after.exists():
        if stopped.wait(POLL_S):
            raise KeyboardInterrupt(STOPPED)


def _check_folder(page: Path) -> None:
    """Refuse a page whose folder cannot take it: before a minute's work, not after it."""
    if page.is_dir():  # of no name at all
        raise click.UsageError(f"{page} is a folder: name a file")
    if not page.exists() and not os.access(page.absolute().parent, os.W_OK):  # one that is there was looked at
        raise click.UsageError(f"{page} cannot be written: its folder is not there, or belongs to others")


def _write(out: Path, facts: Mapping[str, Any]) -> str:
    from retryapp.pipeline.report.page import to_page

    page = to_page(facts)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"{out} cannot be written: {error.strerror}. Free space, or name another file"
        ) from error
    return f"{out.absolute()} ({len(page.encode()) / 1024:,.0f} KiB): {facts['headline']}"


def _show(step: str) -> None:
    if stderr_console.is_terminal:
        stderr_console.print(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The analysis compared with ``retryapp ledger``."""

    at_rest: bool
    """The groups were idle meanwhile, so both are of one moment."""
    differences: Sequence[Mapping[str, Any]]


def _compare(lake: Lake, connection: KafkaConnection, taken: Sequence[TakenCut]) -> Compared:
    from retryapp.pipeline.analysis.counts import compare
    from retryapp.pipeline.analysis.cuts import take_cut
    from retryapp.pipeline.analysis.derived import Derived

    admin, differences, at_rest = KafkaAdmin(connection), [], True
    rows = Derived(lake).last_result()["ledger"]
    for cut in taken:
        group = cut.group
        for topology in (each for each in find_handlers(admin, group) if each.main not in cut.gone):
            taken_ledger = take_ledger(connection, topology, by_names=True)
            for row in rows:
                if (row["group"], row["main"]) == (group, topology.main):
                    theirs = asdict(taken_ledger.partitions[row["partition"]])
                    differences += compare(row, theirs)
        at_rest = at_rest and cut == take_cut(admin, group)
    return Compared(at_rest=at_rest, differences=differences)


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


def _compared(compared: Compared, groups: Sequence[str]) -> str:
    from retryapp.pipeline.report.facts import by_name

    if not compared.differences:
        return "retryapp ledger counts the same"
    moving = "" if compared.at_rest else ", but the group was active meanwhile, so the two are of different moments"
    lines = [f"retryapp ledger counts otherwise{moving}:"]
    text = "  {main}[{partition}] {name}: analysis {analysis:,}, ledger {ledger:,}"
    lines += [text.format_map(each) for each in by_name(compared.differences, groups)]
    return "\n".join(lines)
