"""``retryapp handler``: pause a handler, and have it go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import click

from retryapp.cli._jobs import answers, only_handler
from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode, Group, emit
from retryapp.core.jobs import HandlerVerb, Level
from retryapp.kafka.remembered import remembered_and_queued
from retryapp.lookup import jobs
from retryapp.lookup.instants import utc_text

_SETS_AND_ENDS: Final = {
    "paused": {HandlerVerb.PAUSE: "pause", HandlerVerb.RESUME: "resume"},
    "forced": {HandlerVerb.OPEN: "open", HandlerVerb.CLOSE: "close"},
}
"""Commands that set or end what is shown, in the words of the command line."""
_SHOWN: Final = {"circuit", "by", "why"}


def tell_handler(
    verb: HandlerVerb, place: Place, *, by: str, why: str, wait_ms: int, as_json: bool, circuit: str = ""
) -> ExitCode:
    """Send a command about a handler to all partitions, and say what they answer."""
    connection, topology = only_handler(place)
    told = jobs.tell_handler(connection, topology, verb, circuit, by=by, why=why, wait_s=wait_ms / 1000)
    return answers({"main": topology.main, "verb": verb}, told, as_json=as_json)


def show_levels(place: Place, name: Literal["paused", "forced"], *, none: str, as_json: bool) -> ExitCode:
    """Show on which partitions it is set, of all circuits; `none`: what to say where it is not."""
    connection, topology = only_handler(place)
    facts: dict[str, dict[str, Any]] = {}
    lines = []
    steerings, queued, _ = remembered_and_queued(connection, topology)
    for number, each in steerings.items():
        paused = {} if each.paused is None else {"": each.paused}
        for at, level in (paused if name == "paused" else each.forced_open).items():
            facts.setdefault(at, {})[str(number)] = level.model_dump()
            what = f"circuit {at} of partition" if at else "partition"
            lines.append(f"{what} {number} since {utc_text(level.since_ms)}: {level.text}")
            lines += [f"  the record: {level.record}"] * bool(level.record)
    verbs = _SETS_AND_ENDS[name]
    coming = [
        {"partition": number, "verb": word, "sent_ms": each.sent_ms, **each.command.model_dump(include=_SHOWN)}
        for number, listed in queued.items()
        for each in listed
        if (word := verbs.get(each.command.verb))
    ]
    shown = {"main": topology.main, name: facts.pop("", {})} | ({"circuits": facts} if name == "forced" else {})
    lines = lines or [none]
    lines += [_queued_text(each) for each in coming]
    emit({**shown, "queued": coming}, "\n".join(lines), as_json=as_json)
    return ExitCode.FINDING if lines != [none] else ExitCode.FINE


def _queued_text(facts: Mapping[str, Any]) -> str:
    level = Level(since_ms=facts["sent_ms"], by=facts["by"], why=facts["why"], how="sent")
    circuit = f" of circuit {facts['circuit']}" if facts["circuit"] else ""
    where = f"partition {facts['partition']}: {facts['verb']}{circuit} waits for a worker"
    return f"{where}, since {utc_text(level.since_ms)}, {level.text}"


@click.group(name="handler", cls=Group)
def command() -> None:
    """Pause and resume a handler.

    While it is paused no record is delivered, neither a new one nor a retry. The group keeps its partitions, nothing is
    lost, and restarts change nothing. Mind the retention of the main topic: what it deletes was never delivered.

    \b
    Examples:
      retryapp handler pause -A billing --topic orders --why "ledger migrates"
      retryapp handler resume -A billing --topic orders --why "migrated"
      retryapp handler show -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


@command.command()
@audit_options
def pause(*, place: Place, **options: Any) -> ExitCode:
    """Stop deliveries; attempts that run already go on to their end.

    \b
    Exit codes: 0 all partitions are paused, 1 some have no worker now: they are when they get one.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return tell_handler(HandlerVerb.PAUSE, place, **options)


@command.command()
@audit_options
def resume(*, place: Place, **options: Any) -> ExitCode:
    """Resume deliveries. max_elapsed does not count the pause.

    \b
    Exit codes: 0 all partitions go on, 1 some have no worker now, or have been paused since: read why, send it again.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return tell_handler(HandlerVerb.RESUME, place, **options)


@command.command()
@json_option
@place_options
def show(*, place: Place, as_json: bool) -> ExitCode:
    """Show whether the handler is paused, by whom and why. Works with all workers down.

    \b
    Exit codes: 0 it is not paused, 1 it is, or a pause or resume waits for a worker.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return show_levels(place, "paused", none="not paused", as_json=as_json)
