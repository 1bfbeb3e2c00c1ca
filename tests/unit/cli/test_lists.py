"""Times in lists of the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from samples import dead as letter_of

from retryapp.cli import causes, dead, pending
from retryapp.core.headers import encode_metadata
from retryapp.core.record import Record
from retryapp.core.topology import HandlerTopology
from retryapp.lookup import records
from retryapp.lookup.records import Listed

PLACE = ["--broker", "127.0.0.1:1", "--group", "shop"]
CAUSE = {
    "main": "orders",
    "cause_id": "c1",
    "cause": "OSError",
    "waiting": 1,
    "dead": 0,
    "attempts": 1,
    "last_failed_ms": 31_000,
}
NAMES = [*pending.COLUMNS.values(), "damaged", "error_type", "message", "attempt", "max_attempts"]
ROW = {**dict.fromkeys(NAMES), "main": "orders", "failure_id": "shop/orders@x/0/1", "due_at_ms": 31_000}


@pytest.mark.parametrize(
    ("command", "reads", "found"),
    [
        (causes.command, "list_causes", [CAUSE]),
        (pending.command.commands["list"], "list_waiting", Listed([ROW], 1)),
    ],
)
def test_what_happened_during_the_read_is_past(
    command: Any, reads: str, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read takes seconds: a failure in these was shown as "in 2s"."""
    clock = SimpleNamespace(now_ms=1_000, wall_ms=lambda: clock.now_ms)

    def read(*_place: object, **_only: object) -> Any:
        clock.now_ms = 61_000
        return found

    module = causes if command is causes.command else pending
    monkeypatch.setattr(module, "SystemClock", lambda: clock)
    monkeypatch.setattr(module, "resolve", lambda _place: (None, []))
    monkeypatch.setattr(module, reads, read)
    done = CliRunner().invoke(command, PLACE)
    assert "30s ago" in done.output, done.exception


@pytest.mark.parametrize("group", [pending.command, dead.command])
def test_a_list_has_no_all(group: Any) -> None:
    """It said "All of them" and listed the first 50."""
    done = CliRunner().invoke(group, ["list", *PLACE, "--all"])
    assert done.exit_code == 2
    assert "No such option" in done.output


def test_a_type_of_error_that_is_copied_from_the_list_finds_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was cut to 80 bytes, and no letter has just these; what is copied from a page is, and that is said."""
    kind = f"app.{'Declined' * 20}"
    headers = encode_metadata(replace(letter_of(7), error_type=kind))
    letter = Record("app.orders.dlq", 0, 5, 1_700_000_000_000, b"k", b"v", headers)
    topology = HandlerTopology("app", "orders", delays_ms=(1_000,))
    monkeypatch.setattr(records, "read_letters", lambda *_: iter([letter]))
    monkeypatch.setattr(dead, "resolve", lambda _place: (None, [topology]))
    monkeypatch.setattr(dead, "resolve_failure", lambda *_: (None, topology, None))
    monkeypatch.setattr(dead, "find_dead", lambda *_: (letter, None))

    def listed(copied: str) -> Any:
        return CliRunner().invoke(dead.command, ["list", *PLACE, "--json", "--error", copied])

    whole = listed(kind)
    assert (json.loads(whole.stdout)["records"][0]["error_type"], whole.stderr) == (kind, "")
    shown = CliRunner().invoke(dead.command, ["show", *PLACE, "--json", "app/orders@kq8G0bTz/0/7"])
    assert json.loads(shown.stdout)["error_type"] == kind
    cut = listed(kind[:80])
    assert (json.loads(cut.stdout)["records"], "give the whole type" in cut.stderr) == ([], True)
