"""``retryapp top``: a running group, live in the terminal."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live

from retryapp.cli._options import Parsed, Place, json_option, place_options
from retryapp.cli._target import Target, resolve
from retryapp.cli._workers import Group, Workers, base_url, group_table
from retryapp.cli.console import ExitCode, emit
from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.kafka import KafkaAdmin
from retryapp.kafka.errors import GroupUnknownError
from retryapp.runtime.machine.clock import SystemClock
from retryapp.runtime.machine.place import in_url
from retryapp.settings import load_settings

_MEMBERS_S = 5.0
_FRAME_S = 2.0
MORE_PORTS: Final = 8
"""Ports tried beyond one for each member."""


def _url(text: str) -> str:
    try:
        parts = urlsplit(base_url(text))
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:  # raises where it is no number
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r}: expected the address of a worker's pages, as http://127.0.0.1:6066")


@click.command(name="top")
@place_options
@click.option(
    "--url",
    "urls",
    type=Parsed("url", _url),
    metavar="URL",
    multiple=True,
    help="Address of a worker's pages. Repeatable: of those that answer, the one that knows most is shown.",
)
@click.option("--once", is_flag=True, help="Print one frame and end, as without a terminal.")
@json_option
def command(*, place: Place, urls: tuple[str, ...], once: bool, as_json: bool) -> ExitCode:
    """Watch a running group: what needs action, what waits and is due, dead letters, the last minute, and all lanes.

    The figures are those of the pages of one worker, which asks the others. It looks for workers on the hosts of the
    group's members, at RETRYAPP_WEB_PORT and the ports after it; name one elsewhere with --url. RETRYAPP_TOKEN is sent
    to workers that --url names, and to no others. --json prints one object and ends, as --once does. With all workers
    down use 'retryapp pending', 'dead' and 'ledger', which read the topics.

    \b
    Exit codes: 0 a worker answered, 1 none did.

    \b
    Examples:
      retryapp top -A billing
      retryapp top --broker localhost:9092 --group billing --once
      retryapp top --url http://127.0.0.1:6066 --json
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    watch = _Watch(place, urls)
    wide: Any = {} if sys.stdout.isatty() else {"width": 200, "highlight": False}
    console = Console(emoji=False, **wide)  # an error's ":key:" is text
    if sys.stdout.isatty() and not (once or as_json):
        with Live(console=console, auto_refresh=False, transient=True) as view:
            while True:
                view.update(group_table(watch.look()), refresh=True)
                time.sleep(_FRAME_S)
    group = watch.look()
    if as_json:
        emit(group, "", as_json=True)
    else:
        console.print(group_table(group))
    return ExitCode.FINE if group.workers else ExitCode.FINDING


class _Watch:
    """Looks at a group through the pages of its workers."""

    def __init__(self, place: Place, urls: tuple[str, ...]) -> None:
        self._clock = SystemClock()
        alone = place.app_spec is None and place.broker is None
        if alone and not urls:
            raise click.UsageError("say where to look: -A MODULE[:APP], --broker HOST:PORT with --group NAME, or --url")
        target = None if alone else resolve(place, ask=False)
        self._target = None if urls else target
        self._looked_at = ", ".join(urls)
        group = place.group if target is None else target.topologies[0].group
        token = load_settings().token.get_secret_value() if urls else ""
        self._workers = Workers(group, urls, only=place.topic, token=token)

    def _find(self, target: Target) -> None:
        """Look for the hosts of the group's members; a fault leaves those that are known."""
        try:
            hosts, members = _hosts(target)
        except RetryAppError as error:
            if self._looked_at:
                return
            if not isinstance(error, BrokerUnreachableError):
                raise
            hosts, members = ["127.0.0.1"], 0
        first = load_settings().web_port
        ports = range(first, first + members + MORE_PORTS)
        self._looked_at = f"{', '.join(hosts)}, ports {ports[0]} to {ports[-1]}"
        self._workers.urls = [f"http://{host}:{port}" for host in hosts for port in ports]

    def look(self) -> Group:
        """Return the group's figures now; without workers where none answers."""
        group = self._workers.ask(self._clock.wall_ms())
        if self._target is not None and not group.workers:
            self._find(self._target)
            group = self._workers.ask(self._clock.wall_ms())
        if group.workers:
            if self._target is not None:
                self._workers.urls = self._workers.answered
            return group
        if not self._workers.urls:
            note = "the group has no running members"
        elif self._workers.refused:
            refused = ", ".join(self._workers.refused)
            note = f"not let in by {refused}: set RETRYAPP_TOKEN to a token of theirs, and name them with --url"
        else:
            note = f"no worker's pages answer at {self._looked_at} (--url says where they are)"
        return replace(group, note=note)


def _hosts(target: Target) -> tuple[list[str], int]:
    """Return the hosts of the group's members, and how many members there are."""
    try:
        admin = KafkaAdmin(target.connection, timeout_s=_MEMBERS_S)
        members = admin.describe_group(target.topologies[0].group).members
    except GroupUnknownError:
        return [], 0
    return sorted({in_url(member.host.lstrip("/")) for member in members}), len(members)
