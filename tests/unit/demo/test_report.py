"""The report of a run: a page, differences, or a reason; never an error."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from retryapp.demo import report
from retryapp.demo.balance import Balance
from retryapp.demo.data import DatasetMissingError
from retryapp.demo.report import Report, Reporter, read_report
from retryapp.demo.run import DemoResult, _Demo, run_demo
from retryapp.stage import Run

TOTALS = {"received": 4, "done": 2, "first_try_ok": 1, "recovered": 1, "pending": 0, "dead": 2, "lost": 0, "failed": 3}
BALANCE = Balance(
    fed=4,
    done=2,
    dead=2,
    dead_by_status={"404": 2},
    lost=0,
    early=0,
    duplicated_handoffs=0,
    repeated_runs=0,
    outage_calls=0,
    outage_spent=0,
    outage_dead=0,
    recovery_s=0.0,
    kills=1,
    seconds=1.0,
    ledger={"received": 4, "done": 2, "dead": 2, "problems": 0},
    problems=(),
)


def read(tmp_path: Path, result: dict[str, Any], *, code: int = 0) -> Report:
    """Read the output of a process that has printed noise, its result, and more noise."""
    log = f"WARNING: Using incubator modules\n{{ no json\n{json.dumps(result)}\nbye\n"
    return read_report(log, code, BALANCE, page=tmp_path / "page.html", seconds=31.4)


def analysed(*, at_rest: bool = True, **totals: int) -> dict[str, Any]:
    """Return what `retryapp pipeline analyse --report` prints."""
    return {
        "verdicts": [{"name": "no attempt was early", "severity": "error", "failures": 0, "text": "holds"}],
        "ledger": {"at_rest": at_rest, "differences": []},
        "report": {"path": "page.html", "headline": "3 records failed", "totals": {**TOTALS, **totals}},
    }


def test_a_page_that_agrees(tmp_path: Path) -> None:
    """Its path and headline, for people and for programs; the run is in order."""
    page = read(tmp_path, analysed())
    assert page.text.splitlines() == [
        f"Report after 31 s: {tmp_path / 'page.html'}",
        "  3 records failed. Balance, ledger and report agree.",
    ]
    result = DemoResult(balance=BALANCE, report=page)
    assert result.is_in_order
    assert result.as_json()["report"] == {
        "path": tmp_path / "page.html",
        "reason": None,
        "seconds": 31.4,
        "headline": "3 records failed",
        "totals": TOTALS,
        "problems": (),
    }


@pytest.mark.parametrize("name", ["received", "done", "dead", "lost", "pending"])
def test_a_page_that_counts_otherwise_is_a_problem(tmp_path: Path, name: str) -> None:
    """The number and both counts are named, and the run is not in order."""
    page = read(tmp_path, analysed(**{name: 77}))
    (problem,) = page.problems
    assert problem.startswith(f"{name}: the report has 77, the balance ")
    assert "NOT agree" in page.text
    assert not DemoResult(balance=BALANCE, report=page).is_in_order


def test_the_ledgers_differences_and_failed_checks_are_problems(tmp_path: Path) -> None:
    """The former only at rest."""
    result = analysed()
    result["ledger"]["differences"] = [
        {"main": "flights", "partition": 1, "name": "recovered", "analysis": 5, "ledger": 6},
    ]
    result["verdicts"][0] |= {"failures": 2, "text": "attempts that began before they were due"}
    assert read(tmp_path, result, code=1).problems == (
        "flights[1] recovered: the report has 5, the ledger 6",
        "check no attempt was early: 2 x attempts that began before they were due",
    )
    result["ledger"]["at_rest"] = False
    assert len(read(tmp_path, result, code=1).problems) == 1


def test_an_error_is_a_reason_and_no_problem(tmp_path: Path) -> None:
    """On one line, as the command gave it."""
    message = "the archive job failed:\n  no room. Free space"
    page = read(tmp_path, {"error": {"type": "JobFailedError", "message": message, "exit_code": 3}}, code=3)
    assert page.text == "No report: the archive job failed: no room. Free space"
    assert DemoResult(balance=BALANCE, report=page).is_in_order


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a report with a Python program in place of the pipeline; returns it and what was announced."""

    def _make(program: str, page: Path) -> tuple[Report, str]:
        monkeypatch.setattr(report, "_command", lambda *_: [sys.executable, "-c", program])
        console = Console(file=StringIO(), width=200)
        reporter = Reporter(run, console, cache_dir=tmp_path / "cache", page=page)
        for _ in range(2):
            reporter.start("127.0.0.1:1")
        made = reporter.finish("127.0.0.1:1", BALANCE)
        return made, console.file.getvalue()  # type: ignore[attr-defined]

    monkeypatch.setattr(report, "find_spec", lambda name: object())
    with Run(tmp_path) as run:
        yield _make


def test_without_pyspark_nothing_is_started(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason says how to get it."""
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    made, announced = make("", tmp_path / "page.html")
    assert "pip install '/path/to/retryapp[spark]'" in made.reason
    assert announced == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('print(\'{"error": {"message": "no Java"}}\')', "no Java"),
        ("raise SystemExit('no memory')", "no memory (exit code 1)"),
        ("import os; os.kill(os.getpid(), 9)", "no output (exit code -9)"),
    ],
)
def test_a_process_that_fails_is_a_reason(make: Any, tmp_path: Path, program: str, reason: str) -> None:
    """The download is announced with its size, once; an old page is gone, so that it is not taken for this one."""
    page = tmp_path / "data" / "page.html"
    page.parent.mkdir()
    page.write_text("old")
    made, announced = make(program, page)
    assert made.reason == reason
    assert not page.exists()
    assert announced.count("downloads 6 jars of Spark's connectors, 20 MB, once") == 1


def test_a_folder_that_cannot_be_written_is_a_reason(make: Any, tmp_path: Path) -> None:
    """With the setting that names another."""
    (tmp_path / "file").touch()
    made, _ = make("", tmp_path / "file" / "page.html")
    assert made.reason.endswith("RETRYAPP_DATADIR")


def test_a_process_that_does_not_end_is_given_up(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "TIMEOUT_S", 0.1)
    made, _ = make("import time; time.sleep(600)", tmp_path / "page.html")
    assert "was not there after 0.1 s" in made.reason


def test_what_is_said_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retryapp[spark]` lost its brackets, and so its sense; a path in brackets ended the run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = "pip install '/path/to/retryapp[spark]', [/tmp/x], :key:"

    def play(demo: _Demo, *_: object) -> Balance:
        demo.say(said)
        return BALANCE

    monkeypatch.setattr(_Demo, "play", play)
    console = Console(file=StringIO(), width=200)
    run_demo(1, console, cache_dir=tmp_path, page=None, progress=None)
    assert console.file.getvalue() == f"{said}\n"  # type: ignore[attr-defined]


def test_a_run_that_has_begun_nothing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It named an empty folder as that of all logs, and left it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def play(demo: _Demo, *_: object) -> None:
        raise DatasetMissingError("the package")

    monkeypatch.setattr(_Demo, "play", play)
    console = Console(file=StringIO(), width=200)
    with pytest.raises(DatasetMissingError):
        run_demo(1, console, cache_dir=tmp_path, page=None, progress=None)
    assert (console.file.getvalue(), list(tmp_path.iterdir())) == ("", [])  # type: ignore[attr-defined]
