"""``retryapp pending``: records that wait, read from the changelog of the pending table."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any

import click

from retryapp.cli._output import PageMark, cell, instant, json_ready, parse_page_mark, record_text, table
from retryapp.cli._target import DEFAULT_LIMIT, Place, place_options, resolve, resolve_failure
from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import DamagedRowError, InvalidDurationError
from retryapp.core.record import Origin
from retryapp.core.rows import decode_row, parse_row_key
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, fold_changelog
from retryapp.ports import PendingEntry
from retryapp.runtime.clock import SystemClock
from retryapp.web.records import pending_detail, pending_summary

_DURATION = re.compile(r"[0-9.]+[a-z].*")


@click.group(name="pending")
def command() -> None:
    """Look at records that wait for their next attempt.

    Reads the topics, so it works with all workers down, and changes nothing. Times are UTC.
    """


@command.command(name="list")
@place_options
@click.option("--partition", type=click.IntRange(0), help="Only this partition number.")
@click.option(
    "--due-before",
    metavar="WHEN",
    help="Only records due before: a length from now with a unit ('10m', '1h30m'), or UTC ('2030-01-31T12:00').",
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=DEFAULT_LIMIT, show_default=True, help="Records a page."
)
@click.option("--after", metavar="MARK", help="Go on where a page ended: the mark that it printed.")
@json_option
def list_(
    *,
    place: Place,
    partition: int | None,
    due_before: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> ExitCode:
    """List waiting records, the next due first.

    \b
    Examples:
      retryapp pending list -A billing
      retryapp pending list --broker localhost:9092 --group billing --due-before 10m
      retryapp pending list --broker localhost:9092 --group billing --topic orders --partition 3 --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    mark = None if after is None else parse_page_mark(after)
    end_ms = None if due_before is None else parse_when(due_before, now_ms)
    target = resolve(place)
    rows = {
        at: entry
        for topology in target.topologies
        for at, entry in _entries(target.connection, topology, partition).items()
        if (end_ms is None or at.instant_ms < end_ms) and (mark is None or at > mark)
    }
    page = nsmallest(limit, rows)
    more = page[-1].text if len(rows) > len(page) else None
    facts = [{"main": at.main, **pending_summary(rows[at])} for at in page]
    result = {"now_ms": now_ms, "matching": len(rows), "records": facts, "next": more}
    emit(result, _list_text(facts, len(rows), more, now_ms), as_json=as_json)
    return ExitCode.FINE


@command.command()
@click.argument("failure_id")
@place_options
@click.option("--raw", is_flag=True, help="Write the value's bytes to stdout, and nothing else.")
@json_option
def show(
    *,
    failure_id: str,
    place: Place,
    raw: bool,
    as_json: bool,
) -> ExitCode:
    """Show one waiting record: attempts, errors, headers, key and value.

    FAILURE_ID is group/topic@id/partition/offset, as lists and logs have it; it names the group itself.

    \b
    Exit codes: 0 it waits, 1 it does not.

    \b
    Examples:
      retryapp pending show -A billing billing/orders@kq8G0bTz/3/1042
      retryapp pending show --broker localhost:9092 billing/orders@kq8G0bTz/3/1042 --raw > value.bin
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology, origin = resolve_failure(place, failure_id)
    entry = find_pending(connection, topology, origin, failure_id)
    if entry is None:
        text = f"{failure_id} does not wait: it is done, dead ('retryapp dead show'), or on its way"
        emit({"found": False, "failure_id": failure_id}, text, as_json=as_json)
        return ExitCode.FINDING
    facts = pending_detail(entry)
    if raw:
        click.echo(_value(entry), nl=False)
        return ExitCode.FINE
    now_ms = SystemClock().wall_ms()
    emit({"found": True, "now_ms": now_ms, **json_ready(facts)}, record_text(facts, now_ms=now_ms), as_json=as_json)
    return ExitCode.FINE


def find_pending(
    connection: KafkaConnection, topology: HandlerTopology, origin: Origin, failure_id: str
) -> PendingEntry | None:
    """Return the waiting record of a failure id; of several, the one due last.

    A damaged row cannot tell its id; it is taken when partition and offset are those of the id.
    """
    entries = _entries(connection, topology, origin.partition)
    found = [at for at, entry in entries.items() if at.offset == origin.offset and _may_be(entry, failure_id)]
    return entries[max(found)] if found else None


def _may_be(entry: PendingEntry, failure_id: str) -> bool:
    return pending_summary(entry)["failure_id"] in (failure_id, None)


def _entries(
    connection: KafkaConnection, topology: HandlerTopology, partition: int | None
) -> dict[PageMark, PendingEntry]:
    folded = fold_changelog(
        connection,
        topology.pending_changelog,
        lambda _, value: value,
        partitions=None if partition is None else [partition],
    )
    entries = {}
    for raw_key, value in folded.items():
        key = parse_row_key(raw_key)
        mark = PageMark(key.due_at_ms, topology.main, key.partition, key.origin_offset)
        entries[mark] = PendingEntry(partition=key.partition, key=raw_key, value=value)
    return entries


def _value(entry: PendingEntry) -> bytes:
    try:
        return decode_row(entry.value).value or b""
    except DamagedRowError:
        return entry.value


def parse_when(text: str, now_ms: int, *, option: str = "--due-before", back: bool = False) -> int:
    """Return an instant, epoch milliseconds, from a length from now or a UTC time.

    Args:
        text: what was given.
        now_ms: the time, epoch milliseconds.
        option: to which option.
        back: a length counts into the past.

    Raises:
        click.BadParameter: it is neither.
    """
    if _DURATION.fullmatch(text.strip()):
        try:
            return now_ms + (-1 if back else 1) * parse_duration_ms(text)
        except InvalidDurationError as error:
            raise click.BadParameter(str(error), param_hint=option) from error
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r}: expected a length with a unit ('10m') or UTC ('2030-01-31T12:00')", param_hint=option
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _list_text(facts: list[dict[str, Any]], matching: int, more: str | None, now_ms: int) -> str:
    rows = [
        (
            cell(fact["failure_id"] or f"{fact['main']}/{fact['partition']}/{fact['origin_offset']} (damaged)"),
            cell(fact["attempt"]),
            instant(fact["due_at_ms"], now_ms),
            cell(fact["tier"]),
            cell(fact["error_type"] or fact["damaged"]),
        )
        for fact in facts
    ]
    lines = [table(("failure id", "failed attempts", "due", "tier", "last error"), rows)] if rows else []
    lines.append(f"{len(rows)} of {matching} waiting" if matching else "nothing waits")
    if more:
        lines.append(f"next page: --after {more}")
    return "\n".join(lines)
