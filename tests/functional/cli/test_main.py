"""The frame of the command line: help, exit codes, and one clear line for every error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import click
import pytest

from retryapp.cli.console import ExitCode
from retryapp.cli.main import SUBCOMMANDS, cli, run
from retryapp.core.errors import BrokerUnreachableError, InvalidSettingError, LaneError, RetryAppError


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Replace `retryapp broker` by a command that returns or raises something."""

    def install(result: object) -> None:
        module = ModuleType("retryapp.cli.broker")

        @click.command()
        @click.option("--json", "as_json", is_flag=True)
        def command(*, as_json: bool) -> object:
            if isinstance(result, BaseException):
                raise result
            return result

        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "retryapp.cli.broker", module)

    return install


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidSettingError("RETRYAPP_GRACE", "25", "a length with a unit"), ExitCode.USAGE),
        (BrokerUnreachableError("127.0.0.1:9092", "connection refused"), ExitCode.ENVIRONMENT),
        (LaneError("g.t.0", "fenced"), ExitCode.RESTART),
        (RetryAppError("a finding"), ExitCode.FINDING),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (click.UsageError("which one?"), ExitCode.USAGE),
        (ZeroDivisionError("division by zero"), ExitCode.BUG),
    ],
)
def test_every_error_is_one_line_and_its_exit_code(
    acting: Callable[[object], None], capsys: pytest.CaptureFixture[str], error: BaseException, code: ExitCode
) -> None:
    """On stderr, without a traceback; with --json one object on stdout."""
    acting(error)
    assert run(["broker"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    shown_lines = captured.err.strip().splitlines()  # click ends the line of a ^C
    assert len(shown_lines) == 1
    assert shown_lines[0].startswith("retryapp: ")

    assert run(["broker", "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err.strip() == ""
    shown = json.loads(captured.out)["error"]
    assert shown["exit_code"] == code
    assert shown["message"]


def test_a_traceback_is_shown_on_request(acting: Callable[[object], None], capsys: pytest.CaptureFixture[str]) -> None:
    """For faults of ours."""
    acting(ZeroDivisionError("division by zero"))
    assert run(["--traceback", "broker"]) == ExitCode.BUG
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (ExitCode.FINDING, 1), (True, 0)])
def test_a_command_returns_its_exit_code(acting: Callable[[object], None], answer: object, code: int) -> None:
    """Nothing returned is fine."""
    acting(answer)
    assert run(["broker"]) == code


def test_unknown_or_missing_commands_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """With where to look; help lists all commands with the summaries of the table, so it imports none of them."""
    assert run(["nope"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "retryapp: No such command 'nope' (see 'retryapp --help')\n"
    assert run([]) == ExitCode.USAGE
    assert "Commands:" in capsys.readouterr().err
    assert run(["--help"]) == ExitCode.FINE
    shown = capsys.readouterr().out
    assert all(SUBCOMMANDS[name] in shown for name in cli.list_commands(click.Context(cli)))


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, (*path, name))


@pytest.mark.parametrize(("path", "command"), list(_commands(cli)))
def test_every_command_has_help(
    path: tuple[str, ...], command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """For itself and for each of its options."""
    assert run([*path, "--help"]) == ExitCode.FINE
    assert "Usage: retryapp" in capsys.readouterr().out
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))
