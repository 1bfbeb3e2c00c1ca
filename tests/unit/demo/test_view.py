"""What a run shows."""

import dataclasses
import io

import pytest
from rich.console import Console

from retryapp.demo.balance import Evidence, count
from retryapp.demo.data import Fate
from retryapp.demo.figures import quantiles
from retryapp.demo.tally import Snapshot
from retryapp.demo.view import Scene, View, balance_text, line_of, table_of
from retryapp.terminal import PLAIN_INTERVAL_S

NOW = Snapshot(
    done_at_first_try=1_000,
    done_after_retry=20,
    pending=300,
    most_pending=4_000,
    next_due_ms=12_500,
    early=0,
    dead_by_reason={"rejected": 7},
    rejected_by_status={"404": 6, "422": 1},
    lateness=quantiles([3, 9]),
    healthy=quantiles([5]),
    healthy_while_many_wait=quantiles([]),
    requests=1_500,
    last_outcomes={"200": 90, "503": 10},
)
SCENE = Scene(total=2_000, fed=1_400, now=NOW, now_ms=10_000, elapsed_s=12.0, note="worker 1 was killed")


def text_of(scene: Scene) -> str:
    """Render the table as plain text."""
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of(scene))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("shown", [line_of(SCENE), text_of(SCENE)])
def test_line_and_table_tell_the_same(shown: str) -> None:
    """Fed, done, waiting with the next due time, dead by reason, lateness and the note are in both."""
    for fact in ("1,400", "1,000", "300 (next due in 2.5 s)", "rejected 7: 6 x 404, 1 x 422", "max 9 ms", "killed"):
        assert fact in shown


def test_what_was_not_measured_is_a_dash() -> None:
    """No measurement is no zero."""
    assert "while 1,000 wait    -" in text_of(SCENE)


def test_plain_lines_come_at_intervals() -> None:
    """Where no terminal is, a line every few seconds is enough."""
    file = io.StringIO()
    with View(Console(file=file, width=300), live=False) as view:
        for elapsed_s in (0.0, 0.1, PLAIN_INTERVAL_S - 0.1, PLAIN_INTERVAL_S + 0.1):
            view.show(dataclasses.replace(SCENE, elapsed_s=elapsed_s))
    assert len(file.getvalue().splitlines()) == 2


def test_the_balance_says_whether_it_is_in_order() -> None:
    """A lost flight is shown with its finding."""
    lost = count(Evidence(expected={1: Fate.DONE}, fed_ms={1: 0}, visits=(), handoffs=(), delays_ms=(1_000,)))
    assert "NOT in order:\n  - 1 flights are lost: neither done nor dead (1)" in balance_text(lost)
    empty = count(Evidence(expected={}, fed_ms={}, visits=(), handoffs=(), delays_ms=(1_000,)))
    assert balance_text(empty).endswith("none lost, none early.")
