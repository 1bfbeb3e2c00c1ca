"""How look-up commands show records: tables, lists, one record at length."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retryapp.cli._options import place_text
from retryapp.cli.console import ExitCode, Given, emit, results
from retryapp.core.text import counted, with_app
from retryapp.lookup.instants import relative_text, utc_text
from retryapp.lookup.payloads import Payload, printable
from retryapp.lookup.records import Listed
from retryapp.runtime.machine.clock import SystemClock

WIDTH_OF_A_PIPE: Final = 1_000
"""Columns where stdout is no terminal: enough that no failure id is folded, beside a long message."""

_APART: Final = {
    "failure_id", "damaged", "headers", "retry_headers", "key", "value", "metadata", "origin", "append_ms",
    "failures",
}  # fmt: skip
"""Facts with a place of their own, or shown as part of another."""

_OF_A_TRY: Final = {"started_ms", "fingerprint"}
"""Metadata that says nothing of a record that was never delivered."""

_USUAL: Final = {"replays": 0, "hot_attempts": 1, "rule_failures": -1, "no_payload": False}
"""Facts that say nothing where they have this value."""

_LABELS: Final = {"hot_attempts": "tries in place", "rule_failures": "failures by rule", "delivery": "deliveries"}
"""What facts are called for people, where that is not their name."""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under headings, as wide as the terminal; cells fold, nothing is cut."""
    shown = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in shown.columns:
        column.overflow = "fold"
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False).print(shown)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def instant(epoch_ms: int | None, now_ms: int) -> str:
    """Return how far an instant is from now, and itself in UTC."""
    return "-" if epoch_ms is None else f"{relative_text(epoch_ms, now_ms)} ({utc_text(epoch_ms)})"


def list_text(listed: Listed, columns: Mapping[str, str], now_ms: int, *, of: str, none: str, still: str) -> str:
    """Return a list; `columns`: heading → name of the fact, an instant if it ends in ``_ms``.

    `still`: what those are that have no mark.
    """
    if not listed.records:
        return "\n".join([none, *undecoded_text(listed)])
    rows = [[_cell(facts, name, now_ms) for name in columns.values()] for facts in listed.records]
    line = f"{len(listed.records):,} of {listed.matching:,} {of}"
    if listed.marked:
        others = listed.matching - sum(listed.marked.values())
        line += ", ".join(
            [f": {others:,} still {still}", *(f"{count:,} {word}" for word, count in sorted(listed.marked.items()))]
        )
    return "\n".join([table(list(columns), rows), line, *undecoded_text(listed)])


def missing_text(letters: Sequence[str]) -> str:
    """Return a line about each dead-letter topic that is not there, with the end of the line before it."""
    return "".join(
        f"\n{name} is not there: its handler keeps no dead letters (dead_letters='drop'), or it was deleted"
        for name in letters
    )


def undecoded_text(listed: Listed) -> list[str]:
    """Return a line about values in which no field was looked for, if there are such."""
    return [f"The decoder failed for {counted(listed.undecoded, 'value')}: not searched"] if listed.undecoded else []


def _cell(facts: Mapping[str, Any], name: str, now_ms: int) -> str:
    if name == "attempts":
        most = facts["max_attempts"]
        return "-" if facts["attempt"] is None else f"{facts['attempt']}{f' of {most}' if most else ''}"
    if name == "error":
        return facts["damaged"] or ": ".join(filter(None, (facts["error_type"], facts["message"]))) or "-"
    value = facts[name]
    if name == "failure_id" and value is None:
        return f"{facts['main']}/{facts['partition']}/{facts.get('origin_offset', facts.get('offset'))} (damaged)"
    return instant(value, now_ms) if name.endswith("_ms") else "-" if value is None else str(value)


def _record_text(facts: Mapping[str, Any], *, now_ms: int) -> str:
    """Return one record at length: metadata, the user's headers, key and value decoded."""
    metadata = facts.get("metadata") or {}
    apart = _APART | {"null_value", "version"} | (_OF_A_TRY if facts.get("last_failed_ms") is None else set())
    both = {**facts, **metadata, **facts}  # in the order of facts, which are None where metadata has a filler
    named = {name: value for name, value in both.items() if name not in apart}
    if metadata:
        named.pop("message", None)  # it has the whole one
        named |= {"first_failed_ms": facts["failures"]["first_ms"], "history": tuple(facts["failures"]["attempts"])}
    if named.get("held_back_by"):
        named.pop("held_by", None)  # it says the same
    lines = [_line("failure id", facts.get("failure_id"))]
    if facts.get("damaged"):
        lines.append(_line("damaged", facts["damaged"]))
    for name, value in named.items():
        lines += _fact(name, value, now_ms)
    lines += _headers("headers ({})", facts["headers"])
    if not metadata:
        lines += _headers("retry headers, as they are", facts["retry_headers"])
    for name in ("key", "value"):
        lines += ["", *_payload(name, facts.get(name))]
    return "\n".join(lines)


def _fact(name: str, value: Any, now_ms: int) -> list[str]:
    label = _LABELS.get(name, name.removesuffix("_ms").removesuffix("_at").replace("_", " "))
    if value is None or value in ("", ()) or value == _USUAL.get(name):
        return []
    if name == "history":
        texts = [_attempt(each) for each in value]
    elif name.endswith("_ms"):
        texts = ["-" if value < 0 else f"{utc_text(value)} ({relative_text(value, now_ms)})"]
    else:
        texts = ["yes"] if value is True else str(value).splitlines() or [""]
    return [_line(label, texts[0]), *(_line("", text) for text in texts[1:])]


def _attempt(ended: Mapping[str, Any]) -> str:
    replay, error = ended["replay"], "deferred" if ended["deferred"] else ended["error_type"]
    when = "in an earlier replay, or before, " if replay is None else f"replay {replay}, " if replay else ""
    return f"{when}attempt {ended['attempt']} {utc_text(ended['ended_ms'])} {error}"


def _line(label: str, value: object) -> str:
    return f"{label:<18} {'-' if value is None else printable(str(value))}".rstrip()


def _headers(title: str, headers: Sequence[Mapping[str, Any]]) -> list[str]:
    values = [(h["name"], "(null)" if h["value"] is None else h["value"]) for h in headers]
    return ["", title.format(len(headers)), *(f"  {printable(name)}: {printable(value)}" for name, value in values)]


def _payload(name: str, payload: Payload | None) -> list[str]:
    if payload is None:
        return [f"{name} (no longer on the topic)"]
    heading, decoded = f"{name} ({payload.kind.value}, {counted(payload.size_bytes, 'byte')})", payload.decoded
    if payload.truncated:
        heading += f", the first {len(payload.content)}; the whole with --raw"
    if decoded is not None:
        heading += f", decoded{f' (the first {len(decoded.content)} bytes)' if decoded.truncated else ''}"
    if payload.problem:
        heading += f", {printable(payload.problem)}"
    return [heading, *(f"  {line}" for line in printable((decoded or payload).laid_out).splitlines())]


def show_record(facts: Mapping[str, Any], value: bytes | None, *, raw: bool, as_json: bool) -> ExitCode:
    """Print one record: its facts (payloads as ``key`` and ``value``), or only the bytes of its value.

    `value` None: it cannot be told. A null value is empty.
    """
    if raw and value is None:
        letter = f"the letter does not have it (reason {facts['reason']})"
        command = f"'retryapp dead show {place_text()} {facts['failure_id']} --raw'"
        other = letter if "dead_ms" in facts else f"its dead letter has it: {command}"
        why = facts.get("unread") or facts["damaged"] or other
        return _write_nothing(f"its value cannot be written: {why}")
    if raw:
        click.echo(value, nl=False, file=results())
        return ExitCode.FINE
    now_ms = SystemClock().wall_ms()
    plain = {name: value.facts if isinstance(value, Payload) else value for name, value in facts.items()}
    emit({"found": True, "now_ms": now_ms, **plain}, _record_text(facts, now_ms=now_ms), as_json=as_json)
    return ExitCode.FINE


def show_missing(failure_id: str, text: str, *, raw: bool, as_json: bool) -> ExitCode:
    if raw:
        return _write_nothing(f"{failure_id} {text}")
    emit({"found": False, "failure_id": failure_id}, f"{failure_id} {text}", as_json=as_json)
    return ExitCode.FINDING


def _write_nothing(why: str) -> ExitCode:
    """Say why there is no value to write: not on stdout, which is for the value alone."""
    click.echo(with_app(f"retryapp: {printable(why)}", Given.now().app_spec), err=True)
    return ExitCode.FINDING
