"""The command ``retryapp``: finds the subcommands, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path

import click

from retryapp.cli.console import ExitCode, Given, emit_error
from retryapp.core.errors import RetryAppError
from retryapp.core.text import with_app

SUBCOMMANDS = {
    "demo": "Watch real records fail and come back, on a real Kafka.",
    "worker": "Run a worker of an app.",
    "plan": "Show which topics an app needs, and why.",
    "topics": "Create an app's topics, or add partitions to them.",
    "doctor": "Check everything that a worker depends on.",
    "top": "Watch a running group.",
    "causes": "Show why records wait or are dead.",
    "pending": "List waiting records; retry, reschedule, hold or cancel them.",
    "dead": "List dead letters; replay or discard them.",
    "job": "Watch, pause, resume and cancel jobs over many dead letters.",
    "handler": "Pause and resume a handler.",
    "outage": "Force a handler's circuit open while a service is down.",
    "ledger": "Count what became of every record.",
    "pipeline": "Archive and analyse everything that failed, on Spark.",
    "broker": "Run a real single-node Kafka for development.",
}
"""Name and summary; each is ``command`` in the module ``retryapp.cli.<name>``, loaded when it is used."""


class LazyGroup(click.Group):
    """A group whose subcommands are imported on use, so that ``retryapp broker`` does not load Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = import_module(f"retryapp.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", "show_traceback", is_flag=True, help="Show where in the program an error arose.")
@click.version_option(version("retryapp"), message="retryapp %(version)s")
def cli(*, show_traceback: bool) -> None:
    """Retry failed Kafka records on schedule, without blocking the partition.

    \b
    Exit codes: 0 fine, 1 a finding, 2 usage or configuration, 3 environment (broker, Java, disk, network),
    4 restart needed, 70 a bug in retryapp, 130 interrupted.
    """  # noqa: D301 - click reads the backspace character as "do not wrap"


def main(arguments: Sequence[str] | None = None) -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: the next file or connection would have its descriptor
            taking_all = Path(os.devnull).open(mode, errors="backslashreplace")  # noqa: SIM115 - to the end
            os.set_inheritable(taking_all.fileno(), True)  # and in a child process that child's
            setattr(sys, name, taking_all)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # tables and keys have characters that a locale may lack
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line.

    Returns:
        The exit code; all errors are reported and none is raised.
    """
    words = list(arguments)
    as_json, given = "--json" in words, Given()
    try:
        result = _call(words, given)
    except SystemExit as exit_:  # some libraries, and click on a closed pipe
        if exit_.code is None or isinstance(exit_.code, int):
            return exit_.code or ExitCode.FINE
        emit_error("SystemExit", str(exit_.code), ExitCode.FINDING, as_json=as_json)
        return ExitCode.FINDING
    except (click.Abort, KeyboardInterrupt) as error:
        said = str(error) or str(error.__cause__ or "")  # click raises its own for one that says what was sent
        message = f"interrupted: {said}" if said else "interrupted"
        emit_error("Interrupted", message, ExitCode.INTERRUPTED, as_json=as_json)
        return ExitCode.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        emit_error(type(error).__name__, with_app(_refusal(error), given.app_spec), ExitCode.USAGE, as_json=as_json)
        return ExitCode.USAGE
    except RetryAppError as error:
        _show_traceback(words)
        notes = [f" ({note})" for note in getattr(error, "__notes__", ()) if note]  # file and line of the user's code
        message = with_app("".join([str(error), *notes]), given.app_spec)
        emit_error(type(error).__name__, message, error.exit_code, as_json=as_json)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the process edge: an unforeseen error still ends with one clear line
        _show_traceback(words)
        is_refusal = isinstance(error, OSError)  # as of a full disk, to whoever writes a list to a file
        code, fault = (ExitCode.ENVIRONMENT, "of this machine") if is_refusal else (ExitCode.BUG, "in retryapp")
        message = f"unexpected {type(error).__name__}: {error}. This is a fault {fault}; "
        emit_error(type(error).__name__, f"{message}'retryapp --traceback ...' shows where", code, as_json=as_json)
        return code
    return result if isinstance(result, int) and not isinstance(result, bool) else ExitCode.FINE


def _call(words: list[str], given: Given) -> object:
    try:
        return cli.main(args=words, prog_name="retryapp", standalone_mode=False, obj=given)
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Kafka's client hides it so
            raise error.__cause__ from None
        raise


def _refusal(error: click.ClickException) -> str:
    """Return what click says of words that it does not take, and where help is."""
    message = error.format_message().removesuffix(".")
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    path = error.ctx.command_path
    if isinstance(error, click.NoSuchOption) and error.option_name == "--traceback":
        return f"--traceback comes before the command: 'retryapp --traceback {path.removeprefix('retryapp ')} ...'"
    has_topic = any("--topic" in each.opts for each in error.ctx.command.params)
    if has_topic and message.startswith("Got unexpected extra argument"):
        message += ": a handler is named by --topic MAIN"
    return f"{message} (see '{path} --help')"


def _show_traceback(words: Sequence[str]) -> None:
    if words and words[0] == "--traceback":
        click.echo(traceback.format_exc(), file=sys.stderr)


if __name__ == "__main__":
    main()
