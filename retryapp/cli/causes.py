"""``retryapp causes``: why records wait or are dead, by cause, read from the group's topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import click

from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._output import instant, missing_text, table
from retryapp.cli._target import missing_letters, resolve
from retryapp.cli.console import ExitCode, emit
from retryapp.core.causes import CauseCount, summed
from retryapp.core.control import is_open
from retryapp.core.failed import failed_of, row_failed_of
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, fold_changelog
from retryapp.lookup.records import Marks, place_of_letter, read_letters
from retryapp.runtime.machine.clock import SystemClock


@click.command(name="causes")
@place_options
@json_option
def command(*, place: Place, as_json: bool) -> ExitCode:
    """Group what waits and open dead letters by cause: type of error, place in your code, message.

    Numbers, ids and quoted text in messages are taken out, status codes stay. `dead list --cause ID` lists the letters
    of one, `dead replay --cause ID --why TEXT` replays them. Reads the topics, so it works with all workers down.

    \b
    Examples:
      retryapp causes -A billing
      retryapp causes --broker localhost:9092 --group billing --topic orders --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topologies = resolve(place)
    found = list_causes(connection, topologies)
    now_ms = SystemClock().wall_ms()  # after the read: what failed meanwhile is not in the future
    rows = [
        [
            each["cause_id"],
            *(f"{each[name]:,}" for name in ("waiting", "dead", "attempts")),
            instant(each["last_failed_ms"], now_ms),
            each["cause"] if len(topologies) == 1 else f"{each['main']}: {each['cause']}",
        ]
        for each in found
    ]
    none = "nothing waits, nothing is dead"
    lacking = missing_letters(place, topologies)
    text = (table(["cause", "waiting", "dead", "attempts", "last", ""], rows) if rows else none) + missing_text(lacking)
    emit({"now_ms": now_ms, "causes": found, "missing_topics": lacking}, text, as_json=as_json)
    return ExitCode.FINE


def list_causes(connection: KafkaConnection, topologies: Sequence[HandlerTopology]) -> list[dict[str, Any]]:
    """Return the causes of what waits and of open dead letters, the most frequent first.

    Memory is some 300 bytes for each record. What is damaged has no cause, and is left out.
    """
    causes: list[dict[str, Any]] = []
    for topology in topologies:
        rows = fold_changelog(connection, topology.pending_changelog, lambda _, value: row_failed_of(value))
        waits = summed(filter(None, rows.values()))
        waiting = {each.cause_id: each.records for each in waits}
        for each in summed(chain(waits, _open(connection, topology))):
            count = waiting.get(each.cause_id, 0)
            causes.append({
                "main": topology.main, "cause_id": each.cause_id, "cause": each.name, "attempts": each.attempts,
                "first_failed_ms": each.first_ms, "last_failed_ms": each.last_ms, "waiting": count,
                "dead": each.records - count, "sample": each.sample,
            })  # fmt: skip
    return sorted(causes, key=lambda each: (-each["waiting"] - each["dead"], each["cause_id"]))


def _open(connection: KafkaConnection, topology: HandlerTopology) -> Iterator[CauseCount]:
    marks = Marks()
    failures = {
        place_of_letter(record): failed_of(record.headers) for record in read_letters(connection, topology, marks)
    }
    yield from (failure for place, failure in failures.items() if failure is not None and is_open(marks.get(place)))
