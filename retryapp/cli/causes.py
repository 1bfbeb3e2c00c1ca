"""``retryapp causes``: why records wait or are dead."""

from __future__ import annotations

import click

from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._output import instant, table
from retryapp.cli._target import resolve
from retryapp.cli.console import ExitCode, emit
from retryapp.lookup.causes import list_causes
from retryapp.runtime.machine.clock import SystemClock


@click.command(name="causes")
@place_options
@json_option
def command(*, place: Place, as_json: bool) -> ExitCode:
    """Group what waits and open dead letters by cause: type of error, place in your code, message.

    Numbers, ids and quoted text in messages are taken out, status codes stay. `dead list --cause ID` lists the letters
    of one, `dead replay --cause ID` replays them. Reads the topics, so it works with all workers down.

    \b
    Examples:
      retryapp causes -A billing
      retryapp causes --broker localhost:9092 --group billing --topic orders --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    now_ms = SystemClock().wall_ms()
    connection, topologies = resolve(place)
    found = list_causes(connection, topologies)
    rows = [
        [
            each["cause_id"],
            *(str(each[name]) for name in ("waiting", "dead", "attempts")),
            instant(each["last_failed_ms"], now_ms),
            each["cause"] if len(topologies) == 1 else f"{each['main']}: {each['cause']}",
        ]
        for each in found
    ]
    none = "nothing waits, nothing is dead"
    text = table(["cause", "waiting", "dead", "attempts", "last", ""], rows) if rows else none
    emit({"now_ms": now_ms, "causes": found}, text, as_json=as_json)
    return ExitCode.FINE
