"""The frame of the command line: help, exit codes, and one clear line for every error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from retryapp.cli.console import ExitCode
from retryapp.cli.main import SUBCOMMANDS, cli, main, run
from retryapp.core.errors import BrokerUnreachableError, InvalidSettingError, RetryAppError
from retryapp.core.lane_errors import LaneError


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
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.ENVIRONMENT),
        (InvalidSettingError("--lake", "", "\udcff is no folder"), ExitCode.USAGE),
        (SystemExit("no library"), ExitCode.FINDING),
    ],
)
def test_every_error_is_one_line_and_its_exit_code(
    acting: Callable[[object], None], retryapp: Callable[..., Any], error: BaseException, code: ExitCode
) -> None:
    """On stderr, without a traceback; with --json one object on stdout."""
    acting(error)
    shown = retryapp("broker")
    assert (shown.code, shown.out) == (code, "")
    (line,) = shown.err.strip().splitlines()  # click ends the line of a ^C
    assert line.startswith("retryapp: ")

    shown = retryapp("broker", "--json")
    assert (shown.code, shown.err.strip()) == (code, "")
    assert shown.json["error"]["exit_code"] == code
    assert shown.json["error"]["message"]


def test_an_error_is_said_where_stdout_is_on_a_full_disk(
    acting: Callable[[object], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json it was a traceback, and the code of a finding."""

    class Full(StringIO):
        def write(self, _text: str, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    acting(BrokerUnreachableError("127.0.0.1:9092", "connection refused"))
    monkeypatch.setattr(sys, "stdout", Full())
    assert run(["broker", "--json"]) == ExitCode.ENVIRONMENT
    assert "retryapp: no Kafka broker answers" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", Full())
    assert run(["broker", "--json"]) == ExitCode.ENVIRONMENT


def test_a_stream_that_was_closed_at_the_start_takes_everything() -> None:
    """A list had ended as a bug. A file or a connection would have the descriptor into which a process prints."""
    look = "sys.exit(not all(os.path.samestat(os.fstat(number), os.stat(os.devnull)) for number in range(3)))"
    child = f"[sys.executable, '-c', 'import os, sys; {look}']"
    end = f"os._exit(subprocess.run({child}).returncode)"  # an error has no place to be shown: it ends with 1, too
    program = (
        f"import os, subprocess, sys\nfrom retryapp.cli.main import main\ntry: main(['--version'])\nfinally: {end}"
    )
    words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(words, env=env, check=True, timeout=60)


def test_what_a_locale_lacks_is_escaped(acting: Callable[[object], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's line ended each list with a bug of ours."""
    acting(None)
    stdout = TextIOWrapper(BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    with pytest.raises(SystemExit, match="0"):
        main(["broker"])
    assert (stdout.write("\u2500"), stdout.flush(), stdout.buffer.getvalue()) == (1, None, rb"\u2500")  # type: ignore[attr-defined]


def test_an_interrupt_says_what_was_sent(acting: Callable[[object], None], retryapp: Callable[..., Any]) -> None:
    """Else it reads as if nothing was done."""
    acting(KeyboardInterrupt("the command was sent"))
    assert retryapp("broker").err.strip() == "retryapp: interrupted: the command was sent"


def test_an_interrupt_that_a_client_library_has_wrapped_is_one(
    acting: Callable[[object], None], retryapp: Callable[..., Any]
) -> None:
    """One call of sixty that SIGTERM came upon was told as a bug of ours."""
    fault = SystemError("<built-in method describe_cluster> returned a result with an exception set")
    fault.__cause__ = KeyboardInterrupt()
    acting(fault)
    assert retryapp("broker").code == ExitCode.INTERRUPTED


@pytest.mark.parametrize(("end", "code"), [(SystemExit(), 0), (SystemExit(5), 5)])
def test_what_ends_itself_has_its_own_exit_code(
    acting: Callable[[object], None], retryapp: Callable[..., Any], end: SystemExit, code: int
) -> None:
    """Without words it has none of ours; nothing, as `sys.exit()` gives it, is fine."""
    acting(end)
    shown = retryapp("broker")
    assert (shown.code, shown.out, shown.err) == (code, "", "")


def test_a_traceback_is_shown_on_request(acting: Callable[[object], None], retryapp: Callable[..., Any]) -> None:
    acting(ZeroDivisionError("division by zero"))
    shown = retryapp("--traceback", "broker")
    assert shown.code == ExitCode.BUG
    assert "Traceback (most recent call last)" in shown.err
    for words, place in ((("broker",), "broker"), (("pending", "list", "-A", "shop"), "pending list")):
        shown = retryapp(*words, "--traceback")
        assert (shown.code, shown.out) == (ExitCode.USAGE, "")
        assert f"comes before the command: 'retryapp --traceback {place} ...'" in shown.err


@pytest.mark.parametrize("words", [("handler", "pause", "orders", "--why", "x"), ("pending", "list", "orders")])
def test_a_topic_without_its_option_is_told_where_it_belongs(retryapp: Callable[..., Any], words: list[str]) -> None:
    """It was an unexpected extra argument."""
    shown = retryapp(*words)
    assert shown.code == ExitCode.USAGE
    assert "argument (orders): a handler is named by --topic MAIN (see 'retryapp " in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "5"], "'--rate': '5': expected a whole number for each second, minute or hour: '50/s'"),
        (["--field", "customer=17"], "'--field': 'customer=17': expected /POINTER=TEXT, as /customer/id=17"),
        (["--field", "/customer/id"], "expected /POINTER=TEXT"),
        (["--has-header", "tenant"], "'--has-header': 'tenant': expected NAME=TEXT, as tenant=acme"),
        ([], "say which records: failure ids, - to read them from stdin, or a filter"),
    ],
)
@pytest.mark.parametrize("verb", [("dead", "replay"), ("pending", "retry-now")])
def test_a_wrong_choice_of_records_is_refused_before_anybody_is_asked(
    retryapp: Callable[..., Any], verb: tuple[str, str], words: list[str], said: str
) -> None:
    """Neither the broker, which is not there, nor the person: exit 2, with the option and an example."""
    shown = retryapp(*verb, "--broker", "127.0.0.1:1", "--group", "billing", *words)
    assert (shown.code, len(shown.err.splitlines())) == (ExitCode.USAGE, 1)
    assert said in shown.err


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (ExitCode.FINDING, 1), (True, 0)])
def test_a_command_returns_its_exit_code(acting: Callable[[object], None], answer: object, code: int) -> None:
    """Nothing returned is fine."""
    acting(answer)
    assert run(["broker"]) == code


def test_unknown_or_missing_commands_are_usage_errors(retryapp: Callable[..., Any]) -> None:
    """With where to look; help lists all commands with the summaries of the table, so it imports none of them."""
    unknown, missing, asked = retryapp("nope"), retryapp(), retryapp("--help")
    assert (unknown.code, missing.code, asked.code) == (ExitCode.USAGE, ExitCode.USAGE, ExitCode.FINE)
    assert unknown.err == "retryapp: No such command 'nope' (see 'retryapp --help')\n"
    assert "Commands:" in missing.err
    assert all(SUBCOMMANDS[name] in asked.out for name in cli.list_commands(click.Context(cli)))


def test_the_package_is_the_command_line() -> None:
    """Where no script is on the PATH; that was "cannot be directly executed"."""
    said = subprocess.run([sys.executable, "-m", "retryapp", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("retryapp ")


def test_ctrl_c_while_the_command_line_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    """It was one of this program's imports, and the exit code of a signal."""
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "retryapp"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, (*path, name))


@pytest.mark.parametrize(("path", "command"), list(_commands(cli)))
def test_every_command_has_help(path: tuple[str, ...], command: click.Command, retryapp: Callable[..., Any]) -> None:
    """For itself and for each of its options."""
    shown = retryapp(*path, "--help")
    assert shown.code == ExitCode.FINE
    assert "Usage: retryapp" in shown.out
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize("group", ["broker", "dead", "handler", "job", "outage", "pending", "pipeline", "topics"])
def test_a_group_lists_whole_sentences(retryapp: Callable[..., Any], group: str) -> None:
    """In a narrow terminal, too, what a command does is not cut."""
    listed = retryapp(group, "--help").out.partition("Commands:")[2]
    assert "..." not in listed
