"""Jobs in the terminal: say what one would do, ask, begin it, watch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import click
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retryapp.cli._options import Parsed, Place, decorated, pair, place_text, when
from retryapp.cli._output import missing_text, table
from retryapp.cli._target import decoding_of, missing_letters, resolve
from retryapp.cli.console import ExitCode, confirm, emit, stderr_console
from retryapp.core.causes import cause_bytes
from retryapp.core.checks import problem_text
from retryapp.core.classify import DeadReason
from retryapp.core.control import Refusal, Verb
from retryapp.core.dead_index import MAX_TYPE_BYTES
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.jobs import LetterFilter, PartState
from retryapp.core.text import counted
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.lookup.instants import utc_text
from retryapp.lookup.jobs import JobProgress, Order, Told, begin, outcomes, passed, progress_of
from retryapp.lookup.payloads import printable
from retryapp.lookup.previews import NO_REPLAY, Preview, preview
from retryapp.lookup.records import may_be_cut
from retryapp.runtime.machine.clock import SystemClock

FILTERS: Final = ("reason", "error_type", "cause", "message", "key", "header", "field", "from_ms", "until_ms")
_LOOK_S: Final = 1.0
_CUT: Final = (
    f"--error: lists on pages cut types to {MAX_TYPE_BYTES} bytes, and this one is as long. If nothing fits, give the "
    "whole type, as 'retryapp dead list' has it, or --cause"
)


def _cause(text: str) -> str:
    if cause_bytes(text) is None:
        raise ValueError(f"{text!r}: expected an id as lists show it, c1-3f9ca81b02")
    return text


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what selects records; the command gets a `LetterFilter` as `wanted`, or None without any."""

    @wraps(command)
    def with_filter(**values: Any) -> Any:
        fields = {name: values.pop(name, None) for name in FILTERS}
        given = values.pop("all_", False) or any(value is not None for value in fields.values())
        try:
            wanted = LetterFilter(**fields) if given else None
        except ValidationError as error:
            raise click.UsageError(problem_text(error)) from error
        since_ms, until_ms = fields["from_ms"], fields["until_ms"]
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            period = f"--since {utc_text(since_ms)} is not before --until {utc_text(until_ms)}"
            raise click.UsageError(f"{period}: nothing fits")
        if wanted is not None and may_be_cut(wanted.error_type):
            click.echo(_CUT, err=True)
        return command(wanted=wanted, **values)

    return decorated(
        with_filter,
        click.option(
            "--cause",
            type=Parsed("ID", _cause),
            metavar="ID",
            help="Only those with this cause, as lists show it: c1-3f9ca81b02.",
        ),
        click.option("--error", "error_type", metavar="TYPE", help="Only those with this type of error."),
        click.option("--message", metavar="TEXT", help="Only those with this text in the error's message."),
        click.option("--key", metavar="TEXT", help="Only of records with this key."),
        click.option(
            "--has-header",
            "header",
            type=pair("NAME=TEXT", "tenant=acme"),
            metavar="NAME=TEXT",
            help="Only of records with this header.",
        ),
        click.option(
            "--field",
            type=pair("/POINTER=TEXT", "/customer/id=17", begins="/"),
            metavar="/POINTER=TEXT",
            help="Only of records with this text in a field of their JSON value (RFC 6901).",
        ),
        click.option(
            "--since",
            "from_ms",
            type=when(back=True),
            metavar="WHEN",
            help="Only what failed then or later: '2h' ago, or UTC.",
        ),
        click.option(
            "--until",
            "until_ms",
            type=when(back=True),
            metavar="WHEN",
            help="Only what failed before then: '10m' ago, or UTC.",
        ),
    )


all_option = click.option("--all", "all_", is_flag=True, help="All of them.")
"""Of what changes records: lists have all without a filter."""
reason_option = click.option(
    "--reason", type=click.Choice([reason.value for reason in DeadReason]), help="Only those with this reason."
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add which letters a job is about, and how it is begun."""
    return decorated(
        command,
        all_option,
        filter_options,
        reason_option,
        click.option("--preview", "only_preview", is_flag=True, help="Show what a filter selects, and do nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--detach", is_flag=True, help="Do not wait for the end of the job: the workers continue it."),
    )


def only_handler(place: Place) -> tuple[KafkaConnection, HandlerTopology]:
    """Return the handler that a command is about.

    Raises:
        click.UsageError: there are several.
    """
    connection, topologies = resolve(place)
    if len(topologies) != 1:
        mains = ", ".join(topology.main for topology in topologies)
        raise click.UsageError(f"say which handler: --topic MAIN. There are: {mains}")
    return connection, topologies[0]


def begin_job(
    verb: Verb,
    wanted: LetterFilter,
    place: Place,
    *,
    by: str,
    why: str,
    wait_ms: int,
    as_json: bool,
    only_preview: bool,
    yes: bool,
    detach: bool,
    rate: str | None = None,
    force: bool = False,
) -> ExitCode:
    """Do something to all letters that fit a filter, as a job of the workers."""
    connection, topology = only_handler(place)
    order = Order(verb, wanted, rate=rate, force=force, by=by, why=why)
    if wanted.field is not None and decoding_of(place) is not None:
        click.echo("A job looks for --field in JSON values as they were sent: the app's decoder is not asked", err=True)
    with Progress(*_columns(), console=stderr_console, transient=True) as bar:
        task = bar.add_task("dead letters read", total=None)

        def go_on(read: Preview) -> bool:
            bar.update(task, completed=read.looked, total=read.whole)
            return True

        found = preview(connection, topology, verb, wanted, go_on=go_on)
    if only_preview or not found.letters:
        lacking = missing_letters(place, [topology])
        facts = {"verb": verb, "preview": found.facts, "missing_topics": lacking}
        emit(facts, _preview_text(verb, found) + missing_text(lacking), as_json=as_json)
        return ExitCode.FINE if found.letters else ExitCode.FINDING
    if not yes:
        click.echo(printable(_preview_text(verb, found)), err=True)
        confirm(f"{verb} {counted(found.letters, 'letter')}{f' at {rate}' if rate else ''}?")
    click.echo(f"sending the start of job {order.id}", err=True)  # who interrupts it now must know what to cancel
    said = outcomes(begin(connection, topology, order, found.scope, wait_s=wait_ms / 1000))
    refused = [_said(each) for each in said if each["outcome"] == "refused"]
    queued = sum(each["outcome"] == "queued" for each in said)
    if refused or queued or detach:
        begun = len(said) - len(refused) - queued
        text = f"job {order.id} has begun on {begun} of {counted(len(said), 'partition')}"
        text += f", {queued} wait for a worker" if queued else ""
        text += "".join(f"\nrefused: {each}" for each in dict.fromkeys(refused))
        emit({"job": order.id, "preview": found.facts, "begun": begun, "queued": queued, "refused": refused},
             f"{text}\nwatch it: retryapp job show {place_text()} {order.id}", as_json=as_json)  # fmt: skip
        return ExitCode.FINDING if refused or queued else ExitCode.FINE
    return watch(connection, topology, order.id, found.letters, as_json=as_json)


def _columns() -> tuple[Any, ...]:
    return TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()


def watch(
    connection: KafkaConnection, topology: HandlerTopology, job: str, letters: int | None, *, as_json: bool
) -> ExitCode:
    """Show how far a job is until it has ended or is paused; Ctrl-C and a silent broker end the watching alone."""
    with Progress(*_columns(), console=stderr_console, transient=True) as bar:
        task = bar.add_task(f"job {job}", total=letters)
        try:
            while (
                found := progress_of(connection, topology, SystemClock().wall_ms()).get(job)
            ) is None or found.whole.state is PartState.RUNNING:
                if found is not None:
                    whole, late = found.whole, late_text(found)
                    taken, said = whole.done + whole.refused.total() - passed(whole), f"job {job}, {late}"
                    bar.update(task, completed=taken, description=said.removesuffix(", "))
                elif letters is None:
                    return unknown_job(job, as_json=as_json)
                time.sleep(_LOOK_S)
        except (KeyboardInterrupt, BrokerUnreachableError):
            stderr_console.print(
                f"job {job} goes on: retryapp job show {place_text()} {job}\n{_end_text('cancel', job)}",
                markup=False,
            )
            raise
    whole = found.whole
    emit(found.details(job), job_text(job, found), as_json=as_json)
    fine = whole.state is PartState.ENDED and whole.refused.total() == passed(whole)
    return ExitCode.FINE if fine else ExitCode.FINDING


def unknown_job(job: str, *, as_json: bool) -> ExitCode:
    text = f"no partition knows job {job}: no worker has taken it yet, all have refused it, or it was over long ago"
    emit({"job": job, "found": False}, text, as_json=as_json)
    return ExitCode.FINDING


def answers(facts: Mapping[str, Any], told: Told, *, as_json: bool) -> ExitCode:
    """Print what partitions say of a command.

    Returns:
        FINE: all have obeyed it.
    """
    said = outcomes(told)
    rows = [[str(each["partition"]), each["outcome"], _said(each)] for each in said]
    emit({**facts, "partitions": said}, table(["partition", "outcome", ""], rows), as_json=as_json)
    return ExitCode.FINE if all(each["outcome"] == "done" for each in said) else ExitCode.FINDING


def _said(facts: Mapping[str, Any]) -> str:
    """Return what a partition says, with the word of a refusal, by which docs explain it."""
    return facts["text"] if facts["refused"] is None else f"{facts['refused']}: {facts['text']}"


def _end_text(verb: str, job: str) -> str:
    words = {"resume": "go on", "cancel": "end it"}[verb]
    return f"{words}: retryapp job {verb} {place_text()} {job} --why TEXT"


def late_text(found: JobProgress) -> str:
    """Return on how many partitions a job still waits for a worker; empty: on none."""
    count = len(found.not_begun)
    return f"{counted(count, 'partition')} {'has' if count == 1 else 'have'} not begun" if count else ""


def state_text(found: JobProgress) -> str:
    """Return the state of a job in a few words, with what it waits for."""
    held = "deliveries are paused" if found.pauses else ""
    return ", ".join(filter(None, (_state(found), late_text(found), held)))


def _state(found: JobProgress) -> str:
    return found.whole.state if found.parts else "waits"


def job_text(job: str, found: JobProgress) -> str:
    whole = found.whole
    lines = [f"job {job}: {whole.verb}, {_state(found)}; {whole.counts}"]
    if late := late_text(found):
        lines.append(f"{late}, as no worker has taken it there yet: {', '.join(map(str, found.not_begun))}")
    for text in dict.fromkeys(found.pauses.values()):
        numbers = ", ".join(str(number) for number, each in found.pauses.items() if each == text)
        lines.append(f"deliveries are {text} (partitions: {numbers}): what it replays there waits for 'handler resume'")
    stay = passed(whole)
    counts = {"stay as they were before": stay, "were refused": whole.refused.total() - stay}
    if whole.refused:
        said = " and ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        lines.append(f"{said}; which, and why: retryapp job refused {place_text()} {job}")
    lines += [
        f"{part.state} on partition {number}: {part.paused}" for number, part in found.parts.items() if part.paused
    ]
    if any(part.state is PartState.PAUSED for part in found.parts.values()):
        lines += [_end_text("resume", job), _end_text("cancel", job)]
    return "\n".join(lines)


def _preview_text(verb: Verb, found: Preview) -> str:
    done = "".join(
        f"; {count:,} are {word} and {'refused' if word in NO_REPLAY.values() else 'stay so'}"
        for word, count in sorted((+found.done).items())
    )
    text = f"{verb}: {counted(found.letters, 'letter')}{done}"
    if found.done[Refusal.CRASHED]:
        text += "\ncrashed: no job replays what ended its workers; replay each alone, by its failure id with --force"
    if not found.letters:
        return text
    rows = [[cause, f"{count:,}", found.names[cause]] for cause, count in (+found.causes).most_common(20)]
    samples = "\n".join(f"  {name}" for name in found.examples)
    return f"{table(['cause', 'letters', ''], rows)}\nfor example\n{samples}\n{text}"
