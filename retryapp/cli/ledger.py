"""``retryapp ledger``: what has become of every record, counted from topics and committed offsets alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from retryapp.cli._output import table
from retryapp.cli._target import Place, place_options, resolve
from retryapp.cli.console import ExitCode, emit, json_option, stderr_console
from retryapp.cli.pending import parse_when
from retryapp.ledger import Balance, Ledger, Problem, take_ledger
from retryapp.ledger.take import OnProgress
from retryapp.runtime.clock import SystemClock
from retryapp.web.instants import utc_text

SHOWN_PROBLEMS: Final = 50
"""Problems listed for people; ``--json`` has all."""
COLUMNS: Final = ("received", "done", "pending", "held", "dead", "discarded", "skipped", "unknown", "lost")
HEADINGS: Final = {"unknown": "unknown (expired)"}


@click.command(name="ledger")
@place_options
@click.option(
    "--since",
    metavar="WHEN",
    help="Only records of the main topic from then on: a length back from now with a unit ('2h', '7d'), or UTC "
    "('2030-01-31T12:00').",
)
@click.option(
    "--copies-allowed",
    is_flag=True,
    help="Count hand-offs that are there twice and do not object.",
)
@json_option
def command(*, place: Place, since: str | None, copies_allowed: bool, as_json: bool) -> ExitCode:
    """Count what has become of every record that was received: done, pending, held, dead, discarded or skipped.

    Reads the topics and the group's offsets and asks no worker. It may run beside workers, and counts each partition at
    one moment; it changes nothing. Everything that does not add up is named, with where it was seen last.

    \b
    Exit codes: 0 everything adds up, 1 something does not.

    \b
    Examples:
      retryapp ledger -A billing
      retryapp ledger --broker localhost:9092 --group billing --topic orders --since 24h
      retryapp ledger --broker localhost:9092 --group billing --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    since_ms = None if since is None else parse_when(since, now_ms, option="--since", back=True)
    target = resolve(place)
    ledgers = []
    for topology in target.topologies:
        with _progress() as (on_progress, on_wait):
            ledgers.append(
                take_ledger(
                    target.connection,
                    topology,
                    since_ms=since_ms,
                    copies_allowed=copies_allowed,
                    on_progress=on_progress,
                    on_wait=on_wait,
                )
            )
    adds_up = all(ledger.adds_up for ledger in ledgers)
    facts = {"now_ms": now_ms, "since_ms": since_ms, "adds_up": adds_up, "handlers": [*map(ledger_facts, ledgers)]}
    emit(facts, "\n\n".join(map(ledger_text, ledgers)), as_json=as_json)
    return ExitCode.FINE if adds_up else ExitCode.FINDING


@contextmanager
def _progress() -> Iterator[tuple[OnProgress, Any]]:
    """Show how far the reading is, on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=stderr_console,
        transient=True,
        disable=not stderr_console.is_terminal,
    )
    with bar:
        task = bar.add_task("asking for offsets", total=None)
        yield (
            lambda topic, passed, in_all: bar.update(task, description=topic, completed=passed, total=in_all),
            lambda what: bar.update(task, description=what),
        )


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger for programs."""
    return {
        "group": ledger.group,
        "main": ledger.main,
        "adds_up": ledger.adds_up,
        "copies_allowed": ledger.copies_allowed,
        "total": asdict(ledger.total),
        "partitions": [{"partition": number, **asdict(found)} for number, found in sorted(ledger.partitions.items())],
        "problems": list(ledger.problems),
        "unread_events": ledger.unread_events,
        "forgotten": list(ledger.forgotten),
    }


def ledger_text(ledger: Ledger) -> str:
    """Return a ledger for people."""
    rows = [(str(number), *_cells(balance)) for number, balance in sorted(ledger.partitions.items())]
    if len(rows) > 1:
        rows.append(("all", *_cells(ledger.total)))
    headings = ("partition", *(HEADINGS.get(name, name) for name in COLUMNS))
    since = "" if ledger.since_ms is None else f", from {utc_text(ledger.since_ms)} on"
    parts = [f"{ledger.main} in group {ledger.group}{since}", table(headings, rows), _equation(ledger.total)]
    parts += _notes(ledger)
    return "\n\n".join([*parts, _verdict(ledger)])


def _cells(balance: Balance) -> tuple[str, ...]:
    return tuple(f"{getattr(balance, name):,}" for name in COLUMNS)


def _equation(whole: Balance) -> str:
    named = [f"{getattr(whole, name):,} {name}" for name in COLUMNS[1:6]]
    named += [f"{whole.skipped:,} skipped"] if whole.skipped else []
    named += [f"{whole.unknown:,} unknown (expired)"] if whole.unknown else []
    named += [f"{whole.lost:,} lost"] if whole.lost else []
    return f"{whole.received:,} received = {' + '.join(named)}"


def _notes(ledger: Ledger) -> list[str]:
    """Return what else there is to know, a paragraph of a line each."""
    whole, lines = ledger.total, []
    if whole.recovered:
        lines.append(f"{whole.recovered:,} of those done had failed before")
    if whole.to_park or whole.redelivered:
        lines.append(
            f"of those pending {whole.to_park:,} are on the way to the table, {whole.redelivered:,} on the way back"
        )
    if whole.expired_offsets:
        lines.append(
            f"unknown (expired): {whole.expired_offsets:,} offsets at the beginning of {ledger.main}, which are no "
            "longer kept; what was received there is not among the above"
        )
    if whole.unread_offsets:
        lines.append(f"{whole.unread_offsets:,} offsets are not read by the group yet")
    if ledger.copies_allowed and whole.copies:
        lines.append(f"{whole.copies:,} hand-offs are there again, as happens without transactions")
    if ledger.forgotten:
        numbers = ", ".join(map(str, ledger.forgotten))
        lines.append(
            f"the broker has forgotten the group's offsets of partitions {numbers}: taken from what lanes wrote down"
        )
    if ledger.unread_events:
        lines.append(f"{ledger.unread_events:,} records of the events topic are no event that is known here")
    return ["\n".join(lines)] if lines else []


def _verdict(ledger: Ledger) -> str:
    problems = ledger.problems
    if not problems:
        return "everything adds up"
    lines = [f"{len(problems):,} {'thing does' if len(problems) == 1 else 'things do'} not add up:"]
    lines += [_problem_line(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"  and {len(problems) - SHOWN_PROBLEMS:,} more: --json has all of them")
    return "\n".join(lines)


def _problem_line(problem: Problem) -> str:
    whose = f"{problem.failure_id}: " if problem.failure_id else f"partition {problem.partition}: "
    seen = f"; last seen: {problem.station}" if problem.station else ""
    where = f" ({', '.join(problem.where)})" if problem.where else ""
    return f"  {problem.fault.value}: {whose}{problem.text}{seen}{where}"
