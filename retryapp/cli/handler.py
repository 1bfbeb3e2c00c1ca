"""``retryapp handler``: pause a handler, and have it go on."""

from __future__ import annotations

from typing import Any

import click

from retryapp.cli._jobs import answers, only_handler
from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode, emit
from retryapp.core.jobs import HandlerVerb
from retryapp.kafka.remembered import remembered
from retryapp.lookup.instants import utc_text
from retryapp.lookup.jobs import tell_handler


@click.group(name="handler")
def command() -> None:
    """Pause a handler, and have it go on.

    While it is paused no record is delivered, neither a new one nor a retry. The group keeps its partitions, nothing is
    lost, and restarts change nothing. Mind the retention of the main topic: what it deletes was never delivered.
    """


@command.command()
@audit_options
def pause(*, place: Place, **options: Any) -> ExitCode:
    """Deliver nothing more; what runs goes on.

    \b
    Exit codes: 0 all partitions are paused, 1 some have no worker now: they are when they get one.

    \b
    Examples:
      retryapp handler pause -A billing --topic orders --why "ledger migrates"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return _tell(HandlerVerb.PAUSE, place, **options)


@command.command()
@audit_options
def resume(*, place: Place, **options: Any) -> ExitCode:
    """Deliver again. Deadlines do not count the pause.

    \b
    Examples:
      retryapp handler resume -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return _tell(HandlerVerb.RESUME, place, **options)


@command.command()
@json_option
@place_options
def show(*, place: Place, as_json: bool) -> ExitCode:
    """Show whether it is paused, by whom, and why; reads topics.

    \b
    Exit codes: 0 it is not paused, 1 it is.

    \b
    Examples:
      retryapp handler show -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    connection, topology = only_handler(place)
    found = {number: each.paused for number, each in remembered(connection, topology).items()}
    paused = {number: each for number, each in found.items() if each is not None}
    lines = [f"partition {number} since {utc_text(each.since_ms)}: {each.text}" for number, each in paused.items()]
    facts = {str(number): each.model_dump() for number, each in paused.items()}
    emit({"main": topology.main, "paused": facts}, "\n".join(lines) or "not paused", as_json=as_json)
    return ExitCode.FINDING if paused else ExitCode.FINE


def _tell(verb: HandlerVerb, place: Place, *, by: str, why: str, wait_ms: int, as_json: bool) -> ExitCode:
    connection, topology = only_handler(place)
    told = tell_handler(connection, topology, verb, by=by, why=why, wait_s=wait_ms / 1000)
    return answers({"main": topology.main, "verb": verb}, told, as_json=as_json)
