"""`retryapp demo` as a whole: real broker, real service, two real workers, one of them killed; and Spark at the end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from retryapp.demo.data import Fate, count_fates

pytestmark = [pytest.mark.acceptance, pytest.mark.broker, pytest.mark.timeout(600)]

RECORDS = 900


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return everything that the command has started."""
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def demo(tmp_path: Path, cache_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a small demo whose temporary folders are below `tmp_path`; nothing of it is left at the end."""
    with (tmp_path / "stderr.txt").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "retryapp.cli.main", "demo", "--records", str(RECORDS), "--json"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={
                **os.environ,
                "TMPDIR": str(tmp_path),
                "RETRYAPP_CACHE_DIR": str(cache_dir),
                "RETRYAPP_DATADIR": str(tmp_path / "data"),
            },
        )
    yield process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=30)


@pytest.mark.slow
def test_every_flight_is_accounted_for(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    """The run ends in order, with the fates that the data announce, one kill, and nothing left but the report."""
    stdout, _ = demo.communicate(timeout=500)
    said = (tmp_path / "stderr.txt").read_text()
    assert demo.returncode == 0, said
    counted = json.loads(stdout.splitlines()[-1])
    fates = count_fates(RECORDS)
    assert (counted["fed"], counted["done"]) == (RECORDS, fates[Fate.DONE])
    assert counted["dead_by_reason"] == {"rejected": RECORDS - fates[Fate.DONE]}
    assert [counted[key] for key in ("lost", "early", "duplicated_handoffs", "kills")] == [0, 0, 0, 1]
    assert 0 <= counted["lateness_ms"]["p50"] <= counted["lateness_ms"]["p99"] <= counted["lateness_ms"]["max"]
    assert (
        said.index("policy: 1s 2s 4s 8s*3")
        < said.index("pages of the workers: http://127.0.0.1:")
        < said.index("  fed ")
    )
    check_report(counted, said, tmp_path / "data" / "demo-report.html")
    assert {path.name for path in tmp_path.iterdir()} <= {"stderr.txt", "data"}


def check_report(counted: dict[str, Any], said: str, page: Path) -> None:
    """It says what the balance and the ledger say, after the balance was printed; or why there is none."""
    report = counted["report"]
    if find_spec("pyspark") is None:
        assert "pip install 'retryapp[spark]'" in report["reason"]
        return
    assert (report["path"], report["reason"], report["problems"]) == (str(page), None, []), report
    totals, ledger = report["totals"], counted["ledger"]
    assert {name: totals[name] for name in ("received", "done", "pending", "dead", "lost")} == {
        "received": RECORDS,
        "done": counted["done"],
        "pending": 0,
        "dead": counted["dead"],
        "lost": 0,
    }
    assert {name: totals[name] for name in ("received", "done", "dead")} == {
        name: ledger[name] for name in ("received", "done", "dead")
    }
    assert totals["failed"] == totals["recovered"] + totals["dead"] > 0
    assert totals["first_try_ok"] + totals["recovered"] == totals["done"]
    assert report["headline"] in page.read_text()
    assert said.index("In order: every flight") < said.index("The pipeline on Spark goes over") < said.index(str(page))


def test_an_interrupted_run_leaves_nothing_behind(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    """The announced pages are there; after Ctrl-C in mid-run no process and no folder is left."""
    deadline = time.monotonic() + 90
    while "done" not in (tmp_path / "stderr.txt").read_text():
        assert demo.poll() is None, (tmp_path / "stderr.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pages = re.findall(r"http://127\.0\.0\.1:\d+/\S+/", (tmp_path / "stderr.txt").read_text())
    assert len(pages) == 2
    assert "flights" in urlopen(pages[0], timeout=10).read().decode()  # noqa: S310 - an address of the run's own
    children = descendants(demo)
    assert len(children) >= 4
    demo.send_signal(signal.SIGINT)
    stdout, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert json.loads(stdout)["error"]["type"] == "Interrupted"
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    assert list(tmp_path.iterdir()) == [tmp_path / "stderr.txt"]
