"""`retryapp demo` as a whole: real broker, real service, two real workers, one of them killed; and Spark at the end."""

import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from retryapp.demo.data import fate_of, load_planes, read_flights
from retryapp.demo.visits import Outcome
from retryapp.guardian import is_alive
from retryapp.stage import Child

pytestmark = [pytest.mark.acceptance, pytest.mark.broker, pytest.mark.extended, pytest.mark.timeout(600)]

RECORDS = 900


@pytest.fixture
def demo(tmp_path: Path, cache_dir: Path) -> Iterator[Child]:
    """Start a small demo whose temporary folders are in `tmp_path`."""
    env = {
        "TMPDIR": str(tmp_path),
        "RETRYAPP_CACHE_DIR": str(cache_dir),
        "RETRYAPP_DATADIR": str(tmp_path / "data"),
    }
    command = [sys.executable, "-m", "retryapp.cli.main", "demo", "--records", str(RECORDS), "--json"]
    child = Child("demo", command, log_file=tmp_path / "log.txt", env=env).start()
    yield child
    child.stop(30)


def test_every_flight_is_accounted_for(demo: Child, tmp_path: Path) -> None:
    """The fates are those of the data; balance, ledger and report agree; nothing but the report is left."""
    assert demo.wait(500) == 0, demo.log
    counted = json.loads(demo.log.splitlines()[-1])
    planes = load_planes()
    fates = Counter(fate_of(flight, planes) for flight in read_flights(RECORDS))
    done = fates[Outcome.DONE]
    assert (counted["fed"], counted["done"], counted["dead"]) == (RECORDS, done, RECORDS - done)
    assert [counted[key] for key in ("lost", "early", "duplicated_handoffs", "kills", "problems")] == [0, 0, 0, 1, []]
    assert {path.name for path in tmp_path.iterdir()} <= {"log.txt", "data"}
    report, ledger = counted["report"], counted["ledger"]
    if find_spec("pyspark") is None:
        assert "pip install '/path/to/retryapp[spark]'" in report["reason"]
        return
    page = tmp_path / "data" / "demo-report.html"
    assert (report["path"], report["reason"], report["problems"]) == (str(page), None, []), report
    assert report["headline"] in page.read_text()
    totals = report["totals"]
    for name in ("received", "done", "dead", "pending", "lost"):
        assert totals[name] == ledger[name] == counted.get(name, {"received": RECORDS, "pending": 0}.get(name))
    assert totals["failed"] == totals["recovered"] + totals["dead"] > 0


def test_an_interrupted_run_leaves_nothing_behind(demo: Child, tmp_path: Path) -> None:
    """The announced pages are served; after Ctrl-C, while Spark starts, no process and no folder is left."""
    demo.wait_for_line(r"done or dead [1-9]", timeout_s=90)
    pages = re.findall(r"http://127\.0\.0\.1:\d+/\S+/", demo.log)
    assert len(pages) == 2
    assert "flights" in urlopen(pages[0], timeout=10).read().decode()  # noqa: S310 - an address of the run's own
    demo.wait_for_line("The pipeline on Spark", timeout_s=90)
    processes = psutil.Process(demo.pid).children(recursive=True)
    assert len(processes) >= 5
    demo.signal(signal.SIGINT)
    assert demo.wait(30) == 130
    assert json.loads(demo.log.splitlines()[-1])["error"]["type"] == "Interrupted"
    assert not any(map(is_alive, processes))
    assert list(tmp_path.iterdir()) == [tmp_path / "log.txt"]
