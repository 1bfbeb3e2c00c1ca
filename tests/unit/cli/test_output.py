"""Tables and instants of the look-up commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from rich.console import Console
from samples import dead, waiting_row

from retryapp.cli._options import when
from retryapp.cli._output import show_record, table
from retryapp.cli._workers import Group, group_table
from retryapp.cli.console import emit, emit_error
from retryapp.cli.ledger import ledger_text
from retryapp.core.foreign import shield
from retryapp.core.headers import encode_metadata
from retryapp.core.metadata import MAX_EPOCH_MS, HistoryEntry
from retryapp.core.record import Record
from retryapp.core.rows import SEQUENCE, decode_row, encode_row, key_of_row
from retryapp.ledger import Ledger
from retryapp.ledger.count import Balance
from retryapp.lookup.decoding import undecoded
from retryapp.lookup.records import dead_detail, dead_entry, payloads, pending_detail
from retryapp.ports import PendingEntry


def test_a_word_that_is_no_utf8_is_json_all_the_same(capsys):
    """As of an id or a folder of the command line: that was a bug of ours, after the command had done its work."""
    emit({"job": "\udcff", "data": Path("/\udcff"), "of": Balance(received=1)}, "", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["data"], told["of"]["received"]) == ("\udcff", "/\udcff", 1)


def test_a_table_shows_text_as_it_is():
    """No markup, no control characters, nothing cut."""
    shown = table(("id", "what"), [("x" * 150, "[red]a\x1b[0m[/red]")])
    assert "x" * 150 in shown
    assert f"\n{'i' * 260}  " in table(("failure id", "last error", "mark"), [("i" * 260, "e " * 150, "replayed")])
    assert "[red]a\\x1b[0m[/red]" in shown


def test_no_text_steers_the_terminal(capsys):
    """Whatever prints it: a result, an error, a group that is watched."""
    hostile = "a\x1b]0;owned\x07\u202e\x9b2J[red]"
    unknown = dict.fromkeys(("next_due_ms", "dead", "as_of_ms", "rates"))
    figures = {"main": hostile, "pending": 1, "unknown_partitions": [], **unknown}
    lane = {
        "worker": hostile,
        "main": hostile,
        "partition": 0,
        "state": hostile,
        "last_error": hostile,
        "paused": hostile,
    }
    group = Group(
        group=hostile, now_ms=0, workers=[hostile], handlers=[figures], lanes=[lane], note=hostile, todo=[hostile]
    )
    emit({}, hostile, as_json=False)
    emit({"why": hostile}, "", as_json=True)
    emit_error("E", hostile, 1, as_json=False)
    Console(width=200).print(group_table(group))
    said = "".join(capsys.readouterr())
    assert said.count("[red]") >= 9
    assert not set("\x1b\x07\x9b\u202e") & set(said)


def test_a_dead_letter_is_shown_in_words(capsys):
    """Each fact once, and none that says nothing: what a replay or a rule adds is shown where there is one."""

    def shown(**changes):
        metadata = replace(dead(7), error_message="ledger is down", **changes)
        letter = Record("orders.dlq", 0, 5, 1_700_000_000_000, b"k", b"v", encode_metadata(metadata))
        facts = {**dead_detail(dead_entry(letter), letter.headers), "dead_ms": letter.timestamp_ms}
        facts |= payloads(letter.headers, letter.key, letter.value, undecoded)
        show_record(facts, letter.value, raw=False, as_json=False)
        lines = capsys.readouterr().out.splitlines()
        return {line[:18].strip(): line[19:] for line in lines if line[:1].strip()}

    plain = shown()
    assert plain["error message"] == "ledger is down"
    assert not {"message", "append", "version", "rule failures", "hot attempts", "no payload", "replays"} & {*plain}
    told = shown(replays=2, rule="TimeoutError", rule_failures=3, hot_attempts=4, no_payload=True)
    assert {name: told[name] for name in {*told} - {*plain}} == {
        "replays": "2",
        "rule": "TimeoutError",
        "failures by rule": "3",
        "tries in place": "4",
        "no payload": "yes",
    }


def test_attempts_of_a_replay_are_shown_as_such(capsys):
    """Two of them had the same number, and the record had failed first in its replay."""
    history = HistoryEntry(1, 1_000, "A"), HistoryEntry(2, 2_000, "A"), HistoryEntry(1, 9_000, "B")
    metadata = replace(dead(7), history=history, replays=1, attempt=1, first_failed_ms=9_000, last_failed_ms=9_000)
    headers = encode_metadata(metadata)
    letter = Record("orders.dlq", 0, 5, 9_000, None, None, headers)
    facts = {**dead_detail(dead_entry(letter), headers), **payloads(headers, None, None, undecoded)}
    show_record(facts, None, raw=False, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("first failed       1970-01-01 00:00:01") for line in lines)
    assert [line[19:].partition(" 1970")[0] for line in lines if line.endswith((" A", " B"))] == [
        "attempt 1", "attempt 2", "replay 1, attempt 1",
    ]  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
def test_a_header_whose_name_is_no_utf8_is_shown(capsys, as_json):
    """It travels percent-encoded; JSON has no lone surrogate."""
    headers = (*shield((("x-\udcff", b"1"),)), *encode_metadata(dead(7)))
    letter = Record("orders.dlq", 0, 5, 1_700_000_000_000, None, None, headers)
    facts = {**dead_detail(dead_entry(letter), headers), **payloads(headers, None, None, undecoded)}
    show_record(facts, None, raw=False, as_json=as_json)
    assert r"x-\udcff" in capsys.readouterr().out.replace("\\\\", "\\")


def test_a_record_that_was_never_delivered_is_shown_without_a_time_and_a_failure(capsys):
    """As in lists: its due time is the end of time, and its failure has no name."""
    row = waiting_row(7, due_at_ms=MAX_EPOCH_MS, failed=False)
    held = encode_row(replace(decode_row(row.value), hold=SEQUENCE))
    facts = pending_detail(PendingEntry(partition=0, key=key_of_row(held, row.identity), value=held))
    show_record({**facts, "held_back_by": "sequence"}, b"v", raw=False, as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("sequence") == 1  # `held_by` says the same
    assert [word for word in ("9999", "due ", "failed", "started", "error type", "?") if word in shown] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", 1_000 + 600_000),
        (" 1h30m ", 1_000 + 5_400_000),
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T02:01:00+02:00", 60_000),
        ("1970-01-02", 86_400_000),
    ],
)
def test_an_instant_is_a_length_from_now_or_utc(text, expected, monkeypatch):
    """Bare times are UTC."""
    monkeypatch.setattr("retryapp.cli._options.SystemClock.wall_ms", lambda _: 1_000)
    assert when().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["10", "soon", "", "10 parsecs", "1m1h", "2030-13-01"])
def test_what_is_no_instant_is_refused(text):
    """A bare number has no unit."""
    with pytest.raises(click.BadParameter):
        when().convert(text, None, None)


def test_the_ledger_does_not_take_what_waits_for_an_event_for_what_somebody_holds():
    """The count has both. A record whose handler raised `Defer` is held by nobody, and has a deadline."""
    counts = {0: Balance(received=2, pending=2, on_hold=2)}
    ledger = Ledger(group="g", main="orders", since_ms=None, partitions=counts, problems=(), unread_events=0)
    text = "2 of the records that wait: held by somebody, or waiting for an event (Defer); not tried before a release"
    assert text in ledger_text(ledger)


def test_the_ledger_does_not_say_that_what_waited_for_an_event_had_failed():
    """The count is of deliveries: one that was released is at its second, and no attempt has failed."""
    counts = {0: Balance(received=2, done=2, recovered=2)}
    ledger = Ledger(group="g", main="orders", since_ms=None, partitions=counts, problems=(), unread_events=0)
    assert "2 of the done records took more than one delivery\n" in ledger_text(ledger)
