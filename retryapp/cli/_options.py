"""Options that several commands share: where to look, which page of a list, a point in time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from retryapp.cli._app import app_option
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.lookup.records import PageMark
from retryapp.runtime.machine.clock import SystemClock

R = TypeVar("R")

_DURATION: Final = re.compile(r"[0-9.]+[a-z].*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Options that say where to look, as given."""

    app_spec: str | None
    broker: str | None
    group: str | None
    topic: str | None
    client_config: Path | None


def place_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of :class:`Place`; the command gets them as the argument ``place``."""

    @wraps(command)  # with the options that the command has already
    def with_place(**given: Any) -> R:
        place = Place(**{name: given.pop(name) for name in Place.__slots__})
        return command(place=place, **given)

    return _decorated(
        with_place,
        app_option(required=False),
        click.option("--broker", metavar="HOST:PORT", help="Bootstrap address, instead of -A."),
        click.option("--group", metavar="NAME", help="Consumer group = the Faust app's id, with --broker."),
        click.option("--topic", metavar="MAIN", help="Only the handler of this main topic."),
        click.option(
            "--client-config",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="File with librdkafka properties for --broker, name=value a line (security.protocol, sasl.username).",
        ),
    )


def page_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--partition``, ``--limit`` and ``--after``."""
    return _decorated(
        command,
        click.option("--partition", type=click.IntRange(0), help="Only this partition number."),
        click.option(
            "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Records per page."
        ),
        click.option("--after", metavar="MARK", type=Mark(), help="Continue after this mark, printed by each page."),
    )


def _decorated(command: Callable[..., R], *options: Callable[..., Any]) -> Callable[..., R]:
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


class Mark(click.ParamType):
    """The mark that a page of a list ends with."""

    name = "mark"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> PageMark:
        """Read it back, or fail with the option's name."""
        try:
            instant_ms, main, partition, offset = str(value).split("/")
            return PageMark(int(instant_ms), main, int(partition), int(offset))
        except ValueError:
            self.fail(f"{value!r} is no page mark: give the one printed after 'next page'", param, ctx)


class When(click.ParamType):
    """A length from now (``back``: before now) with a unit, or a UTC time; becomes epoch milliseconds."""

    name = "when"

    def __init__(self, *, back: bool = False) -> None:
        self.back = back

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return epoch milliseconds, or fail with the option's name."""
        text = str(value).strip()
        try:
            if _DURATION.fullmatch(text):
                return SystemClock().wall_ms() + (-1 if self.back else 1) * parse_duration_ms(text)
            moment = datetime.fromisoformat(text)
        except InvalidDurationError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{text!r}: expected a length with a unit ('10m') or UTC ('2030-01-31T12:00')", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
