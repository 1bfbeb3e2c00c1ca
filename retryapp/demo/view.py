"""What a run shows: a live table on a terminal, else a plain line every few seconds; always on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from retryapp.demo.balance import Balance
from retryapp.demo.figures import Quantiles
from retryapp.demo.tally import Snapshot

PLAIN_INTERVAL_S = 3.0
_REFRESH_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment of a run."""

    total: int
    """Flights to feed."""
    fed: int
    now: Snapshot
    now_ms: int
    elapsed_s: float
    note: str
    """What is going on, in a few words."""


class View:
    """Shows scenes; use it as a context manager."""

    def __init__(self, console: Console, *, live: bool) -> None:
        """Show on this console, as a live table or as plain lines."""
        self._console = console
        self._live = Live(console=console, refresh_per_second=_REFRESH_PER_S, transient=True) if live else None
        self._shown_s = -PLAIN_INTERVAL_S

    def show(self, scene: Scene) -> None:
        """Show a scene; cheap when it is too early for the next one."""
        interval_s = 1 / _REFRESH_PER_S if self._live is not None else PLAIN_INTERVAL_S
        if scene.elapsed_s - self._shown_s < interval_s:
            return
        self._shown_s = scene.elapsed_s
        if self._live is not None:
            self._live.update(table_of(scene))
        else:
            self._console.print(line_of(scene), highlight=False)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        """Begin."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End: give the terminal back."""
        if self._live is not None:
            with suppress(OSError):  # the terminal is gone
                self._live.stop()


def line_of(scene: Scene) -> str:
    """Return a scene as one plain line."""
    now = scene.now
    return (
        f"{scene.elapsed_s:5.0f} s  fed {scene.fed:,}/{scene.total:,}  done {now.done_at_first_try:,} at first try, "
        f"{now.done_after_retry:,} after retry  waiting {now.pending:,}{_due_text(scene)}  "
        f"dead {now.dead:,}{_reasons_text(now.dead_by_reason, now.rejected_by_status)}  "
        f"late {_figures(now.lateness)}  healthy {_figures(now.healthy)}  {scene.note}"
    ).rstrip()


def table_of(scene: Scene) -> Table:
    """Return a scene as a table for the terminal."""
    now = scene.now
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("fed", f"{scene.fed:,} of {scene.total:,}")
    table.add_row("settled", ProgressBar(total=max(1, scene.total), completed=now.settled, width=50))
    table.add_row("done at first try", f"[green]{now.done_at_first_try:,}[/]")
    table.add_row("done after retry", f"[green]{now.done_after_retry:,}[/]")
    table.add_row("waiting", f"[yellow]{now.pending:,}[/]{_due_text(scene)}   most so far {now.most_pending:,}")
    table.add_row("dead", f"[red]{now.dead:,}[/]{_reasons_text(now.dead_by_reason, now.rejected_by_status)}")
    table.add_row("late by", f"{_figures(now.lateness)}   early: {now.early:,}")
    table.add_row("healthy records take", _figures(now.healthy))
    table.add_row("  while 1,000 wait", _figures(now.healthy_while_many_wait))
    table.add_row("service answers", "  ".join(f"{name} {count}" for name, count in sorted(now.last_outcomes.items())))
    table.add_row("", f"[bold cyan]{scene.note}[/]")
    return table


def balance_text(balance: Balance) -> str:
    """Return the balance for people."""
    steady, late, healthy = balance.steady_lateness, balance.lateness, balance.healthy
    lines = [
        f"Balance after {balance.seconds:.0f} s, counted from the service's own log and the topics:",
        f"  fed                   {balance.fed:>9,}",
        f"  done                  {balance.done:>9,}   ({balance.done_at_first_try:,} at first try)",
        f"  dead                  {balance.dead:>9,}"
        f"  {_reasons_text(balance.dead_by_reason, balance.rejected_by_status)}",
        f"  lost                  {balance.lost:>9,}",
        f"  early                 {balance.early:>9,}",
        f"  hand-offs twice       {balance.duplicated_handoffs:>9,}",
        f"  handler runs repeated {balance.repeated_runs:>9,}   (what was in flight when a worker was killed)",
        f"  workers killed        {balance.kills:>9,}",
        f"  late by               {_figures(steady)} (outside the failover)",
        f"    with the failover   {_figures(late)}",
        f"  healthy records take  {_figures(healthy)} while many others wait (outside the failover)",
    ]
    if balance.is_in_order:
        return "\n".join([*lines, "In order: every flight is done or dead, none lost, none early."])
    return "\n".join([*lines, "NOT in order:", *(f"  - {problem}" for problem in balance.problems)])


def _due_text(scene: Scene) -> str:
    due_ms = scene.now.next_due_ms
    return "" if due_ms is None else f" (next due in {max(0, due_ms - scene.now_ms) / 1000:.1f} s)"


def _reasons_text(reasons: Mapping[str, int], statuses: Mapping[str, int]) -> str:
    parts = [f"{reason} {count:,}" for reason, count in sorted(reasons.items())]
    split = [f"{count:,} x {status}" for status, count in sorted(statuses.items())]
    return (f" ({', '.join(parts)}" + (f": {', '.join(split)}" if split else "") + ")") if parts else ""


def _figures(quantiles: Quantiles) -> str:
    if not quantiles.count:
        return "-"
    return f"p50 {quantiles.p50:,} ms, p99 {quantiles.p99:,} ms, max {quantiles.max:,} ms"
