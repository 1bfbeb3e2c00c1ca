"""``retryapp dead``: dead letters, read from the dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, BinaryIO, Final

import click

from retryapp.cli._jobs import begin_job, filter_options, job_options, reason_option
from retryapp.cli._options import (
    RATE,
    Place,
    decorated,
    json_option,
    list_options,
    pair,
    place_options,
    place_text,
    raw_option,
    typed_bytes,
)
from retryapp.cli._output import list_text, missing_text, show_missing, show_record
from retryapp.cli._steer import need_reason, steer, steer_options
from retryapp.cli._target import decoding_of, missing_letters, resolve, resolve_failure, show_of
from retryapp.cli.console import ExitCode, Group, emit
from retryapp.core.control import Edit, Verb
from retryapp.core.jobs import LetterFilter
from retryapp.lookup.records import dead_detail, dead_entry, dead_value, find_dead, list_dead, payloads
from retryapp.runtime.machine.clock import SystemClock

COLUMNS: Final = {
    "failure id": "failure_id",
    "key": "key",
    "reason": "reason",
    "attempts": "attempts",
    "dead since": "dead_ms",
    "cause": "cause_id",
    "last error": "error",
    "mark": "mark",
}


def edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a replay may change of one record; the command gets an `Edit` as `edit`, or None."""

    @wraps(command)
    def with_edit(
        *,
        failure_ids: tuple[str, ...],
        wanted: LetterFilter | None,
        value: str | None,
        value_file: BinaryIO | None,
        headers: tuple[str, ...],
        drop: tuple[str, ...],
        idempotency: str | None,
        **options: Any,
    ) -> Any:
        one = len(failure_ids) == 1 and failure_ids != ("-",)
        key = wanted.key if one and wanted is not None and wanted == LetterFilter(key=wanted.key) else None
        edit = None
        if headers or drop or any(part is not None for part in (value, value_file, key, idempotency)):
            if not one:
                raise click.UsageError("an edit is of one record: give its failure id, and no filter")
            if idempotency is None:
                raise click.UsageError(
                    "an edit needs --idempotency keep (the same call for services), or new (another)"
                )
            if value is not None and value_file is not None:
                raise click.UsageError("--value and --value-file exclude each other")
            data = value_file.read() if value_file is not None else None if value is None else typed_bytes(value)
            pairs = {name: typed_bytes(text) for name, _, text in (each.partition("=") for each in headers)}
            try:
                edit = Edit.of(
                    idempotency, value=data, key=None if key is None else key.encode(), headers=pairs, drop=drop
                )
            except ValueError as error:
                raise click.UsageError(
                    "an edit changes something: --value, --value-file, --header, --drop-header, --key"
                ) from error
            wanted = None if key is not None else wanted
        return command(failure_ids=failure_ids, wanted=wanted, edit=edit, **options)

    return decorated(
        with_edit,
        click.option("--value", metavar="TEXT", help="Edit: the new value."),
        click.option(
            "--value-file", type=click.File("rb"), help="Edit: a file with the new value, byte for byte; -: stdin."
        ),
        click.option(
            "--header",
            "headers",
            type=pair("NAME=TEXT", "tenant=acme"),
            metavar="NAME=TEXT",
            multiple=True,
            help="Edit: set a header; repeatable.",
        ),
        click.option("--drop-header", "drop", metavar="NAME", multiple=True, help="Edit: remove a header; repeatable."),
        click.option(
            "--idempotency",
            type=click.Choice(("keep", "new")),
            help="Edit: the idempotency key stays, or ends with -e1.",
        ),
    )


@click.group(name="dead", cls=Group)
def command() -> None:
    """Look at dead letters, records that will not be tried again, and why; send them back.

    `list` and `show` read the topics, so they work with all workers down. The others ask the workers. Times are UTC.
    """


@command.command(name="list")
@place_options
@list_options
@filter_options
@reason_option
@json_option
def list_(*, place: Place, partition: int | None, wanted: LetterFilter | None, limit: int, as_json: bool) -> ExitCode:
    """List dead letters, the latest first, with what became of them: replayed, recovered, discarded, handled.

    \b
    Examples:
      retryapp dead list -A billing
      retryapp dead list --broker localhost:9092 --group billing --reason exhausted
      retryapp dead list -A billing --cause c1-3f9ca81b02
      retryapp dead list --broker localhost:9092 --group billing --topic orders --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topologies = resolve(place)
    only: Any = {"partition": partition, "wanted": wanted, "decoding": decoding_of(place)}
    found = list_dead(connection, topologies, **only, limit=limit)
    now_ms = SystemClock().wall_ms()
    none = "no dead letters" if (partition, wanted) == (None, None) else "no dead letters that fit"
    text = list_text(found, COLUMNS, now_ms, of="dead letters", none=none, still="dead")
    lacking = missing_letters(place, topologies)
    text += missing_text(lacking)
    emit({"now_ms": now_ms, **found._asdict(), "missing_topics": lacking}, text, as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("failure_id")
@place_options
@raw_option
@json_option
def show(*, failure_id: str, place: Place, raw: bool, as_json: bool) -> ExitCode:
    """Show one dead letter: reason, attempts, errors, traceback, headers, key and value.

    FAILURE_ID is group/topic@id/partition/offset, as in lists and logs; --group is not needed. Of a record that
    died more than once (after a replay), the last dead letter is shown.

    \b
    Exit codes: 0 it is there, 1 it is not; with --raw also: it does not have its value.

    \b
    Examples:
      retryapp dead show -A billing billing/orders@kq8G0bTz/3/1042
      retryapp dead show --broker localhost:9092 billing/orders@kq8G0bTz/3/1042 --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology, origin = resolve_failure(place, failure_id)
    found = find_dead(connection, topology, origin)
    if found is None:
        waits = f"'retryapp pending show {place_text()} {failure_id}'"
        text = (
            f"has no dead letter: it is done, waits ({waits}), was discarded without one "
            "(dead_letters='drop'), or its letter was deleted: by retention, or with its topic"
        )
        return show_missing(failure_id, text, raw=raw, as_json=as_json)
    record, mark = found
    facts = {
        **dead_detail(dead_entry(record), record.headers),
        "dead_ms": record.timestamp_ms,
        "topic": record.topic,
        "mark": mark,
        **payloads(record.headers, record.key, record.value, show_of(place, topology.main)),
    }
    return show_record(facts, dead_value(record), raw=raw, as_json=as_json)


@command.command()
@steer_options
@job_options
@click.option(
    "--rate",
    type=RATE,
    metavar="N/s",
    help="Maximum rate, as 100/s or 600/m. [default: none]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also what a newer record of its key may have replaced, and, by failure id, what killed its workers or was "
    "handled by a handler of dead letters.",
)
@edit_options
def replay(**options: Any) -> ExitCode:
    """Try dead records again: the same failure id, key, headers and idempotency key, with new attempts.

    Only the group that failed sees them. FAILURE_IDS are as lists and logs show them; - reads them from stdin, one a
    line. With a filter in their place, all letters that fit are replayed, as a job of the workers (see `retryapp job`):
    the command shows how many fit, and asks. A letter is replayed once, so a second command is refused and harmless.

    One record can be edited, with --value, --value-file, --header, --drop-header or --key (after a failure id it is the
    new key, not a filter). The letter stays as it was. --idempotency says whether services see it as the same call.

    \b
    Exit codes: 0 all are replayed, but for those that a preview says stay so; 1 some are refused, none fits, no worker
    has answered, or the job is paused.

    \b
    Examples:
      retryapp dead replay -A billing billing/orders@kq8G0bTz/3/1042 --why "address mended"
      retryapp dead replay -A billing billing/orders@kq8G0bTz/3/1042 --value-file fixed.json --idempotency keep
      retryapp dead replay -A billing --message "ledger shard 7" --preview
      retryapp dead replay -A billing --cause c1-3f9ca81b02 --rate 100/s --why "ledger is back"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return _steer(Verb.REPLAY, **options)


@command.command()
@steer_options
@job_options
def discard(**options: Any) -> ExitCode:
    """Mark dead letters as done with: they are not replayed. `restore` takes that back until retention deletes them.

    \b
    Examples:
      retryapp dead discard -A billing billing/orders@kq8G0bTz/3/1042 --why "test data"
      retryapp dead discard -A billing --key test-customer --until 2030-01-31T12:00 --why "test data"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return _steer(Verb.DISCARD, **options)


@command.command()
@steer_options
@job_options
def restore(**options: Any) -> ExitCode:
    """Take a discard back.

    \b
    Examples:
      retryapp dead restore -A billing billing/orders@kq8G0bTz/3/1042
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return _steer(Verb.RESTORE, **options)


def _steer(
    verb: Verb, *, place: Place, failure_ids: tuple[str, ...], wanted: LetterFilter | None, **options: Any
) -> ExitCode:
    if wanted is None:
        for name in ("only_preview", "yes", "detach"):
            if options.pop(name):
                raise click.UsageError("--preview, --yes and --detach belong to a filter, as --cause or --all")
        return steer(verb, failure_ids, place, **options)
    options.pop("edit", None)
    if failure_ids:
        raise click.UsageError("give failure ids or a filter, not both")
    if not options["only_preview"]:
        need_reason(options["why"])
    return begin_job(verb, wanted, place, **options)
