"""A running group in a terminal. What is not known is None and shown as a dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from retryapp.lookup.instants import length_text
from retryapp.lookup.payloads import printable

_STATE_STYLES: Final = {"open": "green", "opening": "yellow", "idle": "yellow", "closed": "red"}
_NUMBERS: Final = {
    "pending": "pending",
    "due": "due",
    "main lag": "main_lag",
    "in flight": "in_flight",
}
"""Heading → name of the fact of a lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One moment of a group."""

    group: str
    now_ms: int
    workers: Sequence[str]
    """Addresses of those that answered."""
    handlers: Sequence[Mapping[str, Any]]
    """Facts of each handler over all workers, as the overview has them: main, pending, next_due_ms, dead, as_of_ms,
    unknown_partitions and rates."""
    lanes: Sequence[Mapping[str, Any]]
    """Facts of each partition: main, partition, worker, state, since_ms, last_error, and those of `_NUMBERS`."""
    todo: Sequence[str] = ()
    """What needs action, the worst first."""
    note: str = ""


def _plain(text: str) -> str:
    return escape(printable(text))


def group_table(group: Group) -> RenderableType:
    count = len(group.workers)
    parts: list[RenderableType] = [f"[bold]{_plain(group.group)}[/]  {count} worker{'' if count == 1 else 's'}"]
    if group.note:
        parts.append(f"[yellow]{_plain(group.note)}[/]")
    parts += [f"[red]{_plain(text)}[/]" for text in group.todo]
    for figures in group.handlers:
        parts += ["", f"[bold cyan]{_plain(figures['main'])}[/]", _figures_table(figures, group.now_ms)]
    if group.lanes:
        parts += ["", _lanes_table(group)]
    return Stack(*parts)


def _figures_table(figures: Mapping[str, Any], now_ms: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_row("waiting", f"[yellow]{_number_text(figures['pending'])}[/]{_due_text(figures, now_ms)}")
    table.add_row("dead", f"[red]{_number_text(figures['dead'])}[/]")
    if limits := _limits_text(figures, now_ms):
        table.add_row("", f"[yellow]{limits}[/]")
    if (rates := figures["rates"]) is not None:
        failures = f"[red]{rates['failures_per_min']:,.0f} failed[/]"
        table.add_row("a minute", f"{rates['deliveries_per_min']:,.0f} delivered, {failures}")
    table.add_row("late by", _late_text(rates))
    return table


def _circuit_text(lane: Mapping[str, Any]) -> str:
    paused = "[red], paused[/]" if lane.get("paused") else ""
    circuits = {"": {"state": lane.get("circuit") or "closed"}, **(lane.get("circuits") or {})}
    away = [f"{name} {each['state']}".strip() for name, each in circuits.items() if each["state"] != "closed"]
    return paused + "".join(f"[red], circuit {_plain(text)}[/]" for text in away)


def _lanes_table(group: Group) -> Table:
    table = Table("worker", "topic", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("part", "lane", "since", *_NUMBERS):
        table.add_column(heading, justify="left" if heading in {"lane", "since"} else "right")
    table.add_column("last error", overflow="ellipsis", no_wrap=True)
    for lane in sorted(group.lanes, key=lambda lane: (lane["worker"], lane["main"], lane["partition"])):
        numbers = [lane.get(name) for name in _NUMBERS.values()]
        state, since_ms = lane["state"], lane.get("since_ms")
        table.add_row(
            _plain(lane["worker"].removeprefix("http://")),
            _plain(lane["main"]),
            str(lane["partition"]),
            f"[{_STATE_STYLES.get(state, 'dim')}]{_plain(state)}[/]{_circuit_text(lane)}",
            "-" if since_ms is None else length_text(max(0, group.now_ms - since_ms)),
            *("-" if number is None else f"{number:,}" for number in numbers),
            _plain(lane.get("last_error") or ""),
        )
    return table


def _number_text(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _limits_text(figures: Mapping[str, Any], now_ms: int) -> str:
    """Return how old the numbers of waiting and dead records are, and what they leave out."""
    as_of_ms, count = figures["as_of_ms"], len(figures["unknown_partitions"])
    age = [] if as_of_ms is None else [f"last known {length_text(max(0, now_ms - as_of_ms))} ago"]
    return "; ".join([*age, f"without {count} partition{'s' * (count > 1)}, not known now"] if count else age)


def _due_text(figures: Mapping[str, Any], now_ms: int) -> str:
    due_ms = figures["next_due_ms"]
    return "" if due_ms is None else f" (next due in {max(0, due_ms - now_ms) / 1000:.1f} s)"


def _late_text(rates: Mapping[str, Any] | None) -> str:
    if rates is None or not rates["retries"]:
        return "-"
    late_ms = rates["late_p99_ms"]
    return "p99 > 1m" if late_ms is None else f"p99 <= {late_ms:,.0f} ms"
