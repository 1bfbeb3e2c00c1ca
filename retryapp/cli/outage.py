"""``retryapp outage``: force the circuit of a handler open, and have it probe."""

from __future__ import annotations

from typing import Any

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import WORDS, Place, json_option, place_options, place_text
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode, Group
from retryapp.cli.handler import show_levels, tell_handler
from retryapp.core.jobs import HandlerVerb


@click.group(name="outage", cls=Group)
def command() -> None:
    """Force a handler's circuit open while a service is down, and close it again.

    While the circuit of a handler is forced open nothing begins and no attempt is spent, over restarts and rebalances.
    With --circuit that is so for records which have failed because of that service; others go on. A handler without a
    circuit is paused instead.

    \b
    Examples:
      retryapp outage open -A billing --topic orders --circuit ledger --why "ledger migrates"
      retryapp outage close -A billing --topic orders --circuit ledger --why "ledger is back"
      retryapp outage show -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


_circuit = click.option(
    "--circuit", type=WORDS, default="", metavar="NAME", help="One of the handler's circuits with a name."
)


@command.command(name="open")
@_circuit
@audit_options
def open_(*, place: Place, **options: Any) -> ExitCode:
    """Force the circuit open. Attempts that run already go on; if they fail, that spends no attempt.

    \b
    Exit codes: 0 it is open on all partitions, 1 some have no worker now, or refuse it, 2 there is no circuit.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    _refuse_without_circuit(place, options["circuit"])
    return tell_handler(HandlerVerb.OPEN, place, **options)


@command.command()
@_circuit
@audit_options
def close(*, place: Place, **options: Any) -> ExitCode:
    """Let the circuit probe at once, whoever opened it: it closes once a few records succeed."""
    return tell_handler(HandlerVerb.CLOSE, place, **options)


@command.command()
@json_option
@place_options
def show(*, place: Place, as_json: bool) -> ExitCode:
    """Show which circuits an operator has forced open, who and why. Works with all workers down.

    \b
    Exit codes: 0 none is forced open, 1 one is, or a command about one waits for a worker.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    none = f"not forced open by anybody; whether a circuit has opened by itself: 'retryapp top {place_text()}'"
    return show_levels(place, "forced", none=none, as_json=as_json)


def _refuse_without_circuit(place: Place, circuit: str) -> None:
    """Refuse at once what workers would refuse, where the application says which circuits there are.

    Raises:
        click.UsageError: the handler has none of this name.
    """
    if place.app_spec is None:
        return
    handlers = [each for each in load_handlers(place.app_spec).handlers if place.topic in (None, each.main)]
    if len(handlers) != 1 or circuit in handlers[0].breakers:
        return  # which one is meant, is asked later
    names = ", ".join(name or "its own, without --circuit" for name in handlers[0].breakers)
    what = f"circuit {circuit}" if circuit else "circuit of its own"
    remedy = f"It has: {names}" if names else f"Pause it instead: 'retryapp handler pause {place_text()} --why TEXT'"
    raise click.UsageError(f"the handler of {handlers[0].main} has no {what}. {remedy}")
