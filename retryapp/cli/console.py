"""What all commands share: exit codes, output and errors.

Results go to stdout, everything else to stderr. With ``--json`` a command prints one JSON object (its last line); so
does an error: ``{"error": {"type": ..., "message": ..., "exit_code": ...}}``. What was done before it is a line above.
With it, and with ``--raw``, what the user's code and child processes print goes to stderr, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from enum import IntEnum
from types import FrameType
from typing import Final, TextIO

import click
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from rich.console import Console
from typing_extensions import override

from retryapp.core.errors import RetryAppError
from retryapp.core.text import with_app
from retryapp.lookup.payloads import escaped_json, printable

stderr_console = Console(stderr=True, soft_wrap=True)
"""For progress and live views: never mixes with results."""


class ExitCode(IntEnum):
    """What a command ends with."""

    FINE = 0
    FINDING = 1
    """The command worked and found something: a mismatch, a lost record, a broker that does not run."""
    USAGE = 2
    """Usage or configuration."""
    ENVIRONMENT = 3
    """Broker, Java, disk or network."""
    RESTART = 4
    """The process must start again; a supervisor does so."""
    BUG = 70
    """An unexpected error."""
    INTERRUPTED = 130


class Group(click.Group):
    """A group that lists the whole first sentence of each command; click cuts it to a line, and hides what is said."""

    _WHOLE: Final = 1_000  # characters

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(self._WHOLE)) for name, each in commands if each])


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class DeclinedError(RetryAppError):
    """Somebody has answered no. Operator action: none."""


def confirm(question: str) -> None:
    """Ask whether to send what was shown; return if the answer is yes.

    Raises:
        DeclinedError: it is no.
        click.UsageError: stdin has ended, as that of a script.
        KeyboardInterrupt: the question was interrupted.
    """
    try:
        yes = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise click.UsageError("nobody answers the question: give --yes. Nothing was sent") from error
        raise KeyboardInterrupt("nothing was sent") from error
    if not yes:
        raise DeclinedError("nothing was sent")


class Given:
    """What commands that are suggested repeat of this command line."""

    app_spec: str = ""

    @staticmethod
    def now() -> Given:
        """Return that of the command that runs; of none outside."""
        context = click.get_current_context(silent=True)
        found = None if context is None else context.find_object(Given)
        return Given() if found is None else found


_results: TextIO | None = None
"""Where they go while what is printed goes to stderr."""


@contextmanager
def results_alone() -> Iterator[None]:
    """Keep stdout for results: what else is printed in the body, or by a process that it starts, goes to stderr."""
    global _results
    if _results is not None:  # `--raw` with `--json`
        yield
        return
    with ExitStack() as stack:
        stdout, is_ours = sys.stdout, sys.stdout is sys.__stdout__
        _results = stack.enter_context(_moved(stdout)) if is_ours else stdout
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            yield
        finally:
            _results = None


@contextmanager
def _moved(stdout: TextIO) -> Iterator[TextIO]:
    """Yield a stream to the process's stdout that no child has; its own is a second stderr meanwhile."""
    stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    moved = os.fdopen(descriptor, "w", encoding=stdout.encoding, errors=stdout.errors)
    try:
        yield moved
    finally:
        with suppress(OSError):
            stdout.flush()
        os.dup2(descriptor, 1)
        with suppress(OSError):  # a reader that has gone: what was printed last has raised the same
            moved.close()


def results() -> TextIO:
    """Return where results go."""
    return sys.stdout if _results is None else _results


def emit(result: object, text: str, *, as_json: bool) -> None:
    """Print a result; nothing in a record, a message or a reason can steer the terminal."""
    shown = escaped_json(_json_of(result)) if as_json else printable(text)
    click.echo(with_app(shown, Given.now().app_spec), file=results())


def _json_of(result: object) -> str:
    try:
        return to_json(result).decode()
    except PydanticSerializationError:  # a word of the command line, or a path, is no UTF-8
        return json.dumps(to_jsonable_python(result))


def emit_error(error_type: str, message: str, exit_code: int, *, as_json: bool) -> None:
    """Print an error: one JSON object on stdout, or one line on stderr, also where stdout cannot be written."""
    message = message.encode("utf-8", "backslashreplace").decode()  # words of a command line need not be UTF-8
    if as_json:
        with suppress(OSError):
            emit({"error": {"type": error_type, "message": message, "exit_code": exit_code}}, "", as_json=True)
            return
    with suppress(OSError):  # both may be on one full disk: the exit code says it, too
        click.echo(f"retryapp: {printable(message)}", file=sys.stderr)
