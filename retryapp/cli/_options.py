"""Options that several commands share: where to look, which page of a list, lengths and points in time."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from retryapp.cli.console import results_alone
from retryapp.core.control import MAX_WORDS
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import ConfigurationError, InvalidSettingError
from retryapp.core.rates import parse_rate
from retryapp.lookup.instants import parse_instant
from retryapp.runtime.machine.clock import SystemClock

R = TypeVar("R")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_KAFKA_PORT: Final = 9092
_MOST_PORT: Final = 65_535
_BARE_IPV6: Final = r"(?:[\da-f:.]*::[\da-f:.]*|(?:[\da-f]{1,4}:){7}[\da-f]{1,4})(?:%[\w.-]+)?"
"""Without brackets, so without a port: nothing tells where the address would end."""
_BROKER: Final = re.compile(
    rf"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:(?:[\w.-]+|\[[\w:.%]+\])(?::(?P<port>\d{{1,5}}))?|{_BARE_IPV6})",
    re.ASCII | re.IGNORECASE,
)
_PROPERTIES: Final = "name=value a line (security.protocol, sasl.username)"


def decorated(command: Callable[..., R], *options: Callable[..., Any]) -> Callable[..., R]:
    """Add options; help lists them in this order."""
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _result_option(flag: str, name: str, text: str) -> Decorator:
    """Return a flag with which stdout has the result alone."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_result(**values: Any) -> R:
            with results_alone() if values[name] else nullcontext():
                return command(**values)

        return click.option(flag, name, is_flag=True, help=text)(with_result)

    return decorate


json_option = _result_option("--json", "as_json", "Print one JSON object instead of text.")
raw_option = _result_option("--raw", "raw", "Write the value's bytes to stdout, and nothing else.")


def app_option(*, required: bool) -> Decorator:
    return click.option(
        "-A", "--app", "app_spec", metavar="MODULE[:APP]", required=required,
        help="The application, as for 'faust -A': a module, and the name of its Faust app when that is not 'app'.",
    )  # fmt: skip


def client_config_option(text: str) -> Decorator:
    return click.option("--client-config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help=text)


pipeline_client_config = client_config_option(
    f"File with librdkafka properties, {_PROPERTIES}; those that begin with 'kafka.' are passed to Spark's Java client "
    "as they are."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Options that say where to look, as given."""

    app_spec: str | None
    broker: str | None
    group: str | None
    client_config: Path | None
    topic: str | None


def place_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of :class:`Place`; the command gets them as the argument ``place``."""

    @wraps(command)  # with the options that the command has already
    def with_place(**values: Any) -> R:
        place = Place(**{name: values.pop(name) for name in Place.__slots__})
        return command(place=place, **values)

    return decorated(
        with_place,
        app_option(required=False),
        click.option("--broker", type=BROKERS, metavar="HOST:PORT", help="Bootstrap address, instead of -A."),
        click.option("--group", metavar="NAME", help="Consumer group = the Faust app's id, with --broker."),
        click.option("--topic", metavar="MAIN", help="Only the handler of this main topic."),
        client_config_option(f"File with librdkafka properties for --broker, {_PROPERTIES}."),
    )


def place_text() -> str:
    """Return the options of :class:`Place` as this command was given them, for a command that is suggested."""
    given = click.get_current_context().params
    names = {"app_spec": "-A"} | {name: f"--{name.replace('_', '-')}" for name in Place.__slots__[1:]}
    return " ".join(f"{option} {shlex.quote(str(given[name]))}" for name, option in names.items() if given.get(name))


def list_options(command: Callable[..., R]) -> Callable[..., R]:
    return decorated(
        command,
        click.option("--partition", type=click.IntRange(0), help="Only this partition number."),
        click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most records to show."),
    )


def user_name() -> str:
    """Return the name of this login, or its number: in a container a user may have no more."""
    try:
        return getpass.getuser()[:MAX_WORDS]
    except (KeyError, OSError):
        return str(os.getuid())


def typed_bytes(text: str) -> bytes:
    """Return a word of the command line as it was typed, also where it is no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


class Parsed(click.ParamType):
    """What a function makes of a text; why it refuses one is in its error."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.read(str(value))
        except UnicodeEncodeError:
            self.fail(f"{value!r} is no text in UTF-8", param, ctx)
        except (ValueError, ConfigurationError) as error:
            self.fail(str(error), param, ctx)


def _words(text: str) -> str:
    if len(text) > MAX_WORDS:
        raise ValueError(f"{len(text)} characters; at most {MAX_WORDS} are possible")
    text.encode()  # raises where the command line was no UTF-8
    return text


def _brokers(text: str) -> str:
    """Check what the client library would take for no broker at all, or for port 0, and wait for."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts or [text]:
        found = _BROKER.fullmatch(part)
        if found is None or not 0 < int(found["port"] or _KAFKA_PORT) <= _MOST_PORT:
            raise ValueError(f"{text!r}: expected HOST:PORT, as localhost:9092, with commas between several")
    return ",".join(parts)


def _rate(text: str) -> str:
    try:
        parse_rate(text)
    except InvalidSettingError as error:
        raise ValueError(f"{text!r}: {error.expected}") from error
    return text


def _reason(text: str) -> str:
    if not text.strip():
        raise ValueError("what is about many records needs a reason, for the audit")
    return _words(text)


BROKERS: Final = Parsed("address", _brokers)
"""Bootstrap addresses."""
WORDS: Final = Parsed("text", _words)
"""A text that commands take: at most `MAX_WORDS` characters."""
REASON: Final = Parsed("text", _reason)
"""The same, with something in it."""
LENGTH: Final = Parsed("length", parse_duration_ms)
"""A length of time with a unit; becomes milliseconds."""
RATE: Final = Parsed("rate", _rate)
"""A rate as ``100/s``; stays text."""


def pair(shape: str, example: str, *, begins: str = "") -> Parsed:
    """Return the type of a name and a text with ``=`` between; stays text."""

    def read(text: str) -> str:
        name, equals, _ = text.partition("=")
        if not name or not equals or not name.startswith(begins):
            raise ValueError(f"{text!r}: expected {shape}, as {example}")
        return text

    return Parsed("pair", read)


def matching(name: str, pattern: str, expected: str) -> Parsed:
    """Return the type of a text of one form; stays text."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{text!r}: expected {expected}")
        return text

    return Parsed(name, read)


def when(*, back: bool = False) -> Parsed:
    """Return the type of a length from now (``back``: before now) or a UTC time; becomes epoch milliseconds, from 0."""
    return Parsed("when", lambda text: max(0, parse_instant(text, SystemClock().wall_ms(), back=back)))
