"""``retryapp ledger``: what has become of every record, counted from topics and committed offsets alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from retryapp.cli._options import Place, json_option, place_options, when
from retryapp.cli._output import table
from retryapp.cli._target import resolve
from retryapp.cli.console import ExitCode, emit, stderr_console
from retryapp.core.text import counted
from retryapp.ledger import Balance, Ledger, Problem, take_ledger
from retryapp.lookup.instants import utc_text
from retryapp.runtime.machine.clock import SystemClock

SHOWN_PROBLEMS: Final = 50
"""Problems listed for people; ``--json`` has all."""
COLUMNS: Final = (
    "received", "done", "pending", "held", "dead", "discarded", "skipped", "superseded", "unknown", "lost"
)  # fmt: skip
HEADINGS: Final = {"unknown": "unknown (expired)"}


@click.command(name="ledger")
@place_options
@click.option(
    "--since",
    metavar="WHEN",
    type=when(back=True),
    help="Only records of the main topic from then on: a length back from now with a unit ('2h', '7d'), or UTC "
    "('2030-01-31T12:00').",
)
@json_option
def command(*, place: Place, since: int | None, as_json: bool) -> ExitCode:
    """Count what has become of every record that was received: done, pending, dead, skipped, and others.

    Reads the topics and the group's offsets and asks no worker. It may run while workers run, counts each partition at
    one moment, and changes nothing. Each discrepancy is listed with the place where its record was last found.

    \b
    Exit codes: 0 everything adds up, 1 something does not.

    \b
    Examples:
      retryapp ledger -A billing
      retryapp ledger --broker localhost:9092 --group billing --topic orders --since 24h
      retryapp ledger --broker localhost:9092 --group billing --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    connection, topologies = resolve(place)
    ledgers = []
    for topology in topologies:
        with stderr_console.status("asking for offsets") as status:
            by_names = place.app_spec is None
            ledgers.append(take_ledger(connection, topology, by_names=by_names, since_ms=since, on_step=status.update))
    adds_up = all(ledger.adds_up for ledger in ledgers)
    facts = {"now_ms": now_ms, "since_ms": since, "adds_up": adds_up, "handlers": [*map(ledger_facts, ledgers)]}
    emit(facts, "\n\n".join(map(ledger_text, ledgers)), as_json=as_json)
    return ExitCode.FINE if adds_up else ExitCode.FINDING


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "group": ledger.group,
        "main": ledger.main,
        "adds_up": ledger.adds_up,
        "total": ledger.total,
        "partitions": [{"partition": number, **asdict(count)} for number, count in sorted(ledger.partitions.items())],
        "problems": list(ledger.problems),
        "unread_events": ledger.unread_events,
        "forgotten": list(ledger.forgotten),
        "missing_topics": [ledger.missing_letters] if ledger.missing_letters else [],
    }


def ledger_text(ledger: Ledger) -> str:
    rows = [(str(number), *_cells(balance)) for number, balance in sorted(ledger.partitions.items())]
    if len(rows) > 1:
        rows.append(("all", *_cells(ledger.total)))
    headings = ("partition", *(HEADINGS.get(name, name) for name in COLUMNS))
    since = "" if ledger.since_ms is None else f", since {utc_text(ledger.since_ms)}"
    parts = [f"{ledger.main} in group {ledger.group}{since}", table(headings, rows), _equation(ledger.total)]
    return "\n\n".join([*parts, *_notes(ledger), _verdict(ledger)])


def _cells(balance: Balance) -> tuple[str, ...]:
    return tuple(f"{getattr(balance, name):,}" for name in COLUMNS)


def _equation(whole: Balance) -> str:
    always = {"done", "pending", "dead"}
    counts = [(name, getattr(whole, name)) for name in COLUMNS[1:]]
    terms = [f"{count:,} {HEADINGS.get(name, name)}" for name, count in counts if count or name in always]
    return f"{whole.received:,} received = {' + '.join(terms)}"


def _notes(ledger: Ledger) -> list[str]:
    """Return further facts as one paragraph, one line each."""
    whole, lines = ledger.total, []
    if whole.recovered:
        lines.append(f"{whole.recovered:,} of the done records took more than one delivery")
    if whole.handled:
        lines.append(f"{whole.handled:,} of the dead records were handled by their handler of dead letters")
    if whole.on_hold:
        lines.append(
            f"{whole.on_hold:,} of the records that wait: held by somebody, or waiting for an event (Defer); "
            "not tried before a release or a deadline"
        )
    if whole.expired_offsets:
        lines.append(
            f"unknown (expired): {counted(whole.expired_offsets, 'offset')} at the start of {ledger.main}, "
            "no longer kept; records received there are not counted"
        )
    if whole.unread_offsets:
        lines.append(f"not read by the group yet: {counted(whole.unread_offsets, 'offset')}")
    if whole.copies:
        lines.append(
            f"not counted: {counted(whole.copies, 'record')} of {ledger.main}, copies of others that were due again, "
            "or what became of dead letters"
        )
    if ledger.forgotten:
        numbers = ", ".join(map(str, ledger.forgotten))
        lines.append(
            f"the broker has expired the committed offsets of partitions {numbers}: taken from the pending table's "
            "changelog"
        )
    if ledger.unread_events:
        lines.append(f"of an unknown type: {counted(ledger.unread_events, 'record')} of the events topic")
    if ledger.missing_letters:
        lines.append(
            f"{ledger.missing_letters} is not there: its handler keeps no dead letters (dead_letters='drop'), or it "
            "was deleted. What may have ended there is unknown; -A MODULE, in place of --broker, says which it is"
        )
    return ["\n".join(lines)] if lines else []


def _verdict(ledger: Ledger) -> str:
    problems = ledger.problems
    if not problems:
        return "everything adds up"
    lines = [f"{len(problems):,} {'thing does' if len(problems) == 1 else 'things do'} not add up:"]
    lines += [_problem_line(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"  and {len(problems) - SHOWN_PROBLEMS:,} more: --json lists all of them")
    return "\n".join(lines)


def _problem_line(problem: Problem) -> str:
    whose = f"{problem.failure_id}: " if problem.failure_id else f"partition {problem.partition}: "
    last = f"; last seen: {problem.station}" if problem.station else ""
    where = f" ({', '.join(problem.where)})" if problem.where else ""
    return f"  {problem.fault.value}: {whose}{problem.text}{last}{where}"
