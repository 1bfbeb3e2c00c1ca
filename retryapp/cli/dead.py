"""``retryapp dead``: dead letters, read from the dead-letter topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappush, heappushpop
from typing import Any

import click

from retryapp.cli._output import PageMark, cell, instant, json_ready, parse_page_mark, record_text, table
from retryapp.cli._target import DEFAULT_LIMIT, Place, Target, place_options, resolve, resolve_failure
from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.core.classify import DeadReason
from retryapp.core.names import RETRY_GROUP, RETRY_ORIGIN, RETRY_REASON
from retryapp.core.record import Origin, Record
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, read_topic
from retryapp.ports import DeadEntry, DeadRow
from retryapp.runtime.clock import SystemClock
from retryapp.web.payloads import payload_of
from retryapp.web.records import dead_detail, dead_summary, is_null


@click.group(name="dead")
def command() -> None:
    """Look at dead letters: records that will not be tried again, and why.

    Reads the topics, so it works with all workers down, and changes nothing. Times are UTC.
    """


@command.command(name="list")
@place_options
@click.option("--partition", type=click.IntRange(0), help="Only this partition number.")
@click.option("--reason", type=click.Choice([reason.value for reason in DeadReason]), help="Only with this reason.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=DEFAULT_LIMIT, show_default=True, help="Records a page."
)
@click.option("--after", metavar="MARK", help="Go on where a page ended: the mark that it printed.")
@json_option
def list_(
    *,
    place: Place,
    partition: int | None,
    reason: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> ExitCode:
    """List dead letters, the latest first.

    \b
    Examples:
      retryapp dead list -A billing
      retryapp dead list --broker localhost:9092 --group billing --reason exhausted
      retryapp dead list --broker localhost:9092 --group billing --topic orders --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    mark = None if after is None else parse_page_mark(after)
    target = resolve(place)
    now_ms = SystemClock().wall_ms()
    found = _matching(target, partition, reason, mark)
    page, matching = _latest(found, limit)
    more = page[-1][0].text if matching > len(page) else None
    facts = [{"main": at.main, "dead_ms": record.timestamp_ms, **dead_summary(_entry(record))} for at, record in page]
    result = {"now_ms": now_ms, "matching": matching, "records": facts, "next": more}
    emit(result, _list_text(facts, matching, more, now_ms), as_json=as_json)
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
    """Show one dead letter: reason, attempts, errors, traceback, headers, key and value.

    FAILURE_ID is group/topic@id/partition/offset, as lists and logs have it; it names the group itself. Of a record
    that died more than once (after a replay), the last dead letter is shown.

    \b
    Exit codes: 0 it is there, 1 it is not.

    \b
    Examples:
      retryapp dead show -A billing billing/orders@kq8G0bTz/3/1042
      retryapp dead show --broker localhost:9092 billing/orders@kq8G0bTz/3/1042 --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology, origin = resolve_failure(place, failure_id)
    record = find_dead(connection, topology, origin)
    if record is None:
        text = (
            f"{failure_id} has no dead letter: it is done, waits ('retryapp pending show'), or was deleted by retention"
        )
        emit({"found": False, "failure_id": failure_id}, text, as_json=as_json)
        return ExitCode.FINDING
    entry = _entry(record)
    if raw:
        click.echo(record.value or b"", nl=False)
        return ExitCode.FINE
    now_ms = SystemClock().wall_ms()
    facts = {
        **dead_detail(entry),
        "dead_ms": record.timestamp_ms,
        "key": payload_of(record.key),
        "value": payload_of(None if is_null(entry) and not record.value else record.value),
    }
    emit({"found": True, "now_ms": now_ms, **json_ready(facts)}, record_text(facts, now_ms=now_ms), as_json=as_json)
    return ExitCode.FINE


def find_dead(connection: KafkaConnection, topology: HandlerTopology, origin: Origin) -> Record | None:
    """Return the last dead letter of a record; None when there is none."""
    wanted = {(RETRY_ORIGIN, origin.text.encode()), (RETRY_GROUP, topology.group.encode())}
    last = None
    for record in read_topic(connection, topology.dlq, partitions=[origin.partition]):
        if wanted <= set(record.headers):
            last = record
    return last


def _matching(
    target: Target, partition: int | None, reason: str | None, mark: PageMark | None
) -> Iterator[tuple[PageMark, Record]]:
    wanted = None if reason is None else (RETRY_REASON, reason.encode())
    for topology in target.topologies:
        for record in read_topic(
            target.connection, topology.dlq, partitions=None if partition is None else [partition]
        ):
            at = PageMark(record.timestamp_ms, topology.main, record.partition, record.offset)
            if (wanted is None or wanted in record.headers) and (mark is None or at < mark):
                yield at, replace(record, value=None)  # lists show no payloads


def _latest(found: Iterator[tuple[PageMark, Record]], limit: int) -> tuple[list[tuple[PageMark, Record]], int]:
    """Return the latest ones, latest first, and how many there were; keeps no more than ``limit``."""
    heap: list[tuple[PageMark, int, Record]] = []
    count = 0
    for at, record in found:
        entry = (at, count, record)  # the count keeps records, which do not sort, from being compared
        count += 1
        if len(heap) < limit:
            heappush(heap, entry)
        else:
            heappushpop(heap, entry)
    return [(at, record) for at, _, record in sorted(heap, key=lambda entry: entry[:2], reverse=True)], count


def _entry(record: Record) -> DeadEntry:
    return DeadEntry(partition=record.partition, row=DeadRow(offset=record.offset, headers=record.headers))


def _list_text(facts: list[dict[str, Any]], matching: int, more: str | None, now_ms: int) -> str:
    rows = [
        (
            cell(fact["failure_id"] or f"{fact['main']}/{fact['partition']}/{fact['offset']} (damaged)"),
            cell(fact["reason"]),
            cell(fact["attempt"]),
            instant(fact["dead_ms"], now_ms),
            cell(fact["error_type"] or fact["damaged"]),
        )
        for fact in facts
    ]
    lines = [table(("failure id", "reason", "attempts", "dead since", "last error"), rows)] if rows else []
    lines.append(f"{len(rows)} of {matching} dead letters" if matching else "no dead letters")
    if more:
        lines.append(f"next page: --after {more}")
    return "\n".join(lines)
