"""``retryapp handler``: pause a handler, and have it go on."""

from __future__ import annotations

from typing import Any

import click

from retryapp.cli._levels import show_levels, tell_handler
from retryapp.cli._options import Place, json_option, place_options
from retryapp.cli._steer import audit_options
from retryapp.cli.console import ExitCode
from retryapp.core.jobs import HandlerVerb


@click.group(name="handler")
def command() -> None:
    """Pause and resume a handler.

    While it is paused no record is delivered, neither a new one nor a retry. The group keeps its partitions, nothing is
    lost, and restarts change nothing. Mind the retention of the main topic: what it deletes was never delivered.
    """


@command.command()
@audit_options
def pause(*, place: Place, **options: Any) -> ExitCode:
    """Stop deliveries; attempts that run already go on to their end.

    \b
    Exit codes: 0 all partitions are paused, 1 some have no worker now: they are when they get one.

    \b
    Examples:
      retryapp handler pause -A billing --topic orders --why "ledger migrates"
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return tell_handler(HandlerVerb.PAUSE, place, **options)


@command.command()
@audit_options
def resume(*, place: Place, **options: Any) -> ExitCode:
    """Resume deliveries. max_elapsed does not count the pause.

    \b
    Exit codes: 0 all partitions go on, 1 some have no worker now, or have been paused since: read why, send it again.

    \b
    Examples:
      retryapp handler resume -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return tell_handler(HandlerVerb.RESUME, place, **options)


@command.command()
@json_option
@place_options
def show(*, place: Place, as_json: bool) -> ExitCode:
    """Show whether the handler is paused, by whom and why. Works with all workers down.

    \b
    Exit codes: 0 it is not paused, 1 it is.

    \b
    Examples:
      retryapp handler show -A billing --topic orders
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    return show_levels(place, "paused", none="not paused", as_json=as_json)
