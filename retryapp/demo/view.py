"""What a run shows: a live table on a terminal, else a plain line every few seconds; always on stderr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.progress_bar import ProgressBar
from rich.table import Table

from retryapp.demo.balance import Balance
from retryapp.demo.figures import Quantiles
from retryapp.demo.settings import MAIN_TOPIC
from retryapp.demo.tally import Snapshot
from retryapp.terminal import (
    HandlerFigures,
    Latency,
    LiveView,
    due_text,
    facts_table,
    figure_rows,
    latency_text,
    reasons_text,
)


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


class View(LiveView):
    """Shows scenes of a run; see `terminal.LiveView`."""

    def show(self, scene: Scene) -> None:
        """Show a scene; cheap when it is too early for the next one."""
        self.draw(scene.elapsed_s, lambda: table_of(scene), lambda: line_of(scene))


def figures_of(scene: Scene) -> HandlerFigures:
    """Return what the demo knows of its handler as `retryapp top` shows any handler."""
    now = scene.now
    return HandlerFigures(
        main=MAIN_TOPIC,
        pending=now.pending,
        next_due_ms=now.next_due_ms,
        dead=now.dead,
        dead_by_reason=now.dead_by_reason,
        lateness=_latency(now.lateness),
    )


def line_of(scene: Scene) -> str:
    """Return a scene as one plain line."""
    now = scene.now
    return (
        f"{scene.elapsed_s:5.0f} s  fed {scene.fed:,}/{scene.total:,}  done {now.done_at_first_try:,} at first try, "
        f"{now.done_after_retry:,} after retry  waiting {now.pending:,}{due_text(now.next_due_ms, scene.now_ms)}  "
        f"dead {now.dead:,}{reasons_text(now.dead_by_reason, now.rejected_by_status)}  "
        f"late {_figures(now.lateness)}  healthy {_figures(now.healthy)}  {scene.note}"
    ).rstrip()


def table_of(scene: Scene) -> Table:
    """Return a scene as a table for the terminal."""
    now = scene.now
    return facts_table(
        [
            ("fed", f"{scene.fed:,} of {scene.total:,}"),
            ("settled", ProgressBar(total=max(1, scene.total), completed=now.settled, width=50)),
            ("done at first try", f"[green]{now.done_at_first_try:,}[/]"),
            ("done after retry", f"[green]{now.done_after_retry:,}[/]"),
            *figure_rows(
                figures_of(scene),
                scene.now_ms,
                beside_waiting=f"   most so far {now.most_pending:,}",
                statuses=now.rejected_by_status,
            ),
            ("early", f"{now.early:,}"),
            ("healthy records take", _figures(now.healthy)),
            ("  while 1,000 wait", _figures(now.healthy_while_many_wait)),
            ("service answers", "  ".join(f"{name} {count}" for name, count in sorted(now.last_outcomes.items()))),
            ("", f"[bold cyan]{scene.note}[/]"),
        ]
    )


def balance_text(balance: Balance) -> str:
    """Return the balance for people."""
    steady, late, healthy = balance.steady_lateness, balance.lateness, balance.healthy
    lines = [
        f"Balance after {balance.seconds:.0f} s, counted from the service's own log and the topics:",
        f"  fed                   {balance.fed:>9,}",
        f"  done                  {balance.done:>9,}   ({balance.done_at_first_try:,} at first try)",
        f"  dead                  {balance.dead:>9,}"
        f"  {reasons_text(balance.dead_by_reason, balance.rejected_by_status)}",
        f"  lost                  {balance.lost:>9,}",
        f"  early                 {balance.early:>9,}",
        f"  hand-offs twice       {balance.duplicated_handoffs:>9,}",
        f"  handler runs repeated {balance.repeated_runs:>9,}   (what was in flight when a worker was killed)",
        f"  workers killed        {balance.kills:>9,}",
        *([] if balance.by_ledger is None else [f"  by the ledger         {_ledger_text(balance.by_ledger)}"]),
        f"  late by               {_figures(steady)} (outside the failover)",
        f"    with the failover   {_figures(late)}",
        f"  healthy records take  {_figures(healthy)} while many others wait (outside the failover)",
    ]
    if balance.is_in_order:
        return "\n".join([*lines, "In order: every flight is done or dead, none lost, none early."])
    return "\n".join([*lines, "NOT in order:", *(f"  - {problem}" for problem in balance.problems)])


def _ledger_text(counted: Mapping[str, int]) -> str:
    fates = [f"{counted[fate]:,} {fate}" for fate in ("done", "dead", "pending", "unknown", "lost") if counted[fate]]
    return f"{counted['received']:>9,}   = {' + '.join(fates) or 'none'}   ({counted['problems']} findings)"


def _latency(quantiles: Quantiles) -> Latency:
    return Latency(count=quantiles.count, p50=quantiles.p50, p99=quantiles.p99, max=quantiles.max)


def _figures(quantiles: Quantiles) -> str:
    return latency_text(_latency(quantiles))
