"""Which waiting records a command with a filter is about."""

from __future__ import annotations

import json
import sys
from collections import Counter
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import _jobs, _steer, dead, main, pending
from retryapp.cli.console import ExitCode
from retryapp.core.control import Command
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.jobs import LetterFilter
from retryapp.core.lifecycle import Commanded
from retryapp.lookup.jobs import Order
from retryapp.lookup.previews import Preview
from retryapp.lookup.records import Listed

NAMES = [f"billing/orders@kq8G0bTz/0/{number}" for number in range(3)]
PLACE = ["--broker", "127.0.0.1:1", "--group", "billing"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Filters that were asked for, and commands that were sent; a damaged record and one not tried yet fit, too."""
    told: list[Any] = []

    def listed(*_args: Any, wanted: LetterFilter, **_more: Any) -> Listed:
        told.append(wanted)
        down = {"cause": "it is down\x1b]0;owned\x07", "damaged": None, "held_by": None}
        return Listed([*({"failure_id": name, **down} for name in NAMES), DAMAGED, HELD], 5)

    def send(_connection: Any, _topology: Any, commands: list[Command], **_more: Any) -> dict[str, Commanded]:
        told.extend((str(command.verb), command.failure_id, command.why) for command in commands)
        return {}

    monkeypatch.setattr(_steer, "list_waiting", listed)
    monkeypatch.setattr(_steer, "send_commands", send)
    monkeypatch.setattr(_steer, "resolve", lambda _place: (None, []))
    monkeypatch.setattr(_steer, "resolve_failure", lambda _place, _name: (None, None, None))
    return told


FREE: dict[str, Any] = {"cause": "it is down", "damaged": None}
DAMAGED: dict[str, Any] = {"failure_id": None, "cause": None, "damaged": "its row cannot be read", "held_by": None}
HELD: dict[str, Any] = {"failure_id": "billing/orders@kq8G0bTz/0/7", "cause": None, "damaged": None, "held_by": None}
FITTING = [*NAMES, HELD["failure_id"]]


@pytest.mark.parametrize("verb", ["retry-now", "cancel", "hold", "release"])
def test_all_that_fit_are_steered(asked: list[Any], verb: str) -> None:
    """One command each, in one job, after it was asked; a damaged row has no failure id to name."""
    words = [verb, *PLACE, "--field", "/id=3", "--cause", "c1-3f9ca81b02", "--why", "mended"]
    done = CliRunner().invoke(pending.command, words, input="y\n")
    assert asked == [LetterFilter(field="/id=3", cause="c1-3f9ca81b02"), *((verb, name, "mended") for name in FITTING)]
    assert f"{verb}: 4 that wait\n1 more fit, and are left out" in done.output
    assert all(f"1  {text}\n" in done.output for text in ("its row cannot be read", "not tried yet"))
    assert "3  it is down" in done.output
    assert not {"\x1b", "\x07"} & {*done.output}, "an error's text does not steer a terminal"


@pytest.mark.parametrize(
    ("verb", "sent", "said"),
    [
        (
            "release",
            "operator token token sequence",
            [
                "1  held by somebody",
                "2  wait for an event",
                "1  wait for",
                "1 more fit, and are left out: they are damaged",
            ],
        ),
        ("cancel", "operator token token sequence", []),
        ("retry-now", "operator token token sequence", []),
    ],
)
def test_a_release_of_many_says_what_holds_them(
    asked: list[Any], verb: str, sent: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To let go what somebody holds is not to answer for an event, nor to have a key's records overtake a dead one."""
    held = ["operator", "token", "token", "sequence", "stopped"]
    rows = [{"failure_id": f"billing/orders@kq8G0bTz/0/{n}", **FREE, "held_by": word} for n, word in enumerate(held)]
    monkeypatch.setattr(_steer, "list_waiting", lambda *_args, **_more: Listed([DAMAGED, *rows], 6))
    done = CliRunner().invoke(pending.command, [verb, *PLACE, "--all", "--why", "x"], input="y\n")
    assert [held[int(name.rpartition("/")[2])] for _, name, _ in asked] == sent.split()
    assert [text for text in said if text not in done.output] == []
    assert "not held" not in done.output, "the damaged one is counted as that alone"
    assert "1 stopped sequence more fit, and are left out: their records are dead" in done.output
    asked.clear()
    assert CliRunner().invoke(pending.command, [verb, *PLACE, rows[-1]["failure_id"]]).exception is None
    assert len(asked) == 1, "by its failure id it is meant"


@pytest.mark.parametrize(("count", "lines"), [(50, 50), (51, 2), (100, 0), (2_000, 50)])
def test_of_many_outcomes_those_are_listed_that_are_not_done(
    asked: list[Any], count: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It printed thousands of lines, with two refusals among them; all are in the JSON."""
    refused = {50: {0, 7}, 51: {0, 7}, 100: set(), 2_000: {*range(60)}}[count]

    def send(
        _connection: Any, _topology: Any, commands: list[Command], outcomes: dict[str, Commanded], **_more: Any
    ) -> None:
        for command in commands:
            number = int(command.id.rpartition("-")[2])
            word = "not-waiting" if number in refused else None
            outcomes[command.id] = obeyed(command).model_copy(update={"refused": word})

    monkeypatch.setattr(_steer, "send_commands", send)
    names = "\n".join(f"billing/orders@kq8G0bTz/0/{number}" for number in range(count))
    done = CliRunner().invoke(pending.command, ["retry-now", *PLACE, "-"], input=names, standalone_mode=False)
    assert sum("billing/orders@kq8G0bTz" in line for line in done.output.splitlines()) == lines
    left = "" if lines == count else f"; {count - lines:,} are not listed: --json has all"
    summary = f"{count - len(refused):,} of {count:,} done, {len(refused)} refused, 0 queued{left}"
    assert done.output.splitlines()[-1] == summary
    assert done.return_value == (ExitCode.FINDING if refused else ExitCode.FINE)
    assert ("failure id" in done.output) == (lines > 0), "a table of nothing"
    told = CliRunner().invoke(pending.command, ["retry-now", *PLACE, "-", "--json"], input=names)
    assert len(json.loads(told.stdout)["outcomes"]) == count
    assert asked == []


@pytest.mark.parametrize(
    ("answer_s", "expected"),
    [
        ([0.1, 0.1, 0.1], [(0.0, 2), (1.0, 2), (2.0, 1)]),
        ([30.0, 0.1, 0.1], [(0.0, 2), (30.0, 2), (31.0, 1)]),
    ],
)
def test_a_rate_is_kept_by_who_sends(
    asked: list[Any], answer_s: list[float], expected: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent is due at once: 5 commands at 2 in a second take 2 seconds; no wait for a worker is made up for."""
    clock = VirtualTime()
    monkeypatch.setattr(_steer, "time", clock)
    sent_s: list[tuple[float, int]] = []

    def send(_connection: Any, _topology: Any, commands: list[Command], **_more: Any) -> dict[str, Commanded]:
        sent_s.append((clock.now_s, len(commands)))
        clock.now_s += answer_s[len(sent_s) - 1]
        return {}

    monkeypatch.setattr(_steer, "send_commands", send)
    names = [f"billing/orders@kq8G0bTz/0/{number}" for number in range(5)]
    done = CliRunner().invoke(dead.command, ["replay", *PLACE, "-", "--rate", "2/s"], input="\n".join(names))
    assert "0 of 5 done, 0 refused, 5 queued" in done.output
    assert sent_s == expected
    assert asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnreachableError("127.0.0.1:1", "gone"), ExitCode.ENVIRONMENT),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_outcomes_are_told_before_an_error(
    error: BaseException,
    code: ExitCode,
    as_json: bool,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of earlier batches, and those that came before the error in its own; of the others nothing is claimed."""

    def send(
        _connection: Any, _topology: Any, commands: list[Command], *, outcomes: dict[str, Commanded], **_more: Any
    ) -> None:
        for command in commands[:1]:
            outcomes[command.id] = obeyed(command)
        if len(asked) == 1:
            raise error
        asked.append(len(commands))

    monkeypatch.setattr(_steer, "send_commands", send)
    monkeypatch.setattr(_steer, "BATCH", 2)
    names = [f"billing/orders@kq8G0bTz/0/{number}" for number in range(6)]
    assert main.run(["pending", "cancel", *PLACE, *names, *(["--json"] if as_json else [])]) == code
    out, err = capsys.readouterr()
    outcomes = ["done", "queued", "done", "unknown", "unknown", "unknown"]
    if as_json:
        told, fault = map(json.loads, out.splitlines())
        assert [(each["failure_id"], each["outcome"]) for each in told["outcomes"]] == [
            *zip(names, outcomes, strict=True)
        ]
        assert fault["error"]["exit_code"] == code
    else:
        rows = [line.split()[:2] for line in out.splitlines() if line.startswith("billing/")]
        assert rows == [list(row) for row in zip(names, outcomes, strict=True)]
        assert "2 of 6 done, 0 refused, 1 queued, 3 unknown" in out
        assert err.startswith("retryapp: ") or code == ExitCode.INTERRUPTED


def test_an_error_before_any_outcome_is_all(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to tell: a list of unknown outcomes would bury the error."""

    def send(*_args: Any, **_more: Any) -> None:
        raise BrokerUnreachableError("127.0.0.1:1", "gone")

    monkeypatch.setattr(_steer, "send_commands", send)
    assert main.run(["pending", "cancel", *PLACE, *NAMES]) == ExitCode.ENVIRONMENT
    assert capsys.readouterr().out == ""
    assert asked == []


def obeyed(command: Command) -> Commanded:
    """Return what a worker says of a command that it has obeyed."""
    facts = {"command": command.id, "verb": command.verb, "failure_id": command.failure_id, "text": "done"}
    return Commanded(group="billing", handler="charge", main="orders", partition=0, at_ms=1, **facts)


LONG = "x" * 501
WRONG: dict[str, tuple[list[str], bytes]] = {
    "a long reason": (["pending", "cancel", NAMES[0], "--why", LONG], b""),
    "a long name": (["handler", "pause", "--by", LONG], b""),
    "a long reason of a job": (["dead", "replay", "--all", "--yes", "--why", LONG], b""),
    "a long circuit": (["outage", "open", "--circuit", LONG], b""),
    "no text": (["dead", "replay", "--all", "--yes", "--why", "\udcff"], b""),
    "no id of a job": (["job", "cancel", "a b"], b""),
    "no failure id": (["pending", "cancel", f"{LONG * 5}/orders@kq8G0bTz/0/1"], b""),
    "no text in stdin": (["dead", "replay", "-"], b"\xff\xfe\x00"),
    "no failure id in stdin": (["dead", "replay", "-"], b"junk/"),
}


BULK = {
    "waiting records that fit": ["pending", "cancel", "--all", "--yes"],
    "letters that fit": ["dead", "replay", "--all", "--yes"],
    "a job": ["job", "resume", "3f9ca81b02"],
    "a handler": ["handler", "pause"],
    "a circuit": ["outage", "close"],
}


@pytest.mark.parametrize("why", [[], ["--why", " "]])
@pytest.mark.parametrize("name", BULK)
def test_what_is_about_many_needs_a_reason(
    name: str, why: list[str], asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """For the audit, as on the pages; what is about one record does not."""
    assert main.run([*BULK[name], *why, *PLACE]) == ExitCode.USAGE
    assert "--why" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrongly_typed_is_said_so(
    name: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a mistake in usage, not a fault of ours; nothing is sent."""
    words, stdin = WRONG[name]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(stdin), encoding="utf-8"))
    assert main.run([*words, *PLACE]) == ExitCode.USAGE
    assert "fault in retryapp" not in capsys.readouterr().err
    assert asked == []


def test_an_instant_before_all_others_is_now(asked: list[Any]) -> None:
    """Reschedule never goes back."""
    assert main.run(["pending", "reschedule", *PLACE, NAMES[0], "--at", "1960-01-01"]) == ExitCode.FINDING
    assert asked == [("reschedule", NAMES[0], "")]


class VirtualTime:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("words", "answer", "code"), [(["--all"], "n\n", 1), (["--all", NAMES[0]], "y\n", 2), ([], "", 2)]
)
def test_nothing_is_sent_unasked(asked: list[Any], words: list[str], answer: str, code: int) -> None:
    """Nor with a filter beside failure ids, nor without either."""
    assert CliRunner().invoke(pending.command, ["cancel", *PLACE, "--why", "x", *words], input=answer).exit_code == code
    assert all(isinstance(each, LetterFilter) for each in asked)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ("n\n", ExitCode.FINDING, "retryapp: nothing was sent"),
        ("", ExitCode.USAGE, "retryapp: nobody answers the question: give --yes. Nothing was sent"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "retryapp: interrupted: nothing was sent"),
    ],
)
@pytest.mark.parametrize("words", [["pending", "cancel"], ["dead", "replay"]])
def test_a_question_without_a_yes_says_that_nothing_was_sent(
    asked: list[Any],
    words: list[str],
    answer: Any,
    code: ExitCode,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a script, where stdin is at its end, it looked as if somebody had interrupted it."""

    class Stdin(StringIO):
        def readline(self, _size: int | None = None, /) -> str:
            if isinstance(answer, KeyboardInterrupt):
                raise answer
            return str(answer)

    monkeypatch.setattr(sys, "stdin", Stdin())
    monkeypatch.setattr(_jobs, "only_handler", lambda _place: (None, None))
    found = Preview(fitting=Counter({0: 3}), samples={("dlq", 0, 7): "g\x1b[2J/orders@kq8G0bTz/0/7"})
    monkeypatch.setattr(_jobs, "preview", lambda *_args, **_more: found)
    monkeypatch.setattr(_jobs, "begin", lambda *_args, **_more: asked.append("begun"))
    assert main.run([*words, *PLACE, "--all", "--why", "x"]) == code
    shown = capsys.readouterr().err
    assert (said in shown, "\x1b" in shown) == (True, False)
    assert all(isinstance(each, LetterFilter) for each in asked)


def test_the_id_of_a_job_is_said_before_its_start_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever interrupts it while it waits for an answer has to know what to watch, or to cancel."""
    began: list[str] = []

    def begin(_connection: Any, _topology: Any, order: Order, *_scope: Any, **_more: Any) -> None:
        began.append(order.id)
        raise KeyboardInterrupt

    monkeypatch.setattr(_jobs, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(_jobs, "preview", lambda *_args, **_more: Preview(fitting=Counter({0: 3})))
    monkeypatch.setattr(_jobs, "begin", begin)
    assert main.run(["dead", "discard", *PLACE, "--all", "--why", "x", "--yes"]) == ExitCode.INTERRUPTED
    assert f"sending the start of job {began[0]}" in capsys.readouterr().err


def test_a_record_without_a_dead_letter_may_have_been_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names all that may have become of it, and is silent of that, says that it is done."""
    monkeypatch.setattr(dead, "resolve_failure", lambda _place, _name: (None, None, None))
    monkeypatch.setattr(dead, "find_dead", lambda *_where: None)
    done = CliRunner().invoke(dead.command, ["show", *PLACE, NAMES[0]], standalone_mode=False)
    assert (done.return_value, "dead_letters='drop'" in done.output) == (ExitCode.FINDING, True)
