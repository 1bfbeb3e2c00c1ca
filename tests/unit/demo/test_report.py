"""What the demo makes of its report's process: a page, differences, or a reason; never an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from retryapp.core.topology import HandlerTopology
from retryapp.demo import report
from retryapp.demo.balance import Balance, Evidence, HandOff, Station, count
from retryapp.demo.data import Fate
from retryapp.demo.report import Report, make_report, read_report
from retryapp.demo.run import DemoResult
from retryapp.demo.stage import Stage
from retryapp.demo.view import View
from retryapp.demo.visits import Outcome, Visit
from retryapp.kafka import KafkaConnection

TOTALS = {"received": 4, "done": 2, "first_try_ok": 1, "recovered": 1, "pending": 0, "dead": 2, "lost": 0, "failed": 3}


def balance() -> Balance:
    """Count a run of four flights: two are done, two dead."""
    outcomes = {1: Outcome.DONE, 2: Outcome.DONE, 3: Outcome.NOT_FOUND, 4: Outcome.UNPROCESSABLE}
    visits = [
        Visit(
            flight_id=number,
            attempt=1,
            failure_id=f"demo/flights@id/0/{number}",
            due_at_ms=None,
            started_ms=10_000,
            ended_ms=10_005,
            outcome=outcome,
        )
        for number, outcome in outcomes.items()
    ]
    letters = [
        HandOff(station=Station.DLQ, flight_id=number, failure_id=f"demo/flights@id/0/{number}", attempt=1)
        for number in (3, 4)
    ]
    return count(
        Evidence(
            expected={1: Fate.DONE, 2: Fate.DONE, 3: Fate.NOT_FOUND, 4: Fate.UNPROCESSABLE},
            fed_ms=dict.fromkeys(outcomes, 9_990),
            visits=visits,
            handoffs=letters,
            delays_ms=(1_000,),
        )
    )


class Ground:
    """As much of a stage as the report needs; no broker answers there."""

    def __init__(self, folder: Path) -> None:
        """Use a folder."""
        self.folder = self.logs = folder
        self.connection = KafkaConnection("127.0.0.1:1")
        self.topology = HandlerTopology("demo", "flights")


class Told:
    """Takes down what is said."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.lines: list[str] = []

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Take it down."""
        self.lines.append(text)
        yield


def said(tmp_path: Path, result: dict[str, Any], *, code: int = 0) -> Report:
    """Read a process that has printed noise, its result, and more noise."""
    log = tmp_path / "report.log"
    log.write_text(f"WARNING: Using incubator modules\n{{ no json\n{json.dumps(result)}\nbye\n")
    return read_report(log, code, balance(), page=tmp_path / "page.html", seconds=31.4)


def analysed(*, at_rest: bool = True, **totals: int) -> dict[str, Any]:
    """Return what `retryapp pipeline analyse --report` prints."""
    return {
        "verdicts": [{"name": "no attempt was early", "severity": "error", "failures": 0, "text": "holds"}],
        "ledger": {"at_rest": at_rest, "differences": []},
        "report": {"path": "page.html", "headline": "3 records failed", "totals": {**TOTALS, **totals}},
    }


def test_a_page_that_agrees(tmp_path: Path) -> None:
    """Its path and headline, for people and for programs; the run is in order."""
    found = said(tmp_path, analysed())
    assert found.text.splitlines() == [
        f"Report after 31 s: {tmp_path / 'page.html'}",
        "  3 records failed. Balance, ledger and report agree.",
    ]
    result = DemoResult(balance=balance(), report=found)
    assert result.is_in_order
    told = cast(dict[str, Any], json.loads(json.dumps(result.as_json()))["report"])
    assert told == {
        "path": str(tmp_path / "page.html"),
        "reason": None,
        "seconds": 31.4,
        "headline": "3 records failed",
        "totals": TOTALS,
        "problems": [],
    }


@pytest.mark.parametrize("name", ["received", "done", "dead", "lost", "pending"])
def test_a_page_that_counts_otherwise_is_a_finding(tmp_path: Path, name: str) -> None:
    """The number and both counts are named, and the run is not in order."""
    found = said(tmp_path, analysed(**{name: 77}))
    (problem,) = found.problems
    assert problem.startswith(f"{name}: the report has 77, the balance ")
    assert "NOT agree" in found.text
    assert not DemoResult(balance=balance(), report=found).is_in_order


def test_the_ledgers_differences_and_failed_checks_are_findings(tmp_path: Path) -> None:
    """The former only at rest."""
    told = analysed()
    told["ledger"]["differences"] = [
        {"main": "flights", "partition": 1, "name": "recovered", "analysis": 5, "ledger": 6},
    ]
    told["verdicts"][0] |= {"failures": 2, "text": "attempts that began before they were due"}
    assert said(tmp_path, told, code=1).problems == (
        "flights[1] recovered: the report has 5, the ledger 6",
        "check no attempt was early: 2 x attempts that began before they were due",
    )
    told["ledger"]["at_rest"] = False
    assert len(said(tmp_path, told, code=1).problems) == 1


def test_an_error_is_a_reason_and_no_finding(tmp_path: Path) -> None:
    """On one line, with what to do, as the command said it."""
    message = "the archive job failed:\n  no room. Free space"
    found = said(tmp_path, {"error": {"type": "JobFailedError", "message": message, "exit_code": 3}}, code=3)
    assert found.text == "No report: the archive job failed: no room. Free space"
    result = DemoResult(balance=balance(), report=found)
    assert result.is_in_order
    assert cast(dict[str, Any], result.as_json()["report"])["path"] is None


def test_a_process_that_dies_is_a_reason(tmp_path: Path) -> None:
    """With the last thing that it said, and its exit code."""
    log = tmp_path / "report.log"
    log.write_text("starting\nOutOfMemoryError: Java heap space\n")
    found = read_report(log, -9, balance(), page=tmp_path / "page.html", seconds=1)
    assert found.reason == "OutOfMemoryError: Java heap space (code -9)"
    log.write_text("")
    assert read_report(log, -9, balance(), page=log, seconds=1).reason == "it said nothing (code -9)"


def test_without_pyspark_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason says how to get it."""
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    told = Told()
    found = make(tmp_path, told)
    assert found.reason is not None
    assert "pip install 'retryapp[spark]'" in found.reason
    assert told.lines == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('print(\'{"error": {"message": "no Java"}}\')', "no Java"),
        ("raise SystemExit('no memory')", "no memory (code 1)"),
    ],
)
def test_a_process_that_cannot_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    """The download is announced with its size first; an old page is gone, so that nobody takes it for this one."""
    monkeypatch.setattr(report, "find_spec", lambda name: object())
    monkeypatch.setattr(report, "_command", lambda stage, page: [sys.executable, "-c", program])
    page = tmp_path / "data" / "page.html"
    page.parent.mkdir()
    page.write_text("old")
    told = Told()
    found = make(tmp_path, told, page)
    assert found.reason == reason
    assert not page.exists()
    assert "downloads 6 jars of Spark's connectors, 20 MB, once" in told.lines[0]


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting that names another."""
    monkeypatch.setattr(report, "find_spec", lambda name: object())
    (tmp_path / "file").touch()
    found = make(tmp_path, Told(), tmp_path / "file" / "page.html")
    assert found.reason is not None
    assert found.reason.endswith("RETRYAPP_DATADIR")


def test_one_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ended."""
    monkeypatch.setattr(report, "find_spec", lambda name: object())
    monkeypatch.setattr(report, "TIMEOUT_S", 0.1)
    program = "import time; time.sleep(600)"
    monkeypatch.setattr(report, "_command", lambda stage, page: [sys.executable, "-c", program])
    found = make(tmp_path, Told())
    assert found.reason is not None
    assert "was not there after 0.1 s" in found.reason


def test_ctrl_c_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that it has started; the run then ends as an interrupted one does."""
    note = tmp_path / "pid"
    program = f"""
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
pathlib.Path({str(note)!r}).write_text(f'{{os.getpid()}} {{child.pid}} ')
time.sleep(600)
"""

    def clock() -> float:
        if note.exists() and note.read_text().endswith(" "):
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(report, "find_spec", lambda name: object())
    monkeypatch.setattr(report, "_command", lambda stage, page: [sys.executable, "-c", program])
    monkeypatch.setattr(report, "monotonic_s", clock)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Told())
    processes = [psutil.Process(int(pid)) for pid in note.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def make(tmp_path: Path, told: Told, page: Path | None = None) -> Report:
    """Make a report where there is no broker and no cache."""
    ground, view = cast(Stage, Ground(tmp_path)), cast(View, told)
    return make_report(ground, balance(), view, cache_dir=tmp_path / "cache", page=page or tmp_path / "page.html")
