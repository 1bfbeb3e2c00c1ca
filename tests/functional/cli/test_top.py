"""`retryapp top`: where it looks, what it draws, and what it does when no worker answers."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from retryapp.cli import top
from retryapp.cli._workers import Group, group_table

NOBODY = "http://127.0.0.1:1"

GROUP = Group(
    group="billing",
    now_ms=100_000,
    workers=("http://127.0.0.1:6066", "http://127.0.0.1:6067"),
    handlers=(
        {
            "main": "orders",
            "pending": 1_200,
            "next_due_ms": 102_500,
            "dead": 9,
            "as_of_ms": None,
            "unknown_partitions": [],
            "rates": {
                "deliveries_per_min": 48_744, "failures_per_min": 186, "retries": 50,
                "late_p99_ms": None,
            },
        },
    ),
    lanes=(
        {"main": "orders", "partition": 0, "worker": "http://127.0.0.1:6066", "state": "open", "since_ms": 40_000,
         "main_lag": 17},
        {"main": "orders", "partition": 1, "worker": "http://127.0.0.1:6067", "state": "opening",
         "last_error": "no [broker]", "last_error_ms": 40_000},
    ),
    note="1 of 3 members of the group do not show their pages",
    todo=["orders: 9 dead, 5 of them: ValueError: [no]"],
)  # fmt: skip


def drawn(group: Group) -> str:
    file = io.StringIO()
    Console(file=file, width=200).print(group_table(group))
    return file.getvalue()


def test_figures_and_lanes_are_shown() -> None:
    """What needs action, what waits, rates, lateness, the note, and each lane; brackets in an error are text."""
    shown = drawn(GROUP)
    facts = ("1,200 (next due in 2.5s)", "48,744 delivered, 186 failed", "p99 > 1m", *GROUP.todo, "1 of 3 members")
    lanes = ("2 workers", "127.0.0.1:6066", "open", "1m", "17", "opening", "1m ago: no [broker]")
    assert [fact for fact in (*facts, *lanes) if fact not in shown] == []


def test_what_is_overdue_is_not_due_now() -> None:
    """What an outage holds back for minutes was "next due in 0.0 s", beside a line that it is overdue."""
    late = {**GROUP.handlers[0], "next_due_ms": 100_000 - 252_900}
    assert "1,200 (overdue 4m 12s)" in drawn(replace(GROUP, handlers=[late]))
    early = {**GROUP.handlers[0], "next_due_ms": 100_000 + 252_900}
    assert "1,200 (next due in 4m 12s)" in drawn(replace(GROUP, handlers=[early]))


def test_a_long_error_does_not_hide_whose_it_is() -> None:
    """It took the whole line, and left no room for worker, topic and partition."""
    lane = {**GROUP.lanes[1], "last_error": "the brokers do not know topic orders: " + "it was deleted " * 20}
    (row,) = [line for line in drawn(replace(GROUP, lanes=[lane])).splitlines() if "127.0.0.1:6067" in line]
    assert [word in row for word in ("orders", "opening", "the brokers do not know topic")] == [True] * 3


HELD = {"circuit": "forced-open", "paused": "paused by bob", "circuits": {"ledger": {"state": "forced-open"}}}


@pytest.mark.parametrize(
    ("held", "lane"),
    [
        ({"circuit": None}, "open "),
        ({"circuit": "closed"}, "open "),
        ({"circuit": "half-open"}, "open, circuit half-open "),
        (HELD, "open, paused, circuit forced-open, circuit ledger forced-open "),
    ],
)
def test_what_holds_a_lane_is_said(held: dict[str, Any], lane: str) -> None:
    """What waits for a circuit waits in an open lane, so the lane alone does not say why."""
    (row,) = [line for line in drawn(replace(GROUP, lanes=[GROUP.lanes[0] | held])).splitlines() if ":6066" in line]
    assert f" {lane}" in row


def test_what_is_not_known_is_said() -> None:
    """Unknown is a word, old numbers have an age, and sums say what they leave out."""
    none = dict.fromkeys(("next_due_ms", "as_of_ms", "rates"))
    known = {**none, "main": "orders", "pending": 742, "dead": 3, "as_of_ms": 58_000, "unknown_partitions": [2, 5]}
    nothing = {**none, "main": "flights", "pending": None, "dead": None, "unknown_partitions": [0]}
    group = Group(group="g", now_ms=100_000, workers=(), handlers=[known, nothing], lanes=())
    shown = drawn(group)
    for fact in ("742", "last known 42s ago; without 2 partitions, not known now", "unknown", "without 1 partition,"):
        assert fact in shown
    assert re.search(r"late by +-", shown)
    known |= {"left_out": {"pending": [], "dead": [2, 5]}}
    assert "; dead without 2 partitions, not" in drawn(replace(group, handlers=[known])), "all that wait are counted"


@pytest.mark.broker
def test_without_workers_it_says_where_it_looked(shop: Any, retryapp: Callable[..., Any]) -> None:
    """No figure is made up, and the exit code is that of a finding."""
    outcome = retryapp("top", *shop.place, "--json")
    assert outcome.code == 1, outcome.err
    assert (outcome.json["workers"], outcome.json["handlers"], outcome.json["lanes"]) == ([], [], [])
    assert outcome.json["note"] == "the group has no running members"
    shown = retryapp("top", *shop.place, "--url", NOBODY, "--once")
    assert shown.code == 1
    assert f"no worker's pages answer at {NOBODY} (--url says where they are)" in shown.out


@pytest.mark.parametrize("status", [401, 403])
def test_pages_that_want_a_token_are_named(retryapp: Callable[..., Any], status: int) -> None:
    """They answer: "no worker's pages answer" sent people to look for workers and networks."""

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_words: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        shown = retryapp("top", "--url", url, "--once")
        server.shutdown()
    assert shown.code == 1
    assert f"not let in by {url}: set RETRYAPP_TOKEN" in shown.out


def test_what_looks_like_an_emoji_is_text(retryapp: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich made a key of `:key:` in an error's message."""
    monkeypatch.setattr(top._Watch, "look", lambda _watch: replace(GROUP, note="no :key: in it"))
    assert "no :key: in it" in retryapp("top", "--url", NOBODY, "--once").out


def test_looking_does_not_load_the_runtime() -> None:
    """Commands that look start without Faust: it takes longer to import than all the rest."""
    code = "import sys, retryapp.cli.top, retryapp.cli.pending, retryapp.cli.ledger; sys.exit('faust' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
