"""How look-up commands show records: tables, one record at length, page marks."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retryapp.web.instants import relative_text, utc_text
from retryapp.web.payloads import Payload, printable

WIDTH_OF_A_PIPE: Final = 240
"""Columns when nobody says how wide the terminal is: enough that no failure id is folded."""

INSTANT_SUFFIX: Final = "_ms"


@dataclass(frozen=True, slots=True, order=True)
class PageMark:
    """Where a list went on: ``--after``. Sorts as the lists do."""

    instant_ms: int
    main: str
    partition: int
    offset: int

    @property
    def text(self) -> str:
        """``instant/main/partition/offset``."""
        return f"{self.instant_ms}/{self.main}/{self.partition}/{self.offset}"


def parse_page_mark(text: str) -> PageMark:
    """Read a mark back.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        instant_ms, main, partition, offset = text.split("/")
        return PageMark(int(instant_ms), main, int(partition), int(offset))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no page mark: give what the list before printed after 'next page'", param_hint="--after"
        ) from error


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under headings, as wide as the terminal; cells fold, nothing is cut."""
    shown = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in shown.columns:
        column.overflow = "fold"
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(shown)
    rendered = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO that was given
    return "\n".join(line.rstrip() for line in rendered.splitlines())


def cell(value: object) -> str:
    """Return a fact for a table; a dash for none."""
    return "-" if value is None else str(value)


def instant(epoch_ms: int | None, now_ms: int) -> str:
    """Return how far an instant is from now, and itself in UTC."""
    return "-" if epoch_ms is None else f"{relative_text(epoch_ms, now_ms)} ({utc_text(epoch_ms)})"


def record_text(facts: Mapping[str, Any], *, now_ms: int) -> str:
    """Return one record at length: metadata, the user's headers, key and value decoded.

    Args:
        facts: as ``pending_detail`` and ``dead_detail`` of the web pages give them, and payloads as ``key``, ``value``.
        now_ms: the time, epoch milliseconds.
    """
    lines = [_line("failure id", facts.get("failure_id"))]
    if facts.get("damaged"):
        lines.append(_line("damaged", facts["damaged"]))
    for name, value in _told(facts):
        lines += _fact(name, value, now_ms)
    lines += ["", f"headers ({len(facts['headers'])})"]
    lines += [f"  {printable(h['name'])}: {_or_null(h['value'])}" for h in facts["headers"]]
    if not facts.get("metadata"):
        lines += ["", "retry headers, as they are"]
        lines += [f"  {printable(h['name'])}: {_or_null(h['value'])}" for h in facts["retry_headers"]]
    for name in ("key", "value"):
        lines += ["", *_payload(name, facts.get(name))]
    return "\n".join(lines)


def _told(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List what is said about a record besides its id, headers and payload."""
    apart = {"failure_id", "damaged", "headers", "retry_headers", "key", "value", "metadata", "origin", "found"}
    metadata = facts.get("metadata") or {}
    merged = {name: value for name, value in facts.items() if name not in apart} | {
        name: value for name, value in metadata.items() if name not in {"origin", "null_value"}
    }
    return list(merged.items())


def _fact(name: str, value: Any, now_ms: int) -> list[str]:
    label = name.removesuffix(INSTANT_SUFFIX).removesuffix("_at").replace("_", " ")
    if value is None or value in ("", ()):
        return []
    if name == "history":
        entries = [f"attempt {e['attempt']} {utc_text(e['failed_ms'])} {e['error_type']}" for e in value]
        return [_line(label, entries[0]), *(_line("", entry) for entry in entries[1:])]
    if name.endswith(INSTANT_SUFFIX):
        return [_line(label, "-" if value < 0 else f"{utc_text(value)} ({relative_text(value, now_ms)})")]
    first, *rest = str(value).splitlines() or [""]
    return [_line(label, first), *(_line("", line) for line in rest)]


def _line(label: str, value: object) -> str:
    return f"{label:<18} {printable(cell(value))}".rstrip()


def _or_null(value: str | None) -> str:
    return "(null)" if value is None else printable(value)


def _payload(name: str, payload: Payload | None) -> list[str]:
    if payload is None:
        return [f"{name} (no longer on the topic)"]
    heading = f"{name} ({payload.kind.value}, {payload.size_bytes} bytes)"
    if payload.truncated:
        heading += f", the first {len(payload.content)}; the whole with --raw"
    return [heading, *(f"  {line}" for line in printable(payload.laid_out).splitlines())]


def json_ready(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with payloads as JSON has them."""
    return {name: value.facts if isinstance(value, Payload) else value for name, value in facts.items()}
