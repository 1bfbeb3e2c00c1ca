"""Figures, their targets, and the page that is written from what was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.plan import Plan, quick_plan
from benchmarks.report import page, summary
from benchmarks.results import Figure, Result, Table, Target, as_json, figure
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.lanes import opened


def _result(ratio: Figure) -> Result:
    machine = {"busy_percent": 1.0, "load_average": 0.1}
    ran = {
        "began": "2024-01-01 00:00 UTC", "minutes": 3.0, "version": "abc", "command": "python -m benchmarks happy",
        "before": machine, "after": machine, "idle": False, "machine": {"Python": "3.11"}, "cores": "not pinned",
        "sizes": {"pairs": 3},
    }  # fmt: skip
    table = Table(("side", "rate"), (("ours", "5"),))
    return Result(name="happy", title="Nothing fails", figures=[ratio], tables=[table], notes=["How."], ran=ran)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(least=4), 4.0, True), (Target(least=4), 3.9, False),
        (Target(most=1.1), 1.1, True), (Target(most=1.1), 1.2, False),
    ],
)  # fmt: skip
def test_a_target_is_a_bound_that_the_median_may_touch(target: Target, value: float, met: bool) -> None:
    """At the bound is met, beyond it is not."""
    assert figure("x", "x", [value], target).met is met


def test_runs_that_did_not_finish_are_left_out_and_none_at_all_meets_no_target() -> None:
    """A blank is not a zero, and not a success."""
    some = figure("x", "x", [None, 5.0, None], Target(least=4)).value
    assert some is not None
    assert (some.median, some.n) == (5.0, 1)
    assert figure("x", "x", [None], Target(least=4)).met is False


def test_what_was_saved_makes_the_same_page(tmp_path: Path) -> None:
    """The page can be written again from the file alone."""
    kept = {"happy": as_json(_result(figure("ours / theirs", "x", [4.0, 5.0, 6.0], Target(least=4))))}
    results.save(tmp_path, kept)
    assert page(results.load(tmp_path)) == page(kept)
    assert results.load(tmp_path / "nowhere") == {}


def test_what_another_version_kept_is_not_read(tmp_path: Path) -> None:
    """Its fields may mean something else."""
    (tmp_path / results.RESULTS).write_text('{"format": 0, "workloads": {"happy": {}}}')
    assert results.load(tmp_path) == {}


def test_the_page_says_what_was_missed_and_that_the_machine_was_busy() -> None:
    """Nobody may quote such a figure without seeing why not to."""
    text = page({"happy": as_json(_result(figure("ours / theirs", "x", [2.0, 3.0, 2.5], Target(least=4))))})
    assert "| ours / theirs | 2.50 (2.00 to 3.00) | x | 3 | >= 4 | **missed** |" in text
    assert "not to be trusted" in text
    assert "| ours | 5 |" in text


def test_the_summary_shows_a_side_that_did_not_finish() -> None:
    """In words."""
    assert "did not finish" in summary(as_json(_result(figure("ours / theirs", "x", [None]))))


def test_quick_sizes_are_never_larger_than_the_full_ones() -> None:
    """And each workload names fields that exist."""
    full, quick = Plan(), quick_plan()
    numbers = [n for n in Plan.__dataclass_fields__ if isinstance(getattr(full, n), int)]
    assert all(getattr(quick, name) <= getattr(full, name) for name in numbers)
    assert {option for workload in WORKLOADS for option in workload.options} <= set(Plan.__dataclass_fields__)


def test_lanes_are_read_from_a_worker_s_log() -> None:
    """The window runs from the beginning of the first opening to the end of the last."""
    line = "[2024-01-01 00:00:{at},000] [9] [INFO] retryapp.lane_opened handler=a partition=0 duration_ms={took} "
    log = "\n".join([line.format(at="05", took=2000), "other", line.format(at="06", took=500)])
    found = opened(log)
    assert (found.count, found.opening_s) == (2, pytest.approx(3.0))
    assert opened("nothing").count == 0
