"""Figures, their targets, and the page that is written from what was kept."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.cli import _without_out
from benchmarks.plan import Plan, quick_plan
from benchmarks.report import page, summary
from benchmarks.results import Result, figure
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.lanes import opened


def result(*samples: float | None) -> dict[str, Any]:
    """Return what is kept of a ratio whose target is 4."""
    machine = {"busy_percent": 1.0, "load_average": 0.1}
    ran = {
        "began": "2024-01-01 00:00 UTC", "minutes": 3.0, "version": "abc", "command": "python -m benchmarks happy",
        "before": machine, "after": machine, "idle": False, "machine": {"Python": "3.11"}, "cores": "not pinned",
        "sizes": {"pairs": 3},
    }  # fmt: skip
    table = {"columns": ["side", "rate"], "rows": [["ours", "5"]]}
    outcome = Result(figures=[figure("ours / theirs", "x", samples, least=4)], tables=[table], notes=["How."])
    return {"name": "happy", "title": "Nothing fails", **asdict(outcome), "ran": ran}


@pytest.mark.parametrize(
    ("samples", "target", "met"),
    [
        ([4.0], {"least": 4}, True), ([3.9], {"least": 4}, False),
        ([1.1], {"most": 1.1}, True), ([1.2], {"most": 1.1}, False),
        ([None, 5.0, None], {"least": 4}, True), ([None], {"least": 4}, False), ([5.0], {}, None),
    ],
)  # fmt: skip
def test_a_target_is_a_bound_that_the_median_may_touch(
    samples: list[float | None], target: dict[str, float], met: bool | None
) -> None:
    """Runs that did not finish are no zeros; none at all meets no target."""
    assert figure("x", "x", samples, **target)["met"] is met


def test_what_was_saved_makes_the_same_page(tmp_path: Path) -> None:
    """The page can be written again from the file alone; a file of another format is not read."""
    kept = {"happy": result(4.0, 5.0, 6.0)}
    results.save(tmp_path, kept)
    assert page(results.load(tmp_path)) == page(kept)
    assert results.load(tmp_path / "nowhere") == {}
    (tmp_path / results.RESULTS).write_text('{"format": 0, "workloads": {"happy": {}}}')
    assert results.load(tmp_path) == {}


def test_the_page_says_what_was_missed_and_that_the_machine_was_busy() -> None:
    """No such figure is to be quoted without it."""
    text = page({"happy": result(2.0, 3.0, 2.5)})
    assert "| ours / theirs | 2.50 (2.00 to 3.00) | x | 3 | >= 4 | **missed** |" in text
    assert "not to be trusted" in text
    assert "| ours | 5 |" in text
    assert "did not finish" in summary(result(None))


def test_the_published_page_is_made_of_the_published_figures() -> None:
    """No figure on it was typed."""
    folder = Path(results.__file__).parent
    assert (folder / "README.md").read_text() == page(results.load(folder))


@pytest.mark.parametrize("out", [["--out", "folder"], ["--out=folder"], []])
def test_the_command_is_kept_without_the_folder(out: list[str]) -> None:
    """It changes no figure, and a page names no folder of the machine that made it."""
    assert _without_out(["happy", *out, "--pairs", "3"]) == ["happy", "--pairs", "3"]


def test_quick_sizes_are_never_larger_than_the_full_ones() -> None:
    """And each workload names fields that exist."""
    full, quick = Plan(), quick_plan()
    numbers = [n for n in Plan.__dataclass_fields__ if isinstance(getattr(full, n), int)]
    assert all(getattr(quick, name) <= getattr(full, name) for name in numbers)
    assert {option for workload in WORKLOADS.values() for option in workload.OPTIONS} <= set(Plan.__dataclass_fields__)


def test_lanes_are_read_from_a_worker_s_log() -> None:
    """The window runs from the beginning of the first opening to the end of the last."""
    line = "[2024-01-01 00:00:{at},000] [9] [INFO] retryapp.lane_opened handler=a partition=0 duration_ms={took} "
    log = "\n".join([line.format(at="05", took=2000), "other", line.format(at="06", took=500)])
    assert (opened(log).count, opened(log).opening_s) == (2, pytest.approx(3.0))
    assert opened("nothing").count == 0
