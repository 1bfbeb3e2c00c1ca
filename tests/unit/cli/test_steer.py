"""Which waiting records a command with a filter is about."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import _steer, pending
from retryapp.core.control import Command
from retryapp.core.jobs import LetterFilter
from retryapp.core.lifecycle import Commanded
from retryapp.lookup.records import Listed

NAMES = [f"billing/orders@kq8G0bTz/0/{number}" for number in range(3)]
PLACE = ["--broker", "127.0.0.1:1", "--group", "billing"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Filters that were asked for, and commands that were sent; three records fit, one of them is damaged."""
    told: list[Any] = []

    def listed(*_args: Any, wanted: LetterFilter, **_more: Any) -> Listed:
        told.append(wanted)
        return Listed([*({"failure_id": name, "cause": "it is down"} for name in NAMES), DAMAGED], 4)

    def send(_connection: Any, _topology: Any, commands: list[Command], **_more: Any) -> dict[str, Commanded]:
        told.extend((str(command.verb), command.failure_id, command.why) for command in commands)
        return {}

    monkeypatch.setattr(_steer, "list_waiting", listed)
    monkeypatch.setattr(_steer, "send_commands", send)
    monkeypatch.setattr(_steer, "resolve", lambda _place: (None, []))
    monkeypatch.setattr(_steer, "resolve_failure", lambda _place, _name: (None, None, None))
    return told


DAMAGED: dict[str, Any] = {"failure_id": None, "cause": None}


@pytest.mark.parametrize("verb", ["retry-now", "cancel", "hold", "release"])
def test_all_that_fit_are_steered(asked: list[Any], verb: str) -> None:
    """One command each, in one job, after it was asked; a damaged row has no failure id to name."""
    words = [verb, *PLACE, "--field", "/id=3", "--cause", "c1-3f9ca81b02", "--why", "mended"]
    done = CliRunner().invoke(pending.command, words, input="y\n")
    assert asked == [LetterFilter(field="/id=3", cause="c1-3f9ca81b02"), *((verb, name, "mended") for name in NAMES)]
    assert f"{verb}: 3 that wait" in done.output
    assert "it is down" in done.output


@pytest.mark.parametrize(
    ("words", "answer", "code"), [(["--all"], "n\n", 1), (["--all", NAMES[0]], "y\n", 2), ([], "", 2)]
)
def test_nothing_is_sent_unasked(asked: list[Any], words: list[str], answer: str, code: int) -> None:
    """Nor with a filter beside failure ids, nor without either."""
    assert CliRunner().invoke(pending.command, ["cancel", *PLACE, *words], input=answer).exit_code == code
    assert all(isinstance(each, LetterFilter) for each in asked)
