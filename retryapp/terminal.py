"""A running group in a terminal: one drawing for the demo and for ``retryapp top``.

A `Group` is one moment of a group. What is not known is None and shown as a dash. `LiveView` shows moments as a live
table on a terminal, else as plain lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from retryapp.lookup.instants import length_text

PLAIN_INTERVAL_S: Final = 3.0
"""Between two plain lines."""
REFRESH_PER_S: Final = 4
_STATE_STYLES: Final = {"open": "green", "opening": "yellow", "idle": "yellow", "closed": "red"}
_NUMBERS: Final = {
    "pending": "pending",
    "due": "due_unfired",
    "main lag": "main_lag",
    "to park": "retry_lag",
    "redeliver": "redelivery_lag",
    "in flight": "in_flight",
}
"""Heading → field of `LaneFigures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles of some measurements, in milliseconds."""

    count: int
    p50: float
    p99: float
    max: float | None = None
    at_most: bool = False
    """The quantiles are upper bounds (of a histogram's buckets)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFigures:
    """One handler, over all workers that answered."""

    main: str
    pending: int
    next_due_ms: int | None
    due_next_minute: int | None = None
    due_is_exact: bool = True
    dead: int = 0
    dead_by_reason: Mapping[str, int] = field(default_factory=dict)
    """Of all, or of those since the workers started: then there are fewer."""
    deliveries_per_s: float | None = None
    failures_per_s: float | None = None
    lateness: Latency | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFigures:
    """One partition of a handler."""

    main: str
    partition: int
    worker: str
    state: str
    since_ms: int | None = None
    pending: int | None = None
    main_lag: int | None = None
    retry_lag: int | None = None
    redelivery_lag: int | None = None
    due_unfired: int | None = None
    in_flight: int | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One moment of a group."""

    group: str
    now_ms: int
    source: str
    """Where the figures come from: ``workers`` or ``topics``."""
    workers: Sequence[str]
    handlers: Sequence[HandlerFigures]
    lanes: Sequence[LaneFigures]
    note: str = ""


class LiveView:
    """Shows moments; a context manager."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, transient=True) if live else None
        self._shown_s = -PLAIN_INTERVAL_S

    def draw(self, at_s: float, table: Callable[[], RenderableType], line: Callable[[], str]) -> None:
        """Show a moment, `at_s` after the start; does nothing when it is too early for the next one."""
        interval_s = 1 / REFRESH_PER_S if self._live is not None else PLAIN_INTERVAL_S
        if at_s - self._shown_s < interval_s:
            return
        self._shown_s = at_s
        if self._live is not None:
            self._live.update(table())
        else:
            self._console.print(line(), highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Print a line and, on a terminal, show a moving sign in place of the table."""
        self.say(text)
        if self._live is None:
            yield
            return
        self._live.stop()
        with self._console.status("this takes a while"):
            yield

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal is gone
                self._live.stop()


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and values, one a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return table


def figure_rows(
    figures: HandlerFigures, now_ms: int, *, beside_waiting: str = "", statuses: Mapping[str, int] | None = None
) -> list[tuple[str, RenderableType]]:
    """Return a handler's figures as rows for `facts_table`.

    Args:
        figures: of the handler.
        now_ms: epoch milliseconds.
        beside_waiting: appended to the number of waiting records.
        statuses: HTTP statuses of the dead ones, when known.
    """
    rows: list[tuple[str, RenderableType]] = [
        ("waiting", f"[yellow]{figures.pending:,}[/]{due_text(figures.next_due_ms, now_ms)}{beside_waiting}"),
    ]
    if figures.due_next_minute is not None:
        more = "" if figures.due_is_exact else "+"
        rows.append(("due", f"{figures.due_next_minute:,}{more} in the next minute"))
    rows.append(("dead", f"[red]{figures.dead:,}[/]{escape(_reasons(figures, statuses or {}))}"))
    if figures.deliveries_per_s is not None or figures.failures_per_s is not None:
        failures = f"[red]{rate_text(figures.failures_per_s)}[/]"
        rows.append(("runs", f"{rate_text(figures.deliveries_per_s)} delivered, {failures} failed"))
    rows.append(("late by", latency_text(figures.lateness)))
    return rows


def group_table(group: Group) -> RenderableType:
    """Return one moment of a group for a terminal."""
    count = len(group.workers)
    where = f"{count} worker{'' if count == 1 else 's'}" if group.source == "workers" else "from the topics"
    parts: list[RenderableType] = [f"[bold]{escape(group.group)}[/]  {where}"]
    if group.note:
        parts.append(f"[yellow]{escape(group.note)}[/]")
    for figures in group.handlers:
        parts += ["", f"[bold cyan]{escape(figures.main)}[/]", facts_table(figure_rows(figures, group.now_ms))]
    if group.lanes:
        parts += ["", lanes_table(group)]
    return Stack(*parts)


def lanes_table(group: Group) -> Table:
    """Return the lanes: what each worker has, and its lag."""
    table = Table("worker", "topic", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("part", "lane", "since", *_NUMBERS):
        table.add_column(heading, justify="left" if heading in {"lane", "since"} else "right")
    table.add_column("last error", overflow="ellipsis", no_wrap=True)
    for lane in sorted(group.lanes, key=lambda lane: (lane.worker, lane.main, lane.partition)):
        numbers = [getattr(lane, name) for name in _NUMBERS.values()]
        table.add_row(
            escape(lane.worker.removeprefix("http://")),
            escape(lane.main),
            str(lane.partition),
            f"[{_STATE_STYLES.get(lane.state, 'dim')}]{escape(lane.state)}[/]",
            "-" if lane.since_ms is None else length_text(max(0, group.now_ms - lane.since_ms)),
            *("-" if number is None else f"{number:,}" for number in numbers),
            escape(lane.last_error or ""),
        )
    return table


def group_line(group: Group) -> str:
    """Return one moment of a group as a plain line."""
    parts = [f"{group.group}: {group.note}"] if group.note else [group.group]
    for figures in group.handlers:
        mine = [lane for lane in group.lanes if lane.main == figures.main]
        lanes = f"  lanes open {sum(lane.state == 'open' for lane in mine)}/{len(mine)}" if mine else ""
        parts.append(
            f"{figures.main}  waiting {figures.pending:,}{due_text(figures.next_due_ms, group.now_ms)}  "
            f"dead {figures.dead:,}{_reasons(figures, {})}  "
            f"delivered {rate_text(figures.deliveries_per_s)}  failed {rate_text(figures.failures_per_s)}  "
            f"late {latency_text(figures.lateness)}{lanes}"
        )
    return "  |  ".join(parts)


def due_text(next_due_ms: int | None, now_ms: int) -> str:
    """Return when the next record is due, in brackets; empty for none."""
    return "" if next_due_ms is None else f" (next due in {max(0, next_due_ms - now_ms) / 1000:.1f} s)"


def reasons_text(reasons: Mapping[str, int], statuses: Mapping[str, int]) -> str:
    """Return why records died, in brackets; empty for none."""
    parts = [f"{reason} {count:,}" for reason, count in sorted(reasons.items())]
    split = [f"{count:,} x {status}" for status, count in sorted(statuses.items())]
    return (f" ({', '.join(parts)}" + (f": {', '.join(split)}" if split else "") + ")") if parts else ""


def _reasons(figures: HandlerFigures, statuses: Mapping[str, int]) -> str:
    text = reasons_text(figures.dead_by_reason, statuses)
    is_all = sum(figures.dead_by_reason.values()) >= figures.dead
    return text if is_all else text.replace("(", "(since the workers started: ", 1)


def rate_text(per_s: float | None) -> str:
    """Return a rate; a dash where it is not known."""
    return "-" if per_s is None else f"{per_s:,.1f}/s"


def latency_text(latency: Latency | None) -> str:
    """Return quantiles; a dash where nothing was measured."""
    if latency is None or not latency.count:
        return "-"
    bound = "<= " if latency.at_most else ""
    most = "" if latency.max is None else f", max {latency.max:,.0f} ms"
    return f"p50 {bound}{latency.p50:,.0f} ms, p99 {bound}{latency.p99:,.0f} ms{most}"
