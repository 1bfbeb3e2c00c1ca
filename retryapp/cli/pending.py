"""``retryapp pending``: records that wait, read from the changelog of the pending table."""

from __future__ import annotations

from typing import Any, Final

import click

from retryapp.cli._jobs import filter_options
from retryapp.cli._options import (
    LENGTH,
    Place,
    json_option,
    list_options,
    place_options,
    place_text,
    raw_option,
    when,
)
from retryapp.cli._output import list_text, show_missing, show_record
from retryapp.cli._steer import steer, waiting_options
from retryapp.cli._target import decoding_of, resolve, resolve_failure, show_of
from retryapp.cli.console import ExitCode, Group, emit
from retryapp.core.control import Verb
from retryapp.core.errors import RetryAppError
from retryapp.core.jobs import LetterFilter
from retryapp.kafka import read_record
from retryapp.lookup.circuits import mark_circuits
from retryapp.lookup.records import find_waiting, list_waiting, pending_detail, pending_value, place_of, whole_entry
from retryapp.runtime.machine.clock import SystemClock

COLUMNS: Final = {
    "failure id": "failure_id",
    "key": "key",
    "failed attempts": "attempts",
    "due": "due_at_ms",
    "held back by": "held_back_by",
    "held until": "held_until_ms",
    "tier": "tier",
    "cause": "cause_id",
    "last error": "error",
}


@click.group(name="pending", cls=Group)
def command() -> None:
    """Look at records that wait for their next attempt; try them now or later, hold them, or give them up.

    `list` and `show` read the topics, so they work with all workers down. The others ask the workers. Times are UTC.

    \b
    Examples:
      retryapp pending reschedule -A billing billing/orders@kq8G0bTz/3/1042 --at 2h
      retryapp pending hold -A billing billing/orders@kq8G0bTz/3/1042 --for 2d --why "ask the customer"
      retryapp pending release -A billing billing/orders@kq8G0bTz/3/1042
      retryapp pending release -A billing Mi9iaWxsaW5nL29yZGVyc0BrcThHMGJUei8zLzEwNDI
      retryapp pending cancel -A billing billing/orders@kq8G0bTz/3/1042 --why "order withdrawn"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


@command.command(name="list")
@place_options
@list_options
@filter_options
@json_option
def list_(
    *,
    place: Place,
    partition: int | None,
    wanted: LetterFilter | None,
    limit: int,
    as_json: bool,
) -> ExitCode:
    """List waiting records, the next due first.

    A record that is due, and that a pause or an open circuit holds back, is marked. Only the pages know of rates.

    \b
    Examples:
      retryapp pending list -A billing
      retryapp pending list -A billing --message "ledger shard 7" --field /customer/id=17
      retryapp pending list --broker localhost:9092 --group billing --topic orders --partition 3 --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topologies = resolve(place)
    only: Any = {"partition": partition, "wanted": wanted, "decoding": decoding_of(place)}
    found = list_waiting(connection, topologies, **only, limit=limit)
    now_ms = SystemClock().wall_ms()
    for topology in topologies:
        own = [record for record in found.records if record["main"] == topology.main]
        mark_circuits(connection, topology, own, now_ms)
    none = "nothing waits" if (partition, wanted) == (None, None) else "nothing waits that fits"
    of = "records" if found.marked else "waiting"  # some are dead: their sequences have stopped
    text = list_text(found, COLUMNS, now_ms, of=of, none=none, still="waiting")
    emit({"now_ms": now_ms, **found._asdict()}, text, as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("failure_id")
@place_options
@raw_option
@json_option
def show(*, failure_id: str, place: Place, raw: bool, as_json: bool) -> ExitCode:
    """Show one waiting record: attempts, errors, headers, key and value.

    FAILURE_ID is group/topic@id/partition/offset, as in lists and logs; --group is not needed.

    \b
    Exit codes: 0 it waits, 1 it does not; with --raw also: its value cannot be read.

    \b
    Examples:
      retryapp pending show -A billing billing/orders@kq8G0bTz/3/1042
      retryapp pending show --broker localhost:9092 billing/orders@kq8G0bTz/3/1042 --raw > value.bin
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology, origin = resolve_failure(place, failure_id)
    entry = find_waiting(connection, topology, origin)
    if entry is None:
        dead = f"'retryapp dead show {place_text()} {failure_id}'"
        text = f"does not wait: it is done, dead ({dead}), or being delivered"
        return show_missing(failure_id, text, raw=raw, as_json=as_json)
    unread = ""
    if (there := place_of(entry, topology.main)) is not None:
        try:
            entry = whole_entry(entry, read_record(connection, *there))
        except RetryAppError as error:  # the record waits all the same
            unread = str(error)
    record = pending_detail(entry, show_of(place, topology.main), unread=unread)
    mark_circuits(connection, topology, [record], SystemClock().wall_ms())
    return show_record(record, pending_value(entry), raw=raw, as_json=as_json)


@command.command(name="retry-now")
@waiting_options
def retry_now(*, failure_ids: tuple[str, ...], place: Place, **options: Any) -> ExitCode:
    """Make the next attempt due at once. No attempt is added.

    A pause, an open circuit, a rate limit, a hold and earlier records of its key still hold it back: the answer names
    them.

    FAILURE_IDS are as lists and logs show them; - reads them from stdin, one a line. A filter in their place selects
    all records that fit now: the command shows how many, and asks. If it is interrupted, run it again.

    \b
    Exit codes: 0 all are due, 1 some are refused, or no worker has answered.

    \b
    Examples:
      retryapp pending retry-now -A billing billing/orders@kq8G0bTz/3/1042
      retryapp pending retry-now -A billing --cause c1-3f9ca81b02 --rate 100/s --why "ledger is back"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return steer(Verb.RETRY_NOW, failure_ids, place, **options)


@command.command()
@waiting_options
@click.option(
    "--at",
    "due_at_ms",
    type=when(),
    required=True,
    metavar="WHEN",
    help="When: a length from now with a unit ('10m'), or UTC ('2030-01-31T12:00'); never before now.",
)
def reschedule(*, failure_ids: tuple[str, ...], place: Place, **options: Any) -> ExitCode:
    """Make the next attempt due at another time."""
    return steer(Verb.RESCHEDULE, failure_ids, place, **options)


@command.command()
@waiting_options
@click.option(
    "--for",
    "hold_ms",
    type=LENGTH,
    default="7d",
    show_default=True,
    help="How long the hold lasts without a release; then the worker releases the records and logs a warning.",
)
def hold(*, failure_ids: tuple[str, ...], place: Place, **options: Any) -> ExitCode:
    """Hold records: no attempt begins before somebody releases them.

    A record whose attempt runs now is held if that attempt fails. With order="key" later records of its key wait
    behind it.
    """
    return steer(Verb.HOLD, failure_ids, place, **options)


@command.command()
@waiting_options
def release(*, failure_ids: tuple[str, ...], place: Place, **options: Any) -> ExitCode:
    """Release held records: each is due when it was due before the hold, or now if that time has passed.

    A token (delivery.token) in place of a failure id releases the record of a delivery that raised Defer, or is about
    to: that record is due at once. The failure id of a dead record behind which its sequence has stopped lets the
    sequence go on without it; a filter leaves such records out.
    """
    return steer(Verb.RELEASE, failure_ids, place, **options)


@command.command()
@waiting_options
def cancel(*, failure_ids: tuple[str, ...], place: Place, **options: Any) -> ExitCode:
    """Stop retrying records: they become dead letters with the reason `cancelled`, which can be replayed.

    A record whose attempt runs now is cancelled if that attempt fails.
    """
    return steer(Verb.CANCEL, failure_ids, place, **options)
